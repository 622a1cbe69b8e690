"""Acting by the policy's step in C: a rollout is one call, in which every thread takes some agents.

Environments in C collect it without Python (``vec/native``); those in Python have a loop of their
own that calls the same step (``vec/rollout_loop.py``). Either is the environments' ``collect``.
"""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.profiling.timeline import ACTING
from puffer_mlx.rollout.acting import State
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.rollout.compiled_step import Actor
from puffer_mlx.rollout.several_actors import Actors
from puffer_mlx.vec.base import WholeRollouts

SPANS = 4096  # of threads, that a traced rollout notes at most


class ActingInC:
    """Acts and steps on the environments' threads; for weights in float32, on the CPU.

    Args:
        actor: the policy's step; or those of several, whose weights are a list then.
        timer: gets the phases of ``ActingInMLX``; acting and environments share the call's time as
            they shared the threads'.
    """

    in_c = True

    def __init__(self, actor: Actor | Actors, timer: PhaseTimer) -> None:
        self.actor, self.timer = actor, timer

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: WholeRollouts,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """See ``Acting``."""
        actor, timer, trace = self.actor, self.timer, self.timer.trace
        whole = tree_map(lambda *groups: np.concatenate([np.asarray(g) for g in groups]), *states)
        actor.prepare(weights)
        address = actor.bind(buffer.views, np.asarray(noise), whole)
        timer.lap("eval_copy_in")
        spans = SPANS if trace else 0
        measured = environments.collect(
            buffer.horizon, address, buffer.views.actions, buffer.rows, spans
        )
        actor.unbind()
        timer.lap("eval_act")
        sampling = actor.seconds()["sample"]
        parts = {"eval_act": measured.acting - sampling, "eval_sample": sampling}
        timer.part("eval_act", {**parts, "eval_env": measured.stepping})
        for thread, first, begin, end in measured.spans:
            assert trace  # else there are none
            row = f"{ACTING} and stepping, thread {thread}"
            trace.span(row, "rollout", begin, end, agent=first)
        after = [tree_map(lambda a, g=g: mx.array(a[g]), whole) for g in buffer.groups]
        mx.eval(after)
        timer.lap("eval_copy_out")
        return after
