"""Draw what the castaway sees, and its inventory below."""

import numpy as np

VIEW, CELL = 7, 24  # cells; pixels of a cell's side
COLOURS = np.array(  # sea, sand, tree, rock, bush, crab; wood, stone, axe, health, the castaway
    [
        *((40, 100, 190), (214, 196, 140), (24, 78, 36), (120, 124, 128), (200, 60, 140)),
        *((220, 60, 30), (122, 82, 46), (120, 124, 128), (20, 44, 44), (187, 0, 0)),
        (241, 241, 241),
    ],
    np.uint8,
)


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw an observation (293,) as a picture (192, 168, 3) uint8."""
    cells = observation[:288].reshape(-1, 6).argmax(1)
    world = np.insert(cells, VIEW * VIEW // 2, 10).reshape(VIEW, VIEW)
    counts = np.rint(10 * observation[288:292]).astype(int)
    below = np.full(VIEW * CELL, 1)
    for place, count in enumerate(counts):
        below[40 * place : 40 * place + 4 * count] = 6 + place
    picture = COLOURS[world].repeat(CELL, 0).repeat(CELL, 1)
    return np.concatenate([picture, COLOURS[below][None].repeat(CELL, 0)])
