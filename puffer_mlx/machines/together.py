"""Minibatches that are drawn from all ranks' rollouts, as one process draws them.

All ranks have all rollouts, and draw the same minibatches; of each a rank computes its part.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from puffer_mlx.machines import exchange
from puffer_mlx.system.devices import building


class Together:
    """What divides minibatches among ranks: ``Epoch.ranks`` of ``ppo/algorithms``.

    Args:
        group: MLX's.
    """

    def __init__(self, group: mx.distributed.Group) -> None:
        self._group = group
        self._rank, self._size = group.rank(), group.size()

    def part(self, array: Any, axis: int = 0) -> Any:
        """This rank's part along an axis, of which each has as many."""
        each = array.shape[axis] // self._size
        mine = slice(self._rank * each, (self._rank + 1) * each)
        return array[(slice(None),) * axis + (mine,)]

    def joined(self, array: mx.array, axis: int = 0) -> mx.array:
        """All ranks' parts, one after the other along an axis."""
        return exchange.joined(self._group, array, axis)

    def recompute(
        self, step: Callable[..., Any], fields: Mapping[str, Any], rollout: Any
    ) -> dict[str, Any]:
        """All ranks' rollouts, (T, N, ...) by name, once a step has computed this one's."""
        fields = step(fields, rollout)
        with building:
            return {
                name: None if array is None else self.joined(array, 1)
                for name, array in fields.items()
            }
