"""Items that compare overlapped and serial training."""

import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.check.gpu.runs import OVERLAP, SERIAL
from puffer_mlx.check.gpu.tools import (
    at_most,
    determinism_tolerance,
    max_loss_difference,
    require,
    trainer,
)
from puffer_mlx.display.run_view import MISC_PHASES, WAIT_PHASES
from puffer_mlx.profiling.timeline import ROLLOUT, TRAIN, Timeline
from puffer_mlx.training.trainer import Trainer

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from halves import Halves  # pyright: ignore[reportMissingImports]

TOGETHER = 1.15  # longest overlapped iteration, relative to the longer half
MEETING = 0.2  # least share of the shorter half's time with work in the other half
IDLE = {*WAIT_PHASES, *MISC_PHASES.values(), "train_copy"}  # handing weights over is no training

Spans = list[tuple[float, float]]


def timed(quick: bool) -> list[str]:
    """Return the options of Breakout runs that act on the CPU, for measuring their time."""
    agents, buffers = 256 if quick else 4096, "8"
    if mx.default_device() == mx.cpu:  # in the same time
        agents, buffers = min(agents, 1024), "2"
    return [
        *("--vec.total-agents", str(agents), "--vec.num-buffers", buffers),
        *("--train.minibatch-size", str(16 * agents), "--train.total-timesteps", "1e12"),
        *("--train.rollout-device", "cpu"),
    ]


def recorded(run: Trainer, epochs: int) -> dict[str, Any]:
    """Record a timeline (trace) of the epochs after a trainer's next one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        run.profiler.timeline = Timeline(path, run.epoch + 1, epochs)
        for _ in range(epochs + 2):
            run.step()
        run.profiler.close()
        return json.loads(path.read_text())


def work(trace: dict[str, Any], row: str) -> Spans:
    """Return begin and end of all work in a timeline's row, in microseconds, without waiting."""
    events = trace["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X" and rows[e["tid"]] == row]
    return [(e["ts"], e["ts"] + e["dur"]) for e in spans if e["name"] not in IDLE]


def meeting(one: Spans, other: Spans) -> float:
    """Return the time in which both of two timeline rows work, relative to the shorter one."""
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)
    return both / min(sum(end - begin for begin, end in spans) for spans in (one, other))


def real(quick: bool) -> str:
    """Check that rollout and training run at the same time with overlap, and never without."""
    shares, times = {}, [0.0]
    for name, options in (("serial", SERIAL), ("overlapped", OVERLAP)):
        with trainer(*options, env="breakout", base=timed(quick)) as run:
            trace = recorded(run, 3)
            shares[name] = meeting(work(trace, ROLLOUT), work(trace, TRAIN))
            if options == OVERLAP:
                times = measured(Halves(run), rounds=3 if quick else 7)
    rollout, training, both = times
    met = f"{shares['overlapped']:.0%} of the shorter half beside the other"
    require(shares["overlapped"] >= MEETING, f"{met} (at least {MEETING:.0%})")
    require(shares["serial"] <= 1e-6, f"serial halves met: {shares['serial']:.2g}")
    text = f"rollout {rollout:.0f} ms, training {training:.0f} ms, both {both:.0f} ms"
    ratio = both / max(rollout, training)
    if mx.default_device() == mx.cpu or quick:
        # A CPU's cores do both, and other processes' work; little work is mostly its beginning.
        return f"{met}; {text}, {ratio:.2f} of the longer (not judged on a CPU or with --quick)"
    at_most(f"{text}: both / the longer", ratio, TOGETHER)
    return f"{met}; {text}, {ratio:.2f} of the longer (at most {TOGETHER})"


def measured(halves: Halves, rounds: int) -> list[float]:
    """Measure rollout, training and overlapped iteration; return their median milliseconds."""
    kinds = (halves.rollout, halves.training, halves.iteration)
    for kind in kinds:
        kind()
    rows = [[1000 * kind() for kind in kinds] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*rows, strict=True)]


class Pausing:
    """Wrapper of environments that sometimes pauses before it waits for a step or a rollout."""

    def __init__(self, environments: Any) -> None:
        self._environments = environments
        self._random = random.Random(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environments, name)

    def collect(self, *arguments: Any, **more: Any) -> Any:
        """Collect a rollout after a random pause."""
        self._pause()
        return self._environments.collect(*arguments, **more)

    def wait(self, group: int) -> None:
        """Wait for a group's step after a random pause."""
        self._pause()
        self._environments.wait(group)

    def _pause(self) -> None:
        if self._random.random() < 0.3:
            time.sleep(1e-3 * self._random.random())


def same_losses(quick: bool) -> str:
    """Check that overlap is a lag of one update: threads and streams change no number.

    A serial run has the same losses if its rollouts use the weights before the last update.
    """
    epochs = 10 if quick else 100
    with trainer(*OVERLAP, wrap=Pausing) as run:
        overlapped = [run.step() for _ in range(epochs)]
    with trainer(*SERIAL) as run:
        serial = []
        before = run.weights
        for _ in range(epochs):
            run.queue.start_next(before)
            before = run.weights
            serial.append(run.step())
    apart = max_loss_difference(overlapped, serial)
    return f"{epochs} epochs; {at_most('losses differ by', apart, determinism_tolerance())}"
