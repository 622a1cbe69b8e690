"""Measure the speeds for the command ``bench``, print the results and write the record."""

import argparse
import copy
import datetime
import os
import platform
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx import vec
from puffer_mlx.cli.options import print_notes
from puffer_mlx.config import Config
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.display.run_view import format_count
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import count_cores, load_extension
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.blas import blas_name, get_blas_threads
from puffer_mlx.system.devices import kernels_note, select_device
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text
from puffer_mlx.training.placement import GPU_ENVS
from puffer_mlx.training.run import Run
from puffer_mlx.vec.rollout_loop import measure_stepping

RUNS_PER_PLACEMENT = 2
PROGRESS_INTERVAL_S = 5.0  # minimum time between two progress lines


def run_benchmark(config: Config, options: argparse.Namespace) -> None:
    """Run the benchmark that options of ``bench`` select; print results, write them as JSON."""
    print_notes(config)
    select_device(config.base.device)
    verbosity.note(kernels_note(), error=True)
    load = os.getloadavg()
    fastest = ""
    if options.env_only:
        results = bench_environment(config, options)
    elif options.placements:
        results, fastest = bench_placements(config, options)
    else:
        results = bench_training(config, options)
    record = {"environment": config.env_name, "machine": machine_record(load), "results": results}
    print(results_table(record))
    if fastest:
        print(f"\nfastest: {fastest}")
    elif not options.env_only:
        verbosity.note(
            "\nnext  add --placements to compare devices, or --env-only without a policy"
        )
    if options.json:
        write_json(record, options.json)


def machine_record(load: tuple[float, float, float]) -> dict[str, Any]:
    """Return a description of this machine and of the installed versions, for a benchmark's record.

    Args:
        load: Load averages (1, 5 and 15 minutes) from before the measurement.
    """
    cpu = platform.processor() or platform.machine()
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), cpu)
    return {
        "date": datetime.date.today().isoformat(),
        "command": program.full_command_line(),
        "cpu": cpu,
        "cores": count_cores(),
        "load_before": [round(average, 2) for average in load],
        "blas": blas_name(),
        "blas_threads": get_blas_threads(),
        "cpu_ops": load_extension() is not None,
        "versions": version_text().splitlines(),
    }


def peak_memory_gb() -> float:
    """Return the largest amount of memory (RAM) that this process has used so far, in GiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def median_and_range(values: list[float]) -> dict[str, float]:
    """Return a dict with the median, minimum and maximum of a list of numbers."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


class BenchProgress:
    """Progress of a benchmark, printed to standard error; standard output has only the result.

    Args:
        unit: Plural name of the counted items, for the message.
        total: Number of items.
    """

    def __init__(self, unit: str, total: int) -> None:
        self._unit = unit
        self._total = total
        self._count = 0
        self._printed_at = time.perf_counter()

    def advance(self, speed: float | None = None) -> None:
        """Count one more finished item of a benchmark, and print the progress now and then.

        Args:
            speed: Speed of this item in steps per second, for the message; None while compiling.
        """
        self._count += 1
        if time.perf_counter() - self._printed_at < PROGRESS_INTERVAL_S:
            return
        self._printed_at = time.perf_counter()
        rate = f", {format_count(speed)} steps/s" if speed else ""
        done = f"{self._count} of {self._total} {self._unit}{rate}"
        verbosity.note(f"puffer_mlx: measured {done}", error=True)


def bench_environment(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    results = {}
    limit = rollout_threads(config, count_cores())
    counts = sorted({1, limit})
    progress = BenchProgress("measurements", len(counts) * options.repeat)
    for count in counts:
        runs = []
        with vec.make(config, count) as environments:
            for _ in range(options.repeat):
                runs.append(measure_stepping(environments, options.seconds)["steps_per_second"])
                progress.advance(runs[-1])
        results[f"steps/s, {count} thread{'s' if count > 1 else ''}"] = median_and_range(runs)
    return results


def bench_training(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    with Run.open(config) as run:
        trainer = run.trainer
        started = time.perf_counter()
        progress = BenchProgress("epochs, warm-up included", options.warm_up + options.epochs)
        for _ in range(options.warm_up):
            trainer.step()
            progress.advance()
        warm = time.perf_counter() - started
        cpu = time.process_time()
        logs = []
        for _ in range(options.epochs):
            logs.append(trainer.step())
            progress.advance(logs[-1]["SPS"])
        cpu = time.process_time() - cpu
    steps = config.batch_size * options.epochs
    results: dict[str, Any] = {
        "SPS": median_and_range([record["SPS"] for record in logs]),
        "steps per CPU-second": steps / cpu,
        "warm-up, s": warm,
        "peak memory, GiB": peak_memory_gb(),
        "memory growth, GiB": logs[-1]["util/cpu_mem_gb"] - logs[0]["util/cpu_mem_gb"],
    }
    for name in sorted({name for record in logs for name in record if name.startswith("perf/")}):
        results[f"{name}, ms"] = median_and_range([1000 * record.get(name, 0.0) for record in logs])
    return results


def bench_placements(config: Config, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Measure the training speed with rollouts on each device, with and without overlap.

    Overlap means that rollouts run during updates. Runs of all placements (device and overlap)
    alternate.

    Returns:
        Milliseconds per epoch and steps per second of each placement, and the options of the
        fastest one.
    """
    devices = ["cpu", "gpu", GPU_ENVS] if mx.default_device() == mx.gpu else ["cpu"]
    placements = [(device, overlap) for device in devices for overlap in (False, True)]
    speeds: dict[tuple[str, int], list[float]] = {}
    for _ in range(RUNS_PER_PLACEMENT):
        for device, overlap in placements:
            candidate = copy.deepcopy(config)
            candidate.train.rollout_device = device
            candidate.train.overlap = overlap
            try:
                with Run.open(candidate) as run:
                    logs = [run.trainer.step() for _ in range(options.warm_up + options.epochs)]
            except UserError as error:
                verbosity.note(f"puffer_mlx: {device} is impossible: {error}", error=True)
                continue
            measured = speeds.setdefault((device, int(overlap)), [])
            measured += [log["SPS"] for log in logs[options.warm_up :]]
    results = {}
    for (device, overlap), values in speeds.items():
        name = f"{device}, overlap {overlap}"
        results[f"{name}, epoch ms"] = median_and_range(
            [1000 * config.batch_size / speed for speed in values]
        )
        results[f"{name}, steps/s"] = median_and_range(values)
    device, overlap = max(speeds, key=lambda placement: statistics.median(speeds[placement]))
    return results, f"--train.rollout-device {device} --train.overlap {overlap}"


def results_table(record: dict[str, Any]) -> str:
    """Return the results of a benchmark as text, with one line per value."""
    lines = [
        f"{name:14} {value}" for name, value in record["machine"].items() if name != "versions"
    ]
    lines += ["", f"{'':30}{'median':>17}{'min':>17}{'max':>17}"]
    for name, value in record["results"].items():
        cells = value.values() if isinstance(value, dict) else [value]
        lines.append(f"{name:30}" + "".join(f"{cell:17,.2f}" for cell in cells))
    return "\n".join(lines)
