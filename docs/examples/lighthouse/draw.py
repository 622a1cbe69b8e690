"""A picture of the sea at night: the beam, the ships that saw it (green) and those that didn't."""

import numpy as np

SIZE = 128  # pixels a side; the horizon is 1.5 away
X, Y = np.meshgrid(*[np.linspace(-1.6, 1.6, SIZE)] * 2)
ANGLE, DISTANCE = np.arctan2(Y, X), np.hypot(X, Y)
WIDTH = 0.15  # of lighthouse.ini
SEA, LIGHT, ROCK = np.array([(8, 20, 44), (250, 230, 150), (90, 80, 80)], float)


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw what the keeper sees (18,) as a picture (128, 128, 3) uint8."""
    lamp = np.arctan2(observation[1], observation[0])
    lit = np.abs(np.angle(np.exp(1j * (ANGLE - lamp)))) < WIDTH
    picture = SEA + (lit * np.clip(1 - DISTANCE / 2, 0, 1))[..., None] * (LIGHT - SEA) * 0.7
    for cosine, sine, distance, seen in observation[2:].reshape(-1, 4):
        bearing = lamp + np.arctan2(sine, cosine)
        x, y = distance * np.cos(bearing), distance * np.sin(bearing)
        picture[np.hypot(X - x, Y - y) < 0.06] = (220 - 200 * seen, 60 + 180 * seen, 80)
    picture[DISTANCE < 0.1] = ROCK
    picture[DISTANCE < 0.04] = LIGHT
    return picture.clip(0, 255).astype(np.uint8)
