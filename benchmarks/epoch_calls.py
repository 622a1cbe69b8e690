#!/usr/bin/env python
"""Count the Python calls of one epoch: python benchmarks/epoch_calls.py [ENV] [OPTION ...].

Prints how many functions of puffer_mlx the fourth epoch calls, in how many files, and the number of
calls; then the functions with the most calls. Functions that C code calls aren't counted. The
numbers don't depend on the machine's load.
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
WARM_UP_EPOCHS = 3  # before the counted one
MAX_SHOWN_FUNCTIONS = 40
SMALL_RUN = "--vec.total-agents 256 --train.horizon 16 --train.minibatch-size 1024"


def count_calls(trainer: Trainer) -> Counter[tuple[str, str]]:
    """Run an epoch. Returns how often it called each function, by (file, function)."""
    calls: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            calls[str(path.relative_to(PACKAGE)), frame.f_code.co_qualname] += 1

    for _ in range(WARM_UP_EPOCHS):
        trainer.step()
    sys.setprofile(profile)
    try:
        trainer.step()
    finally:
        sys.setprofile(None)
    return calls


def main(argv: list[str]) -> None:
    """Count the calls of an epoch and print them."""
    name, *options = argv or ["breakout"]
    mx.set_default_device(mx.cpu)
    settings = config.load(name, ["--device", "cpu", *SMALL_RUN.split(), *options])
    with vec.make(settings, 1) as environments:
        calls = count_calls(Trainer(settings, environments))
    files = {file for file, _ in calls}
    print(f"{len(calls)} functions in {len(files)} files, {calls.total()} calls")
    for (file, function), number in calls.most_common(MAX_SHOWN_FUNCTIONS):
        print(f"{number:6} {file}: {function}")


if __name__ == "__main__":
    main(sys.argv[1:])
