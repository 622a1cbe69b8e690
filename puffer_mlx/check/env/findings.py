"""Define findings of a check: a verdict, its reason, and a hint."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

OK, WARN, FAIL, SKIP = "ok", "WARN", "FAIL", "-"
ORDER = (OK, SKIP, WARN, FAIL)  # from harmless to serious


class Finding(NamedTuple):
    """One line of the report.

    Args:
        verdict: OK; WARN for a possible mistake; FAIL for an error; SKIP if the check doesn't
            apply or couldn't run.
        text: Reason for the verdict.
        hint: Advice for the author.
    """

    verdict: str
    text: str
    hint: str = ""


Findings: TypeAlias = Iterator[Finding]


def ok(text: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(OK, text)


def warn(text: str, hint: str) -> Finding:
    """Return a finding about a possible mistake."""
    return Finding(WARN, text, hint)


def fail(text: str, hint: str = "") -> Finding:
    """Return a finding about an error."""
    return Finding(FAIL, text, hint)


def skip(text: str) -> Finding:
    """Return a finding about a check that wasn't made."""
    return Finding(SKIP, text)


def worst(findings: list[Finding]) -> str:
    """Return the worst verdict of findings, OK without findings."""
    return max((finding.verdict for finding in findings), key=ORDER.index, default=OK)


def number(value: float) -> str:
    """Format a number with up to four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """Format a fraction as a percentage: 12 %, 0.003 %."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{share:.0%}".replace("%", " %")


def numbers(indices: list[int], most: int = 6) -> str:
    """Format indices of observation elements: number 3; numbers 0-3, 7 and 12 more."""
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
