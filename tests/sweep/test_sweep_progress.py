"""A sweep's output in a terminal and on a pipe, and its pictures."""

import io
from typing import Any

import pytest

pytest.importorskip("optuna", reason="pip install 'puffer-mlx[sweep]'")

from rich.console import Console
from swept import Formula, drive, formula, open_study, settings

from puffer_mlx.sweep.engine import progress
from puffer_mlx.sweep.engine.progress import SweepProgress

SHOWN = "total_timesteps", "gamma"


def console_of(file: io.StringIO, terminal: bool = False) -> Console:
    return Console(file=file, force_terminal=terminal, width=120, no_color=True)


def swept(terminal: bool):
    """Run a sweep of six runs, of which the third fails and the fifth ends early.

    Return the study, the output and the last status line.
    """
    numbers = iter(range(100))
    file = io.StringIO()

    def start(run, slot, seed) -> Any:
        number = next(numbers)
        fault = "it [broke]" if number == 2 else ""
        return Formula(run, slot, fault=fault, stopped="too little" if number == 4 else "")

    study = open_study("j.log", settings(method="Random", max_runs=5))
    with SweepProgress(study, "a sweep", 5, 1, console_of(file, terminal), SHOWN) as shown:
        drive(study, settings(max_runs=5), start, draw=shown.draw, on_end=shown.on_end)
        return study, file.getvalue(), shown.status(())


def test_pipe_gets_a_line_for_each_run(here):
    study, output, _ = swept(terminal=False)
    lines = output.splitlines()
    score, cost, steps = formula(study.runs()[0].params)[-1]
    assert lines[:2] == [
        "a sweep",
        f"run 1: score {score:.4g}, {cost:.1f} s, {steps / 1000:.1f}K steps"
        f" | the configured values | best {score:.4g} (run 1) | 1 of 5",
    ]
    assert lines[3].startswith("run 3: failed: it [broke] | best ")
    assert lines[3].endswith(" | 2 of 5")
    assert ", ended early: too little | total_timesteps " in lines[5] and "gamma 0." in lines[5]
    assert lines[6].endswith("5 of 5") and len(lines) == 7


def test_terminal_has_a_status_line(here):
    study, output, status = swept(terminal=True)
    assert "\x1b[" in output and "run 3: failed" in output
    total = sum(run.values[1] for run in study.runs() if run.values)
    total += next(r.user_attrs["last"][1] for r in study.runs() if "last" in r.user_attrs)
    minutes, seconds = divmod(int(total), 60)
    assert status == f"5 of 5 runs, 1 ended early, 1 failed, {minutes}m {seconds}s of training"


def test_lines_of_held_out_seeds_count_down(here):
    how = settings(method="Random", max_runs=3, confirm=2)
    study = open_study("j.log", how)
    file = io.StringIO()
    with SweepProgress(study, "a sweep", 3, 1, console_of(file), SHOWN) as shown:
        drive(study, how, draw=shown.draw, on_end=shown.on_end)
    lines = file.getvalue().splitlines()
    left = [line.split("|")[-1].strip() for line in lines[4:]]
    assert left == [f"{n} remaining" for n in range(5, -1, -1)]
    best = study.top_runs()[0]
    assert lines[4].startswith(f"run {study.ordinal(best)}, held-out seeds: median ")


def test_importances_sum_to_1_and_pictures_are_drawn(here):
    how = settings(method="Random", max_runs=8, num_random_samples=8)
    study = open_study("j.log", how)
    assert progress.importances(study) == {}
    drive(study, how)
    parts = [*progress.importances(study).values()]
    assert sum(parts) == pytest.approx(1) and parts == sorted(parts, reverse=True)
    for path in progress.draw_plots(study, here):
        assert path.read_bytes()[:4] == b"\x89PNG"
