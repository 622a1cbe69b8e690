"""Draw one agent's observation: the board, the agent's stones cyan, the opponent's red."""

import numpy as np

ROWS, COLUMNS = 6, 7
CELL = 28  # pixels per side
DARK, EMPTY, AGENT, OPPONENT = (6, 24, 24), (20, 44, 44), (0, 187, 187), (187, 0, 0)


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw an observation of Connect Four's board as a picture (168, 196, 3) uint8.

    Args:
        observation: Three planes of 6 x 7 cells, (126,): the agent's stones, the opponent's
            stones, and the cells where stones would land, which aren't drawn.
    """
    own, others = observation.reshape(3, ROWS, COLUMNS)[:2] != 0
    cells = np.full((ROWS, COLUMNS, 3), EMPTY, np.uint8)
    cells[own], cells[others] = AGENT, OPPONENT
    picture = cells.repeat(CELL, axis=0).repeat(CELL, axis=1)
    offsets = np.arange(CELL) - (CELL - 1) / 2
    # Pixels of a cell that are outside of the disc in its middle.
    outside = offsets[:, None] ** 2 + offsets**2 > (CELL / 2 - 2) ** 2
    picture[np.tile(outside, (ROWS, COLUMNS))] = DARK
    return picture
