#!/usr/bin/env python
"""Compare the speed of two commits: python benchmarks/commits.py OTHER breakout breakout-a.

OTHER is a checkout of another commit (`git worktree add OTHER COMMIT`). Trains each configuration
with both in turns and compares the median steps per second of the epochs after the first third.
Other options go to `train.py`: `--device gpu --train.rollout-device gpu-kernel`.
"""

import argparse
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from learning_processes import log_of

from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.errors import UserError
from puffer_mlx.system.json_text import write_json

THIS = Path(__file__).parents[1]


def speed(checkout: Path, words: list[str]) -> float:
    """Steps per second of one run by a checkout's code."""
    paths = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(checkout / "scripts/train.py"), *words, "--eval-episodes", "0"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            text = done.stderr.strip()[-2000:]
            raise UserError(f"{' '.join(words)} failed in {checkout}:\n{text}", "see its message")
        records = log_of(Path(folder))
    epochs = [record["SPS"] for record in records if "SPS" in record]
    return statistics.median(epochs[len(epochs) // 3 :])


@with_exit_code
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="a checkout of the other commit")
    parser.add_argument("names", nargs="+", metavar="NAME", help="as train.py's first word")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to a file")
    options, more = parser.parse_known_args(argv)
    sides = {"other": options.other.resolve(), "this": THIS}
    found = {name: {side: [] for side in sides} for name in options.names}
    for _ in range(options.pairs):
        for name in options.names:
            for side, checkout in sides.items():
                found[name][side].append(speed(checkout, [name, *more]))
            this, other = (found[name][side][-1] for side in ("this", "other"))
            print(f"{name}: {this:,.0f} and {other:,.0f}, {this / other:.3f}", flush=True)
    rows = {}
    for name, speeds in found.items():
        ratios = [this / other for this, other in zip(speeds["this"], speeds["other"], strict=True)]
        rows[name] = {**speeds, "ratio": statistics.median(ratios)}
        print(f"{name}: {rows[name]['ratio']:.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    if options.json:
        record = {
            "command": " ".join(["python benchmarks/commits.py", *argv]),
            "date": datetime.date.today().isoformat(),
            "load": os.getloadavg()[0],
            "steps per second": rows,
        }
        write_json(record, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
