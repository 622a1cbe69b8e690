"""Count a rollout's games against opponents, from rewards and terminals. NumPy only.

A game ends when the episodes of all agents of an environment end in the same step. The learner wins
if its agents got more reward in the game than the opponent's agents. Environments where episodes
never end together have no games.
"""

from typing import NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.rollout.policy_assignment import PolicyAssignment


class GameResults(NamedTuple):
    """Results of the games that ended in a rollout, for each of B opponents."""

    score: np.ndarray
    """The learner's summed score, (B,) float64: 1 for a win, 0.5 for a draw."""
    games: np.ndarray
    """Number of games against each opponent, (B,) int64."""
    ended: np.ndarray
    """Environments with opponents where a game ended, (E,) bool."""


class GameCounter:
    """Count games against opponents, also those that continue in the next rollout.

    Args:
        assignment: Assignment of policies to agents.
    """

    def __init__(self, assignment: PolicyAssignment) -> None:
        self._tags = assignment.tags
        self._opponents = assignment.opponents
        self._historical = np.flatnonzero(assignment.tags)  # environments with opponents
        self._rows = np.flatnonzero(assignment.tags[assignment.environments] > 0)  # their agents
        self._sides = np.where(assignment.policy[self._rows] == 0, 1.0, -1.0)
        owners = assignment.environments[self._rows]
        self._firsts = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
        # Reward difference in each unfinished game: the learner's minus the opponent's.
        self._unfinished = np.zeros(len(self._historical))

    def count(self, rewards: np.ndarray, terminals: np.ndarray) -> GameResults:
        """Count the games that ended in a rollout.

        Args:
            rewards: Reward of each action, (T, N): rows 1 to T of the rollout buffer.
            terminals: Non-zero where an episode ended, (T, N), from the same rows.
        """
        E = len(self._historical)
        T = len(rewards)
        gained = rewards[:, self._rows].astype(np.float64) * self._sides
        gained = np.add.reduceat(gained, self._firsts, axis=1).T  # (E, T)
        over = np.minimum.reduceat(terminals[:, self._rows] != 0, self._firsts, axis=1).T
        # Sum over each game. Steps are ordered by environment, then by time.
        begins = np.ones((E, T), bool)
        begins[:, 1:] = over[:, :-1]
        starts = np.flatnonzero(begins)
        differences = np.add.reduceat(gained.reshape(-1), starts)
        differences[starts % T == 0] += self._unfinished
        closed = over.reshape(-1)[np.append(starts[1:], E * T) - 1]
        owners = starts // T
        self._unfinished = np.zeros(E)
        self._unfinished[owners[~closed]] = differences[~closed]
        return self._counted(owners[closed], differences[closed])

    def _counted(self, owners: np.ndarray, differences: np.ndarray) -> GameResults:
        """Return the results of k games that ended.

        Args:
            owners: Environment of each game, (k,) int, an index among those with opponents.
            differences: The learner's reward minus the opponent's, (k,).
        """
        played = self._historical[owners]
        against = self._tags[played] - 1
        decided = np.sign(np.nan_to_num(differences))  # NaN counts as a draw.
        score = np.bincount(against, (1 + decided) / 2, self._opponents)
        games = np.bincount(against, minlength=self._opponents)
        ended = np.zeros(len(self._tags), bool)
        ended[played] = True
        return GameResults(score.astype(np.float64), games.astype(np.int64), ended)

    def state(self) -> np.ndarray:
        """Return the rewards of unfinished games for a checkpoint, (bytes,) uint8."""
        return self._unfinished.astype("<f8").view(np.uint8).copy()

    def restore(self, state: np.ndarray) -> None:
        """Restore the rewards of unfinished games from a checkpoint.

        Raises:
            UserError: If the number of environments with opponents is different.
        """
        if state.dtype != np.uint8 or state.shape != (8 * len(self._unfinished),):
            raise UserError(
                f"the saved games are of {state.size // 8} environments with opponents, expected"
                f" {len(self._unfinished)}",
                "resume with the saved [vec] and [selfplay]",
            )
        self._unfinished = state.copy().view("<f8").astype(np.float64)
