"""A GPU's kernels that fail where they run are replaced by plain MLX, and training continues."""

import contextlib
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from emulated_run import emulated_gpu
from oracles import RandomVec, named

from puffer_mlx import config
from puffer_mlx.ops import implementation, verification
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.ppo.loss import Minibatch
from puffer_mlx.ppo.update import _with_rewards
from puffer_mlx.rollout.on_gpu import RolloutSpec, rollouts_in_one_launch
from puffer_mlx.rollout.verified_rollouts import rollouts_agree
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec import make

T, N, S, H, EPOCHS = 6, 16, 8, 32, 2
OPTIONS = f"""
    --device cpu --policy.hidden-size {H} --policy.num-layers 1 --train.overlap 0
    --vec.total-agents {N} --vec.num-buffers 1 --train.horizon {T} --train.minibatch-size {S * T}
    --train.learning-rate 0.02 --train.total-timesteps {EPOCHS * N * T}
""".split()
FIVE = ["--train.algorithm", "puffer5", "--train.one-launch", "1"]


@pytest.fixture(autouse=True)
def a_machine(monkeypatch, tmp_path):
    """Kernels of the emulation are verified, with a cache folder of the test's."""
    monkeypatch.setattr(implementation, "refused", set())
    monkeypatch.setattr(verification, "applies", lambda: implementation.backend() != "cpu")
    monkeypatch.setattr(verification, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(verification, "machine", lambda: "this one")


def trained(options=()) -> Trainer:
    trainer = Trainer(config.load("squared", [*OPTIONS, *options]), RandomVec(N, (3,), False))
    list(trainer)
    return trainer


def apart(one: Trainer, other: Trainer) -> float:
    theirs = dict(named(other.weights))
    return max(
        float(np.abs(np.array(array) - np.array(theirs[name])).max())
        for name, array in named(one.weights)
    )


@contextlib.contextmanager
def a_gpu_with(fault, kernel):
    """An emulated GPU one of whose kernels fails."""
    with emulated_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        real = type(gpu).__call__

        def call(self, name, **given):
            return real(self, name, **given) if name != kernel else fault(real, self, name, **given)

        patch.setattr(type(gpu), "__call__", call)
        yield gpu


def does_not_compile(real, gpu, name, **given):
    raise RuntimeError(f"NVRTC can't compile {name} for sm_90: expected a ;\nline 2")


def is_refused(real, gpu, name, **given):
    raise ValueError("[custom_kernel] too many threads")


def wrong_index(real, gpu, name, **given):
    return [mx.roll(a.reshape(-1), 1).reshape(a.shape) for a in real(gpu, name, **given)]


def not_a_number(real, gpu, name, **given):
    found = real(gpu, name, **given)
    return [mx.full(a.shape, np.nan if a.dtype == mx.float32 else 255, a.dtype) for a in found]


MANY = "--train.one-launch", "0"
KERNELS = {
    "mingru_forward": ("MinGRU in one pass", MANY),
    "mingru_backward": ("MinGRU in one pass", MANY),
    "loss": ("the loss by closed form", MANY),
    "advantages": ("the kernel of advantages, the kernel that writes values and ratios back", ()),
    "draw_rows": ("the draw of segments in one call", ()),
    "muon_kept": ("Muon in one call", ()),
    "mingru_minibatch": ("a minibatch's gradients in two launches", ("--train.one-launch", "1")),
    "take_targets": ("the kernel that gathers targets", ()),
    "take_several": (
        "the gather of segments in one call, the kernel that gathers several arrays",
        (),
    ),
}
FAULTS = [does_not_compile, is_refused, wrong_index, not_a_number]


@pytest.mark.parametrize("options", [("--train.one-launch", "1"), MANY], ids=["one launch", "many"])
def test_sound_kernels_are_used(options, capsys):
    with emulated_gpu() as gpu:
        trained(options)
    print(sorted(gpu.names))
    assert not implementation.refused
    assert {"mingru_forward" if options == MANY else "mingru_minibatch", "draw_rows"} <= gpu.names


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_kernel_that_fails_is_replaced(kernel, fault, capsys):
    names, options = KERNELS[kernel]
    expected = trained(options)
    capsys.readouterr()
    with a_gpu_with(fault, kernel):
        found = trained(options)
    assert implementation.refused == {*names.split(", ")}
    lines = sorted(capsys.readouterr().err.splitlines())
    for name, line in zip(names.split(", "), lines, strict=True):
        assert line.startswith(f"puffer_mlx: {name} fails on this GPU (")
        assert line.endswith("puffer-mlx check-gpu --report")
    assert apart(found, expected) < 3e-4


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_step_kernel_that_fails_is_replaced(fault):
    expected = trained()
    with a_gpu_with(fault, "mingru_act") as gpu:
        found = trained()
    assert implementation.refused == {"the policy's step as one kernel"}
    assert not {"rollout_mingru_squared"} & gpu.names
    assert apart(found, expected) < 3e-4


def squared_rollouts(network: str = "MinGRU") -> tuple[Any, ...]:
    """Environments, a policy and weights, and the kernel of its rollouts."""
    options = [*OPTIONS, "--policy.hidden-size", "8", "--vec.num-buffers", "2"]
    configured = config.load("squared", [*options, "--torch.network", network])
    vec = make(configured, 1)
    policy = configured_policy(vec.spec, configured)
    weights = policy.init(mx.random.key(0))
    with emulated_gpu():
        kernel = rollouts_in_one_launch(policy, RolloutSpec(vec, 4, ""))
    return vec, policy, weights, kernel


@pytest.mark.parametrize("fault", [None, *FAULTS], ids=lambda f: f.__name__ if f else "sound")
def test_rollouts_that_fail_are_replaced(fault, capsys):
    vec, policy, weights, kernel = squared_rollouts()
    with vec:
        before = vec.state()
        with a_gpu_with(fault, "rollout_mingru_squared" if fault else "") as gpu:
            assert rollouts_agree(policy, vec, kernel, weights) == (fault is None)
            assert rollouts_agree(policy, vec, kernel, weights) == (fault is None)  # stored
        assert fault or "rollout_mingru_squared" in gpu.names
        np.testing.assert_array_equal(vec.state(), before)
    assert implementation.refused == ({"the rollout with environments"} if fault else set())
    assert len(capsys.readouterr().err.splitlines()) == bool(fault)


def test_a_verdict_is_stored_and_part_of_the_run(monkeypatch, capsys):
    with a_gpu_with(not_a_number, "draw_rows"):
        state = trained().state()
    assert state.numbers["refused"] == ["the draw of segments in one call"]
    implementation.refused.clear()
    capsys.readouterr()
    monkeypatch.setattr(verification.Verified, "_judge", None)  # the cache folder has the verdict
    with emulated_gpu() as gpu:
        trained()
    assert implementation.refused == {"the draw of segments in one call"}
    assert "draw_rows" not in gpu.names and len(capsys.readouterr().err.splitlines()) == 1
    implementation.refused.clear()
    with emulated_gpu() as gpu:
        configured = config.load("squared", OPTIONS)
        Trainer(configured, RandomVec(N, (3,), False), like=state)
    assert implementation.refused == {"the draw of segments in one call"}


def test_sound_kernels_are_not_judged_again(monkeypatch):
    with emulated_gpu():
        trained()
    monkeypatch.setattr(verification.Verified, "_judge", None)
    with emulated_gpu() as gpu:
        trained()
    assert not implementation.refused and "draw_rows" in gpu.names


def test_gradients_are_compared_for_advantages_that_count():
    flat = mx.zeros(6)
    targets = Minibatch(flat, flat, flat, flat)
    *before, found, _, _, _ = _with_rewards(("weights", targets, None, flat, None))
    assert before == ["weights"]
    assert found._replace(adv=None) == targets._replace(adv=None)
    assert np.std(np.array(found.adv)) > 0.3
