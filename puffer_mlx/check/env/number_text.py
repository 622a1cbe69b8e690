"""Format numbers for findings."""


def number(value: float) -> str:
    """Format a number with up to four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """Format a fraction as a percentage: 12 %, 0.003 %."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


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
