#!/usr/bin/env python
"""Train the tasks of the results: python benchmarks/learning.py [TASK ...] [--seeds 5] [--help].

Each task is `scripts/train.py` with an environment's file and a few options, over several seeds,
each run in a separate process on separate cores. A task is a name below, or `gym`, `c` or
`partial` (what isn't seen has to be remembered) for all of one kind, or with `--upstream FOLDER`
(PufferLib 4.0) `upstream-NAME` for its folder ocean/NAME. `--peers PYTHON` is an interpreter with
Stable-Baselines3, and sb3-contrib for `partial`: its PPO with RL Zoo's settings, or RecurrentPPO,
is then trained as well. Records: learning/TASK.json, which `learning_record.py` explains. Runs
that are there are left out.

`--table` prints what the records say (`--write`: into RESULTS.md), `--draw` draws their curves;
`--nightly` learns some of it again with seeds that the records don't have, half an hour of a core,
and fails where less is learned than they say. Of each task the seeds that failed are counted, those
that learned less than 80 % of what the median one did; more than `--fail-share` of them make the
exit code 1. Other options are `scripts/train.py`'s, for ours: `--train.gamma=0.99`.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from learning_curves import draw_all
from learning_nightly import MARGIN, nightly
from learning_runs import HERE, Place, Work, plan
from learning_table import fell_short, load, tables, write
from learning_tasks import IN_C, IN_PART, IN_PYTHON, OURS, TASKS, UPSTREAM

from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.errors import UserError

KINDS = {"c": list(IN_C), "gym": list(IN_PYTHON), "partial": list(IN_PART)}
PEERS = sorted({peer for task in TASKS.values() for peer in task.peers})


def parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"{', '.join((*KINDS, *TASKS))}")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--first-seed", type=int, default=1, help="(1)")
    parser.add_argument("--steps", type=int, default=0, help="of each run (the task's)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--threads", type=int, default=1, help="cores of each (1)")
    parser.add_argument("--max-seconds", type=float, default=float("inf"), help="then begin none")
    parser.add_argument("--device", default="cpu", choices=("auto", "cpu", "gpu"), help="of ours")
    parser.add_argument("--trainers", help=f"{','.join((OURS, *PEERS))} (those that can be run)")
    parser.add_argument("--peers", metavar="PYTHON", default="", help="with stable-baselines3")
    parser.add_argument("--upstream", metavar="FOLDER", type=Path, help="PufferLib 4.0's")
    parser.add_argument("--again", action="store_true", help="also runs that are there")
    parser.add_argument("--out", type=Path, default=HERE / "learning", help="folder of records")
    parser.add_argument("--draw", action="store_true", help="only draw what is there")
    parser.add_argument("--table", action="store_true", help="only print tables of what is there")
    parser.add_argument("--write", type=Path, nargs="?", const=HERE / "RESULTS.md", metavar="PAGE")
    parser.add_argument("--nightly", action="store_true", help="learn some of it again")
    parser.add_argument("--margin", type=float, default=MARGIN, help=f"of --nightly ({MARGIN})")
    share = "of the seeds that may fail: 1, of a task of --nightly a third"
    parser.add_argument("--fail-share", type=float, metavar="P", help=share)
    options, options.more = parser.parse_known_args(argv)
    if options.write and not options.table:
        parser.error("--write needs --table")
    if min(options.seeds, options.jobs, options.threads) < 1:
        parser.error("--seeds, --jobs and --threads are at least 1")
    return options


def names_of(tasks: list[str], upstream: Path | None) -> list[str]:
    """All tasks asked for.

    Raises:
        UserError: there is no such task.
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
    """Return the trainers to run.

    Raises:
        UserError: a trainer is unknown, or a peer has no Python.
    """
    if options.trainers is None:
        return [OURS, *PEERS] if options.peers else [OURS]
    names = options.trainers.split(",")
    known = {OURS, *PEERS}
    if unknown := set(names) - known:
        raise UserError(f"no trainer {', '.join(sorted(unknown))}", f"{', '.join(sorted(known))}")
    if set(names) != {OURS} and not options.peers:
        raise UserError(f"{options.trainers} needs an interpreter of its own", "--peers PYTHON")
    return names


@with_exit_code
def main(argv: list[str]) -> int:
    options = parsed(argv)
    if options.table:
        text = tables(options.out)
        write(text, options.write) if options.write else print(text, end="")
        return 0
    if options.draw:
        draw_all(options.out)
        return 0
    place = Place(
        out=options.out,
        jobs=options.jobs,
        threads=options.threads,
        device=options.device,
        peers=os.path.abspath(shutil.which(options.peers) or options.peers),  # runs lie elsewhere
        more=tuple(options.more),
        again=options.again,
        max_seconds=options.max_seconds,
        steps=options.steps,
        **({"upstream": options.upstream.resolve()} if options.upstream else {}),
    )
    if options.nightly:
        share = 1 / 3 if options.fail_share is None else options.fail_share
        return 0 if nightly(options.tasks, place, options.margin, share) else 1
    names = names_of(options.tasks, options.upstream)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    work = Work(place, lambda line: print(line, flush=True))
    work.do(plan(names, trainers_of(options), seeds))
    draw_all(options.out)
    share = 1.0 if options.fail_share is None else options.fail_share
    return 1 if work.failed or too_many_failed(names, options.out, share) else 0


def too_many_failed(names: list[str], out: Path, share: float) -> bool:
    """Return True if a larger share of a task's seeds failed. Prints tasks with failed seeds."""
    worst, records = 0.0, load(out)
    for name in names:
        record = records.get((name, OURS))
        if record and (failed := fell_short(record)):
            count = len(record["seeds"])
            print(f"{name}: {len(failed)} of {count} seeds failed ({', '.join(failed)})")
            worst = max(worst, len(failed) / count)
    return worst > share


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
