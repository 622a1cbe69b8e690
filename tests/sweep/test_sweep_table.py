"""What a person sees of a sweep, in a terminal and on a pipe, and its pictures."""

import io
from typing import Any

import pytest

pytest.importorskip("optuna", reason="pip install 'puffer-mlx[sweep]'")

from rich.console import Console
from swept import Formula, drive, formula, open_study, settings

from puffer_mlx.sweep.engine import report
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

    made = open_study("j.log", settings(method="Random", max_runs=5))
    with Screen(made, "a sweep", 5, 1, console, shown) as screen:
        drive(made, settings(max_runs=5), start, draw=screen.draw, ended=screen.ended)
        picture = screen.picture()
    if terminal:  # the same once more, without what a terminal obeys
        assert "\x1b[" in file.getvalue()
        file = io.StringIO()
        Console(file=file, width=width, height=height).print(picture)
    return made, file.getvalue().splitlines()


def test_on_a_pipe_a_line_for_each_run(here):
    made, lines = swept(terminal=False)
    runs = made.runs()
    assert lines[0] == "a sweep"
    score, cost, steps = formula(runs[0].params)[-1]
    assert lines[1] == (
        f"run 1: score {score:.4g}, {cost:.1f} s, {steps / 1000:.1f}K steps"
        f" | the configuration's own values | best {score:.4g} (run 1) | 1 of 5"
    )
    assert lines[3].startswith("run 3: failed: it [broke] | best ")
    assert lines[3].endswith(" | 2 of 5")
    assert ", ended early: too little | total_timesteps " in lines[5] and "gamma 0." in lines[5]
    assert lines[6].endswith("5 of 5") and len(lines) == 7


def test_in_a_terminal_a_table(here):
    made, lines = swept(terminal=True)
    assert lines[0] == "a sweep"
    total = sum(run.values[1] for run in made.runs() if run.values)
    total += next(r.user_attrs["last"][1] for r in made.runs() if "last" in r.user_attrs)
    minutes, seconds = divmod(int(total), 60)
    assert lines[1] == (f"5 of 5 runs, 1 ended early, 1 failed, {minutes}m {seconds}s of training")
    assert lines[2].split() == ["run", "score", "seconds", "steps", *SHOWN]
    best = made.best()
    number = made.ordinal(best) if best else 0
    assert best and lines[3].split()[:3] == [str(number), "best", f"{best.values[0]:.4g}"]
    front = [line.split()[0] for line in lines[4:] if " front " in line]
    assert front == [str(made.ordinal(run)) for run in made.front()[::-1][1:]]
    assert lines[-1].startswith("run 3 failed: it [broke]")


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (160, 50)])
def test_a_table_for_any_terminal(here, size):
    """Numbered one after the other; no run is missing, and no number is cut off."""
    shown = "total_timesteps", "gamma", "learning_rate", "minibatch_size"
    made, lines = swept(True, size[0], size[1], shown)
    assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]
    rows = [line.split() for line in lines[3:-1]]
    assert sorted(int(row[0]) for row in rows) == [1, 2, 4, 5, 6]  # the third failed
    said = {int(row[0]): row[1] for row in rows}
    assert said[5] == "ended" and {*said.values()} <= {"best", "front", "behind", "ended"}
    text = " ".join(lines)
    assert "…" not in text and all(f"{run.values[0]:.4g}" in text for run in made.front())
    there = [name for name in shown if name in lines[2].split()]
    assert there == [*shown[: len(there)]] and len(there) >= (1, 2, 4)[size[0] // 80]


def test_a_table_leaves_out_old_runs_where_there_is_no_room(here):
    _, lines = swept(True, 80, 9)
    assert len(lines) <= 9 and " best " in lines[3]
    assert any("2 more" in line or "3 more" in line for line in lines)


def test_pictures_and_what_mattered(here, monkeypatch):
    how = settings(method="Random", max_runs=8, num_random_samples=8)
    made = open_study("j.log", how)
    assert report.importances(made) == {}
    drive(made, how)
    known = report.importances(made)
    assert sum(known.values()) == pytest.approx(1) and [*known.values()] == sorted(
        known.values(), reverse=True
    )
    if report.can_draw():
        assert [path.name for path in report.draw(made, here)] == ["front.png", "importances.png"]
        assert all(
            (here / name).read_bytes()[:4] == b"\x89PNG"
            for name in (report.FRONT, report.IMPORTANCES)
        )
        best = made.best()
        (words,) = [t.get_text() for t in report.front(made).axes[0].texts]
        number = made.ordinal(best) if best else 0
        assert words == f"best: run {number}, {best.values[0]:.4g}" if best else ""
    monkeypatch.setattr(report, "can_draw", lambda: False)
    assert report.draw(made, here) == []
