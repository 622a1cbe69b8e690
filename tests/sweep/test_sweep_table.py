"""What a person sees of a sweep, in a terminal and on a pipe, and its pictures."""

import io
from typing import Any

import pytest

pytest.importorskip("optuna", reason="pip install 'puffer-mlx[sweep]'")

from rich.console import Console
from swept import Formula, drive, formula, open_study, settings

from puffer_mlx.sweep.engine import table
from puffer_mlx.sweep.engine.table import Screen

SHOWN = "total_timesteps", "gamma"


def swept(terminal: bool, width: int = 120, height: int = 40, shown=SHOWN):
    """A sweep of six runs, the third failing and the fifth ended early; the last lines shown."""
    numbers = iter(range(100))
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, height=height, no_color=True)

    def start(run, place, seed) -> Any:
        number = next(numbers)
        return Formula(
            run,
            place,
            fault="it [broke]" if number == 2 else "",
            stopped="too little" if number == 4 else "",
        )

    study = open_study("j.log", settings(method="Random", max_runs=5))
    with Screen(study, "a sweep", 5, 1, console, shown) as screen:
        drive(study, settings(max_runs=5), start, draw=screen.draw, ended=screen.ended)
        picture = screen.picture()
    if terminal:  # the same once more, without what a terminal obeys
        assert "\x1b[" in file.getvalue()
        file = io.StringIO()
        Console(file=file, width=width, height=height).print(picture)
    return study, file.getvalue().splitlines()


def test_on_a_pipe_a_line_for_each_run(here):
    study, lines = swept(terminal=False)
    score, cost, steps = formula(study.runs()[0].params)[-1]
    assert lines[:2] == [
        "a sweep",
        f"run 1: score {score:.4g}, {cost:.1f} s, {steps / 1000:.1f}K steps"
        f" | the configuration's own values | best {score:.4g} (run 1) | 1 of 5",
    ]
    assert lines[3].startswith("run 3: failed: it [broke] | best ")
    assert lines[3].endswith(" | 2 of 5")
    assert ", ended early: too little | total_timesteps " in lines[5] and "gamma 0." in lines[5]
    assert lines[6].endswith("5 of 5") and len(lines) == 7


def test_in_a_terminal_a_table(here):
    study, lines = swept(terminal=True)
    total = sum(run.values[1] for run in study.runs() if run.values)
    total += next(r.user_attrs["last"][1] for r in study.runs() if "last" in r.user_attrs)
    minutes, seconds = divmod(int(total), 60)
    facts = f"5 of 5 runs, 1 ended early, 1 failed, {minutes}m {seconds}s of training"
    assert lines[:2] == ["a sweep", facts]
    assert lines[2].split() == ["run", "score", "seconds", "steps", *SHOWN]
    best = study.best()
    assert best
    assert lines[3].split()[:3] == [str(study.ordinal(best)), "best", f"{best.values[0]:.4g}"]
    front = [line.split()[0] for line in lines[4:] if " front " in line]
    assert front == [str(study.ordinal(run)) for run in study.front()[::-1][1:]]
    assert lines[-1].startswith("run 3 failed: it [broke]")


def test_held_out_seeds_are_in_the_table(here):
    how = settings(method="Random", max_runs=3, confirm=2)
    study = open_study("j.log", how)
    file = io.StringIO()
    with Screen(study, "a sweep", 3, 1, Console(file=file, width=120), SHOWN) as screen:
        drive(study, how, draw=screen.draw, ended=screen.ended)
    lines = file.getvalue().splitlines()
    assert [line.split("|")[-1].strip() for line in lines[4:]] == [
        f"{n} to go" for n in range(5, -1, -1)
    ]
    best = study.few()[0]
    (score,) = {f"{each:.4g}" for each in study.held_out(best).scores}
    words = f"median {score}, lowest {score} of"
    assert lines[4] == f"run {study.ordinal(best)}, held-out seeds: {words} 1 | 5 to go"
    console = Console(file=(picture := io.StringIO()), width=120, height=40)
    console.print(screen.picture())
    rows = picture.getvalue().splitlines()[3:]
    assert f" best: {words} 2 " in rows[0] and [" of 2 " in row for row in rows] == [True] * 3


@pytest.mark.parametrize(("width", "height"), [(60, 20), (80, 9), (80, 24), (160, 50)])
def test_a_table_for_any_terminal(here, width, height):
    """Numbered one after the other; no number is cut off, and old runs go where there's no room."""
    shown = "total_timesteps", "gamma", "learning_rate", "minibatch_size"
    study, lines = swept(True, width, height, shown)
    assert len(lines) <= height and max(map(len, lines)) <= width
    more = [line for line in lines if line.endswith(" more")]
    rows = [line.split() for line in lines[3:-1] if line not in more]
    states = {int(row[0]): row[1] for row in rows}
    assert {*states.values()} <= {"best", "front", "behind", "ended"}
    assert rows[0][1] == "best" and len(states) == len(rows)
    if height == 9:
        assert more in (["2 more"], ["3 more"])
        return
    assert sorted(states) == [1, 2, 4, 5, 6] and states[5] == "ended"  # the third failed
    text = " ".join(lines)
    assert "…" not in text and all(f"{run.values[0]:.4g}" in text for run in study.front())
    there = [name for name in shown if name in lines[2].split()]
    assert there == [*shown[: len(there)]] and len(there) >= (1, 2, 4)[width // 80]


def test_pictures_and_what_mattered(here, monkeypatch):
    how = settings(method="Random", max_runs=8, num_random_samples=8)
    study = open_study("j.log", how)
    assert table.importances(study) == {}
    drive(study, how)
    parts = [*table.importances(study).values()]
    assert sum(parts) == pytest.approx(1) and parts == sorted(parts, reverse=True)
    if table.can_draw():
        assert [path.name for path in table.draw(study, here)] == ["front.png", "importances.png"]
        for name in table.FRONT, table.IMPORTANCES:
            assert (here / name).read_bytes()[:4] == b"\x89PNG"
        best = study.best()
        (words,) = [t.get_text() for t in table.front(study).axes[0].texts]
        assert best and words == f"best: run {study.ordinal(best)}, {best.values[0]:.4g}"
    monkeypatch.setattr(table, "can_draw", lambda: False)
    assert table.draw(study, here) == []
