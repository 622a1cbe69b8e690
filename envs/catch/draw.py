"""Draw one agent's observation: its pixels enlarged, the ball and the paddle coloured."""

import numpy as np

SIZE, SCALE = 36, 6  # pixels per side of the observation; pixels of the picture for each
DARK, PADDLE, BALL = (6, 24, 24), (0, 187, 187), (241, 241, 241)


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw an observation of the game Catch as a picture (216, 216, 3) uint8.

    Its 36 x 36 pixels (1296,) are 0, 128 or 255.
    """
    picture = np.full((SIZE, SIZE, 3), DARK, np.uint8)
    pixels = observation.reshape(SIZE, SIZE)
    picture[pixels == 128] = PADDLE
    picture[pixels == 255] = BALL
    return picture.repeat(SCALE, axis=0).repeat(SCALE, axis=1)
