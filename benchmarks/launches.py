#!/usr/bin/env python
"""Count the launches on a GPU: python benchmarks/launches.py [ENV [options]] [--json FILE].

The graphs of training and acting are built for Metal and CUDA on any machine, counted and discarded
(`launch_counts.py`). Prints the launches of each step per minibatch and per epoch. Without ENV,
several configurations are counted; options apply to all of them. `--primitives` prints names.
"""

# ruff: noqa: I001
import argparse
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads

from puffer_mlx import vec
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.config import parse_command_line
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import count_cores
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text
from launch_counts import UNITS, Row, count

CONFIGURATIONS = {
    "breakout": ["breakout"],
    "connect4-256": ["connect4", "--policy.hidden-size", "256"],
    "g2048": ["g2048"],
    "lstm-128": ["breakout", "--torch.network", "LSTM", "--policy.hidden-size", "128"],
    "continuous": ["cartpole_continuous"],
}
FIVE = ["--train.algorithm", "puffer5"]
CONFIGURATIONS |= {f"{name}-5": [*CONFIGURATIONS[name], *FIVE] for name in ("breakout", "lstm-128")}


# ---- what is printed -----------------------------------------------------------------------------


def table(name: str, counts: dict[str, dict[str, Row]], primitives: bool) -> str:
    """Return a configuration's table of kernel launches as text, with columns for each back-end."""
    backends = list(counts)
    lines = [f"{name:24}" + "".join(f"{backend + ', each':>14}{'once':>8}" for backend in backends)]
    names = list(dict.fromkeys(step for rows in counts.values() for step in rows))
    empty = Row("", 0, 0, {}, {})
    for unit in UNITS:
        total = [[0.0, 0.0] for _ in backends]
        for step in names:
            rows = [counts[backend].get(step, empty) for backend in backends]
            if unit not in {row.unit for row in rows}:
                continue
            lines.append(f"  {step:22}" + "".join(_cells(row.launches, row.once) for row in rows))
            for sums, row in zip(total, rows, strict=True):
                sums[0] += row.launches
                sums[1] += row.once
            if primitives:
                lines += _details(rows[0])
        lines.append(f"  {'= ' + unit:22}" + "".join(_cells(*sums) for sums in total))
    return "\n".join(lines)


def _cells(each: float, once: float) -> str:
    return f"{each:14g}{once:8g}"


def _details(row: Row) -> Iterator[str]:
    for name, n in row.primitives.items():
        yield f"      {n:4g} {name}"
    for name, n in row.maybe.items():
        yield f"     +{n:4g} {name} of a slice, if not along the first axis"


# ---- the command line ----------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("this benchmark")
    group.add_argument("--only", metavar="A,B", help=f"without ENV: of {', '.join(CONFIGURATIONS)}")
    group.add_argument("--back-ends", default="metal,cuda", help="back-ends (metal,cuda)")
    group.add_argument("--primitives", action="store_true", help="list the primitives")
    group.add_argument("--json", metavar="FILE", type=Path, help="write the record to a file")


def configurations(argv: list[str]) -> dict[str, list[str]]:
    """Return the command lines whose launches are counted, by name: the given one, or defaults."""
    has_environment = bool(argv) and not argv[0].startswith("-")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(parser)
    only = parser.parse_known_args(argv)[0].only
    if has_environment and only:
        raise UserError(f"--only chooses configurations, and {argv[0]} is one", "one of the two")
    if has_environment or {"-h", "--help"} & {*argv}:
        return {argv[0]: argv}
    names_to_count = only.split(",") if only else list(CONFIGURATIONS)
    if unknown := [name for name in names_to_count if name not in CONFIGURATIONS]:
        raise UserError(f"--only: there is no {unknown[0]}", ", ".join(CONFIGURATIONS))
    return {name: [*CONFIGURATIONS[name], *argv] for name in names_to_count}


@with_exit_code
def main(argv: list[str]) -> None:
    results: dict[str, Any] = {}
    options = argparse.Namespace()
    for name, arguments in configurations(argv).items():
        config, options = parse_command_line(arguments, add_options)
        backends = options.back_ends.split(",")
        if unknown := [backend for backend in backends if backend not in ("metal", "cuda")]:
            raise UserError(f"--back-ends: there is no {unknown[0]}", "metal, cuda, or metal,cuda")
        select_device("cpu")
        with vec.make(config, count_cores()) as environments:
            counts = {backend: count(config, environments, backend) for backend in backends}
        print(table(name, counts, options.primitives), flush=True)
        results[name] = {
            backend: {step: row._asdict() for step, row in rows.items()}
            for backend, rows in counts.items()
        }
    if options.json:
        record = {
            "command": shlex.join(["python", *sys.argv]),
            "versions": version_text().splitlines(),
            "results": results,
        }
        write_json(record, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
