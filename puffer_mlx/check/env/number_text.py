"""Format numbers for findings."""

from itertools import groupby


def number(value: float) -> str:
    """Format a number with up to four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """Format a fraction as a percentage: 12 %, 0.003 %."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def numbers(indices: list[int], most: int = 6) -> str:
    """Format indices of observation elements: number 3; numbers 0-3, 7 and 12 more."""
    runs = [
        [index for _, index in run]  # consecutive indices
        for _, run in groupby(enumerate(indices), lambda pair: pair[1] - pair[0])
    ]
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:most]]
    left = sum(map(len, runs[most:]))
    more = f" and {left} more" if left else ""
    return f"number{'s' * (len(indices) > 1)} {', '.join(shown)}{more}"
