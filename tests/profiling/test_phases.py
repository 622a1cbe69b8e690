"""The profiler with a controlled clock: phases add up to the measured time."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from puffer_mlx.profiling.phases import PROFILE_EVERY, WAIT_PHASES, PhaseTimer, Profiler
from puffer_mlx.profiling.timeline import Timeline


class Clock:
    """Stub of a clock, which shows the time ``now`` that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timer(clock):
    return PhaseTimer("row", clock=clock)


def charge(timer: PhaseTimer, clock: Clock, **seconds: float) -> None:
    for phase, duration in seconds.items():
        clock.now += duration
        timer.lap(phase)


def test_a_lap_is_the_time_since_the_previous_one(timer, clock):
    clock.now += 100
    timer.start()
    charge(timer, clock, eval_act=2, eval_env=3)
    charge(timer, clock, eval_act=4)
    assert timer.flush() == {"eval_act": 6, "eval_env": 3}
    assert timer.flush() == {"eval_act": 0, "eval_env": 0}  # a phase stays known
    clock.now += 7
    timer.lap("eval_idle")
    assert timer.flush() == {"eval_act": 0, "eval_env": 0, "eval_idle": 7}


def test_phases_add_up_after_random_calls(timer, clock):
    """No phase is negative."""
    rng = random.Random(0)
    phases = ["train_a", "train_b", "train_c", "train_misc", *WAIT_PHASES]
    whole = taken = 0.0
    total: dict[str, float] = {}
    for _ in range(3000):
        what = rng.randrange(10)
        if what == 0:
            timer.apply_profiled_fractions(profiled=rng.random() < 0.3)
        elif what == 1:
            timer.split("train_b", {"train_b": rng.random(), "train_d": rng.random()})
        elif what == 2:
            seconds = timer.flush()
            assert min(seconds.values(), default=0) >= -1e-9
            assert sum(seconds.values()) == pytest.approx(whole - taken, abs=1e-6)
            taken = whole
            for name, value in seconds.items():
                total[name] = total.get(name, 0.0) + value
        else:
            duration = rng.random()
            clock.now += duration
            whole += duration
            timer.lap(rng.choice(phases))
    assert sum(total.values()) == pytest.approx(taken, abs=1e-6) and taken > 900
    assert min(total[name] for name in WAIT_PHASES) > 50 and total["train_d"] > 10


def test_the_profiled_epochs_shares_divide_the_following_ones(timer, clock):
    def epoch(profiled: bool, **seconds: float) -> dict[str, float]:
        timer.start()
        charge(timer, clock, train_wait=5, **seconds)
        timer.apply_profiled_fractions(profiled)
        return timer.flush()

    assert epoch(False, train_misc=7) == {"train_wait": 5, "train_misc": 7}
    measured = {"train_gather": 4, "train_forward": 8, "train_misc": 4}
    assert epoch(True, **measured) == {"train_wait": 5, **measured}
    between = epoch(False, train_misc=8)
    assert between == {"train_wait": 5, "train_gather": 2, "train_forward": 4, "train_misc": 2}
    assert epoch(True, **{**measured, "train_misc": 24})["train_misc"] == pytest.approx(24)
    assert epoch(False, train_misc=9)["train_misc"] == pytest.approx(6)


def test_split_divides_a_phase_since_the_last_flush(timer, clock):
    charge(timer, clock, eval_act=1)
    assert timer.flush() == {"eval_act": 1}
    charge(timer, clock, eval_act=8)
    timer.split("eval_act", {"eval_act": 30, "eval_sample": 10})
    assert timer.flush() == {"eval_act": 6, "eval_sample": 2}
    charge(timer, clock, eval_act=4)
    assert timer.flush() == {"eval_act": 3, "eval_sample": 1}


EPOCHS = range(2 * PROFILE_EVERY + 2)
LATER = [PROFILE_EVERY + 1, 2 * PROFILE_EVERY + 1]


@pytest.mark.parametrize(
    ("epochs", "seconds", "delay", "expected"),
    [
        (EPOCHS[4:], 1, 0.0, [5, *LATER]),  # a resumed run's second epoch
        (range(122), 0.01, 0.0, [1, 61, 121]),  # short epochs
        (EPOCHS, 1, 3.0, LATER),
    ],
)
def test_some_epochs_are_profiled(clock, epochs, seconds, delay, expected):
    profiler = Profiler(clock=clock)
    profiler.profile_delay = delay or profiler.profile_delay
    profiled = []
    for epoch in epochs:
        clock.now += seconds
        profiler.begin_epoch(epoch)
        profiled += [epoch] if profiler.should_profile(epoch) else []
    assert profiled == expected


def test_a_disabled_profiler_reports_no_phases(clock):
    profiler = Profiler(False, clock)
    charge(profiler.train, clock, train_misc=1)
    assert profiler.flush() == {}
    assert not any(profiler.should_profile(epoch) for epoch in EPOCHS)


def test_flushing_in_another_thread_loses_no_time():
    timer = PhaseTimer("row")
    timer.start()
    began = timer._last

    def collect() -> None:
        for _ in range(20_000):
            timer.lap("eval_act")
            timer.lap("eval_env")

    total = 0.0
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(collect)
        while not job.done():
            total += sum(timer.flush().values())
    total += sum(timer.flush().values())
    assert total == pytest.approx(timer._last - began, abs=1e-6)


# ---- feeding a timeline --------------------------------------------------------------------------


def test_closing_writes_the_trace_of_a_run_that_ends_early(clock, tmp_path):
    profiler = Profiler(clock=clock)
    profiler.timeline = Timeline(tmp_path / "t.json", first=0, epochs=100, clock=clock)
    profiler.begin_epoch(0)
    assert not profiler.timeline.path.exists()
    profiler.close()
    assert profiler.timeline.path.exists() and profiler.train.timeline is None
