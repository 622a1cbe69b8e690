#!/usr/bin/env python
"""Count the Python that one epoch runs: python benchmarks/epoch_calls.py [ENV] [WORDS ...].

Prints the functions of puffer_mlx that a steady epoch calls (the fourth), the files they are in and
the number of calls; then each function with its calls, the most called first. Functions that C
calls are not counted. The numbers don't depend on the machine's load.
"""

# ruff: noqa: I001
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import puffer_mlx  # first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx

from puffer_mlx import config, vec
from puffer_mlx.training.trainer import Trainer

PACKAGE = Path(puffer_mlx.__file__).parent
STEADY = 3  # epochs before the one that is counted
SHOWN = 40  # functions
SMALL = "--vec.total-agents 256 --train.horizon 16 --train.minibatch-size 1024"


def count(trainer: Trainer) -> Counter[tuple[str, str]]:
    """Return the calls of an epoch by (file, function)."""
    calls: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            calls[str(path.relative_to(PACKAGE)), frame.f_code.co_qualname] += 1

    for _ in range(STEADY):
        trainer.step()
    sys.setprofile(profile)
    try:
        trainer.step()
    finally:
        sys.setprofile(None)
    return calls


def main(argv: list[str]) -> None:
    name, *words = argv or ["breakout"]
    mx.set_default_device(mx.cpu)
    settings = config.load(name, ["--device", "cpu", *SMALL.split(), *words])
    with vec.make(settings, 1) as environments:
        calls = count(Trainer(settings, environments))
    files = {file for file, _ in calls}
    print(f"{len(calls)} functions in {len(files)} files, {calls.total()} calls")
    for (file, function), number in calls.most_common(SHOWN):
        print(f"{number:6} {file}: {function}")


if __name__ == "__main__":
    main(sys.argv[1:])
