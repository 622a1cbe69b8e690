"""Acting on a GPU by one kernel: a launch for each half of the agents and step, and nothing copied.

The kernel (``policy/acting_on_gpu.py``) reads observations where environments wrote them, and
writes actions, log-probabilities and values to the rollout's own memory: the host waits for it, and
finds them there. All that a launch is given was made before the rollout.

Where several policies act, a launch is that of all of them: their weights are one array, and each
block of its agents has its policy's (``crews.py``).
"""

import time
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.ops import pack
from puffer_mlx.policy.acting_on_gpu import Crews, StepOnGPU
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.profiling.timeline import ACTING, ENVIRONMENTS
from puffer_mlx.rollout.acting import State
from puffer_mlx.rollout.acting_in_mlx import Streams, divided, few_parts
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.rollout.crews import crews_of
from puffer_mlx.selfplay.seats import Seats
from puffer_mlx.system.backend import stand_in
from puffer_mlx.system.devices import building, unified
from puffer_mlx.vec.base import VecEnv

UNTOUCHED = 12345.0  # a log-probability that no action has


class ActingInKernel:
    """Acts for one half of the agents while the environments of the other half step.

    Args:
        kernel: the policy's step, which takes weights in float32.
        streams: gives the GPU's stream, in the thread that collects.
        timer: gets the phases ``eval_copy_in``, ``eval_act`` (acting) and ``eval_env`` (waiting for
            environments).
        seats: of self-play: who acts for which agents. Then weights are a list: the learner's, and
            each opponent's.

    Attributes:
        act: the kernel's launch, compiled: MLX puts it into a graph again without Python.
    """

    in_c = False

    def __init__(
        self,
        kernel: StepOnGPU,
        streams: Streams,
        timer: PhaseTimer,
        seats: Seats | None = None,
    ) -> None:
        self._kernel, self._streams, self._timer = kernel, streams, timer
        self._seats = seats
        self._crews: dict[int, list[Crews]] = {}  # of so many parts, each one's
        self._packed: list[tuple[Any, mx.array]] = []  # weights that acted last, and the kernel's
        self.act = mx.compile(kernel.act)

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: VecEnv,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """See ``Acting``."""
        kernel, timer, stream = self._kernel, self._timer, self._streams()[0]
        T, Q = buffer.horizon, len(buffer.groups)
        P = few_parts(Q)
        groups, act, trace = buffer.groups_of(P), self.act, timer.trace
        if not unified():
            buffer.keep_seen()
        steps = buffer.steps(environments, P)
        given = [[part[:-1] for part in row] for row in buffer.parts(P)]
        with building, mx.stream(stream):
            crews = self._crews_of(P)
            packed = self._weights(weights)
            held = [kernel.state(*(states[g] for g in of)) for of in groups]
            held = [kernel.in_blocks(*each) for each in zip(held, crews, strict=True)]
            noises = mx.split(noise.reshape(-1, noise.shape[-1]), T * P)  # views
        mx.eval(packed, held, noises)
        seats = [None if each is None else each.seats for each in crews]
        buffer.views.logprobs[0, 0] = UNTOUCHED
        timer.lap("eval_copy_in")
        begun = [0.0] * P  # when what is under way for a part began

        def finish(t: int, p: int) -> None:
            """Wait for a part's actions, and give them to its environments."""
            mx.eval(held[p])
            timer.lap("eval_act")
            steps[t][p].send()
            if trace:
                now = time.perf_counter()
                trace.span(f"{ACTING} 0", "act", begun[p], now, group=groups[p][0], step=t)
                begun[p] = now

        def arrive(t: int, p: int) -> None:
            steps[t - 1][p].wait()  # at first, whatever was under way before
            timer.lap("eval_env")
            if trace:
                now, first = time.perf_counter(), groups[p][0]
                if t:
                    trace.span(ENVIRONMENTS, "step", begun[p], now, group=first, step=t - 1)
                begun[p] = now

        under_way: tuple[int, int] | None = None
        for t in range(T):
            for p in range(P):
                if under_way and P == 1:
                    finish(*under_way)
                    under_way = None
                arrive(t, p)
                with building, mx.stream(stream):
                    held[p] = act(packed, held[p], noises[t * P + p], *given[t][p], seats[p])
                mx.async_eval(held[p])
                if under_way:
                    finish(*under_way)
                under_way = t, p
        if under_way:
            finish(*under_way)
        for p in range(P):
            arrive(T, p)
        if buffer.views.logprobs[0, 0] == UNTOUCHED and stand_in() is None:  # which need not write
            raise RuntimeError("MLX copied the rollout's memory, so what was chosen is lost")
        with building, mx.stream(stream):
            rows = (kernel.by_rows(*each) for each in zip(held, crews, strict=True))
            parts = (kernel.state_after(packed_state) for packed_state in rows)
            after = [each for state in parts for each in divided(state, Q // P)]
        mx.eval(after)
        timer.lap("eval_env")
        return after

    def _crews_of(self, parts: int) -> Sequence[Crews | None]:
        """Each part's; None: one policy acts for all agents."""
        if self._seats is None:
            return [None] * parts
        if parts not in self._crews:
            of_parts = np.split(self._seats.policy, parts)
            agents = self._kernel.block(len(of_parts[0]))
            self._crews[parts] = [crews_of(policies, agents) for policies in of_parts]
        return self._crews[parts]

    def _weights(self, weights: Any) -> mx.array:
        """As the kernel takes them: an opponent's are mostly those of the rollout before."""
        if self._seats is None:
            return self._kernel.weights(weights)
        before = self._packed
        self._packed = [
            next((known for known in before if known[0] is own), None)
            or (own, self._kernel.weights(own))
            for own in weights
        ]
        each = [packed for _, packed in self._packed]
        return pack(each)[0].reshape(len(each), -1)
