"""Style of the benchmarks' pictures: panels of curves, colours and labels.

A curve shows the median over the seeds and their range. Labels are at the ends of the curves, and
one line of text below all panels explains the picture.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

OUR_COLOR, PEER_COLOR, STAR, GREY = "#1d4ed8", "#9ca3af", "#111827", "#6b7280"
MORE = (OUR_COLOR, "#0d9488", "#c2410c", "#7c3aed")  # our lines in one panel
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#4b5563",
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 8,
}
MAX_TITLE = 17  # characters of a title at full size; longer ones are smaller
COLUMNS = 4
WIDTH, HEIGHT = 2.45, 1.95  # of a panel in inches; readable on a page that is 9 inches wide


class Label(NamedTuple):
    """A label beside the end of a curve."""

    y: float
    text: str
    color: str


@contextmanager
def panels(
    count: int,
    path: Path,
    caption: str,
    size: tuple[float, float] = (WIDTH, HEIGHT),
    columns: int = COLUMNS,
) -> Iterator[list[Any]]:
    """Create a picture of several panels for a ``with`` block, and write it at the end.

    Args:
        count: Number of panels.
        path: Path of the picture.
        caption: Text below the panels.
        size: Width and height of a panel in inches.
        columns: Maximum number of panels in a row.

    Yields:
        The axes of the panels.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    columns = min(columns, count)
    rows = -(-count // columns)
    figure_size = size[0] * columns, size[1] * rows + 0.3
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            rows, columns, figsize=figure_size, layout="constrained", squeeze=False
        )
        for axis in axes.flat[count:]:
            axis.axis("off")
        for axis in axes.flat[:count]:
            axis.xaxis.set_major_locator(MaxNLocator(4))
        figure.supxlabel(caption, fontsize=9, color=GREY, x=0.01, ha="left")
        yield list(axes.flat[:count])
        figure.savefig(path, dpi=140)
    plt.close(figure)


def seeds(axis: Any, curves: Sequence[np.ndarray], color: str) -> float:
    """Draw the median of several curves and their range.

    Args:
        axis: Axes of the panel.
        curves: Arrays of points (n, 2) with x and y.
        color: Colour of the curve.

    Returns:
        The last value of the median.
    """
    x = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    y = np.array([np.interp(x, curve[:, 0], curve[:, 1]) for curve in curves])
    middle = np.median(y, axis=0)
    axis.fill_between(x, y.min(axis=0), y.max(axis=0), color=color, alpha=0.18, linewidth=0)
    axis.plot(x, middle, color=color)
    return float(middle[-1])


def label(axis: Any, labels: Sequence[Label], distance: float = 0.1) -> None:
    """Write labels on the right of a panel, at the heights of their curves.

    Labels are moved down to keep at least this distance, a fraction of the panel's height.
    """
    low, high = axis.get_ylim()
    at = 1.0 + distance
    for y, text, color in sorted(labels, reverse=True):
        at = min((y - low) / (high - low), at - distance)
        axis.annotate(
            text, (1.02, at), xycoords="axes fraction", color=color, va="center", fontsize=8
        )


def title(axis: Any, text: str, beside: str = "") -> None:
    """Write the title of a panel, smaller if it is long, and a note to the right of it."""
    axis.set_title(text, fontsize=min(10, 10 * MAX_TITLE / len(text)))
    axis.set_title(beside, loc="right", fontsize=8, fontweight="normal", color=GREY)


def beside(axis: Any, text: str, point: tuple[float, float]) -> None:
    """Write a text below and to the right of a point."""
    axis.annotate(text, point, (5, -12), textcoords="offset points", fontsize=8, color=GREY)


def note(axis: Any, text: str) -> None:
    """Write a text in the upper right corner of a panel."""
    style = {"xycoords": "axes fraction", "ha": "right", "va": "top"}
    axis.annotate(text, (0.97, 0.95), fontsize=8, color=GREY, **style)
