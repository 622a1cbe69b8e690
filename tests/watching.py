"""Looking on at a trainer, and interfering, through what it shows to the outside."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from puffer_mlx.training.learner import Update
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


def functions(trainer: Trainer) -> SimpleNamespace:
    """The functions that updates call now, by name: those of ``replace_functions``."""
    learner = trainer.learner
    made = learner.functions
    named = {name: getattr(made, name) for name in ("gather", "gradients", "optimise")}
    named |= {name: step.function for name, step in made.steps.items()}
    return SimpleNamespace(recompute=learner.reader.recompute, **named)


def replace_functions(trainer: Trainer, **replaced: Callable[..., Any]) -> None:
    """Have updates call other functions, by name; call this between two epochs."""
    learner: Any = trainer.learner
    for name, function in replaced.items():
        if name == "recompute":
            learner.reader.recompute = function
        elif name in learner.functions.steps:
            steps = learner.functions.steps
            steps[name] = steps[name]._replace(function=function)
        else:
            assert hasattr(learner.functions, name)
            setattr(learner.functions, name, function)


def before_training(patch: pytest.MonkeyPatch, act: Callable[[Trainer, Any], None]) -> None:
    """Have ``act(trainer, rollout)`` called whenever any trainer is about to train on a rollout."""
    step, submit = Trainer.step, Update.submit
    stepping: list[Trainer] = []

    def stepped(trainer: Trainer) -> Any:
        stepping.append(trainer)
        try:
            return step(trainer)
        finally:
            stepping.pop()

    def submits(update: Update) -> None:
        act(stepping[-1], update.rollout)
        submit(update)

    patch.setattr(Trainer, "step", stepped)
    patch.setattr(Update, "submit", submits)
