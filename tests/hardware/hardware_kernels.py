"""Items that compare kernels with the CPU."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx import ops
from puffer_mlx.check.gpu.kernels import FUSED_TOLERANCE, S, small_policy
from puffer_mlx.check.gpu.tools import (
    WorstCase,
    at_most,
    need_gpu,
    on,
    relative_difference,
    require,
)
from puffer_mlx.policy.acting_on_gpu import PolicyBlocks, make_step_on_gpu
from puffer_mlx.policy.networks.catalog import NETWORKS
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import priority
from puffer_mlx.ppo.advantage import advantages
from puffer_mlx.rollout.acting_in_kernel import blocks_of_agents
from puffer_mlx.trees import named_arrays
from puffer_mlx.vec.base import TERMINATED, TRUNCATED

ACTING = 2e-5  # tolerance for the results of one step, whose largest values are near 1


# ---- policies ----------------------------------------------------------------------------------


def acting(quick: bool) -> str:
    """Check the GPU kernel of a policy's step against MLX on the CPU, for every network."""
    need_gpu()
    worst = WorstCase()
    for network in NETWORKS:
        for sizes in ((5,), (2, 4), (1, 1, 1)):
            off = _acting_apart(small_policy(network, sizes, reset=True), masked=len(sizes) == 2)
            worst.add(f"{network} {sizes}", off, ACTING)
    return worst.text


def _acting_apart(policy: Policy, masked: bool) -> float:
    """Return the largest difference between a policy's step on the GPU and on the CPU.

    Compares agents with equal actions.
    """
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
            arguments = mx.array(observations), state, noise, legal, mx.array(terminals)
            chosen, state = act(weights, *arguments)
            mx.eval(chosen, state)
        return np.array(chosen), np.array([np.array(a) for _, a in named_arrays(state)])

    def kernel(weights, observations, state, noise, mask, terminals):
        step = make_step_on_gpu(policy)
        assert step is not None
        packed, states = step.pack_weights(weights), step.pack_states(state)
        actions, logprobs = mx.zeros((S, action.heads)), mx.zeros(S)
        written = actions, logprobs, mx.zeros(S)
        mx.eval(packed, states, written)
        arguments = packed, states, noise, observations, mask, terminals
        after = step.act(*arguments, *written, None)
        mx.eval(after)
        return mx.concatenate([actions.T, *(a[None] for a in written[1:])]), step.unpack_state(
            after
        )

    def plain(weights, observations, state, noise, mask, terminals):
        not_done = policy.not_done(terminals)
        *rows, state = policy.act(weights, observations, state, noise, mask, not_done)
        return mx.concatenate([rows[0].T, *(row[None] for row in rows[1:])]), state

    results, states = steps(mx.Device(mx.gpu), kernel)
    expected, their_states = steps(mx.Device(mx.cpu), plain)
    alike = np.isclose(results[: action.heads], expected[: action.heads], atol=1e-4).all(0)
    require(bool(alike.mean() > 0.95), f"{(~alike).sum()} of {S} agents choose something else")
    apart = np.abs(results - expected)[:, alike].max()
    return float(max(apart, np.abs(states - their_states).max(initial=0)))


POLICIES = (0, 1, 0, 2, 0)  # who acts for five agents, and for the next five


def several(quick: bool) -> str:
    """Check that several policies act in one GPU launch as in separate launches."""
    need_gpu()
    worst = WorstCase()
    for network in NETWORKS:
        for sizes in ((5,), (2, 4), (1, 1, 1)):
            policy = small_policy(network, sizes, reset=True)
            worst.add(f"{network} {sizes}", _several_apart(policy, len(sizes) == 2), ACTING)
    return worst.text


def _several_apart(policy: Policy, masked: bool) -> float:
    """Return the largest difference between several policies in one launch and separate ones."""
    rng, step = np.random.default_rng(5), make_step_on_gpu(policy)
    assert step is not None
    action, acts = policy.decoder.action, np.resize(POLICIES, S)
    legal = (rng.random((S, action.logits)) < 0.6).astype(np.uint8)
    seen = rng.normal(size=(S, 20)).astype(np.float32), legal if masked else None
    ends = (rng.random(S) < 0.2).astype(np.float32)

    def launch(weights: mx.array, blocks: PolicyBlocks | None) -> list[np.ndarray]:
        state = tree_map(lambda s: s + 0.5, policy.initial_state(S))
        observations, mask = (None if a is None else mx.array(a) for a in seen)
        noise, terminals = policy.distribution.noise(mx.random.key(1), (S,)), mx.array(ends)
        written = [mx.zeros((S, action.heads)), mx.zeros(S), mx.zeros(S)]
        mx.eval(written, observations, noise, terminals)
        states = step.to_slots(step.pack_states(state), blocks)
        arguments: list[Any] = [weights, states, noise, observations, mask, terminals, *written]
        after = step.act(*arguments, obs_copy=None, block_rows=blocks and blocks.block_rows)
        state = step.unpack_state(step.to_rows(after, blocks))
        mx.eval(state)
        return [np.array(array) for array in (*written, *(own for _, own in named_arrays(state)))]

    with on(mx.Device(mx.gpu)):
        packed = [
            step.pack_weights(policy.init(mx.random.key(seed))) for seed in range(max(acts) + 1)
        ]
        results = launch(mx.stack(packed), blocks_of_agents(acts, step.agents_per_block(S)))
        apart = [0.0]
        for number, weights in enumerate(packed):
            pairs = zip(results, launch(weights, None), strict=True)
            apart += [np.abs(ours - own)[acts == number].max() for ours, own in pairs]
    return float(max(apart))


# ---- what a minibatch does around its gradients ------------------------------------------------

STEPS, ROWS, DRAWN = 21, 1300, 700  # no multiple of a block; some of 700 rows are drawn twice
ROUNDED = 0.01  # share of rows that may be a neighbour: their uniform is within rounding
HYPER: dict[str, Any] = dict(gamma=0.99, gae_lambda=0.95, rho_clip=1.2, c_clip=1.0, reward_clip=1.0)


def _rollout() -> dict[str, mx.array]:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        name: rng.normal(size=(STEPS, ROWS)) for name in ("values", "rewards", "adv")
    }
    arrays["terminals"] = rng.random((STEPS, ROWS)) < 0.1
    arrays["ratios"] = rng.lognormal(0, 0.4, (STEPS, ROWS))
    arrays["final_observations"] = rng.choice([0, 0, 0, TERMINATED, TRUNCATED], (STEPS, ROWS))
    arrays["uniforms"] = 1 - rng.random(DRAWN)
    arrays["new_values"], arrays["new_ratios"] = rng.normal(size=(2, STEPS, DRAWN))
    results = {name: mx.array(a.astype(np.float32)) for name, a in arrays.items()}
    results["rows"] = mx.array(rng.integers(0, ROWS, DRAWN).astype(np.int32))
    results["masks"] = mx.array(rng.integers(0, 2, (STEPS + 1, ROWS, 7)).astype(np.uint8))
    return results


def _computed(a: dict[str, mx.array]) -> dict[str, mx.array]:
    series = a["values"], a["rewards"], a["terminals"], a["ratios"]
    grid = a["ratios"], a["values"], a["adv"], a["final_observations"]
    new = a["values"], a["ratios"], a["rows"], a["new_values"], a["new_ratios"]
    results = {f"advantages {form}": advantages(*series, **HYPER, formula=form) for form in "VS"}
    results["advantages with ends"] = advantages(
        *series, **HYPER, final_observations=a["final_observations"]
    )
    results["advantages without ratios"] = advantages(*series[:3], None, **HYPER)
    rounded = a["values"].astype(mx.bfloat16)
    results["advantages of bf16"] = advantages(rounded, *series[1:], **HYPER)
    drawn = priority.choose_segments(a["adv"], a["uniforms"], mx.array(0.4), 0.8)
    results["drawn rows"], results["their weights"] = drawn
    weights = a["uniforms"]
    results["masks"] = ops.take_rows(a["masks"], a["rows"], STEPS)
    for name in "masks", "values":
        parts = ops.split_rows(a[name], ROWS // 2, STEPS)
        results |= {f"{name} of part {i}": part for i, part in enumerate(parts)}
    for i, target in enumerate(ops.take_targets(*grid, a["rows"], weights)[:4]):
        results[f"target {i}"] = target
    for counted in (1.0, 0.0):
        pair = ops.put_rows(*new, mx.array(counted))
        results |= {f"written back {i} {counted:.0f}": array for i, array in enumerate(pair)}
    mx.eval(results)
    return results


def around_gradients(quick: bool) -> str:
    """Check GPU against CPU for the parts around gradients: advantages, draws, gathers, writes."""
    need_gpu()
    arrays, results = _rollout(), {}
    for device in (mx.Device(mx.cpu), mx.Device(mx.gpu)):
        with on(device):
            results[device.type] = _computed(arrays)
    expected, ours = results[mx.cpu], results[mx.gpu]
    same = np.array(ours["drawn rows"]) == np.array(expected["drawn rows"])
    rounded = at_most("share of other rows drawn", 1 - same.mean(), ROUNDED)
    off = (np.array(ours["their weights"]) / np.array(expected["their weights"]))[same]
    at_most("weights of drawn rows", float(np.abs(off - 1).max()), FUSED_TOLERANCE["fp32"])
    worst = 0.0
    for name, array in expected.items():
        if name.startswith("advantages"):
            worst = max(worst, relative_difference(ours[name], array))
            at_most(name, worst, FUSED_TOLERANCE["fp32"])
        elif name not in ("drawn rows", "their weights"):
            require(mx.array_equal(ours[name], array).item() is True, f"{name} isn't the CPU's")
    return f"{at_most('advantages', worst, FUSED_TOLERANCE['fp32'])}; {rounded}"
