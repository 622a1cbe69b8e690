"""Checks that compare fused operations and minibatches with plain MLX in float32 on the CPU."""

import math
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx import config, ops
from puffer_mlx.check.gpu.tools import (
    ROUNDING_UNIT,
    WorstCase,
    need_gpu,
    on,
    relative_difference,
    rounding_unit,
)
from puffer_mlx.check.items import Skipped
from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.gelu import gelu
from puffer_mlx.policy.networks import FusedCase
from puffer_mlx.policy.networks.catalog import NETWORK_FACTS, NETWORKS
from puffer_mlx.policy.policy import Policy, make_policy
from puffer_mlx.ppo import algorithms
from puffer_mlx.ppo.loss import Targets
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.ppo.sections import Minibatch
from puffer_mlx.ppo.update import compile_update
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.trees import named_arrays

T, S, H = 16, 70, 48  # steps, segments and hidden units; no multiples of a block size
# For a minibatch in one launch, H and S must be multiples of these.
ONE_LAUNCH_HIDDEN = 32
ONE_LAUNCH_SEGMENTS = 16
# Largest error relative to the largest value. The reference rounds only its inputs, a fused
# implementation also rounds stored values. In float32 the order of sums over T steps differs.
FUSED_TOLERANCE = {
    "fp32": 2e-5,
    "bf16": 6 * ROUNDING_UNIT["bf16"],
    "fp16": 6 * ROUNDING_UNIT["fp16"],
}
COEFFICIENTS = {"clip_coef": 0.2, "vf_coef": 2.0, "vf_clip_coef": 0.2}


# ---- fused operations ----------------------------------------------------------------------------


class OperationCase:
    """Random inputs of one operation, to compare its fused implementation with a reference.

    ``low`` are the inputs that are converted to a low precision; the others stay float32.

    Args:
        case: Shapes of the inputs, the fused implementation and the reference.
    """

    def __init__(self, case: FusedCase) -> None:
        rng = np.random.default_rng(0)
        self.low = [rng.normal(size=shape).astype(np.float32) * 0.5 for shape in case.low]
        self.states = [np.abs(rng.normal(size=shape)).astype(np.float32) for shape in case.states]
        self.not_done = (rng.random((T, S)) > 0.2).astype(np.float32)
        self.cotangent = rng.normal(size=(T, S, H)).astype(np.float32)
        self.fused = case.run
        self.reference = case.reference
        self.gradient_inputs = case.gradient_inputs

    def run(self, device: mx.Device, dtype: mx.Dtype) -> list[mx.array] | None:
        """Run the fused implementation. Returns its results, or None if the device has none."""
        with on(device):
            if device == mx.cpu and cpu_extension.load_extension() is None:
                return None
            low = [mx.array(a).astype(dtype) for a in self.low]
            float32_inputs = [mx.array(a) for a in (*self.states, self.not_done)]
            arrays = self.fused(low, float32_inputs, mx.array(self.cotangent).astype(dtype))
            mx.eval(arrays)
        return arrays

    def expect(self, dtype: mx.Dtype) -> list[mx.array]:
        """Return the operation's exact results, computed by plain MLX in float32 on the CPU.

        The inputs are rounded to ``dtype`` first.
        """
        with on(mx.Device(mx.cpu)):
            rounded = [mx.array(a).astype(dtype).astype(mx.float32) for a in self.low]
            inputs = [*rounded, *(mx.array(a) for a in self.states)]
            cotangent = mx.array(self.cotangent).astype(dtype).astype(mx.float32)
            not_done = mx.array(self.not_done)
            (out,), grads = mx.vjp(lambda *a: [self.reference(*a, not_done)], inputs, [cotangent])
            arrays = [out, *(grads[index] for index in self.gradient_inputs)]
            mx.eval(arrays)
        return arrays


def _gelu(low, _, cotangent):
    """Apply the GELU activation. Returns its output and its gradient."""
    (out,), (dx,) = mx.vjp(lambda x: [gelu(x)], low, [cotangent])
    return [out, dx]


def _norm(low, _, cotangent):
    """Apply the RMS norm to x + residual. Returns the output, and gradients by x and weight.

    The gradient by the residual equals that by x.
    """
    x, residual, weight = low
    rows = [x.reshape(-1, H), residual.reshape(-1, H), weight]
    (out,), grads = mx.vjp(lambda *a: [ops.add_rms_norm(*a)], rows, [cotangent.reshape(-1, H)])
    return [out.reshape(x.shape), grads[0].reshape(x.shape), grads[2]]


def _norm_reference(x, residual, weight, _):
    total = x + residual
    return weight * total * mx.rsqrt(mx.mean(total**2, axis=-1, keepdims=True) + ops.EPSILON)


def operation_cases() -> dict[str, OperationCase]:
    """Return a case to check for each operation that has a fused implementation, by name."""
    steps = (T, S, H)
    cases = {
        name: facts.fused_case(T, S, H) for name, facts in NETWORK_FACTS.items() if facts.fused_case
    }
    cases["GELU"] = FusedCase(
        [steps], [], _gelu, lambda x, _: 0.5 * x * (1 + mx.erf(x * 0.5**0.5)), (0,)
    )
    cases["RMSNorm"] = FusedCase([steps, steps, (H,)], [], _norm, _norm_reference, (0, 2))
    return {name: OperationCase(case) for name, case in cases.items()}


def check_fused(device: mx.DeviceType, precision: str, quick: bool) -> str:
    """Check all fused operations against references on one device in one precision.

    Outputs and gradients are compared. Returns the largest error as text.
    """
    if device == mx.gpu:
        need_gpu()
    dtype = DTYPES[precision]
    worst = WorstCase()
    for name, case in operation_cases().items():
        arrays = case.run(mx.Device(device), dtype)
        if arrays is None:
            raise Skipped("no C extension, so the CPU has no fused operations")
        for i, (result, expected) in enumerate(zip(arrays, case.expect(dtype), strict=True)):
            array_name = f"{name} {f'gradient {i}' if i else 'output'}"
            error = relative_difference(result, expected)
            worst.add(array_name, error, FUSED_TOLERANCE[precision])
    return worst.text


# ---- minibatches ---------------------------------------------------------------------------------


def small_policy(
    network: str, actions: tuple[int, ...] = (5,), reset: bool = False, hidden: int = H
) -> Policy:
    """Create a policy with two layers of ``hidden`` units for 20 observed numbers."""
    spec = EnvSpec("check", 20, np.dtype(np.float32), ActionSpec(actions), 0)
    sizes = config.Policy(hidden_size=hidden, num_layers=2, reset_on_terminal=reset)
    return make_policy(spec, sizes, config.Torch(network=network))


def minibatch_observations(segments: int = 0) -> mx.array:
    """Return random observations of a minibatch, (T, segments, 20).

    They have T steps of 20 numbers; ``segments`` 0 stands for a default number.
    """
    rng = np.random.default_rng(1)
    return mx.array(rng.normal(size=(T, segments or S, 20)).astype(np.float32))


class MinibatchCase:
    """A random minibatch with episode ends, on which implementations' gradients are compared.

    Old log-probabilities and values differ from the policy's by amounts inside and outside of the
    clip ranges, but never close to a limit, where rounding would change the gradient.

    Args:
        policy: Policy with one discrete head or with continuous actions.
        as_bytes: True for uint8 observations.
        segments: Number of segments. 0: S.
    """

    def __init__(self, policy: Policy, as_bytes: bool = False, segments: int = 0) -> None:
        rng = np.random.default_rng(4)
        self.policy = policy
        observations = minibatch_observations(segments)
        if as_bytes:
            observations = mx.array(rng.integers(0, 2, observations.shape), mx.uint8)
        T, S = observations.shape[:2]
        self.terminals = (rng.random((T, S)) < 0.2).astype(np.float32)
        self.rewards = rng.normal(size=(T, S)).astype(np.float32)
        space = policy.decoder.action
        discrete = rng.integers(0, space.logits, (T * S, 1))
        actions = rng.normal(size=(T * S, space.heads)) if space.continuous else discrete
        self.actions = actions.astype(np.float32)
        self.observations = np.array(observations)
        self.state = tree_map(lambda a: rng.random(a.shape), policy.initial_state(S))
        self.weights = tree_map(np.array, policy.init(mx.random.key(0)))

        not_done = policy.not_done(mx.array(self.terminals))
        arguments = _arrays(self.weights), observations, _arrays(self.state), not_done
        outputs, values, _ = policy.scan(*arguments)
        heads = policy.distribution
        logprobs, _ = heads.log_prob_entropy(outputs, mx.array(self.actions), None)
        signs = rng.choice([-1, 1], (2, T * S))
        distances = rng.choice([0.05, 0.5], (2, T * S))  # inside and outside of the clip ranges
        self.old_logprob, self.old_value = np.array([logprobs, values]) + signs * distances

    def run(self, precision: str, one_launch: bool = False) -> dict[str, np.ndarray]:
        """Compute the minibatch's weight gradients, ratios and advantages. Returns them by name.

        Args:
            precision: ``fp32``, ``bf16`` or ``fp16``.
            one_launch: Compute the minibatch in one launch if the GPU supports it.
        """
        train = config.Train(
            algorithm="puffer5",
            vtrace=False,
            precision=precision,
            one_launch=one_launch,
            **COEFFICIENTS,  # type: ignore
        )
        settings = config.Config(train=train)
        update = compile_update(self.policy, settings, algorithms.make(self.policy, settings))
        old_logprob, old_value, rewards, terminals = map(
            _arrays, (self.old_logprob, self.old_value, self.rewards, self.terminals)
        )
        not_done = 1 - self.terminals
        targets = Targets(old_logprob, old_value, rewards=rewards, terminals=terminals)
        state = _arrays(self.state)
        observations = mx.array(self.observations)
        actions = _arrays(self.actions)
        batch = Minibatch(
            observations, actions, None, _arrays(not_done), targets=targets, state=state
        )
        entropy_coefficient = mx.array(0.01)
        loss_scale = mx.array(1024.0)  # used by fp16 only
        (_, _, ratios, _, adv), grads = update.gradients(
            _arrays(self.weights), batch, entropy_coefficient, loss_scale
        )
        if precision == "fp16":
            grads = tree_map(lambda grad: grad / loss_scale, grads)
        arrays = {f"gradient by {name}": array for name, array in named_arrays(grads)}
        arrays |= {"ratios": ratios, "advantages": adv}
        return {name: np.array(array).astype(np.float64) for name, array in arrays.items()}


def _arrays(tree: Any) -> Any:
    """Return a tree of NumPy arrays as a tree of float32 MLX arrays. None stays None."""
    return tree_map(lambda a: None if a is None else mx.array(np.asarray(a, np.float32)), tree)


def check_minibatch(quick: bool) -> str:
    """Check gradients, ratios and advantages of a minibatch for all networks and precisions.

    Networks that support minibatches in one launch are also checked with one launch.
    """
    need_gpu()
    worst = WorstCase()
    # (network, hidden units, in one launch, numbers of choices per action head)
    cases = [(network, H, False, (5,)) for network in NETWORKS]
    one_launch_cases = [
        (network, ONE_LAUNCH_HIDDEN, True, actions)
        for network in NETWORKS
        if NETWORK_FACTS[network].matrix_units
        for actions in ((5,), (1, 1))
    ]
    for network, hidden, one_launch, actions in (*cases, *one_launch_cases):
        as_bytes = actions == (1, 1)  # combined with uint8 observations
        with on(mx.Device(mx.cpu)):
            policy = small_policy(network, actions, True, hidden)
            segments = ONE_LAUNCH_SEGMENTS * math.ceil(S / ONE_LAUNCH_SEGMENTS)
            case = MinibatchCase(policy, as_bytes, segments if one_launch else S)
            expected = case.run("fp32")
        for precision in DTYPES:
            # Far above the rounding error, which can move a value across a kink of the loss.
            bound = rounding_unit(precision) ** 0.5
            with on(mx.Device(mx.gpu)):
                arrays = case.run(precision, one_launch)
            label = " in one launch" if one_launch else ""
            label += ", uint8 observations" if as_bytes else ""
            for name, result in arrays.items():
                norm = np.linalg.norm(expected[name])
                error = float(np.linalg.norm(result - expected[name]) / norm)
                worst.add(f"{network} {precision}{label} {name}", error, bound)
    return worst.text
