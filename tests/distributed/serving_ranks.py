"""A rank that trains repeatedly; tests start its process once.

It reads a line of JSON for each run (``folder``, ``words``, ``fault``), trains in that folder,
writes its output to ``out0`` etc. there, and prints the exit code.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import puffer_mlx  # noqa: F401  before MLX

# isort: split
import mlx.core as mx
from emulated_run import emulated_gpu, rolling_out_there
from mlx.utils import tree_map

from puffer_mlx.cli.train import main
from puffer_mlx.ops import implementation, verification
from puffer_mlx.training import trainer
from puffer_mlx.training.learner import Update

RANK = int(os.environ["MLX_RANK"])


@contextlib.contextmanager
def other_weights() -> Iterator[None]:
    """Change the last rank's weights after its second epoch, so that ranks disagree."""
    real, epochs = Update.wait, iter(range(1000))

    def wait(self):
        metrics = real(self)
        if RANK and next(epochs) == 1:
            weights = tree_map(lambda w: w * (1 + 1e-6), self.state.weights)
            mx.eval(weights)
            self.state = self.state._replace(weights=weights)
        return metrics

    with mock.patch.object(Update, "wait", wait):
        yield


@contextlib.contextmanager
def on_gpu() -> Iterator[None]:
    """Emulate a GPU that runs rollouts in one launch, for the ranks of a distributed run."""

    def place(given, *others):
        if RANK:  # chosen by rank 0
            train = given.config.train
            assert (train.rollout_device, train.overlap) == ("gpu-kernel", False)
        return rolling_out_there(given, *others)

    with mock.patch.object(trainer, "choose_placement", place), emulated_gpu() as gpu:
        yield
    assert any(name.startswith("rollout_") for name in gpu.names)


@contextlib.contextmanager
def one_without_muon() -> Iterator[None]:
    """Emulate a GPU for each rank; Muon's kernel gives wrong results on the last rank."""
    verifying = {
        "uses_gpu_kernels": lambda: implementation.backend() != "cpu",
        "describe_gpu_setup": lambda: "emulated",
        "cache_directory": lambda: Path(f"cache{RANK}").absolute(),
    }
    with mock.patch.object(trainer, "choose_placement", rolling_out_there), emulated_gpu() as gpu:
        real = type(gpu).__call__

        def call(self, name, **given):
            if RANK and name == "muon_by_block":
                raise RuntimeError(f"{name}: too many threads")
            return real(self, name, **given)

        with (
            mock.patch.object(type(gpu), "__call__", call),
            mock.patch.multiple(verification, **verifying),
            mock.patch.object(implementation, "refused", set()),
        ):
            yield
            assert implementation.refused == {"Muon in one call"}


def train(folder: str, words: list[str], fault: str | None) -> int:
    """Run the train command once in a rank, perhaps with a fault. Returns the exit code."""
    os.chdir(folder)
    out = os.open(f"out{RANK}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    with globals()[fault]() if fault else contextlib.nullcontext():
        code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(train(**json.loads(line)), file=answers, flush=True)
