"""`config/memory_needs.py`: what can't fit into memory is refused before any of it is allocated."""

from dataclasses import replace

import numpy as np
import pytest

from puffer_mlx.config import Config, Policy, Torch, Train, Vec, load, memory_needs
from puffer_mlx.config.finding import all_env_names
from puffer_mlx.config.schema.selfplay import Selfplay
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.ppo import optimizers
from puffer_mlx.spec import ActionSpec, EnvSpec

SPEC = EnvSpec("squared", 100, np.dtype(np.float32), ActionSpec((3,)))


@pytest.fixture
def gigabytes(monkeypatch):
    """Return a function that sets how many gigabytes of memory the machine seems to have."""
    return lambda n: monkeypatch.setattr(memory_needs, "machine_memory", lambda: int(n * 1e9))


def config(H=64, L=2, N=4096, T=64, M=8192, **parts):
    return Config(
        policy=Policy(H, L),
        vec=Vec(N),
        train=Train(horizon=T, minibatch_size=M),
        torch=Torch(**parts),
    )


@pytest.mark.parametrize(
    ("wrong", "changed", "said"),
    [
        # 3 copies x 4 bytes x (2 x 10^14 + 10^9), and 1,000 bytes for each of two layers
        ({"H": 10**7}, {}, "hidden_size 10000000 with policy.num_layers 2 makes weights of 2,40"),
        ({"N": 2 * 10**9}, {}, "vec.total_agents 2000000000 with train.horizon 64 makes rollouts"),
        # 8192 samples x (64 + 10^7) x 2 bytes, more than 3 copies of 10^7 x 64 weights
        (
            {},
            {"action": ActionSpec((10**7,))},
            "minibatch_size 8192 with policy.hidden_size 64 and 10000000 action logits computes"
            " numbers of 164 GB",
        ),
        # 4096 x 64 rows of 10^6 float32
        ({}, {"observation_size": 10**6}, "train.horizon 64 makes rollouts of 1,049 GB"),
        # 4096 x 64 rows of 10^6 bytes
        ({}, {"action": ActionSpec((10**6,)), "mask_size": 10**6}, "makes rollouts of 262 GB"),
    ],
)
def test_sizes_beyond_the_machines_memory_are_refused(gigabytes, wrong, changed, said):
    gigabytes(20)
    memory_needs.refuse_large_training(config(), SPEC)
    with pytest.raises(UserError, match="this machine has 20 GB") as caught:
        memory_needs.refuse_large_training(
            config(**wrong), replace(SPEC, **changed) if changed else None
        )
    assert said in str(caught.value) and "hint: choose " in str(caught.value)


def test_parts_that_fit_separately_must_fit_together(gigabytes):
    """Rollouts of 109 MB at least, weights of 3 x 4 bytes x (2 x 2500^2 + 2500 x 103) = 153 MB."""
    wide = config(H=2500, M=64)
    gigabytes(0.3)
    memory_needs.refuse_large_training(wide, SPEC)
    gigabytes(0.2)
    with pytest.raises(UserError, match=r"hidden_size 2500 .* 0.26 GB with the rest of the run"):
        memory_needs.refuse_large_training(wide, SPEC)


def test_a_gpus_own_memory_holds_the_learner(gigabytes):
    wide = config(H=2500, M=64)
    gigabytes(0.12)
    memory_needs.refuse_large_training(wide, SPEC, gpu_memory=160_000_000)
    with pytest.raises(UserError, match=r"hidden_size 2500 .* and the GPU has 0.15 GB"):
        memory_needs.refuse_large_training(wide, SPEC, gpu_memory=150_000_000)
    gigabytes(0.1)
    memory_needs.refuse_large_training(wide, SPEC, gpu_memory=160_000_000)
    with pytest.raises(UserError, match="rollouts"):
        memory_needs.refuse_large_training(config(N=8192, H=8, M=64), SPEC, gpu_memory=160_000_000)


def test_sizes_beyond_a_dimension_of_an_array_are_refused(gigabytes):
    """MLX counts a dimension in 32 bits, whatever fits into memory."""
    gigabytes(10**6)
    memory_needs.refuse_large_training(config(N=2**20, T=2**10))
    with pytest.raises(UserError, match="2,147,483,648 numbers, more than an array's dimension"):
        memory_needs.refuse_large_training(config(N=2**20, T=2**11))
    with pytest.raises(UserError, match="2,147,483,648 numbers, more than an array's dimension"):
        memory_needs.refuse_large_step(replace(SPEC, observation_size=2**31), 1, 1)


def test_an_optimizers_state_counts(gigabytes):
    # copies x 4 bytes x (2 x 10^14 + 10^9): weights, gradients, and momentum; of adam two moments
    gigabytes(20)
    for name, said in ("muon", "2,40"), ("adam", "3,20"):
        kept = optimizers.state_size(optimizers.find_optimizer(name))
        with pytest.raises(UserError, match=f"makes weights of {said}"):
            memory_needs.refuse_large_training(config(H=10**7), state_copies=kept)


@pytest.mark.parametrize(
    ("enabled", "max_size", "interval", "copies"),
    [(False, 100, 1, 3), (True, 100, 1000, 3 + 10), (True, 5, 1000, 3 + 4)],
)
def test_the_pool_of_opponents_counts(gigabytes, enabled, max_size, interval, copies):
    """Each copy of the weights: 4 bytes x (2 x 10^8 + 10^4), and 1,000 for each of two layers."""
    settings = config(H=10**4, N=64, M=64)
    settings.train.total_timesteps = 10_000
    settings.selfplay = Selfplay(enabled, max_size=max_size, snapshot_interval=interval)
    needed = copies * (4 * (2 * 10**8 + 10**4) + 2000) / 1e9
    gigabytes(needed * 1.001)
    memory_needs.refuse_large_training(settings)
    gigabytes(needed * 0.999)
    with pytest.raises(UserError, match="makes weights of") as caught:
        memory_needs.refuse_large_training(settings)
    assert ("smaller max_size" in str(caught.value)) == (copies > 3)


def test_a_policy_is_refused_before_it_is_made(gigabytes):
    gigabytes(20)
    for policy in Policy(10**7, 1), Policy(1, 10**9):
        with pytest.raises(UserError, match="makes weights of"):
            make_policy(SPEC, policy)
    # one's own network may be of any size
    memory_needs.refuse_large_policy(config(H=10**6, network="mine:Net", encoder="mine:Encoder"))
    gigabytes(6)  # a layer of 10^9 weights has 4 GB; values with their own network need it twice
    memory_needs.refuse_large_policy(Config(policy=Policy(31623, 1)))
    with pytest.raises(UserError, match="makes weights of 8 GB"):
        memory_needs.refuse_large_policy(Config(policy=Policy(31623, 1, separate_value=True)))


def test_shipped_configurations_fit_into_4_gb(gigabytes):
    gigabytes(4)
    for name in all_env_names():
        memory_needs.refuse_large_training(load(name))


def test_a_containers_limit_counts(tmp_path, monkeypatch):
    whole = memory_needs.machine_memory()
    (tmp_path / "memory.max").write_text("5000000\n")
    monkeypatch.setattr(memory_needs, "CGROUP_FOLDER", tmp_path)
    assert memory_needs.machine_memory() == 5_000_000 < whole
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert memory_needs.machine_memory() >= whole


def test_agents_of_the_evaluation_after_training_count():
    asked = config()
    asked.base.eval_agents = 2 * 10**9
    memory_needs.refuse_large_training(asked)  # puffer4's has no such agents
    asked.train.algorithm = "puffer5"
    with pytest.raises(UserError, match="eval_agents 2000000000 with") as caught:
        memory_needs.refuse_large_training(asked)
    assert "fewer eval_agents" in caught.value.hint
