"""Minibatches that are drawn from all ranks' rollouts, as one process draws them.

The learner's steps (``training/learner.py``), each with what ranks exchange around it. Of each
minibatch a rank computes its part.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.machines import exchange
from puffer_mlx.ppo.loss import Minibatch
from puffer_mlx.system.devices import building

Step = Callable[..., Any]


class Together:
    """A rank's part of the steps.

    Args:
        group: MLX's.
        segments: of a minibatch of all ranks.
    """

    def __init__(self, group: mx.distributed.Group, segments: int) -> None:
        self._group, self._segments = group, segments
        self._rank, self._size = group.rank(), group.size()

    def divided(self, steps: Any) -> Any:
        """The steps (a NamedTuple) with these around them."""
        names = "gradients", "recompute", "split", "shuffle", "gather", "write_back"
        ours = {name: partial(getattr(self, f"_{name}"), getattr(steps, name)) for name in names}
        return steps._replace(**ours)

    def part(self, array: mx.array, axis: int = 0) -> mx.array:
        """This rank's part along an axis, of which each has as many."""
        each = array.shape[axis] // self._size
        mine = slice(self._rank * each, (self._rank + 1) * each)
        return array[(slice(None),) * axis + (mine,)]

    def _gradients(self, step: Step, weights, observations, actions, masks, keep, *rest) -> Any:
        compared, *others = rest
        if isinstance(compared, Minibatch):
            with building:
                compared = self._own_samples(compared, observations.shape[0], len(actions))
        return step(weights, observations, actions, masks, keep, compared, *others)

    def _own_samples(self, batch: Minibatch, steps: int, samples: int) -> Minibatch:
        """This rank's part of the targets of a minibatch, (T*S,) time-major, of all ranks."""
        if batch.adv.size == samples:
            return batch
        parts = (a if a is None else self.part(a.reshape(steps, -1), 1) for a in batch)
        return Minibatch(*(a if a is None else a.reshape(-1) for a in parts))  # type: ignore

    def _recompute(self, step: Step, fields: Mapping[str, Any], rollout: Any) -> dict[str, Any]:
        """All ranks' rollouts, (T, N, ...) by name."""
        fields = step(fields, rollout)
        with building:
            return {
                name: None if array is None else exchange.joined(self._group, array, axis=1)
                for name, array in fields.items()
            }

    def _states(self, states: Any) -> Any:
        """All ranks' recurrent states, (N, ...); None of None."""
        return states and tree_map(partial(exchange.joined, self._group), states)

    def _split(self, step: Step, fields: Mapping[str, Any], states: Any) -> Any:
        """Of each section of S agents this rank's part."""
        agents = fields["actions"].shape[1]
        sections = np.arange(agents).reshape(-1, self._size, self._segments // self._size)
        each = sections[:, self._rank]
        with building:
            rows = mx.array(each.reshape(-1), mx.int32)
            own = {n: None if a is None else mx.take(a, rows, 1) for n, a in fields.items()}
            states = self._states(states)
            states = states and tree_map(lambda a: mx.take(a, rows, axis=0), states)
        return step(own, states)

    def _shuffle(self, step: Step, fields, adv, states, learned, order) -> Any:
        """Of each of a pass's minibatches this rank's part."""
        with building:
            states, order = self._states(states), self.part(order, 1)
        return step(fields, adv, states, learned, order)

    def _gather(self, step: Step, fields: Mapping[str, Any], rows: mx.array) -> Any:
        """What the forward pass reads of this rank's part of the rows."""
        with building:
            rows = self.part(rows)
        return step(fields, rows)

    def _write_back(self, step: Step, values, ratios, rows, new_values, new_ratios, ok) -> tuple:
        """The rows' new values and ratios, of which each rank has computed its part."""
        with building:
            found = [exchange.joined(self._group, a, axis=1) for a in (new_values, new_ratios)]
        return step(values, ratios, rows, *found, ok)
