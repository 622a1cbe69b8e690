"""Measure how long each phase of an epoch takes, in the rollout thread and in the training thread.

Rollout and training may run in two threads, so each has a separate ``PhaseTimer``. ``lap(name)``
charges the time since the previous lap to phase ``name``, so the phases of a timer add up to its
thread's time.

MLX is lazy: work runs when it is evaluated, so a lap is meaningful only right after an evaluation.
A rollout evaluates at every step, and ``split`` divides the time of one evaluation among phases.
Training evaluates once, at its end. Some epochs are *profiled*: their training evaluates after each
phase to measure it. ``apply_profiled_fractions`` divides the training time of the other epochs in
the same proportions.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable

from puffer_mlx.profiling.timeline import ROLLOUT, TRAIN, Timeline

PROFILE_EVERY = 20  # epochs
MIN_INTERVAL_S = 0.5  # seconds between profiled epochs: profiling triples a short epoch's duration
PROFILE_DELAY_S = 3.0  # seconds before the first profiled epoch, if it compiles other functions
WAIT_PHASES = ("eval_idle", "train_wait")  # phases in which one thread waits for the other

Clock = Callable[[], float]


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, for example 3723 as ``1h 2m 3s``."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    units = [(days, "d"), (h, "h"), (m, "m"), (s, "s")]
    while len(units) > 1 and not units[0][0]:
        units.pop(0)
    return " ".join(f"{value}{unit}" for value, unit in units)


class PhaseTimer:
    """Measure the seconds that one thread spends in each phase of an epoch.

    Only ``flush`` may be called from another thread.

    Args:
        row: Name of the thread's row in the timeline.
        enabled: If False, nothing is measured and ``flush`` returns an empty dictionary.
        clock: Function that returns the time in seconds; ``time.perf_counter`` if None.

    Attributes:
        timeline: Timeline that records each lap, or None while no timeline is recorded.
    """

    def __init__(self, row: str, enabled: bool = True, clock: Clock | None = None) -> None:
        self.row = row
        self.enabled = enabled
        self.timeline: Timeline | None = None
        self._clock = clock or time.perf_counter
        # Sums only grow and have one writer, so a reader can take differences without a lock.
        self._sums: defaultdict[str, float] = defaultdict(float)  # phase -> seconds
        self._flushed: dict[str, float] = {}  # sums at the last flush
        self._applied: dict[str, float] = {}  # sums after the last apply_profiled_fractions
        # Phase -> fraction of the last profiled epoch's time.
        self._fractions: dict[str, float] = {}
        self._splits: dict[str, dict[str, float]] = {}  # phase -> fractions, set by ``split``
        self._last = self._clock()

    def start(self) -> None:
        """Start the phase timer. The time since the last lap is charged to no phase."""
        self._last = self._clock()

    def lap(self, phase: str, stream: str = "") -> None:
        """Add the time since the timer's last lap to a phase's seconds, and end this lap.

        Args:
            phase: Name from ``PHASES`` in display/run_view.py, without ``perf/``.
            stream: Timeline row of the MLX stream that computed during this phase; "" for none.
        """
        if not self.enabled:
            return
        now = self._clock()
        begin = self._last
        self._last = now
        self._sums[phase] += now - begin
        if self.timeline is not None:
            self.timeline.span(self.row, phase, begin, now)
            if stream:
                self.timeline.span(stream, phase, begin, now)

    @property
    def last_lap_end(self) -> float:
        """Clock time at which the last lap of the phase timer ended, in seconds."""
        return self._last

    def split(self, phase: str, weights: dict[str, float]) -> None:
        """Divide the time charged to one phase among several phases, from the last ``flush`` on.

        Args:
            phase: Phase that laps are charged to.
            weights: Phase -> weight, in any unit; may contain ``phase``. If the sum is 0, the
                previous division stays.
        """
        total = sum(weights.values())
        if total > 0:
            fractions = {name: weight / total for name, weight in weights.items()}
            # A new dict, because ``flush`` may be reading the old one in another thread.
            self._splits = {**self._splits, phase: fractions}

    def charge(self, phase: str, seconds: float) -> None:
        """Add seconds to a phase's time, for example if another thread's timer measured them."""
        if self.enabled:
            self._sums[phase] += seconds

    def apply_profiled_fractions(self, profiled: bool, seconds_elsewhere: float = 0.0) -> None:
        """Divide an epoch's time among phases in the proportions of the last profiled epoch.

        The epoch's time is the time charged since the last call, without ``WAIT_PHASES``. A
        profiled epoch keeps its measured times and sets the proportions. Before the first profiled
        epoch, this method changes nothing.

        Args:
            profiled: True if the epoch was profiled (``Profiler.should_profile``).
            seconds_elsewhere: Seconds to subtract, because another timer is charged with them.
        """
        # Flushed seconds are reported already, so they are never divided anew.
        earlier = {
            phase: max(self._applied.get(phase, 0.0), self._flushed.get(phase, 0.0))
            for phase in self._sums
        }
        charged = {
            phase: seconds - earlier[phase]
            for phase, seconds in self._sums.items()
            if phase not in WAIT_PHASES
        }
        total = sum(charged.values())
        if profiled and total > 0:
            self._fractions = {phase: seconds / total for phase, seconds in charged.items()}
        elif self._fractions:
            total = max(0.0, total - seconds_elsewhere)
            divided = {
                phase: earlier.get(phase, 0.0) + total * self._fractions.get(phase, 0.0)
                for phase in (*charged, *self._fractions)
            }
            self._sums = defaultdict(float, {**self._sums, **divided})
        self._applied = dict(self._sums)

    def flush(self) -> dict[str, float]:
        """Return the seconds that each phase took since the last ``flush``, by phase."""
        sums = dict(self._sums)  # atomic in CPython, so the timer's thread may add meanwhile
        seconds = {name: value - self._flushed.get(name, 0.0) for name, value in sums.items()}
        self._flushed = sums
        for phase, fractions in self._splits.items():
            amount = seconds.pop(phase, 0.0)
            for name, fraction in fractions.items():
                seconds[name] = seconds.get(name, 0.0) + fraction * amount
        return seconds


class Profiler:
    """Measure the phases of rollout and training, and record a timeline.

    Args:
        enabled: If False, laps cost nothing and ``flush`` returns an empty dictionary.
        clock: Function that returns the time in seconds; ``time.perf_counter`` if None.

    Attributes:
        rollout: Timer of the thread that collects rollouts.
        train: Timer of the thread that trains.
        timeline: Timeline to record, or None; set it before the first epoch.
        profile_delay: Seconds after the start before the first profiled epoch.
    """

    def __init__(self, enabled: bool = True, clock: Clock | None = None) -> None:
        self.enabled = enabled
        self.rollout = PhaseTimer(ROLLOUT, enabled, clock)
        self.train = PhaseTimer(TRAIN, enabled, clock)
        self.timeline: Timeline | None = None
        self.profile_delay = 0.0
        self._first: int | None = None  # first epoch since the start or resume
        self._clock = clock or time.perf_counter
        self._start = self._clock()
        self._last_chosen_time = -math.inf  # clock time of the last epoch chosen by _is_chosen
        self._chosen: dict[int, bool] = {}  # epoch -> result of _is_chosen
        self._recording = False  # True if the timeline records the epoch in progress

    def begin_epoch(self, epoch: int) -> None:
        """Report to the profiler that an epoch begins. Starts or ends the recorded timeline."""
        self._first = epoch if self._first is None else self._first
        if self.timeline is not None:
            self.timeline.begin_epoch(epoch)
            self._connect_timeline()

    def should_profile(self, epoch: int) -> bool:
        """Return True if an epoch's training must be evaluated phase by phase to measure it.

        This is the case for selected epochs after ``profile_delay``, and while a timeline is
        recorded.
        """
        chosen = self._is_chosen(epoch)
        ready = chosen and self._last_chosen_time - self._start >= self.profile_delay
        return self._recording or (self.enabled and ready)

    def must_time_rollout(self, epoch: int) -> bool:
        """Return True if an epoch must wait for its rollout, to measure the rollout's duration."""
        return self._recording or self._is_chosen(epoch)

    def _is_chosen(self, epoch: int) -> bool:
        """Return True if an epoch is selected for profiling. Repeated calls return the same.

        The second epoch after a start or resume is selected, so that phases are known early (the
        first epoch compiles). If profiling is enabled, every ``PROFILE_EVERY``-th epoch is selected
        too, at least ``MIN_INTERVAL_S`` after the previous one.
        """
        if epoch not in self._chosen:
            now = self._clock()
            second = self._first is not None and epoch == self._first + 1
            regular = epoch % PROFILE_EVERY == 1 and now - self._last_chosen_time >= MIN_INTERVAL_S
            chosen = second or (self.enabled and regular)
            if chosen:
                self._last_chosen_time = now
            # Rollouts may be one epoch ahead of training, so two epochs are asked for.
            self._chosen = {epoch - 1: self._chosen.get(epoch - 1, False), epoch: chosen}
        return self._chosen[epoch]

    def flush(self) -> dict[str, float]:
        """Return the seconds that each phase of rollout and training took since the last call."""
        if not self.enabled:
            return {}
        return {**self.rollout.flush(), **self.train.flush()}

    def close(self) -> None:
        """End profiling of the run: write the timeline's file if it isn't written yet."""
        if self.timeline is not None:
            self.timeline.close()
            self._connect_timeline()

    def _connect_timeline(self) -> None:
        """Let both phase timers record their laps in the timeline while it records, else not.

        Recording enables the timers even if the profiler is disabled.
        """
        self._recording = self.timeline is not None and self.timeline.recording
        for timer in (self.rollout, self.train):
            timer.enabled = self.enabled or self._recording
            timer.timeline = self.timeline if self._recording else None
