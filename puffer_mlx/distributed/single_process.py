"""A run in one process: the interface of ranks for the trainer and the learner.

Its methods do nothing or return their argument. ``ranks.Ranks``, one of several processes,
overrides them, so callers need not know the number of ranks.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import VecEnv

Step = Callable[..., Any]
Draw = Callable[[mx.array, tuple[int, int]], mx.array]  # (key, (T, N)) -> (T, N, ...)


class SingleProcess:
    """A run in one process.

    Attributes:
        rank: number of this process.
        size: number of processes.
    """

    rank = 0
    size = 1

    def local_config(self, config: Config) -> Config:
        """Return the configuration of this rank's shard of the run."""
        return config

    def average_gradients(self, gradients: Step, normalised: bool) -> Step:
        """Return a function of a minibatch's gradients and metrics, means over all ranks.

        Args:
            gradients: function of this rank's gradients (``ppo/gradients.py``).
            normalised: True if the loss normalizes advantages (``Algorithm.normalises``).
        """
        return gradients

    def count_progress(self, gradients: Step) -> Step:
        """Return a function of gradients that reports each call as progress to other ranks."""
        return gradients

    def columns(self, draw: Draw, key: mx.array, steps: int, agents: int) -> mx.array:
        """Return random numbers of this rank's agents, (T, agents, ...).

        Args:
            draw: draws random numbers (T, N, ...).
            key: random key.
            steps: number of steps T.
            agents: number of this rank's agents.
        """
        return draw(key, (steps, agents))

    def local_key(self, key: mx.array) -> mx.array:
        """Return the random key for this rank's minibatches."""
        return key

    def any(self, flag: bool) -> bool:
        """Return True if the flag is set on any rank."""
        return flag

    def should_stop(self, flag: bool) -> bool:
        """Return True to end the run: a rank's flag is set, or the launcher has ended."""
        return flag

    def begin_statistics(self, vec: VecEnv) -> None:
        """Begin with the environments' statistics, which are the same on all ranks."""

    def sync_epoch(
        self, epoch: int, weights: Any, logs: dict[str, float], scores: Any
    ) -> tuple[dict[str, float], Any]:
        """Merge the ranks' results after an epoch, and compare their weights.

        Args:
            epoch: number of the epoch, from 0.
            weights: weights after the epoch.
            logs: the environments' logs.
            scores: scores of single episodes, or None.

        Returns:
            Logs and scores of all ranks.

        Raises:
            UserError: the ranks' weights differ.
        """
        return logs, scores

    def merge_statistics(self, vec: VecEnv) -> None:
        """Set the environments' statistics to those of all ranks' environments."""

    def gather_arrays(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Return the other ranks' arrays for a checkpoint."""
        return {}

    def numbers(self) -> dict[str, int]:
        """Return facts about the ranks for a checkpoint."""
        return {}

    def restore(
        self, arrays: dict[str, mx.array], numbers: Mapping[str, Any]
    ) -> dict[str, mx.array]:
        """Return a checkpoint's arrays for this rank.

        Args:
            arrays: all arrays of the checkpoint.
            numbers: the checkpoint's facts, including those of the method ``numbers``.

        Raises:
            UserError: the checkpoint has another number of ranks.
        """
        if (saved := numbers.get("ranks", 1)) != self.size:
            words = "one process" if self.size == 1 else f"{self.size} ranks"
            hint = "in one process" if saved == 1 else f"with --train.gpus {saved}, or mlx.launch"
            raise UserError(
                f"the run's state is of {saved} ranks, and this is {words}",
                f"go on {hint}; or begin a new run from its weights: --load-model-path",
            )
        return arrays

    def agree_on_refused(self) -> bool:
        """Refuse on all ranks the implementations that any rank refused.

        Returns:
            True if a rank had not refused some of them.
        """
        return False

    def report_lost_ranks(self) -> contextlib.AbstractContextManager[object]:
        """Return a context for exchanges between ranks.

        Raises:
            UserError: another rank has ended or hangs.
        """
        return contextlib.nullcontext()

    def exempt_from_timeout(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which this rank works without the others."""
        return contextlib.nullcontext()

    def broadcast_text(self, text: str) -> str:
        """Return the first rank's text."""
        return text

    def report_end(self) -> contextlib.AbstractContextManager[object]:
        """Return a context for the entire run. The other ranks are informed of its end."""
        return contextlib.nullcontext()

    def set_rescue(self, rescue: Callable[[], str]) -> None:
        """Set the function that saves the run if a rank is lost while this one waits.

        Args:
            rescue: returns a line of output. Called in another thread.
        """


SINGLE_PROCESS = SingleProcess()
