"""Draw one agent's observation: bricks, ball, paddle, and the spare balls.

An observation has no sizes, so those of configs/breakout.ini are used, at half scale.
"""

import numpy as np

WIDTH, HEIGHT = 288, 165
PADDLE_WIDTH, PADDLE_HEIGHT, BALL = 31, 4, 16
BRICK_ROWS, BRICK_COLUMNS, BRICK_WIDTH, BRICK_HEIGHT, BRICKS_TOP = 6, 18, 16, 6, 25
DARK, PADDLE, BALL_COLOUR = (6, 24, 24), (0, 187, 187), (241, 241, 241)
ROW_COLOURS = [(187, 0, 0)] * 2 + [(204, 173, 17)] * 2 + [(0, 120, 120)] * 2  # 7, 4, 1 points


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw an observation (118,) of Breakout as a picture (165, 288, 3) uint8.

    With env.hide_balls_and_width the paddle is drawn at full width.
    """
    picture = np.full((HEIGHT, WIDTH, 3), DARK, np.uint8)

    def box(x: float, y: float, width: int, height: int, colour: tuple[int, ...]) -> None:
        left, top = round(x), round(y)
        picture[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = colour

    gone = observation[10:].reshape(BRICK_ROWS, BRICK_COLUMNS) != 0
    for row, column in np.argwhere(~gone):
        x, y = column * BRICK_WIDTH, BRICKS_TOP + row * BRICK_HEIGHT
        box(x, y, BRICK_WIDTH - 1, BRICK_HEIGHT - 1, ROW_COLOURS[row])
    paddle_x, paddle_y, ball_x, ball_y = observation[:4] * [WIDTH, HEIGHT, WIDTH, HEIGHT]
    width = float(observation[9]) or 1.0
    box(paddle_x, paddle_y, round(width * PADDLE_WIDTH), PADDLE_HEIGHT, PADDLE)
    box(ball_x, ball_y, BALL, BALL, BALL_COLOUR)
    for ball in range(round(float(observation[8]) * 5)):
        box(6 + 8 * ball, 6, 4, 4, BALL_COLOUR)
    return picture
