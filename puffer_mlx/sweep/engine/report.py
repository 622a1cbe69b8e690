"""What is left of a sweep for a person: which keys mattered, and two pictures."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from puffer_mlx.sweep.engine.study import Study

LEAST = 8  # trials from which importances say something
PICTURES = {"plot_pareto_front": "front.png", "plot_param_importances": "importances.png"}


def importances(study: Study) -> dict[str, float]:
    """How much each key told about the score, the sum being 1, most first; empty of too few."""
    over = [trial for trial in study.trials() if trial.state == TrialState.COMPLETE]
    if len(over) < LEAST or len({trial.values[0] for trial in over}) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.importance.get_param_importances(study.optuna, target=_score)


def _score(trial: optuna.trial.FrozenTrial) -> float:
    return trial.values[0]


def draw(study: Study, folder: Path) -> list[Path]:
    """Draw the front and the importances, as far as there are any; the pictures' paths."""
    if not can_draw():
        return []
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from optuna.visualization import matplotlib as pictures

    made = []
    known = importances(study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, file in PICTURES.items():
            if name == "plot_pareto_front":
                axes = pictures.plot_pareto_front(study.optuna, target_names=["score", "cost, s"])
            elif known:
                axes = pictures.plot_param_importances(
                    study.optuna, target=_score, target_name="score"
                )
            else:
                continue
            figure: Any = axes.figure
            figure.savefig(folder / file, bbox_inches="tight", dpi=120)
            plt.close(figure)
            made.append(folder / file)
    return made


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None
