"""A player who carries the ball to the goal, and else runs to it."""

import numpy as np

ROWS, COLUMNS = 5, 9
GOAL = 1, 3  # its first and last row
STAY, FORWARD, BACK, LEFT, RIGHT, PASS = range(6)


def place(plane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and column (n,) of the one cell of a plane (n, 45) that is set."""
    return np.divmod(plane.argmax(axis=1), COLUMNS)


def choose(
    observations: np.ndarray, masks: np.ndarray | None, skill: float, rng: np.random.Generator
) -> np.ndarray:
    """With the ball go to a row of the goal and forward; without it go to who has it.

    Args:
        observations: (n, 186) uint8, of soccer.
        masks: None, every choice is legal.
        skill: probability that it does so in a step; otherwise any choice is as probable.
        rng: what is drawn.

    Returns:
        Choices (n, 1).
    """
    n = len(observations)
    own, _, _, ball = observations[:, : 4 * ROWS * COLUMNS].reshape(n, 4, -1).swapaxes(0, 1)
    row, column = place(own)
    ball_row, ball_column = place(ball)
    has_it = (ball == own).all(axis=1)
    down = np.where(has_it, np.clip(row, *GOAL), ball_row) - row
    on = np.where(has_it, COLUMNS, ball_column) - column
    sideways = np.where(down > 0, RIGHT, LEFT)
    straight = np.where(on > 0, FORWARD, BACK)
    # Along the longer way first; before the end line with the ball, into the goal's rows.
    across = (down != 0) & ((abs(down) > abs(on)) | (has_it & (column == COLUMNS - 1)))
    wanted = np.where(across, sideways, np.where(on != 0, straight, sideways))
    drawn = rng.integers(6, size=n)
    return np.where(rng.random(n) < skill, wanted, drawn)[:, None]
