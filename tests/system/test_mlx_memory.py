"""Freed memory that MLX keeps: who sets the limit, when, and whose limit stays."""

import subprocess
import sys
from types import SimpleNamespace

import mlx.core as mx
import pytest

from puffer_mlx.system import mlx_memory
from puffer_mlx.system.mlx_memory import BYTES, CPU_DEFAULT, choose_cache_limit

GIB = 1 << 30


@pytest.fixture
def chosen(monkeypatch):
    """The limit after a process with the limit ``before`` has chosen; of memory, and with Metal?"""
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


def test_own_limit(chosen):
    """MLX's on a CPU is raised; a program's stays, and so does CUDA's, of all memory."""
    assert chosen(CPU_DEFAULT) == BYTES == 2 * GIB
    for before in [0, 1 << 20, CPU_DEFAULT + 1, 4 * GIB]:
        assert chosen(before) == before


def test_on_metal_it_is_lowered(chosen):
    for memory, before, expected in [
        (8, 7 * GIB, 2 * GIB),
        (16, 15 * GIB, 4 * GIB),
        (128, 121 * GIB, 32 * GIB),
        (128, 3 * GIB, 3 * GIB),  # the program's own
        (128, 0, 0),
        (16, CPU_DEFAULT, CPU_DEFAULT),
    ]:
        assert chosen(before, metal=True, memory=memory * GIB) == expected


BEGIN = """
import puffer_mlx
import mlx.core as mx
from puffer_mlx import vec; from puffer_mlx.evaluation import episodes
from puffer_mlx.config import load
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.training.trainer import Trainer

config = load("squared", ["--vec.total-agents", "8", "--train.minibatch-size", "512"])
print(mx.set_cache_limit(33554432))
with vec.make(config, 1) as environments:
    {begin}
    print(mx.set_cache_limit(5))
    {begin}
print(mx.set_cache_limit(7))
"""
EVALUATION = (
    "policy = make_policy(environments.spec, config.policy, config.torch);"
    "stepper = episodes.AgentStepper(policy, policy.init(mx.random.key(0)), environments); "
    "episodes.score(stepper, 1, max_steps=1)"
)


@pytest.mark.skipif(mx.is_available(mx.gpu), reason="a GPU build has another limit")
@pytest.mark.parametrize("begin", ["Trainer(config, environments)", EVALUATION])
def test_who_begins_to_train_or_to_evaluate_sets_it_once(begin):
    code = BEGIN.format(begin=begin)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [str(CPU_DEFAULT), str(BYTES), "5"], done.stderr
