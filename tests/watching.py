"""Observe and change a trainer through its public parts."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from puffer_mlx.training.learner import Update
from puffer_mlx.training.reader import Reader
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.trees import named_arrays


def everything(trainer: Trainer) -> dict[str, bytes]:
    """Return all weights and other arrays of a trainer's state as bytes, by name."""
    arrays = {**dict(named_arrays(trainer.weights)), **trainer.state().arrays}
    return {name: np.array(array).tobytes() for name, array in arrays.items()}


class _Acting:
    """Way of acting whose ``collect`` is called by a wrapper function."""

    def __init__(self, inner: Any, around: Callable[..., Any]) -> None:
        self.in_c, self.inner, self.around = inner.in_c, inner, around

    def collect(self, *arguments: Any) -> Any:
        return self.around(self.inner.collect, *arguments)


def acting(trainer: Trainer, around: Callable[..., Any]) -> None:
    """Let a function wrap a trainer's ``collect``.

    It is called as ``around(collect, buffer, environments, weights, states, noise)``.
    """
    inner: Any = _Acting(trainer.collector.acting, around)
    trainer.collector.acting = inner


def functions(trainer: Trainer) -> SimpleNamespace:
    """Return the functions that a trainer's updates call now, by name."""
    learner = trainer.learner
    made = learner.functions
    named = {name: getattr(made, name) for name in ("gradients", "optimise")}
    named |= {name: step.function for name, step in made.steps.items()}
    return SimpleNamespace(recompute=learner.reader.recompute, **named)


def replace_functions(trainer: Trainer, **replaced: Callable[..., Any]) -> None:
    """Replace functions that a trainer's updates call, by name. Call this between two epochs."""
    learner: Any = trainer.learner
    for name, function in replaced.items():
        if name == "recompute":
            learner.reader.recompute = function
            learner.reader.recomputes = True  # else nothing is recomputed
        elif name in learner.functions.steps:
            steps = learner.functions.steps
            steps[name] = steps[name]._replace(function=function)
        else:
            assert hasattr(learner.functions, name)
            setattr(learner.functions, name, function)


def before_training(patch: pytest.MonkeyPatch, act: Callable[[Trainer, Any], None]) -> None:
    """Call ``act(trainer, rollout)`` whenever any trainer is about to train on a rollout.

    An update copies the rollout first. An error that ``act`` raises is treated as the update's own.
    """
    step = Trainer.step
    submit = Update.submit
    copy = Reader.copy
    stepping: list[Trainer] = []
    submitted: list[Update] = []

    def stepped(trainer: Trainer) -> Any:
        stepping.append(trainer)
        trainer.learner.reader.copies = True  # else nothing is copied
        try:
            return step(trainer)
        finally:
            stepping.pop()

    def submits(update: Update) -> None:
        submitted.append(update)
        try:
            submit(update)
        finally:
            submitted.pop()

    def copies(reader: Reader, fields: Any) -> Any:
        act(stepping[-1], submitted[-1].rollout)
        return copy(reader, fields)

    patch.setattr(Trainer, "step", stepped)
    patch.setattr(Update, "submit", submits)
    patch.setattr(Reader, "copy", copies)
