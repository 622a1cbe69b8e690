"""A curve in a terminal: a bar for each column, in eighths of a line."""

import numpy as np
from rich.text import Text

from puffer_mlx.display.run_view import abbreviate

BARS = " ▁▂▃▄▅▆▇█"


def curve(
    title: str, points: tuple[list[float], list[float]], end: float, width: int, height: int
) -> list[Text]:
    """Lines of a curve, each ``width`` columns; none without points.

    Args:
        title: the first line.
        points: steps in their order, and values; what is between two of them is drawn straight.
        end: steps at the right edge; the left one is 0.
        width: columns, the values' names on the left among them.
        height: lines, 3 at least.
    """
    steps, values = points
    if not steps:
        return []
    bottom, top = min(0.0, *values), max(values)
    top += bottom == top
    names = [_short(top), *[""] * (height - 3), _short(bottom)]
    left = max(map(len, names))
    edges = np.arange(1, width - left) * (end / (width - left - 1))  # right, of each column
    known = int(np.searchsorted(edges, steps[-1])) + 1
    heights = (np.interp(edges[:known], steps, values) - bottom) / (top - bottom)
    eighths = np.maximum(1, np.rint(8 * (height - 1) * heights)).astype(int)
    lines = [Text(f"{title:{width}}"[:width], "italic")]
    for row, name in enumerate(names):
        full = eighths - 8 * (height - 2 - row)
        bars = "".join(BARS[min(8, max(0, part))] for part in full.tolist())
        bars = f"{bars:{width - left - 1}}"
        lines.append(Text.assemble((f"{name:>{left}}", "cyan"), " ", (bars, "green")))
    return lines


def _short(value: float) -> str:
    return abbreviate(value) if abs(value) >= 1000 else f"{value:.3g}"
