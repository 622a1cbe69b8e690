"""Several policies' steps in C, each for agents of its own: all in the one call of a rollout.

They act on the same memory. Only recurrent states are gathered, once a rollout, so that each policy
has those of its agents side by side; and put back, so that nobody else sees them in another order.
"""

from typing import Any

import numpy as np
from mlx.utils import tree_map

from puffer_mlx.ops import cpu_extension
from puffer_mlx.policy.policy import Policy
from puffer_mlx.rollout.compiled_step import Weights, make_actor
from puffer_mlx.selfplay.seats import Seats


def make_actors(policy: Policy, seats: Seats) -> "Actors | None":
    """An actor for the learner and for each opponent; None where ``make_actor`` has none."""
    if make_actor(policy) is None:
        return None
    return Actors(policy, [seats.rows(p) for p in range(1 + seats.opponents)])


class Actors:
    """Acts during a rollout as ``compiled_step.Actor`` does.

    Args:
        policy: what all of them are, with other weights.
        rows: of each one the agents that it acts for, (n,) int32 ascending; together all N.
    """

    def __init__(self, policy: Policy, rows: list[np.ndarray]) -> None:
        made = [make_actor(policy) for _ in rows]
        self._actors = [actor for actor in made if actor is not None]
        self._rows = rows
        self._extension: Any = cpu_extension.load()
        self._prepared: list[Weights] = [None] * len(rows)
        self._bound: Any = None  # the native actors, the states of all, and each one's own

    def prepare(self, weights: list[Weights]) -> None:
        """Take copies of the weights to act with: see ``Actor.prepare``.

        Args:
            weights: a tree for each policy. One that is the same object as in the last call is
                known.
        """
        for p, (actor, own) in enumerate(zip(self._actors, weights, strict=True)):
            if own is not self._prepared[p]:
                self._prepared[p] = None
                actor.prepare(own)
                self._prepared[p] = own

    def bind(self, views: Any, noise: np.ndarray, states: Any) -> tuple[int, int]:
        """See ``Actor.bind``; the states, of all N agents, are replaced by ``unbind``."""
        native, own = self._extension.Actors(), []
        for actor, rows in zip(self._actors, self._rows, strict=True):
            own.append(tree_map(lambda array, rows=rows: array[rows], states))
            actor.bind(views, noise, own[-1], rows)
            native.add(actor.native, views.actions.shape[1], rows.ctypes.data, len(rows))
        self._bound = native, states, own
        return native.function(), native.context()

    def unbind(self) -> None:
        """Put the states back where ``bind`` took them from, and forget the memory."""
        _, states, own = self._bound
        for rows, each in zip(self._rows, own, strict=True):
            tree_map(lambda to, array, rows=rows: to.__setitem__(rows, array), states, each)
        self._bound = None
        for actor in self._actors:
            actor.unbind()

    def seconds(self) -> dict[str, float]:
        """Of all of them together: see ``Actor.seconds``."""
        each = [actor.seconds() for actor in self._actors]
        return {name: sum(seconds[name] for seconds in each) for name in each[0]}
