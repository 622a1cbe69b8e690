"""Progress of a sweep: a line for each run, a status line in a terminal, pictures at the end."""

import importlib.util
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import optuna
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.live import Live
from rich.text import Text

from puffer_mlx.display.run_view import format_count, format_duration
from puffer_mlx.sweep.engine.driver import ActiveRun
from puffer_mlx.sweep.engine.study import (
    ERROR,
    FINISHED_STATES,
    FROM_CONFIG,
    FROM_FILE,
    LAST_RESULT,
    STOP_REASON,
    TRAINED_STEPS,
    Study,
    seed_curves,
)

STATUS_INTERVAL = 1.0  # seconds between two updates of the status line


class SweepProgress:
    """Print the progress of a sweep. Use it as a context manager.

    Args:
        study: Trials of the sweep.
        title: Description of the sweep and its method.
        runs: Number of runs to finish.
        slots: Number of simultaneous runs in this process.
        console: Console to print to.
        columns: Short names of the parameters in a run's line.
    """

    def __init__(
        self,
        study: Study,
        title: str,
        runs: int,
        slots: int,
        console: Console,
        columns: Sequence[str],
    ) -> None:
        self._study = study
        self._title = title
        self._runs = runs
        self._slots = slots
        self._console = console
        self._columns = columns
        terminal = console.is_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if terminal else None
        self._updated_at = float("-inf")

    def __enter__(self) -> Self:
        self._print(self._title)
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def on_end(self, run: FrozenTrial) -> None:
        """Print a line about a sweep's run that ended with all seeds, or with a held-out one."""
        self._print(self.line(run))

    def draw(self, active: Sequence[ActiveRun]) -> None:
        """Update the sweep's status line in the terminal, at most once a second.

        Args:
            active: Runs in progress.
        """
        if self._live and time.monotonic() - self._updated_at >= STATUS_INTERVAL:
            self._updated_at = time.monotonic()
            text = Text(self.status(active))
            text.truncate(self._console.width, overflow="ellipsis")
            self._live.update(text, refresh=True)

    def line(self, run: FrozenTrial) -> str:
        """Return a line about a sweep's ended run: result, parameters, and best run so far."""
        if (held_out := self._study.held_out_results(run)).seeds:
            words = held_out.summary(self._study.settings.sign)
            missing = len(self._study.missing_held_out_seeds())
            return f"run {self._study.ordinal(run)}, held-out seeds: {words} | {missing} remaining"
        texts = [f"run {self._study.ordinal(run)}: {_run_result(run)}"]
        if run.user_attrs.get(FROM_CONFIG):
            texts.append("the configured values")
        elif name := run.user_attrs.get(FROM_FILE):
            texts.append(f"the values of {name}")
        elif run.state != TrialState.FAIL:
            values = {name.rpartition(".")[2]: value for name, value in run.params.items()}
            columns = [
                f"{name} {_format_value(values[name])}" for name in self._columns if name in values
            ]
            texts.append(", ".join(columns))
        done = self._study.count_trained(*FINISHED_STATES)
        if (best := self._study.best()) is not None:
            texts.append(f"best {best.values[0]:.4g} (run {self._study.ordinal(best)})")
        return " | ".join([*texts, f"{done} of {self._runs}"])

    def status(self, active: Sequence[ActiveRun]) -> str:
        """Return a sweep's status line: counts, training time, time left, runs in progress."""
        study = self._study
        failed = study.runs(TrialState.FAIL)
        stopped = study.runs(TrialState.PRUNED)
        done = study.count_trained(*FINISHED_STATES)
        costs = [cost for run in study.runs(TrialState.COMPLETE) for cost in _costs(run)]
        costs += [_score_and_cost(run)[1] for run in stopped]
        remaining = max(0, self._runs - done)
        texts = [f"{done} of {self._runs} runs"]
        if stopped:
            texts.append(f"{len(stopped)} ended early")
        if failed:
            texts.append(f"{len(failed)} failed")
        held_out = len(study.missing_held_out_seeds()) if done >= self._runs else 0
        if held_out:
            texts.append(f"{held_out} held-out seeds remaining")
        remaining += held_out
        texts.append(f"{format_duration(sum(costs))} of training")
        if costs and remaining:
            recent = costs[-20:]
            estimate = remaining * sum(recent) / len(recent) / max(1, self._slots)
            texts.append(f"about {format_duration(estimate)} left")
        for each in active:
            score = f" {each.newest.score:.4g}" if each.newest else ""
            texts.append(f"run {study.ordinal(each.run)}{score}")
        return ", ".join(texts)


def _costs(run: FrozenTrial) -> list[float]:
    """Return the training times of a finished run in seconds, one for each of its seeds."""
    return [curve[-1].cost for curve in seed_curves(run).values()] or [run.values[1]]


def _score_and_cost(run: FrozenTrial) -> tuple[float, float]:
    """Return the score and cost of a run that finished or was stopped early."""
    score, cost = run.user_attrs[LAST_RESULT] if run.state == TrialState.PRUNED else run.values
    return score, cost


def _run_result(run: FrozenTrial) -> str:
    """Return the result of an ended run as text: score, cost and steps, or why it failed."""
    if run.state == TrialState.FAIL:
        return f"failed: {run.user_attrs.get(ERROR)}"
    score, cost = _score_and_cost(run)
    steps = format_count(run.user_attrs.get(TRAINED_STEPS, 0))
    text = f"score {score:.4g}, {cost:.1f} s, {steps} steps"
    if scores := [curve[-1].score for curve in seed_curves(run).values()]:
        text += f", seeds {' '.join(f'{each:.4g}' for each in scores)}"
    if STOP_REASON in run.user_attrs:
        text += f", ended early: {run.user_attrs[STOP_REASON]}"
    return text


def _format_value(value: float) -> str:
    """Format a parameter's value in a few characters: 1.5M, 64, 0.9912."""
    if isinstance(value, int) or float(value).is_integer():
        return format_count(value) if abs(value) >= 10_000 else f"{value:.0f}"
    return f"{value:.4g}"


# ---- at the end ----------------------------------------------------------------------------------

MIN_TRIALS = 8  # trials needed for importances
FRONT_FILE = "front.png"
IMPORTANCES_FILE = "importances.png"


def importances(study: Study) -> dict[str, float]:
    """Return how much each searched key influences a sweep's score, in descending order.

    The values add up to 1. With few trials the dict is empty.
    """
    completed = [trial for trial in study.trials() if trial.state == TrialState.COMPLETE]
    if len(completed) < MIN_TRIALS or len({trial.values[0] for trial in completed}) < 2:
        return {}
    with warnings.catch_warnings(action="ignore"):
        return optuna.importance.get_param_importances(
            study.optuna_study, target=lambda trial: trial.values[0]
        )


def draw_plots(study: Study, folder: Path) -> list[Path]:
    """Draw a sweep's Pareto front and importances of keys. Returns the paths of the pictures."""
    if not can_draw():
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    paths = []
    with warnings.catch_warnings(action="ignore"):
        axes_by_file = {
            FRONT_FILE: plots.plot_pareto_front(study.optuna_study, target_names=["score", "cost"])
        }
        if importances(study):
            axes_by_file[IMPORTANCES_FILE] = plots.plot_param_importances(
                study.optuna_study, target=lambda trial: trial.values[0], target_name="score"
            )
    for name, axes in axes_by_file.items():
        figure: Any = axes.figure
        if axes.get_legend():  # below the axes, so that it hides no point
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False)
        figure.savefig(folder / name, dpi=120, bbox_inches="tight")
        pyplot.close(figure)
        paths.append(folder / name)
    return paths


def can_draw() -> bool:
    """Return True if matplotlib is installed, which draws the pictures of a sweep."""
    return importlib.util.find_spec("matplotlib") is not None
