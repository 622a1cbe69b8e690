"""Show a run in a notebook: a live figure with the dashboard's values, and videos of the agent.

    for logs in watch(trainer): ...
    show(play(trainer.policy, trainer.weights, environments, draw, steps=300))

Outside a notebook ``watch`` shows the terminal's dashboard. matplotlib and IPython are imported on
first use.
"""

import base64
import contextlib
import io
import signal
import time
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Self

import mlx.core as mx

from puffer_mlx.config.notes import family_note
from puffer_mlx.display.dashboard import Dashboard
from puffer_mlx.display.run_view import (
    Curve,
    Record,
    RunState,
    format_agents,
    format_count,
    score_label,
)
from puffer_mlx.evaluation.frames import Frame, gif_bytes, optional_package
from puffer_mlx.system.signals import handle_signals_with
from puffer_mlx.tracking.scores import MEAN_SCORE
from puffer_mlx.training.trainer import Trains

NOTEBOOK_PACKAGE = ("notebook", "the notebook's pictures need")  # for ``optional_package``
REDRAW_INTERVAL = 1.0  # minimum seconds between two drawings
MAX_DRAWING_FRACTION = 0.1  # of the time
ALT_TEXT = "the agent plays"  # alternative text of a video
MAX_FACT_LENGTH = 30  # characters
FIGURE_SIZE = (10.0, 6.0)  # inches
DPI = 90
COLUMN_WIDTH = 0.26  # of a text column, as a fraction of the figure
SHOWN_RATINGS = ("Elo", "win rate", "pool")  # self-play values in the title of the rating's curve


def run_summary(trainer: Any) -> dict[str, str]:
    """Return the constant facts about a run as text: environment, parameters, agents and device."""
    config = trainer.config
    device = mx.default_device()
    groups = config.vec.num_buffers
    return {
        "Environment": config.env_name,
        "Parameters": format_count(trainer.parameters),
        "Agents": format_agents(config.vec.total_agents, 1 if trainer.acts_in_c else groups),
        "Device": "GPU" if device.type == device.type.gpu else "CPU",
    }


def watch(trainer: Trains) -> Generator[Record, None, None]:
    """Run a trainer and show its progress: in a notebook as a figure, else as a dashboard.

    For Python environments, a line about their default settings is printed first.

    Interrupting the kernel once ends training after the epoch, twice ends it immediately. The
    figure stays. To continue, watch the trainer again.

    Args:
        trainer: Trainer to iterate over.

    Yields:
        The trainer's records, one per epoch.

    Raises:
        UserError: If matplotlib is missing in a notebook.
    """
    total = trainer.config.epochs * trainer.config.batch_size
    if trainer.epoch == 0 and (note := family_note(trainer.config)):
        print(note)
    facts = run_summary(trainer)
    metric = trainer.config.metric
    if in_notebook():
        screen = LiveFigure(RunState(facts, total, metric))
    else:
        screen = Dashboard(facts, total, metric=metric)
    with screen, _interruptible(trainer):
        for logs in trainer:
            screen.update(logs, last=trainer.epoch == trainer.config.epochs or trainer.stop)
            yield logs


@contextlib.contextmanager
def _interruptible(trainer: Trains) -> Iterator[None]:
    """Let the first Ctrl-C stop a trainer after its epoch, and the second one immediately."""

    def handle(*_: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = trainer.stop = True

    interrupted = False
    try:
        with handle_signals_with(handle, signal.SIGINT):
            yield
    finally:
        if interrupted:
            trainer.stop = False


def show(frames: Iterable[Frame], fps: float = 15.0, scale: int = 1) -> Any:
    """Show frames as an endless GIF in a notebook cell's output.

    The output contains the GIF twice, also as HTML, because nbconvert shows GIFs only in HTML.

    Args:
        frames: Frames, for example from ``puffer_mlx.play``.
        fps: Pictures per second, at most 50.
        scale: Width and height of each pixel, in pixels.

    Raises:
        UserError: If IPython or Pillow is missing, or the frames can't be encoded
            (``frames.gif_bytes``).
    """
    display, _ = _ipython()
    encoded = base64.b64encode(gif_bytes(frames, fps, scale)).decode()
    html = f'<img alt="{ALT_TEXT}" src="data:image/gif;base64,{encoded}">'
    display({"image/gif": encoded, "text/html": html, "text/plain": ALT_TEXT}, raw=True)


def in_notebook() -> bool:
    """Return True if the program runs in a Jupyter kernel, which can show pictures."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")


class LiveFigure:
    """Show a run as a figure in a notebook cell, redrawn for new records.

    Use it as a context manager.

    Args:
        run: State of the run.
    """

    def __init__(self, run: RunState) -> None:
        _matplotlib()  # raises an error now, not after the first epoch
        self.run = run
        self._display, self._image = _ipython()
        self._handle: Any = None
        self._next_draw_time = float("-inf")
        self._is_stale = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_stale:
            self._draw()

    def update(self, logs: Record, last: bool = False) -> None:
        """Add a record of the run to the figure, and redraw unless it was redrawn very recently.

        Args:
            logs: Record of an epoch.
            last: True to draw in any case.
        """
        self.run.update(logs)
        self._is_stale = True
        if last or time.perf_counter() >= self._next_draw_time:
            self._draw()

    def _draw(self) -> None:
        began = time.perf_counter()
        self.run.update_speed()
        picture = self._image(data=png_bytes(self.run), format="png")
        if self._handle is None:
            self._handle = self._display(picture, display_id=True)
        else:
            self._handle.update(picture)
        self._is_stale = False
        now = time.perf_counter()
        self._next_draw_time = now + max(REDRAW_INTERVAL, (now - began) / MAX_DRAWING_FRACTION)


def png_bytes(run: RunState) -> bytes:
    """Draw a run as a PNG: curves of score and speed, and all other values as text.

    Args:
        run: State of a run with at least one record.

    Returns:
        Content of the PNG file.

    Raises:
        UserError: If matplotlib is missing.
    """
    figure_class, canvas_class = _matplotlib()
    figure = figure_class(figsize=FIGURE_SIZE, dpi=DPI, layout="constrained")
    canvas_class(figure)
    name = run.score_name(run.logs)
    score = "score, mean of 100 episodes" if name == MEAN_SCORE else score_label(name)
    curves = {score: run.score_curve(), "steps per second": run.speed_curve()}
    if ratings := run.self_play():
        shown_ratings = [f"{label} {ratings[label]}" for label in SHOWN_RATINGS if label in ratings]
        curves[", ".join(shown_ratings)] = run.rating_curve()
    names = [*curves]
    axes = figure.subplot_mosaic([names, ["text"] * len(names)], height_ratios=(4, 5))
    for title, curve in curves.items():
        _draw_curve(axes[title], title, curve, run.total_steps)
    _write_columns(axes["text"], run)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _draw_curve(axes: Any, title: str, curve: Curve, total: int) -> None:
    steps, values = curve
    axes.plot(steps, values, color="tab:blue", marker="." if len(steps) < 30 else "")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlim(0, total)
    axes.set_ylim(bottom=min([0.0, *values]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_tick_label)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def format_short(number: float) -> str:
    """Format a count with a unit, without a trailing zero: 2_000_000 -> 2M."""
    return format_count(number).replace(".0", "")


def _tick_label(value: float, position: int) -> str:
    """Return the label of a tick of a plot's axis, such as 2M. matplotlib calls this function."""
    return f"{value:g}" if value < 1e3 else format_short(value)


def _write_columns(axes: Any, run: RunState) -> None:
    """Write facts, times, losses and statistics of a run into a figure, as columns of text."""
    axes.set_axis_off()
    sections = {
        "run": [*run.progress().items(), *run.facts().items()],
        "time of an epoch": run.times(),
        "losses": run.losses(),
        "environment, per episode": run.statistics() or [("", "no episode has ended yet")],
    }
    for i, (title, pairs) in enumerate(sections.items()):
        width = max((len(name) for name, _ in pairs), default=0)
        lines = [f"{name:{width}}  {_shorten(value)}" for name, value in pairs]
        style = {"va": "top", "fontsize": 7, "transform": axes.transAxes}
        axes.text(i * COLUMN_WIDTH, 1.0, title, fontweight="bold", **style)
        axes.text(i * COLUMN_WIDTH, 0.95, "\n".join(lines), family="monospace", **style)


def _shorten(text: str) -> str:
    """Shorten a text that is too long for its column by replacing the middle with …."""
    half = (MAX_FACT_LENGTH - 1) // 2
    return text if len(text) <= MAX_FACT_LENGTH else f"{text[:half]}…{text[-half:]}"


def _ipython() -> tuple[Any, Any]:
    """Import IPython. Returns its functions ``display`` and ``Image``."""
    with optional_package(*NOTEBOOK_PACKAGE):
        from IPython.display import Image, display
    return display, Image


def _matplotlib() -> tuple[Any, Any]:
    """Import matplotlib. Returns its classes Figure and FigureCanvasAgg.

    They leave the user's pyplot unchanged.
    """
    with optional_package(*NOTEBOOK_PACKAGE):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    return Figure, FigureCanvasAgg
