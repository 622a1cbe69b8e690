"""Items: rollout and training go on at the same time, and nothing but time tells."""

import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from coded_environment import Coded, Faulty, pause

from puffer_mlx import config
from puffer_mlx.check.gpu.runs import OVERLAP, SERIAL, undisturbed
from puffer_mlx.check.gpu.tools import (
    at_most,
    determinism_tolerance,
    max_loss_difference,
    require,
    trainer,
)
from puffer_mlx.display.run_view import MISC, WAITS
from puffer_mlx.profiling.timeline import ROLLOUT, TRAIN, Trace
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.run import Run
from puffer_mlx.training.trainer import Trainer

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from halves import Halves  # pyright: ignore[reportMissingImports]

TOGETHER = 1.15  # an overlapped iteration, beside the longer half
MEETING = 0.2  # of the shorter half's time, that the other half must be at work meanwhile
IDLE = {*WAITS, *MISC.values(), "train_copy"}  # handing weights over is no training
CODED = (16, 2)  # agents and groups

Spans = list[tuple[float, float]]


def timed(quick: bool) -> list[str]:
    """Options of runs that are timed: Breakout, acting on the CPU."""
    agents, buffers = 256 if quick else 4096, "8"
    if mx.default_device() == mx.cpu:  # in the same time
        agents, buffers = min(agents, 1024), "2"
    return [
        *("--vec.total-agents", str(agents), "--vec.num-buffers", buffers),
        *("--train.minibatch-size", str(16 * agents), "--train.total-timesteps", "1e12"),
        *("--train.rollout-device", "cpu"),
    ]


# ---- real ----------------------------------------------------------------------------------------


def recorded(run: Trainer, epochs: int) -> dict[str, Any]:
    """A trace of a trainer's next epochs but one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        run.profiler.trace = Trace(path, run.epoch + 1, epochs)
        for _ in range(epochs + 2):
            run.step()
        run.profiler.close()
        return json.loads(path.read_text())


def work(trace: dict[str, Any], row: str) -> Spans:
    """When a lane was at work: begin and end in microseconds.

    Waiting is left out, and what would hold the other half's work, if it weren't beside.
    """
    events = trace["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X" and rows[e["tid"]] == row]
    return [(e["ts"], e["ts"] + e["dur"]) for e in spans if e["name"] not in IDLE]


def meeting(one: Spans, other: Spans) -> float:
    """The time that both were at work, as a share of the one that worked less."""
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)
    return both / min(sum(end - begin for begin, end in spans) for spans in (one, other))


def real(quick: bool) -> str:
    """Spans of both halves meet with overlap, never without; an iteration is the longer half."""
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
    """Milliseconds of a rollout, of training, and of an overlapped iteration; medians, in turns."""
    kinds = (halves.rollout, halves.training, halves.iteration)
    for kind in kinds:
        kind()
    rows = [[1000 * kind() for kind in kinds] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*rows, strict=True)]


# ---- safe ----------------------------------------------------------------------------------------


def watched(run: Trainer, look: Callable[[Any], None]) -> None:
    """Have every buffer looked at before and after it is trained on."""
    real_prepare = run.learner.prepare

    def prepare(rollout: Rollout, *arguments: Any, **more: Any) -> Any:
        update = real_prepare(rollout, *arguments, **more)
        submit, wait = update.submit, update.wait

        def submitted() -> None:
            look(rollout.buffer)
            submit()

        def waited() -> dict[str, float]:
            metrics = wait()
            look(rollout.buffer)
            return metrics

        update.submit, update.wait = submitted, waited  # type: ignore
        return update

    run.learner.prepare = prepare


def same_rollouts(quick: bool) -> str:
    """With a learning rate of 0 the lag means nothing: serial and overlapped rollouts are equal."""
    runs: list[list[dict[str, np.ndarray]]] = []
    for options in (SERIAL, OVERLAP):
        seen: list[dict[str, np.ndarray]] = []

        def look(buffer: Any, seen: list = seen) -> None:
            fields = buffer.fields.items()
            seen.append({name: np.array(a) for name, a in fields if a is not None})

        with trainer(*options, "--train.learning-rate", "0") as run:
            watched(run, look)
            for _ in range(4):
                run.step()
        runs.append(seen)
    for k, (one, other) in enumerate(zip(*runs, strict=True)):
        for name in one:
            equal = np.array_equal(one[name], other[name])
            require(equal, f"{name} of rollout {k // 2} are different")
    return f"{len(runs[0]) // 2} rollouts, {len(runs[0][0])} fields, every number"


def same_losses(quick: bool) -> str:
    """Overlap is a lag of one update and nothing else: threads and streams change no number.

    A serial run has the same losses if its rollouts are given the weights before the last update.
    """
    with trainer(*OVERLAP) as run:
        overlapped = [run.step() for _ in range(4)]
    with trainer(*SERIAL) as run:
        by_hand, before = [], run.weights
        for _ in range(4):
            run.queue.start_next(before)
            before = run.weights
            by_hand.append(run.step())
    return at_most(
        "losses apart by", max_loss_difference(overlapped, by_hand), determinism_tolerance()
    )


def no_torn_slot(quick: bool) -> str:
    """Threads that pause at random never see a buffer that is half of another rollout."""
    agents, groups = CODED
    options = [
        *("--vec.total-agents", str(agents), "--vec.num-buffers", str(groups)),
        *("--train.horizon", "4", "--train.minibatch-size", "32", "--train.learning-rate", "0"),
        *("--policy.hidden-size", "8", "--policy.num-layers", "1"),
        *("--train.total-timesteps", "1e12", "--train.rollout-device", "cpu", *OVERLAP),
    ]
    environments, generator, firsts = Coded(agents, groups), random.Random(1), []
    run = Run.open(config.load("squared", options), environments).trainer
    watched(run, lambda buffer: firsts.append(environments.check(buffer)))
    steps = run.learner.functions.steps
    real = steps["targets"]

    def targets(*arguments: Any) -> Any:
        pause(generator)  # between minibatches
        return real.function(*arguments)

    steps["targets"] = real._replace(function=targets)
    skewed = 100 if quick else 1000
    for _ in range(skewed):
        run.step()
    expected = [4 * k for k in range(skewed) for _ in range(2)]
    require(firsts == expected, "rollouts were left out or trained on twice")
    return f"{skewed:,} iterations, every field of every buffer before and after"


def exceptions(quick: bool) -> str:
    """An environment that fails beside training costs nothing: the next step tries again."""
    expected = undisturbed(5)
    raised, logs = 0, []
    with trainer(*OVERLAP, wrap=lambda real: Faulty(real, 2)) as run:
        while len(logs) < len(expected):
            try:
                logs.append(run.step())
            except OSError:
                raised += 1
                require(raised < 3, "it goes on failing")
    require(raised == 1, f"the exception came {raised} times, expected once")
    difference = max_loss_difference(logs, expected)
    return f"raised once; {at_most('losses apart by', difference, determinism_tolerance())}"
