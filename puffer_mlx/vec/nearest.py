"""Names like one that there isn't, for the message that says so."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["nearest"]

_MOST = 3


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """The few names that are most like one, as a hint: ``a, b or c``; empty if none is.

    Args:
        name: as it was written.
        names: that there are.
        prefix: before each, as it is to be written.
    """
    close = [prefix + each for each in get_close_matches(name, sorted(names), n=_MOST, cutoff=0.6)]
    return " or ".join(filter(None, [", ".join(close[:-1]), *close[-1:]]))
