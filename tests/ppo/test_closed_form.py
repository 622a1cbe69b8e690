"""`ppo/closed_form/`: its kernels as C++, against float64 and the plain form; and its vjp."""

import dataclasses
import io
import math
import re
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import oracles
import pytest
from compiled_steps import compiled as compiled_steps
from emulated_gpu import Compiled, from_memory, recording, to_memory
from kernel_oracles import EPSILON
from oracles import f64

from puffer_mlx import config
from puffer_mlx.ops.fingerprints import COMPARING
from puffer_mlx.policy.decoders import Fused
from puffer_mlx.policy.distributions import Limits
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.ppo.closed_form import gpu, operation
from puffer_mlx.ppo.loss import Coefficients, Minibatch
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.system.backend import building_for
from puffer_mlx.trees import named

COEFFICIENTS = Coefficients(clip_coef=0.2, vf_coef=1.5, vf_clip_coef=0.25)
ENT_COEF = 0.02
TARGETS = Minibatch._fields


@dataclasses.dataclass
class Case:
    """Inputs of n samples, float32, rounded to what is in memory."""

    sizes: tuple[int, ...]
    n: int = 300
    masked: bool = False
    dtype: Any = mx.float32
    scale: float = 1.0
    parts: int = 256
    headless: bool = False  # the last head has no legal action: float32 is too coarse about -1e4
    live: bool = False
    others: int = 0  # minibatches that advantages are normalised together with
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
            self.arrays["moments"] = moments_of(together, min(self.parts, -(-n // 256)))
        for name, array in self.arrays.items():
            if array is not None:
                self.arrays[name] = array.astype(np.uint8 if name == "masks" else np.float32)

    @property
    def action(self) -> ActionSpec:
        return ActionSpec(self.sizes)

    def rounded(self, array):
        return from_memory(to_memory(array, self.dtype), self.dtype)

    def low(self, name) -> Any:
        """As MLX gets it: of the case's dtype, or None."""
        array = self.arrays[name]
        return None if array is None else mx.array(array).astype(self.dtype)

    def given(self, name) -> Any:
        return None if self.arrays[name] is None else mx.array(self.arrays[name])

    def space(self) -> gpu.Space:
        actions, masks = self.given("actions"), self.given("masks")
        limit = Limits(self.limit).for_kernels
        return gpu.Space(self.action, limit, self.low("logstd"), actions, masks)

    def settings(self) -> gpu.Settings:
        return gpu.Settings(COEFFICIENTS, mx.array(ENT_COEF), mx.array(self.scale))

    def batch(self) -> Minibatch:
        return Minibatch(*(self.given(name) for name in TARGETS))


def moments_of(minibatches, parts):
    """Of each minibatch (n,) its parts' counts, means, squares, as kernels give them: (R, 3, G)."""
    found = []
    for adv in minibatches:
        block = np.arange(len(adv)) // 256 % parts
        own = [adv[block == part] for part in range(parts)]
        found.append([[len(a), a.mean(), np.square(a - a.mean()).sum()] for a in own])
    return np.swapaxes(found, 1, 2)


def legal_masks(rng, n, sizes, actions):
    """(n, A): what was chosen is legal, and half of the others, or none of one head's."""
    mask = (rng.random((n, sum(sizes))) < 0.5).astype(np.uint8) * 3
    first = np.cumsum([0, *sizes[:-1]])
    mask[: n // 8, : sizes[0]] = 0
    mask[np.arange(n)[:, None], first + actions] = 1
    return mask


# ---- float64 ------------------------------------------------------------------------------------


def log_probs(case):
    """Joint log-probability (n,), entropy (n,), and (d logprob, d entropy) by logits, (n, A).

    By the Jacobian of the softmax. Of a continuous space: by means and logstd.
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
    """All that the kernels give, in float64; gradients by cases, not by differentiation."""
    logprob, entropy, slopes = log_probs(case)
    value = f64(case.arrays["y"])[-1]
    old_logprob, old_value, adv, *weights = (f64(a) for a in case.batch() if a is not None)
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


def plain(case):
    """The same by the plain form, which MLX differentiates on this CPU."""
    decoder = Fused(case.action, 1, Limits(case.limit))

    def total(y, logstd):
        weights = {} if logstd is None else {"logstd": logstd}
        return operation.losses(
            *(decoder, weights, y, case.given("actions"), case.given("masks"), case.batch()),
            *(COEFFICIENTS, mx.array(ENT_COEF), mx.array(case.scale)),
        )

    given = case.low("y"), case.low("logstd")
    (loss, metrics, ratio, value), dy = mx.value_and_grad(total)(*given)
    found = {"total": loss[None], "metrics": metrics, "ratio": ratio, "value": value, "dy": dy}
    if case.action.continuous:
        _, found["dlogstd"] = mx.value_and_grad(total, argnums=1)(*given)
    return {name: np.array(array.astype(mx.float32)) for name, array in found.items()}


# ---- kernels as C++ ------------------------------------------------------------------------------

CASES = {
    "discrete": Case((4,)),
    "multidiscrete": Case((3, 2, 5), n=257),
    "masked": Case((3, 2, 5), masked=True),
    "masked, one head": Case((3,), n=40, masked=True),
    "no legal action": Case((3, 2), n=20, masked=True, headless=True),
    "continuous": Case((1, 1, 1)),
    "bf16": Case((4,), n=64, dtype=mx.bfloat16),
    "masked fp16": Case((3, 2), n=64, masked=True, dtype=mx.float16, scale=1024.0),
    "continuous fp16": Case((1, 1), n=64, dtype=mx.float16, scale=1024.0),
    "fewer parts": Case((2,), n=600, parts=2),
    "many blocks": Case((1, 1, 1), n=700 * 256 - 3),
    "two samples": Case((2,), n=2),
    "with two others": Case((3, 2), n=600, others=2),
    "with many others": Case((2,), n=600, others=99),
    "one sample, with others": Case((2,), n=1, others=3),
    "live": Case((4,), live=True),
    "live masked": Case((3, 2, 5), n=257, masked=True, live=True),
    "live continuous": Case((1, 1, 1), live=True),
    "live bf16": Case((4,), n=64, dtype=mx.bfloat16, live=True),
    "live continuous, limited": Case((1, 1, 1), live=True, limit=1e6),
    "live masked fp16": Case((3, 2), n=64, masked=True, dtype=mx.float16, scale=1024.0, live=True),
    "live continuous fp16": Case((1, 1), n=64, dtype=mx.float16, scale=1024.0, live=True),
    "live, one sample": Case((2,), n=1, live=True),
    "one sample": Case((2,), n=1),
}
# The texts of Metal and of CUDA differ in little: of all cases, these are enough of Metal's.
ON_METAL = ["discrete", "continuous", "masked, one head", "masked fp16", "with two others"]
ON_METAL += ["live masked fp16", "live continuous fp16", "one sample", "many blocks"]
EVERY = [name for name in CASES if name not in ("one sample", "many blocks")]
PAIRS = [(b, name) for b in ("metal", "cuda") for name in EVERY if b == "cuda" or name in ON_METAL]


class Kernels:
    """The four launches of every case, recorded for one back-end."""

    def __init__(self, backend: str) -> None:
        self.numbers: dict[tuple[str, str], int] = {}
        self.compiled: Any = None
        with recording(backend) as self.recorder:
            for name in CASES if backend == "cuda" else ON_METAL:
                case = CASES[name]
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(gpu, "PARTS", case.parts)
                    self._record(name, case)

    def _record(self, name: str, case: Case) -> None:
        space, settings, y = case.space(), case.settings(), case.low("y")
        parts = None if case.live else mx.zeros((3, min(case.parts, -(-case.n // 256))))
        parts = case.given("moments") if case.others else parts
        sums = gpu.TERMS + (case.action.logits if case.action.continuous else 1)
        partial_sums = mx.zeros((sums, -(-case.n // 256)))
        steps = {
            "moments": lambda: gpu.moments(case.given("adv")),
            "samples": lambda: gpu.samples(space, settings, y, case.batch(), parts),
            "finish": lambda: gpu.finish(space, settings, case.n, partial_sums),
            "logprobs": lambda: gpu.logprobs(space, y),
        }
        for step, function in steps.items():
            if case.live and step == "moments":
                continue
            self.numbers[name, step] = self.recorder.record(partial(_listed, function))

    def run(self, name: str, step: str, **arrays) -> dict[str, np.ndarray]:
        """A launch's outputs by name; of its inputs, these instead of the recorded ones."""
        number = self.numbers[name, step]
        call = self.recorder.calls[number]
        inputs = dict(zip(call["input_names"], call["inputs"], strict=True))
        kept = {key: _numpy(array) for key, array in inputs.items() if key not in arrays}
        given = {**kept, **{key: array for key, array in arrays.items() if key in inputs}}
        outputs = self.compiled.run(number, *(given[key] for key in inputs))
        return dict(zip(call["output_names"], outputs, strict=True))

    def loss(self, name: str, **arrays) -> dict[str, np.ndarray]:
        """All launches of the loss: three, of live advantages two."""
        case, moments = CASES[name], {}
        if not case.live and not case.others:
            moments = self.run(name, "moments", **arrays)
        found = self.run(name, "samples", **moments, **arrays)
        partial_sums = found.pop("partial")
        finished = self.run(name, "finish", partial=partial_sums, **arrays)
        if not case.action.continuous:
            del finished["dlogstd"]  # which nothing was written to
        return {**found, **finished}


def _listed(function):
    found = function()
    return [a for a in found if a is not None] if isinstance(found, tuple) else [found]


def _numpy(array):
    return np.array(array if array.dtype in (mx.int32, mx.uint8) else array.astype(mx.float32))


@pytest.fixture(scope="module", params=["metal", "cuda"])
def compiled(request, tmp_path_factory):
    kernels = Kernels(request.param)
    kernels.compiled = Compiled(kernels.recorder, tmp_path_factory.mktemp("kernels"))
    return kernels


def compare(found, oracle, case):
    """Each array relative to its largest number; gradients are rounded to the case's dtype."""
    assert found.keys() == oracle.keys()
    for name, other in oracle.items():
        bound = 2e-5 if name not in ("dy", "dlogstd") else max(4e-6, 2 * EPSILON.get(case.dtype, 0))
        bound = bound * max(np.abs(other).max(), 1e-6)
        assert found[name].shape == other.shape, name
        np.testing.assert_allclose(found[name], other, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize(("compiled", "name"), PAIRS, indirect=["compiled"])
def test_kernels(compiled, name):
    case, found = CASES[name], compiled.loss(name)
    compare(found, plain(case), case)
    if not case.headless:
        compare(found, expected(case), case)
    logprob = compiled.run(name, "logprobs")["logprobs"]
    limit = 1e-3 if case.headless else 4e-6
    np.testing.assert_allclose(logprob, log_probs(case)[0], rtol=2e-6, atol=limit)


BRANCHED = ["discrete", "masked", "continuous", "live", "live masked", "live continuous"]


@pytest.mark.parametrize("name", BRANCHED)
def test_every_branch_is_taken(name):
    """Of the cases above: clipped and not, on both sides; held values; legal actions and not."""
    case = CASES[name]
    found, adv = expected(case), case.arrays["adv"]
    middle = 0 if case.live else adv.mean()
    for side in (found["ratio"] > 1.2, found["ratio"] < 0.8):
        for gains in (adv > middle, adv < middle):
            assert 0.05 < (side & gains).mean() < 0.4
    assert 0.05 < (found["dy"][-1] == 0).mean() < 0.95
    if case.masked:
        heads = np.split(case.arrays["masks"] != 0, np.cumsum(case.sizes)[:-1], axis=1)
        assert set(heads[0].sum(axis=1)) == {1, 2, 3}


def test_moments_of_parts(compiled):
    """What is summed of a minibatch's own advantages, on a GPU and in plain MLX."""
    case = CASES["with two others"]
    found, expected = compiled.run("with two others", "moments")["moments"], case.arrays["moments"]
    np.testing.assert_allclose(found, expected[0], rtol=1e-5)
    np.testing.assert_allclose(
        operation.moments(case.given("adv")), moments_of(case.arrays["together"], 1)[0], rtol=1e-5
    )


def test_one_sample_has_no_deviation(compiled):
    """Its variance is 0/0: such a minibatch is skipped, as in the plain form."""
    found, other = compiled.loss("one sample"), plain(CASES["one sample"])
    for name in ("total", "dy"):
        np.testing.assert_array_equal(np.isnan(found[name]), np.isnan(other[name]))
    assert np.isnan(found["total"]).all() and np.isnan(found["dy"][:-1]).all()
    np.testing.assert_allclose(found["value"], other["value"])


def changed(case, **arrays):
    """The case with other arrays."""
    other = dataclasses.replace(case)
    other.arrays = {**case.arrays, **arrays}
    return other


def test_what_is_not_finite(compiled):
    """A logit or value that isn't finite shows in the loss; an illegal logit doesn't."""
    for name, row, wrong, shows in (
        *(("discrete", row, wrong, True) for row in (2, 4) for wrong in (np.nan, np.inf)),
        *(("continuous", row, np.nan, True) for row in (0, 3)),
        *(("masked, one head", 0, wrong, False) for wrong in (np.nan, np.inf, -np.inf)),
    ):
        y = CASES[name].arrays["y"].copy()
        y[row, 3] = wrong
        found, other = compiled.loss(name, y=y), plain(changed(CASES[name], y=y))
        assert np.isfinite(found["total"]).all() != shows, (name, row, wrong)
        assert np.isfinite(other["total"]).all() != shows, (name, row, wrong)
        if not shows:
            assert CASES[name].arrays["masks"][3, row] == 0 == found["dy"][row, 3]
            compare(found, other, CASES[name])


def test_a_ratio_that_overflows(compiled):
    """Its loss may be finite, clipped as it is; but not its gradient, as MLX has it."""
    case = CASES["discrete"]
    old_logprob = case.arrays["old_logprob"].copy()
    old_logprob[:2] = -200
    adv = case.arrays["adv"].copy()
    adv[:2] = 5.0
    given = {"old_logprob": old_logprob, "adv": adv}
    found, other = compiled.loss("discrete", **given), plain(changed(case, **given))
    assert np.isfinite(found["total"]).all() and np.isfinite(other["total"]).all()
    np.testing.assert_array_equal(np.isnan(found["dy"]), np.isnan(other["dy"]))
    assert np.isnan(found["dy"][:-1, :2]).all() and np.isfinite(found["dy"][:, 2:]).all()


def at_the_bound(rng, n):
    """Old values, values and returns whose change is the clip's bound, exactly, in float32.

    Rounding makes the clipped value another than the value, and its error the larger one.
    """
    reach = np.float32(COEFFICIENTS.vf_clip_coef)
    old = rng.uniform(0.001, 0.2, 100_000).astype(np.float32)
    sign = rng.choice([-1, 1], old.size).astype(np.float32)
    value = np.nextafter(old + sign * reach, sign * np.float32(9))
    apart = (value - old == sign * reach) & (old + sign * reach != value)
    old, value, moved = (a[apart][:n] for a in (old, value, old + sign * reach))
    assert len(old) == n
    return old, value, np.where(moved < value, 1, -1) * np.float32(0.5)


def test_corners(compiled):
    """Ties go to the unclipped branch, and a change at its bound has no gradient, as in MLX."""
    case = CASES["discrete"]
    rng, y, half = np.random.default_rng(0), case.arrays["y"].copy(), case.n // 2
    old_value, adv = case.arrays["old_value"].copy(), case.arrays["adv"].copy()
    old_value[:half], y[-1, :half], adv[:half] = at_the_bound(rng, half)
    y[-1, half:], old_value[half:] = 0.5, 0.5  # no change: a tie
    weight = np.where(np.arange(case.n) % 3 == 0, 0, case.arrays["weight"]).astype(np.float32)
    logprob = compiled.run("discrete", "logprobs")["logprobs"]
    given = {"y": y, "old_value": old_value, "adv": adv, "weight": weight, "old_logprob": logprob}
    found, other = compiled.loss("discrete", **given), plain(changed(case, **given))
    np.testing.assert_array_equal(found["dy"][-1] == 0, other["dy"][-1] == 0)
    assert (found["dy"][-1, :half] == 0).any() and (found["dy"][-1, half:] != 0).all()
    compare(found, other, case)


def test_sums_of_many_blocks(compiled):
    """More than a block has threads; each sum in its place."""
    rng = np.random.default_rng(1)
    blocks, n = 700, 700 * 256 - 3
    sums = rng.normal(size=(8, blocks)).astype(np.float32)
    shape = np.array([n, 3], np.int32)
    with_blocks = {"partial": sums, "shape": shape, "logstd": np.zeros((1, 3), np.float32)}
    found = compiled.run("many blocks", "finish", **with_blocks)
    means = f64(sums).sum(axis=1) / n
    entropy = 1.5 * np.log(2 * np.pi * np.e)
    loss = means[0] + 0.5 * means[1] * COEFFICIENTS.vf_coef - ENT_COEF * entropy
    metrics = [means[0], means[1] / 2, entropy, loss, means[2], means[3], means[4]]
    np.testing.assert_allclose(found["metrics"], metrics, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(found["total"], loss, rtol=1e-5)
    np.testing.assert_allclose(found["dlogstd"][0], means[5:] * n - ENT_COEF, rtol=1e-5)


# ---- the way to the kernels ----------------------------------------------------------------------


@pytest.fixture
def kernels_are_plain(monkeypatch):
    """The closed form is taken on this CPU; what it launches is computed by the plain form."""

    def samples(space, settings, y, batch, parts):
        decoder = Fused(space.action, 1)
        coefficients, ent_coef, scale = settings
        given = space.actions, space.masks, batch, coefficients, ent_coef.reshape(())

        def total(y, logstd):
            weights = {} if logstd is None else {"logstd": logstd}
            return plain_losses(decoder, weights, y, *given, scale.reshape(()))

        (loss, metrics, ratio, value), dy = mx.value_and_grad(total)(y, space.logstd)
        sums = [loss[None], metrics]
        if space.logstd is not None:
            _, slope = mx.value_and_grad(total, argnums=1)(y, space.logstd)
            sums.append(slope[0].astype(mx.float32))
        return gpu.Samples(dy, ratio, value, mx.concatenate(sums))

    def finish(space, settings, n, sums):
        parts = sums[:1], sums[1:8]
        if space.logstd is None:
            return gpu.Finished(*parts)
        return gpu.Finished(*parts, sums[8:][None].astype(space.logstd.dtype))

    def logprobs(space, y):
        weights = {} if space.logstd is None else {"logstd": space.logstd}
        outputs, _ = Fused(space.action, 1).split(weights, y)
        heads = Fused(space.action, 1).distribution
        return heads.log_prob_entropy(outputs, space.actions, space.masks)[0]

    plain_losses = operation._plain
    monkeypatch.setattr(operation, "kernel_on_gpu", lambda launch, *_: launch)
    monkeypatch.setenv(COMPARING, "1")  # nothing gives way to what was replaced
    monkeypatch.setattr(operation, "_plain", None)  # nobody takes it by accident
    monkeypatch.setattr(gpu, "moments", lambda adv: None)
    monkeypatch.setattr(gpu, "samples", samples)
    monkeypatch.setattr(gpu, "finish", finish)
    monkeypatch.setattr(gpu, "logprobs", logprobs)


T, S, D = 3, 5, 4
POLICIES = {
    "discrete": ((4,), False, "native", "fp32"),
    "masked": ((3, 2), True, "native", "fp32"),
    "continuous": ((1, 1), False, "torch", "fp32"),
    "continuous fp16": ((1, 1), False, "native", "fp16"),
    "masked bf16": ((3, 2), True, "torch", "bf16"),
}


def update(name):
    """The two functions of a minibatch that use the loss, and results of both."""
    sizes, masked, dialect, precision = POLICIES[name]
    case = Case(sizes, n=T * S, masked=masked)
    spec = EnvSpec("own", D, np.dtype(np.float32), case.action, sum(sizes) if masked else 0)
    policy = make_policy(spec, config.Policy(8, 1, dialect))
    run = compiled_steps(policy, config.Train(precision=precision, ent_coef=ENT_COEF))
    weights = policy.init(mx.random.key(0))
    observations = mx.random.normal((T, S, D), key=mx.random.key(1))
    given = weights, observations, case.given("actions"), case.given("masks"), None
    scale = mx.array(64.0 if precision == "fp16" else 1.0)
    found = run.gradients(*given, case.batch(), None, mx.array(ENT_COEF), scale)
    logprobs = run.logprobs(*given, policy.initial_state(S))
    mx.eval(found, logprobs)
    return [*(array for _, array in named(found[0])), *found[1:], logprobs]


@pytest.fixture(scope="module")
def by_plain_form():
    return {name: update(name) for name in POLICIES}


@pytest.mark.parametrize("name", POLICIES)
def test_gradients_go_on_from_the_kernel_s(by_plain_form, kernels_are_plain, name):
    """Those by all weights, compiled, with logstd's and the scale's."""
    found = update(name)
    assert len(found) == len(by_plain_form[name]) > 6
    for ours, other in zip(found, by_plain_form[name], strict=True):
        assert ours.shape == other.shape and ours.dtype == other.dtype == mx.float32
        assert np.abs(other).max() > 0
        limit = 2e-6 if POLICIES[name][-1] == "fp32" else 2e-2
        np.testing.assert_allclose(ours, other, rtol=0, atol=limit * np.abs(other).max())


@pytest.mark.parametrize(
    "name",
    ["discrete", "masked fp16", "continuous", "live", "live masked fp16", "live continuous"],
)
def test_few_launches_and_nothing_else(name):
    """Three, of live advantages two; neither casts nor slices nor zeros, forth and back.

    And one for log-probabilities.
    """
    case, launched, read = CASES[name], [], []

    def kernel(name, **given):
        launched.append(name)
        read.extend(given["inputs"])
        shapes = zip(given["output_shapes"], given["output_dtypes"], strict=True)
        outputs = [mx.zeros(shape, dtype) for shape, dtype in shapes]
        mx.eval(outputs)
        return outputs

    decoder, y, logstd = Fused(case.action, 1), case.low("y"), case.low("logstd")
    actions, masks, batch = case.given("actions"), case.given("masks"), case.batch()
    mx.eval([a for a in (y, logstd, actions, masks, *batch) if a is not None])

    def total(given):
        settings = COEFFICIENTS, mx.array(ENT_COEF), mx.array(case.scale)
        return operation.losses(decoder, given, given["y"], actions, masks, batch, *settings)

    given = {"y": y} if logstd is None else {"y": y, "logstd": logstd}
    with building_for("cuda", kernel):
        (_, metrics, ratio, value), gradients = mx.value_and_grad(total)(given)
    assert launched == [*([] if case.live else ["advantage_moments"]), "loss", "finish_loss"]
    results = [metrics, ratio, value, *gradients.values(), *read]
    assert [g.dtype for g in gradients.values()] == [case.dtype] * len(given)
    assert nodes(results) <= VIEWS, nodes(results)

    launched.clear()
    read.clear()
    with building_for("cuda", kernel):
        found = operation.logprobs(decoder, given, y, actions, masks)
    assert launched == ["logprobs"] and nodes([found, *read]) <= VIEWS


VIEWS = {"Reshape", "Copy", "StopGradient", "CustomTransforms"}  # what launches nothing


def nodes(arrays):
    """Names of the graph's operations."""
    text = io.StringIO()
    mx.export_to_dot(text, *arrays)
    return set(re.findall(r'label ?="(\w+)", shape=rectangle', text.getvalue()))


def test_nodes_are_found():
    x = mx.ones(3)
    mx.eval(x)
    assert nodes([x[1:], x.reshape(1, 3)]) == {"Slice", "Reshape"}
