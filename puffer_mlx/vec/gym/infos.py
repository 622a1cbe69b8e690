"""What Gymnasium's ``info`` tells: which actions are legal, and numbers of episodes that ended."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.python_faults import Fault
from puffer_mlx.vec.spaces import choices_of, kind_of

__all__ = ["MASK", "NO_MASK", "Masks", "ended_infos"]

MASK = "action_mask"  # the key under which Gymnasium's own environments give theirs
NO_MASK = "gave no action mask"
HINT = (
    f'give info["{MASK}"] in every reset and step, for each choice of each head 1 where it is legal'
)


class Masks:
    """Writes what environments say is legal.

    Args:
        name: for messages.
        action_space: of one agent.

    Raises:
        UserError: the actions are no choices.
    """

    def __init__(self, name: str, action_space: Any) -> None:
        if kind_of(action_space) not in ("Discrete", "MultiDiscrete"):
            raise UserError(
                f'{name}: info["{MASK}"] is there, but actions are {action_space}',
                "masks are for Discrete and MultiDiscrete; leave it out",
            )
        sizes, _ = choices_of(action_space)
        # a head of one choice is none to a policy
        self._columns = np.flatnonzero(np.repeat(np.array(sizes) > 1, sizes))
        self._choices = sum(sizes)

    def write(self, mask: Any, out: np.ndarray, index: int | None = None) -> None:
        """Write the mask of one agent.

        Args:
            mask: an array, or one for each head; None if there is none.
            out: (logits,) uint8.
            index: of the agent, for messages.

        Raises:
            Fault: it isn't there, or of another size.
        """
        parts = mask if isinstance(mask, tuple | list) else (mask,)
        if mask is None or any(part is None for part in parts):
            raise Fault(NO_MASK, "", index, HINT)
        row = np.concatenate([np.ravel(part) for part in parts])
        if row.shape != (self._choices,):
            what = f"gave an action mask of {row.size} numbers, expected {self._choices}"
            raise Fault(what, "", index, HINT)
        np.not_equal(row[self._columns], 0, out=out)


def ended_infos(infos: Mapping[str, Any], over: np.ndarray) -> dict[int, dict[str, Any]]:
    """What environments whose episode ended told, by place.

    Args:
        infos: merged.
        over: (n,) bool: where an episode ended.
    """
    return {place: _of(infos, place) for place in np.flatnonzero(over).tolist()}


def _of(infos: Mapping[str, Any], place: int) -> dict[str, Any]:
    """One environment's own dict."""
    own = {}
    for key, values in infos.items():
        if f"_{key}" in infos and not infos[f"_{key}"][place]:
            continue
        if isinstance(values, Mapping):
            own[key] = _of(values, place)
        elif not (key.startswith("_") and key[1:] in infos) and len(values) > place:
            own[key] = values[place]
    return own
