#!/usr/bin/env python
"""Compare the speed of two commits: python benchmarks/commits.py OTHER breakout breakout-a.

OTHER is a checkout of another commit (`git worktree add OTHER COMMIT`). Trains each configuration
alternately with this commit and the other one, and compares the median steps per second of the
epochs after the first third. Further options are passed to `train.py`, for example
`--device gpu --train.rollout-device gpu-kernel`.
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

THIS_CHECKOUT = Path(__file__).parents[1]


def speed(checkout: Path, arguments: list[str]) -> float:
    """Train once with the code of a Git checkout. Returns the median steps per second."""
    paths = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [
        sys.executable,
        str(checkout / "scripts/train.py"),
        *arguments,
        "--eval-episodes",
        "0",
    ]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True
        )
        if process.returncode:
            error_text = process.stderr.strip()[-2000:]
            raise UserError(
                f"{' '.join(arguments)} failed in {checkout}:\n{error_text}", "see its message"
            )
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
    sides = {"other": options.other.resolve(), "this": THIS_CHECKOUT}
    speeds = {name: {side: [] for side in sides} for name in options.names}
    for _ in range(options.pairs):
        for name in options.names:
            for side, checkout in sides.items():
                speeds[name][side].append(speed(checkout, [name, *more]))
            this_speed, other_speed = (speeds[name][side][-1] for side in ("this", "other"))
            print(
                f"{name}: {this_speed:,.0f} and {other_speed:,.0f}, {this_speed / other_speed:.3f}",
                flush=True,
            )
    rows = {}
    for name, speeds_by_side in speeds.items():
        pairs = zip(speeds_by_side["this"], speeds_by_side["other"], strict=True)
        ratios = [this_speed / other_speed for this_speed, other_speed in pairs]
        rows[name] = {**speeds_by_side, "ratio": statistics.median(ratios)}
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
