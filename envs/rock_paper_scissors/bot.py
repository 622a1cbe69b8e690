"""A scripted player that beats the opponent's most frequent choice, or plays the equilibrium."""

import numpy as np

ROUNDS, CHOICES = 4, 3
EQUILIBRIUM = 0.25, 0.5, 0.25  # rock, paper, scissors: no strategy wins against it on average


def choose(
    observations: np.ndarray, masks: np.ndarray | None, skill: float, rng: np.random.Generator
) -> np.ndarray:
    """Choose rock, paper or scissors: what beats the opponent's commonest choice, or at random.

    Args:
        observations: Observations of rock_paper_scissors, (n, 22) uint8.
        masks: None, because every choice is legal.
        skill: Probability of beating the most frequent choice. The first round samples the
            equilibrium.
        rng: Random generator.

    Returns:
        Choices, (n, 1). In a tie, rock counts as the most frequent choice, then paper.
    """
    past = observations[:, ROUNDS:].reshape(-1, ROUNDS - 1, 2, CHOICES)
    counts = past[:, :, 1].sum(axis=1)  # (n, 3), the opponent's choices
    drawn = rng.choice(CHOICES, len(observations), p=EQUILIBRIUM)
    counting = (rng.random(len(observations)) < skill) & counts.any(axis=1)
    return np.where(counting, (counts.argmax(axis=1) + 1) % CHOICES, drawn)[:, None]
