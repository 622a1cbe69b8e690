#!/usr/bin/env python
"""Each switch and what it does to speed: python benchmarks/placements.py ENV [options].

Runs `scripts/bench.py` for every useful combination of train.rollout_device, train.overlap and
train.precision that this machine can do, one after the other, and prints one table. The ideal of an
iteration is the sum of its halves, overlapped the longer one; halves are measured where they run,
so one that is slowed by the other counts as it is (`overlap.py` measures each alone).

Other options go to bench.py: `--epochs 20 --vec.num-buffers 2`.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.system.devices import has_gpu
from puffer_mlx.system.json_text import write_json

BENCH = Path(__file__).parents[1] / "scripts" / "bench.py"
COLUMNS = ("steps/s", "epoch, ms", "of ideal", "rollout, ms", "train, ms", "memory, GiB")


def combinations() -> list[tuple[str, bool, str]]:
    """Where the policy acts, whether that overlaps, and the precision."""
    if not has_gpu():
        return [("cpu", overlap, "fp32") for overlap in (False, True)] + [("cpu", False, "bf16")]
    everywhere = [("gpu", False, precision) for precision in ("fp32", "bf16", "fp16")]
    apart = product(["cpu"], (False, True), ("fp32", "bf16", "fp16"))
    return [*everywhere, ("gpu", True, "fp32"), *apart]


def measure(argv: list[str], rollout: str, overlap: bool, precision: str) -> dict[str, Any]:
    """One run of bench.py: its record."""
    switches = ["--train.rollout-device", rollout, "--train.overlap", str(int(overlap))]
    switches += ["--train.precision", precision]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        command = [sys.executable, str(BENCH), *argv, *switches, "--json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        record = json.loads(path.read_text())
    record["machine"]["command"] = shlex.join(["python", "scripts/bench.py", *argv, *switches])
    return record


def row(record: dict[str, Any], overlap: bool) -> list[float]:
    """The numbers of ``COLUMNS``, medians."""
    results = record["results"]
    epoch, rollout, train = (
        results[f"perf/{name}, ms"]["median"] for name in ("epoch", "rollout", "train")
    )
    ideal = max(rollout, train) if overlap else rollout + train
    memory = results["peak memory, GiB"]
    return [results["SPS"]["median"], epoch, epoch / ideal, rollout, train, memory]


@reported
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0], allow_abbrev=False)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records to a file")
    parser.add_argument("--acting", choices=("cpu", "gpu"), help="only what acts there")
    options, rest = parser.parse_known_args(argv)
    records, load = [], os.getloadavg()
    print(f"{'rollout':8}{'overlap':>8}{'precision':>10}" + "".join(f"{c:>14}" for c in COLUMNS))
    for rollout, overlap, precision in combinations():
        if options.acting not in (None, rollout):
            continue
        record = measure(rest, rollout, overlap, precision)
        numbers = row(record, overlap)
        cells = "".join(f"{number:14,.2f}" for number in numbers)
        print(f"{rollout:8}{int(overlap):8}{precision:>10}{cells}", flush=True)
        records.append({**record, "columns": dict(zip(COLUMNS, numbers, strict=True))})
    if options.json:
        write_json({"load_before": load, "records": records}, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
