"""Items: memory, the profile, traces and captures, files, and whether it learns at all."""

import os
import statistics
import tempfile
import time
from pathlib import Path

import mlx.core as mx
import numpy as np

from puffer_mlx import checkpoint
from puffer_mlx.check.gpu.overlap import OVERLAP, SERIAL, recorded, timed
from puffer_mlx.check.gpu.tools import Effort, Skipped, at_most, need_time, on, require, trainer
from puffer_mlx.export import importing
from puffer_mlx.export.exporting import Format, export
from puffer_mlx.profiling.metal_capture import SKIPPED, VARIABLE, MetalCapture
from puffer_mlx.profiling.phases import SAMPLE_EVERY
from puffer_mlx.system import program
from puffer_mlx.training.trainer import Logs, Trainer
from puffer_mlx.trees import named

GROWTH = 1 << 20  # bytes, over a run
SUM, MISC, COST = 0.01, 0.03, 0.02  # of an epoch
MINUTE = 60.0
COMPILING = 3  # epochs
# Breakout as it is shipped, whose schedule is for 94 million steps: four runs had scores of 17 to
# 53 here; what hasn't learned stays below 5.
STEPS, SCORE = 20_000_000, 10.0


def memory(effort: Effort) -> str:
    """Epochs don't leave memory behind, overlapped and sampled ones included."""
    with trainer(*OVERLAP) as made:
        for _ in range(2 * SAMPLE_EVERY + 2):
            made.step()
        before = mx.get_active_memory()
        for _ in range(effort.epochs):
            made.step()
        growth = mx.get_active_memory() - before
    return f"{effort.epochs} epochs; {at_most('bytes left behind', growth, GROWTH)}"


def parts(logs: Logs) -> dict[str, float]:
    """The phases of a record, seconds by name."""
    names = [name for name in logs if name.startswith(("perf/eval_", "perf/train_"))]
    return {name.removeprefix("perf/"): logs[name] for name in names}


def profile(effort: Effort) -> str:
    """Phases of a lane add up to its time, and hardly any of it has no name."""
    texts = []
    for options in (SERIAL, OVERLAP):
        with trainer(*options, env="breakout", base=timed(effort)) as made:
            logs = [made.step() for _ in range(5)][2:]
        off, misc = [], []
        for record in logs:
            phases, epoch = parts(record), record["perf/epoch"]
            lane = {n: s for n, s in phases.items() if options == SERIAL or n.startswith("train_")}
            off.append(abs(sum(lane.values()) / epoch - 1))
            misc.append(sum(s for n, s in lane.items() if n.endswith("_misc")) / epoch)
        name = "overlapped" if options == OVERLAP else "serial"
        at_most(f"{name}: sum off by", min(off), SUM)
        at_most(f"{name}: share of misc", min(misc), MISC)
        texts.append(
            f"{name}: sum {100 * (1 + statistics.median(off)):.1f} %, misc {min(misc):.1%}"
        )
    return "; ".join(texts)


def profile_cost(effort: Effort) -> str:
    """Measuring phases costs less than 2 % of the speed, its part of a sampled epoch included."""
    need_time(effort)
    with trainer("--profile", "True", env="breakout", base=timed(effort)) as made:
        for _ in range(COMPILING):
            made.step()
        times: dict[str, list[float]] = {"off": [], "normal": [], "sampled": []}
        for _ in range(15):  # of one trainer: two differ by where their threads and arrays are
            for way in times:
                made.profiler.rollout.enabled = made.profiler.train.enabled = way != "off"
                made.profiler.samples = lambda epoch, way=way: way == "sampled"
                times[way].append(made.step()["perf/epoch"])
    off, normal, sampled = map(min, times.values())  # the least disturbed of each
    cost = (normal + (sampled - normal) / SAMPLE_EVERY) / off - 1
    parts = f"of {1000 * off:.1f} ms; a sampled epoch {sampled / off - 1:.1%}"
    return at_most(f"{normal / off - 1:.1%} {parts}; altogether", cost, COST)


def trace(effort: Effort) -> str:
    """A trace is written, and is what Perfetto reads."""
    with trainer(*OVERLAP) as made:
        document = recorded(made, 2)
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    require(len(spans) > 20, f"{len(spans)} spans")
    for event in spans:
        keys = {"name", "ph", "pid", "tid", "ts", "dur", "args"}
        require(keys <= event.keys(), f"a span lacks {', '.join(sorted(keys - event.keys()))}")
        require(event["ts"] >= 0 and event["dur"] >= 0, "a span ends before it begins")
    named_rows = {e["tid"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    require({event["tid"] for event in spans} <= named_rows, "a row has no name")
    return f"{len(spans)} spans in {len(named_rows)} rows, {document['otherData']['epochs']} epochs"


def capture(effort: Effort) -> str:
    """Metal records an epoch's commands for Xcode."""
    if not mx.metal.is_available():
        raise Skipped("captures are Metal's")
    if os.environ.get(VARIABLE) != "1":
        raise Skipped(f"{VARIABLE}=1 {program.command('check-gpu')} --only capture")
    with tempfile.TemporaryDirectory() as folder, trainer() as made:
        taken = MetalCapture(Path(folder) / "check.gputrace")
        try:
            for _ in range(SKIPPED + 1):
                taken.begin(made.epoch)
                made.step()
                taken.end(made.epoch - 1)
        finally:
            taken.close()
        require(taken.path.exists(), "no capture was written")
        files = [path for path in (taken.path, *taken.path.rglob("*")) if path.is_file()]
        return f"{sum(path.stat().st_size for path in files) / 2**20:.0f} MiB"


def files(effort: Effort) -> str:
    """A checkpoint, its exports and what is imported of them are the same policy."""
    with tempfile.TemporaryDirectory() as name, trainer() as made:
        made.step()
        folder = Path(name)
        with on(mx.Device(mx.cpu)):  # where a policy is compared with itself, to the bit
            saved = checkpoint.save(folder / "run", made)
            loaded = checkpoint.load(saved)
            same(loaded.weights, made.weights, "the checkpoint")
            for kind, suffix in (("bin", "bin"), ("safetensors", "safetensors")):
                path = folder / f"policy.{suffix}"
                export(loaded, Format(kind), path, checkpoint.recorded(saved))
                found = importing.inspect(path)
                _policy, weights = importing.weights_of(found, made.vec.spec, made.config)
                same(weights, made.weights, kind)
    return f"{len(named(made.weights))} arrays through a checkpoint, bin and safetensors"


def same(weights: object, expected: object, where: str) -> None:
    """Fail unless two trees hold the same arrays."""
    pairs = dict(named(weights)), dict(named(expected))
    require(pairs[0].keys() == pairs[1].keys(), f"{where} has other arrays")
    for name, array in pairs[0].items():
        equal = np.array_equal(np.array(array), np.array(pairs[1][name]))
        require(equal, f"{where} changed {name}")


def learns(effort: Effort) -> str:
    """A minute of Breakout, as this machine trains it by default, learns."""
    need_time(effort)
    scores: list[float] = []
    with trainer("--vec.num-buffers", "2", env="breakout", base=()) as made:
        speed = learned_in_a_minute(made, scores)
        steps = made.global_step
    reached = f"{steps / 1e6:.1f} million steps, {speed / 1e6:.2f} million a second"
    if steps < STEPS:
        raise Skipped(f"{reached}: a minute is too short here to learn in")
    require(bool(scores), f"no episode ended in {reached}")
    score = statistics.mean(scores[-5:])
    require(score >= SCORE, f"score {score:.1f} after {reached} (at least {SCORE:g})")
    return f"score {score:.1f} after {reached} (at least {SCORE:g})"


def learned_in_a_minute(made: Trainer, scores: list[float]) -> float:
    """Train for a minute or ``STEPS``, the epochs that compile not counted; steps per second."""
    speeds, began = [], 0.0
    for logs in made:
        speeds.append(logs["SPS"])
        if "env/score" in logs:
            scores.append(logs["env/score"])
        if made.epoch == COMPILING:
            began = time.perf_counter()
        late = made.epoch > COMPILING and time.perf_counter() - began > MINUTE
        if made.global_step >= STEPS or late:
            break
    return statistics.median(speeds[COMPILING:] or speeds)
