"""Compare every policy with upstream's torch classes and torch.distributions.

Outputs, log-probabilities, entropies and gradients of a PPO loss; sequences, steps, resets.
"""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from oracles import assert_close

from puffer_mlx.config import Policy, Torch
from puffer_mlx.export.weight_layouts import stacked_state, to_layout, to_torch
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

torch = pytest.importorskip("torch")

T, S, H = 9, 6, 16
DISCRETE, MULTI, CONTINUOUS = (5,), (3, 2, 4), (1, 1, 1)

CASES = {
    f"{dialect}-{network}-{len(sizes)}x{max(sizes)}{'-masked' * masked}": (
        dict(dialect=dialect, network=network, layers=layers),
        sizes,
        masked,
    )
    for dialect, network, layers, sizes, masked in (
        ("native", "MinGRU", 2, DISCRETE, False),
        ("native", "MLP", 2, DISCRETE, True),
        ("torch", "GRU", 2, DISCRETE, False),
        ("torch", "MLP", 2, CONTINUOUS, False),
        ("puffer3", "LSTM", 1, MULTI, True),
    )
}
IMAGES = {
    f"{encoder}-{'x'.join(map(str, shape))}": (encoder, shape)
    for encoder, shape in (
        ("NatureEncoder", (47, 55, 1)),  # features of 2 x 3
        ("ImpalaEncoder", (9, 12, 3)),
    )
}


class Case:
    """A policy with random weights, data for a loss, and the equal PyTorch module."""

    def __init__(self, how, sizes, masked, shape=()):
        rng = np.random.default_rng(sum(sizes) + len(shape))
        D = int(np.prod(shape)) if shape else 20
        action = ActionSpec(sizes)
        dtype = np.dtype(np.uint8 if shape else np.float32)
        self.spec = EnvSpec("x", D, dtype, action, sum(sizes) * masked, shape)
        parts = Torch(network=how["network"], encoder=how.get("encoder", "DefaultEncoder"))
        settings = Policy(H, how["layers"], how["dialect"])
        self.policy = make_policy(self.spec, settings, parts)
        self.weights = tree_map(
            lambda w: w + 0.05 * mx.array(rng.normal(size=w.shape).astype(np.float32)),
            self.policy.init(mx.random.key(0)),
        )
        if shape:
            self.observations = rng.integers(0, 256, (T, S, D)).astype(np.uint8)
        else:
            self.observations = rng.normal(size=(T, S, D)).astype(np.float32)
        state = self.policy.initial_state(S)
        self.state = tree_map(lambda a: mx.array(rng.random(a.shape).astype(np.float32)), state)
        self.keep = (rng.random((T, S)) > 0.3).astype(np.float32)
        self.mask = None
        n = T * S
        if action.continuous:
            self.actions = rng.normal(size=(n, action.heads)).astype(np.float32)
        else:
            heads = [rng.integers(0, size, n) for size in sizes]
            self.actions = np.stack(heads, axis=-1).astype(np.float32)
        if masked:  # the taken actions are legal
            self.mask = rng.integers(0, 2, (n, sum(sizes))).astype(np.uint8)
            for head, start in enumerate(np.cumsum((0, *sizes[:-1]))):
                self.mask[np.arange(n), start + self.actions[:, head].astype(int)] = 1
        self.old = rng.normal(-1.5, 0.3, n).astype(np.float32)
        self.advantages, self.returns = rng.normal(size=(2, n)).astype(np.float32)

    def module(self):
        from puffer_mlx.export.torch_modules import make_module

        policy, weights = self.policy, self.weights
        if is_native(policy):
            policy, weights = to_layout(policy, weights, "torch")
        made = make_module(policy)
        tensors = {key: torch.from_numpy(w) for key, w in to_torch(policy, weights).items()}
        made.load_state_dict(tensors)
        return made


def is_native(policy):
    return type(policy.decoder).__name__ == "Fused"


# ---- the loss, in both ---------------------------------------------------------------------------


def ours(case, weights, keep):
    outputs, values, state = case.policy.scan(
        weights, mx.array(case.observations), case.state, None if keep is None else mx.array(keep)
    )
    mask = None if case.mask is None else mx.array(case.mask)
    logprob, entropy = case.policy.distribution.log_prob_entropy(
        outputs, mx.array(case.actions), mask
    )
    ratio, advantages = mx.exp(logprob - mx.array(case.old)), mx.array(case.advantages)
    clipped = mx.clip(ratio, 0.8, 1.2)
    pg = mx.mean(mx.maximum(-advantages * ratio, -advantages * clipped))
    vl = 0.5 * mx.mean((values - mx.array(case.returns)) ** 2)
    return pg + 1.2 * vl - 0.02 * mx.mean(entropy), (outputs, values, logprob, entropy, state)


def theirs(case, module, keep) -> Any:
    """Compute PyTorch's loss and outputs of a case.

    By single steps with resets if ``keep`` is given, else as a sequence.
    """
    observations = torch.from_numpy(case.observations)
    state = tuple(torch.from_numpy(a) for a in stacked_state(case.policy, case.state).values())
    if keep is None:
        outputs, values, state = module(observations.transpose(0, 1), state)
        outputs = tree(lambda a: a.transpose(0, 1), outputs)
        values = values.T
    else:
        steps = []
        for t in range(T):
            kept = torch.from_numpy(keep[t])[:, None]
            *step, state = module.step(observations[t], tuple(part * kept for part in state))
            steps.append(step)
        parts = zip(*(flat(outputs) for outputs, _ in steps), strict=True)
        outputs: Any = tuple(torch.stack(part) for part in parts)
        outputs = outputs if len(outputs) > 1 else outputs[0]
        values = torch.stack([value for _, value in steps])
    outputs, values = tree(lambda a: a.flatten(0, 1), outputs), values.flatten()
    logprob, entropy = torch_log_prob_entropy(case, outputs)
    ratio, advantages = torch.exp(logprob - torch.tensor(case.old)), torch.tensor(case.advantages)
    clipped = ratio.clamp(0.8, 1.2)
    pg = torch.maximum(-advantages * ratio, -advantages * clipped).mean()
    vl = 0.5 * ((values - torch.tensor(case.returns)) ** 2).mean()
    return pg + 1.2 * vl - 0.02 * entropy.mean(), (outputs, values, logprob, entropy, state)


def torch_log_prob_entropy(case, outputs) -> Any:
    from torch.distributions import Categorical, Normal

    actions = torch.from_numpy(case.actions)
    if case.spec.action.continuous:
        mean, logstd = outputs
        normal = Normal(mean, logstd.exp())
        return normal.log_prob(actions).sum(-1), normal.entropy().sum(-1)
    logits = outputs
    if case.mask is not None:
        logits = logits.masked_fill(torch.from_numpy(case.mask) == 0, -1e4)
    heads = [Categorical(logits=part) for part in logits.split(case.spec.action.sizes, dim=-1)]
    logprobs = [head.log_prob(actions[:, i]) for i, head in enumerate(heads)]
    entropies = [head.entropy() for head in heads]
    return torch.stack(logprobs).sum(0), torch.stack(entropies).sum(0)


def flat(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def tree(function, outputs) -> Any:
    made = tuple(function(part) for part in flat(outputs))
    return made if isinstance(outputs, tuple) else made[0]


# ---- comparing -----------------------------------------------------------------------------------


def check_forward(case, found, expected):
    outputs, values, logprob, entropy, state = found
    their_outputs, their_values, their_logprob, their_entropy, their_state = expected
    names = ("mean", "logstd") if case.spec.action.continuous else ("logits",)
    ours_flat = flat(outputs)
    for name, a, b in zip(names, ours_flat, flat(their_outputs), strict=True):
        a = np.array(a).T
        assert_close(np.broadcast_to(a, b.shape), b, name)
    assert_close(values, their_values, "values")
    assert_close(logprob, their_logprob, "logprob")
    assert_close(entropy, their_entropy, "entropy")
    stacked = stacked_state(case.policy, state)
    for (name, a), b in zip(stacked.items(), their_state, strict=True):
        assert_close(a, b, name)


def check_gradients(case, gradients, module):
    """Compare the gradients of all parameters with PyTorch's."""
    expected = {name: w.grad for name, w in module.named_parameters()}
    if is_native(case.policy):
        heads = ("decoder_mean",) if case.spec.action.continuous else ("decoder",)
        rows = [expected[f"decoder.{part}.weight"] for part in (*heads, "value_function")]
        assert_close(gradients["decoder"]["weight"], torch.cat(rows), "decoder")
        assert_close(gradients["encoder"]["weight"], expected["encoder.encoder.weight"], "encoder")
        zeros = tree_map(mx.zeros_like, case.weights)
        policy, gradients = to_layout(
            case.policy, {**zeros, "network": gradients["network"]}, "torch"
        )
        found = to_torch(policy, gradients)
        expected = {name: g for name, g in expected.items() if name.startswith("network.")}
    else:
        found = to_torch(case.policy, gradients)
    for name, gradient in expected.items():
        assert_close(found[name], gradient, name)


def check(case):
    """Compare a policy's outputs, loss and gradients with PyTorch's, with and without resets."""
    for keep in None, case.keep:
        module = case.module()
        (loss, found), gradients = mx.value_and_grad(ours, argnums=1)(case, case.weights, keep)
        their_loss, expected = theirs(case, module, keep)
        check_forward(case, found, expected)
        assert_close(loss, their_loss, "loss")
        their_loss.backward()
        check_gradients(case, gradients, module)


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_torchs(name):
    check(Case(*CASES[name]))


def test_outputs_and_gradients_are_torchs_by_each_kind_of_products(products):
    how = dict(dialect="torch", network="LSTM", layers=2)
    check(Case(how, MULTI, masked=True))


@pytest.mark.parametrize("name", IMAGES)
def test_image_encoders_are_torchs(name):
    encoder, shape = IMAGES[name]
    how = dict(dialect="torch", network="MinGRU", layers=1, encoder=encoder)
    check(Case(how, DISCRETE, False, shape))


# ---- Stable-Baselines3 ---------------------------------------------------------------------------


@pytest.mark.parametrize("separate", [False, True])
def test_keys_and_shapes_are_those_of_stable_baselines3(separate):
    """Compare with ``PPO("MlpPolicy", env).policy.state_dict()`` (2.9), 3 numbers, 2 actions."""
    spec = EnvSpec("x", 3, np.dtype(np.float32), ActionSpec((1, 1)))
    settings = Policy(64, 1, "sb3", separate_value=separate)
    policy = make_policy(spec, settings, Torch(network="MLP"))
    found = to_torch(policy, policy.init(mx.random.key(0)))
    expected: dict[str, tuple[int, ...]] = {"log_std": (2,)}
    for net in "policy_net", "value_net":
        for place, shape in ((0, (64, 3)), (2, (64, 64))):
            expected[f"mlp_extractor.{net}.{place}.weight"] = shape
            expected[f"mlp_extractor.{net}.{place}.bias"] = shape[:1]
    for head, rows in (("action_net", 2), ("value_net", 1)):
        expected[f"{head}.weight"], expected[f"{head}.bias"] = (rows, 64), (rows,)
    assert {key: array.shape for key, array in found.items()} == expected
    first, second = (found[f"mlp_extractor.{net}.2.weight"] for net in ("policy_net", "value_net"))
    assert np.array_equal(first, second) != separate
