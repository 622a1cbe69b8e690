"""`config/memory_needs.py`: what can't fit into memory is refused before any of it is allocated."""

import numpy as np
import pytest

from puffer_mlx.config import Config, Policy, Torch, Train, Vec, load, memory_needs
from puffer_mlx.config.resolve import known_envs
from puffer_mlx.config.schema.selfplay import Selfplay
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.ppo import optimizers
from puffer_mlx.spec import ActionSpec, EnvSpec

SPEC = EnvSpec("squared", 100, np.dtype(np.float32), ActionSpec((3,)))


@pytest.fixture
def gigabytes(monkeypatch):
    """Sets the machine's memory."""
    return lambda n: monkeypatch.setattr(memory_needs, "machine_memory", lambda: int(n * 1e9))


def config(H=64, L=2, N=4096, T=64, M=8192, **parts):
    return Config(
        policy=Policy(H, L),
        vec=Vec(N),
        train=Train(horizon=T, minibatch_size=M),
        torch=Torch(**parts),
    )


def test_what_does_not_fit(gigabytes):
    gigabytes(20)
    for wrong, said in (
        # 3 copies x 4 bytes x (2 x 10^14 + 10^9), and 1,000 bytes for each of two layers
        ({"H": 10**7}, "hidden_size 10000000 with policy.num_layers 2 makes weights of 2,40"),
        ({"L": 10**9}, "makes weights of"),
        ({"N": 2 * 10**9}, "vec.total_agents 2000000000 with train.horizon 64 makes rollouts of"),
        ({"T": 10**9}, "total_agents 4096 with train.horizon 1000000000 makes rollouts of"),
        ({"M": 10**12}, "minibatch_size 1000000000000 with policy.hidden_size 64 computes"),
    ):
        for spec in None, SPEC:
            memory_needs.refuse_training(config(), spec)
            with pytest.raises(UserError, match="this machine has 20 GB") as caught:
                memory_needs.refuse_training(config(**wrong), spec)
            assert said in str(caught.value) and "hint: choose " in str(caught.value)


def test_an_optimizers_state_counts(gigabytes):
    # copies x 4 bytes x (2 x 10^14 + 10^9): weights, gradients, and momentum; of adam two moments
    gigabytes(20)
    for name, said in ("muon", "2,40"), ("adam", "3,20"):
        kept = optimizers.kept(optimizers.find(name))
        with pytest.raises(UserError, match=f"makes weights of {said}"):
            memory_needs.refuse_training(config(H=10**7), kept=kept)


def test_the_pool_of_opponents_counts(gigabytes):
    """Each copy of the weights: 4 bytes x (2 x 10^8 + 10^4), and 1,000 for each of two layers."""
    for enabled, max_size, interval, copies in (
        *((False, 100, 1, 3), (True, 100, 0, 3)),
        *((True, 100, 1000, 3 + 10), (True, 5, 1000, 3 + 4)),
    ):
        settings = config(H=10**4)
        settings.train.total_timesteps = 10_000
        settings.selfplay = Selfplay(enabled, max_size=max_size, snapshot_interval=interval)
        needed = copies * (4 * (2 * 10**8 + 10**4) + 2000) / 1e9
        gigabytes(needed * 1.001)
        memory_needs.refuse_training(settings)
        gigabytes(needed * 0.999)
        with pytest.raises(UserError, match="makes weights of") as caught:
            memory_needs.refuse_training(settings)
        assert ("selfplay.max_size" in str(caught.value)) == (copies > 3)


def test_observations_count_once_they_are_known(gigabytes):
    # 4096 x 64 rows of 16 bytes are 4 MB, with 100 float32 each 109 MB
    gigabytes(0.05)
    memory_needs.refuse_training(config(H=8))
    with pytest.raises(UserError, match="rollouts"):
        memory_needs.refuse_training(config(H=8), SPEC)


def test_a_policy_alone(gigabytes):
    """What a file describes: nothing of it is made."""
    gigabytes(20)
    for policy in Policy(10**7, 1), Policy(1, 10**9):
        with pytest.raises(UserError, match="makes weights of"):
            make_policy(SPEC, policy)
    # one's own network may be of any size
    memory_needs.refuse_policy(config(H=10**6, network="mine:Net", encoder="mine:Encoder"))
    gigabytes(6)  # a layer of 10^9 weights has 4 GB; values with their own network need it twice
    memory_needs.refuse_policy(Config(policy=Policy(31623, 1)))
    with pytest.raises(UserError, match="makes weights of 8 GB"):
        memory_needs.refuse_policy(Config(policy=Policy(31623, 1, separate_value=True)))


def test_what_is_shipped_fits_into_4_gb(gigabytes):
    gigabytes(4)
    for name in known_envs():
        memory_needs.refuse_training(load(name))


def test_a_container_has_less(tmp_path, monkeypatch):
    whole = memory_needs.machine_memory()
    (tmp_path / "memory.max").write_text("5000000\n")
    monkeypatch.setattr(memory_needs, "GROUPS", tmp_path)
    assert memory_needs.machine_memory() == 5_000_000 < whole
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert memory_needs.machine_memory() >= whole


def test_agents_of_the_evaluation_after_training():
    """They would be found to be too many when the run is over."""
    asked = config()
    asked.base.eval_agents = 2 * 10**9
    memory_needs.refuse_training(asked)  # puffer4's has no such agents
    asked.train.algorithm = "puffer5"
    with pytest.raises(UserError, match="eval_agents 2000000000 with") as caught:
        memory_needs.refuse_training(asked)
    assert "fewer base.eval_agents" in caught.value.hint
    asked.base.eval_episodes = 0
    memory_needs.refuse_training(asked)
