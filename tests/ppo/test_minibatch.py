"""A minibatch's gradients in two launches, run as C++, against plain MLX."""

import dataclasses
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from emulated_run import alternate, emulated_gpu, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten, tree_unflatten

from puffer_mlx.ops import cpu_extension
from puffer_mlx.policy.decoders import Fused
from puffer_mlx.policy.distributions import UNBOUNDED, ActionBounds
from puffer_mlx.policy.encoders.default import Affine, Linear
from puffer_mlx.policy.networks.mingru import MinGRU
from puffer_mlx.policy.networks.mlp import MLP
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import minibatch
from puffer_mlx.ppo.advantage import Discounts, advantages
from puffer_mlx.ppo.algorithms import puffer5
from puffer_mlx.ppo.gradients import minibatch_loss
from puffer_mlx.ppo.loss import Coefficients, Targets
from puffer_mlx.ppo.sections import Minibatch
from puffer_mlx.spec import ActionSpec

NUMBERS = Coefficients(clip_coef=0.2, vf_coef=1.5, vf_clip_coef=0.25)
DISCOUNTS = Discounts(0.97, 0.9, rho_clip=1.1, c_clip=0.9, reward_clip=1.5)
H200, MAC = (512, 232448), (256, 32768)  # threads and shared memory of a block


@dataclasses.dataclass
class Case:
    """A minibatch of T steps of S segments with random data, and its policy."""

    T: int = 16
    S: int = 8
    D: int = 11
    H: int = 32
    L: int = 2
    sizes: tuple[int, ...] = (3,)
    live: bool = False
    vtrace: bool = False
    masked: bool = False
    resets: bool = False
    begins: bool = False  # from states that aren't 0
    final_observations: bool = False
    together: int = 0  # minibatches that advantages are normalised together with
    kind: str = "fp32"
    room: int = 0  # bytes of shared memory, of fewer than there are
    strip: bool = False  # its observations are a part of a rollout's
    bytes: bool = False  # observations
    limits: ActionBounds = UNBOUNDED  # of actions that are numbers
    scheduled: bool = False  # coefficients of the loss are arguments

    @property
    def numbers(self) -> bool:
        return {*self.sizes} == {1}

    @property
    def policy(self) -> Policy:
        decoder = Fused(ActionSpec(self.sizes), self.H, self.limits, 0.1)
        return Policy(Linear(self.D, self.H), MinGRU(self.H, self.L), decoder)

    @property
    def states(self) -> list[str]:
        """Return the names of the network's recurrent state arrays."""
        return [name for name, _ in tree_flatten(self.policy.initial_state(1))]

    @property
    def scoring(self) -> minibatch.LossSpec:
        numbers = Coefficients(0.0, 0.0, 0.0) if self.scheduled else NUMBERS
        return minibatch.LossSpec(numbers, DISCOUNTS if self.live else None, self.vtrace)

    def arrays(self) -> list[Any]:
        """Return a minibatch's random arrays: weights, inputs, targets and states; some None."""
        rng, T, S = np.random.default_rng([self.T, self.S, self.H]), self.T, self.S
        n, A, shape = T * S, sum(self.sizes), (T, S, self.D)
        initial = [np.array(w) * 3 for _, w in tree_flatten(self.policy.init(mx.random.key(1)))]
        weights = [w if w.any() else rng.normal(size=w.shape) * 0.5 for w in initial]
        actions: Any = np.stack([rng.integers(0, size, n) for size in self.sizes], axis=1)
        if self.numbers:
            actions = rng.normal(size=(n, A))
        masks = (rng.random((n, A)) < 0.6).astype(np.uint8)
        first = np.cumsum([0, *self.sizes[:-1]])
        if self.masked:
            masks[np.arange(n)[:, None], first + actions] = 1
        moments = rng.random((self.together + 1, 3, 4)) + 1
        moments[:, 0] = n / 4
        compared: list[Any] = [-rng.random(n) * 2, rng.normal(size=n)]
        if self.live:
            compared += [rng.normal(size=(T, S)), rng.random((T, S)) < 0.1]
            compared.append(
                rng.choice([0, 0, 0, 1, 2], (T, S)) if self.final_observations else None
            )
        else:
            compared += [rng.normal(size=n) + 0.3, rng.random(n) + 0.5]
            compared.append(moments if self.together else None)
        arrays = [
            *weights,
            rng.integers(0, 4, shape) if self.bytes else rng.normal(size=shape),
            actions,
            masks if self.masked else None,
            (rng.random((T, S)) < 0.9) if self.resets else None,
            *compared,
            *(rng.random((S, self.H)) if self.begins else None for _ in self.states),
        ]
        bytes_ = [None if a is None else a.astype(np.float32) for a in arrays]
        if self.masked:
            bytes_[len(weights) + 2] = masks
        if self.bytes:
            bytes_[len(weights)] = arrays[len(weights)].astype(np.uint8)
        return bytes_

    def called(self, step: Any, *arrays: Any) -> list[mx.array]:
        """Call a function that computes a minibatch; return its results, gradients first."""
        names = [name for name, _ in tree_flatten(self.policy.init(mx.random.key(1)))]
        weights: Any = tree_unflatten([*zip(names, arrays, strict=False)])
        observations, actions, masks, not_done, *rest = arrays[len(names) :]
        old_logprob, old_value, *others = rest[:5]
        if self.live:
            rewards, terminals, final_observations = others
            targets = Targets(
                old_logprob,
                old_value,
                rewards=rewards,
                terminals=terminals,
                final_observations=final_observations,
            )
        else:
            targets = Targets(old_logprob, old_value, *others)
        state = tree_unflatten([*zip(self.states, rest[5:], strict=True)])
        state = state if self.begins else None
        batch = Minibatch(observations, actions, masks, not_done, targets, state)
        if self.strip:
            whole = mx.concatenate([observations * 2, observations, observations], axis=1)
            view = mx.arange(self.S, 2 * self.S, dtype=mx.int32)
            batch = batch._replace(observations=whole, view=view)
        scheduled = NUMBERS._asdict() if self.scheduled else {}
        scheduled = {name: mx.array(number) for name, number in scheduled.items()}
        (_, *others), grads = step(weights, batch, mx.array(0.02), mx.array(1.0), scheduled)
        flat = dict(tree_flatten(grads))
        assert [*grads] == ["encoder", "decoder", "network"] and [*flat] == names
        return [*(flat[name] for name in names), *others]

    def plain(self) -> Any:
        """Return the function that computes the minibatch's loss and gradients in plain MLX."""
        recompute = None
        if self.live:
            parts = self.policy, DISCOUNTS, self.vtrace, advantages
            recompute = partial(puffer5.recompute_advantages, *parts)
        return mx.value_and_grad(
            partial(minibatch_loss, self.policy, self.kind, NUMBERS, None, recompute)
        )


CASES = {
    "scheduled": Case(scheduled=True),
    "given, with others, one layer": Case(together=2, L=1, T=8, S=20, D=40, sizes=(5,)),
    "live, everything": Case(
        **dict.fromkeys(
            ("live", "vtrace", "masked", "resets", "begins", "final_observations"), True
        ),
        sizes=(2, 4),
    ),
    "bytes": Case(bytes=True, live=True, sizes=(4, 3), strip=True),
    "numbers": Case(sizes=(1,), D=5, live=True, vtrace=True, begins=True, strip=True),
    "numbers within limits": Case(
        sizes=(1, 1, 1), limits=ActionBounds(1.5, -1.0, 0.5), L=1, together=1
    ),
    "in chunks": Case(T=24, S=6, L=3, live=True, begins=True, resets=True, room=40_000),
    "Breakout": Case(T=64, S=2, H=64, D=118),
    "stretches of six steps": Case(
        T=48, S=2, H=64, D=10, sizes=(17,), live=True, begins=True, resets=True
    ),
    "wide": Case(T=16, S=4, H=64, D=70, sizes=(17,)),
    "8 units": Case(T=8, S=16, D=4, H=8, L=3, live=True, begins=True, resets=True),
    "24 units": Case(H=24, L=1, live=True, begins=True, masked=True),
    "bf16": Case(kind="bf16", live=True, begins=True, resets=True),
    "bf16, bytes and numbers": Case(kind="bf16", bytes=True, sizes=(1, 1)),
}
CHUNKS = {  # else 1
    ("metal", "in chunks"): 3,
    ("cuda", "in chunks"): 3,
    ("metal", "Breakout"): 4,
}
ON_CUDA_ALONE = "8 units", "wide", "stretches of six steps"  # too large for a Mac's block


def plan_of(case: Case, backend: str) -> minibatch.MinibatchPlan | None:
    threads, room = MAC if backend == "metal" else H200
    sizes = minibatch.MinibatchSizes(
        *(case.T, case.S, case.D, case.H, case.L, sum(case.sizes)),
        *(0 if case.numbers else len(case.sizes), case.live),
        *(case.kind == "bf16", threads, min(room, case.room or room)),
    )
    return minibatch.choose_plan(sizes)


def by_kernels(case: Case, backend: str, **replaced: Any) -> tuple[list[str], list[np.ndarray]]:
    """Compute a minibatch by kernels on an emulated GPU.

    Returns the names of launched kernels, and the results.

    Args:
        case: The minibatch.
        backend: metal or cuda.
        replaced: Attributes of ``ppo/minibatch`` and their replacements.
    """
    threads, room = MAC if backend == "metal" else H200
    minibatch.choose_plan.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minibatch, "MAX_BLOCKS", 2)  # so that most take several tiles
        limits = threads, min(room, case.room or room)
        patch.setattr(minibatch, "shared_pool_limits", lambda: limits)
        for name, value in replaced.items():
            patch.setattr(minibatch, name, value)
        with emulated_gpu(backend=backend, checked=True) as gpu:
            parts = case.plain(), case.policy, case.kind, case.scoring
            arrays = [None if a is None else mx.array(a) for a in case.arrays()]
            found = case.called(minibatch.with_fused_gradients(*parts), *arrays)
            results = [to_numpy(array) for array in found]
    minibatch.choose_plan.cache_clear()
    return gpu.launches, results


def expected(case: Case) -> list[np.ndarray]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_extension, "load_extension", lambda: None)
        arrays = [None if a is None else mx.array(a) for a in case.arrays()]
        return [
            np.array(a)
            for a in dataclasses.replace(case, kind="fp32").called(case.plain(), *arrays)
        ]


RUNS = alternate((name,) for name in CASES if name not in ON_CUDA_ALONE)
RUNS += [("cuda", name) for name in ON_CUDA_ALONE]
RUNS += [("metal", "24 units"), ("cuda", "24 units"), ("metal", "in chunks"), ("metal", "Breakout")]


@pytest.mark.parametrize(("backend", "name"), sorted({*RUNS}))
def test_gradients_equal_plain_mlx(backend, name):
    case, plan = CASES[name], plan_of(CASES[name], backend)
    assert plan is not None and plan.chunks == CHUNKS.get((backend, name), 1), plan
    launches, found = by_kernels(case, backend)
    assert len(launches) == 2 + (not case.live and not case.together)
    for one, other in zip(found, expected(case), strict=True):
        assert one.shape == other.shape
        if case.kind == "fp32":
            np.testing.assert_allclose(one, other, 0, 2e-5 * np.abs(other).max())
        else:  # as a whole: rounding carries single numbers to the other side of a clip
            assert np.linalg.norm(one - other) <= 0.04 * np.linalg.norm(other)


WIDE = {  # T times as many segments as fill 64 rows
    "two layers": Case(kind="bf16", H=128, S=8, D=22, live=True, begins=True, resets=True),
    "of bytes": Case(kind="bf16", H=128, S=4, D=40, bytes=True, masked=True, L=1, strip=True),
    "narrow": Case(kind="bf16", H=64, T=32, S=4, L=3, sizes=(3, 15), vtrace=True, live=True),
    "one step": Case(kind="bf16", H=128, T=1, S=64, L=2, together=1),
    "channels in pairs": Case(kind="bf16", H=128, T=8, S=64, L=2, begins=True, resets=True),
}


@pytest.mark.parametrize("name", WIDE)
def test_gradients_of_wide_layers_are_close_to_plain_mlx(name):
    launches, found = by_kernels(
        WIDE[name],
        "cuda",
        choose_plan=lambda *_: None,
        TILES_AT_ONCE=16,  # two parts of 256 samples
        choose_wide_plan=minibatch.choose_wide_plan.__wrapped__,
    )
    assert "mingru_minibatch_wide" in launches
    for one, other in zip(found, expected(WIDE[name]), strict=True):
        assert one.shape == other.shape
        assert np.linalg.norm(one - other) <= 0.04 * np.linalg.norm(other)


@pytest.fixture
def on_cuda(monkeypatch):
    monkeypatch.setattr(minibatch, "gpu_backend", lambda: "cuda")
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))


@pytest.mark.parametrize(
    "changed",
    [
        {"network": MinGRU(32, 5)},
        {"network": MLP(32, 2)},
        {"separate_value": True},
        {"encoder": Affine(11, 32)},
    ],
)
def test_unsupported_policies_use_plain_mlx(on_cuda, changed):
    policy = dataclasses.replace(Case().policy, **changed)
    assert not minibatch.supports_fused(policy, "fp32", Case().scoring)


def test_unsupported_precisions_and_losses_use_plain_mlx(on_cuda, monkeypatch):
    policy, scoring = Case().policy, Case().scoring
    for wanted in (True, "auto"):
        assert minibatch.supports_fused(policy, "fp32", scoring, wanted)
    assert not minibatch.supports_fused(policy, "fp32", scoring, False)
    assert not minibatch.supports_fused(policy, "fp32", None)
    assert not minibatch.supports_fused(policy, "fp16", scoring)
    monkeypatch.setattr(minibatch, "gpu_backend", lambda: "metal")
    assert not minibatch.supports_fused(policy, "fp32", scoring, "auto")


@given(
    st.integers(1, 64),
    st.sampled_from([2, 7, 64, 1024, 2048]),
    st.sampled_from([4, 9, 118]),
    st.sampled_from([8, 32, 64, 512]),
    st.integers(1, 4),
    st.sampled_from([(MAC, True), (H200, False), (H200, True)]),
)
def test_plan_divides_the_minibatch_and_fits_shared_memory(T, S, D, H, L, machine):
    block, low = machine
    plan = minibatch.choose_plan(minibatch.MinibatchSizes(T, S, D, H, L, 3, 1, True, low, *block))
    if plan is None:
        assert H > 64 or T * S % 16 or L > 2 or block == MAC
        return
    steps, segments = plan.sizes["STEPS"], plan.sizes["SEGMENTS"]
    assert S % segments == 0 and steps * plan.chunks == T
    assert steps * segments % 16 == 0 and steps * segments <= 64
    assert 4 * plan.sizes["POOL"] <= block[1]
