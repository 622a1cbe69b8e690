"""Looking on at a trainer, and interfering, through what it shows to the outside."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from puffer_mlx.training.trainer import Trainer
from puffer_mlx.trees import named


def everything(trainer: Trainer) -> dict[str, bytes]:
    """Weights, and all that a checkpoint would have besides, by name."""
    arrays = {**dict(named(trainer.weights)), **trainer.state().arrays}
    return {name: np.array(array).tobytes() for name, array in arrays.items()}


class _Acting:
    """A way of acting, with something around it."""

    def __init__(self, inner: Any, around: Callable[..., Any]) -> None:
        self.in_c, self.inner, self.around = inner.in_c, inner, around

    def collect(self, *arguments: Any) -> Any:
        return self.around(self.inner.collect, *arguments)


def acting(trainer: Trainer, around: Callable[..., Any]) -> None:
    """Have ``around(collect, buffer, environments, weights, states, noise)`` collect."""
    inner: Any = _Acting(trainer.collector.acting, around)
    trainer.collector.acting = inner


def before_training(patch: pytest.MonkeyPatch, act: Callable[[Trainer, Any], None]) -> None:
    """Have ``act(trainer, rollout)`` called whenever any trainer is about to train on a rollout."""
    step = Trainer.step

    def watched(trainer: Trainer) -> Any:
        learner: Any = trainer.learner
        train = learner.train

        def trains(inputs: Any, *arguments: Any) -> Any:
            act(trainer, inputs.rollout)
            return train(inputs, *arguments)

        learner.train = trains
        try:
            return step(trainer)
        finally:
            learner.train = train

    patch.setattr(Trainer, "step", watched)
