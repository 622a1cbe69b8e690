"""Draw one agent's observation: the world with its goals, the other agents, and the agent."""

import numpy as np

HEIGHT, WIDTH = 124, 199  # pixels of the picture
SCALE, BORDER = 0.2, 3  # the world has 592 x 952 pixels; the picture has a fifth and a border
GOALS, AGENTS = slice(0, 8), slice(8, 24)  # elements of the observation: offsets (x, y)
DARK, GOAL, OTHER, SELF, NOSE = (6, 24, 24), (204, 173, 17), (0, 187, 187), (187, 0, 0), (241,) * 3


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw an observation (28,), the world's agents and goals, as a (124, 199, 3) uint8 picture.

    A goal is a dot in a dark disc, whose radius is the distance at which an agent reaches the goal:
    64 pixels of the world. The agent is red, with a dot in its direction.
    """
    world = np.array([952, 592]) * SCALE
    own = observation[26:28]  # position (x, y), as a fraction of the world's size
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]

    def disc(place: np.ndarray, radius: float, colour: tuple[int, ...]) -> None:
        """Fill a disc in the picture around a place (x, y) of the world.

        Coordinates are 0 to 1; the radius is in pixels.
        """
        x, y = place * world + BORDER
        picture[(columns - x) ** 2 + (rows - y) ** 2 <= radius**2] = colour

    picture = np.full((HEIGHT, WIDTH, 3), DARK, np.uint8)
    for offset in observation[GOALS].reshape(4, 2):
        disc(own + offset, 64 * SCALE, tuple(value // 3 for value in GOAL))
    for offset in observation[GOALS].reshape(4, 2):
        disc(own + offset, 3, GOAL)
    for offset in observation[AGENTS].reshape(8, 2):
        disc(own + offset, 4, OTHER)
    disc(own, 4, SELF)
    angle = 2 * np.pi * observation[24]  # rad, 0 is to the right, a quarter turn downwards
    disc(own + 5 * np.array([np.cos(angle), np.sin(angle)]) / world, 1.5, NOSE)
    return picture
