"""The command ``plot`` and ``puffer_mlx.plot``: draw the learning curves of runs.

Runs that differ only in their seeds are drawn as one line: their median and range. Each environment
has a separate panel.
"""

import io
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.options import add_option_table
from puffer_mlx.cli.runs import FOLDER_OPTIONS, SavedRun, find_runs
from puffer_mlx.config import Base
from puffer_mlx.config.command_line import Parser
from puffer_mlx.config.compatibility import closest
from puffer_mlx.config.writing import to_dict
from puffer_mlx.display.notebook import format_short
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.frames import optional_package
from puffer_mlx.system import program
from puffer_mlx.system.files import check_writable, publish, relative
from puffer_mlx.tracking.scores import MEAN_SCORE
from puffer_mlx.tracking.trackers import flatten_dict

MAX_CURVE_POINTS = 200  # each point is the mean of several epochs
MAX_COLUMNS = 3
PANEL_INCHES = 5.0, 3.4  # width, height
LABELS = {"steps": "environment steps", "seconds": "seconds of training"}
SUFFIXES = ".png", ".pdf", ".svg"
OPTIONS = f"""
--out FILE  .png, .pdf or .svg file to write (default: ENV.png, or runs.png for several ENVs)
--x steps|seconds  the horizontal axis (default steps)
--key KEY  metric in the log, such as loss/entropy or SPS (default: the score)
{FOLDER_OPTIONS.strip()}
"""


def plot(
    *runs: str | Path,
    x: str = "steps",
    key: str = "",
    out: str | Path | None = None,
    checkpoint_dir: str | Path = "checkpoints",
    log_dir: str | Path = "logs",
) -> Any:
    """Draw the learning curves of runs. Returns a matplotlib figure, which notebooks show.

    Runs that differ only in their seeds are drawn as one line: their median and range.

    Args:
        runs: Environments (all their runs), run ids, folders or logs of runs, or "latest".
        x: "steps" or "seconds".
        key: Metric in the log, such as "loss/entropy" or "SPS"; "" for the score.
        out: File to write: .png, .pdf or .svg; None to write no file.
        checkpoint_dir: Folder of the checkpoints.
        log_dir: Folder of the logs.

    Raises:
        UserError: If a run or metric doesn't exist, or matplotlib isn't installed.
    """
    selected = find_selected_runs(list(map(str, runs)), Path(log_dir), Path(checkpoint_dir))
    return draw_figure(selected, x, key, Path(out) if out else None)


def draw_figure(runs: list[SavedRun], x: str, key: str, out: Path | None) -> Any:
    """Draw and return a figure with learning curves of runs; write it to a file if requested."""
    with optional_package("plot", "plots need"):
        from matplotlib.figure import Figure
    if x not in LABELS:
        raise UserError(f"x is {x!r}", "steps or seconds")
    if out and out.suffix not in SUFFIXES:
        raise UserError(f"{relative(out)} has no known suffix", "use .png, .pdf or .svg")
    environments: dict[str, list[SavedRun]] = {}
    for run in runs:
        environments.setdefault(run.environment, []).append(run)
    columns = min(MAX_COLUMNS, len(environments))
    rows = math.ceil(len(environments) / columns)
    figure: Any = Figure((PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows), layout="constrained")
    figure._repr_png_ = partial(_png_bytes, figure)  # for notebooks
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (environment, env_runs) in zip(panels, environments.items(), strict=False):
        draw_environment(axes, env_runs, x, key)
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


def find_selected_runs(words: list[str], logs: Path, checkpoints: Path) -> list[SavedRun]:
    """Return the runs that the arguments of ``plot`` select, sorted by start time.

    Raises:
        UserError: If an argument selects no run, or there are no arguments.
    """
    all_runs = find_runs(logs, checkpoints)
    selected: dict[Path, SavedRun] = {}
    for word in words:
        path = Path(word).resolve()
        matches = [
            run
            for run in all_runs
            if word in (run.environment, run.env_argument, run.folder.name)
            or path in (run.folder.resolve(), run.log.resolve())
        ]
        if word == "latest":
            matches = all_runs[:1]
        if not matches and path.suffix == ".jsonl":  # in another folder, such as a sweep's
            # LOGS/ENV/RUN.jsonl has its checkpoints in CHECKPOINTS/ENV/RUN beside LOGS.
            folder = path.parents[2] / checkpoints.name / path.parent.name / path.stem
            run = SavedRun(folder, path)
            matches = [run] if run.has_data else []
        if not matches:
            names = ", ".join(sorted({run.environment for run in all_runs}))
            hint = f"there are runs of {names}" if names else f"none in {checkpoints} and {logs}"
            raise UserError(f"there is no run {word}", f"{hint}: {program.command('runs')}")
        selected |= {run.log.resolve(): run for run in matches}
    if not selected:
        raise UserError("no run is selected", "add an environment, a RUN_ID or latest")
    return sorted(selected.values(), key=lambda run: run.started)


def draw_environment(axes: Any, runs: list[SavedRun], x: str, key: str) -> None:
    """Draw learning curves of one environment's runs in one panel of a figure, with a legend."""
    name = _metric_name(key, runs)
    groups: dict[str, list[SavedRun]] = {}
    for run in runs:
        groups.setdefault(repr(_hyperparameters(run)), []).append(run)
    for group, label in zip(groups.values(), _labels(list(groups.values())), strict=True):
        points = [run.values(name) for run in group]
        curves = [_mean_curve(each, x) for each in points if each]
        if not curves:
            continue
        # The runs have points at different steps: interpolate each curve at the steps of all.
        all_x = np.unique(np.concatenate([curve_x for curve_x, _ in curves]))
        all_y = [
            np.interp(all_x, curve_x, curve_y, left=np.nan, right=np.nan)
            for curve_x, curve_y in curves
        ]
        line = axes.plot(all_x, np.nanmedian(all_y, axis=0), label=label)[0]
        if len(all_y) > 1:
            low, high = np.nanmin(all_y, axis=0), np.nanmax(all_y, axis=0)
            axes.fill_between(all_x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel(LABELS[x])
    axes.set_ylabel(
        "score, mean of 100 episodes" if name == MEAN_SCORE else name.removeprefix("env/")
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(
            lambda number, _: f"{number:g}" if number < 1e3 else format_short(number)
        )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8, frameon=False)


def _metric_name(key: str, runs: list[SavedRun]) -> str:
    """Return the full name of a metric in runs' logs; for an empty name, that of the score.

    Raises:
        UserError: If the records don't contain it.
    """
    if not key:
        if name := next((run.metric for run in runs if run.metric), ""):
            return name
        raise UserError(f"no run of {runs[0].environment} has a score yet", "--key loss/entropy")
    names = {name for run in runs for record in run.records[-1:] for name in record}
    matches = [name for name in names if name == key or name.endswith(f"/{key}")]
    if key in matches:
        return key
    if len(matches) == 1:
        return matches[0]
    similar = closest(key, sorted(names))
    hint = f"did you mean {similar}?" if similar else f"one of {', '.join(sorted(names))}"
    raise UserError(f"the logs have no {key}", hint)


def _hyperparameters(run: SavedRun) -> dict[str, Any]:
    """Return a run's hyperparameters by name: its settings without files, folders and seeds."""
    settings = flatten_dict(to_dict(run.config)) if run.config else {}
    return {
        name: value
        for name, value in settings.items()
        if not name.startswith(("base.", "sweep.")) and not name.endswith(".seed")
    }


def _labels(groups: Sequence[list[SavedRun]]) -> list[str]:
    """Return the legend's labels for groups of runs: differing settings and number of runs."""
    group_settings = [_hyperparameters(group[0]) for group in groups]
    names = dict.fromkeys(name for settings in group_settings for name in settings)
    differing = [
        name for name in names if len({repr(settings.get(name)) for settings in group_settings}) > 1
    ]
    labels = []
    for group, settings in zip(groups, group_settings, strict=True):
        words = [f"{name.rpartition('.')[2]} {settings.get(name)}" for name in differing[:3]]
        count = len(group)
        words.append(
            f"median and range of {count} runs" if count > 1 else f"run {group[0].folder.name}"
        )
        labels.append(", ".join(words))
    return labels


def _mean_curve(points: list[tuple[float, float, float]], x: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the points (x and y) of a run's learning curve, averaged to ``MAX_CURVE_POINTS``.

    Args:
        points: (steps, seconds, value) of the run's records.
        x: "steps" or "seconds".
    """
    rows = np.array(points)
    chunks = np.array_split(rows, min(MAX_CURVE_POINTS, len(rows)))
    means = np.array([chunk.mean(axis=0) for chunk in chunks])
    steps, seconds, values = means.T
    return (seconds if x == "seconds" else steps), values


def option_parser() -> Parser:
    parser = Parser(usage="%(prog)s RUN ... [options]")
    add_common_options(parser, "plot")
    text = "an environment (all its runs), a RUN_ID, a run's folder or log, or latest"
    parser.add_argument("runs", metavar="RUN", nargs="+", help=text)
    add_option_table(parser, "this plot", OPTIONS, types={"--out": check_writable})
    base = Base()
    parser.set_defaults(x="steps", key="", checkpoint_dir=base.checkpoint_dir, log_dir=base.log_dir)
    return parser


@with_exit_code
def main(argv: list[str]) -> None:
    options = option_parser().parse(argv)
    logs, checkpoints = Path(options.log_dir), Path(options.checkpoint_dir)
    selected = find_selected_runs(options.runs, logs, checkpoints)
    names = {run.folder.parent.name for run in selected}
    out = options.out or Path(f"{names.pop() if len(names) == 1 else 'runs'}.png")
    draw_figure(selected, options.x, options.key, out)
    count = "1 run" if len(selected) == 1 else f"{len(selected)} runs"
    print(f"wrote {relative(out)}: {count}")
