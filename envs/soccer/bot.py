"""A scripted player that carries the ball to the goal and otherwise runs to the ball."""

import numpy as np

ROWS, COLUMNS = 5, 9
GOAL = 1, 3  # first and last row
STAY, FORWARD, BACK, LEFT, RIGHT, PASS = range(6)


def place(plane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the one set cell of each of n planes (n, 45). Returns rows (n,) and columns (n,)."""
    return np.divmod(plane.argmax(axis=1), COLUMNS)


def choose(
    observations: np.ndarray, masks: np.ndarray | None, skill: float, rng: np.random.Generator
) -> np.ndarray:
    """Choose a soccer player's actions: carry the ball to the goal, or run to the ball.

    Args:
        observations: Observations of soccer, (n, 186) uint8.
        masks: None, because every choice is legal.
        skill: Probability of that choice in a step; otherwise the choice is uniformly random.
        rng: Random generator.

    Returns:
        Choices, (n, 1).
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
    # Reduce the larger distance first; on the last column with the ball, enter the goal's rows.
    across = (down != 0) & ((abs(down) > abs(on)) | (has_it & (column == COLUMNS - 1)))
    wanted = np.where(across, sideways, np.where(on != 0, straight, sideways))
    drawn = rng.integers(6, size=n)
    return np.where(rng.random(n) < skill, wanted, drawn)[:, None]
