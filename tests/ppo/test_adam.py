"""`optimizers/adam` against hand arithmetic and torch's AdamW."""

import mlx.core as mx
import numpy as np

from puffer_mlx.ops.implementation import COMPARING
from puffer_mlx.ppo.optimizers import adam
from puffer_mlx.trees import named

SHAPES = [(5,), (4, 9), (6, 2, 3, 2), (1, 7), (3, 1), (70_001,)]  # the last: a thread's many parts
STEPS = 6


def drawn():
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
    grads = [[rng.normal(size=s).astype(np.float32) for s in SHAPES] for _ in range(STEPS)]
    return weights, grads


def steps(weights, grads, rates, *, max_grad_norm=0.5, eps=1e-5, weight_decay=0.0):
    """Weights after each step, and the state after the last."""
    weights = {"first": mx.array(weights[0]), "rest": [mx.array(w) for w in weights[1:]]}
    numbers = {"max_grad_norm": max_grad_norm, "eps": eps, "weight_decay": weight_decay}
    numbers |= {"beta1": 0.9, "beta2": 0.999}
    state, after = adam.init(weights), []
    for now, rate in zip(grads, rates, strict=True):
        now = {"first": mx.array(now[0]), "rest": [mx.array(g) for g in now[1:]]}
        given = weights, now, state, mx.array(1.0), mx.array(rate)
        weights, state, ok = adam.step(*given, **numbers)
        assert ok.item()
        after.append([np.array(array) for _, array in named(weights)])
    return after, state


def test_first_steps_equal_hand_arithmetic(path):
    # |g| = 5, clipped to 1: g = (.6, -.8). After one step m / (1 - b1) = g and v / (1 - b2) = g^2,
    # so w moves by lr g / (|g| + eps): .1 * .6 / .7 = .0857143, .1 * .8 / .9 = .0888889.
    # The same gradient again moves it as far again. Before, w loses .1 * .5 = 5 % each time:
    # 1 -> .95 - .0857143 = .8642857 -> .8210714 - .0857143 = .7353571;
    # 1 -> .95 + .0888889 = 1.0388889 -> .9869444 + .0888889 = 1.0758333
    grads = [[np.array([3.0, -4.0], np.float32)]] * 2
    numbers = {"eps": 0.1, "max_grad_norm": 1.0, "weight_decay": 0.5}
    after, state = steps([np.ones(2, np.float32)], grads, [0.1, 0.1], **numbers)
    np.testing.assert_allclose(after[0][0], [0.8642857, 1.0388889], rtol=1e-6)
    np.testing.assert_allclose(after[1][0], [0.7353571, 1.0758333], rtol=1e-6)
    assert state["step"].item() == 2


def test_steps_equal_torch(path):
    import torch

    decay = 0.1
    weights, grads = drawn()
    theirs = [torch.nn.Parameter(torch.tensor(w)) for w in weights]
    other = torch.optim.AdamW(theirs, lr=1.0, betas=(0.9, 0.999), eps=1e-5, weight_decay=decay)
    rates = [0.01 / (k + 1) for k in range(STEPS)]
    after, _ = steps(weights, grads, rates, weight_decay=decay)
    for k, rate in enumerate(rates):
        for parameter, grad in zip(theirs, grads[k], strict=True):
            parameter.grad = torch.tensor(grad)
        norm = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
        assert norm > 0.5
        other.param_groups[0]["lr"] = rate
        other.step()
        for one, parameter in zip(after[k], theirs, strict=True):
            np.testing.assert_allclose(one, parameter.detach().numpy(), rtol=0, atol=1e-6)


def test_cpu_uses_the_extension(extension, monkeypatch):
    weights, grads = drawn()
    monkeypatch.setenv(COMPARING, "1")
    monkeypatch.setattr(adam, "adam", None)  # the graph
    steps(weights, grads[:1], [0.1])
