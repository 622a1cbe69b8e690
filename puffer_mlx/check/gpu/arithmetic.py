"""Items: fused operations and whole policies, against pure MLX in float32 on the CPU."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx import config, ops
from puffer_mlx.check.gpu.tools import UNIT, Effort, Skipped, at_most, need_gpu, on, require, unit
from puffer_mlx.ops.gelu import operation as gelu
from puffer_mlx.policy.acting_on_gpu import step_on_gpu
from puffer_mlx.policy.networks import NETWORKS
from puffer_mlx.policy.networks.catalog import FORMS
from puffer_mlx.policy.networks.forms import FusedCase
from puffer_mlx.policy.policy import Policy, make_policy
from puffer_mlx.ppo.precision import DTYPES, lower
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.trees import named

T, S, H = 16, 70, 48  # no multiple of a block
# Of the largest number: the reference rounds only its inputs, a fused form what it stores too. In
# float32 it is the order of sums, over T steps.
FUSED_BOUND = {"fp32": 2e-5, "bf16": 6 * UNIT["bf16"], "fp16": 6 * UNIT["fp16"]}
ACTING = 2e-5  # how far one step's numbers may be apart, of which the largest are near 1
SCAN = 16  # of ``unit``: how far a policy's steps and its scan may be apart
GRADIENTS = 8  # of ``unit``: how far gradients by one array may be off, by their norm

Arrays = list[np.ndarray]


def difference(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected number."""
    found, expected = (np.array(a.astype(mx.float32)) for a in (found, expected))
    require(found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}")
    return float(np.abs(found - expected).max() / max(1e-6, np.abs(expected).max()))


# ---- fused operations ----------------------------------------------------------------------------


class Case:
    """Random inputs of one operation, on which both of its forms are run."""

    def __init__(self, case: FusedCase) -> None:
        rng = np.random.default_rng(0)
        self.low: Arrays = [rng.normal(size=shape).astype(np.float32) * 0.5 for shape in case.low]
        self.states: Arrays = [
            np.abs(rng.normal(size=shape)).astype(np.float32) for shape in case.states
        ]
        self.keep = (rng.random((T, S)) > 0.2).astype(np.float32)
        self.cotangent = rng.normal(size=(T, S, H)).astype(np.float32)
        self.fused, self.reference, self.places = case.run, case.reference, case.places

    def run(self, device: mx.Device, dtype: mx.Dtype) -> list[mx.array] | None:
        """The fused form on a device; None where it has none."""
        with on(device):
            if gelu.FORWARD.form() is None:
                return None
            low = [mx.array(a).astype(dtype) for a in self.low]
            rest = [mx.array(a) for a in (*self.states, self.keep)]
            found = self.fused(low, rest, mx.array(self.cotangent).astype(dtype))
            mx.eval(found)
        return found

    def expect(self, dtype: mx.Dtype) -> list[mx.array]:
        """Pure MLX in float32 on the CPU, of the same rounded inputs."""
        with on(mx.Device(mx.cpu)):
            rounded = [mx.array(a).astype(dtype).astype(mx.float32) for a in self.low]
            inputs = [*rounded, *(mx.array(a) for a in self.states)]
            cotangent = mx.array(self.cotangent).astype(dtype).astype(mx.float32)
            keep = mx.array(self.keep)
            (out,), grads = mx.vjp(lambda *a: [self.reference(*a, keep)], inputs, [cotangent])
            found = [out, *(grads[place] for place in self.places)]
            mx.eval(found)
        return found


def _gelu(low, _, dy):
    return [gelu.FORWARD.form()(*low), gelu.BACKWARD.form()(*low, dy)]


def _norm(low, _, dy):
    x, residual, weight = low
    rows = [x.reshape(-1, H), residual.reshape(-1, H), weight]
    (out,), grads = mx.vjp(lambda *a: [ops.add_rms_norm(*a)], rows, [dy.reshape(-1, H)])
    return [out.reshape(x.shape), grads[0].reshape(x.shape), grads[2]]


def _norm_reference(x, residual, weight, _):
    total = x + residual
    return weight * total * mx.rsqrt(mx.mean(total**2, axis=-1, keepdims=True) + ops.EPSILON)


def cases() -> dict[str, Case]:
    """The operations with a fused form, by name."""
    steps = (T, S, H)
    own = {name: forms.fused_case(T, S, H) for name, forms in FORMS.items() if forms.fused_case}
    own["GELU"] = FusedCase(
        [steps], [], _gelu, lambda x, _: 0.5 * x * (1 + mx.erf(x * 0.5**0.5)), (0,)
    )
    own["RMSNorm"] = FusedCase([steps, steps, (H,)], [], _norm, _norm_reference, (0, 2))
    return {name: Case(case) for name, case in own.items()}


def fused(device: mx.Device, precision: str) -> str:
    """Every fused operation, forward and backward, in one precision."""
    dtype, worst = DTYPES[precision], (0.0, "")
    for name, case in cases().items():
        found = case.run(device, dtype)
        if found is None:
            raise Skipped("no C extension here: everything is pure MLX")
        for i, (ours, expected) in enumerate(zip(found, case.expect(dtype), strict=True)):
            what = f"{name} {f'gradient {i}' if i else 'output'}"
            off = difference(ours, expected)
            at_most(what, off, FUSED_BOUND[precision])
            worst = max(worst, (off, what))
    return at_most(worst[1], worst[0], FUSED_BOUND[precision])


# ---- whole policies ------------------------------------------------------------------------------


def small_policy(network: str, actions: tuple[int, ...] = (5,), reset: bool = False) -> Policy:
    """A policy of two layers, H wide."""
    spec = EnvSpec("check", 20, np.dtype(np.float32), ActionSpec(actions), 0)
    sizes = config.Policy(hidden_size=H, num_layers=2, reset_on_terminal=reset)
    return make_policy(spec, sizes, config.Torch(network=network))


def inputs() -> mx.array:
    """Observations (T, S, 20) for it."""
    rng = np.random.default_rng(1)
    return mx.array(rng.normal(size=(T, S, 20)).astype(np.float32))


def steps_and_scan(effort: Effort) -> str:
    """T times ``act`` is ``scan``, for every network and precision on the default device."""
    worst = (0.0, "", 1.0)  # share of its bound, what, bound
    for network in NETWORKS:
        policy, observations = small_policy(network), inputs()
        weights = policy.init(mx.random.key(0))
        for precision in DTYPES:
            low = lower(weights, precision)
            outputs, values, _last = policy.scan(low, observations, policy.initial_state(S))
            logprobs = mx.max(outputs, axis=0) - mx.logsumexp(outputs, axis=0)
            state, found = policy.initial_state(S), []
            for t in range(T):
                actions, chosen, value, state = policy.act(low, observations[t], state, None)
                require(actions.dtype == mx.float32, f"actions are {actions.dtype}")
                found.append(mx.stack([chosen, value]))
            mx.eval(found, values, logprobs)
            bound = SCAN * unit(precision)
            for i, expected in enumerate((logprobs, values)):
                ours = mx.concatenate([rows[i] for rows in found])
                off = difference(ours, expected)
                what = f"{network} {precision} {('log-probabilities', 'values')[i]}"
                at_most(what, off, bound)
                worst = max(worst, (off / bound, what, bound))
    return at_most(worst[1], worst[0] * worst[2], worst[2])


def acting(effort: Effort) -> str:
    """A rollout's step as one kernel, for every network, against the step in MLX on the CPU."""
    need_gpu()
    worst = (0.0, "")
    for network in NETWORKS:
        for sizes in ((5,), (2, 4), (1, 1, 1)):
            off = _acting_apart(small_policy(network, sizes, reset=True), masked=len(sizes) == 2)
            worst = max(worst, (off, f"{network} {sizes}"))
    return at_most(worst[1], worst[0], ACTING)


def _acting_apart(policy: Policy, masked: bool) -> float:
    """The largest difference of log-probabilities, values and states, of agents that act alike."""
    action, rng = policy.decoder.action, np.random.default_rng(3)
    mask = (rng.random((S, action.logits)) < 0.6).astype(np.uint8)
    terminals = (rng.random(S) < 0.2).astype(np.float32)
    observations = rng.normal(size=(S, 20)).astype(np.float32)

    with on(mx.Device(mx.cpu)):
        weights = policy.init(mx.random.key(0))
        noise = policy.distribution.noise(mx.random.key(1), (S,))
        mx.eval(weights, noise)

    def steps(device: mx.Device, act: Callable[..., Any]) -> Any:
        with on(device):
            state = tree_map(lambda s: s + 0.5, policy.initial_state(S))
            legal = mx.array(mask) if masked else None
            given = mx.array(observations), state, noise, legal, mx.array(terminals)
            chosen, state = act(weights, *given)
            mx.eval(chosen, state)
        return np.array(chosen), np.array([np.array(a) for _, a in named(state)])

    def kernel(weights, observations, state, noise, mask, terminals):
        step = step_on_gpu(policy)
        assert step is not None
        packed, states = step.weights(weights), step.state(state)
        actions, logprobs = mx.zeros((S, action.heads)), mx.zeros(S)
        written = actions, logprobs, mx.zeros(S)
        mx.eval(packed, states, written)
        given = packed, states, noise, observations, mask, terminals
        after = step.act(*given, *written, None)
        mx.eval(after)
        return mx.concatenate([actions.T, *(a[None] for a in written[1:])]), step.state_after(after)

    def plain(weights, observations, state, noise, mask, terminals):
        keep = policy.keep(terminals)
        *rows, state = policy.act(weights, observations, state, noise, mask, keep)
        return mx.concatenate([rows[0].T, *(row[None] for row in rows[1:])]), state

    found, states = steps(mx.Device(mx.gpu), kernel)
    expected, their_states = steps(mx.Device(mx.cpu), plain)
    alike = np.isclose(found[: action.heads], expected[: action.heads], atol=1e-4).all(0)
    require(bool(alike.mean() > 0.95), f"{(~alike).sum()} of {S} agents choose something else")
    apart = [np.abs(found - expected)[:, alike].max(), np.abs(states - their_states).max(initial=0)]
    return float(max(apart))


def gradients(effort: Effort) -> str:
    """A policy's gradients on the default device against float32 on the CPU, array by array."""
    worst = (0.0, "", 1.0)
    rng = np.random.default_rng(2)
    factors = [rng.normal(size=shape).astype(np.float32) for shape in ((5, T * S), (T * S,))]
    for network in NETWORKS:
        policy = small_policy(network)
        with on(mx.Device(mx.cpu)):
            weights = policy.init(mx.random.key(0))
            expected = _gradients(policy, weights, "fp32", factors)
        for precision in DTYPES:
            bound = max(_gradient_bound(network, unit(precision)), 1e-5)
            for name, ours in _gradients(policy, weights, precision, factors).items():
                off = float(np.linalg.norm(ours - expected[name]) / np.linalg.norm(expected[name]))
                what = f"{network} {precision} gradient by {name}"
                at_most(what, off, bound)
                worst = max(worst, (off / bound, what, bound))
    return at_most(worst[1], worst[0] * worst[2], worst[2])


def _gradient_bound(network: str, rounding: float) -> float:
    """What rounding carries to the other side of a kink has another gradient.

    The number of those grows with the rounding, so their norm does with its root.
    """
    return rounding**0.5 if FORMS[network].kink else GRADIENTS * rounding


def _gradients(policy: Policy, weights: Any, precision: str, factors: Arrays) -> dict[str, Any]:
    """Gradients of a sum of outputs and values by float32 weights, by name, in float64."""

    def total(weights: Any) -> mx.array:
        low = lower(weights, precision)
        outputs, values, _ = policy.scan(low, inputs(), None)  # as training does
        by_outputs, by_values = map(mx.array, factors)
        return mx.sum(outputs * by_outputs) + mx.sum(values * by_values)

    grads = dict(named(mx.grad(total)(weights)))
    require(all(g.dtype == mx.float32 for g in grads.values()), "a gradient isn't float32")
    return {name: np.array(g).astype(np.float64) for name, g in grads.items()}
