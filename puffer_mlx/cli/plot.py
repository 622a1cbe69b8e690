"""Draw learning curves: puffer-mlx plot RUN ... [options]; in Python ``puffer_mlx.plot``.

Runs whose configurations differ in seeds only are one line, their median, with the range of all.
Each environment has its own axes.
"""

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import add_table
from puffer_mlx.cli.runs import FOLDERS, SavedRun, find_runs
from puffer_mlx.config import Base
from puffer_mlx.config.command_line import Parser
from puffer_mlx.config.compatibility import closest
from puffer_mlx.config.writing import to_dict
from puffer_mlx.display.notebook import format_short
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.frames import optional_package
from puffer_mlx.system import program
from puffer_mlx.system.files import check_writable, publish, relative
from puffer_mlx.tracking.scores import SCORE
from puffer_mlx.tracking.trackers import flatten_dict

POINTS = 200  # maximum number of points of a curve; each is the mean of several epochs
COLUMNS = 3
PANEL = 5.0, 3.4  # inches
LABELS = {"steps": "environment steps", "seconds": "seconds of training"}
SUFFIXES = ".png", ".pdf", ".svg"
OPTIONS = f"""
--out FILE  a .png, .pdf or .svg (default ENV.png, or runs.png with several environments)
--x steps|seconds  what is to the right (default steps)
--key KEY  number of the log, such as loss/entropy or SPS (default the score)
{FOLDERS.strip()}
"""


def plot(
    *runs: str | Path,
    x: str = "steps",
    key: str = "",
    out: str | Path | None = None,
    checkpoint_dir: str | Path = "checkpoints",
    log_dir: str | Path = "logs",
) -> Any:
    """Draw the learning curves of runs. Returns matplotlib's figure, which notebooks show.

    Runs whose configurations differ in seeds only are one line, their median, with the range.

    Args:
        runs: Environments, for all of their runs; run ids, folders or logs of runs; or "latest".
        x: "steps" or "seconds".
        key: Number of the log to draw, such as "loss/entropy" or "SPS"; "" for the score.
        out: File to write: .png, .pdf or .svg. None writes none.
        checkpoint_dir: Folder of the checkpoints.
        log_dir: Folder of the logs.

    Raises:
        UserError: There is no such run or number, or matplotlib isn't installed.
    """
    chosen = find_chosen(list(map(str, runs)), Path(log_dir), Path(checkpoint_dir))
    return draw(chosen, x, key, Path(out) if out else None)


def draw(runs: list[SavedRun], x: str, key: str, out: Path | None) -> Any:
    """Return the figure of ``plot`` for some runs, after writing it."""
    with optional_package("plot", "plots need"):
        from matplotlib.figure import Figure
    if x not in LABELS:
        raise UserError(f"x is {x!r}", "steps or seconds")
    if out and out.suffix not in SUFFIXES:
        raise UserError(f"{relative(out)} can't be drawn", "a name ending in .png, .pdf or .svg")
    environments: dict[str, list[SavedRun]] = {}
    for run in runs:
        environments.setdefault(run.environment, []).append(run)
    columns = min(COLUMNS, len(environments))
    rows = -(-len(environments) // columns)
    figure: Any = Figure((PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
    figure._repr_png_ = partial(_png_bytes, figure)  # for notebooks
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (environment, of_it) in zip(panels, environments.items(), strict=False):
        draw_environment(axes, of_it, x, key)
        axes.set_title(environment, loc="left", fontsize=10, fontweight="bold")
    for axes in panels[len(environments) :]:
        axes.set_axis_off()
    if out:
        with publish(out, user_named=True) as temporary:
            figure.savefig(temporary, format=out.suffix[1:], dpi=150)
    return figure


def _png_bytes(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def find_chosen(words: list[str], logs: Path, checkpoints: Path) -> list[SavedRun]:
    """Return the runs that are named, each once.

    Raises:
        UserError: A word names no run, or no word is given.
    """
    known = find_runs(logs, checkpoints)
    chosen: dict[Path, SavedRun] = {}
    for word in words:
        path = Path(word).resolve()
        found = [
            run
            for run in known
            if word in (run.environment, run.typed, run.folder.name)
            or path in (run.folder.resolve(), run.log.resolve())
        ]
        if word == "latest":
            found = known[:1]
        if not found and path.suffix == ".jsonl":  # of another folder, such as a sweep's
            folder = path.parents[2] / checkpoints.name / path.parent.name / path.stem
            found = list(filter(None, [SavedRun(folder, path)]))
        if not found:
            names = ", ".join(sorted({run.environment for run in known}))
            hint = f"there are runs of {names}" if names else f"none in {checkpoints} and {logs}"
            raise UserError(f"there is no run {word}", f"{hint}: {program.command('runs')}")
        chosen |= {run.log.resolve(): run for run in found}
    if not chosen:
        raise UserError("no run is named", "an environment, a RUN_ID or latest")
    return sorted(chosen.values(), key=lambda run: run.started)


def draw_environment(axes: Any, runs: list[SavedRun], x: str, key: str) -> None:
    """Draw the runs of an environment, and a legend below if there are several lines."""
    name = _number_named(key, runs)
    groups: dict[str, list[SavedRun]] = {}
    for run in runs:
        groups.setdefault(repr(_settings(run)), []).append(run)
    for of_group, label in zip(groups.values(), _labels(list(groups.values())), strict=True):
        curves = [_curve(run.values(name), x) for run in of_group if run.values(name)]
        if not curves:
            continue
        right = np.unique(np.concatenate([curve[0] for curve in curves]))
        rows = [np.interp(right, *curve, left=np.nan, right=np.nan) for curve in curves]
        line = axes.plot(right, np.nanmedian(rows, axis=0), label=label)[0]
        if len(rows) > 1:
            low, high = np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
            axes.fill_between(right, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel(LABELS[x])
    axes.set_ylabel("score, mean of 100 episodes" if name == SCORE else name.removeprefix("env/"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda x, _: f"{x:g}" if x < 1e3 else format_short(x))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8, frameon=False)


def _number_named(key: str, runs: list[SavedRun]) -> str:
    """Return the full name of a number in the records; "" is the score.

    Raises:
        UserError: No record has it.
    """
    if not key:
        if name := next((run.metric for run in runs if run.metric), ""):
            return name
        raise UserError(f"no run of {runs[0].environment} has a score yet", "--key loss/entropy")
    known = {name for run in runs for record in run.records[-1:] for name in record}
    ends = [name for name in known if name == key or name.endswith(f"/{key}")]
    if len(ends) == 1 or key in ends:
        return key if key in ends else ends[0]
    near = closest(key, sorted(known))
    hint = f"did you mean {near}?" if near else f"one of {', '.join(sorted(known))}"
    raise UserError(f"the logs have no {key}", hint)


def _settings(run: SavedRun) -> dict[str, Any]:
    """Return the settings of a run, without those of files and seeds."""
    settings = flatten_dict(to_dict(run.config)) if run.config else {}
    return {
        name: value
        for name, value in settings.items()
        if not name.startswith(("base.", "sweep.")) and not name.endswith(".seed")
    }


def _labels(groups: Sequence[list[SavedRun]]) -> list[str]:
    """Return the labels of the lines: what differs between them, and the number of runs."""
    settings = [_settings(group[0]) for group in groups]
    names = {name: None for each in settings for name in each}
    differing = [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]
    labels = []
    for group, each in zip(groups, settings, strict=True):
        words = [f"{name.rpartition('.')[2]} {each.get(name)}" for name in differing[:3]]
        count = len(group)
        words.append(
            f"median and range of {count} runs" if count > 1 else f"run {group[0].folder.name}"
        )
        labels.append(", ".join(words))
    return labels


def _curve(points: list[tuple[float, float, float]], x: str) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of a curve with ``POINTS`` points at most."""
    rows = np.array(points)
    parts = np.array_split(rows, min(POINTS, len(rows)))
    means = np.array([part.mean(axis=0) for part in parts])
    return means[:, 1 if x == "seconds" else 0], means[:, 2]


def option_parser() -> Parser:
    parser = Parser(usage="%(prog)s RUN ... [options]")
    introduce(parser, "plot")
    about = "an environment, for all of its runs; a RUN_ID, a run's folder or log; latest"
    parser.add_argument("runs", metavar="RUN", nargs="+", help=about)
    add_table(parser, "this plot", OPTIONS, types={"--out": check_writable})
    base = Base()
    parser.set_defaults(x="steps", key="", checkpoint_dir=base.checkpoint_dir, log_dir=base.log_dir)
    return parser


@reported
def main(argv: list[str]) -> None:
    options = option_parser().parse(argv)
    logs, checkpoints = Path(options.log_dir), Path(options.checkpoint_dir)
    chosen = find_chosen(options.runs, logs, checkpoints)
    names = {run.folder.parent.name for run in chosen}
    out = options.out or Path(f"{names.pop() if len(names) == 1 else 'runs'}.png")
    draw(chosen, options.x, options.key, out)
    count = "1 run" if len(chosen) == 1 else f"{len(chosen)} runs"
    print(f"wrote {relative(out)}: {count}")
