"""`ppo/closed_form/`: its kernels as C++, with their gradients, against float64 and plain MLX."""

import dataclasses
import math
from typing import Any

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_run import alternate, emulated_gpu, from_memory, to_memory
from kernel_oracles import EPSILON
from oracles import f64
from output_loss import output_loss

from puffer_mlx.policy.decoders import Fused
from puffer_mlx.policy.distributions import ActionBounds
from puffer_mlx.ppo.loss import Coefficients, Targets
from puffer_mlx.spec import ActionSpec
from puffer_mlx.system.backend import building_for

COEFFICIENTS = Coefficients(clip_coef=0.2, vf_coef=1.5, vf_clip_coef=0.25)
ENT_COEF = 0.02
TARGETS = "old_logprob", "old_value", "adv", "weight", "moments"


@dataclasses.dataclass
class Case:
    """Random inputs of PPO's loss for n samples, rounded to a dtype."""

    sizes: tuple[int, ...]
    n: int = 300
    masked: bool = False
    dtype: Any = mx.float32
    scale: float = 1.0
    headless: bool = False  # the last head has no legal action: float32 is too coarse about -1e4
    live: bool = False
    others: int = 0  # minibatches that advantages are normalised together with
    scheduled: bool = False  # coefficients are arrays
    limit: float = math.inf  # of means; then some are beyond it, and actions beside it
    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.n, *self.sizes])
        n, A, heads = self.n, self.action.logits, self.action.heads
        y = rng.normal(size=(A + 1, n)) * 2
        logstd = masks = None
        if self.action.continuous:
            actions, logstd = rng.normal(size=(n, heads)), rng.normal(size=(1, heads)) * 0.3
            logstd = self.rounded(logstd)
            if math.isfinite(self.limit):
                side = np.sign(y[0, :40])
                y[0, :40], actions[:40, 0] = 3 * self.limit * side, self.limit * side
                actions[:40, 0] += rng.integers(-4, 5, 40) / 4
        else:
            actions = np.stack([rng.integers(0, size, n) for size in self.sizes], axis=1)
        if self.masked:
            masks = legal_masks(rng, n, self.sizes, actions)
            masks[:, -self.sizes[-1] :] *= not self.headless
        self.arrays = {"y": self.rounded(y), "actions": actions, "logstd": logstd, "masks": masks}
        logprob, _, _ = log_probs(self)
        self.arrays |= {
            "old_logprob": logprob + rng.normal(size=n) * 0.3,
            "old_value": f64(self.arrays["y"])[-1] + rng.normal(size=n) * 0.3,
            "adv": rng.normal(size=n) * 1.5 + 0.5,
            "weight": None if self.live else rng.random(n) + 0.5,
            "moments": None,
        }
        if self.others:
            others = rng.normal(size=(self.others, n)) * 2 - 1
            self.arrays["together"] = together = np.stack([self.arrays["adv"], *others])
            self.arrays["moments"] = moments_of(together, -(-n // 256))
        for name, array in self.arrays.items():
            if array is not None:
                self.arrays[name] = array.astype(np.uint8 if name == "masks" else np.float32)

    @property
    def action(self) -> ActionSpec:
        return ActionSpec(self.sizes)

    def rounded(self, array):
        return from_memory(to_memory(array, self.dtype), self.dtype)

    def low(self, name) -> Any:
        """Return one of the case's arrays in its dtype, or None."""
        return self.given(name, self.dtype)

    def given(self, name, dtype: Any = None) -> Any:
        if self.arrays[name] is None:
            return None
        array = mx.array(self.arrays[name])
        array = array if dtype is None else array.astype(dtype)
        mx.eval(array)
        return array

    def targets(self) -> Targets:
        return Targets(*(self.given(name) for name in TARGETS))


def moments_of(minibatches, parts):
    """Return counts, means and square sums of the parts of minibatches, (R, 3, G).

    Kernels compute the same.
    """
    found = []
    for adv in minibatches:
        block = np.arange(len(adv)) // 256 % parts
        own = [adv[block == part] for part in range(parts)]
        found.append([[len(a), a.mean(), np.square(a - a.mean()).sum()] for a in own])
    return np.swapaxes(found, 1, 2)


def legal_masks(rng, n, sizes, actions):
    """Return random masks (n, A) that allow the chosen actions and half of the others."""
    mask = (rng.random((n, sum(sizes))) < 0.5).astype(np.uint8) * 3
    first = np.cumsum([0, *sizes[:-1]])
    mask[: n // 8, : sizes[0]] = 0
    mask[np.arange(n)[:, None], first + actions] = 1
    return mask


# ---- float64 ------------------------------------------------------------------------------------


def log_probs(case):
    """Compute joint log-probabilities and entropies (n,) in float64, and their gradients.

    For discrete actions, gradients by logits (n, A), with the Jacobian of the softmax; for
    continuous actions, gradients by means and logstd.
    """
    y, actions = f64(case.arrays["y"])[:-1].T, case.arrays["actions"]
    if case.action.continuous:
        logstd = f64(case.arrays["logstd"])
        z = (actions - np.clip(y, -case.limit, case.limit)) / np.exp(logstd)
        logprob = (-(z**2) / 2 - np.log(2 * np.pi) / 2 - logstd).sum(axis=1)
        entropy = np.full(len(y), (0.5 * np.log(2 * np.pi * np.e) + logstd).sum())
        return logprob, entropy, (z / np.exp(logstd), z**2 - 1)
    mask = case.arrays["masks"]
    logprob, entropy = oracles.log_prob_entropy(y, actions, case.sizes, mask)
    by_logprob, by_entropy = [], []
    for head, logp in enumerate(oracles.head_log_probs(y, case.sizes, mask)):
        p, size = np.exp(logp), case.sizes[head]
        softmax = p[:, :, None] * np.eye(size) - p[:, :, None] * p[:, None, :]  # dp_i / dx_j
        chosen = np.eye(size)[actions[:, head].astype(int)]
        by_logprob.append(np.einsum("ni,nij->nj", chosen / p.clip(1e-300), softmax))
        by_entropy.append(np.einsum("ni,nij->nj", -(logp + 1), softmax))
    legal = 1 if mask is None else mask != 0
    return logprob, entropy, [np.concatenate(g, axis=1) * legal for g in (by_logprob, by_entropy)]


def expected(case):
    """Compute the loss, metrics and gradients of a case in float64."""
    logprob, entropy, slopes = log_probs(case)
    value = f64(case.arrays["y"])[-1]
    old_logprob, old_value, adv, *weights = (f64(a) for a in case.targets() if a is not None)
    clip, vf, vf_clip = COEFFICIENTS
    gain = adv
    if not case.live:
        whole = f64(case.arrays["together"]) if case.others else adv
        mean, deviation = whole.mean(), whole.std(ddof=1)
        gain = weights[0] * (adv - mean) / (deviation + 1e-8)
    ret = (value if case.live else old_value) + adv
    targets = old_logprob, old_value, gain, ret
    coefficients = {**COEFFICIENTS._asdict(), "ent_coef": ENT_COEF}
    loss, metrics = oracles.clipped_loss(logprob, entropy, value, *targets, **coefficients)
    ratio, each = np.exp(logprob - old_logprob), case.scale / case.n
    stopped = (gain > 0) & (ratio > 1 + clip) | (gain < 0) & (ratio < 1 - clip)
    into_logprob = np.where(stopped, 0, -gain * ratio) * each
    near = np.clip(value, old_value - vf_clip, old_value + vf_clip)
    held = (near != value) & (abs(near - ret) > abs(value - ret))
    dvalue = np.where(held, 0, value - ret) * vf * each
    by_logprob, by_entropy = slopes
    dy = into_logprob[:, None] * by_logprob
    found = {"total": np.array([loss * case.scale]), "metrics": metrics, "ratio": ratio}
    if case.action.continuous:
        found["dlogstd"] = (into_logprob @ by_entropy - ENT_COEF * case.scale)[None]
    else:
        dy = dy - ENT_COEF * each * by_entropy
    return {**found, "value": value, "dy": np.concatenate([dy.T, dvalue[None]])}


def loss_of(case):
    """Return a case's loss as a function of weights, and these weights."""
    decoder, weights = Fused(case.action, 1, ActionBounds(case.limit)), {"y": case.low("y")}
    if case.action.continuous:
        weights["logstd"] = case.low("logstd")

    def losses(weights):
        given = case.given("actions"), case.given("masks"), case.targets()
        coefficients = COEFFICIENTS
        if case.scheduled:
            coefficients = Coefficients(*map(mx.array, COEFFICIENTS))
        settings = coefficients, mx.array(ENT_COEF), mx.array(case.scale)
        return output_loss(decoder, weights, *given, *settings)

    return losses, weights


def results(case):
    """Compute a case's loss, metrics and gradients by the package: plain MLX or kernels."""
    losses, weights = loss_of(case)
    (loss, metrics, ratio, value), slopes = mx.value_and_grad(losses)(weights)
    assert {slope.dtype for slope in slopes.values()} == {case.dtype}
    found = {"total": loss.reshape(1), "metrics": metrics, "ratio": ratio, "value": value}
    return found | {"dy" if name == "y" else "dlogstd": slope for name, slope in slopes.items()}


def plain(case):
    return numbers(results(case))


def numbers(found):
    return {name: np.array(array.astype(mx.float32)) for name, array in found.items()}


# ---- kernels as C++ ------------------------------------------------------------------------------

CASES = {
    "discrete": Case((4,)),
    "masked": Case((3, 2, 5), masked=True),
    "masked, one head": Case((3,), n=40, masked=True),
    "no legal action": Case((3, 2), n=20, masked=True, headless=True),
    "continuous": Case((1, 1, 1)),
    "scheduled, bf16": Case((4,), n=64, scheduled=True, dtype=mx.bfloat16),
    "masked fp16": Case((3, 2), n=64, masked=True, dtype=mx.float16, scale=1024.0),
    "many blocks": Case((2,), n=257 * 256 - 3),  # more than a block has threads
    "with two others": Case((3, 2, 5), n=257, others=2),
    "with many others": Case((2,), n=600, others=99),
    "live": Case((4,), live=True),
    "live masked": Case((3, 2, 5), n=257, masked=True, live=True),
    "live continuous fp16": Case((1, 1), n=64, dtype=mx.float16, scale=1024.0, live=True),
    "live continuous, limited": Case((1, 1, 1), live=True, limit=1e6),
    "one sample": Case((2,), n=1),
}
BACKENDS = pytest.mark.parametrize("backend", ["metal", "cuda"])


def by_kernels(backend, case):
    with emulated_gpu(backend=backend, checked=True):
        return numbers(results(case))


def compare(found, oracle, case):
    """Assert that results are close to an oracle's, relative to its largest number.

    Gradients are rounded to the case's dtype, and have a wider tolerance then.
    """
    assert found.keys() == oracle.keys()
    for name, other in oracle.items():
        bound = 2e-5 if name not in ("dy", "dlogstd") else max(4e-6, 2 * EPSILON.get(case.dtype, 0))
        bound = bound * max(np.abs(other).max(), 1e-6)
        assert found[name].shape == other.shape, name
        np.testing.assert_allclose(found[name], other, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize(("backend", "name"), alternate((name,) for name in CASES))
def test_kernels_equal_float64_and_plain_mlx(backend, name):
    case = CASES[name]
    found = by_kernels(backend, case)
    if name != "many blocks":  # where MLX's sums on a CPU are less precise
        compare(found, plain(case), case)
    if not case.headless and case.n > 1:
        compare(found, expected(case), case)


def changed(name, **arrays):
    """Return a copy of a named case with some arrays replaced."""
    other = dataclasses.replace(CASES[name])
    other.arrays = {**CASES[name].arrays, **arrays}
    return other


@pytest.mark.parametrize(
    ("backend", "name", "row", "wrong", "shows"),
    [
        ("cuda", "discrete", 2, np.inf, True),
        ("metal", "continuous", 0, np.nan, True),
        ("cuda", "continuous", 3, np.nan, True),
        ("metal", "masked, one head", 0, -np.inf, False),
    ],
)
def test_loss_is_not_finite_if_a_legal_logit_or_value_is_not(backend, name, row, wrong, shows):
    y = CASES[name].arrays["y"].copy()
    y[row, 3] = wrong
    case = changed(name, y=y)
    found, other = by_kernels(backend, case), plain(case)
    assert np.isfinite(found["total"]).all() != shows
    assert np.isfinite(other["total"]).all() != shows
    if not shows:
        assert case.arrays["masks"][3, row] == 0 == found["dy"][row, 3]
        compare(found, other, case)


@BACKENDS
def test_gradient_of_an_overflowing_ratio_is_nan(backend):
    old_logprob, adv = (CASES["discrete"].arrays[name].copy() for name in ("old_logprob", "adv"))
    old_logprob[:2], adv[:2] = -200, 5.0
    case = changed("discrete", old_logprob=old_logprob, adv=adv)
    found, other = by_kernels(backend, case), plain(case)
    assert np.isfinite(found["total"]).all() and np.isfinite(other["total"]).all()
    np.testing.assert_array_equal(np.isnan(found["dy"]), np.isnan(other["dy"]))
    assert np.isnan(found["dy"][:-1, :2]).all() and np.isfinite(found["dy"][:, 2:]).all()


@BACKENDS
def test_value_that_did_not_change_has_its_gradient(backend):
    y, old_value = (CASES["discrete"].arrays[name].copy() for name in ("y", "old_value"))
    y[-1, ::2] = old_value[::2] = 0.5
    case = changed("discrete", y=y, old_value=old_value)
    found, other = by_kernels(backend, case), plain(case)
    assert (found["dy"][-1, ::2] != 0).all()
    compare(found, other, case)


def test_compiled_product_of_the_loss_has_the_right_gradient():

    def kernel(name, **given):
        shapes = zip(given["output_shapes"], given["output_dtypes"], strict=True)
        return [mx.ones(shape, dtype) for shape, dtype in shapes]

    losses, weights = loss_of(CASES["continuous"])
    slopes = mx.compile(mx.grad(lambda weights, factor: factor * losses(weights)[0]))
    with building_for("cuda", kernel):
        for factor in 0.5, 3.0:
            for slope in slopes(weights, mx.array(factor)).values():
                np.testing.assert_array_equal(np.array(slope), np.full(slope.shape, factor))
