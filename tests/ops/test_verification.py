"""A GPU's kernels that fail where they run are replaced by plain MLX, and training continues."""

import contextlib
from collections.abc import Callable
from typing import Any

import emulated_run
import mlx.core as mx
import numpy as np
import pytest
from emulated_run import emulated_gpu
from oracles import RandomVec, named

from puffer_mlx import config
from puffer_mlx.ops import implementation, take_targets, verification
from puffer_mlx.ops.gpu.launch import placeholder
from puffer_mlx.ops.low_precision import LOW_PRECISION_TYPES
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.ppo.loss import Targets
from puffer_mlx.ppo.optimizers import muon
from puffer_mlx.ppo.sections import Minibatch
from puffer_mlx.ppo.update import _with_rewards
from puffer_mlx.rollout.on_gpu import rollouts_in_one_launch, rollouts_in_steps
from puffer_mlx.rollout.verified_rollouts import rollouts_agree
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec import make

T, N, S, H, EPOCHS = 6, 16, 8, 32, 2
OPTIONS = f"""
    --device cpu --policy.hidden-size {H} --policy.num-layers 1 --train.overlap 0
    --vec.total-agents {N} --vec.num-buffers 1 --train.horizon {T} --train.minibatch-size {S * T}
    --train.learning-rate 0.02 --train.total-timesteps {EPOCHS * N * T}
""".split()


@pytest.fixture(autouse=True)
def a_machine(monkeypatch, tmp_path):
    """Let the emulated GPU's kernels be verified as on a new machine, with an empty cache."""
    monkeypatch.setattr(implementation, "refused", set())
    monkeypatch.setattr(implementation, "agreed", set())
    monkeypatch.setattr(verification, "uses_gpu_kernels", lambda: implementation.backend() != "cpu")
    monkeypatch.setattr(verification, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(verification, "describe_gpu_setup", lambda: "this one")


def trained(options=()) -> Trainer:
    trainer = Trainer(config.load("squared", [*OPTIONS, *options]), RandomVec(N, (3,), False))
    trainer.profiler.profile_delay = 0.0
    list(trainer)
    return trainer


def apart(one: Trainer, other: Trainer) -> float:
    theirs = dict(named(other.weights))
    return max(
        float(np.abs(np.array(array) - np.array(theirs[name])).max())
        for name, array in named(one.weights)
    )


# ---- faults --------------------------------------------------------------------------------------


@contextlib.contextmanager
def a_gpu_with(fault, kernel):
    """Emulate a GPU on which one kernel has a fault."""
    with emulated_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        real = type(gpu).__call__

        def call(self, name, **given):
            return real(self, name, **given) if name != kernel else fault(real, self, name, given)

        patch.setattr(type(gpu), "__call__", call)
        yield gpu


def written(gpu, name, given) -> list[np.ndarray]:
    """Return the input arrays that a launched kernel writes to, without placeholders."""
    kernel = emulated_run._text(name, gpu._folders)
    arrays = zip(kernel.inputs, given["inputs"], strict=True)
    names = emulated_run._written(kernel)
    found = [(np.asarray(a), placeholder(a.dtype)) for key, a in arrays if key in names]
    return [a for a, zeros in found if not np.shares_memory(a, np.asarray(zeros))]


def syntax_error(real, gpu, name, given):
    kernel = emulated_run._text(name, gpu._folders)
    emulated_run.compiled_kernel(kernel._replace(body=f"{kernel.body}int broken = ;\n"), given)


def refused_launch(real, gpu, name, given):
    raise ValueError("[custom_kernel] too many threads")


def changed(change: Callable[[np.ndarray], np.ndarray], real, gpu, name, given) -> list[mx.array]:
    """Run a kernel, then change all arrays that it wrote, except environment structs."""
    found = real(gpu, name, **given)
    for array in written(gpu, name, given):
        array[...] = change(array)
    structs = [a.dtype == mx.int32 and a.ndim == 2 for a in found]
    floats = [
        np.array(a.astype(mx.float32) if a.dtype in LOW_PRECISION_TYPES else a) for a in found
    ]
    return [
        a if struct else mx.array(change(values)).astype(a.dtype)
        for a, values, struct in zip(found, floats, structs, strict=True)
    ]


def wrong_index(*call):
    return changed(lambda a: np.roll(a, 1) if a.size > 1 else 1 - a, *call)


def not_a_number(*call):
    return changed(lambda a: np.full_like(a, np.nan if a.dtype == np.float32 else 255), *call)


OTHER_FAULTS = [syntax_error, refused_launch, not_a_number]


# ---- kernels -------------------------------------------------------------------------------------

MANY = "--train.one-launch", "0"
ONE = "--train.one-launch", "1"
ADAM = "--train.optimizer", "adam"  # Muon is slow in emulation
NETWORK = *MANY, *ADAM, "--torch.network"
LOW = *MANY, *ADAM, "--train.precision", "bf16"
WIDE = *ONE, *ADAM, "--train.precision", "bf16", "--policy.hidden-size", "128"
WIDE += "--train.horizon", "8", "--train.minibatch-size", "64"
DEEP = *LOW, "--policy.hidden-size", "128", "--policy.num-layers", "2"
NARROW = *MANY, "--policy.hidden-size", "8"
CLOSED_FORM = "the loss by closed form"
IN_TWO = "a minibatch's gradients in two launches"
MUON = "Muon in one call"
STEP = "the policy's step as one kernel"
KERNELS = {  # by name: the implementations that are refused, and options of a run
    "advantages": ("the kernel of advantages", ADAM),
    "count_minibatches": ("the count of minibatches", ADAM),
    "draw_rows": ("the draw of segments in one call", ADAM),
    "pack": (f"the kernel that packs arrays, {STEP}", ADAM),
    "take_several": ("the gather of segments in one call", ADAM),
    "take_targets": ("the kernel that gathers targets", ADAM),
    "choose_actions": ("the kernel that chooses actions", LOW),
    "gru_forward": ("GRU in one pass", (*NETWORK, "GRU")),
    "lstm_forward": ("LSTM in one pass", (*NETWORK, "LSTM")),
    "mingru_forward": ("MinGRU in one pass", (*MANY, *ADAM)),
    "mingru_backward": ("MinGRU in one pass", (*MANY, *ADAM)),
    "mingru_act": (STEP, ADAM),
    "mlp_act": (STEP, (*NETWORK, "MLP")),
    "loss": (CLOSED_FORM, (*MANY, *ADAM)),
    "mingru_minibatch": (IN_TWO, (*ONE, *ADAM)),
    "add_blocks": (IN_TWO, (*ONE, *ADAM)),
    "mingru_minibatch_wide": (IN_TWO, WIDE),
    "muon_by_block": (MUON, NARROW),
    "muon_apply": (MUON, NARROW),
}


@contextlib.contextmanager
def launching(kernel: str):
    """Let Muon use a GPU kernel: one launch for all tensors, or a launch per matrix product."""
    muon.tensor_layout.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        if kernel.startswith("muon_"):
            patch.setenv(
                implementation.COMPARING_VARIABLE, "1"
            )  # the kernels are used in spite of this
        if kernel == "muon_apply":
            patch.setattr(muon, "BLOCK_ROWS", 0)
        yield
    muon.tensor_layout.cache_clear()


@pytest.mark.parametrize("options", [ONE, MANY, DEEP], ids=["one launch", "many", "bf16"])
def test_sound_kernels_are_used(options):
    with emulated_gpu() as gpu:
        trained(options)
    assert not implementation.refused
    assert {"mingru_minibatch" if options == ONE else "mingru_forward", "draw_rows"} <= gpu.names


@pytest.mark.parametrize(
    ("kernel", "fault"),
    [
        *((kernel, wrong_index) for kernel in KERNELS),
        *(("mingru_act", fault) for fault in OTHER_FAULTS),
    ],
)
def test_failing_kernel_is_replaced(kernel, fault, capsys):
    """The run equals one in which the implementations were refused before, to the bit."""
    names, options = KERNELS[kernel]
    with launching(kernel):
        with a_gpu_with(fault, kernel):
            found = trained(options)
        assert implementation.refused == {*names.split(", ")}
        lines = [line for line in capsys.readouterr().err.splitlines() if "fails on" in line]
        for name, line in zip(names.split(", "), sorted(lines), strict=True):
            assert line.startswith(f"puffer_mlx: {name} fails on this GPU (")
            assert line.endswith("puffer-mlx check-gpu --report")
        with emulated_gpu() as gpu:
            assert apart(found, trained(options)) == 0
    assert kernel not in gpu.names
    if "bf16" not in options:
        implementation.refused.clear()
        assert apart(found, trained(options)) < 3e-4


ROLLOUTS = {  # by a kernel's name: the network, and the precision of training
    "rollout_mingru_squared": ("MinGRU", ""),
    "rollout_gru_squared": ("GRU", ""),
    "rows_mingru_squared": ("MinGRU", "fp32"),
    "step_squared": ("MinGRU", "fp32"),
}


def squared_rollouts(name: str = "rollout_mingru_squared") -> tuple[Any, ...]:
    """Return environments squared, a policy, its weights, and GPU rollouts by a given kernel."""
    network, precision = ROLLOUTS[name]
    options = [*OPTIONS, "--policy.hidden-size", "32", "--vec.num-buffers", "2"]
    configured = config.load("squared", [*options, "--torch.network", network])
    vec = make(configured, 1)
    policy = configured_policy(vec.spec, configured)
    weights = policy.init(mx.random.key(0))
    wanted = vec, 4, precision
    with emulated_gpu():
        if name.startswith("step_"):
            return vec, policy, weights, rollouts_in_steps(policy, *wanted)
        return vec, policy, weights, rollouts_in_one_launch(policy, *wanted)


def agree(name: str, fault: Any = None) -> bool:
    """Return True if GPU rollouts agree with the host's; perhaps one kernel has a fault.

    Environments are as before, and the verdict is stored.
    """
    vec, policy, weights, kernel = squared_rollouts(name)
    with vec:
        before = vec.state()
        with a_gpu_with(fault, name if fault else "") as gpu:
            found = [rollouts_agree(policy, vec, kernel, weights) for _ in range(2)]
        assert fault or name in gpu.names
        np.testing.assert_array_equal(vec.state(), before)
    assert len({*found}) == 1
    return found[0]


@pytest.mark.parametrize("name", ROLLOUTS)
def test_sound_rollouts_are_used(name):
    assert agree(name) and not implementation.refused


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *((name, wrong_index) for name in ROLLOUTS),
        *(("rollout_mingru_squared", fault) for fault in OTHER_FAULTS),
    ],
)
def test_failing_rollouts_are_replaced(name, fault, capsys):
    assert not agree(name, fault)
    assert implementation.refused == {"the rollout with environments"}
    lines = [line for line in capsys.readouterr().err.splitlines() if "fails on" in line]
    assert len(lines) == 1


def test_refusal_is_stored_in_the_cache_and_in_the_run(monkeypatch, capsys):
    with a_gpu_with(not_a_number, "draw_rows"):
        state = trained().state()
    assert state.values["refused"] == ["the draw of segments in one call"]
    implementation.refused.clear()
    implementation.agreed.clear()
    capsys.readouterr()
    monkeypatch.setattr(verification.Verified, "_compare", None)  # the cache folder has the verdict
    with emulated_gpu() as gpu:
        trained()
    assert implementation.refused == {"the draw of segments in one call"}
    assert "draw_rows" not in gpu.names and len(capsys.readouterr().err.splitlines()) == 1
    implementation.refused.clear()
    with emulated_gpu() as gpu:
        configured = config.load("squared", OPTIONS)
        Trainer(configured, RandomVec(N, (3,), False), resume_state=state)
    assert implementation.refused == {"the draw of segments in one call"}


def test_sound_kernels_are_not_verified_again_with_other_coefficients(monkeypatch):
    with emulated_gpu():
        trained()
    implementation.agreed.clear()
    monkeypatch.setattr(verification.Verified, "_compare", None)
    with emulated_gpu() as gpu:
        trained(("--train.learning-rate", "0.01", "--train.gamma", "0.9"))
    assert not implementation.refused and "draw_rows" in gpu.names


def test_gradients_are_verified_with_random_advantages():
    flat = mx.zeros(6)
    targets = Targets(flat, flat, flat, flat)
    minibatch = Minibatch(flat, flat, targets=targets)
    weights, found, ent_coef, scale = _with_rewards(("weights", minibatch, flat, None))
    assert (weights, ent_coef, scale) == ("weights", flat, None)
    assert found._replace(targets=None) == minibatch._replace(targets=None)
    assert found.targets._replace(adv=None) == targets._replace(adv=None)
    assert np.std(np.array(found.targets.adv)) > 0.3
    recomputed = minibatch._replace(targets=Targets(flat, flat, rewards=flat, terminals=flat))
    _, found, *_ = _with_rewards(("weights", recomputed, flat, None))
    assert found.targets.adv is None and np.std(np.array(found.targets.rewards)) > 0.3


def test_operation_called_directly_is_verified():
    grid = mx.random.normal((T, N), key=mx.random.key(0))
    rows = mx.arange(S, dtype=mx.int32)
    with a_gpu_with(not_a_number, "take_targets"):
        found = take_targets(grid, grid, grid, None, rows, mx.ones(S))
    assert implementation.refused == {"the kernel that gathers targets"}
    assert np.isfinite(np.array(found[0])).all()
