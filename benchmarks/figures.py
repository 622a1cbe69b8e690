"""Style of the pictures of learning.

Ours has one colour, with the seeds' range and the median. Labels are at the lines' ends, and one
line below all panels explains them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

OURS, OTHER, STAR, GREY = "#1d4ed8", "#9ca3af", "#111827", "#6b7280"
MORE = (OURS, "#0d9488", "#c2410c", "#7c3aed")  # our lines in one panel
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
LONG = 17  # characters of a title that leaves room for a note
COLUMNS = 4
WIDTH, HEIGHT = 2.45, 1.95  # of a panel, inches: text is readable where a page is 9 inches wide


class Label(NamedTuple):
    """Words beside the end of a line."""

    y: float
    text: str
    color: str


@contextmanager
def panels(
    count: int,
    path: Path,
    words: str,
    size: tuple[float, float] = (WIDTH, HEIGHT),
    most: int = COLUMNS,
) -> Iterator[list[Any]]:
    """Yield the axes of a picture, then write it.

    Args:
        count: number of axes.
        path: of the picture.
        words: written below.
        size: of one panel, inches.
        most: panels in a row.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    columns = min(most, count)
    rows = -(-count // columns)
    whole = size[0] * columns, size[1] * rows + 0.3
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            rows, columns, figsize=whole, layout="constrained", squeeze=False
        )
        for axis in axes.flat[count:]:
            axis.axis("off")
        for axis in axes.flat[:count]:
            axis.xaxis.set_major_locator(MaxNLocator(4))
        figure.supxlabel(words, fontsize=9, color=GREY, x=0.01, ha="left")
        yield list(axes.flat[:count])
        figure.savefig(path, dpi=140)
    plt.close(figure)


def seeds(axis: Any, curves: Sequence[np.ndarray], color: str) -> float:
    """Draw the median of some curves (points, 2: x and y) and their range; where it ends."""
    x = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    y = np.array([np.interp(x, curve[:, 0], curve[:, 1]) for curve in curves])
    middle = np.median(y, axis=0)
    axis.fill_between(x, y.min(axis=0), y.max(axis=0), color=color, alpha=0.18, linewidth=0)
    axis.plot(x, middle, color=color)
    return float(middle[-1])


def label(axis: Any, labels: Sequence[Label], apart: float = 0.1) -> None:
    """Words on the right of a panel, as high as what they name, where they don't meet."""
    low, high = axis.get_ylim()
    at = 1.0 + apart
    for y, text, color in sorted(labels, reverse=True):
        at = min((y - low) / (high - low), at - apart)
        axis.annotate(
            text, (1.02, at), xycoords="axes fraction", color=color, va="center", fontsize=8
        )


def title(axis: Any, text: str, beside: str = "") -> None:
    """Write a title, smaller if it is long, and a note at its right."""
    axis.set_title(text, fontsize=min(10, 10 * LONG / len(text)))
    axis.set_title(beside, loc="right", fontsize=8, fontweight="normal", color=GREY)


def beside(axis: Any, text: str, point: tuple[float, float]) -> None:
    """Words below and to the right of a point."""
    axis.annotate(text, point, (5, -12), textcoords="offset points", fontsize=8, color=GREY)


def note(axis: Any, text: str) -> None:
    """Words in the upper right corner."""
    place = {"xycoords": "axes fraction", "ha": "right", "va": "top"}
    axis.annotate(text, (0.97, 0.95), fontsize=8, color=GREY, **place)
