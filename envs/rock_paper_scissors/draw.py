"""Draw one agent's observation: a column per round, its choices above the opponent's."""

import numpy as np

ROUNDS, CHOICES = 4, 3
CELL = 48  # pixels per side
DARK, EMPTY, NOW = (6, 24, 24), (20, 44, 44), (50, 80, 80)
AGENT, OPPONENT = (0, 187, 187), (187, 0, 0)


def shapes() -> np.ndarray:
    """Return the shapes of rock, paper and scissors as masks of pixels, (3, 48, 48) bool.

    Rock is a disc, paper a sheet, scissors two blades.
    """
    y, x = np.mgrid[:CELL, :CELL] - (CELL - 1) / 2
    rock = x**2 + y**2 <= 15**2
    paper = (abs(x) <= 12) & (abs(y) <= 16)
    scissors = ((abs(x - y) <= 4) | (abs(x + y) <= 4)) & (x**2 + y**2 <= 18**2)
    return np.stack([rock, paper, scissors])


def draw(observation: np.ndarray) -> np.ndarray:
    """Draw an observation (22,) of rock, paper, scissors as a picture (96, 192, 3) uint8.

    Finished rounds show the agent's choice in cyan above the opponent's in red. The current round
    has a lighter background.
    """
    past = observation[ROUNDS:].reshape(ROUNDS - 1, 2, CHOICES)
    picture = np.full((2 * CELL, ROUNDS * CELL, 3), DARK, np.uint8)
    for number in range(ROUNDS):
        for row, colour in enumerate((AGENT, OPPONENT)):
            top, left = row * CELL, number * CELL
            cell = picture[top : top + CELL, left : left + CELL]
            cell[2:-2, 2:-2] = NOW if observation[number] else EMPTY
            if number < ROUNDS - 1:
                for shape in shapes()[past[number, row] != 0]:
                    cell[shape] = colour
    return picture
