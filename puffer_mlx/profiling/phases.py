"""Where the time goes: named phases that add up to the whole.

Collecting and training may go on at the same time in two threads, so there are two *lanes*. In
each, ``lap(name)`` charges everything since the last lap to ``name``: no line of the loop goes
unclassified, and the sum of the phases is the lane's time.

MLX is lazy: work runs when it is evaluated, so a lap is honest only right after an evaluation. The
rollout evaluates at every step; what one evaluation does at once is divided by ``part``. Training
evaluates once, at its end. Its inner phases are measured in *sampled* epochs, which evaluate after
each phase, and ``divide`` gives the epochs in between the same shares.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable

from puffer_mlx.profiling.timeline import ROLLOUT, TRAIN, Trace

SAMPLE_EVERY = 20  # epochs; a sampled epoch costs a few evaluations more
APART = 0.5  # seconds at least between two of them: of short ones it costs the time of three
LATER = 3.0  # seconds of a start before the first, where its steps alone are compiled for it
WAITS = ("eval_idle", "train_wait")  # phases in which one lane waits for the other

Clock = Callable[[], float]


def duration(seconds: float) -> str:
    """3723 -> 1h 2m 3s, from the largest unit that isn't 0."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    parts = [(days, "d"), (h, "h"), (m, "m"), (s, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{value}{unit}" for value, unit in parts)


class PhaseTimer:
    """The time of one thread at a time: seconds by phase.

    Only ``take`` may be called by another thread than the one that laps.

    Args:
        row: of the trace.
        enabled: if False, nothing is measured and ``take`` returns nothing.
        clock: seconds; ``time.perf_counter`` if None.

    Attributes:
        trace: gets a span for each lap; None while nothing is recorded.
    """

    def __init__(self, row: str, enabled: bool = True, clock: Clock | None = None) -> None:
        self.row, self.enabled = row, enabled
        self.trace: Trace | None = None
        self._clock = clock or time.perf_counter
        # Sums only grow, and one thread writes them: a reader takes differences, without a lock.
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._taken: dict[str, float] = {}  # at the last take
        self._divided: dict[str, float] = {}  # at the last divide
        self._shares: dict[str, float] = {}  # of the last sampled training
        self._parts: dict[str, dict[str, float]] = {}
        self._last = self._clock()

    def start(self) -> None:
        """Begin; the time since the last lap is nobody's."""
        self._last = self._clock()

    def lap(self, phase: str, stream: str = "") -> None:
        """Charge the time since the last lap to a phase.

        Args:
            phase: of ``perf/*``; see ``view.PHASES``.
            stream: the trace's row of the stream that worked for it meanwhile, if one did.
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
        """When the last lap ended, in seconds of the clock."""
        return self._last

    def part(self, whole: str, shares: dict[str, float]) -> None:
        """Divide what ``whole`` is charged, from the last ``take`` on, among phases.

        Args:
            whole: a phase that laps are charged to.
            shares: phase (``whole`` may be one) -> its share, in any unit; an empty or zero sum
                leaves the division as it was.
        """
        total = sum(shares.values())
        if total > 0:
            normal = {name: share / total for name, share in shares.items()}
            self._parts = {**self._parts, whole: normal}  # replaced: ``take`` may be reading

    def charge(self, phase: str, seconds: float) -> None:
        """Charge a phase with seconds that another lane waited for it."""
        if self.enabled:
            self._sums[phase] += seconds

    def divide(self, sampled: bool, others: float = 0.0) -> None:
        """Divide an epoch as measured if it was sampled, else as in the last sampled one.

        What the phases were charged since the last time, ``WAITS`` excepted, is divided anew; its
        sum stays, but for ``others``. Before the first sample it stays where it was charged.

        Args:
            sampled: whether its phases were evaluated one by one (``Profiler.samples``).
            others: seconds of it that are another lane's, which gets them by ``charge``.
        """
        base = {
            name: max(self._divided.get(name, 0.0), self._taken.get(name, 0.0))
            for name in self._sums
        }
        charged = {n: s - base[n] for n, s in self._sums.items() if n not in WAITS}
        total = sum(charged.values())
        if sampled and total > 0:
            self._shares = {name: seconds / total for name, seconds in charged.items()}
        elif self._shares:
            whole = {name: base.get(name, 0.0) for name in (*charged, *self._shares)}
            total = max(0.0, total - others)
            divided = {n: s + total * self._shares.get(n, 0.0) for n, s in whole.items()}
            self._sums = defaultdict(float, {**self._sums, **divided})
        self._divided = dict(self._sums)

    def take(self) -> dict[str, float]:
        """Seconds of every phase there was so far, since the last call."""
        sums = dict(self._sums)  # one step for the interpreter
        seconds = {name: value - self._taken.get(name, 0.0) for name, value in sums.items()}
        self._taken = sums
        for whole, shares in self._parts.items():
            amount = seconds.pop(whole, 0.0)
            for name, share in shares.items():
                seconds[name] = seconds.get(name, 0.0) + share * amount
        return seconds


class Profiler:
    """Seconds per phase since the last ``take``, and the spans of a trace.

    Args:
        enabled: if False, laps cost nothing and ``take`` returns nothing.
        clock: seconds; ``time.perf_counter`` if None.

    Attributes:
        rollout: the lane of the thread that collects.
        train: the lane of the thread that trains.
        trace: what is recorded, if anything; set it before the first epoch.
        patience: seconds of a start before the first sampled epoch.
    """

    def __init__(self, enabled: bool = True, clock: Clock | None = None) -> None:
        self.enabled = enabled
        self.rollout = PhaseTimer(ROLLOUT, enabled, clock)
        self.train = PhaseTimer(TRAIN, enabled, clock)
        self.trace: Trace | None = None
        self._first: int | None = None  # epoch of this start
        self._clock = clock or time.perf_counter
        self.patience, self._began = 0.0, self._clock()
        self._sampled = -math.inf  # when an epoch was chosen last
        self._due: dict[int, bool] = {}

    def begin(self, epoch: int) -> None:
        """An epoch's training begins: a trace starts or ends here."""
        self._first = epoch if self._first is None else self._first
        if self.trace is not None:
            self.trace.begin(epoch)
            self._connect()

    def samples(self, epoch: int) -> bool:
        """Whether to evaluate this epoch's training phase by phase.

        One of few, and while a trace is recorded.
        """
        recording = self.trace is not None and self.trace.recording
        late = self.due(epoch) and self._sampled - self._began >= self.patience
        return recording or (self.enabled and late)

    def due(self, epoch: int) -> bool:
        """Return True if this epoch's rollout is timed; repeated calls return the same.

        The second epoch of a start is (the first one compiles), so that a resumed run knows its
        phases soon. If enabled, so is one of ``SAMPLE_EVERY`` epochs, at least ``APART`` seconds
        after the last one.
        """
        if epoch not in self._due:
            second, now = self._first is not None and epoch == self._first + 1, self._clock()
            one_of_many = epoch % SAMPLE_EVERY == 1 and now - self._sampled >= APART
            due = second or (self.enabled and one_of_many)
            self._sampled = now if due else self._sampled
            self._due = {epoch - 1: self._due.get(epoch - 1, False), epoch: due}
        return self._due[epoch]

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last call, of both lanes."""
        if not self.enabled:
            return {}
        return {**self.rollout.take(), **self.train.take()}

    def close(self) -> None:
        """The run ends: write the trace, if it isn't yet."""
        if self.trace is not None:
            self.trace.close()
            self._connect()

    def _connect(self) -> None:
        """Have the lanes feed the trace while it records, though the profiler may be off."""
        recording = self.trace is not None and self.trace.recording
        for lane in (self.rollout, self.train):
            lane.enabled = self.enabled or recording
            lane.trace = self.trace if recording else None
