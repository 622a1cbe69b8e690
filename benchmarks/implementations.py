#!/usr/bin/env python
"""Measure epochs with and without each implementation: python benchmarks/implementations.py.

Each row of ``ROWS`` has a configuration in which an implementation runs. Two trainers alternate in
one process: one uses the implementation, the other computes the same with plain MLX or with the
next best implementation. Both are serial and without profiling. Rows with a Mac's defaults run many
launches per minibatch, no graph of the epoch, and with Metal's limits for blocks.

First all rows are compiled in parallel, and the launches of one epoch are counted. A row whose
kernels aren't launched, or are launched as often without the implementation, isn't measured. Then
the rows are measured one after the other, each in a separate process.

``--dry-run`` counts launches only. Without a GPU it builds the graphs for CUDA and computes none.
"""

# ruff: noqa: I001
import argparse
import contextlib
import functools
import importlib
import json
import os
import pkgutil
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import puffer_mlx  # first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx

from puffer_mlx import config, vec
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.errors import UserError
from puffer_mlx.ops import cpu_extension, implementation, verification
from puffer_mlx.ops.gpu import launch
from puffer_mlx.ops.implementation import COMPARING_VARIABLE, Implementation
from puffer_mlx.ppo.optimizers import muon
from puffer_mlx.rollout import on_gpu
from puffer_mlx.rollout.acting_in_c import ActingInC
from puffer_mlx.rollout.verified_rollouts import GPU_ROLLOUTS
from puffer_mlx.system.backend import building_for
from puffer_mlx.system.devices import has_gpu, select_device
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text
from puffer_mlx.training.placement import Acting, Placement
from puffer_mlx.training.trainer import Trainer

ROOMS = "ops", "policy", "ppo", "rollout"  # folders that declare implementations
WARM_UP = 3  # epochs before the measurement; compile the kernels
WARM_UP_SECONDS = 6.0  # limit of the warm-up, after which no further epoch begins
COMMON = "--train.total-timesteps 1000000000000 --train.overlap 0 --base.profile 0"
PACKAGE = "puffer_mlx."
MUON = PACKAGE + "ppo.optimizers.muon."
CHOOSE_ROWS = PACKAGE + "policy.rollout_on_gpu.choose_rows"
ONE_LAUNCH = PACKAGE + "rollout.on_gpu.rollouts_in_one_launch"
ACTORS = [PACKAGE + "rollout.acting.make_actor", PACKAGE + "training.placement.make_actor"]
COLLECT_IN_C = "collect in C"  # counted as a launch


def no_result(*_: Any, **__: Any) -> None:
    """Return None, in place of a function that chooses a variant: the variant isn't used."""


def in_groups(at: Any, inputs: Any, low: bool, *_: Any) -> Any:
    """Make Muon's step with the kernels for tensors of any size, in place of a faster variant."""
    return muon._by_products(at, inputs, low)


# A Mac has no clusters of blocks and 32 KiB of shared memory, and no rollouts on matrix units.
MAC = {
    MUON + "shared_pool_limits": lambda: (launch.THREADS, launch.SHARED_BYTES),
    PACKAGE + "ops.gpu.launch.cluster_blocks": lambda: 1,
    CHOOSE_ROWS: no_result,
}
MAC_OPTIONS = "--train.one-launch 0"


PLAIN, EAGER = "plain MLX", "plain MLX, not compiled"
CUDA = "cuda"


class Row(NamedTuple):
    """A row of the table: an implementation to measure, and a configuration in which it runs.

    Attributes:
        name: Name of the implementation, as in the package.
        words: Command line of the configuration.
        kernels: Pattern of the names of its kernels, or of its functions in C++.
        form: Name of the measured variant; empty if the implementation has only one.
        instead: Functions that replace the implementation when it is disabled, by path. Empty:
            the implementation is refused by name.
        without: Name of the alternative. ``EAGER`` if compiling it would take minutes.
        platform: ``cuda``, ``cpu``, or ``mac`` for a Mac's default.
        also_refused: Names of further implementations that are disabled with this one.
    """

    name: str
    words: str
    kernels: str
    form: str = ""
    instead: Mapping[str, Any] = MappingProxyType({})
    without: str = PLAIN
    platform: str = "mac"
    also_refused: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name of the implementation, with its variant or with other disabled names."""
        return ", ".join([self.name, *([self.form] if self.form else self.also_refused)])

    @property
    def device(self) -> str:
        """Device on which the implementation is measured: ``gpu`` or ``cpu``."""
        return "cpu" if self.platform == "cpu" else "gpu"

    @property
    def mac(self) -> bool:
        """True if the implementation is measured with a Mac's default settings."""
        return self.platform == "mac"

    @property
    def bound(self) -> float:
        """Smallest speed-up for which the implementation is worth keeping."""
        return 1.5 if self.platform == CUDA else 1.3

    @property
    def refused(self) -> set[str]:
        """Names of the implementations to disable by name when this one is measured as disabled."""
        return set() if self.instead else {self.name, *self.also_refused}


BF16 = "--train.precision bf16"
A = f"breakout-a {BF16}"  # MinGRU 2 x 64
D = f"breakout-d {BF16}"  # MinGRU 2 x 128
SELF_PLAY = "connect4_two-selfplay"
WIDE = f"connect4 --policy.hidden-size 256 --policy.num-layers 2 {BF16}"
HOST = "--train.rollout-device gpu"  # the host steps the environments, the GPU acts
STEP = "Muon in one call"
ROLLOUT = "the rollout with environments"
KERNEL = "the policy's step as one kernel"
TWO = "a minibatch's gradients in two launches"
TAKE = "the gather of segments in one call"
SMALL_KERNELS = (
    *("the kernel that gathers targets", "the draw of segments in one call"),
    *("the kernel of advantages", "the kernel that packs arrays"),
)
TO_GROUPS: dict[str, Any] = dict.fromkeys((MUON + "_by_block", MUON + "_by_cluster"), in_groups)
NO_ROWS = {CHOOSE_ROWS: no_result}
NO_LAUNCH = {CHOOSE_ROWS: no_result, ONE_LAUNCH: no_result}
CRAFTAX = "craftax_classic-gpu --vec.total-agents 1024"  # fewer minibatches: plain MLX is slow
LSTM, GRU = "--torch.network LSTM", "--torch.network GRU"

ROWS = [
    # the most undecided first
    Row(STEP, D, "muon_by_cluster", "clusters", TO_GROUPS, "groups", CUDA),
    Row(STEP, A, "muon_by_block", "blocks", TO_GROUPS, "groups", CUDA),
    Row(STEP, "breakout", "muon_by_cluster", "blocks", TO_GROUPS, "groups"),
    Row(STEP, "g2048", "muon_product", "groups"),
    Row(STEP, "breakout", "muon_by_cluster", "blocks"),
    Row(STEP, A, "muon_by_block", "blocks", platform=CUDA),
    Row(STEP, D, "muon_by_cluster", "clusters", platform=CUDA),
    Row(ROLLOUT, D, "rows_", "streamed", NO_ROWS, "threads", CUDA),
    Row(ROLLOUT, D, "rows_", "streamed", NO_LAUNCH, "in steps", CUDA),
    Row(ROLLOUT, SELF_PLAY, "rollout_", "crews", NO_LAUNCH, "in steps"),
    Row(KERNEL, f"{SELF_PLAY} {HOST}", "_act$", "crews"),
    Row(ROLLOUT, A, "rows_", "matrix units", NO_ROWS, "threads", CUDA),
    Row(ROLLOUT, "breakout", "rollout_", "threads", NO_LAUNCH, "in steps"),
    Row(KERNEL, f"breakout {HOST}", "_act$"),
    Row("MinGRU in one pass", "breakout", "mingru_(for|back)ward", without=EAGER),
    Row("LSTM in one pass", CRAFTAX, "lstm_(for|back)ward", without=EAGER),
    Row("GRU in one pass", f"breakout {GRU}", "gru_(for|back)ward", without=EAGER),
    Row("MinGRU in one pass", "cartpole", "mingru_(for|back)ward"),
    # the others
    Row(ROLLOUT, "breakout", "rollout_", "threads", without="the host"),
    Row(ROLLOUT, "g2048", "step_", "in steps", without="the host"),
    Row("the kernel that chooses actions", "g2048", "choose_actions"),
    Row("the loss by closed form", "breakout", "loss$|moments"),
    Row(TAKE, "breakout", "take_several", "all small kernels", also_refused=SMALL_KERNELS),
    Row(TAKE, "breakout", "take_several"),
    Row("the kernel that gathers targets", "breakout", "take_targets"),
    Row("the kernel of advantages", "breakout", "advantages"),
    Row("the draw of segments in one call", "breakout", "draw_rows"),
    Row("the kernel that packs arrays", "breakout", "^pack$"),
    Row("the count of minibatches", "breakout", "count_minibatches"),
    Row("the count of minibatches", A, "count_minibatches", platform=CUDA),
    Row(TWO, A, "mingru_minibatch", platform=CUDA),
    Row(TWO, D, "mingru_minibatch_wide", "wide", platform=CUDA),
    Row(TWO, WIDE, "mingru_minibatch_wide", "wide", platform=CUDA),
]


def _cpu(name: str, arguments: str, kernels: str, **more: Any) -> Row:
    return Row(name, arguments, kernels, platform="cpu", **more)


CPU = "breakout-cpu"
SB3 = "cartpole --train.algorithm ppo --torch.network MLP --policy.dialect sb3"
ROWS += [
    _cpu("the policy's step in C", CPU, COLLECT_IN_C, instead=dict.fromkeys(ACTORS, no_result)),
    _cpu("the epoch in one operation of ppo/small_networks", "gym:CartPole-v1", "ppo_epoch"),
    _cpu("MinGRU in one pass", CPU, "mingru_(for|back)ward"),
    _cpu("LSTM in one pass", f"{CPU} {LSTM}", "lstm_(for|back)ward"),
    _cpu("GRU in one pass", f"{CPU} {GRU}", "gru_(for|back)ward"),
    _cpu(
        "the extension's gradient with respect to a recurrent weight",
        f"{CPU} {LSTM}",
        "recurrent_weight",
    ),
    _cpu("the recursion of advantages in C++", CPU, "discount"),
    _cpu("Muon in one call", CPU, "muon_step"),
    _cpu("Adam in one call", f"{CPU} --train.optimizer adam", "adam_step"),
    _cpu("the extension's product of matrices", CPU, "^linear$"),
    _cpu("the extension's sum over rows", f"{CPU} {GRU}", "linear_bias_gradient"),
    _cpu("the extension's dense layer", SB3, "dense_gradients"),
    _cpu("GELU in one pass", f"{CPU} --policy.dialect puffer3", "gelu_"),
    _cpu("the extension's RMSNorm", f"{CPU} {GRU}", "add_rms_norm"),
    _cpu("the gather of segments in one call", "connect4", "take_rows"),
    _cpu("the draw of segments in one call", "connect4", "draw_rows"),
]


@functools.cache
def declared() -> set[str]:
    """Return the names of all implementations that the package declares."""
    names: set[str] = set()
    for module in pkgutil.walk_packages(puffer_mlx.__path__, PACKAGE):
        if module.name.split(".")[1] in ROOMS:
            for value in vars(importlib.import_module(module.name)).values():
                for each in (value, getattr(value, "__wrapped__", None)):
                    if isinstance(each, Implementation):
                        names.add(each.name)
    return names


# ---- a row, in a separate process ----------------------------------------------------------------


@contextlib.contextmanager
def used(row: Row, fused: bool) -> Iterator[None]:
    """Enable or disable a row's implementation in a ``with`` block.

    Args:
        row: Row of the table.
        fused: True to enable the implementation.
    """
    refused = set() if fused else row.refused
    instead = {**(MAC if row.mac else {}), **({} if fused else row.instead)}
    with contextlib.ExitStack() as stack:
        for path, function in instead.items():
            stack.enter_context(mock.patch(path, function))
        stack.enter_context(implementation.allowing(declared() - refused))
        stack.enter_context(mock.patch.object(implementation, "refused", refused))
        stack.enter_context(mock.patch.object(verification, "uses_gpu_kernels", lambda: False))
        if row.without == EAGER and not fused:
            mx.disable_compile()
            stack.callback(mx.enable_compile)
        yield


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the launches and the calls of the C extension in a ``with`` block, by name.

    MLX compiles no functions in the block, so that each launch passes through Python.
    """
    counts: Counter[str] = Counter()
    kernel, collect, extension = launch._kernel, ActingInC.collect, cpu_extension.load_extension()

    def count_kernel(*arguments: Any) -> Any:
        result = kernel(*arguments)
        counts[result.name] += 1
        return result

    def count_rollout(*arguments: Any) -> Any:
        counts[COLLECT_IN_C] += 1
        return collect(*arguments)

    mx.disable_compile()
    try:
        with (
            mock.patch.object(launch, "_kernel", count_kernel),
            mock.patch.object(ActingInC, "collect", count_rollout),
            mock.patch.object(
                cpu_extension, "load_extension", lambda: _Counting(extension, counts)
            ),
        ):
            yield counts
    finally:
        mx.enable_compile()


class _Counting:
    """Wrapper of the C extension that counts the calls of each function."""

    def __init__(self, extension: Any, counts: Counter[str]) -> None:
        self._extension = extension
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        result = getattr(self._extension, name)
        if isinstance(result, type) or not callable(result):
            return result

        def call(*arguments: Any, **keywords: Any) -> Any:
            self._counts[name] += 1
            return result(*arguments, **keywords)

        setattr(self, name, call)
        return call


def make(row: Row) -> Trainer:
    """Create the trainer of a row of the table.

    The implementation must be enabled or disabled before: see ``used``.
    """
    name, *arguments = row.words.split()
    arguments += f"{MAC_OPTIONS if row.mac else ''} {COMMON}".split()
    settings = config.load(name, arguments)
    trainer = Trainer(settings, vec.make(settings, cpu_extension.count_cores()))
    if row.mac:
        trainer.learner.graph = None
        trainer.collector.launches_ahead = False
    return trainer


def finish(trainer: Trainer) -> None:
    """Wait for the rollout that a trainer has launched for its next epoch, if any."""
    rollout = trainer.queue.rollout
    if rollout is not None and rollout.gpu_log is not None:
        mx.eval(rollout.gpu_log, *(a for a in rollout.buffer.fields.values() if a is not None))


def launches_of(row: Row, fused: bool, builds: bool) -> int:
    """Return how often an epoch launches a row's kernels.

    Args:
        row: Row of the table.
        fused: True to use the row's implementation.
        builds: True to only build the epoch's graphs.
    """
    with used(row, fused):
        trainer = make(row)
        if builds:
            with counted() as counts:
                build_epoch(trainer)
        else:
            for _ in range(WARM_UP):  # afterwards each epoch launches the next one's rollout
                trainer.step()
            with counted() as counts:
                trainer.step()
        trainer.vec.close()
    return sum(n for name, n in counts.items() if re.search(row.kernels, name))


def build_epoch(trainer: Trainer) -> None:
    """Build the graphs of a training epoch without computing them."""
    with mock.patch.multiple(mx, eval=no_result, async_eval=no_result):
        rollout = trainer.queue.current(trainer.weights)
        scheduled = trainer.scheduled(0)
        key = trainer.queue.update_key(rollout)
        trainer.learner.prepare(rollout, trainer.train_state, scheduled, key, 0).submit()
        trainer.queue.rollout = None


def place_on_gpu(acting: Acting, *_: Any) -> Placement:
    """Return the devices of a run as on a GPU, with arrays on the CPU.

    Replaces ``choose_placement``.
    """
    device = mx.Device(mx.cpu)
    settings, environments, policy, assignment = acting
    train = settings.train
    gpu_rollouts = None
    if train.rollout_device in ("auto", "gpu-kernel") and not GPU_ROLLOUTS.is_refused:
        gpu_rollouts = on_gpu.rollouts_on_gpu(
            policy, environments, train.horizon, train.precision, assignment
        )
    agents = environments.num_agents
    return Placement(
        device, device, precision=train.precision, gpu_rollouts=gpu_rollouts, agents=agents
    )


def ones(name: str, **arguments: Any) -> list[mx.array]:
    """Return arrays of ones with the shapes of a kernel's outputs, in place of its results."""
    kinds = zip(arguments["output_shapes"], arguments["output_dtypes"], strict=True)
    return [mx.ones(shape, dtype) for shape, dtype in kinds]


def count(row: Row, dry: bool) -> dict[str, int]:
    """Return the kernel launches of an epoch with and without the implementation of a row."""
    builds = dry and row.device == "gpu"
    with contextlib.ExitStack() as stack:
        if builds and not has_gpu():
            stack.enter_context(building_for("cuda", ones))
            stack.enter_context(
                mock.patch(PACKAGE + "training.trainer.choose_placement", place_on_gpu)
            )
            if HOST in row.words:  # the CPU acts as a GPU
                stack.enter_context(mock.patch(ACTORS[0], no_result))
        result, without = (launches_of(row, fused, builds) for fused in (True, False))
    return {"launches": result, "launches without": without}


def measure(row: Row, blocks: int, epochs: int, seconds: float) -> dict[str, Any]:
    """Measure epochs with and without a row's implementation, in alternating blocks of epochs.

    Args:
        row: Row of the table.
        blocks: Number of blocks per trainer; reduced to two if an epoch takes long.
        epochs: Maximum number of epochs per block.
        seconds: Approximate time for all blocks.

    Returns:
        Milliseconds per epoch for each block, and the number of epochs per block.
    """
    trainers = {}
    each = 0.0  # seconds of an epoch with and one without
    for fused in (True, False):
        with used(row, fused):
            trainers[fused] = trainer = make(row)
            each += _warmed_up(trainer)
    blocks = max(2, min(blocks, int(5 * seconds / each)))
    length = max(1, min(epochs, int(seconds / (blocks * each))))
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(blocks):
        for fused, trainer in trainers.items():
            with used(row, fused):
                began = time.perf_counter()
                for _ in range(length):
                    trainer.step()
                finish(trainer)
                times[fused].append(1000 * (time.perf_counter() - began) / length)
    for trainer in trainers.values():
        trainer.vec.close()
    return {"epochs of a block": length, "ms": times[True], "ms without": times[False]}


def _warmed_up(trainer: Trainer) -> float:
    """Train for some epochs as a warm-up. Returns the seconds of the last one."""
    seconds = 0.0
    began = time.perf_counter()
    for _ in range(WARM_UP):
        start = time.perf_counter()
        trainer.step()
        finish(trainer)
        seconds = time.perf_counter() - start
        if time.perf_counter() - began > WARM_UP_SECONDS:
            break
    return seconds


# ---- all rows ------------------------------------------------------------------------------------


def child(number: int, task: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Count launches or measure epochs for a row of the table, in a separate process.

    Returns:
        The result that the process printed as JSON, or the key ``fault`` with the reason.
    """
    arguments = [sys.executable, __file__, "--row", f"{number}", "--task", task]
    arguments += ["--device", options.device, "--blocks", f"{options.blocks}"]
    arguments += ["--epochs", f"{options.epochs}", "--row-seconds", f"{options.row_seconds:g}"]
    cache = Path(options.cache) / f"{number}"  # MLX's, which several processes mustn't write
    environment = {**os.environ, "MLX_PTX_CACHE_DIR": str(cache)}
    environment[COMPARING_VARIABLE] = "1"  # replaced functions don't count as changed
    process_options: dict[str, Any] = {"capture_output": True, "text": True, "env": environment}
    try:
        process = subprocess.run(
            arguments, timeout=max(1.0, seconds), check=False, **process_options
        )
    except subprocess.TimeoutExpired:
        return {"fault": f"{task}: not done after {seconds:.0f} s"}
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        return {"fault": f"{task}: {' '.join(lines[-2:]) or process.returncode}"}
    return json.loads(process.stdout.splitlines()[-1])


def verdict(row: Row, result: dict[str, Any]) -> str:
    """Return as text whether a row's implementation is worth keeping."""
    if result.get("launches") == 0:
        return "not launched"
    if result.get("launches", 1) == result.get("launches without"):
        return "launched equally often without it"
    if "fault" in result:
        return result["fault"][:120]
    if "ratio" not in result:
        return "not measured"
    word = "stays" if result["ratio"] >= row.bound else "goes"
    return f"{word} ({row.bound})"


RECORDED = "name", "form", "without", "words", "platform", "bound"
HEADER = (
    "| implementation | without it | configuration | launches |"
    " ms with | ms without | ratio | verdict |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def line(row: Row, result: dict[str, Any]) -> str:
    """Return the results of a row as a line of the Markdown table."""
    arguments = row.words + (f" {MAC_OPTIONS}, no graph" if row.mac else "")
    cells = [row.title, row.without, f"`{arguments}`", str(result.get("launches", "?"))]
    if "ratio" in result:
        medians = (statistics.median(result[key]) for key in ("ms", "ms without"))
        cells += [*(f"{ms:.2f}" for ms in medians), f"{result['ratio']:.2f}"]
    else:
        cells += ["", "", ""]
    return "| " + " | ".join([*cells, verdict(row, result)]) + " |"


def ratio(result: dict[str, Any]) -> float:
    """Return the speed-up by an implementation: the median ratio of neighbouring measurements."""
    pairs = zip(result["ms without"], result["ms"], strict=True)
    return statistics.median(without / with_ for without, with_ in pairs)


def table(rows_to_run: list[int], options: argparse.Namespace) -> None:
    """Count launches and measure epochs for rows of the table.

    Prints and saves each finished row.
    """
    began = time.perf_counter()
    record: dict[str, Any] = {"versions": version_text().splitlines(), "rows": []}
    seconds_left = lambda: options.seconds - (time.perf_counter() - began)  # noqa: E731
    task = "dry-run" if options.dry_run else "count"

    def prepare(number: int) -> dict[str, Any]:
        seconds = (
            seconds_left() if options.dry_run else min(options.compile_seconds, seconds_left() / 2)
        )
        return child(number, task, options, seconds) if seconds > 1 else {"fault": "no time left"}

    with ThreadPoolExecutor(options.workers) as pool:
        prepared = dict(zip(rows_to_run, pool.map(prepare, rows_to_run), strict=True))
    print(HEADER, flush=True)
    for number in rows_to_run:
        row = ROWS[number]
        result = prepared[number]
        measures = result.get("launches") and result["launches"] != result["launches without"]
        if measures and not options.dry_run and seconds_left() > 0:
            seconds = min(seconds_left(), 20 + 10 * options.row_seconds)
            result |= child(number, "measure", options, seconds)
            if "ms" in result:
                result["ratio"] = ratio(result)
        print(line(row, result), flush=True)
        facts = {name: getattr(row, name) for name in RECORDED}
        record["rows"].append({**facts, **result, "verdict": verdict(row, result)})
        if options.json:
            write_json(record, options.json)


def run_task(options: argparse.Namespace) -> None:
    """Count launches or measure epochs for one row in this process. Prints the result as JSON."""
    row = ROWS[options.row]
    dry = options.task == "dry-run"
    if row.device == "cpu" or not dry or has_gpu():
        select_device(row.device)
    else:
        select_device("cpu")
    if options.task == "measure":
        result: dict[str, Any] = measure(row, options.blocks, options.epochs, options.row_seconds)
    else:
        result = dict(count(row, dry))
    print(json.dumps(result))


@with_exit_code
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "gpu"), help="(auto)")
    parser.add_argument("--only", metavar="TEXT", help="rows whose title or command has the text")
    parser.add_argument("--seconds", type=float, default=480, help="time limit for all rows (480)")
    parser.add_argument("--row-seconds", type=float, default=4, help="time for measuring a row (4)")
    parser.add_argument(
        "--compile-seconds", type=float, default=100, help="time limit for compiling a row (100)"
    )
    parser.add_argument("--blocks", type=int, default=5, help="blocks per trainer (5)")
    parser.add_argument("--epochs", type=int, default=10, help="maximum epochs per block (10)")
    parser.add_argument("--workers", type=int, default=8, help="rows compiled at a time (8)")
    parser.add_argument("--dry-run", action="store_true", help="count launches only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to a file")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.row is not None:
        return run_task(options)
    device = options.device
    if device == "auto":
        device = "gpu" if has_gpu() else "cpu"
    if device == "gpu" and not (has_gpu() or options.dry_run):
        raise UserError("this build of MLX has no GPU", "--dry-run, or --device cpu")
    rows_to_run = [
        number
        for number, row in enumerate(ROWS)
        if row.device == device
        and not (row.platform == CUDA and mx.metal.is_available())
        and (options.only or "") in f"{row.title} {row.words}"
    ]
    if not rows_to_run:
        raise UserError(f"--only {options.only}: no such row", f"one of {sorted(declared())}")
    cpu_extension.load_extension()  # otherwise each process would compile it
    with tempfile.TemporaryDirectory() as options.cache:
        table(rows_to_run, options)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
