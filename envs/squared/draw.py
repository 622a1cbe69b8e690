"""Draw one agent's observation: the grid with the agent and the target."""

import numpy as np

SIZE = 11  # cells per side of the largest grid; a smaller one can't be recognised
CELL = 18  # pixels per side of a cell
DARK, EMPTY, AGENT, TARGET = (6, 24, 24), (20, 44, 44), (0, 187, 187), (187, 0, 0)


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw the grid of the environment Squared as a picture (198, 198, 3) uint8.

    The observation is its cells (121,): 0 empty, 1 agent, 2 target.
    """
    cells = np.array([EMPTY, AGENT, TARGET], np.uint8)[observation.reshape(SIZE, SIZE)]
    picture = cells.repeat(CELL, axis=0).repeat(CELL, axis=1)
    picture[::CELL] = DARK
    picture[:, ::CELL] = DARK
    return picture
