"""Acting through MLX: the policy's compiled step, one evaluation for each group and step."""

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

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
        act: the policy's compiled step, see ``ppo/update.py``.
        streams: gives the streams that groups take turns on.
        timer: gets the phases ``eval_copy_in``, ``eval_act`` (acting), ``eval_copy_out``,
            ``eval_store`` and ``eval_env`` (waiting for environments).
    """

    in_c = False

    def __init__(self, act: Callable[..., Any], streams: Streams, timer: PhaseTimer) -> None:
        self.act, self.streams, self.timer = act, streams, timer

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
        states = list(states)
        with building, mx.stream(streams[0]):
            parts = [[noise[t, agents] for agents in buffer.groups] for t in range(buffer.horizon)]
        mx.eval(parts)
        timer.lap("eval_copy_in")

        begun = [0.0] * len(buffer.groups)  # when what is under way for a group began

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
        for t in range(buffer.horizon):
            for g in range(len(buffer.groups)):
                if pending and pending[1] == g:  # the only group: nothing to overlap with
                    finish(*pending)
                    pending = None
                arrive(t, g)
                with building, mx.stream(streams[g % len(streams)]):
                    chosen, states[g] = self.act(
                        weights,
                        buffer.inputs[t][g],
                        states[g],
                        parts[t][g],
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
        for g in range(len(buffer.groups)):
            arrive(buffer.horizon, g)
        mx.eval(states)
        timer.lap("eval_env")
        return states


class SampledActingInMLX:
    """Acting through MLX that finds out now and then which share of acting is choosing.

    Acting is one compiled function, so the share is found by timing the policy's step without
    choosing beside it; that is nobody's time.

    Args:
        acting: what collects.
        step: the policy's compiled step without choosing, see ``ppo/update.py``.
    """

    in_c = False

    def __init__(self, acting: ActingInMLX, step: Callable[..., Any]) -> None:
        self.acting, self.step = acting, step
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
        inputs = weights, buffer.inputs[0][0], states[0]
        with building, mx.stream(stream):
            drawn = noise[0, buffer.groups[0]]
        mx.eval(drawn)
        policy = _seconds(stream, self.step, *inputs, buffer.ended[0][0])
        act = self.acting.act, *inputs, drawn, buffer.legal[0][0], buffer.ended[0][0]
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
