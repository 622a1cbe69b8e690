"""What Gymnasium's ``info`` tells: which actions are legal, and numbers of episodes that ended.

A vector environment merges the dicts of its environments: each key leads to an array of n values,
nested dicts stay nested, and ``_key`` is True where an environment gave one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.spaces import kind_of

__all__ = ["MASK", "Masks", "ended_infos"]

MASK = "action_mask"  # the key under which Gymnasium's own environments give theirs
_HINT = (
    f'give info["{MASK}"] in every reset and step, for each choice of each head 1 where it is legal'
)


class Masks:
    """Reads the masks of a group's environments.

    Args:
        name: for messages.
        action_space: of one agent.
        first: number of the first of these environments.
        what: they are, for messages.

    Raises:
        UserError: the actions are no choices.
    """

    def __init__(self, name: str, action_space: Any, first: int, what: str = "environment") -> None:
        if kind_of(action_space) not in ("Discrete", "MultiDiscrete"):
            raise UserError(
                f'{name}: info["{MASK}"] is there, but actions are {action_space}',
                "masks are for Discrete and MultiDiscrete; leave it out",
            )
        sizes = np.ravel(getattr(action_space, "nvec", getattr(action_space, "n", 0)))
        self._name, self._first, self._choices = name, first, int(sizes.sum())
        self._what = what
        open_ = np.repeat(sizes > 1, sizes)  # a head of one choice is none to a policy
        self._columns = None if open_.all() else np.flatnonzero(open_)

    def write(self, infos: Mapping[str, Any], last: np.ndarray | None, out: np.ndarray) -> None:
        """Write the masks of n environments.

        Args:
            infos: merged.
            last: (n,) bool: where an episode's last observation arrived: everything is legal there,
                as no action counts. None: nowhere.
            out: (n, mask_size) uint8.

        Raises:
            UserError: one of the others gave no mask, or one of another size.
        """
        over = np.zeros(len(out), bool) if last is None else last
        given = infos.get(f"_{MASK}", np.full(len(out), MASK in infos))
        missing = np.flatnonzero(~(np.asarray(given, bool) | over))
        if len(missing):
            raise UserError(f"{self._name}: {self._which(missing[0])} gave no action mask", _HINT)
        if MASK in infos:
            rows = self._rows(infos[MASK], over)
            np.not_equal(rows if self._columns is None else rows[:, self._columns], 0, out=out)
        if over.any():
            out[over] = 1

    def _rows(self, masks: Any, over: np.ndarray) -> np.ndarray:
        """(n, choices), from an array, or from lists or a tuple for each head."""
        masks = np.asarray(masks)
        if masks.dtype != object and masks.shape == (len(over), self._choices):
            return masks
        rows = np.ones((len(over), self._choices), np.uint8)
        for index in np.flatnonzero(~over):
            row = _flat(masks[index])
            if row.shape != (self._choices,):
                raise UserError(
                    f"{self._name}: {self._which(index)} gave an action mask of {row.size} numbers,"
                    f" expected {self._choices}",
                    _HINT,
                )
            rows[index] = row
        return rows

    def _which(self, index: Any) -> str:
        return f"{self._what} {self._first + index}"


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


def _flat(mask: Any) -> np.ndarray:
    """One environment's mask: an array, or one for each head."""
    if isinstance(mask, tuple | list):
        return np.concatenate([np.ravel(part) for part in mask])
    return np.ravel(mask)
