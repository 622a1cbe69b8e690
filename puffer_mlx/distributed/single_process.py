"""The interface that the trainer uses for ranks, implemented for a run in a single process.

Here the methods do nothing or return their argument. ``ranks.Ranks`` overrides them for a run in
several processes. So the trainer is the same for any number of ranks.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import VecEnv

GradientFunction = Callable[..., Any]
DrawFunction = Callable[[mx.array, tuple[int, int]], mx.array]  # (key, (T, N)) -> (T, N, ...)


class SingleProcess:
    """Replacement for the ranks of a distributed run if one process trains alone.

    Also the base class of ``ranks.Ranks``. With one process, exchanges return their inputs.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
    """

    rank = 0
    size = 1

    def local_config(self, config: Config) -> Config:
        """Return the configuration of this rank's shard of a run; in one process, all of it."""
        return config

    def average_gradients(self, gradients: GradientFunction, normalised: bool) -> GradientFunction:
        """Wrap a gradient function so that gradients and metrics are means over all ranks.

        Args:
            gradients: Computes gradients of this rank's minibatch (``ppo/gradients.py``).
            normalised: True if the loss normalizes advantages, so that the ranks must also
                exchange their moments (``Algorithm.normalises``).
        """
        return gradients

    def count_progress(self, gradients: GradientFunction) -> GradientFunction:
        """Return a gradient function that counts each call as progress, for heartbeats."""
        return gradients

    def draw_columns(self, draw: DrawFunction, key: mx.array, steps: int, agents: int) -> mx.array:
        """Draw and return random numbers for this rank's agents, (T, agents, ...).

        Args:
            draw: Draws random numbers (T, N, ...) for N agents.
            key: Random key.
            steps: Number of steps T.
            agents: Number of this rank's agents.
        """
        return draw(key, (steps, agents))

    def local_key(self, key: mx.array) -> mx.array:
        """Return this rank's random key for choosing minibatches, derived from the common key."""
        return key

    def any(self, flag: bool) -> bool:
        """Return True if ``flag`` is True on any rank."""
        return flag

    def should_stop(self, flag: bool) -> bool:
        """Return True if the run must stop: ``flag`` is set on a rank or the launcher has ended."""
        return flag

    def begin_statistics(self, vec: VecEnv) -> None:
        """Remember the common normalization statistics before ranks add samples. Here a no-op."""

    def sync_epoch(
        self, epoch: int, weights: Any, logs: dict[str, float], scores: Any
    ) -> tuple[dict[str, float], Any]:
        """Merge the logs and scores of all ranks after an epoch, and compare the ranks' weights.

        Args:
            epoch: Number of the epoch, from 0.
            weights: Weights after the epoch.
            logs: Logs of this rank's environments.
            scores: Scores of this rank's episodes, or None.

        Returns:
            Logs and scores of all ranks.

        Raises:
            UserError: The ranks' weights differ.
        """
        return logs, scores

    def merge_statistics(self, vec: VecEnv) -> None:
        """Merge the normalization statistics of all ranks' environments into ``vec``."""

    def gather_arrays(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Return the arrays of other ranks that rank 0 adds to a checkpoint, by name.

        Args:
            arrays: This rank's arrays that differ between ranks, by name.
        """
        return {}

    def checkpoint_values(self) -> dict[str, int]:
        """Return values about the ranks, such as their number, to store them in a checkpoint."""
        return {}

    def restore(
        self, arrays: dict[str, mx.array], values: Mapping[str, Any]
    ) -> dict[str, mx.array]:
        """Return those of a checkpoint's arrays that belong to this rank, to resume from them.

        Args:
            arrays: All arrays of the checkpoint.
            values: Values of the checkpoint, including those of ``checkpoint_values``.

        Raises:
            UserError: The checkpoint was saved with another number of ranks.
        """
        if (saved := values.get("ranks", 1)) != self.size:
            current = "one process" if self.size == 1 else f"{self.size} ranks"
            hint = "in one process" if saved == 1 else f"with --train.gpus {saved}, or mlx.launch"
            raise UserError(
                f"the checkpoint has the state of {saved} ranks, but this run has {current}",
                f"resume {hint}; or start a new run from its weights: --load-model-path",
            )
        return arrays

    def agree_on_disabled(self) -> bool:
        """Disable on all ranks each implementation of an operation that any rank found to be wrong.

        Returns:
            True if the ranks had disabled different implementations.
        """
        return False

    def report_lost_ranks(self) -> contextlib.AbstractContextManager[object]:
        """Return a context for exchanges between ranks, which raises an error if a rank is lost.

        Raises:
            UserError: Another rank has ended or hangs.
        """
        return contextlib.nullcontext()

    def exempt_from_timeout(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which this rank is busy, so that others wait without a timeout."""
        return contextlib.nullcontext()

    def broadcast_text(self, text: str) -> str:
        """Send rank 0's text to all ranks and return it."""
        return text

    def report_end(self) -> contextlib.AbstractContextManager[object]:
        """Return a context for the entire run, which tells other ranks of its end or error."""
        return contextlib.nullcontext()

    def set_rescue(self, rescue: Callable[[], str]) -> None:
        """Set the function that saves the run if another rank is lost and this one is blocked.

        Args:
            rescue: Saves the run and returns a line to print. Called in another thread.
        """


SINGLE_PROCESS = SingleProcess()
