#!/usr/bin/env python
"""Train the tasks of the results: python benchmarks/learning.py [TASK ...] [--seeds 5] [--help].

Each task is `scripts/train.py` with an environment and a few options, trained with several seeds;
each run is a separate process on separate cores. A task is a name below; `gym`, `c` or `partial`
(partially observed, needs memory) for all tasks of a kind; or, with `--upstream FOLDER` (PufferLib
4.0), `upstream-NAME` for its folder ocean/NAME. With `--peers PYTHON`, a Python with
Stable-Baselines3 (and sb3-contrib for `partial`), PPO with RL Zoo's settings or RecurrentPPO is
trained as well. Results are stored in learning/TASK.json, see `learning_record.py`. Runs that are
already stored are skipped.

`--table` prints tables of the records (`--write`: into RESULTS.md), `--draw` draws their curves.
`--nightly` trains some tasks again with other seeds, half an hour on one core, and fails if scores
are lower than in the records. A seed has failed if it learned less than 80 % of what the median
seed learned; the exit code is 1 if more than `--fail-share` of a task's seeds failed. Further
options are passed to `scripts/train.py`, for example `--train.gamma=0.99`.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from learning_curves import draw_all
from learning_nightly import MARGIN, nightly
from learning_runs import HERE, RunOptions, Work, plan
from learning_table import fell_short, load, tables, write
from learning_tasks import IN_C, IN_PYTHON, PARTIALLY_OBSERVED, PUFFER_MLX, TASKS, UPSTREAM

from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.errors import UserError

KINDS = {"c": list(IN_C), "gym": list(IN_PYTHON), "partial": list(PARTIALLY_OBSERVED)}
PEERS = sorted({peer for task in TASKS.values() for peer in task.peers})


def parse_options(argv: list[str]) -> argparse.Namespace:
    """Parse the command line. Options of `scripts/train.py` are returned as ``more``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"{', '.join((*KINDS, *TASKS))}")
    parser.add_argument("--seeds", type=int, default=5, help="seeds per task (5)")
    parser.add_argument("--first-seed", type=int, default=1, help="first seed (1)")
    parser.add_argument("--steps", type=int, default=0, help="steps per run (default: the task's)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--threads", type=int, default=1, help="cores per run (1)")
    parser.add_argument(
        "--max-seconds", type=float, default=float("inf"), help="seconds after which no run begins"
    )
    parser.add_argument("--device", default="cpu", choices=("auto", "cpu", "gpu"))
    parser.add_argument("--trainers", help=f"some of {','.join((PUFFER_MLX, *PEERS))}")
    parser.add_argument(
        "--peers", metavar="PYTHON", default="", help="Python with stable-baselines3"
    )
    parser.add_argument("--upstream", metavar="FOLDER", type=Path, help="PufferLib 4.0")
    parser.add_argument("--again", action="store_true", help="repeat stored runs")
    parser.add_argument("--out", type=Path, default=HERE / "learning", help="folder of records")
    parser.add_argument("--draw", action="store_true", help="only draw the records")
    parser.add_argument("--table", action="store_true", help="only print tables of the records")
    parser.add_argument("--write", type=Path, nargs="?", const=HERE / "RESULTS.md", metavar="PAGE")
    parser.add_argument("--nightly", action="store_true", help="train some tasks again")
    margin = f"fraction of what was learned that --nightly lets a seed miss ({MARGIN})"
    parser.add_argument("--margin", type=float, default=MARGIN, help=margin)
    fraction = "fraction of a task's seeds that may fail (1; with --nightly 1/3)"
    parser.add_argument("--fail-share", type=float, metavar="P", help=fraction)
    options, options.more = parser.parse_known_args(argv)
    if options.write and not options.table:
        parser.error("--write needs --table")
    if min(options.seeds, options.jobs, options.threads) < 1:
        parser.error("--seeds, --jobs and --threads are at least 1")
    return options


def names_of(tasks: list[str], upstream: Path | None) -> list[str]:
    """Return the names of all requested learning tasks, with kinds replaced by their tasks.

    Raises:
        UserError: If there is no such task.
    """
    names = [name for task in tasks or KINDS for name in KINDS.get(task, [task])]
    for name in names:
        if name.startswith(UPSTREAM):
            if upstream is None:
                raise UserError(f"{name} needs PufferLib 4.0", "--upstream FOLDER")
        elif name not in TASKS:
            raise UserError(f"no task {name}", f"there are {', '.join((*KINDS, *TASKS))}")
    return list(dict.fromkeys(names))


def trainers_of(options: argparse.Namespace) -> list[str]:
    """Return the names of the trainers to compare, from the command line's options.

    Raises:
        UserError: If a trainer is unknown, or `--peers` is missing.
    """
    if options.trainers is None:
        return [PUFFER_MLX, *PEERS] if options.peers else [PUFFER_MLX]
    names = options.trainers.split(",")
    trainers = {PUFFER_MLX, *PEERS}
    if unknown := set(names) - trainers:
        raise UserError(
            f"no trainer {', '.join(sorted(unknown))}", f"{', '.join(sorted(trainers))}"
        )
    if set(names) != {PUFFER_MLX} and not options.peers:
        raise UserError(
            f"{options.trainers} needs a Python with Stable-Baselines3", "--peers PYTHON"
        )
    return names


@with_exit_code
def main(argv: list[str]) -> int:
    """Train the requested tasks, or print, draw or verify their records. Returns the exit code."""
    options = parse_options(argv)
    if options.table:
        text = tables(options.out)
        if options.write:
            write(text, options.write)
        else:
            print(text, end="")
        return 0
    if options.draw:
        draw_all(options.out)
        return 0
    # The path is made absolute because runs have other working folders.
    run_options = RunOptions(
        out=options.out,
        jobs=options.jobs,
        threads=options.threads,
        device=options.device,
        peers=os.path.abspath(shutil.which(options.peers) or options.peers),
        more=tuple(options.more),
        again=options.again,
        max_seconds=options.max_seconds,
        steps=options.steps,
        **({"upstream": options.upstream.resolve()} if options.upstream else {}),
    )
    if options.nightly:
        fraction = 1 / 3 if options.fail_share is None else options.fail_share
        return 0 if nightly(options.tasks, run_options, options.margin, fraction) else 1
    names = names_of(options.tasks, options.upstream)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    work = Work(run_options, lambda line: print(line, flush=True))
    work.do(plan(names, trainers_of(options), seeds))
    draw_all(options.out)
    fraction = 1.0 if options.fail_share is None else options.fail_share
    return 1 if work.failed or too_many_failed(names, options.out, fraction) else 0


def too_many_failed(names: list[str], out: Path, fraction: float) -> bool:
    """Return True if, on any task, more than a fraction of the seeds learned too little.

    Prints the failed seeds.
    """
    records = load(out)
    worst = 0.0
    for name in names:
        record = records.get((name, PUFFER_MLX))
        if record and (failed := fell_short(record)):
            count = len(record["seeds"])
            print(f"{name}: {len(failed)} of {count} seeds failed ({', '.join(failed)})")
            worst = max(worst, len(failed) / count)
    return worst > fraction


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
