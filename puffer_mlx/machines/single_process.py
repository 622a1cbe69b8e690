"""A run in one process, which is what the trainer and the learner see of ranks.

Each of its methods gives back what it got; ``ranks.Ranks`` is one of several processes. The trainer
and the learner call these methods and don't ask how many ranks there are.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import VecEnv

Step = Callable[..., Any]


class SingleProcess:
    """A run in one process.

    Attributes:
        rank: this process's number.
        size: how many there are.
    """

    rank, size = 0, 1

    def own(self, config: Config) -> Config:
        """What this rank does of a run."""
        return config

    def summed(self, gradients: Step, normalised: bool) -> Step:
        """What gives a minibatch's gradients (``ppo/gradients.py``), as means over the ranks.

        Args:
            gradients: of a rank's own.
            normalised: whether the loss normalises advantages: ``Algorithm.normalises``.
        """
        return gradients

    def counted(self, gradients: Step) -> Step:
        """Return a function of a minibatch's gradients that reports progress to other ranks."""
        return gradients

    def columns(self, draw: Callable[[int], mx.array], agents: int) -> mx.array:
        """Random numbers (T, agents, ...) of this rank's agents; ``draw(N)`` makes those of N."""
        return draw(agents)

    def key(self, key: mx.array) -> mx.array:
        """The key that this rank draws its minibatches by."""
        return key

    def any(self, flag: bool) -> bool:
        """Whether one of the ranks says so."""
        return flag

    def stops(self, flag: bool) -> bool:
        """Whether the run is to end: one of the ranks says so, or nobody waits for them."""
        return flag

    def begin(self, vec: VecEnv) -> None:
        """Note what environments have measured, the same on all ranks."""

    def meet(
        self, epoch: int, weights: Any, logs: dict[str, float], scores: Any
    ) -> tuple[dict[str, float], Any]:
        """Of an epoch: what all ranks' environments reported, and single episodes' scores.

        Raises:
            UserError: the ranks' weights differ.
        """
        return logs, scores

    def merge_statistics(self, vec: VecEnv) -> None:
        """Have environments go on from what those of all ranks have measured."""

    def gathered(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """The other ranks' arrays, for a checkpoint."""
        return {}

    def numbers(self) -> dict[str, int]:
        """What a checkpoint says of the ranks."""
        return {}

    def taken(self, arrays: dict[str, mx.array], numbers: Mapping[str, Any]) -> dict[str, mx.array]:
        """A checkpoint's arrays as this rank goes on from them.

        Raises:
            UserError: it is of another number of ranks.
        """
        if (saved := numbers.get("ranks", 1)) != self.size:
            words = "one process" if self.size == 1 else f"{self.size} ranks"
            hint = "in one process" if saved == 1 else f"with --train.gpus {saved}, or mlx.launch"
            raise UserError(
                f"the run's state is of {saved} ranks, and this is {words}",
                f"go on {hint}; or begin a new run from its weights: --load-model-path",
            )
        return arrays

    def guarded(self) -> contextlib.AbstractContextManager[object]:
        """A block in which ranks exchange something: one that is lost is reported.

        Raises:
            UserError: another rank has ended, or hangs.
        """
        return contextlib.nullcontext()

    def apart(self) -> contextlib.AbstractContextManager[object]:
        """A block in which this rank does something without the others."""
        return contextlib.nullcontext()

    def first(self, text: str) -> str:
        """What the first rank says."""
        return text

    def attended(self) -> contextlib.AbstractContextManager[object]:
        """All of a run: the others hear how it ends here."""
        return contextlib.nullcontext()

    def rescue_by(self, rescue: Callable[[], str]) -> None:
        """Have something saved, from another thread, if others are lost and this one waits."""


SINGLE_PROCESS = SingleProcess()
