"""Items: devices, precision, memory, the profile, traces and captures, files."""

import math
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from coded_environment import Coded
from hardware_overlap import recorded, timed
from mlx.utils import tree_map

from puffer_mlx import checkpoint, config
from puffer_mlx.check.gpu.runs import COMPILING, OVERLAP, SERIAL
from puffer_mlx.check.gpu.tools import (
    at_most,
    flat,
    need_gpu,
    need_time,
    on,
    require,
    trainer,
)
from puffer_mlx.check.items import Failed, Skipped
from puffer_mlx.errors import UserError
from puffer_mlx.export import importing
from puffer_mlx.export.exporting import Format, export
from puffer_mlx.ppo import precision
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.profiling.metal_capture import VARIABLE, WARMUP_EPOCHS, MetalCapture
from puffer_mlx.profiling.phases import PROFILE_EVERY
from puffer_mlx.training.run import Run
from puffer_mlx.training.trainer import Logs, Trainer
from puffer_mlx.trees import named

GROWTH = 1 << 20  # bytes, over a run
SUM, MISC, COST = 0.01, 0.03, 0.02  # of an epoch
NBYTES = (4, 2**16, 2**21)

EPOCHS = 4
NEAR = {"fp32": 1e-6, "bf16": 0.1, "fp16": 0.05}  # the first epoch's entropy, beside fp32's
OVERFLOWS = 4  # skipped steps at first, while fp16 finds its scale


# ---- devices -----------------------------------------------------------------------------------


def round_trip(quick: bool) -> str:
    """Arrays go from the CPU to the GPU and back unharmed, each evaluated or all in one graph."""
    need_gpu()
    times = []
    for nbytes in NBYTES:
        numbers = np.arange(nbytes // 4, dtype=np.float32)
        for together in (False, True):
            for _ in range(5):
                began = time.perf_counter()
                sent = mx.add(mx.array(numbers), 1.0, stream=mx.cpu)
                if not together:  # CUDA: a GPU never sees the end of a CPU's async_eval
                    mx.eval(sent)
                doubled = mx.multiply(sent, 2.0, stream=mx.gpu)
                if not together:
                    mx.eval(doubled)
                back = np.array(mx.subtract(doubled, 3.0, stream=mx.cpu))
                times.append(time.perf_counter() - began)
            right = np.array_equal(back, numbers * 2 - 1)
            require(right, f"{nbytes} bytes came back changed")
    last = 1e6 * statistics.median(times[-5:])
    return f"right; {NBYTES[-1] >> 20} MiB in one graph takes {last:.0f} us"


def where_to_act(quick: bool) -> str:
    """``train.rollout_device auto`` says what the rule chose."""
    need_gpu()
    with trainer("--train.rollout-device", "auto") as run:
        require(bool(run.placement.reason), "no reason was given")
        return run.placement.reason


# ---- precision ---------------------------------------------------------------------------------


def trains(quick: bool) -> str:
    """Every precision trains: finite losses near fp32's, weights that stay float32 and move."""
    first, texts = math.nan, []
    for name in DTYPES:
        with trainer("--train.precision", name) as run:
            before = flat(run.weights)
            logs = [run.step() for _ in range(EPOCHS)]
            dtypes = {array.dtype for _, array in named(run.train_state[:2])}
            require(dtypes == {mx.float32}, f"{name}: weights or momentum are {dtypes}")
            require(changed(run.weights, before), f"{name}: nothing was learned")
        bad = [key for key, value in logs[-1].items() if not math.isfinite(value)]
        require(not bad, f"{name}: {', '.join(bad)} not finite")
        at_most(f"{name}: skipped steps", logs[-1]["loss/skipped_steps"], OVERFLOWS)
        entropy = logs[0]["loss/entropy"]
        first = entropy if name == "fp32" else first
        at_most(f"{name}: entropy apart by", abs(entropy - first) / abs(first), NEAR[name])
        texts.append(f"{name} entropy {logs[0]['loss/entropy']:.4f}")
    return ", ".join(texts)


def changed(weights: Any, before: np.ndarray) -> bool:
    """Whether any number of a tree isn't what it was."""
    return not np.array_equal(flat(weights), before)


def spoil(run: Trainer) -> None:
    """Make the gradients of the next minibatches overflow."""
    real = run.learner.functions.gradients

    def gradients(*arguments: Any) -> Any:
        losses, grads = real(*arguments)
        return losses, tree_map(lambda grad: grad * math.inf, grads)

    run.learner.functions.gradients, run.learner.graph = gradients, None


def skips(quick: bool) -> str:
    """A gradient that overflows changes nothing but the count and fp16's scale; then it goes on."""
    for name in DTYPES:
        with trainer("--train.precision", name) as run:
            run.step()
            learner, before = run.learner, flat(run.train_state[:2])
            real, graph = learner.functions.gradients, learner.graph
            counted = run.train_state.scaler
            spoil(run)
            try:
                run.step()
            except UserError as error:  # what the trainer looks at itself
                words = "weights or momentum changed in a skipped step"
                raise Failed(f"{name}: {words}: {error.message}") from None
            minibatches, now = run.config.minibatches, run.train_state.scaler
            skipped = int(now["skipped"].item()) - int(counted["skipped"].item())  # type: ignore
            require(skipped == minibatches, f"{name}: {skipped} of {minibatches} were skipped")
            same = not changed(run.train_state[:2], before)
            require(same, f"{name}: weights or momentum changed in a skipped step")
            share = now["scale"].item() / counted["scale"].item()  # type: ignore
            expected = 0.5**minibatches if name == "fp16" else 1.0
            require(share == expected, f"{name}: scale times {share:g}, expected {expected:g}")
            learner.functions.gradients, learner.graph = real, graph
            run.step()
            require(changed(run.train_state[:2], before), f"{name}: it learns no more")
    return "skipped, counted, fp16's scale halved, and on"


def stops(quick: bool) -> str:
    """Ten minibatches in a row that aren't finite end a run; the message names where it began."""
    options = [
        *("--vec.total-agents", "16", "--vec.num-buffers", "2", "--train.horizon", "4"),
        *("--train.minibatch-size", "32", "--policy.hidden-size", "8", "--policy.num-layers", "1"),
        *("--train.total-timesteps", "1e9", "--train.rollout-device", "cpu"),
    ]
    run = Run.open(config.load("squared", options), Coded(16, 2, finite=False)).trainer
    before = flat(run.weights)
    for epoch in range(precision.TOLERATED):
        try:
            run.step()
        except UserError as error:
            named_phase = "the rollout" in error.message and "observations" in error.hint
            require(named_phase, f"the message names another phase: {error}")
            expected = math.ceil(precision.TOLERATED / run.config.minibatches)
            require(epoch + 1 == expected, f"stopped after {epoch + 1} epochs, not {expected}")
            require(not changed(run.weights, before), "weights changed")
            return f"stopped after {precision.TOLERATED}: {error.message}"
    raise Failed(f"{precision.TOLERATED} epochs of NaN observations didn't stop it")


# ---- what a run leaves behind ------------------------------------------------------------------


def memory(quick: bool) -> str:
    """Epochs don't leave memory behind, overlapped and profiled ones included."""
    epochs = 60 if quick else 300
    with trainer(*OVERLAP) as run:
        for _ in range(2 * PROFILE_EVERY + 2):
            run.step()
        before = mx.get_active_memory()
        for _ in range(epochs):
            run.step()
        growth = mx.get_active_memory() - before
    return f"{epochs} epochs; {at_most('bytes left behind', growth, GROWTH)}"


def parts(logs: Logs) -> dict[str, float]:
    """The phases of a record, seconds by name."""
    names = [name for name in logs if name.startswith(("perf/eval_", "perf/train_"))]
    return {name.removeprefix("perf/"): logs[name] for name in names}


def profile(quick: bool) -> str:
    """Phases of a lane add up to its time, and hardly any of it has no name."""
    texts = []
    for options in (SERIAL, OVERLAP):
        with trainer(*options, env="breakout", base=timed(quick)) as run:
            logs = [run.step() for _ in range(5)][2:]
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


def profile_cost(quick: bool) -> str:
    """Measuring phases costs less than 2 % of the speed, its part of a profiled epoch included."""
    need_time(quick)
    with trainer("--profile", "True", env="breakout", base=timed(quick)) as run:
        for _ in range(COMPILING):
            run.step()
        times: dict[str, list[float]] = {"off": [], "normal": [], "profiled": []}
        for _ in range(15):  # of one trainer: two differ by where their threads and arrays are
            for way in times:
                run.profiler.rollout.enabled = run.profiler.train.enabled = way != "off"
                run.profiler.should_profile = lambda epoch, way=way: way == "profiled"
                times[way].append(run.step()["perf/epoch"])
    off, normal, profiled = map(min, times.values())  # the least disturbed of each
    cost = (normal + (profiled - normal) / PROFILE_EVERY) / off - 1
    parts = f"of {1000 * off:.1f} ms; a profiled epoch {profiled / off - 1:.1%}"
    return at_most(f"{normal / off - 1:.1%} {parts}; altogether", cost, COST)


def trace(quick: bool) -> str:
    """A trace is written, and is what Perfetto reads."""
    with trainer(*OVERLAP) as run:
        document = recorded(run, 2)
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    require(len(spans) > 20, f"{len(spans)} spans")
    for event in spans:
        keys = {"name", "ph", "pid", "tid", "ts", "dur", "args"}
        require(keys <= event.keys(), f"a span lacks {', '.join(sorted(keys - event.keys()))}")
        require(event["ts"] >= 0 and event["dur"] >= 0, "a span ends before it begins")
    named_rows = {e["tid"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    require({event["tid"] for event in spans} <= named_rows, "a row has no name")
    return f"{len(spans)} spans in {len(named_rows)} rows, {document['otherData']['epochs']} epochs"


def capture(quick: bool) -> str:
    """Metal records an epoch's commands for Xcode."""
    if not mx.metal.is_available():
        raise Skipped("captures are Metal's")
    if os.environ.get(VARIABLE) != "1":
        raise Skipped(f"{VARIABLE}=1 python tests/hardware --only capture")
    with tempfile.TemporaryDirectory() as folder, trainer() as run:
        taken = MetalCapture(Path(folder) / "check.gputrace")
        try:
            for _ in range(WARMUP_EPOCHS + 1):
                taken.begin(run.epoch)
                run.step()
                taken.end()
        finally:
            taken.close()
        require(taken.path.exists(), "no capture was written")
        files = [path for path in (taken.path, *taken.path.rglob("*")) if path.is_file()]
        return f"{sum(path.stat().st_size for path in files) / 2**20:.0f} MiB"


def files(quick: bool) -> str:
    """A checkpoint, its exports and what is imported of them are the same policy."""
    with tempfile.TemporaryDirectory() as name, trainer() as run:
        run.step()
        folder = Path(name)
        with on(mx.Device(mx.cpu)):  # where a policy is compared with itself, to the bit
            saved = checkpoint.save(folder / "run", run)
            loaded = checkpoint.load(saved)
            same(loaded.weights, run.weights, "the checkpoint")
            for kind, suffix in (("bin", "bin"), ("safetensors", "safetensors")):
                path = folder / f"policy.{suffix}"
                export(loaded, Format(kind), path, checkpoint.recorded(saved))
                source = importing.inspect(path)
                _policy, weights = importing.convert_weights(source, run.vec.spec, run.config)
                same(weights, run.weights, kind)
    return f"{len(named(run.weights))} arrays through a checkpoint, bin and safetensors"


def same(weights: object, expected: object, where: str) -> None:
    """Fail unless two trees hold the same arrays."""
    pairs = dict(named(weights)), dict(named(expected))
    require(pairs[0].keys() == pairs[1].keys(), f"{where} has other arrays")
    for name, array in pairs[0].items():
        equal = np.array_equal(np.array(array), np.array(pairs[1][name]))
        require(equal, f"{where} changed {name}")
