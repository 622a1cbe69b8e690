"""Draw one agent's observation: the cart on its rail, and the pole."""

import numpy as np

HEIGHT, WIDTH = 100, 200
SCALE = 40  # pixels per metre: the rail is 2.5 m to either side
RAIL = 70  # row
PIVOT = RAIL - 8
POLE = 45  # pixels; longer than to scale, so that a lean is visible
DARK, CART, WOOD, LINE = (6, 24, 24), (0, 187, 187), (187, 0, 0), (90, 110, 110)


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw a cart and its pole as a picture (100, 200, 3) uint8.

    The observation (4,) is x, x_dot, theta, theta_dot.
    """
    x, _, theta, _ = (float(value) for value in observation)
    picture = np.full((HEIGHT, WIDTH, 3), DARK, np.uint8)
    picture[RAIL : RAIL + 2] = LINE
    centre = WIDTH / 2 + SCALE * x
    left = int(np.clip(round(centre) - 12, 0, WIDTH - 1))
    picture[PIVOT : RAIL + 4, left : max(round(centre) + 12, 0)] = CART
    along = np.linspace(0, POLE, 4 * POLE)
    rows = np.rint(PIVOT - along * np.cos(theta)).astype(int)
    columns = np.rint(centre + along * np.sin(theta)).astype(int)
    for shift in -1, 0, 1:  # three pixels thick
        inside = (columns + shift >= 0) & (columns + shift < WIDTH)
        picture[rows[inside], columns[inside] + shift] = WOOD
    return picture
