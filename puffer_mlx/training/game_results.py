"""Results of games against opponents, from a rollout's rewards and terminals. NumPy only.

A game is over where the episodes of all seats of an environment end in one step. The learner has
won it if its seats got more reward in it than the others', as in a match; its opponent is the
environment's tag. Where agents' episodes end one by one and never together, no game is counted.
"""

from typing import NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.rollout.seats import Seats


class Results(NamedTuple):
    """Games of historical environments that ended in a rollout, against each of B opponents."""

    score: np.ndarray
    """(B,) float64: summed over games: 1 for a win of the learner's, 0.5 for a draw."""
    games: np.ndarray
    """(B,) int64."""
    ended: np.ndarray
    """(E,) bool: historical environments where a game ended."""


class GameCounter:
    """Counts games, and carries the rewards of unfinished ones from rollout to rollout.

    Args:
        seats: the agents of each policy.
    """

    def __init__(self, seats: Seats) -> None:
        self._tags, self._opponents = seats.tags, seats.opponents
        self._historical = np.flatnonzero(seats.tags)  # environments, here counted through
        self._rows = np.flatnonzero(seats.tags[seats.environments] > 0)  # their agents
        self._sides = np.where(seats.policy[self._rows] == 0, 1.0, -1.0)
        owners = seats.environments[self._rows]
        self._firsts = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
        self._under_way = np.zeros(len(self._historical))  # the learner's rewards less the others'

    def take(self, rewards: np.ndarray, terminals: np.ndarray) -> Results:
        """The games that ended in a rollout.

        Args:
            rewards: (T, N), what arrived after each of the rollout's actions: rows 1 to T of its
                buffer.
            terminals: (T, N), likewise.
        """
        E, T = len(self._historical), len(rewards)
        gained = rewards[:, self._rows].astype(np.float64) * self._sides
        gained = np.add.reduceat(gained, self._firsts, axis=1).T  # (E, T)
        over = np.minimum.reduceat(terminals[:, self._rows] != 0, self._firsts, axis=1).T
        # Games are pieces of the environments' steps, one environment behind the other.
        begins = np.ones((E, T), bool)
        begins[:, 1:] = over[:, :-1]
        starts = np.flatnonzero(begins)
        differences = np.add.reduceat(gained.reshape(-1), starts)
        differences[starts % T == 0] += self._under_way
        closed = over.reshape(-1)[np.append(starts[1:], E * T) - 1]
        owners = starts // T
        self._under_way = np.zeros(E)
        self._under_way[owners[~closed]] = differences[~closed]
        return self._counted(owners[closed], differences[closed])

    def _counted(self, owners: np.ndarray, differences: np.ndarray) -> Results:
        """Games that are over, of these environments and with these differences of rewards."""
        played = self._historical[owners]
        against = self._tags[played] - 1
        decided = np.sign(np.nan_to_num(differences))  # NaN: a draw, so that ratings stay numbers
        score = np.bincount(against, (1 + decided) / 2, self._opponents)
        games = np.bincount(against, minlength=self._opponents)
        ended = np.zeros(len(self._tags), bool)
        ended[played] = True
        return Results(score.astype(np.float64), games.astype(np.int64), ended)

    def state(self) -> np.ndarray:
        """Rewards of unfinished games, (bytes,) uint8, for ``restore``."""
        return self._under_way.astype("<f8").view(np.uint8).copy()

    def restore(self, state: np.ndarray) -> None:
        """Go on from what ``state`` returned.

        Raises:
            UserError: it is of other environments.
        """
        if state.dtype != np.uint8 or state.shape != (8 * len(self._under_way),):
            raise UserError(
                f"the saved results are of {state.size // 8} environments with opponents, expected"
                f" {len(self._under_way)}",
                "go on with the run's own seats: [vec] and [selfplay] as they were",
            )
        self._under_way = state.copy().view("<f8").astype(np.float64)
