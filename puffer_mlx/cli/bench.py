"""Measure speed: puffer-mlx bench breakout [--env-only] [--json FILE] [--help].

puffer-mlx bench --sync needs no environment: it measures the machine.
"""

import argparse
import datetime
import os
import platform
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from puffer_mlx import vec
from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.option_types import number
from puffer_mlx.cli.verbosity import add_verbosity, detail_config
from puffer_mlx.config import Config, parse_command_line, take_notes
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.display.run_view import abbreviate
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import load as load_cpu_ops
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.profiling import device_costs
from puffer_mlx.system import program, voice
from puffer_mlx.system.blas import blas_name, get_blas_threads
from puffer_mlx.system.devices import kernels_note, select_device
from puffer_mlx.system.files import publish
from puffer_mlx.system.json_text import json_text
from puffer_mlx.system.version import version_text
from puffer_mlx.training.run import Run
from puffer_mlx.vec.step_speed import measure_stepping

EVERY = 5.0  # seconds between two lines of progress at least

TRAINING = (  # keys that the training of a benchmark obeys
    *("base.seed", "base.device", "base.reset_state", "base.profile"),
    *("vec", "wrap", "policy", "torch", "train", "selfplay"),
)
STEPPING = "vec", "wrap", "train.bootstrap_truncated"  # and those that --env-only does
EPOCHS = {"epochs": 20, "warm_up": 3}  # defaults of options for training
PLAYS = {"seconds": 5.0, "repeat": 3}  # of options for --env-only


def add_options(parser: argparse.ArgumentParser) -> None:
    introduce(parser, "bench")
    group = parser.add_argument_group("this benchmark")
    group.add_argument(
        "--epochs",
        type=number(int, 1),
        help=f"epochs measured (default {EPOCHS['epochs']})",
    )
    group.add_argument(
        "--warm-up",
        type=number(int, 0),
        help=f"epochs before that (default {EPOCHS['warm_up']})",
    )
    group.add_argument(
        "--env-only", action="store_true", help="step the environments without a policy"
    )
    group.add_argument(
        "--seconds",
        type=number(float, 0.001),
        help=f"of each --env-only measurement (default {PLAYS['seconds']:g})",
    )
    group.add_argument(
        "--repeat",
        type=number(int, 1),
        help=f"--env-only measurements (default {PLAYS['repeat']})",
    )
    group.add_argument(
        "--sync",
        action="store_true",
        help="measure what starting work on a device, waiting and changing devices cost; ENV may"
        " be left out",
    )
    group.add_argument("--json", metavar="FILE", type=Path, help="write the record to a file")
    add_verbosity(parser)


def option_parser() -> argparse.ArgumentParser:
    return build_parser(extra=add_options, obeyed=(*TRAINING, "base.family"))


def machine(load: tuple[float, float, float]) -> dict[str, Any]:
    """What a number needs beside it; ``load`` was read before the measurement."""
    cpu = platform.processor() or platform.machine()
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), cpu)
    return {
        "date": datetime.date.today().isoformat(),
        "command": program.typed(),
        "cpu": cpu,
        "cores": threads(),
        "load_before": [round(x, 2) for x in load],
        "blas": blas_name(),
        "blas_threads": get_blas_threads(),
        "cpu_ops": load_cpu_ops() is not None,
        "versions": version_text().splitlines(),
    }


def peak_memory_gb() -> float:
    """Largest resident size of this process so far, GiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def spread(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


class Progress:
    """A line on standard error every few seconds; standard output is the result's alone.

    Args:
        what: is counted, in words.
        total: how many there will be.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._count = what, total, 0
        self._told = time.perf_counter()

    def one(self, pace: float | None = None) -> None:
        """One more is done, at so many steps per second."""
        self._count += 1
        if time.perf_counter() - self._told < EVERY:
            return
        self._told = time.perf_counter()
        rate = f", {abbreviate(pace)} steps/s" if pace else ""
        done = f"{self._count} of {self._total} {self._what}{rate}"
        voice.note(f"puffer_mlx: measured {done}", error=True)


def bench_environment(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    results = {}
    limit = rollout_threads(config, threads())
    counts = sorted({1, limit})
    progress = Progress("measurements", len(counts) * options.repeat)
    for count in counts:
        runs = []
        with vec.make(config, count) as environments:
            for _ in range(options.repeat):
                runs.append(measure_stepping(environments, options.seconds)["steps_per_second"])
                progress.one(runs[-1])
        results[f"steps/s, {count} thread{'s' if count > 1 else ''}"] = spread(runs)
    return results


def bench_training(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    with Run.open(config) as run:
        trainer = run.trainer
        started = time.perf_counter()
        progress = Progress("epochs, warm-up included", options.warm_up + options.epochs)
        for _ in range(options.warm_up):
            progress.one(trainer.step()["SPS"])
        warm = time.perf_counter() - started
        cpu = time.process_time()
        logs = []
        for _ in range(options.epochs):
            logs.append(trainer.step())
            progress.one(logs[-1]["SPS"])
        cpu = time.process_time() - cpu
    steps = config.batch_size * options.epochs
    results: dict[str, Any] = {
        "SPS": spread([record["SPS"] for record in logs]),
        "steps per CPU-second": steps / cpu,
        "warm-up, s": warm,
        "peak memory, GiB": peak_memory_gb(),
        "memory growth, GiB": logs[-1]["util/cpu_mem_gb"] - logs[0]["util/cpu_mem_gb"],
    }
    for name in sorted({name for record in logs for name in record if name.startswith("perf/")}):
        results[f"{name}, ms"] = spread([1000 * record.get(name, 0.0) for record in logs])
    return results


def table(record: dict[str, Any]) -> str:
    """The record as lines of a name and its numbers."""
    lines = [
        f"{name:14} {value}" for name, value in record["machine"].items() if name != "versions"
    ]
    if "sync" in record:
        return "\n".join([*lines, "", device_costs.table(record["sync"])])
    lines += ["", f"{'':30}{'median':>17}{'min':>17}{'max':>17}"]
    for name, value in record["results"].items():
        numbers = value.values() if isinstance(value, dict) else [value]
        lines.append(f"{name:30}" + "".join(f"{number:17,.2f}" for number in numbers))
    return "\n".join(lines)


def parse(argv: list[str]) -> tuple[Config, argparse.Namespace]:
    """The configuration to measure, and this script's own options."""
    trains = "--env-only" not in argv and "--sync" not in argv
    obeyed = TRAINING if trains else STEPPING if "--env-only" in argv else ()
    obeyed = (*obeyed, "base.family", "base.device")
    return parse_command_line(argv, add_options, obeyed=obeyed, training=trains)


def settle(options: argparse.Namespace, config: Config) -> None:
    """Refuse options that would do nothing, and fill in what was left out.

    Raises:
        UserError: an option needs another one, or contradicts it.
    """
    if options.sync and options.env_only:
        raise UserError("--sync and --env-only are given", "one of them")
    if isinstance(config.base.profile, str):
        raise UserError(
            f"a benchmark writes no timeline (--profile {config.base.profile})",
            f"{program.command('train')} {config.env_name} --profile {config.base.profile}",
        )
    for name, default in (EPOCHS | PLAYS).items():
        works = (name in PLAYS) == options.env_only and not options.sync
        if getattr(options, name) is None:
            setattr(options, name, default)
        elif not works:
            word = "without" if name in PLAYS else "with --sync or"
            raise UserError(
                f"--{name.replace('_', '-')} does nothing {word} --env-only", "leave it out"
            )


@reported
def main(argv: list[str]) -> None:
    if "--sync" in argv and argv[0].startswith("-"):
        argv = ["default", *argv]
    config, options = parse(argv)
    settle(options, config)
    vec.settle_family(config)
    voice.note(*take_notes(config))
    detail_config(config)
    select_device(config.base.device)
    voice.note(kernels_note(), error=True)
    load = os.getloadavg()
    if options.sync:
        record = {"machine": machine(load), "sync": device_costs.measure()}
    else:
        results = (bench_environment if options.env_only else bench_training)(config, options)
        record = {"environment": config.env_name, "machine": machine(load), "results": results}
    print(table(record))
    if options.json:
        with publish(options.json) as path:
            path.write_text(json_text(record, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
