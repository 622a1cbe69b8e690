"""A run's view of its records, and the terminal's picture of it."""

import io
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from puffer_mlx.display import dashboard as module
from puffer_mlx.display.bottleneck import PerfContext
from puffer_mlx.display.dashboard import Dashboard
from puffer_mlx.display.dashboard_layout import draw_curve
from puffer_mlx.display.run_view import MAX_POINTS, PHASES, RunState
from puffer_mlx.tracking.scores import MEAN_SCORE


def record(epoch: int, score: float | None = None, n: float = 1.0, **more: float):
    """Return an imitated epoch's record: 100 steps in 0.25 s, and 0.25 s until the next one."""
    logs = {"agent_steps": 100.0 * epoch, "uptime": 0.5 * epoch, "epoch": epoch, "SPS": 400.0}
    logs |= more
    return logs if score is None else {**logs, "env/score": score, "env/n": n}


def view(*records, total=1000) -> RunState:
    shown = RunState({"Environment": "toy"}, total)
    for logs in records:
        shown.update(logs)
    return shown


@pytest.mark.parametrize(
    ("metric", "shown", "curve"),
    [
        ("env/score", "training score", [2.0]),
        ("loss/total", "training loss/total", [7.0]),
    ],
)
def test_the_score_shown_is_the_metric_that_ranks_policies(metric, shown, curve):
    run = RunState({}, 1000, metric)
    run.update(record(1, 2.0, **{"env/perf": 0.5, "loss/total": 7.0}))
    assert [*run.scores()] == [shown]
    assert run.score_curve() == ([100.0], curve)


def test_the_first_epoch_of_a_start_counts_for_no_speed():
    """It compiles."""
    shown = view(record(1, SPS=7.0))
    shown.update_speed()
    assert shown.progress() == {"steps": "100 of 1.0K (10 %)"}
    for epoch in range(2, 5):
        shown.update(record(epoch))
    shown.update_speed()
    assert shown.progress() == {"steps": "400 of 1.0K (40 %)", "SPS": "200", "left": "3s"}


def test_phases_are_wholes_and_parts_with_shares_of_the_epoch():
    times = {"train": 0.75, "rollout": 0.25, "eval_env": 0.1, "odd": 9.0}
    shown = view(record(1, **spent(**times)))
    assert [tuple(phase) for phase in shown.phases()] == [
        ("Rollout", "", 0.25, 0.25),
        ("environment", "rollout", 0.1, 0.1),
        ("Train", "", 0.75, 0.75),
    ]


def spent(**seconds: float) -> dict[str, float]:
    return {f"perf/{name}": value for name, value in seconds.items()}


def test_a_phase_missing_in_the_latest_record_took_no_time():
    shown = view(record(1, **spent(rollout=0.5, eval_act=0.5, train=0.5)))
    shown.update({"env/score": 1.0})
    assert [phase.seconds for phase in shown.phases()] == [0.5, 0.5, 0.5]
    shown.update(record(2, **spent(train=0.25)))
    assert [phase.seconds for phase in shown.phases()] == [0, 0, 0.25]


def test_overlapped_halves_have_shares_of_the_same_epoch():
    shown = view(
        record(
            1,
            **spent(rollout=0.6, eval_act=0.4, eval_env=0.2, eval_idle=0.2),
            **spent(train=0.7, train_forward=0.7, train_wait=0.1),
        )
    )
    shares = {(phase.parent, phase.label): phase.fraction for phase in shown.phases()}
    assert shares["", "Rollout"] == pytest.approx(0.75)
    assert shares["", "Train"] == pytest.approx(0.875)
    for side in ("rollout", "train"):
        parts = sum(share for (parent, _), share in shares.items() if parent == side)
        assert parts == pytest.approx(1)


def test_small_phases_become_misc_where_there_is_no_room():
    """Small over the whole run: the shown phases don't change from record to record."""
    parts = {"eval_act": 0.3, "eval_store": 0.02, "eval_copy_out": 0.01, "eval_misc": 0.04}
    more = {"train_forward": 0.4, "train_gather": 0.03, "train_wait": 0.001, "eval_idle": 0.002}
    first = record(1, **spent(rollout=0.37, train=0.43, **parts, **more))
    shown = view(first, {**first, **spent(eval_store=0.5, eval_act=0.0)})

    def rows(most):
        return {(phase.parent, phase.label): phase.seconds for phase in shown.phases(most)}

    whole = rows(None)
    assert len(whole) == 10 and whole == rows(10)
    labels = [label for _, label in rows(6)]
    assert labels == ["Rollout", "idle", "Train", "forward", "misc", "wait"]
    assert all(len(rows(most)) <= most for most in range(6, 10))


@pytest.mark.parametrize(
    ("logs", "words"),
    [
        ({"env/score": 2.5, "env/n": 1}, ["training score 2.500 (1 episode)", "length 7.000"]),
        (  # return and length are of fewer episodes
            {
                "env/score": 9,
                "env/episode_return": 9,
                MEAN_SCORE: 2.5,
                "eval/score": 7.25,
                "env/n": 1,
            },
            ["training score 2.500 (last 100)", "evaluation score 7.250 (1 episode)"],
        ),
        (
            {"env/episode_return": 2.5, "eval/episode_return": 7, "env/n": 4, "eval/n": 2000.0},
            [
                "training return 2.500 (4 episodes)",
                "evaluation return 7.000 (2.0K episodes)",
                "length 7.000",
            ],
        ),
        ({}, ["no episode has ended yet"]),
    ],
)
def test_numbers_of_a_line_are_of_the_same_episodes(logs, words):
    dashboard = Dashboard({}, 1000, Console(file=io.StringIO()))
    length = {"env/episode_length": 7.0} if logs else {}
    dashboard.update({**record(1), **logs, **length})
    assert dashboard.line().split(" | ")[1:] == words
    dashboard.run.update(record(2))
    dashboard.run.update_speed()
    assert ", none since)" in dashboard.line() or not logs


def test_skipped_steps_and_differences_are_shown_only_if_there_are_some():
    fine = {"loss/total": 0.5, "loss/skipped_steps": 0.0, "loss/first_ratio_error": 2e-6}
    assert dict(view(record(1, **fine)).losses()) == {"total": "0.5000"}
    odd = fine | {"loss/skipped_steps": 3.0, "loss/first_ratio_error": 0.25}
    assert dict(view(record(1, **odd)).losses()) == {
        "total": "0.5000",
        "skipped minibatches": "3",
        "acting vs training": "0.25 apart",
    }


def test_an_evaluation_adds_nothing_to_curves():
    shown = view(record(1, 4.0), record(2, 5.0), {"agent_steps": 900.0, "env/score": 9.0})
    shown.update({"env/score": 9.0, "SPS": 1.0})
    assert shown.score_curve() == ([100, 200], [4.0, 5.0])
    assert shown.speed_curve()[0] == [200]
    assert dict(shown.statistics())["score"] == "9.000"


def test_curves_of_a_long_run_keep_their_shape_in_bounded_memory():
    """Merged points are means over episodes and over time."""
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 5, 10 * MAX_POINTS).tolist()
    scores = np.linspace(0, 100, len(counts)).tolist()
    speeds = [50.0, 100.0, 100.0, 100.0] * (len(counts) // 4)  # 400 steps in 5 s
    shown = view(
        *(record(i + 1, scores[i] if n else None, n, SPS=speeds[i]) for i, n in enumerate(counts)),
        total=100 * len(counts),
    )
    steps, curve = shown.score_curve()
    assert MAX_POINTS // 2 < len(steps) <= MAX_POINTS
    assert steps == sorted(steps) and steps[-1] == 100 * len(counts)
    true = np.interp(steps, 100 * np.arange(1, 1 + len(counts)), scores)
    assert 0 < np.abs(true - curve).max() < 0.5
    at, speeds = shown.speed_curve()
    assert np.allclose(speeds, 80) and len(set(np.diff(at))) == 1


# ---- the terminal's picture ----------------------------------------------------------------------

CONDITIONS = PerfContext("cpu", "cpu", False, "fp32", 4, 2, 2, 4096, 8192, 32)


def full(**more: float) -> dict[str, float]:
    """Return a record with every metric that the dashboard shows."""
    names = [name for name, _, parent in PHASES if parent]
    losses = ("policy", "value", "entropy", "total", "old_kl", "kl", "clipfrac")
    return {
        **record(3, 1.0, 5.0, **spent(**dict.fromkeys(names, 0.01), rollout=0.07, train=0.1)),
        **{f"loss/{name}": 0.1 for name in losses},
        **{f"env/{name}": 0.5 for name in ("perf", "episode_return", "episode_length")},
        **more,
    }


def terminal(width: int, height: int, live: bool = True) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    how: Any = {"force_terminal": live, "color_system": None}
    return Console(file=file, width=width, height=height, **how), file


def shown_by(logs: dict[str, float], total: int = 10**6) -> Dashboard:
    """Return a dashboard that has shown one record, with long texts about the run."""
    facts = {"Environment": "gym:ALE/Breakout-v5", "Parameters": "1.2M", "Run": "1" * 13}
    facts |= {"Agents": "4,096 in 2 groups", "Device": "CPU, OpenBLAS 0.3.31.188.0"}
    dashboard = Dashboard(facts, total, context=CONDITIONS)
    dashboard.run.update(logs)
    dashboard.run.update_speed()
    dashboard.run.speed = logs["SPS"]
    return dashboard


def drawn(dashboard: Dashboard, width: int, height: int) -> list[str]:
    """Return the lines that a dashboard prints on a terminal."""
    console, file = terminal(width, height)
    console.print(dashboard.picture())
    return file.getvalue().splitlines()


def picture(height: int, more: dict[str, float]) -> list[str]:
    return drawn(shown_by(full(**more)), 80, height)


@pytest.mark.parametrize(("width", "beside"), [(60, True), (50, False)])
def test_losses_are_beside_the_phases_if_they_fit(width, beside):
    lines = drawn(shown_by(full()), width, 50)
    assert any("Time of an epoch" in line and "Losses" in line for line in lines) == beside


NUMBERS = {
    "long": (
        {"env/score": -123456.789, "agent_steps": 999.9e9, "SPS": 99.9e6},
        10**12,
        ("score -123456.789", "steps 999.9B of 1.0T (100 %)", "SPS 99.9M"),
    ),
    "python": (
        {"env/score": 9.0, MEAN_SCORE: 4.5},
        10**6,
        ("training score 4.500 (last 100)", "SPS 400"),
    ),
    "none": ({"env/score": None}, 10**6, ("no episode has ended yet", "SPS 400")),
}
WINDOWS = {"width": st.integers(40, 160), "height": st.integers(10, 60)}
windows = settings(max_examples=20)


@windows
@given(**WINDOWS)
@pytest.mark.parametrize("name", NUMBERS)
def test_score_steps_and_speed_are_whole_in_any_terminal(name, width, height):
    more, total, words = NUMBERS[name]
    logs = {name: value for name, value in full(**more).items() if value is not None}
    if "env/score" not in logs:
        logs = {name: value for name, value in logs.items() if not name.startswith("env/")}
    lines = drawn(shown_by(logs, total=total), width, height)
    assert len(lines) <= height and {len(line) for line in lines} == {width}
    for word in words:
        assert any(word in line for line in lines), word


SELF_PLAY = {
    **{"env/elo": 123.4, "pool/size": 12, "pool/num_banks": 2, "pool/swaps": 7.0},
    **{"pool/winrate": 0.725, "pool/opponent_elo": -80.0, "pool/winrate_bank_0": 0.7},
    **{"env/historical_winrate": 0.725, "env/historical_winrate_bank_0": 0.7},
}


@windows
@given(**WINDOWS)
def test_ratings_of_self_play_are_whole_in_any_terminal(width, height):
    lines = drawn(shown_by(full(**SELF_PLAY)), width, height)
    assert len(lines) <= height and {len(line) for line in lines} == {width}
    words = " ".join(" ".join(lines).replace("│", " ").split())
    assert "Self-play Elo +123 opponents -80 win rate 0.725 pool 12 swaps 7" in words
    assert " elo " not in words and "historical" not in words


def test_the_curve_comes_before_times_and_losses():
    low = picture(24, {"perf/eval_env": 0.5})
    high = drawn(shown_by(full()), 80, 60)
    assert len(low) == 24 and {len(line) for line in low + high} == {80}
    starts = "score 1.000", "Training score over", "Time of an epoch   ", "Why slow?", "perf  "
    found = [next(i for i, line in enumerate(low) if words in line) for words in starts]
    assert found == sorted(found)
    assert sum(" ms " in line for line in high) == len(PHASES) > sum(" ms " in x for x in low) > 2


def test_a_curve_is_drawn_in_blocks():
    """Here half of the steps are done. The axis begins at 0 or below."""
    steps = [1.0, 2.0, 3.0, 4.0]
    lines = [line.plain for line in draw_curve("Score", (steps, steps), 8, 10, 3)]
    assert lines == ["Score     ", "4   ▄█    ", "0 ▄███    "]
    lines = [line.plain for line in draw_curve("", (steps[:2], [-8.0, -4.0]), 4, 7, 3)]
    assert lines == ["       ", "-4  █  ", "-8 ▁█  "]


@pytest.mark.parametrize("live", [True, False])
def test_a_long_epoch_shows_its_progress(monkeypatch, live):
    monkeypatch.setattr(module, "SILENT_SECONDS", 1e9)  # of its own thread
    texts = iter(["epoch 1: rollout 10 %", "", "epoch 4: training 20 %", "not shown"])
    console, file = terminal(80, 24, live)
    with Dashboard({"Environment": "toy"}, 1000, console, None, lambda: next(texts)) as dashboard:
        monkeypatch.setattr(module, "SILENT_SECONDS", 0.0)
        monkeypatch.setattr(module, "SILENT_LINE_SECONDS", 0.0)
        dashboard.refresh()
        assert "epoch 1: rollout 10 %" in file.getvalue()
        dashboard.refresh()  # between two epochs
        dashboard.update(record(3, 1.0), last=True)
        file.truncate(file.seek(0))
        dashboard.refresh()
        assert "epoch 4: training 20 %" in file.getvalue()
        assert ("training score 1.000" in file.getvalue()) == live  # the whole picture
        file.truncate(file.seek(0))
        dashboard.update(record(4, 1.0), last=True)
        assert "epoch 4:" not in file.getvalue()
        monkeypatch.setattr(module, "SILENT_SECONDS", 1e9)
        monkeypatch.setattr(module, "SILENT_LINE_SECONDS", 1e9)
        dashboard.refresh()
    assert next(texts) == "not shown"


def test_a_resized_window_is_cleared_and_drawn_again(monkeypatch):
    monkeypatch.setattr(module, "SILENT_SECONDS", 1e9)  # of its own thread
    console, file = terminal(80, 24)
    with Dashboard({}, 10**6, console, CONDITIONS) as dashboard:
        dashboard.update(full(), last=True)
        assert "\x1b[24;1H" not in file.getvalue()
        for width, height, how in (60, 20, "refresh"), (100, 30, "record"), (80, 24, "refresh"):
            file.truncate(file.seek(0))
            console.size = (width, height)
            if how == "refresh":
                dashboard.refresh()
            else:
                dashboard.update(full(), last=True)
            _, *wiped, rest = re.split(r"\x1b\[(\d+);1H\x1b\[2K", file.getvalue())
            assert [int(row) for row in wiped if row] == [*range(height, 0, -1)]
            assert "score 1.000" in rest and len(rest.splitlines()) <= height + 1
        file.truncate(file.seek(0))
        dashboard.update(full(), last=True)
        assert "1H" not in file.getvalue()  # the same size: drawn in its place


def test_the_last_picture_leaves_room_for_the_next_lines():
    console, file = terminal(80, 24)
    with Dashboard({}, 10**6, console, CONDITIONS) as dashboard:
        dashboard.update(full(), last=True)
        file.truncate(file.seek(0))
    last = file.getvalue().rpartition("puffer_mlx")[2]  # drawn twice at the end
    assert "score 1.000" in last and "Training score over" in last
    assert len(last.splitlines()) <= 24 - 10


def test_one_line_says_why_a_run_is_slow():
    more = {"perf/eval_env": 0.5}
    (line,) = [line for line in picture(40, more) if "Why slow?" in line]
    assert "environment 7" in line and "--vec.num-threads 4 (now 2)" in line
    assert not any("slow" in line for line in picture(40, {**more, "epoch": 1.0}))  # it compiles


def test_plain_output_ends_with_the_reason_why_it_is_slow():
    console, file = terminal(100, 40, live=False)
    with Dashboard({}, 1000, console, CONDITIONS) as dashboard:
        dashboard.update(full(**{"perf/eval_env": 0.5}), last=True)
    last = file.getvalue().splitlines()[-1]
    assert last.startswith("why slow? environment 7") and last.endswith("(now 2)")


def test_messages_are_wrapped_between_words_in_a_terminal():
    console, file = terminal(40, 24)
    Dashboard({}, 1000, console).message("evaluation of the final weights: score 1.000, return 2.0")
    first, second = file.getvalue().splitlines()
    assert first == "evaluation of the final weights: score" and second == "  1.000, return 2.0"
