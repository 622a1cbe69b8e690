"""Acting through MLX: the policy's step, one evaluation for each part of the agents and step."""

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.ops import kernel_on_gpu, pack
from puffer_mlx.ops.pack.gpu import unpack
from puffer_mlx.ops.pack.operation import REFERENCE as PACKING
from puffer_mlx.profiling.phases import SAMPLE_EVERY, PhaseTimer
from puffer_mlx.profiling.timeline import ACTING, ENVIRONMENTS
from puffer_mlx.rollout.acting import State
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.selfplay.seats import Seats
from puffer_mlx.system.devices import building
from puffer_mlx.trees import leaves
from puffer_mlx.vec.base import VecEnv

Streams = Callable[[], list[mx.Stream]]  # called in the thread that collects: streams belong to one


def each_group(groups: int) -> int:
    """As many parts as groups."""
    return groups


def few_parts(groups: int) -> int:
    """As few equal parts as can take turns, each of whole groups: two, where that divides them.

    For a GPU, to which a launch costs more than the agents in it.
    """
    return next((parts for parts in range(2, groups) if groups % parts == 0), groups)


class ActingInMLX:
    """Acts for one part of the agents after the other; a part is one group, or several.

    The policy's step for one part is under way while the next part's is prepared, and environments
    step while the policy acts for other parts.

    Args:
        act: the policy's compiled step, see ``ppo/update.py``.
        streams: gives the streams that parts take turns on.
        timer: gets the phases ``eval_copy_in``, ``eval_act`` (acting), ``eval_copy_out``,
            ``eval_store`` and ``eval_env`` (waiting for environments).
        parts: how many parts so many groups make.
        seats: of self-play: who acts for which agents. Then ``act`` is ``act_by_seats``, and
            weights are a list: the learner's, and each opponent's.
    """

    in_c = False

    def __init__(
        self,
        act: Callable[..., Any],
        streams: Streams,
        timer: PhaseTimer,
        parts: Callable[[int], int] = each_group,
        seats: Seats | None = None,
    ) -> None:
        self.act, self.streams, self.timer, self.parts = act, streams, timer, parts
        self._seats = seats

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
        P = self.parts(Q)
        parts, groups = buffer.parts(P), buffer.groups_of(P)
        steps = buffer.steps(environments, P)
        with building, mx.stream(streams[0]):
            held = [joined(states, of) for of in groups]
            noises = mx.split(noise.reshape(-1, noise.shape[-1]), T * P)  # views
            acts = [self.act] * P if self._seats is None else self._by_seats(self._seats, P)
        mx.eval(noises, held)
        timer.lap("eval_copy_in")

        begun = [0.0] * P  # when what is under way for a part began

        def finish(t: int, p: int, chosen: mx.array) -> None:
            mx.eval(chosen)
            timer.lap("eval_act")
            if trace:
                row = f"{ACTING} {p % len(streams)}"
                trace.span(row, "act", begun[p], timer.now, group=groups[p][0], step=t)
            rows = np.asarray(chosen)
            timer.lap("eval_copy_out")
            buffer.record(parts[t][p], rows)
            timer.lap("eval_store")
            begun[p] = timer.now
            steps[t][p].send()
            timer.lap("eval_env")

        def arrive(t: int, p: int) -> None:
            steps[t - 1][p].wait()  # at first, whatever was under way before
            timer.lap("eval_env")
            if trace and t:
                first = groups[p][0]
                trace.span(ENVIRONMENTS, "step", begun[p], timer.now, group=first, step=t - 1)
            begun[p] = timer.now

        pending: tuple[int, int, mx.array] | None = None
        for t in range(T):
            for p in range(P):
                if pending and pending[1] == p:  # the only part: nothing to overlap with
                    finish(*pending)
                    pending = None
                arrive(t, p)
                observations, mask, terminals, *_ = parts[t][p]
                with building, mx.stream(streams[p % len(streams)]):
                    chosen, held[p] = acts[p](
                        weights, observations, held[p], noises[t * P + p], mask, terminals
                    )
                mx.async_eval(chosen, held[p])
                timer.lap("eval_act")
                if pending:
                    finish(*pending)
                pending = t, p, chosen
        if pending:
            finish(*pending)
        for p in range(P):
            arrive(T, p)
        with building, mx.stream(streams[0]):
            after = [each for state in held for each in divided(state, Q // P)]
        mx.eval(after)
        timer.lap("eval_env")
        return after

    def _by_seats(self, seats: Seats, parts: int) -> list[Callable[..., Any]]:
        """Each part's step, by the policies that have agents in it."""
        return [self._of_part(policies) for policies in np.split(seats.policy, parts)]

    def _of_part(self, policies: np.ndarray) -> Callable[..., Any]:
        present = np.unique(policies).tolist()
        rows = [mx.array(np.flatnonzero(policies == p), mx.int32) for p in present]
        order = np.argsort(policies, kind="stable")
        back = mx.array(np.argsort(order), mx.int32)

        def act(weights: list[Any], *seen: Any) -> Any:
            return self.act([weights[p] for p in present], *seen, rows, back)

        return act


def joined(states: list[State], groups: range) -> State:
    """The state of several groups' agents together; on a GPU all its arrays are one launch's."""
    first, *others = (states[g] for g in groups)
    if not others:
        return first
    dtypes = {array.dtype for array in leaves(first)}
    if kernel_on_gpu(pack, PACKING) is None or dtypes != {mx.float32}:
        return tree_map(lambda *arrays: mx.concatenate([*arrays]), first, *others)
    places = [*zip(leaves(first), *map(leaves, others), strict=True)]
    shapes = [(sum(map(len, own)), *own[0].shape[1:]) for own in places]
    found = iter(unpack(pack([array for own in places for array in own])[0], shapes))
    return tree_map(lambda _: next(found), first)


def divided(state: State, groups: int) -> list[State]:
    """The inverse of ``joined``: each group's state, views."""

    def of(group: int) -> State:
        return tree_map(lambda array: mx.split(array, groups)[group], state)

    return [state] if groups == 1 else [of(group) for group in range(groups)]


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
        acting, stream = self.acting, self.acting.streams()[0]
        timer, count = acting.timer, acting.parts(len(states))
        observations, mask, terminals, *_ = buffer.parts(count)[0][0]
        with building, mx.stream(stream):
            drawn = noise[0, : len(observations)]
            state = joined(states, range(len(states) // count))
        mx.eval(drawn, state)
        policy = _seconds(stream, self.step, weights, observations, state, terminals)
        act = acting.act, weights, observations, state, drawn, mask, terminals
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
