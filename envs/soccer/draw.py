"""Draw one agent's observation: the agent white, playing to the right, its team-mate cyan."""

import numpy as np

ROWS, COLUMNS = 5, 9
CELL = 30  # pixels per side
GOAL = slice(1, 4)  # rows
DARK, GRASS, POST = (6, 24, 24), (20, 44, 44), (90, 110, 110)
SELF, MATE, OTHER, BALL = (241, 241, 241), (0, 187, 187), (187, 0, 0), (204, 173, 17)


def disc(radius: float) -> np.ndarray:
    """Return the mask of a disc of this radius in the middle of a cell, (30, 30) bool."""
    offsets = np.arange(CELL) - (CELL - 1) / 2
    return offsets[:, None] ** 2 + offsets**2 <= radius**2


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw the soccer field in an observation as a picture (150, 290, 3) uint8.

    The observation is (186,). There is a goal at each end.
    """
    planes = observation[: 4 * ROWS * COLUMNS].reshape(4, ROWS, COLUMNS) != 0
    field = np.full((ROWS * CELL, COLUMNS * CELL, 3), GRASS, np.uint8)
    field[::CELL] = DARK
    field[:, ::CELL] = DARK
    kinds = (SELF, 11), (MATE, 11), (OTHER, 11), (BALL, 5)  # colour and radius of each plane
    for cells, (colour, radius) in zip(planes, kinds, strict=True):
        for row, column in np.argwhere(cells):
            top, left = row * CELL, column * CELL
            field[top : top + CELL, left : left + CELL][disc(radius)] = colour
    goal = np.full((ROWS, CELL, 10, 3), DARK, np.uint8)
    goal[GOAL] = POST
    goal = goal.reshape(ROWS * CELL, 10, 3)
    return np.concatenate([goal, field, goal], axis=1)
