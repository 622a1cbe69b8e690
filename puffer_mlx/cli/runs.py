"""The command ``runs``: list the runs in a folder.

A run has a log, checkpoints or both; other files are ignored.
"""

import sys
import time
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.options import add_option_table, print_next_commands
from puffer_mlx.config import Base, Config, load_saved
from puffer_mlx.config.command_line import Parser
from puffer_mlx.display.notebook import format_short
from puffer_mlx.errors import UserError
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.files import is_locked, relative
from puffer_mlx.system.json_text import is_finite, write_json
from puffer_mlx.tracking.json_lines import read_records
from puffer_mlx.tracking.scores import EVALUATION_PREFIX, score_name

RUNNING = "running"
FINISHED = "finished"
FAILED = "failed"
STOPPED = "stopped"
RESUMABLE = "resumable"
END_MEANINGS = {
    STOPPED: "saved before the last step; can be resumed",
    RESUMABLE: "aborted; can be resumed from an earlier checkpoint",
    FAILED: "aborted; can't be resumed",
}
TIME_UNITS = (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1))
UNLIMITED_COLUMNS = 1000  # width of the table in a pipe or a file
FOLDER_OPTIONS = """
--checkpoint-dir DIR  folder of the checkpoints
--log-dir DIR  folder of the logs
"""
OPTIONS = f"{FOLDER_OPTIONS}--json FILE  write the list to a file; - is stdout\n"


class SavedRun:
    """A training run whose log and checkpoints are on disk.

    Args:
        folder: Folder of the checkpoints, .../ENV/RUN; may be missing.
        log: Path of the log; may be missing.

    Attributes:
        config: Configuration, or None without a readable file.
        records: Records of the epochs.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self.log = log
        self.records = read_records(log)
        try:  # no environment is made, so no code of the file runs
            self.config = load_saved(folder / "config.ini", allow_code=True)
        except (UserError, OSError):
            self.config = None

    @property
    def has_data(self) -> bool:
        """True if the run has something to show: records in its log, or a configuration."""
        return bool(self.records or self.config)

    @property
    def environment(self) -> str:
        """Name of the environment that the run trained in."""
        return self.config.env_name if self.config else self.folder.parent.name

    @property
    def env_argument(self) -> str:
        """Environment of the run for command lines: its name, or the path of its sources."""
        if not (self.config and self.config.source):
            return self.environment
        path = relative(Path(self.config.source))
        return path if "/" in path else f"./{path}"

    @cached_property
    def started(self) -> float:
        """Start time of the run in seconds since 1970."""
        run_id = self.folder.name
        if run_id.isdecimal() and len(run_id) == 13:  # milliseconds since 1970
            return int(run_id) / 1000
        return (self.log if self.log.exists() else self.folder).stat().st_mtime

    @cached_property
    def metric(self) -> str:
        """Name of the metric that is the run's score in its records; "" if it has none."""
        config = self.config or Config("")
        scores = (score_name(record, config.metric) for record in self.records)
        names = dict.fromkeys([config.evaluation_metric, *scores])
        return next((name for name in names if self.values(name)), "")

    def values(self, name: str) -> list[tuple[float, float, float]]:
        """Return the history of a metric in the run's log as (steps, seconds, value).

        Records without a finite value are left out.
        """
        points = []
        for record in self.records:
            value = record.get(name)
            if is_finite(value):
                points.append((record["agent_steps"], record.get("uptime") or 0.0, value))
        return points

    def summary(self) -> dict[str, Any]:
        """Return a dict about the run for the list of runs: steps, best score, end, ..."""
        config = self.config
        steps, ended = self._steps_and_end()
        sign = config.sign if config else 1
        scores = [value for _, _, value in self.values(self.metric)]
        return {
            "environment": self.environment,
            "run": self.folder.name,
            "started": round(self.started),
            "steps": steps,
            "wanted": config and config.train.total_timesteps,
            "metric": self.metric,
            "best": max(scores, key=lambda score: sign * score, default=None),
            "ended": ended,
        }

    @property
    def reached_target(self) -> bool:
        """True if an evaluation reached the target score ``base.stop_at_score``.

        This ended the run.
        """
        if not self.config or isinstance(bound := self.config.base.stop_at_score, str):
            return False
        values = self.values(self.config.evaluation_metric)
        return any(self.config.sign * (score - bound) >= 0 for _, _, score in values)

    def _steps_and_end(self) -> tuple[int, str]:
        """Return the run's number of steps and how it ended, such as ``FINISHED``."""
        from puffer_mlx.checkpoint import STATE, branches

        try:
            saved = branches.list_checkpoints(self.folder)
            resumable = branches.list_checkpoints(self.folder, STATE)
        except UserError:  # the folder can't be read
            saved = []
            resumable = []
        logged_steps = int(self.records[-1]["agent_steps"]) if self.records else 0
        saved_steps = saved[-1].step if saved else 0
        steps = max(0, logged_steps, saved_steps)
        if is_locked(self.folder):
            return steps, RUNNING
        if self.config and steps >= self.config.epochs * self.config.batch_size:
            return steps, FINISHED
        if not resumable:
            return steps, FAILED
        return steps, STOPPED if resumable[-1].step >= steps else RESUMABLE


def find_runs(logs: Path, checkpoints: Path) -> list[SavedRun]:
    """Return all runs on disk that have a log or checkpoints, the newest first."""
    names = {(path.parent.name, path.stem) for path in logs.glob("*/*.jsonl")}
    configurations = checkpoints.glob("*/*/config.ini")  # CHECKPOINTS/ENV/RUN/config.ini
    names |= {(path.parent.parent.name, path.parent.name) for path in configurations}
    runs = [
        SavedRun(checkpoints / env / run_id, logs / env / f"{run_id}.jsonl")
        for env, run_id in names
    ]
    existing = (run for run in runs if run.has_data)
    return sorted(existing, key=lambda run: run.started, reverse=True)


def runs_table(runs: list[dict[str, Any]], with_environment: bool) -> Table:
    """Return the table of all runs on disk; narrow terminals shorten the environments' names."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in "run", "age", "steps", "best", "ended":
        left = name in ("run", "ended")
        grid.add_column(name, justify="left" if left else "right", no_wrap=True)
    if with_environment:
        grid.add_column("environment", overflow="ellipsis")
    for run in runs:
        steps = format_short(run["steps"])
        if run["wanted"] and run["ended"] != FINISHED:
            steps += f" of {format_short(run['wanted'])}"
        row = [run["run"], age(run["started"]), steps, best_text(run), run["ended"]]
        if with_environment:
            row.append(run["environment"])
        grid.add_row(*row)
    return grid


def score_text(score: float | None) -> str:
    """Return a score as text of at most seven characters; "" for None."""
    if score is None:
        return ""
    return f"{score:.4g}" if abs(score) < 1e4 else format_short(score)


def best_text(run: dict[str, Any]) -> str:
    """Return a run's best score as text, followed by " e" if it was reached in an evaluation."""
    suffix = " e" if run["metric"].startswith(EVALUATION_PREFIX) else ""
    return score_text(run["best"]) + suffix


def age(started: float) -> str:
    """Return the time since a run's start as text with one unit: "3 min"."""
    seconds = max(0.0, time.time() - started)
    unit, size = next((each for each in TIME_UNITS if seconds >= 2 * each[1]), TIME_UNITS[-1])
    return f"{seconds // size:.0f} {unit}"


def print_run_hints(runs: list[SavedRun], summaries: list[dict[str, Any]]) -> None:
    """Print what the words in the table of runs mean, and commands to type next.

    Args:
        runs: The runs in the table, at least one, the newest first.
        summaries: Their summaries.
    """
    for word, meaning in END_MEANINGS.items():
        if any(each["ended"] == word for each in summaries):
            verbosity.note(f"{word}: {meaning}")
    if any(each["best"] is not None for each in summaries):
        verbosity.note("best: best score in training; e: in an evaluation")
    commands = []
    saved = [run for run in runs if any(run.folder.glob("[0-9]*/weights.safetensors"))]
    if saved:
        arguments = f"{saved[0].env_argument} {saved[0].folder.name}"
        commands.append((f"{program.command('evaluate')} {arguments} --terminal", "watch it"))
    commands.append((f"{program.command('plot')} {runs[0].environment}", "learning curves"))
    if summaries[0]["ended"] in (STOPPED, RESUMABLE):
        arguments = f"{runs[0].env_argument} --resume {runs[0].folder.name}"
        if runs[0].reached_target:
            arguments += " --stop-at-score none"
        commands.append((f"{program.command('train')} {arguments}", "resume it"))
    print_next_commands(*commands)


def option_parser() -> Parser:
    parser = Parser(usage="%(prog)s [ENV] [options]")
    add_common_options(parser, "runs")
    parser.add_argument(
        "environment",
        metavar="ENV",
        nargs="?",
        default="",
        help="list only the runs of this environment",
    )
    add_option_table(parser, "this list", OPTIONS)
    base = Base()
    parser.set_defaults(checkpoint_dir=base.checkpoint_dir, log_dir=base.log_dir)
    return parser


@with_exit_code
def main(argv: list[str]) -> None:
    options = option_parser().parse(argv)
    runs = find_runs(Path(options.log_dir), Path(options.checkpoint_dir))
    selected = [
        run for run in runs if options.environment in ("", run.environment, run.env_argument)
    ]
    summaries = [run.summary() for run in selected]
    if options.json:
        write_json(summaries, options.json)
    if summaries:
        width = None if sys.stdout.isatty() else UNLIMITED_COLUMNS
        Console(highlight=False, width=width).print(runs_table(summaries, not options.environment))
        print_run_hints(selected, summaries)
    elif runs:
        names = ", ".join(sorted({run.environment for run in runs}))
        verbosity.note(f"no run of {options.environment}; there are runs of {names}")
    else:
        verbosity.note(f"no runs in {options.checkpoint_dir}/ and {options.log_dir}/")
        print_next_commands((f"{program.command('train')} breakout", "train one"))
