"""A picture of one agent's observation: the grid with the agent and the target."""

import numpy as np

SIZE, CELL = 11, 18  # cells a side, and their pixels; an observation doesn't tell a smaller size
DARK, EMPTY, AGENT, TARGET = (6, 24, 24), (20, 44, 44), (0, 187, 187), (187, 0, 0)


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw the cells (121,), 0 empty, 1 agent, 2 target, as a picture (198, 198, 3) uint8."""
    cells = np.array([EMPTY, AGENT, TARGET], np.uint8)[observation.reshape(SIZE, SIZE)]
    picture = cells.repeat(CELL, axis=0).repeat(CELL, axis=1)
    picture[::CELL] = DARK
    picture[:, ::CELL] = DARK
    return picture
