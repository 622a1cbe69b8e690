"""Where the time goes: named phases that add up to the whole.

``lap(name)`` charges everything since the last lap to ``name``, so no line of the loop goes
unclassified. MLX is lazy: work runs when it is evaluated, so a lap is honest only right after an
evaluation. The rollout evaluates at every step anyway. Training evaluates once at its end; its
inner phases are measured in *sampled* epochs, which evaluate after each phase, and the shares found
there divide the training time of the epochs in between.
"""

import time

SAMPLE_EVERY = 20  # epochs; a sampled epoch costs a few evaluations more

TRAIN_PHASES = ("train_advantage", "train_gather", "train_forward", "train_optimizer", "train_misc")


class Profiler:
    """Seconds per phase since the last ``take``.

    Args:
        enabled: if False, laps cost nothing and ``take`` returns nothing.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._seconds: dict[str, float] = {}
        self._shares: dict[str, float] = {}  # of the last sampled training
        self._last = time.perf_counter()

    def start(self) -> None:
        """Begin a lap; the time since the last one is not charged to anything."""
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Charge the time since the last lap to a phase."""
        if self.enabled:
            now = time.perf_counter()
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
            self._last = now

    def samples(self, epoch: int) -> bool:
        """Whether to evaluate this epoch's training phase by phase; not the first: it compiles."""
        return self.enabled and epoch % SAMPLE_EVERY == 1

    def train(self, seconds: float, sampled: bool) -> None:
        """Charge an epoch's training, divided as measured if sampled, else as in the last sample.

        Args:
            seconds: the whole training of the epoch.
            sampled: whether its phases were evaluated one by one (``samples``).
        """
        if not self.enabled:
            return
        inner = {name: self._seconds.pop(name, 0.0) for name in TRAIN_PHASES}
        if sampled:
            inner["train_misc"] += max(0.0, seconds - sum(inner.values()))
            self._shares = {name: value / seconds for name, value in inner.items()}
        self._seconds.update({name: share * seconds for name, share in self._shares.items()})

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last call, and start anew."""
        seconds, self._seconds = self._seconds, {}
        return seconds
