#!/usr/bin/env python
"""Measure the gain of overlap: python benchmarks/overlap.py ENV [options] [--json FILE] [--help].

An iteration has two halves: a rollout, and training. One process measures alternately, for one
configuration:

    rollout alone      with the thread, the streams and the cores that it has when overlapped
    training alone     always on the same rollout
    overlapped         iterations of `train.overlap 1`
    serial             iterations of `train.overlap 0`, each half on all cores
    serial, all on the GPU   serial iterations that act on the GPU too; if `serial` acts on the CPU

An overlapped iteration takes at least as long as the longer half. Compiling isn't measured.

`--cores 0-0,1-1` (Linux) divides the cores: the rollout's threads (Python, MLX's streams and
environments) run on the first set, training's on the second. A thread inherits the cores of the
thread that starts it, so the starting thread is bound to a set while it starts that half's threads.
The pool of helper threads can't be divided, because both halves use it for products. So results are
exact only with one core each.
"""

# ruff: noqa: I001
import argparse
import os
import resource
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx

from puffer_mlx import vec
from halves import Halves
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.ops.cpu_extension import load_extension
from puffer_mlx.ops.cpu_extension import count_cores
from puffer_mlx.system.devices import kind, select_device
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.errors import UserError
from puffer_mlx.system.json_text import write_json
from puffer_mlx.training.placement import rollout_cores
from puffer_mlx.training.streams import configure_learner_stream
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.system.version import version_text
from puffer_mlx.training.streams import Worker, rollout_worker

EXTRA_EPOCHS = 50  # after the measurement, so that the run's end has no effect on it
DividedCores = tuple[set[int], set[int]]  # the rollout's cores and training's
Measure = Callable[[], float]  # seconds of one rollout, training or iteration


def parse_cores(text: str) -> DividedCores:
    """Parse two sets of cores, such as `0-3,4-7`; each is a range or one core."""
    try:
        ranges = [[int(end) for end in ends.split("-")] for ends in text.split(",")]
        rollout, training = (set(range(ends[0], ends[-1] + 1)) for ends in ranges)
    except ValueError:
        rollout = training = set()
    if not rollout or not training:
        raise argparse.ArgumentTypeError(f"{text!r} is not two sets of cores, for example 0-0,1-1")
    return rollout, training


def parse_count(text: str) -> int:
    """Parse a positive whole number."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options to the parser of training options."""
    group = parser.add_argument_group("this benchmark")
    for option, default, text in (
        ("--epochs", 5, "epochs of each kind per round (5)"),
        ("--repeat", 5, "rounds (5)"),
        ("--warm-up", 3, "epochs before the measurement (3)"),
    ):
        group.add_argument(option, type=parse_count, default=default, help=text)
    group.add_argument(
        "--cores",
        type=parse_cores,
        metavar="A-B,C-D",
        help="the rollout's cores and training's (Linux)",
    )
    group.add_argument("--json", metavar="FILE", type=Path, help="write the record to a file")


# ---- threads and their cores ---------------------------------------------------------------------


def check_cores(divided: DividedCores) -> None:
    """Check that threads can be bound to two sets of cores.

    Raises:
        UserError: If this system can't bind threads, or the process may not use the cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("--cores needs Linux, which can bind threads to cores", "leave it out")
    allowed = os.sched_getaffinity(0)
    if missing := (divided[0] | divided[1]) - allowed:
        raise UserError(
            f"--cores names core {min(missing)}, and this process may use {sorted(allowed)}",
            "choose two sets of these cores",
        )
    if divided[0] & divided[1]:
        raise UserError("--cores: the two sets have a core in common", "0-0,1-1 for example")


@contextmanager
def running_on(allowed: set[int] | None) -> Iterator[None]:
    """Bind the calling thread, and threads that it starts, to cores in a ``with`` block.

    None: no restriction.
    """
    if allowed is None:
        yield
        return
    previous = os.sched_getaffinity(0)
    os.sched_setaffinity(0, allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, previous)


# ---- what is measured ----------------------------------------------------------------------------


def make_overlapped(config: Config, divided: DividedCores | None, stack: ExitStack) -> Halves:
    """Create an overlapped trainer, which trains in the calling thread.

    Args:
        config: Configuration with ``train.overlap 1``.
        divided: Cores of the two halves; None: all cores for both.
        stack: Closes the environments.
    """
    rollout, training = divided or (None, None)
    with running_on(training):
        # The first operation starts the thread of this thread's CPU stream.
        mx.eval(mx.add(mx.array(1.0), 1.0, stream=mx.cpu))
    threads = len(rollout) if rollout else rollout_cores(config)
    with running_on(rollout):
        rollout_worker()  # starts the thread of the acting streams
        environments = stack.enter_context(vec.make(config, threads))
    trainer = Trainer(config, environments)
    if rollout and training:
        trainer.collector.cores = len(rollout)
        if trainer.placement.learner == mx.cpu:
            configure_learner_stream(len(training))
        os.sched_setaffinity(0, training)
    return Halves(trainer)


def make_serial(config: Config, stack: ExitStack) -> Measure:
    """Create a serial trainer in a separate thread, whose streams use all cores.

    Returns:
        A function that runs an iteration and returns its seconds.
    """
    thread = Worker("serial")
    stack.callback(thread.close)

    def make() -> Halves:
        return Halves(Trainer(config, stack.enter_context(vec.make(config, rollout_cores(config)))))

    halves = thread.submit(make).result()
    return lambda: thread.submit(halves.iteration).result()


def prepare(argv: list[str], options: argparse.Namespace, stack: ExitStack) -> dict[str, Measure]:
    """Create the overlapped and serial trainers, and run the warm-up.

    Returns functions that each run and time a rollout, training or an iteration, by name.
    """
    serial: dict[str, Measure] = {}
    overlapped_config = settings(argv, options, "--train.overlap", "1")
    serial_config = settings(argv, options, "--train.overlap", "0")
    serial["serial"] = make_serial(serial_config, stack)
    device = kind(mx.default_device())
    if serial_config.train.rollout_device not in ("auto", device):
        one_device_config = settings(
            argv, options, "--train.overlap=0", f"--train.rollout-device={device}"
        )
        serial[f"serial, all on the {device.upper()}"] = make_serial(one_device_config, stack)
    # This also starts the helper threads, before the cores are divided.
    for run_once in serial.values():
        for _ in range(options.warm_up):
            run_once()
    halves = make_overlapped(overlapped_config, options.cores, stack)
    for _ in range(options.warm_up):
        halves.iteration()
    overlapped = {
        "rollout alone": halves.rollout,
        "training alone": halves.training,
        "overlapped": halves.iteration,
    }
    for run_once in overlapped.values():
        run_once()
    return overlapped | serial


def settings(argv: list[str], options: argparse.Namespace, *more: str) -> Config:
    """Return the configuration of a trainer to measure, with additional options.

    The run is long enough for all measurements.
    """
    config, _ = parse_command_line([*argv, *more], add_options)
    epochs = options.warm_up + options.repeat * options.epochs + EXTRA_EPOCHS
    config.train.total_timesteps = max(config.train.total_timesteps, epochs * config.batch_size)
    config.base.profile = False  # a profiled epoch takes longer
    return config


def measure(measures: dict[str, Measure], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measure overlapped and serial iterations and their halves, alternating in rounds.

    Returns:
        For each, the median milliseconds of all rounds, and MLX's peak memory.
    """
    rounds: dict[str, dict[str, Any]] = {name: {"ms": [], "mlx_peak_gib": 0.0} for name in measures}
    for _ in range(options.repeat):
        for name, run_once in measures.items():
            mx.reset_peak_memory()
            seconds = statistics.median(run_once() for _ in range(options.epochs))
            row = rounds[name]
            row["ms"].append(1000 * seconds)
            row["mlx_peak_gib"] = max(row["mlx_peak_gib"], mx.get_peak_memory() / 2**30)
    return rounds


# ---- the results ---------------------------------------------------------------------------------


def summarize(rounds: dict[str, dict[str, Any]], steps: int) -> dict[str, float]:
    """Return medians over the rounds: times, steps per second, and ratios within a round.

    Args:
        rounds: Result of ``measure``.
        steps: Environment steps of an iteration.
    """
    times = {name: row["ms"] for name, row in rounds.items()}
    halves = list(zip(times["rollout alone"], times["training alone"], strict=True))
    longer_halves = [max(pair) for pair in halves]
    results = {f"{name}, ms": statistics.median(values) for name, values in times.items()}
    results["the longer half, ms"] = statistics.median(longer_halves)
    results["longer half / shorter"] = statistics.median(max(p) / min(p) for p in halves)
    results["overlapped / the longer half"] = _ratio(times["overlapped"], longer_halves)
    for name, values in times.items():
        if name.startswith("serial"):
            results[f"speed-up over {name}"] = _ratio(values, times["overlapped"])
    for name, values in times.items():
        if not name.endswith("alone"):
            results[f"steps/s, {name}"] = 1000 * steps / statistics.median(values)
    for name, row in rounds.items():
        if not name.endswith("alone"):
            results[f"MLX's peak memory, {name}, GiB"] = row["mlx_peak_gib"]
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return results | {"peak resident memory, all trainers, GiB": peak / 2**30}


def _ratio(above: list[float], below: list[float]) -> float:
    """Return the median of the quotients of two lists."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def table(results: dict[str, float], rounds: dict[str, dict[str, Any]]) -> str:
    """Format the results as a table, with minimum and maximum of the rounds where there are any."""
    lines = [f"{'':42}{'median':>14}{'min':>14}{'max':>14}"]
    for name, value in results.items():
        line = f"{name:42}{value:14,.2f}"
        if spread := rounds.get(name.removesuffix(", ms"), {}).get("ms"):
            line += f"{min(spread):14,.2f}{max(spread):14,.2f}"
        lines.append(line)
    return "\n".join(lines)


@with_exit_code
def main(argv: list[str]) -> None:
    """Measure the configuration, print a table, and write the record."""
    config, options = parse_command_line(argv, add_options)
    if options.cores:
        check_cores(options.cores)
    select_device(config.base.device)
    load_extension()
    load = os.getloadavg()
    all_cores = count_cores()  # counted before --cores binds this thread to some of them
    with ExitStack() as stack:
        rounds = measure(prepare(argv, options, stack), options)
    results = summarize(rounds, config.batch_size)
    print(f"{mx.default_device()}, {all_cores} cores, load before {load[0]:.2f}")
    print(table(results, rounds))
    if options.json:
        record = {
            "command": shlex.join(["python", *sys.argv]),
            "device": str(mx.default_device()),
            "cores": all_cores,
            "load_before": [round(x, 2) for x in load],
            "versions": version_text().splitlines(),
            "results": results,
            "rounds": rounds,
        }
        write_json(record, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
