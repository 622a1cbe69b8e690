"""A picture of one player's observation: it stands on the left, bars are the players' strength."""

import numpy as np

DARK, ROPE, KNOT = (6, 24, 24), (204, 173, 17), (241, 241, 241)
SELF, OTHER = (0, 187, 187), (187, 0, 0)


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw what a player sees (4,) as a picture (90, 180, 3) uint8."""
    own, other, knot, _ = observation
    picture = np.full((90, 180, 3), DARK, np.uint8)
    picture[43:47, 10:170] = ROPE
    middle = int(90 - 75 * np.clip(knot, -1, 1))  # to the left if the player is ahead
    picture[35:55, middle - 5 : middle + 5] = KNOT
    picture[80 - int(60 * own) : 80, 2:10] = SELF
    picture[80 - int(60 * other) : 80, 170:178] = OTHER
    return picture
