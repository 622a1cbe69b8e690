"""What a person sees of a sweep: a live table in a terminal, a line for each run elsewhere.

And at its end: which keys mattered, and two pictures.
"""

import importlib.util
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import optuna
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from puffer_mlx.display.run_view import abbreviate, duration
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
    is_run,
)
from puffer_mlx.sweep.settings import FIRST_HELD_OUT

EVERY = 1.0  # seconds between two drawings
FAILED, RUNNING = 3, 16  # rows at most
GAP = 2  # columns between two


class Screen:
    """Shows a sweep; a context manager, and what a ``Driver`` tells.

    Args:
        study: its trials.
        title: what is swept, and how.
        runs: how many there are to be.
        places: runs at once here.
        console: where.
        shown: parameters that a row shows, by their short names.
    """

    def __init__(
        self,
        study: Study,
        title: str,
        runs: int,
        places: int,
        console: Console,
        shown: Sequence[str],
    ) -> None:
        self._study, self._title, self._runs, self._places = study, title, runs, places
        self._console, self._shown = console, shown
        self._going: Sequence[ActiveRun] = ()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._drawn = float("-inf")

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
            self._draw()
        else:
            self._line(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._going = ()
            self._draw()
            self._live.__exit__(None, None, None)

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    # ---- what a Driver tells ---------------------------------------------------------------------

    def ended(self, run: FrozenTrial) -> None:
        """A run is over with all of its seeds, or with one more held-out seed."""
        if not self._live:
            self._line(self.line(run))

    def draw(self, going: Sequence[ActiveRun]) -> None:
        """Draw, with what is under way, if that was long enough ago."""
        self._going = going
        if self._live and time.monotonic() - self._drawn >= EVERY:
            self._draw()

    def _draw(self) -> None:
        assert self._live
        self._drawn = time.monotonic()
        self._live.update(self.picture(), refresh=True)

    # ---- lines and pictures ----------------------------------------------------------------------

    def line(self, run: FrozenTrial) -> str:
        """A run that is over, or one more of its held-out seeds, in a line."""
        if (held_out := self._study.held_out(run)).seeds:
            words = held_out.words(self._study.settings.sign)
            left = f"{len(self._study.lacking())} to go"
            return f"run {self._study.ordinal(run)}, held-out seeds: {words} | {left}"
        parts = [f"run {self._study.ordinal(run)}: {_result(run)}"]
        if run.user_attrs.get(DEFAULT):
            parts.append("the configuration's own values")
        elif name := run.user_attrs.get(GIVEN):
            parts.append(f"the values of {name}")
        elif run.state != TrialState.FAIL:
            values = zip(self._shown, self._values(run), strict=True)
            parts.append(", ".join(f"{name} {value}" for name, value in values if value))
        done = self._study.trained(*FINISHED)
        if (best := self._study.best()) is not None:
            parts.append(f"best {best.values[0]:.4g} (run {self._study.ordinal(best)})")
        return " | ".join([*parts, f"{done} of {self._runs}"])

    def picture(self) -> RenderableType:
        """All of it."""
        study = self._study
        failed, stopped = study.runs(TrialState.FAIL), study.runs(TrialState.PRUNED)
        done = study.trained(*FINISHED)
        costs = [cost for run in study.runs(TrialState.COMPLETE) for cost in _costs(run)]
        costs += [_came_to(run)[1] for run in stopped]
        left = max(0, self._runs - done)
        facts = [f"{done} of {self._runs} runs"]
        facts += [f"{len(stopped)} ended early"] * bool(stopped)
        facts += [f"{len(failed)} failed"] * bool(failed)
        unconfirmed = len(study.lacking()) if done >= self._runs else 0
        facts += [f"{unconfirmed} held-out seeds to go"] * bool(unconfirmed)
        left += unconfirmed
        facts.append(f"{duration(sum(costs))} of training")
        if costs and left:
            recent = costs[-20:]
            guess = left * sum(recent) / len(recent) / max(1, self._places)
            facts.append(f"about {duration(guess)} left")
        faults = [
            Text(f"run {study.ordinal(run)} failed: {run.user_attrs.get(FAULT)}", "red")
            for run in failed[-FAILED:]
        ]
        head = [Text(self._title, "bold"), Text(", ".join(facts))]
        for line in (*head, *faults):
            line.truncate(self._console.width, overflow="ellipsis")
        height = self._console.height - 1 - len(head) - len(faults)
        return Group(*head, *self._table(self._console.width, height), *faults)

    def _table(self, width: int, height: int) -> list[RenderableType]:
        """The best run, what is under way, the front and the newest others, as many as fit.

        Args:
            width: columns; keys that have no room are left out.
            height: lines.
        """
        study = self._study
        best, front = study.best(), study.front()[::-1]
        few = [run for run in study.few() if study.held_out(run).seeds]
        front = [*few, *(run for run in front if run.number not in {each.number for each in few})]
        on_front = {run.number for run in front}
        others = [run for run in study.runs(*FINISHED)[::-1] if run.number not in on_front]
        going = self._going[:RUNNING]
        room = max(1, height - 1 - len(going))  # of the lines below the columns' names
        if (left := len(front) + len(others) - room) > 0:
            room = max(1, room - 1)
            left = len(front) + len(others) - room
        rows = []
        for run in front[:room]:
            is_best = best is not None and run.number == best.number
            state = "best" if is_best else "held out" if run in few else "front"
            rows.append((self._row(run, state), "green" * is_best))
        rows += [(self._row_of(each), "cyan") for each in going]
        for run in others[: max(0, room - len(front))]:
            state = "ended early" if run.state == TrialState.PRUNED else "behind"
            rows.append((self._row(run, state), "dim"))
        names = ["run", "", "score", "seconds", "steps", *self._shown]
        columns = zip(names, *(cells for cells, _ in rows), strict=True)
        widths = [max(map(len, column)) for column in columns]
        while len(widths) > 5 and sum(widths) + GAP * (len(widths) - 1) > width:
            widths.pop()
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
        for name in names[: len(widths)]:
            justify = "left" if name in ("run", "") else "right"
            table.add_column(name, justify=justify, no_wrap=True)
        for cells, style in rows:
            table.add_row(*cells[: len(widths)], style=style)
        return [table, *([Text(f"{left} more", "dim")] if left > 0 else [])]

    def _row(self, run: FrozenTrial, state: str) -> list[str]:
        """A finished run's cells."""
        score, cost = _came_to(run)
        seeds = f" ({len(of)} seeds)" if (of := curves(run)) else ""
        if (held_out := self._study.held_out(run)).seeds:
            state += f": {held_out.words(self._study.settings.sign)}"
        cells = [f"{self._study.ordinal(run)}{seeds}", state, f"{score:.4g}", f"{cost:.1f}"]
        return [*cells, abbreviate(run.user_attrs.get(STEPS, 0)), *self._values(run)]

    def _row_of(self, going: ActiveRun) -> list[str]:
        """The same of one under way."""
        last = going.last
        seconds = last.cost if last else time.monotonic() - going.began
        seed = f", seed {going.seed + 1}" if self._study.settings.seeds > 1 else ""
        if going.seed >= FIRST_HELD_OUT:
            seed = f", held-out seed {going.seed - FIRST_HELD_OUT + 1}"
        number, score = str(self._study.ordinal(going.trial)), f"{last.score:.4g}" if last else "-"
        steps = abbreviate(last.steps) if last else "0"
        cells = [number, f"running{seed}", score, f"{seconds:.1f}", steps]
        return [*cells, *self._values(going.trial)]

    def _values(self, run: FrozenTrial) -> list[str]:
        """Of the parameters that are shown; empty texts where it has none."""
        values = {name.rpartition(".")[2]: value for name, value in run.params.items()}
        return [_short(values[name]) if name in values else "" for name in self._shown]


def _costs(run: FrozenTrial) -> list[float]:
    """Of the runs of all its seeds."""
    return [curve[-1].cost for curve in curves(run).values()] or [run.values[1]]


def _came_to(run: FrozenTrial) -> tuple[float, float]:
    """Score and cost of a run that finished, or was ended early."""
    score, cost = run.user_attrs[LAST] if run.state == TrialState.PRUNED else run.values
    return score, cost


def _result(run: FrozenTrial) -> str:
    if run.state == TrialState.FAIL:
        return f"failed: {run.user_attrs.get(FAULT)}"
    score, cost = _came_to(run)
    text = f"score {score:.4g}, {cost:.1f} s, {abbreviate(run.user_attrs.get(STEPS, 0))} steps"
    if of := [curve[-1].score for curve in curves(run).values()]:
        text += f", seeds {' '.join(f'{each:.4g}' for each in of)}"
    return f"{text}, ended early: {run.user_attrs[STOPPED]}" if STOPPED in run.user_attrs else text


def _short(value: float) -> str:
    if isinstance(value, int) or float(value).is_integer():
        return abbreviate(value) if abs(value) >= 10_000 else f"{value:.0f}"
    return f"{value:.4g}"


# ---- at the end ----------------------------------------------------------------------------------

LEAST = 8  # trials from which importances say something
FRONT, IMPORTANCES = "front.png", "importances.png"
OURS, BEST, GREY = "#1d4ed8", "#111827", "#9ca3af"
STYLE: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True}
STYLE |= {"font.size": 9, "grid.color": "#e5e7eb", "axes.axisbelow": True, "axes.edgecolor": GREY}
STYLE |= {"axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left"}


def importances(study: Study) -> dict[str, float]:
    """How much each key told about the score, the sum being 1, most first; empty of too few."""
    over = [trial for trial in study.trials() if trial.state == TrialState.COMPLETE]
    if len(over) < LEAST or len({trial.values[0] for trial in over}) < 2:
        return {}
    with warnings.catch_warnings(action="ignore"):
        return optuna.importance.get_param_importances(
            study.optuna, target=lambda trial: trial.values[0]
        )


def draw(study: Study, folder: Path) -> list[Path]:
    """Draw the front and the importances, as far as there are any; the pictures' paths."""
    if not can_draw():
        return []
    figures = {FRONT: front(study)}
    if known := importances(study):
        figures[IMPORTANCES] = bars(known)
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=120)
    return [folder / name for name in figures]


def front(study: Study) -> Any:
    """A figure of all runs' cost and score, the front as a line, and the best named."""
    figure, axes = _figure("Score of a run by what it costs", (6.0, 4.0))
    trials = [trial for trial in study.trials() if trial.values]
    for runs, colour, size, label in (
        ([trial for trial in trials if not is_run(trial)], "#e5e7eb", 8, "a run before its end"),
        ([trial for trial in trials if is_run(trial)], GREY, 22, "a run"),
    ):
        places = [(trial.values[1], trial.values[0]) for trial in runs]
        axes.scatter(*zip(*places, strict=True), s=size, color=colour, label=label) if runs else ()
    if (best := study.best()) is not None:
        line = [(run.values[1], run.values[0]) for run in study.front()]
        axes.plot(*zip(*line, strict=True), color=OURS, marker="o", markersize=5, label="the front")
        score, cost = best.values
        axes.plot([cost], [score], color=BEST, marker="*", markersize=14, linestyle="")
        words = f"best: run {study.ordinal(best)}, {score:.4g}"
        place = {"xytext": (-8, 8), "textcoords": "offset points", "ha": "right"}
        axes.annotate(words, (cost, score), color=BEST, **place)
    axes.set(xlabel="seconds of training", ylabel="score")
    axes.margins(y=0.15)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def bars(known: dict[str, float]) -> Any:
    """A figure of importances, the largest at the top."""
    figure, axes = _figure("What told most about the score", (6.0, 0.8 + 0.25 * len(known)))
    names, parts = [*known][::-1], [*known.values()][::-1]
    axes.barh(names, parts, color=OURS, height=0.6)
    axes.set(xlabel="part")
    axes.grid(axis="y", visible=False)
    return figure


def _figure(title: str, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure in the style of the project's pictures (benchmarks/figures.py), and its axes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.set_title(title)
    return figure, axes


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None
