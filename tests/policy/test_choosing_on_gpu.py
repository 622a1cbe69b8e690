"""The kernel that chooses actions, run as C++, against the plain functions."""

import mlx.core as mx
import numpy as np
import pytest
from emulated_run import alternate, emulated_gpu
from small_policies import PUFFER5, policy_of, weights_of

from puffer_mlx.policy.choosing_on_gpu import choose_actions
from puffer_mlx.policy.policy import Policy

N = 40
CASES = {  # action sizes, whether they are masked, limits
    "one head": ((7,), False, {}),
    "heads, masked": ((3, 2, 5), True, {}),
    "numbers": ((1, 1, 1), False, {}),
    "numbers within limits": ((1, 1), False, {"limits": PUFFER5}),
}


def given(case: str) -> tuple[Policy, list]:
    """Return a policy and inputs for choosing its actions; some outputs aren't finite.

    These are outputs, deviations, values, noise and mask.
    """
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
    return choose_actions(policy, outputs, values, noise, mask)


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
