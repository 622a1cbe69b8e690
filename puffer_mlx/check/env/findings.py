"""Findings of a check: a verdict, its reason, and what to do about it."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

OK, WARN, FAIL, SKIP = "ok", "WARN", "FAIL", "-"
ORDER = (OK, SKIP, WARN, FAIL)  # from harmless to bad


class Finding(NamedTuple):
    """One line of the report.

    Args:
        verdict: OK; WARN: it works, but may not be what its author wants; FAIL: it is wrong; SKIP:
            it could not be looked at, or doesn't apply.
        text: the reason, in plain words.
        hint: what to do.
    """

    verdict: str
    text: str
    hint: str = ""


Findings: TypeAlias = Iterator[Finding]


def ok(text: str) -> Finding:
    """As it should be."""
    return Finding(OK, text)


def warn(text: str, hint: str) -> Finding:
    """It works, but ..."""
    return Finding(WARN, text, hint)


def fail(text: str, hint: str = "") -> Finding:
    """It is wrong."""
    return Finding(FAIL, text, hint)


def skip(text: str) -> Finding:
    """Nothing was looked at."""
    return Finding(SKIP, text)


def worst(findings: list[Finding]) -> str:
    """The worst verdict."""
    return max((finding.verdict for finding in findings), key=ORDER.index, default=OK)


def number(value: float) -> str:
    """A number for people: at most four digits that say something."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """A share for people: 12 %, 0.003 %."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{share:.0%}".replace("%", " %")


def numbers(indices: list[int], most: int = 6) -> str:
    """Which numbers of an observation: number 3; numbers 0-3, 7 and 12 more."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], index
        else:
            runs.append((index, index))
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs[:most]]
    left = sum(last - first + 1 for first, last in runs[most:])
    more = f" and {left} more" if left else ""
    return f"number{'s' * (len(indices) > 1)} {', '.join(shown)}{more}"
