"""The limit of MLX's cache is set once, and a program's own limit stays."""

import subprocess
import sys
from types import SimpleNamespace

import mlx.core as mx
import pytest

from puffer_mlx.system import mlx_memory
from puffer_mlx.system.mlx_memory import MLX_CPU_LIMIT, TRAINING_LIMIT, choose_cache_limit

GIB = 1 << 30


@pytest.fixture
def chosen(monkeypatch):
    """Return a function that chooses MLX's cache limit for a machine and returns it."""
    limit = mx.set_cache_limit(0)

    def chosen(before: int, metal: bool = False, memory: int = 64 * GIB) -> int:
        monkeypatch.setattr(mlx_memory.mx.metal, "is_available", lambda: metal)
        of_all = SimpleNamespace(total=memory)
        monkeypatch.setattr(mlx_memory.psutil, "virtual_memory", lambda: of_all)
        mx.set_cache_limit(before)
        choose_cache_limit.__wrapped__()
        return mx.set_cache_limit(0)

    yield chosen
    mx.set_cache_limit(limit)


@pytest.mark.parametrize(
    ("before", "after"),
    [(MLX_CPU_LIMIT, 2 * GIB), (1 << 20, 1 << 20)],
)
def test_own_limit_stays_and_the_cpus_default_is_raised(chosen, before, after):
    assert chosen(before) == after


@pytest.mark.parametrize(
    ("memory", "before", "after"),
    [
        (8, 7 * GIB, 2 * GIB),
        (128, 121 * GIB, 32 * GIB),
        (128, 3 * GIB, 3 * GIB),  # the program's own
        (16, MLX_CPU_LIMIT, MLX_CPU_LIMIT),
    ],
)
def test_limit_on_metal_is_lowered(chosen, memory, before, after):
    assert chosen(before, metal=True, memory=memory * GIB) == after


BEGIN = """
import puffer_mlx
import mlx.core as mx
from puffer_mlx import vec; from puffer_mlx.evaluation import episodes
from puffer_mlx.config import load
from puffer_mlx.training.trainer import Trainer

config = load("squared", ["--vec.total-agents", "8", "--train.minibatch-size", "512"])
print(mx.set_cache_limit(33554432))
with vec.make(config, 1) as environments:
    trainer = Trainer(config, environments)
    print(mx.set_cache_limit(5))
    episodes.AgentStepper(trainer.policy, trainer.weights, environments)
print(mx.set_cache_limit(7))
"""


@pytest.mark.skipif(mx.is_available(mx.gpu), reason="a GPU build has another limit")
def test_training_sets_the_limit_once():
    words = [sys.executable, "-c", BEGIN]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [str(MLX_CPU_LIMIT), str(TRAINING_LIMIT), "5"], done.stderr
