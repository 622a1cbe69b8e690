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

from puffer_mlx.display.run_view import duration, format_count
from puffer_mlx.sweep.engine.driver import ActiveRun
from puffer_mlx.sweep.engine.study import (
    DEFAULT,
    FAULT,
    FINISHED,
    GIVEN,
    LAST,
    STEPS,
    STOPPED,
    Study,
    curves,
)

STATUS_INTERVAL = 1.0  # seconds between two updates of the status line


class Progress:
    """Print the progress of a sweep. Use as a context manager; a ``Driver`` calls the methods.

    Args:
        study: Trials of the sweep.
        title: Description of the sweep and its method.
        runs: Number of runs to finish.
        slots: Number of simultaneous runs in this process.
        console: Console to print to.
        shown: Short names of the parameters in a run's line.
    """

    def __init__(
        self,
        study: Study,
        title: str,
        runs: int,
        slots: int,
        console: Console,
        shown: Sequence[str],
    ) -> None:
        self._study = study
        self._title = title
        self._runs = runs
        self._slots = slots
        self._console = console
        self._shown = shown
        terminal = console.is_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if terminal else None
        self._drawn = float("-inf")

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

    def ended(self, run: FrozenTrial) -> None:
        """Print the line of a run that ended with all of its seeds or with a held-out one."""
        self._print(self.line(run))

    def draw(self, active: Sequence[ActiveRun]) -> None:
        """Update the status line, at most once a second.

        Args:
            active: Runs in progress.
        """
        if self._live and time.monotonic() - self._drawn >= STATUS_INTERVAL:
            self._drawn = time.monotonic()
            text = Text(self.status(active))
            text.truncate(self._console.width, overflow="ellipsis")
            self._live.update(text, refresh=True)

    def line(self, run: FrozenTrial) -> str:
        """Return the line of a run that ended with all of its seeds or with a held-out one."""
        if (held_out := self._study.held_out(run)).seeds:
            words = held_out.words(self._study.settings.sign)
            left = f"{len(self._study.missing_held_out())} to go"
            return f"run {self._study.ordinal(run)}, held-out seeds: {words} | {left}"
        parts = [f"run {self._study.ordinal(run)}: {_result(run)}"]
        if run.user_attrs.get(DEFAULT):
            parts.append("the configuration's own values")
        elif name := run.user_attrs.get(GIVEN):
            parts.append(f"the values of {name}")
        elif run.state != TrialState.FAIL:
            values = {name.rpartition(".")[2]: value for name, value in run.params.items()}
            shown = [f"{name} {_short(values[name])}" for name in self._shown if name in values]
            parts.append(", ".join(shown))
        done = self._study.trained(*FINISHED)
        if (best := self._study.best()) is not None:
            parts.append(f"best {best.values[0]:.4g} (run {self._study.ordinal(best)})")
        return " | ".join([*parts, f"{done} of {self._runs}"])

    def status(self, active: Sequence[ActiveRun]) -> str:
        """Return the status line: counts, training time, time left, and the runs in progress."""
        study = self._study
        failed = study.runs(TrialState.FAIL)
        stopped = study.runs(TrialState.PRUNED)
        done = study.trained(*FINISHED)
        costs = [cost for run in study.runs(TrialState.COMPLETE) for cost in _costs(run)]
        costs += [_score_and_cost(run)[1] for run in stopped]
        left = max(0, self._runs - done)
        facts = [f"{done} of {self._runs} runs"]
        facts += [f"{len(stopped)} ended early"] * bool(stopped)
        facts += [f"{len(failed)} failed"] * bool(failed)
        unconfirmed = len(study.missing_held_out()) if done >= self._runs else 0
        facts += [f"{unconfirmed} held-out seeds to go"] * bool(unconfirmed)
        left += unconfirmed
        facts.append(f"{duration(sum(costs))} of training")
        if costs and left:
            recent = costs[-20:]
            guess = left * sum(recent) / len(recent) / max(1, self._slots)
            facts.append(f"about {duration(guess)} left")
        for each in active:
            score = f" {each.last.score:.4g}" if each.last else ""
            facts.append(f"run {study.ordinal(each.trial)}{score}")
        return ", ".join(facts)


def _costs(run: FrozenTrial) -> list[float]:
    """Return the cost of each of a run's seeds."""
    return [curve[-1].cost for curve in curves(run).values()] or [run.values[1]]


def _score_and_cost(run: FrozenTrial) -> tuple[float, float]:
    """Return the score and cost of a run that finished or was ended early."""
    score, cost = run.user_attrs[LAST] if run.state == TrialState.PRUNED else run.values
    return score, cost


def _result(run: FrozenTrial) -> str:
    if run.state == TrialState.FAIL:
        return f"failed: {run.user_attrs.get(FAULT)}"
    score, cost = _score_and_cost(run)
    text = f"score {score:.4g}, {cost:.1f} s, {format_count(run.user_attrs.get(STEPS, 0))} steps"
    if of := [curve[-1].score for curve in curves(run).values()]:
        text += f", seeds {' '.join(f'{each:.4g}' for each in of)}"
    return f"{text}, ended early: {run.user_attrs[STOPPED]}" if STOPPED in run.user_attrs else text


def _short(value: float) -> str:
    if isinstance(value, int) or float(value).is_integer():
        return format_count(value) if abs(value) >= 10_000 else f"{value:.0f}"
    return f"{value:.4g}"


# ---- at the end ----------------------------------------------------------------------------------

MIN_TRIALS = 8  # trials needed for importances
FRONT = "front.png"
IMPORTANCES = "importances.png"


def importances(study: Study) -> dict[str, float]:
    """Return the importance of each key for the score, in descending order; {} with few trials.

    The importances add up to 1.
    """
    over = [trial for trial in study.trials() if trial.state == TrialState.COMPLETE]
    if len(over) < MIN_TRIALS or len({trial.values[0] for trial in over}) < 2:
        return {}
    with warnings.catch_warnings(action="ignore"):
        return optuna.importance.get_param_importances(
            study.optuna, target=lambda trial: trial.values[0]
        )


def draw(study: Study, folder: Path) -> list[Path]:
    """Draw the Pareto front and the importances with Optuna. Returns the paths of the pictures."""
    if not can_draw():
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    paths = []
    with warnings.catch_warnings(action="ignore"):
        drawn = {FRONT: plots.plot_pareto_front(study.optuna, target_names=["score", "cost"])}
        if importances(study):
            drawn[IMPORTANCES] = plots.plot_param_importances(
                study.optuna, target=lambda trial: trial.values[0], target_name="score"
            )
    for name, axes in drawn.items():
        figure: Any = axes.figure
        if axes.get_legend():  # below the axes, where no point is
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False)
        figure.savefig(folder / name, dpi=120, bbox_inches="tight")
        pyplot.close(figure)
        paths.append(folder / name)
    return paths


def can_draw() -> bool:
    """Return True if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None
