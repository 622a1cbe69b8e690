"""Measure how long each phase of an epoch takes, in the rollout thread and in the training thread.

Rollout and training may run in two threads, so each has its own ``PhaseTimer`` (a *lane*).
``lap(name)`` charges the time since the previous lap to phase ``name``, so the phases add up to the
lane's time.

MLX is lazy: work runs when it is evaluated, so a lap is meaningful only right after an evaluation.
A rollout evaluates at every step, and ``split`` divides the time of one evaluation among phases.
Training evaluates once, at its end. *Profiled* epochs evaluate after each phase to measure it;
``apply_profiled_shares`` divides the time of the other epochs in the same proportions.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable

from puffer_mlx.profiling.timeline import ROLLOUT, TRAIN, Trace

PROFILE_EVERY = 20  # epochs
MIN_INTERVAL_S = 0.5  # seconds between profiled epochs, because profiling a short one triples it
PROFILE_DELAY_S = 3.0  # seconds before the first profiled epoch, if profiling must compile more
WAIT_PHASES = ("eval_idle", "train_wait")  # phases in which one lane waits for the other

Clock = Callable[[], float]


def duration(seconds: float) -> str:
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
        trace: Timeline that records each lap, or None while no timeline is recorded.
    """

    def __init__(self, row: str, enabled: bool = True, clock: Clock | None = None) -> None:
        self.row = row
        self.enabled = enabled
        self.trace: Trace | None = None
        self._clock = clock or time.perf_counter
        # Sums only grow and have one writer, so a reader can take differences without a lock.
        self._sums: defaultdict[str, float] = defaultdict(float)  # phase -> seconds
        self._flushed: dict[str, float] = {}  # sums at the last flush
        self._divided: dict[str, float] = {}  # sums at the last apply_profiled_shares
        self._fractions: dict[
            str, float
        ] = {}  # phase -> fraction of the last profiled epoch's time
        self._splits: dict[str, dict[str, float]] = {}  # phase -> fractions, set by ``split``
        self._last = self._clock()

    def start(self) -> None:
        """Restart the phase timer: the time since the last lap is charged to no phase."""
        self._last = self._clock()

    def lap(self, phase: str, stream: str = "") -> None:
        """Charge the time since the last lap to a phase.

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
        if self.trace is not None:
            self.trace.span(self.row, phase, begin, now)
            if stream:
                self.trace.span(stream, phase, begin, now)

    @property
    def now(self) -> float:
        """Clock time at the end of the last lap, in seconds."""
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
        """Add seconds to a phase that laps didn't measure, such as a wait of the other lane."""
        if self.enabled:
            self._sums[phase] += seconds

    def apply_profiled_shares(self, profiled: bool, other_lane_s: float = 0.0) -> None:
        """Divide an epoch's time among phases in the proportions of the last profiled epoch.

        This applies to the time charged since the last call, except ``WAIT_PHASES``. A profiled
        epoch keeps its measured times and sets the proportions. Before the first one, nothing
        changes.

        Args:
            profiled: True if the epoch was profiled (``Profiler.should_profile``).
            other_lane_s: Seconds to subtract, because they are charged to the other lane.
        """
        base = {
            name: max(self._divided.get(name, 0.0), self._flushed.get(name, 0.0))
            for name in self._sums
        }
        charged = {n: s - base[n] for n, s in self._sums.items() if n not in WAIT_PHASES}
        total = sum(charged.values())
        if profiled and total > 0:
            self._fractions = {name: seconds / total for name, seconds in charged.items()}
        elif self._fractions:
            earlier = {name: base.get(name, 0.0) for name in (*charged, *self._fractions)}
            total = max(0.0, total - other_lane_s)
            divided = {n: s + total * self._fractions.get(n, 0.0) for n, s in earlier.items()}
            self._sums = defaultdict(float, {**self._sums, **divided})
        self._divided = dict(self._sums)

    def flush(self) -> dict[str, float]:
        """Return the seconds that each phase took since the last call."""
        sums = dict(self._sums)  # atomic in CPython
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
        trace: Timeline to record, or None; set it before the first epoch.
        profile_delay: Seconds after the start before the first profiled epoch.
    """

    def __init__(self, enabled: bool = True, clock: Clock | None = None) -> None:
        self.enabled = enabled
        self.rollout = PhaseTimer(ROLLOUT, enabled, clock)
        self.train = PhaseTimer(TRAIN, enabled, clock)
        self.trace: Trace | None = None
        self.profile_delay = 0.0
        self._first: int | None = None  # first epoch since the start or resume
        self._clock = clock or time.perf_counter
        self._start = self._clock()
        self._last_chosen = -math.inf  # time of the last epoch chosen by _is_chosen
        self._chosen: dict[int, bool] = {}
        self._recording = False  # the trace records the epoch in progress

    def begin(self, epoch: int) -> None:
        """Report that training of an epoch begins. Starts or ends the recorded timeline."""
        self._first = epoch if self._first is None else self._first
        if self.trace is not None:
            self.trace.begin(epoch)
            self._sync_trace()

    def should_profile(self, epoch: int) -> bool:
        """Return True if an epoch's training must be evaluated phase by phase to measure it.

        This is the case for selected epochs after ``profile_delay``, and while a timeline is
        recorded.
        """
        chosen = self._is_chosen(epoch)
        ready = chosen and self._last_chosen - self._start >= self.profile_delay
        return self._recording or (self.enabled and ready)

    def times_rollout(self, epoch: int) -> bool:
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
            regular = epoch % PROFILE_EVERY == 1 and now - self._last_chosen >= MIN_INTERVAL_S
            chosen = second or (self.enabled and regular)
            self._last_chosen = now if chosen else self._last_chosen
            self._chosen = {epoch - 1: self._chosen.get(epoch - 1, False), epoch: chosen}
        return self._chosen[epoch]

    def flush(self) -> dict[str, float]:
        """Return the seconds that each phase of rollout and training took since the last call."""
        if not self.enabled:
            return {}
        return {**self.rollout.flush(), **self.train.flush()}

    def close(self) -> None:
        """End profiling: write the timeline if it isn't written yet."""
        if self.trace is not None:
            self.trace.close()
            self._sync_trace()

    def _sync_trace(self) -> None:
        """Connect both phase timers with the timeline while it records, even if disabled."""
        self._recording = self.trace is not None and self.trace.recording
        for lane in (self.rollout, self.train):
            lane.enabled = self.enabled or self._recording
            lane.trace = self.trace if self._recording else None
