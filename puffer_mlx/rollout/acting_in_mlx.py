"""Acting through MLX: the policy's step, one evaluation for each part of the agents and step."""

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.ops import unpack
from puffer_mlx.ops.pack import pack
from puffer_mlx.profiling.phases import SAMPLE_EVERY, PhaseTimer
from puffer_mlx.profiling.timeline import ACTING, ENVIRONMENTS
from puffer_mlx.rollout.act_functions import ActFunctions
from puffer_mlx.rollout.buffer import Part, RolloutBuffer, State
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.system.devices import building
from puffer_mlx.trees import leaves
from puffer_mlx.vec.base import PreparedStep, VecEnv

Streams = Callable[[], list[mx.Stream]]  # called in the thread that collects: streams belong to one


def each_group(groups: int) -> int:
    """One part for each group."""
    return groups


def few_parts(groups: int) -> int:
    """As few equal parts as can take turns, each of whole groups: two, where that divides them.

    For a GPU, to which a launch costs more than the agents in it.
    """
    return next((parts for parts in range(2, groups) if groups % parts == 0), groups)


def take_turns(
    steps: list[list[PreparedStep]],
    groups: list[range],
    timer: PhaseTimer,
    begin: Callable[[int, int], Any],
    store: Callable[[int, int, Any], None] | None = None,
    streams: int = 1,
) -> None:
    """A rollout's steps: one part of the agents acts while the environments of the others step.

    Args:
        steps: the environments', of each step and part (``RolloutBuffer.steps``).
        groups: of each part.
        timer: gets the phases ``eval_act`` and ``eval_env``.
        begin: of a step and a part: submits its choice; returns what to wait for.
        store: of the same and what was waited for: has the environments find what was chosen; None:
            they do already.
        streams: that parts take turns on, for a trace.
    """
    trace, parts = timer.trace, range(len(groups))
    begun = [0.0 for _ in parts]  # when what is under way for a part began
    pending: tuple[int, int, Any] | None = None

    def finish(t: int, p: int, chosen: Any) -> None:
        """Wait for a part's actions, and give them to its environments."""
        mx.eval(chosen)
        timer.lap("eval_act")
        if trace:
            row = f"{ACTING} {p % streams}"
            trace.span(row, "act", begun[p], timer.now, group=groups[p][0], step=t)
        if store is not None:
            store(t, p, chosen)
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

    for t in range(len(steps)):
        for p in parts:
            if pending and pending[1] == p:  # the only part: nothing to overlap with
                finish(*pending)
                pending = None
            arrive(t, p)
            chosen = begin(t, p)
            timer.lap("eval_act")
            if pending:
                finish(*pending)
            pending = t, p, chosen
    if pending:
        finish(*pending)
    for p in parts:
        arrive(len(steps), p)


class ActingInMLX:
    """Acts for one part of the agents after the other; a part is one group, or several.

    The policy's step for one part is under way while the next part's is prepared, and environments
    step while the policy acts for other parts.

    Acting is one compiled function. Now and then its share of choosing is found by timing the
    policy's step without choosing beside it; that is nobody's time.

    Args:
        run: the policy's compiled functions.
        streams: gives the streams that parts take turns on.
        timer: gets the phases ``eval_copy_in``, ``eval_act`` (acting), ``eval_copy_out``,
            ``eval_store`` and ``eval_env`` (waiting for environments).
        parts: how many parts so many groups make.
        seats: of self-play: who acts for which agents. Then weights are a list: the learner's, and
            each opponent's.

    Attributes:
        act: the compiled step; with ``seats`` of several policies.
        parts: as given.
    """

    in_c = False

    def __init__(
        self,
        run: ActFunctions,
        streams: Streams,
        timer: PhaseTimer,
        parts: Callable[[int], int] = each_group,
        seats: Seats | None = None,
    ) -> None:
        self.act = run.act if seats is None else run.act_by_seats
        self._step, self._streams, self._timer, self.parts = run.step, streams, timer, parts
        self._seats = seats
        self._count = 0  # rollouts collected

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: VecEnv,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """See ``Sampler``."""
        timer, streams = self._timer, self._streams()
        T, Q = buffer.horizon, len(buffer.groups)
        P = self.parts(Q)
        parts, groups = buffer.parts(P), buffer.groups_of(P)
        with building, mx.stream(streams[0]):
            held = [joined(states, of) for of in groups]
            noises = mx.split(noise.reshape(-1, noise.shape[-1]), T * P)  # views
            acts = [self.act] * P
            if self._seats is not None:
                parts_of = np.split(self._seats.policy, P)
                acts = [step_by_seats(self.act, policies) for policies in parts_of]
        mx.eval(noises, held)
        timer.lap("eval_copy_in")
        if self._seats is None and timer.enabled and self._count % SAMPLE_EVERY == 1:
            self._divide(parts[0][0], weights, held[0], noises[0], streams[0])
        self._count += 1

        def begin(t: int, p: int) -> mx.array:
            observations, mask, terminals, *_ = parts[t][p]
            with building, mx.stream(streams[p % len(streams)]):
                chosen, held[p] = acts[p](
                    weights, observations, held[p], noises[t * P + p], mask, terminals
                )
            mx.async_eval(chosen, held[p])
            return chosen

        def store(t: int, p: int, chosen: mx.array) -> None:
            rows = np.asarray(chosen)
            timer.lap("eval_copy_out")
            buffer.record(parts[t][p], rows)
            timer.lap("eval_store")

        steps = buffer.steps(environments, P)
        take_turns(steps, groups, timer, begin, store, len(streams))
        with building, mx.stream(streams[0]):
            after = [each for state in held for each in divided(state, Q // P)]
        mx.eval(after)
        timer.lap("eval_env")
        return after

    def _divide(self, part: Part, weights: Any, state: State, noise: mx.array, stream: Any) -> None:
        """Find the shares of the policy's step and of choosing."""
        observations, mask, terminals, *_ = part
        policy = _seconds(stream, self._step, weights, observations, state, terminals)
        act = self.act, weights, observations, state, noise, mask, terminals
        both = max(policy, _seconds(stream, *act))
        self._timer.split("eval_act", {"eval_act": policy, "eval_sample": both - policy})
        self._timer.start()


def step_by_seats(act: Callable[..., Any], policies: np.ndarray) -> Callable[..., Any]:
    """A step of n agents by the policies that act for them.

    Args:
        act: ``ActFunctions.act_by_seats``.
        policies: (n,), of each agent who acts for it.

    Returns:
        What takes a list of all policies' weights, and then what one policy's step does.
    """
    present = np.unique(policies).tolist()
    rows = [mx.array(np.flatnonzero(policies == p), mx.int32) for p in present]
    order = np.argsort(policies, kind="stable")
    back = mx.array(np.argsort(order), mx.int32)

    def by_seats(weights: list[Any], *seen: Any) -> Any:
        return act([weights[p] for p in present], *seen, rows, back)

    return by_seats


def joined(states: list[State], groups: range) -> State:
    """The state of several groups' agents together; on a GPU all its arrays are one launch's."""
    first, *others = (states[g] for g in groups)
    if not others:
        return first
    dtypes = {array.dtype for array in leaves(first)}
    if pack.choose() is None or dtypes != {mx.float32}:
        return tree_map(lambda *arrays: mx.concatenate([*arrays]), first, *others)
    places = [*zip(leaves(first), *map(leaves, others), strict=True)]
    shapes = [(sum(map(len, place)), *place[0].shape[1:]) for place in places]
    arrays = iter(unpack(pack([array for place in places for array in place])[0], shapes))
    return tree_map(lambda _: next(arrays), first)


def divided(state: State, groups: int) -> list[State]:
    """The inverse of ``joined``: each group's state, views."""

    def of(group: int) -> State:
        return tree_map(lambda array: mx.split(array, groups)[group], state)

    return [state] if groups == 1 else [of(group) for group in range(groups)]


def _seconds(stream: mx.Stream, function: Callable[..., Any], *arguments: Any) -> float:
    """The shortest of three calls, in seconds, after one that compiles."""
    times = []
    for _ in range(4):
        began = time.perf_counter()
        with building, mx.stream(stream):
            result = function(*arguments)
        mx.eval(result)
        times.append(time.perf_counter() - began)
    return min(times[1:])
