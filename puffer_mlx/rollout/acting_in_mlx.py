"""Acting through MLX: the policy's step, one evaluation for each group and step."""

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.policy.acting import RolloutStep
from puffer_mlx.profiling.phases import SAMPLE_EVERY, PhaseTimer
from puffer_mlx.profiling.timeline import ACTING, ENVIRONMENTS
from puffer_mlx.rollout.acting import State
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.system.devices import building
from puffer_mlx.vec.base import VecEnv

Streams = Callable[[], list[mx.Stream]]  # called in the thread that collects: streams belong to one


class ActingInMLX:
    """Acts group by group.

    The policy's step for one group is under way while the next group's is prepared, and
    environments step while the policy acts for other groups.

    Args:
        acting: gives the policy's step with a rollout's weights, see ``policy/acting.py``.
        streams: gives the streams that groups take turns on.
        timer: gets the phases ``eval_copy_in``, ``eval_act`` (acting), ``eval_copy_out``,
            ``eval_store`` and ``eval_env`` (waiting for environments).
    """

    in_c = False

    def __init__(
        self, acting: Callable[[Any], RolloutStep], streams: Streams, timer: PhaseTimer
    ) -> None:
        self.acting, self.streams, self.timer = acting, streams, timer

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: VecEnv,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """See ``Acting``."""
        timer, trace, streams = self.timer, self.timer.trace, self.streams()
        T, Q = buffer.horizon, len(buffer.groups)
        with building, mx.stream(streams[0]):
            step = self.acting(weights)
            states = [step.state(state) for state in states]
            parts = mx.split(noise.reshape(-1, noise.shape[-1]), T * Q)  # views
        mx.eval(parts, states)
        timer.lap("eval_copy_in")

        begun = [0.0] * Q  # when what is under way for a group began

        def finish(t: int, g: int, chosen: mx.array) -> None:
            mx.eval(chosen)
            timer.lap("eval_act")
            if trace:
                row = f"{ACTING} {g % len(streams)}"
                trace.span(row, "act", begun[g], timer.now, group=g, step=t)
            rows = np.asarray(chosen)
            timer.lap("eval_copy_out")
            actions = buffer.record(t, g, rows)
            timer.lap("eval_store")
            begun[g] = timer.now
            environments.send(g, actions, buffer.outputs[t + 1][g])
            timer.lap("eval_env")

        def arrive(t: int, g: int) -> None:
            environments.wait(g)
            timer.lap("eval_env")
            if trace and t:
                trace.span(ENVIRONMENTS, "step", begun[g], timer.now, group=g, step=t - 1)
            begun[g] = timer.now

        pending: tuple[int, int, mx.array] | None = None
        for t in range(T):
            for g in range(Q):
                if pending and pending[1] == g:  # the only group: nothing to overlap with
                    finish(*pending)
                    pending = None
                arrive(t, g)
                with building, mx.stream(streams[g % len(streams)]):
                    chosen, states[g] = step.act(
                        buffer.inputs[t][g],
                        states[g],
                        parts[t * Q + g],
                        buffer.legal[t][g],
                        buffer.ended[t][g],
                    )
                mx.async_eval(chosen, states[g])
                timer.lap("eval_act")
                if pending:
                    finish(*pending)
                pending = t, g, chosen
        if pending:
            finish(*pending)
        for g in range(Q):
            arrive(T, g)
        with building, mx.stream(streams[0]):
            after = [step.state_after(state) for state in states]
        mx.eval(after)
        timer.lap("eval_env")
        return after


class SampledActingInMLX:
    """Acting through MLX that finds out now and then which share of acting is choosing.

    Acting is one compiled function, so the share is found by timing the policy's step without
    choosing beside it; that is nobody's time. Of a step that is one kernel it isn't found.

    Args:
        acting: what collects.
    """

    in_c = False

    def __init__(self, acting: ActingInMLX) -> None:
        self.acting = acting
        self._count = 0  # rollouts collected

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: VecEnv,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """See ``Acting``."""
        if self.acting.timer.enabled and self._count % SAMPLE_EVERY == 1:
            self._divide(buffer, weights, states, noise)
        after = self.acting.collect(buffer, environments, weights, states, noise)
        self._count += 1
        return after

    def _divide(self, buffer: RolloutBuffer, weights: Any, states: Any, noise: mx.array) -> None:
        timer, stream = self.acting.timer, self.acting.streams()[0]
        with building, mx.stream(stream):
            step, drawn = self.acting.acting(weights), noise[0, buffer.groups[0]]
        if step.outputs is None:
            return
        mx.eval(drawn)
        inputs, ended = (buffer.inputs[0][0], states[0]), buffer.ended[0][0]
        policy = _seconds(stream, step.outputs, *inputs, ended)
        act = step.act, *inputs, drawn, buffer.legal[0][0], ended
        both = max(policy, _seconds(stream, *act))
        timer.part("eval_act", {"eval_act": policy, "eval_sample": both - policy})
        timer.start()


def _seconds(stream: mx.Stream, function: Callable[..., Any], *arguments: Any) -> float:
    """The least of three calls, after one that compiles."""
    times = []
    for _ in range(4):
        began = time.perf_counter()
        with building, mx.stream(stream):
            result = function(*arguments)
        mx.eval(result)
        times.append(time.perf_counter() - began)
    return min(times[1:])
