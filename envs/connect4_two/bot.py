"""Scripted player of connect4_two.

Plays like the opponent in ../connect4/connect4.h (choose_column), on many boards at once.
"""

import numpy as np

ROWS, COLUMNS = 6, 7
DIRECTIONS = (0, 1), (1, 0), (1, 1), (1, -1)  # of lines: (rows down, columns to the right)
STARTS = [  # the first stone of each of the 69 lines, and its direction
    (row, column, down, right)
    for down, right in DIRECTIONS
    for row in range(ROWS - 3 * down)
    for column in range(COLUMNS)
    if 0 <= column + 3 * right < COLUMNS
]
LINES = np.array(  # (69, 4) cells of a flat board
    [[(r + i * down) * COLUMNS + c + i * right for i in range(4)] for r, c, down, right in STARTS]
)


def fours(stones: np.ndarray, landing: np.ndarray) -> np.ndarray:
    """Return the columns where a player's next stone completes four in a row, (n, 7) bool.

    Args:
        stones: Cells with a stone of the player, (n, 42) bool.
        landing: Cells where the next stone of each column would land, (n, 42) bool.
    """
    in_line = stones[:, LINES]  # (n, 69, 4)
    # True for the fourth cell of a line whose three other cells have stones.
    missing = ~in_line & (in_line.sum(axis=2) == 3)[:, :, None]
    wanted = np.zeros_like(stones)
    board, line, place = np.nonzero(missing)
    wanted[board, LINES[line, place]] = True
    return (wanted & landing).reshape(-1, ROWS, COLUMNS).any(axis=1)


def choose(
    observations: np.ndarray, masks: np.ndarray, skill: float, rng: np.random.Generator
) -> np.ndarray:
    """Choose a column per Connect Four board: win if possible, else block, else a random one.

    Args:
        observations: Observations of connect4_two, (n, 126) uint8.
        masks: Legal choices, (n, 7), non-zero where a column isn't full.
        skill: Probability of looking for lines of four; otherwise the column is random.
        rng: Random generator.

    Returns:
        Columns, (n, 1). If several complete a line, the leftmost.
    """
    own, others, landing = np.moveaxis(observations.reshape(-1, 3, ROWS * COLUMNS) != 0, 1, 0)
    # Priority of each column: full -1, random 0 to 1, block 2, win 3.
    wishes = np.where(masks != 0, rng.random(masks.shape), -1.0)
    looks = (rng.random(len(masks)) < skill)[:, None]
    wishes[fours(others, landing) & looks] = 2.0
    wishes[fours(own, landing) & looks] = 3.0
    return wishes.argmax(axis=1)[:, None]
