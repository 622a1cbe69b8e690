"""The profiler's arithmetic with a clock of its own: phases add up to the lanes' time, always."""

import random
import threading
import time

import pytest

from puffer_mlx.profiling.phases import PROFILE_EVERY, WAITS, PhaseTimer, Profiler
from puffer_mlx.profiling.timeline import ROLLOUT, TRAIN, Trace


class Clock:
    """Seconds since some time; stands still unless it is moved by `clock.now += seconds`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lane(clock):
    return PhaseTimer("row", clock=clock)


def charge(lane: PhaseTimer, clock: Clock, **seconds: float) -> None:
    for phase, duration in seconds.items():
        clock.now += duration
        lane.lap(phase)


def test_laps_are_charged_and_what_is_before_start_is_nobodys(lane, clock):
    clock.now += 100
    lane.start()
    charge(lane, clock, eval_act=2, eval_env=3)
    charge(lane, clock, eval_act=4)
    assert lane.flush() == {"eval_act": 6, "eval_env": 3}
    assert lane.flush() == {"eval_act": 0, "eval_env": 0}  # a phase stays known
    clock.now += 7
    lane.lap("eval_idle")
    assert lane.flush() == {"eval_act": 0, "eval_env": 0, "eval_idle": 7}


def test_phases_add_up_to_the_lanes_time_whatever_is_done(lane, clock):
    """Laps, parts, profiled epochs and takes in any order: nothing is lost, nothing is negative."""
    rng = random.Random(0)
    phases = ["train_a", "train_b", "train_c", "train_misc", *WAITS]
    whole = taken = 0.0
    total: dict[str, float] = {}
    for _ in range(3000):
        what = rng.randrange(10)
        if what == 0:
            lane.apply_profiled_shares(profiled=rng.random() < 0.3)
        elif what == 1:
            lane.split("train_b", {"train_b": rng.random(), "train_d": rng.random()})
        elif what == 2:
            seconds = lane.flush()
            assert min(seconds.values(), default=0) >= -1e-9
            assert sum(seconds.values()) == pytest.approx(whole - taken, abs=1e-6)
            taken = whole
            for name, value in seconds.items():
                total[name] = total.get(name, 0.0) + value
        else:
            duration = rng.random()
            clock.now += duration
            whole += duration
            lane.lap(rng.choice(phases))
    assert sum(total.values()) == pytest.approx(taken, abs=1e-6) and taken > 900
    assert min(total[name] for name in WAITS) > 50 and total["train_d"] > 10


def test_sampled_shares_divide_the_training_between(lane, clock):
    """A profiled epoch measures its phases; the following ones are divided as it was."""

    def epoch(profiled: bool, seconds: float) -> dict[str, float]:
        lane.start()
        charge(lane, clock, train_wait=5)
        if profiled:
            charge(lane, clock, train_gather=4, train_forward=8, train_misc=seconds - 12)
        else:
            charge(lane, clock, train_misc=seconds)
        lane.apply_profiled_shares(profiled)
        return lane.flush()

    assert epoch(False, 7) == {"train_wait": 5, "train_misc": 7}  # not divided yet
    measured = epoch(True, 16)
    assert measured == {"train_wait": 5, "train_gather": 4, "train_forward": 8, "train_misc": 4}
    for seconds in (32.0, 8.0):
        between = epoch(False, seconds)
        assert between.pop("train_wait") == 5  # waiting is honest in every epoch
        for name, value in between.items():
            assert value == pytest.approx(measured[name] * seconds / 16), name
    assert epoch(True, 36)["train_misc"] == pytest.approx(24)  # measured anew
    assert epoch(False, 9)["train_misc"] == pytest.approx(6)
    charge(lane, clock, train_gather=30)
    lane.apply_profiled_shares(profiled=True)
    charge(lane, clock, train_forward=10)
    lane.apply_profiled_shares(profiled=True)
    charge(lane, clock, train_misc=8)
    lane.apply_profiled_shares(
        profiled=False
    )  # as the last one alone; what was divided before stays so
    assert lane.flush() == {**dict.fromkeys(measured, 0), "train_gather": 30, "train_forward": 18}


def test_a_phase_of_several_is_divided_from_the_last_take_on(lane, clock):
    charge(lane, clock, eval_act=1)
    assert lane.flush() == {"eval_act": 1}
    charge(lane, clock, eval_act=8)
    lane.split("eval_act", {"eval_act": 30, "eval_sample": 10})
    assert lane.flush() == {"eval_act": 6, "eval_sample": 2}
    charge(lane, clock, eval_act=4)
    assert lane.flush() == {"eval_act": 3, "eval_sample": 1}
    lane.split("eval_act", {"eval_act": 0.0})  # nothing was measured
    charge(lane, clock, eval_act=4)
    assert lane.flush() == {"eval_act": 3, "eval_sample": 1}


def test_which_epochs_are_sampled(clock):
    """Of a resumed run its second one too: else its phases would long be unknown."""

    def profiled(epochs, seconds, profiler, begins=False):
        for epoch in epochs:
            clock.now += seconds
            if begins:
                profiler.begin(epoch)
            if profiler.should_profile(epoch):
                assert profiler.should_profile(epoch) and not profiler.should_profile(epoch + 1)
                yield epoch

    epochs, later = range(2 * PROFILE_EVERY + 2), [PROFILE_EVERY + 1, 2 * PROFILE_EVERY + 1]
    assert [*profiled(epochs, 1, Profiler(clock=clock))] == [1, *later]
    assert [*profiled(epochs[4:], 1, Profiler(clock=clock), True)] == [5, *later]
    assert not [*profiled(epochs, 1, Profiler(False, clock))]
    assert [*profiled(range(122), 0.01, Profiler(clock=clock))] == [1, 61, 121]  # short ones
    for enabled, expected in (True, [1, *later]), (False, [1]):  # whose rollouts are waited for
        profiler, due = Profiler(enabled, clock), []
        for epoch in epochs:
            clock.now += 1
            profiler.begin(epoch)
            due += [epoch] if profiler.times_rollout(epoch) else []
        assert due == expected
    patient = Profiler(clock=clock)
    patient.profile_delay = 3.0
    assert [*profiled(epochs, 1, patient)] == later


@pytest.mark.parametrize("enabled", [True, False])
def test_both_lanes_are_taken(clock, enabled):
    times = Profiler(enabled=enabled, clock=clock)
    charge(times.rollout, clock, eval_act=1)
    charge(times.train, clock, train_misc=1)
    times.train.apply_profiled_shares(profiled=True)
    assert times.flush() == ({"eval_act": 1, "train_misc": 2} if enabled else {})
    times.close()  # nothing to write


def test_taking_in_another_thread_loses_nothing():
    """The learner takes while the collector laps: the differences add up to what was charged."""
    lane = PhaseTimer("row")
    done = threading.Event()
    lane.start()
    began = lane._last

    def collect() -> None:
        deadline = time.perf_counter() + 0.3
        while time.perf_counter() < deadline:
            for phase in ("eval_act", "eval_env", "eval_store"):
                lane.lap(phase)
        done.set()

    thread = threading.Thread(target=collect)
    thread.start()
    total = 0.0
    while not done.is_set():
        total += sum(lane.flush().values())
    thread.join()
    total += sum(lane.flush().values())
    assert total == pytest.approx(lane._last - began, abs=1e-6)


# ---- feeding a trace -----------------------------------------------------------------------------


class Spans(Trace):
    """A trace whose spans can be looked at."""

    @property
    def spans(self) -> list[tuple]:
        return [span[:4] for span in self._spans]


@pytest.mark.parametrize("enabled", [True, False])
def test_lanes_feed_a_trace_while_it_records(clock, tmp_path, enabled):
    times = Profiler(enabled, clock)
    times.trace = trace = Spans(tmp_path / "t.json", first=1, epochs=1, clock=clock)
    seen = []
    for epoch in range(3):
        times.begin(epoch)
        times.rollout.start()
        times.train.start()
        assert times.should_profile(epoch) == (epoch == 1)
        clock.now += 2
        times.rollout.lap("eval_act", "acting stream 0")
        clock.now += 1
        times.train.lap("train_misc")
        seen += trace.spans if epoch == 1 else []
        assert bool(times.flush()) == enabled
    at = 1003.0
    assert seen == [
        (ROLLOUT, "eval_act", at, at + 2),
        ("acting stream 0", "eval_act", at, at + 2),
        (TRAIN, "train_misc", at, at + 3),
    ]
    assert trace.path.exists()  # since the third epoch began


def test_a_trace_of_a_run_that_ends_early_is_written_on_closing(clock, tmp_path):
    times = Profiler(clock=clock)
    times.trace = Trace(tmp_path / "t.json", first=0, epochs=100, clock=clock)
    times.begin(0)
    assert not times.trace.path.exists()
    times.close()
    assert times.trace.path.exists() and times.train.trace is None
