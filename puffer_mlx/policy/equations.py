"""The plain functions of a policy's parts: what its fused forms are compared with."""

from collections.abc import Callable
from typing import Any

from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.policy.policy import Policy

IN_C = Reference(
    "the policy's step in C",
    ("policy.policy:Policy.act",),
    test="tests/rollout/test_compiled_step.py",
    cost="rollouts take several times as long",
)
ON_GPU = Reference(
    "the policy's step as one kernel",
    ("policy.policy:Policy.act",),
    test="tests/policy/test_acting_on_gpu.py",
    cost="rollouts take longer",
)

Function = Callable[..., Any]


def acting_of(policy: Policy) -> list[Function]:
    """The functions by which a policy acts."""
    parts = [policy.act, policy.keep, *_features(policy)]
    return [*parts, policy.network.step, policy.distribution.sample]


def training_of(policy: Policy) -> list[Function]:
    """Those by which it is trained: a minibatch's forward pass."""
    parts = [policy.product, policy.keep, *_features(policy)]
    return [*parts, policy.distribution.log_prob_entropy]


def _features(policy: Policy) -> list[Function]:
    decoder = policy.decoder
    encoder: Any = type(policy.encoder).__call__
    return [encoder, policy.network.scan, decoder.product, decoder.split, decoder.logstd]
