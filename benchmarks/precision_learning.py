#!/usr/bin/env python
"""Compare learning by precision and overlap: python benchmarks/precision_learning.py [--help].

Trains tasks (`scripts/train.py` with a few options) with each variant, over the same seeds and the
same number of steps. A variant is a precision, with `+overlap` for `--train.overlap 1`. It compares
the *tail*, the mean score of the last tenth of a run's steps, and the *area*, the mean score over
all steps. For each variant: each seed's ratio to the first variant (by default fp32), the median
over the seeds, and a 90 % interval of the median (seeded bootstrap over seeds, 10,000 resamples).

A variant passes a task if for both tail and area the median ratio is >= 0.95 and the interval's
lower end >= 0.90. The exit code is 1 if a variant fails or a run ends with an error. Speed and
memory are measured with `--jobs` runs at a time, so only their ratios are meaningful.

Further options are passed to `train.py`, for example `--device gpu --train.rollout-device gpu`.
With `--out FOLDER` runs are stored, and stored runs aren't repeated, so a benchmark can be run in
several calls. `--runs FOLDER` only reads stored runs.
"""

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from learning_processes import log_of
from learning_tasks import BREAKOUTS, metric

from puffer_mlx import config
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import publish
from puffer_mlx.system.json_text import write_json

TRAIN = Path(__file__).parents[1] / "scripts" / "train.py"
TASKS = {  # name -> arguments of `python scripts/train.py`
    **{name: name for name in BREAKOUTS},
    "memory": "memory --policy.num-layers 2 --train.total-timesteps 20_000_000",
    "memory-LSTM": "memory --torch.network LSTM --train.total-timesteps 20_000_000",
    "squared": "squared --train.total-timesteps 5_000_000",
}
VARIANTS = ("fp32", "bf16", "fp16", "fp32+overlap")
PRECISIONS = ("fp32", "bf16", "fp16")
TAIL = 0.1  # fraction of a run's steps
MIN_MEDIAN, MIN_LOWER_END = 0.95, 0.90  # of the ratio to the first variant
RESAMPLES, COVERAGE = 10_000, 0.9
WARM_UP = 3  # epochs that compile; speeds are measured without them
FINISHED_FILE = "done.json"  # written to the folder of a run that ended without an error


@dataclass(frozen=True)
class Run:
    """A training run: the task, the variant (such as a precision), the seed, and the folder."""

    task: str
    variant: str
    seed: int
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / self.task / self.variant / str(self.seed)

    @property
    def is_finished(self) -> bool:
        return (self.folder / FINISHED_FILE).is_file()


# ---- running -------------------------------------------------------------------------------------


def command(run: Run, more: list[str]) -> list[str]:
    """Return the arguments of `train.py` for a run."""
    precision, _, overlap = run.variant.partition("+")
    return [
        *TASKS[run.task].split(),
        *("--train.precision", precision),
        *("--train.overlap", "1" if overlap else "0"),
        *("--seed", str(run.seed), "--vec.seed", str(1000 * run.seed)),
        *("--eval-episodes", "0"),  # only the curve is compared
        *more,
    ]


def check_done(run: Run, more: list[str]) -> None:
    """Check that a stored training run was made by the same command line.

    Raises:
        UserError: If the command differs.
    """
    words = json.loads((run.folder / FINISHED_FILE).read_text())["command"]
    if words != ["train.py", *command(run, more)]:
        raise UserError(
            f"{run.folder} was made by {' '.join(words)}", "use these options, or another --out"
        )


def train(run: Run, more: list[str]) -> str:
    """Train one run in its folder. Returns the error's text, empty if training succeeded."""
    run.folder.mkdir(parents=True, exist_ok=True)
    for log in run.folder.glob("logs/*/*.jsonl"):
        log.unlink()  # log of a run that was stopped
    words, began = command(run, more), time.perf_counter()
    process = subprocess.run(
        [sys.executable, TRAIN, *words], cwd=run.folder, capture_output=True, text=True
    )
    if process.returncode:
        return process.stderr.strip()[-2000:]
    facts = {"command": ["train.py", *words], "seconds": time.perf_counter() - began}
    with publish(run.folder / FINISHED_FILE) as path:
        path.write_text(json.dumps(facts) + "\n")
    return ""


def warm_up(tasks: list[str], variants: list[str], more: list[str], jobs: int) -> None:
    """Compile all kernels once, because parallel runs would each compile all of them."""

    def compile_all(task: str, variant: str) -> None:
        words = command(Run(task, variant, 0, Path()), more)
        settings = config.load(words[0], words[1:])
        steps = str(min(WARM_UP, settings.epochs) * settings.batch_size)
        with tempfile.TemporaryDirectory() as folder:
            train_command = [sys.executable, TRAIN, *words, "--stop-at", steps]
            process = subprocess.run(train_command, cwd=folder, capture_output=True, text=True)
        if process.returncode:
            raise UserError(
                f"{task} doesn't start with {variant}:\n{process.stderr.strip()[-2000:]}",
                f"python scripts/train.py {' '.join(words)}",
            )

    precisions = dict.fromkeys(variant.partition("+")[0] for variant in variants)
    first = [(task, precision) for task, precision in product(tasks, precisions)]
    compile_all(*first[0])  # the environment and the extension are compiled here
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda pair: compile_all(*pair), first[1:]))


def run_all(runs: list[Run], options: argparse.Namespace) -> dict[Run, str]:
    """Train the runs that aren't stored yet. Returns the errors by run."""
    for run in runs:
        if run.is_finished:
            check_done(run, options.more)
    missing = [run for run in runs if not run.is_finished]
    if len(missing) > 1:
        pairs = list(dict.fromkeys(run.task for run in missing)), options.variants
        warm_up(*pairs, options.more, options.jobs)

    def one(run: Run) -> str:
        problem = train(run, options.more)
        print(f"{run.task} {run.variant} {run.seed}: {problem or 'done'}", file=sys.stderr)
        return problem

    with ThreadPoolExecutor(options.jobs) as pool:
        problems = list(pool.map(one, missing))
    return {run: problem for run, problem in zip(missing, problems, strict=True) if problem}


# ---- reading -------------------------------------------------------------------------------------


def run_metrics(run: Run, score: str | None) -> dict[str, float]:
    """Return measures of a finished run by name: final and mean score, steps, speed and memory.

    Args:
        run: Finished run.
        score: Name of the score in the log. None: the environment's [sweep] metric.
    """
    records = log_of(run.folder)
    name = f"env/{score}" if score else metric(TASKS[run.task].split()[0])
    evaluation = records[-1].get(name, math.nan) if "SPS" not in records[-1] else math.nan
    records = [record for record in records if "SPS" in record]
    scored = [record for record in records if record.get("env/n")]
    if scored and name not in scored[0]:
        have = (key[4:] for key in scored[0] if key.startswith("env/"))
        raise UserError(f"{run.task} has no score {name[4:]!r}", f"one of {', '.join(have)}")
    steps = np.array([record["agent_steps"] for record in records], float)
    tail = [record for record in scored if record["agent_steps"] > (1 - TAIL) * steps[-1]]
    if not tail:
        raise UserError(
            f"no episode of {run.folder} ended in the last {TAIL:.0%} of its steps",
            "train for longer: --train.total-timesteps",
        )
    at = [record["agent_steps"] for record in scored]
    scores = [record[name] for record in scored]
    return {
        "tail": float(np.average([r[name] for r in tail], weights=[r["env/n"] for r in tail])),
        "area": float(np.interp(steps, at, scores).mean()),
        "evaluation": evaluation,
        "steps": float(steps[-1]),
        "SPS": statistics.median(r["SPS"] for r in records[WARM_UP:] or records),
        "host, GiB": max(record["util/cpu_mem_gb"] for record in records),
        "MLX, GiB": max(record["util/mlx_mem_gb"] for record in records),
        "skipped": max(record.get("loss/skipped_steps", 0) for record in records),
    }


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return a confidence interval (bootstrap) of the median of ratios."""
    picks = np.random.default_rng(0).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    medians = np.median(np.array(ratios)[picks], axis=1)
    low, high = np.quantile(medians, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)


def compare(results: dict[Run, dict[str, float]], task: str, variant: str, base: str) -> dict:
    """Compare the scores of a variant with those of the base variant, seed by seed.

    Returns:
        The ratios with their median and interval, and True in ``passed`` if the variant passes.
    """
    rows_of_variant, rows_of_base = (
        {run.seed: row for run, row in results.items() if (run.task, run.variant) == (task, name)}
        for name in (variant, base)
    )
    seeds = sorted(rows_of_variant.keys() & rows_of_base.keys())
    row: dict[str, Any] = {"seeds": seeds, "passed": True}
    for name in ("tail", "area"):
        if any(rows_of_base[seed][name] <= 0 for seed in seeds):
            raise UserError(
                f"{task}: a {name} of {base} isn't positive, so there is no ratio to it",
                "another --score, or more steps",
            )
        if any(rows_of_variant[seed]["steps"] != rows_of_base[seed]["steps"] for seed in seeds):
            raise UserError(
                f"{task}: {variant} and {base} weren't trained for equal steps",
                "remove the runs and train them with one command",
            )
        ratios = [rows_of_variant[seed][name] / rows_of_base[seed][name] for seed in seeds]
        median = statistics.median(ratios) if ratios else float("nan")  # NaN never passes
        low, high = interval(ratios) if ratios else (median, median)
        row[name] = {"median": median, "low": low, "high": high, "ratios": ratios}
        row["passed"] &= median >= MIN_MEDIAN and low >= MIN_LOWER_END
    for name in ("tail", "area", "SPS", "host, GiB", "MLX, GiB", "skipped"):
        row[f"{name}, median"] = (
            statistics.median(rows_of_variant[s][name] for s in seeds) if seeds else 0.0
        )
    return row


def table(task: str, rows: dict[str, dict]) -> str:
    heads = ("tail", "ratio", "90 %", "area", "ratio", "90 %", "SPS", "MLX GiB", "seeds", "")
    widths = (10, 8, 15, 10, 8, 15, 12, 9, 7, 8)
    cells = [f"{task:16}", *(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True))]
    lines = ["".join(cells)]
    for variant, row in rows.items():
        values = []
        for name in ("tail", "area"):
            ratio = row[name]
            values += [f"{row[f'{name}, median']:.3f}", f"{ratio['median']:.3f}"]
            values.append(f"{ratio['low']:.3f}-{ratio['high']:.3f}")
        values += [f"{row['SPS, median']:,.0f}", f"{row['MLX, GiB, median']:.2f}"]
        values += [str(len(row["seeds"])), "pass" if row["passed"] else "FAIL"]
        cells = [f"{value:>{width}}" for value, width in zip(values, widths, strict=True)]
        lines.append("".join([f"{variant:16}", *cells]))
    return "\n".join(lines)


# ---- the command line ----------------------------------------------------------------------------


def names(allowed: tuple[str, ...]) -> Any:
    """Return a function that parses names separated by commas, each one of the known names."""

    def parse(text: str) -> list[str]:
        results = text.split(",")
        if unknown := [name for name in results if name not in allowed]:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; there are {', '.join(allowed)}")
        return results

    return parse


def parse(argv: list[str]) -> argparse.Namespace:
    variants = tuple(f"{p}{o}" for o in ("", "+overlap") for p in PRECISIONS)
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    tasks = ",".join(TASKS)
    parser.add_argument("--tasks", type=names(tuple(TASKS)), default="breakout,memory", help=tasks)
    parser.add_argument(
        "--variants",
        type=names(variants),
        default=",".join(VARIANTS),
        help=f"the others are compared with the first; of {', '.join(variants)}",
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--score", help="score to compare (default: [sweep] metric)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    folder_options = parser.add_mutually_exclusive_group()
    folder_options.add_argument(
        "--out", type=Path, metavar="FOLDER", help="store runs, and skip stored ones"
    )
    folder_options.add_argument("--runs", type=Path, metavar="FOLDER", help="only read stored runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to a file")
    options, options.more = parser.parse_known_args(argv)
    if options.runs and options.more:
        raise UserError(f"--runs trains nothing: {options.more[0]} has no effect", "leave it out")
    if options.runs and not options.runs.is_dir():
        raise UserError(f"there is no folder {options.runs}", "use the folder of --out")
    if min(options.seeds, options.jobs) < 1:
        raise UserError("--seeds and --jobs are at least 1", "--seeds 5 --jobs 1")
    return options


@with_exit_code
def main(argv: list[str]) -> None:
    options = parse(argv)
    with tempfile.TemporaryDirectory() as temporary:
        root = options.runs or options.out or Path(temporary)
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        triples = product(options.tasks, seeds, options.variants)  # a seed's variants together
        runs = [Run(task, variant, seed, root.absolute()) for task, seed, variant in triples]
        problems = {} if options.runs else run_all(runs, options)
        results = {run: run_metrics(run, options.score) for run in runs if run.is_finished}
    report = {
        task: {name: compare(results, task, name, options.variants[0]) for name in options.variants}
        for task in options.tasks
    }
    print("\n\n".join(table(task, rows) for task, rows in report.items()))
    failed = [f"{t} {v}" for t, rows in report.items() for v, r in rows.items() if not r["passed"]]
    failed += [f"{r.task} {r.variant}, seed {r.seed}: {why}" for r, why in problems.items()]
    if options.json:
        record = {
            "command": ["python", *sys.argv],
            "date": datetime.date.today().isoformat(),
            "cores": os.cpu_count(),
            "at a time": options.jobs,
            "failed": failed,
            "tasks": report,
        }
        write_json(record, options.json)
    gate = f"median ratio >= {MIN_MEDIAN}, lower end >= {MIN_LOWER_END}"
    print(f"\n{gate}: {'failed by ' + '; '.join(failed) if failed else 'all pass'}")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
