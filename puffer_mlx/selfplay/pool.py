"""Earlier weights of the learner's, and which of them stay and are drawn by PufferLib 4.0's rules.

A pool is a list of entries, the oldest first. Entries refer to the learner's arrays as they were:
training replaces arrays and never writes into them, so nothing is copied.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

NEWEST = 5  # entries that aren't drawn, where there are more


@dataclass(eq=False)
class Entry:
    """Earlier weights.

    Attributes:
        weights: a tree of arrays, which nobody changes.
        step: environment steps that they were trained with.
        elo: their rating, in points.
    """

    weights: Any
    step: int
    elo: float


def thinned(entries: list[Entry], most: int) -> list[Entry]:
    """A pool with at most so many entries: without every second one of its older half.

    Args:
        entries: at most one more than fits.
        most: how many fit.
    """
    if len(entries) <= most:
        return entries
    half = len(entries) // 2
    return [*entries[1:half:2], *entries[half:]]


def draw_by_age(entries: list[Entry], rng: np.random.Generator) -> Entry:
    """One of the entries without the newest 5, if there are more: newer ones rather than older.

    The i-th, from 0, has the weight sqrt(i + 1).
    """
    candidates = entries[:-NEWEST] if len(entries) > NEWEST else entries
    weights = np.sqrt(np.arange(1, len(candidates) + 1))
    return candidates[rng.choice(len(candidates), p=weights / weights.sum())]


def draw_any(entries: list[Entry], rng: np.random.Generator) -> Entry:
    """One of the entries, each as likely as the others."""
    return entries[rng.integers(len(entries))]
