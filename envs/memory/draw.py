"""Draw one agent's observation: the cue as a coloured left or right half."""

import numpy as np

SIZE = 60  # pixels per side of a half
DARK, LEFT, RIGHT = (6, 24, 24), (0, 187, 187), (187, 0, 0)


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw the cue of the memory task as a picture (60, 120, 3) uint8.

    The observation (1,) is -1 for a cue on the left, 1 on the right, 0 for none.
    """
    cue = float(observation[0])
    picture = np.full((SIZE, 2 * SIZE, 3), DARK, np.uint8)
    if cue != 0:
        start = 0 if cue < 0 else SIZE
        picture[:, start : start + SIZE] = LEFT if cue < 0 else RIGHT
    return picture
