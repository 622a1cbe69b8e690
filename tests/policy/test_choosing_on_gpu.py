"""The kernel that chooses actions, run as C++, against the plain functions."""

import mlx.core as mx
import numpy as np
import pytest
from emulated_run import alternate, emulated_gpu
from small_policies import PUFFER5, policy_of, weights_of

from puffer_mlx.ops.gpu.launch import FEWEST
from puffer_mlx.policy.choosing_on_gpu import choose
from puffer_mlx.policy.policy import Policy
from puffer_mlx.rollout.act_functions import compile_act

N = 40
CASES = {  # action sizes, whether they are masked, limits
    "one head": ((7,), False, {}),
    "heads, masked": ((3, 2, 5), True, {}),
    "numbers": ((1, 1, 1), False, {}),
    "numbers within limits": ((1, 1), False, {"limits": PUFFER5}),
}


def given(case: str) -> tuple[Policy, list]:
    """A policy; outputs, deviations, values, noise and mask, some of them not finite."""
    sizes, masked, limits = CASES[case]
    policy, rng = policy_of(sizes=sizes, **limits), np.random.default_rng(len(case))
    A = policy.decoder.action.logits
    y = 3 * rng.normal(size=(A + 1, N)).astype(np.float32)
    y[0, :3] = np.nan, np.inf, -np.inf
    y[:A, 4] = 0.0  # all alike
    outputs, values = policy.decoder.split(weights_of(policy)["decoder"], mx.array(y))
    outputs, logstd = outputs if policy.decoder.action.continuous else (outputs, None)
    noise = policy.distribution.noise(mx.random.key(2), (N,))
    noise[6:12], noise[12:18] = 1.0, 2.0**-24  # the largest and the smallest uniform
    mask = (rng.random((N, A)) < 0.5).astype(np.uint8) * 3 if masked else None
    if mask is not None:
        mask[5] = 0  # nothing is legal
    return policy, [outputs, logstd, values, noise, None if mask is None else mx.array(mask)]


def by_kernel(policy: Policy, outputs, logstd, values, noise, mask) -> mx.array:
    outputs = outputs if logstd is None else (outputs, logstd)
    return choose(policy, outputs, values, noise, mask)


def plain(policy: Policy, outputs, logstd, values, noise, mask) -> mx.array:
    outputs = outputs if logstd is None else (outputs, logstd)
    actions, logprobs = policy.distribution.sample(outputs, noise, mask)  # type: ignore
    return mx.concatenate([actions.T, logprobs[None], values[None]])


@pytest.mark.parametrize(("backend", "case"), alternate((case,) for case in CASES))
def test_kernel_chooses_like_the_plain_functions(backend, case):
    policy, arrays = given(case)
    with emulated_gpu(backend=backend, checked=True) as gpu:
        found = np.array(by_kernel(policy, *arrays))
    assert gpu.launches == ["choose_actions"]
    expected = np.array(plain(policy, *arrays))
    first = 0 if policy.decoder.action.continuous else -2  # choices are equal
    np.testing.assert_array_equal(found[:first], expected[:first])
    np.testing.assert_allclose(found[first:], expected[first:], 2e-5, 2e-5)


def acted(policy: Policy, agents: int) -> list[np.ndarray]:
    """A step that is compiled now, with the network's state after it."""
    rng = np.random.default_rng(1)
    observations = mx.array(rng.normal(size=(agents, 5)).astype(np.float32))
    noise, state = (
        policy.distribution.noise(mx.random.key(0), (agents,)),
        policy.initial_state(agents),
    )
    act = compile_act(policy)
    chosen, after = act(weights_of(policy), observations, state, noise, None, mx.zeros(agents))
    return [np.array(chosen), *map(np.array, after)]


@pytest.mark.parametrize("agents", [FEWEST - 1, N])
def test_step_uses_the_kernel_unless_agents_are_few(agents):
    policy = policy_of(sizes=(3, 4))
    with emulated_gpu() as gpu:
        found = acted(policy, agents)
    assert ("choose_actions" in gpu.names) == (agents == N)
    for ours, theirs in zip(found, acted(policy, agents), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)
