"""Draw the learning curves of `learning/`: learning.png (C environments) and learning-gym.png."""

import statistics
from pathlib import Path
from typing import NamedTuple

import figures
import numpy as np
from learning_table import Record, load
from learning_tasks import IN_C, IN_PYTHON, PUFFER_MLX, SB3
from learning_zoo import PUBLISHED

UPSTREAM_SCORES = {  # of one run with PufferLib 5.0 each: million steps, score
    "breakout-a": (79.69, 861.7),
    "breakout-c": (108.46, 864.0),
    "breakout-f": (46.8, 853.8),
}
C_CAPTION = (
    "Score against million steps: the median of three or five runs, and their range."
    " Stars: runs with PufferLib 5.0."
)
PYTHON_CAPTION = (
    "Mean return of the last 100 training episodes against million steps: the median of the seeds,"
    " and their range.\nOn the right, CPU seconds of a run of ours."
    " Grey: Stable-Baselines3 with RL Zoo's settings, run here. Stars: what RL Zoo published."
)
NOTES = {"target": "falls at first without\nlearning, too: quick\nepisodes end first"}


class Line(NamedTuple):
    """A learning curve in a panel: the record of a task, and how to draw it."""

    record: Record
    color: str
    label: str = ""
    star: tuple[float, float] | None = None  # million steps and score of a published run


Panels = dict[str, list[Line]]


def panels_in_c(folder: Path) -> Panels:
    """Return panels of learning curves in C environments: a panel per environment.

    A panel has a curve per network or file.
    """
    records, panels = load(folder), {}
    for name in IN_C:
        if (name, PUFFER_MLX) in records:
            environment, _, label = name.partition("-")
            lines = panels.setdefault(environment, [])
            color = figures.MORE[len(lines) % len(figures.MORE)]
            lines.append(Line(records[name, PUFFER_MLX], color, label, UPSTREAM_SCORES.get(name)))
    return panels


def panels_in_python(folder: Path) -> Panels:
    """Return panels of learning curves in Python environments: a panel per environment.

    A panel has a curve per trainer.

    Stars show the scores that RL Zoo published.
    """
    records, panels = load(folder), {}
    for name, task in IN_PYTHON.items():
        star = (task.steps / 1e6, PUBLISHED[name]) if name in PUBLISHED else None
        if (name, SB3) in records:
            panels.setdefault(name, []).append(Line(records[name, SB3], figures.PEER_COLOR))
        if (name, PUFFER_MLX) in records:
            line = Line(records[name, PUFFER_MLX], figures.OUR_COLOR, star=star)
            panels.setdefault(name, []).append(line)
    return panels


def cost(record: Record) -> str:
    """Return the median CPU seconds of a task's runs as text; empty if they weren't measured."""
    spent = [run["CPU s"] for run in record["seeds"].values() if "CPU s" in run]
    return f"{statistics.median(spent):,.0f} s" if spent else ""


def draw(panels: Panels, picture: Path, caption: str) -> None:
    """Draw a picture with a panel for each environment.

    Args:
        panels: Curves by environment.
        picture: PNG file to write.
        caption: Text below the panels.
    """
    with figures.panels(len(panels), picture, caption) as axes:
        for axis, (environment, lines) in zip(axes, panels.items(), strict=True):
            labels = []
            for line in lines:
                runs = [run["curve"] for run in line.record["seeds"].values() if run["curve"]]
                if runs:  # no run if no episode ended
                    end = figures.seeds(
                        axis, [np.array(run) / (1e6, 1) for run in runs], line.color
                    )
                    labels.append(figures.Label(end, line.label, line.color))
                if line.star:
                    axis.plot(*line.star, "*", color=figures.STAR, clip_on=False, zorder=3)
            figures.label(axis, [label for label in labels if label.text])
            took = cost(lines[-1].record) if environment in IN_PYTHON else ""
            figures.title(axis, environment.replace("-v0", ""), took)
            figures.note(axis, NOTES.get(environment, ""))


def draw_all(folder: Path) -> None:
    """Draw both pictures from the existing records, beside the folder."""
    python_picture = folder.with_name(f"{folder.name}-gym.png")
    for panels, picture, caption in (
        (panels_in_c(folder), folder.with_suffix(".png"), C_CAPTION),
        (panels_in_python(folder), python_picture, PYTHON_CAPTION),
    ):
        if panels:
            draw(panels, picture, caption)
