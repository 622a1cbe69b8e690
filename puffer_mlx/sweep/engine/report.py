"""What is left of a sweep for a person: which keys mattered, and two pictures."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from puffer_mlx.sweep.engine.study import Study, is_run

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
