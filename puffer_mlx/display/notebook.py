"""Show a run in a notebook: a live figure with the dashboard's numbers, and pictures of the agent.

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
from puffer_mlx.display.run_view import Curve, Logs, RunState, abbreviate, agents_text, label
from puffer_mlx.evaluation.frames import Frame, gif_bytes, needing
from puffer_mlx.system.signals import handle_signals_with
from puffer_mlx.tracking.scores import SCORE
from puffer_mlx.training.trainer import Trains

MISSING = "notebook", "the notebook's pictures need"  # an extra of puffer-mlx, and a message
REFRESH = 1.0  # minimum seconds between two drawings
EFFORT = 0.1  # maximum fraction of the time for drawing
ALT = "the agent plays"  # alternative text of the picture
LONGEST = 30  # characters of a fact
SIZE, DPI = (10.0, 6.0), 90  # inches, dots per inch
COLUMN = 0.26  # width of a text column, as a fraction of the figure
RATED = ("Elo", "win rate", "pool")  # self-play values in the title of its curve


def summary(trainer: Any) -> dict[str, str]:
    """Return the constant facts of a run, as the dashboard shows them."""
    config = trainer.config
    device = mx.default_device()
    groups = config.vec.num_buffers
    return {
        "Environment": config.env_name,
        "Parameters": abbreviate(trainer.parameters),
        "Agents": agents_text(config.vec.total_agents, 1 if trainer.acts_in_c else groups),
        "Device": "GPU" if device.type == device.type.gpu else "CPU",
    }


def watch(trainer: Trains) -> Generator[Logs, None, None]:
    """Train and show the progress in a figure that is redrawn in place.

    For an environment in Python the first line names the family of its settings.

    Interrupting the kernel ends the run after the epoch, a second time at once; the figure stays. A
    stopped trainer continues if it is watched again.

    Args:
        trainer: The trainer to iterate over.

    Yields:
        The trainer's records, one for each epoch.

    Raises:
        UserError: in a notebook, matplotlib is missing.
    """
    total = trainer.config.epochs * trainer.config.batch_size
    if trainer.epoch == 0 and (note := family_note(trainer.config)):
        print(note)
    facts = summary(trainer)
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
    """Have the first Ctrl-C end a trainer's iteration after its epoch, and the second at once."""

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
    """Show frames as an endless GIF in the cell's output.

    The notebook contains it as a GIF and as HTML, because nbconvert shows GIFs only in HTML.

    Args:
        frames: Frames, for example from ``puffer_mlx.play``.
        fps: Pictures per second, at most 50.
        scale: Width and height of each pixel, in pixels.

    Raises:
        UserError: IPython or Pillow is missing, or the frames can't be written
            (``frames.gif_bytes``).
    """
    display, _ = _ipython()
    encoded = base64.b64encode(gif_bytes(frames, fps, scale)).decode()
    html = f'<img alt="{ALT}" src="data:image/gif;base64,{encoded}">'
    display({"image/gif": encoded, "text/html": html, "text/plain": ALT}, raw=True)


def in_notebook() -> bool:
    """Return True in a Jupyter kernel, which can show pictures."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")


class LiveFigure:
    """Show a picture in a cell's output and redraw it for new records. Use it as a context manager.

    Args:
        run: The run to show.
    """

    def __init__(self, run: RunState) -> None:
        _matplotlib()  # raises now if it is missing, not after the first epoch
        self.run = run
        self._display, self._image = _ipython()
        self._handle: Any = None
        self._due = float("-inf")
        self._stale = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stale:
            self._draw()

    def update(self, logs: Logs, last: bool = False) -> None:
        """Add a record; draw if the last drawing is old enough, or if this is the last record."""
        self.run.update(logs)
        self._stale = True
        if last or time.perf_counter() >= self._due:
            self._draw()

    def _draw(self) -> None:
        began = time.perf_counter()
        self.run.update_speed()
        picture = self._image(data=png_bytes(self.run), format="png")
        if self._handle is None:
            self._handle = self._display(picture, display_id=True)
        else:
            self._handle.update(picture)
        self._stale = False
        now = time.perf_counter()
        self._due = now + max(REFRESH, (now - began) / EFFORT)


def png_bytes(run: RunState) -> bytes:
    """Return a picture of a run: curves of score and speed, and all numbers as text.

    Args:
        run: A run with at least one record.

    Raises:
        UserError: matplotlib is missing.
    """
    figure_class, canvas_class = _matplotlib()
    figure = figure_class(figsize=SIZE, dpi=DPI, layout="constrained")
    canvas_class(figure)
    name = run.score_name(run.logs)
    score = "score, mean of 100 episodes" if name == SCORE else label(name)
    curves = {score: run.score_curve(), "steps per second": run.speed_curve()}
    if play := run.self_play():
        curves[", ".join(f"{name} {play[name]}" for name in RATED if name in play)] = (
            run.rating_curve()
        )
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
        axis.set_major_formatter(lambda value, _: f"{value:g}" if value < 1e3 else short(value))
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def short(number: float) -> str:
    """1_500_000 -> 1.5M, 2_000_000 -> 2M."""
    return abbreviate(number).replace(".0", "")


def _write_columns(axes: Any, run: RunState) -> None:
    """Write facts, times, losses and statistics as columns of text."""
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
        axes.text(i * COLUMN, 1.0, title, fontweight="bold", **style)
        axes.text(i * COLUMN, 0.95, "\n".join(lines), family="monospace", **style)


def _shorten(text: str) -> str:
    """Replace the middle of a text that is too long for its column."""
    half = (LONGEST - 1) // 2
    return text if len(text) <= LONGEST else f"{text[:half]}…{text[-half:]}"


def _ipython() -> tuple[Any, Any]:
    with needing(*MISSING):
        from IPython.display import Image, display
    return display, Image


def _matplotlib() -> tuple[Any, Any]:
    """Return Figure and Agg's canvas, which don't change the state of the user's pyplot."""
    with needing(*MISSING):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    return Figure, FigureCanvasAgg
