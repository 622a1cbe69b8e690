"""A run in a notebook: one live figure with the dashboard's numbers, and pictures of the agent.

    for logs in watch(trainer): ...
    show(play(trainer.policy, trainer.weights, environments, draw, steps=300))

Outside a notebook ``watch`` is the terminal's dashboard. matplotlib and IPython are imported where
they are needed.
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
from puffer_mlx.display.run_view import Logs, View, abbreviate, agents_text
from puffer_mlx.playing.frames import Frame, gif_bytes, needing
from puffer_mlx.system.signals import handled_by
from puffer_mlx.tracking.scores import SCORE
from puffer_mlx.training.trainer import Trains

MISSING = "notebook", "the notebook's pictures need"  # an extra of puffer-mlx, and a message
REFRESH = 1.0  # seconds between two drawings at least
EFFORT = 0.1  # of the time, for drawing, at most
ALT = "the agent plays"  # for who can't see it
NAMED = 0.005  # of an epoch's time: phases that took less aren't in the legend
LONGEST = 30  # characters of a fact
SIZE, DPI = (10.0, 6.0), 90  # inches, dots per inch
RATED = ("Elo", "win rate", "pool")  # of self-play, above its curve
COLOURS = {"rollout": "Blues", "train": "Oranges"}  # of a phase's parts: matplotlib's colour maps


def summary(trainer: Any) -> dict[str, str]:
    """Return the constant facts of a run, as the dashboard shows them."""
    config, device = trainer.config, mx.default_device()
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
    run = summary(trainer), total
    screen = LiveFigure(View(*run)) if in_notebook() else Dashboard(*run)
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
        with handled_by(handle, signal.SIGINT):
            yield
    finally:
        if interrupted:
            trainer.stop = False


def show(frames: Iterable[Frame], fps: float = 15.0, scale: int = 1) -> Any:
    """Frames as an endless GIF in the cell's output.

    It is in the notebook itself, as a GIF and as HTML: nbconvert's pages have no GIFs but in HTML.

    Args:
        frames: from ``puffer_mlx.play``.
        fps: pictures per second, at most 50.
        scale: pixels a side for each pixel.

    Raises:
        UserError: IPython or Pillow is missing, or ``frames.gif_bytes`` finds something wrong.
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
    """A picture in a cell's output that new records replace; a context manager.

    Args:
        view: The run to show.
    """

    def __init__(self, view: View) -> None:
        _matplotlib()  # if it's missing, now and not after the first epoch
        self.view = view
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
        """Take a record; draw if the last drawing is old enough, or if this is the last record."""
        self.view.take(logs)
        self._stale = True
        if last or time.perf_counter() >= self._due:
            self._draw()

    def _draw(self) -> None:
        began = time.perf_counter()
        self.view.measure()
        picture = self._image(data=png_bytes(self.view), format="png")
        if self._handle is None:
            self._handle = self._display(picture, display_id=True)
        else:
            self._handle.update(picture)
        self._stale = False
        now = time.perf_counter()
        self._due = now + max(REFRESH, (now - began) / EFFORT)


def png_bytes(view: View) -> bytes:
    """A run as a picture: score and speed over steps, where the time goes, all numbers.

    Args:
        view: with at least one record.

    Raises:
        UserError: matplotlib is missing.
    """
    figure_class, canvas_class, colormaps = _matplotlib()
    figure = figure_class(figsize=SIZE, dpi=DPI, layout="constrained")
    canvas_class(figure)
    curves = ["score", "rating", "speed"] if view.plays else ["score", "speed"]
    axes = figure.subplot_mosaic(
        [curves, ["time"] * len(curves), ["text"] * len(curves)], height_ratios=(5, 1.4, 4)
    )
    what = "score, mean of 100 episodes" if SCORE in view.logs else "score per episode"
    _curve(axes["score"], what, view.score_curve(), view.total_steps)
    if play := view.self_play():
        ratings = ", ".join(f"{name} {play[name]}" for name in RATED if name in play)
        _curve(axes["rating"], ratings, view.rating_curve(), view.total_steps)
    _curve(axes["speed"], "steps per second", view.speed_curve(), view.total_steps)
    _time(axes["time"], view, colormaps)
    _text(axes["text"], view)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _curve(axes: Any, title: str, curve: tuple[list[float], list[float]], total: int) -> None:
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


def _time(axes: Any, view: View, colormaps: Any) -> None:
    """Draw an epoch's time as one bar of its measured parts, or of rollout and training.

    Two bars if rollout and training run at the same time.
    """
    phases = view.phases()
    divided = {phase.parent for phase in phases}
    left = right = 0.0
    for row, (name, colours) in enumerate(COLOURS.items()):
        whole = [phase for phase in phases if phase.label.lower() == name]
        parts = [phase for phase in phases if phase.parent == name] if name in divided else whole
        left = 0.0 if view.overlapped else left
        seen = [phase for phase in parts if phase.share >= NAMED]
        for phase in parts:
            shade = seen.index(phase) / len(seen) if phase in seen else 1.0
            label = f"{phase.label.lower()} {100 * phase.share:.0f} %" if phase in seen else ""
            place = -row if view.overlapped else 0
            colour = colormaps[colours](0.85 - 0.7 * shade)
            axes.barh(place, phase.share, left=left, color=colour, label=label)
            left += phase.share
        right = max(left, right)
    wholes = [phase for phase in phases if not phase.parent]
    title = f"time of an epoch: {1000 * view.epoch_seconds:,.0f} ms"
    for phase in wholes:
        title += f", {phase.label.lower()} {100 * phase.share:.0f} %"
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlim(0, max(1.0, right))
    axes.set_axis_off()
    if phases:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(-0.01, 0.05),
            ncols=6,  # that fit beside each other
            fontsize=8,
            frameon=False,
            handlelength=1,
            columnspacing=1,
        )


def _text(axes: Any, view: View) -> None:
    """Facts, losses and statistics as columns of text."""
    axes.set_axis_off()
    sections = (
        ("run", view.facts()),
        ("losses", view.losses()),
        ("environment, per episode", view.statistics() or {"": "no episode has ended yet"}),
    )
    for i, (title, numbers) in enumerate(sections):
        width = max((len(name) for name in numbers), default=0)
        lines = [f"{name:{width}}  {_cut(value)}" for name, value in numbers.items()]
        style = {"va": "top", "fontsize": 8, "transform": axes.transAxes}
        axes.text(i * 0.36, 1.0, title, fontweight="bold", **style)
        axes.text(i * 0.36, 0.88, "\n".join(lines), family="monospace", **style)


def _cut(text: str) -> str:
    """A text without its middle, if it is too long for its column."""
    half = (LONGEST - 1) // 2
    return text if len(text) <= LONGEST else f"{text[:half]}…{text[-half:]}"


def _ipython() -> tuple[Any, Any]:
    with needing(*MISSING):
        from IPython.display import Image, display
    return display, Image


def _matplotlib() -> tuple[Any, Any, Any]:
    """Figure, Agg's canvas (no window, and pyplot's state stays the user's), colour maps."""
    with needing(*MISSING):
        from matplotlib import colormaps
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    return Figure, FigureCanvasAgg, colormaps
