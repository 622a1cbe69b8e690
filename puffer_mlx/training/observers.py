"""Watching the steps of training from outside: the lock, sampled phases, the first ratios.

An observer is a function that is called instead of a step, with the step's name, the step and its
arguments, and returns the step's result:

    def observer(name, step, *arguments):
        ...
        return step(*arguments)

    trainer.learner.steps = watched(trainer.learner.steps, observer)  # between two epochs

Without one a step is called as it is.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ops import take_rows
from puffer_mlx.profiling.phases import SAMPLE_EVERY, PhaseTimer
from puffer_mlx.profiling.timeline import LEARNING
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.reader import Reader

Observer = Callable[..., Any]


def watched(steps: Any, *observers: Observer) -> Any:
    """Steps that observers are called around.

    Args:
        steps: a NamedTuple of functions.
        observers: the first one is called next to the step, the last one outermost.

    Returns:
        A NamedTuple of the same type.
    """
    for observer in observers:
        pairs = zip(steps._fields, steps, strict=True)
        steps = steps._make(partial(observer, name, step) for name, step in pairs)
    return steps


def locked(name: str, step: Callable[..., Any], *arguments: Any) -> Any:
    """Observer: a step builds its graph while no other thread builds one for another device."""
    with building:
        return step(*arguments)


def computed(name: str, step: Callable[..., Any], *arguments: Any) -> Any:
    """Observer: a step is computed before the next one is built; a GPU gets smaller pieces."""
    result = step(*arguments)
    mx.eval(result)
    return result


class SampledPhases:
    """Observer of sampled epochs: evaluates after each step and charges its time to a phase.

    Args:
        timer: gets the phases ``train_*``.
        logprobs: the forward pass alone, see ``ppo/update.py``.
        phases: which one each step's time is charged to.

    Attributes:
        extra: seconds of this epoch that measuring took in addition; nobody's time.
    """

    def __init__(
        self, timer: PhaseTimer, logprobs: Callable[..., Any], phases: Mapping[str, str]
    ) -> None:
        self.timer, self.logprobs, self._phases = timer, logprobs, phases
        self.extra = 0.0
        self._compiled, self._measured = False, False

    def begin(self, sampled: bool) -> bool:
        """Begin an epoch; returns whether to observe it."""
        self.extra, self._measured = 0.0, False
        return sampled

    def __call__(self, name: str, step: Callable[..., Any], *arguments: Any) -> Any:
        """Call a step and wait for what it computes."""
        forward = 0.0
        if name == "gradients" and not self._measured:
            forward, self._measured = self._measure_forward(*arguments[:5]), True
        result = step(*arguments)
        if result is arguments[0]:  # there was nothing to do
            return result
        began = time.perf_counter()
        mx.eval(result)
        self.timer.lap(self._phases[name], LEARNING)
        if forward:
            backward = max(0.0, time.perf_counter() - began - forward)
            parts = {"train_forward": forward, "train_backward": backward}
            self.timer.part("train_backward", parts)
        return result

    def _measure_forward(self, weights: Any, *minibatch: Any) -> float:
        """Seconds that the forward pass of a minibatch takes alone."""
        began = time.perf_counter()
        if not self._compiled:
            self._forward(weights, minibatch)
            self._compiled = True
        seconds = self._forward(weights, minibatch)
        self.extra += time.perf_counter() - began
        self.timer.start()
        return seconds

    def _forward(self, weights: Any, minibatch: tuple) -> float:
        began = time.perf_counter()
        with building:
            logprobs = self.logprobs(weights, *minibatch, None)
        mx.eval(logprobs)
        return time.perf_counter() - began


class FirstRatios:
    """Observer: how far the first minibatch's ratios are from 1 at most.

    Nothing is learned before the first minibatch. So the ratios of its log-probabilities to those
    of the rollout tell whether acting and training compute the same policy.

    Args:
        reader: of the learner.
        comparable: whether the minibatch's own ratios are of the weights, and from the recurrent
            states, that acted. Else it takes a forward pass by those, and only one epoch in
            ``SAMPLE_EVERY`` is observed.

    Attributes:
        comparable: as given.
    """

    def __init__(self, reader: Reader, comparable: bool) -> None:
        self._reader, self.comparable = reader, comparable
        self._rollout: Rollout | None = None
        self._rows: Any = None  # that were gathered last
        self._error: mx.array | None = None

    def begin(self, rollout: Rollout, epoch: int) -> bool:
        """Begin an epoch; returns whether to observe it."""
        self._rollout, self._rows, self._error = rollout, None, None
        return self.comparable or epoch % SAMPLE_EVERY == 1

    def __call__(self, name: str, step: Callable[..., Any], *arguments: Any) -> Any:
        """Call a step; look at the first minibatch."""
        result = step(*arguments)
        if self._error is not None:
            return result
        if name == "gather" and not self.comparable:
            self._rows = arguments[1]
        elif name == "gradients":
            ratios = result[2] if self.comparable else self._of_what_acted(*arguments[1:7])
            with building:
                self._error = mx.max(mx.abs(ratios - 1))
            mx.async_eval(self._error)
        return result

    def error(self) -> dict[str, float]:
        """The epoch's ``first_ratio_error``, if it was observed and is a number."""
        error = math.nan if self._error is None else float(self._error.item())  # type: ignore
        self._rollout = self._error = None
        return {"first_ratio_error": error} if math.isfinite(error) else {}

    def _of_what_acted(self, *minibatch: Any) -> mx.array:
        """Ratios (T, S) by the weights that acted, from the states that the rows began with."""
        *inputs, compared, state = minibatch
        assert self._rollout is not None
        if state is None and self._rows is not None:
            state = self._of_rows(self._reader.first_states(self._rollout))
        acted = self._reader.behaviour(self._rollout, state, tuple(inputs))
        with building:
            return mx.exp(acted - compared.old_logprob.reshape(acted.shape))

    def _of_rows(self, states: Any) -> Any:
        """The states of the gathered rows, from those of all agents (N, ...); None stays None."""
        if states is None:
            return None
        with building:
            return tree_map(lambda a: take_rows(a[None], self._rows, 1).squeeze(0), states)
