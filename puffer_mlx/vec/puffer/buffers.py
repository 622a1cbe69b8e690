"""The arrays that agents of PufferLib 3.x share with their environments."""

from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.vec.spaces import kind_of

ARRAYS = ("observations", "rewards", "terminals", "truncations")
SHARED = (*ARRAYS, "masks", "actions")


class Buffers(NamedTuple):
    """What n agents share with their environments, C-contiguous arrays, and what came of a step."""

    observations: np.ndarray  # (n, ...) as the space
    rewards: np.ndarray  # (n,) float32
    terminals: np.ndarray  # (n,) bool
    truncations: np.ndarray  # (n,) bool
    masks: np.ndarray  # (n,) bool
    actions: np.ndarray  # (n, ...) int32, or as the space for continuous actions
    # ours: what the arrays above were before environments that wanted it were reset
    paid: np.ndarray  # (n,) float32
    ended: np.ndarray  # (n,) bool
    there: np.ndarray  # (n,) bool
    # of PettingZoo's environments that tell: which actions are legal
    legal: np.ndarray | None = None  # (n, mask_size) uint8

    def part(self, agents: slice) -> "Buffers":
        """Those of some agents."""
        return Buffers(*(None if array is None else array[agents] for array in self))  # type: ignore

    @staticmethod
    def layout(n: int, observation: Any, action: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shapes and dtypes for n agents with these spaces."""
        chosen = action.dtype if kind_of(action) == "Box" else np.int32
        return {
            "observations": ((n, *observation.shape), observation.dtype),
            "rewards": ((n,), np.float32),
            "terminals": ((n,), np.bool_),
            "truncations": ((n,), np.bool_),
            "masks": ((n,), np.bool_),
            "actions": ((n, *action.shape), chosen),
            "paid": ((n,), np.float32),
            "ended": ((n,), np.bool_),
            "there": ((n,), np.bool_),
        }
