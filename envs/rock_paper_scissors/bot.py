"""A player who beats what the other has chosen most often, or draws as nothing can beat."""

import numpy as np

ROUNDS, CHOICES = 4, 3
EQUILIBRIUM = 0.25, 0.5, 0.25  # rock, paper, scissors: no answer gets more than 0 on average


def choose(
    observations: np.ndarray, masks: np.ndarray | None, skill: float, rng: np.random.Generator
) -> np.ndarray:
    """Beat the other's most frequent choice of the earlier rounds, else draw.

    Args:
        observations: (n, 22) uint8, of rock_paper_scissors.
        masks: None, every choice is legal.
        skill: probability that it counts; in the first round there is nothing to count.
        rng: what is drawn.

    Returns:
        Choices (n, 1); of several that were as frequent, rock is beaten first, then paper.
    """
    past = observations[:, ROUNDS:].reshape(-1, ROUNDS - 1, 2, CHOICES)
    counts = past[:, :, 1].sum(axis=1)  # (n, 3), of the other's choices
    drawn = rng.choice(CHOICES, len(observations), p=EQUILIBRIUM)
    counting = (rng.random(len(observations)) < skill) & counts.any(axis=1)
    return np.where(counting, (counts.argmax(axis=1) + 1) % CHOICES, drawn)[:, None]
