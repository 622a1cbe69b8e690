"""Time of an epoch by phase.

Collecting and training may run in two threads, so there are two *lanes*. In each lane,
``lap(name)`` charges the time since the last lap to ``name``, so the phases add up to the lane's
time.

MLX is lazy: work runs when it is evaluated, so a lap is meaningful only right after an evaluation.
A rollout evaluates at every step, and ``split`` divides the time of one evaluation among phases.
Training evaluates once, at its end. *Profiled* epochs evaluate after each phase to measure them;
``apply_profiled_shares`` gives the same shares to the other epochs.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable

from puffer_mlx.profiling.timeline import ROLLOUT, TRAIN, Trace

PROFILE_EVERY = 20  # epochs
MIN_INTERVAL_S = 0.5  # between profiled epochs: a short one takes three times as long
PROFILE_DELAY_S = 3.0  # before the first profiled epoch, if profiling needs extra compilation
WAITS = ("eval_idle", "train_wait")  # phases in which one lane waits for the other

Clock = Callable[[], float]


def duration(seconds: float) -> str:
    """Format seconds, for example 3723 as ``1h 2m 3s``."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    parts = [(days, "d"), (h, "h"), (m, "m"), (s, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{value}{unit}" for value, unit in parts)


class PhaseTimer:
    """Measure seconds by phase in one thread.

    Only ``flush`` may be called from another thread.

    Args:
        row: Name of the lane's row in the trace.
        enabled: If False, nothing is measured and ``flush`` returns an empty dictionary.
        clock: Returns seconds; ``time.perf_counter`` if None.

    Attributes:
        trace: Receives a span for each lap; None while no trace is recorded.
    """

    def __init__(self, row: str, enabled: bool = True, clock: Clock | None = None) -> None:
        self.row = row
        self.enabled = enabled
        self.trace: Trace | None = None
        self._clock = clock or time.perf_counter
        # Sums only grow and have one writer, so a reader takes differences without a lock.
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._flushed: dict[str, float] = {}  # sums at the last flush
        self._divided: dict[str, float] = {}  # sums at the last apply_profiled_shares
        self._shares: dict[str, float] = {}  # phase -> share in the last profiled epoch
        self._splits: dict[str, dict[str, float]] = {}
        self._last = self._clock()

    def start(self) -> None:
        """Start measuring, without charging the time since the last lap."""
        self._last = self._clock()

    def lap(self, phase: str, stream: str = "") -> None:
        """Charge the time since the last lap to a phase.

        Args:
            phase: Name from ``PHASES`` of display/run_view.py, without ``perf/``.
            stream: Trace row of the stream that computed during this phase; "" for none.
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

    def split(self, whole: str, shares: dict[str, float]) -> None:
        """Split the time charged to ``whole`` among phases, starting at the last ``flush``.

        Args:
            whole: Phase that laps are charged to.
            shares: Phase -> share, in any unit; may contain ``whole``. If the sum is 0, the
                previous split stays.
        """
        total = sum(shares.values())
        if total > 0:
            normal = {name: share / total for name, share in shares.items()}
            self._splits = {**self._splits, whole: normal}  # a new dict: ``flush`` may be reading

    def charge(self, phase: str, seconds: float) -> None:
        """Charge a phase with seconds that the other lane waited for it."""
        if self.enabled:
            self._sums[phase] += seconds

    def apply_profiled_shares(self, profiled: bool, foreign_s: float = 0.0) -> None:
        """Redistribute an epoch's time by the phase shares of the last profiled epoch.

        This concerns the time charged since the last call, except ``WAITS``. A profiled epoch keeps
        its measured times and sets the shares; before the first one, nothing changes.

        Args:
            profiled: True if the epoch was profiled (``Profiler.should_profile``).
            foreign_s: Seconds to subtract; they are charged to the other lane.
        """
        base = {
            name: max(self._divided.get(name, 0.0), self._flushed.get(name, 0.0))
            for name in self._sums
        }
        charged = {n: s - base[n] for n, s in self._sums.items() if n not in WAITS}
        total = sum(charged.values())
        if profiled and total > 0:
            self._shares = {name: seconds / total for name, seconds in charged.items()}
        elif self._shares:
            whole = {name: base.get(name, 0.0) for name in (*charged, *self._shares)}
            total = max(0.0, total - foreign_s)
            divided = {n: s + total * self._shares.get(n, 0.0) for n, s in whole.items()}
            self._sums = defaultdict(float, {**self._sums, **divided})
        self._divided = dict(self._sums)

    def flush(self) -> dict[str, float]:
        """Return the seconds per phase since the last call."""
        sums = dict(self._sums)  # atomic in CPython
        seconds = {name: value - self._flushed.get(name, 0.0) for name, value in sums.items()}
        self._flushed = sums
        for whole, shares in self._splits.items():
            amount = seconds.pop(whole, 0.0)
            for name, share in shares.items():
                seconds[name] = seconds.get(name, 0.0) + share * amount
        return seconds


class Profiler:
    """Measure the phases of both lanes and record a trace.

    Args:
        enabled: If False, laps cost nothing and ``flush`` returns an empty dictionary.
        clock: Returns seconds; ``time.perf_counter`` if None.

    Attributes:
        rollout: Lane of the thread that collects.
        train: Lane of the thread that trains.
        trace: Trace to record, or None; set it before the first epoch.
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
        """Note that an epoch's training begins; starts or ends the trace."""
        self._first = epoch if self._first is None else self._first
        if self.trace is not None:
            self.trace.begin(epoch)
            self._sync_trace()

    def should_profile(self, epoch: int) -> bool:
        """Return True if this epoch's training is evaluated phase by phase.

        This is so for chosen epochs after ``profile_delay``, and while a trace is recorded.
        """
        chosen = self._is_chosen(epoch)
        ready = chosen and self._last_chosen - self._start >= self.profile_delay
        return self._recording or (self.enabled and ready)

    def times_rollout(self, epoch: int) -> bool:
        """Return True if this epoch waits for its rollout, to measure its duration."""
        return self._recording or self._is_chosen(epoch)

    def _is_chosen(self, epoch: int) -> bool:
        """Return True if this epoch is measured; repeated calls return the same.

        The second epoch after a start or resume is one, so that its phases are soon known (the
        first one compiles). If enabled, so is every ``PROFILE_EVERY``-th epoch, at least
        ``MIN_INTERVAL_S`` after the last one.
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
        """Return the seconds per phase of both lanes since the last call."""
        if not self.enabled:
            return {}
        return {**self.rollout.flush(), **self.train.flush()}

    def close(self) -> None:
        """End the run: write the trace if it isn't written yet."""
        if self.trace is not None:
            self.trace.close()
            self._sync_trace()

    def _sync_trace(self) -> None:
        """Connect the lanes with the trace while it records, even if the profiler is off."""
        self._recording = self.trace is not None and self.trace.recording
        for lane in (self.rollout, self.train):
            lane.enabled = self.enabled or self._recording
            lane.trace = self.trace if self._recording else None
