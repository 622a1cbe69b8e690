"""Draw one agent's observation: the cells around it, and below its inventory."""

import numpy as np

CELL = 30  # pixels per side
PIP = 6  # height in pixels of a point of health, or of an item
ROWS, COLUMNS, BLOCKS, ITEMS = 7, 9, 17, 12
DARK, EMPTY, INK = (6, 24, 24), (20, 44, 44), (241, 241, 241)
GRASS, STONE, SAND, SOIL = (60, 130, 60), (120, 124, 128), (214, 196, 140), (150, 118, 86)
WATER, WOOD, GOLD, RED = (40, 100, 190), (122, 82, 46), (204, 173, 17), (187, 0, 0)
GROUND = np.array(  # colour of each block
    [
        *(DARK, DARK, GRASS, WATER, STONE, GRASS, WOOD, SOIL, STONE, STONE, STONE),
        *(WOOD, STONE, SAND, (226, 90, 20), GRASS, GRASS),
    ],
    np.uint8,
)
COAL, IRON, DIAMOND, LEAVES = (30, 30, 34), (220, 160, 120), (150, 240, 255), (24, 78, 36)
MARKS = {  # blocks with a mark in the middle: colour, and margin in pixels
    5: (LEAVES, 3),
    8: (COAL, 9),
    9: (IRON, 9),
    10: (DIAMOND, 9),
    11: ((176, 132, 84), 5),
    12: ((226, 90, 20), 10),
    15: ((130, 200, 90), 11),
    16: ((230, 90, 160), 8),
}
ZOMBIE, COW, SKELETON, ARROW = (30, 190, 60), (240, 220, 200), (200, 204, 212), (250, 240, 120)
MOBS = ((ZOMBIE, 5), (COW, 5), (SKELETON, 5), (ARROW, 12))
AHEAD = ((0, -1), (0, 1), (-1, 0), (1, 0))  # rows and columns: left, right, up, down
COLOURS = (  # columns of the inventory: health, food, drink, energy, then the items
    *(RED, (200, 120, 60), WATER, GOLD, WOOD, STONE, COAL, IRON, DIAMOND, (130, 200, 90)),
    *((WOOD, STONE, IRON) * 2),
)
WIDTH, HEIGHT = COLUMNS * CELL, ROWS * CELL
COLUMN = WIDTH // len(COLOURS)


def fill(
    picture: np.ndarray, cell: tuple[int, int], margin: int, colour: tuple[int, int, int]
) -> None:
    """Fill a cell of the picture with a colour, except for a margin of some pixels at its edges."""
    top, left = (CELL * place for place in cell)
    picture[top + margin : top + CELL - margin, left + margin : left + CELL - margin] = colour


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw a Craftax observation (1345,), cells and inventory, as a picture (273, 270, 3) uint8."""
    cells = observation[: ROWS * COLUMNS * (BLOCKS + 4)].reshape(ROWS, COLUMNS, -1)
    numbers = np.rint(10 * observation[cells.size :][: ITEMS + 4]).astype(int)
    ways, (light, asleep) = observation[-6:-2], observation[-2:]
    blocks = cells[..., :BLOCKS].argmax(-1)
    world = GROUND[blocks].repeat(CELL, 0).repeat(CELL, 1)
    for row, column in np.ndindex(ROWS, COLUMNS):
        if blocks[row, column] in MARKS:
            colour, margin = MARKS[int(blocks[row, column])]
            fill(world, (row, column), margin, colour)
        for (colour, margin), here in zip(MOBS, cells[row, column, BLOCKS:], strict=True):
            if here:
                fill(world, (row, column), margin, colour)
    fill(world, (ROWS // 2, COLUMNS // 2), 6, INK)
    down, right = AHEAD[int(ways.argmax())]
    middle = np.array([ROWS, COLUMNS]) * CELL // 2 + 7 * np.array([down, right])
    world[middle[0] - 3 : middle[0] + 3, middle[1] - 3 : middle[1] + 3] = RED
    bright = (0.35 + 0.65 * float(light)) * (0.5 if asleep else 1.0)
    picture = np.full((HEIGHT + 10 * PIP + 3, WIDTH, 3), EMPTY, np.uint8)
    picture[:HEIGHT] = (bright * world).astype(np.uint8)
    order = [*range(ITEMS, ITEMS + 4), *range(ITEMS)]
    for place, (number, colour) in enumerate(zip(numbers[order], COLOURS, strict=True)):
        for pip in range(number):
            bottom = len(picture) - 3 - PIP * pip
            left = COLUMN * place + 2
            picture[bottom - PIP + 1 : bottom, left : left + COLUMN - 3] = colour
    return picture
