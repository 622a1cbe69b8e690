"""Pictures of the curves in `learning/`: learning.png of environments in C, learning-gym.png."""

from pathlib import Path
from typing import Any

import numpy as np
from learning_table import load
from learning_tasks import IN_C, IN_PYTHON, OURS, SB3
from learning_zoo import PUBLISHED

UPSTREAMS = {  # by PufferLib 5.0, of one run each: million steps, and the score
    "breakout-a": (79.69, 861.7),
    "breakout-c": (108.46, 864.0),
    "breakout-f": (46.8, 853.8),
}
TRAINERS = {OURS: "puffer_mlx", SB3: "Stable-Baselines3"}

Lines = list[tuple[str, dict[str, Any], tuple[float, float] | None]]  # label, record, a star


def panels_in_c(folder: Path) -> dict[str, Lines]:
    """One for each environment, a line for each network or file."""
    records, panels = load(folder), {}
    for name in IN_C:
        if (name, OURS) in records:
            environment, _, label = name.partition("-")
            one = (label, records[name, OURS], UPSTREAMS.get(name))
            panels.setdefault(environment, []).append(one)
    return panels


def panels_in_python(folder: Path) -> dict[str, Lines]:
    """One for each environment, a line for each trainer; the star is what RL Zoo published."""
    records, panels = load(folder), {}
    for name, task in IN_PYTHON.items():
        star = (task.steps / 1e6, PUBLISHED[name]) if name in PUBLISHED else None
        for trainer, label in TRAINERS.items():
            if (name, trainer) in records:
                panels.setdefault(name, []).append((label, records[name, trainer], star))
                star = None
    return panels


def draw(panels: dict[str, Lines], picture: Path) -> None:
    """Write a picture: the mean of the seeds, their range behind it, and stars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = 4
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.2 * columns, 2.6 * rows), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (environment, lines) in zip(axes.flat, panels.items(), strict=False):
        for label, record, star in lines:
            curves = [np.array(run["curve"]) for run in record["seeds"].values() if run["curve"]]
            if not curves:  # no episode ended
                continue
            steps = np.unique(np.concatenate([c[:, 0] for c in curves]))
            scores = np.array([np.interp(steps, c[:, 0], c[:, 1]) for c in curves])
            (drawn,) = axis.plot(steps / 1e6, scores.mean(axis=0), label=label)
            low, high = scores.min(axis=0), scores.max(axis=0)
            axis.fill_between(steps / 1e6, low, high, alpha=0.25, color=drawn.get_color())
            if star:
                axis.plot(*star, "*", color=drawn.get_color(), clip_on=False)
        metric = lines[0][1]["metric"].partition("/")[2]
        axis.set(title=environment, xlabel="million steps", ylabel=metric)
        if any(label for label, _, _ in lines):
            axis.legend(fontsize="small")
    figure.savefig(picture, dpi=100)


def draw_all(folder: Path) -> None:
    """Both pictures, beside the folder, of what there is."""
    for panels, picture in (
        (panels_in_c(folder), folder.with_suffix(".png")),
        (panels_in_python(folder), folder.with_name(f"{folder.name}-gym.png")),
    ):
        if panels:
            draw(panels, picture)
