"""What a run's view tells from its records; how the terminal looks is in test_train.py."""

import numpy as np
import pytest

from puffer_mlx.view import POINTS, View


def record(epoch: int, score: float | None = None, n: float = 1.0, **more: float):
    """An epoch of 100 steps and a quarter of a second, and as much between two of them."""
    logs = {"agent_steps": 100.0 * epoch, "uptime": 0.5 * epoch, "epoch": epoch, "SPS": 400.0}
    logs |= more
    return logs if score is None else {**logs, "env/score": score, "env/n": n}


def view(*records, total=1000) -> View:
    shown = View({"Environment": "toy"}, total)
    for logs in records:
        shown.take(logs)
    return shown


def test_facts():
    shown = view(record(1, SPS=50.0, **{"util/cpu_mem_gb": 1.5}))
    shown.measure()
    assert shown.facts() == {
        "Environment": "toy",
        "Steps": "100 of 1.0K (10 %)",
        "SPS": "50",
        "Epoch": "1",
        "Uptime": "0s",
        "Left": "18s",
        "Memory": "1.50 GiB",
    }


def test_speed_is_measured_between_two_looks():
    """With everything that was between; the first look takes the record's own word."""
    shown = view(record(1, SPS=7.0))
    shown.measure()
    assert shown.speed == 7
    for epoch in range(2, 5):
        shown.take(record(epoch, SPS=7.0))
    shown.measure()
    assert shown.speed == pytest.approx(300 / 1.5) and shown.left == "3s"
    shown.measure()  # no time has passed
    assert shown.speed == pytest.approx(200)


def test_without_a_speed_the_end_is_unknown():
    shown = view({"agent_steps": 5})
    shown.measure()
    assert shown.left == "unknown" and shown.facts()["Uptime"] == "0s"


def test_phases_are_wholes_and_their_parts_with_shares_of_the_epoch():
    shown = view(
        record(1, **{"perf/train": 0.75, "perf/rollout": 0.25, "perf/eval_env": 0.1, "perf/odd": 9})
    )
    assert [tuple(phase) for phase in shown.phases()] == [
        ("Rollout", "", 0.25, 0.25),
        ("environment", "rollout", 0.1, 0.1),
        ("Train", "", 0.75, 0.75),
    ]
    assert view(record(1)).phases() == []


def test_losses_and_statistics_stay_until_there_are_newer_ones():
    shown = view(record(1, 2.5, 1234.0, **{"loss/total": 0.125}), record(2, **{"loss/total": 0.25}))
    assert shown.losses() == {"total": "0.2500"}
    assert shown.statistics() == {"score": "2.500", "n": "1.2K"}


def test_the_score_curve_has_points_where_episodes_ended():
    shown = view(record(1), record(2, 4.0), record(3), record(4, 5.0, 3.0))
    assert shown.score_curve() == ([200, 400], [4.0, 5.0])


def test_return_stands_in_for_a_score():
    shown = view({**record(1), "env/episode_return": 3.0, "env/n": 2.0, "env/other": 1.0})
    assert shown.score_curve() == ([100], [3.0])
    assert view({**record(1), "env/other": 1.0, "env/n": 2.0}).score_curve() == ([], [])


def test_the_speed_curve_is_of_the_epochs_alone():
    """Without the first, which compiles, and without the time between them."""
    shown = view(record(1, SPS=1.0), record(2), record(4, SPS=50.0))
    assert shown.speed_curve() == ([200, 400], [400.0, 50.0])


def test_an_evaluation_adds_nothing_to_curves():
    shown = view(record(1, 4.0), record(2, 5.0), {"agent_steps": 900.0, "env/score": 9.0})
    shown.take({"env/score": 9.0, "SPS": 1.0})
    assert shown.score_curve() == ([100, 200], [4.0, 5.0])
    assert shown.speed_curve()[0] == [200]
    assert shown.statistics()["score"] == "9.000"


def test_a_long_run_keeps_its_shape_in_bounded_memory():
    """Merged points are means over episodes and over time."""
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 5, 10 * POINTS).tolist()
    scores = np.linspace(0, 100, len(counts)).tolist()
    speeds = [50.0, 100.0, 100.0, 100.0] * (len(counts) // 4)  # 400 steps in 5 s
    shown = view(
        *(record(i + 1, scores[i] if n else None, n, SPS=speeds[i]) for i, n in enumerate(counts)),
        total=100 * len(counts),
    )
    steps, curve = shown.score_curve()
    assert POINTS // 2 < len(steps) <= POINTS
    assert steps == sorted(steps) and steps[-1] == 100 * len(counts)
    true = np.interp(steps, 100 * np.arange(1, 1 + len(counts)), scores)
    assert 0 < np.abs(true - curve).max() < 0.5
    at, speeds = shown.speed_curve()
    assert np.allclose(speeds, 80) and len(set(np.diff(at))) == 1


def test_merging_weighs_by_episodes():
    shown = view(*(record(i + 1, float(i % 2), 1 + 3 * (i % 2)) for i in range(POINTS + 1)))
    steps, curve = shown.score_curve()
    assert len(steps) == POINTS // 2 + 1
    assert steps[:2] == [200, 400] and set(curve[:-1]) == {4 / 5}
    assert (steps[-1], curve[-1]) == (100 * (POINTS + 1), 0.0)  # the odd one, on its own
    assert set(shown.speed_curve()[1]) == {400.0}
    shown.take(record(POINTS + 2, 1.0, 4.0))
    assert shown.score_curve()[1][-1] == 4 / 5
