"""`optimizers/adam` against float64 NumPy and torch's AdamW."""

import mlx.core as mx
import numpy as np
import oracles
import pytest
from covering import pairs

from puffer_mlx import config
from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.fingerprints import COMPARING
from puffer_mlx.ppo.optimizers import adam
from puffer_mlx.trees import named

SHAPES = [(5,), (4, 9), (6, 2, 3, 2), (1, 7), (3, 1)]
LARGE = [(70_001,), (300, 200)]  # more than one part of a thread
STEPS = 6


def settings(*words):
    return config.load("default", ["--train.optimizer", "adam", *map(str, words)]).train


def drawn(shapes, seed=0):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    grads = [[rng.normal(size=s).astype(np.float32) for s in shapes] for _ in range(STEPS)]
    return weights, grads


def steps(weights, grads, train, rates):
    """Weights after each step, and the state after the last."""
    weights = {"first": mx.array(weights[0]), "rest": [mx.array(w) for w in weights[1:]]}
    state, after = adam.init(weights), []
    for now, rate in zip(grads, rates, strict=True):
        now = {"first": mx.array(now[0]), "rest": [mx.array(g) for g in now[1:]]}
        weights, state, ok = adam.step(weights, now, state, mx.array(1.0), mx.array(rate), train)
        assert ok.item()
        after.append([np.array(array) for _, array in named(weights)])
    return after, state


def test_first_steps_by_hand(path):
    # |g| = 5, clipped to 1: g = (.6, -.8). After one step m / (1 - b1) = g and v / (1 - b2) = g^2,
    # so w moves by lr g / (|g| + eps): .1 * .6 / .7 = .0857143, .1 * .8 / .9 = .0888889.
    # The same gradient again moves it as far again. Before, w loses .1 * .5 = 5 % each time:
    # 1 -> .95 - .0857143 = .8642857 -> .8210714 - .0857143 = .7353571;
    # 1 -> .95 + .0888889 = 1.0388889 -> .9869444 + .0888889 = 1.0758333
    words = ["--train.eps", 0.1, "--train.max-grad-norm", 1, "--train.weight-decay", 0.5]
    grads = [[np.array([3.0, -4.0], np.float32)]] * 2
    after, state = steps([np.ones(2, np.float32)], grads, settings(*words), [0.1, 0.1])
    np.testing.assert_allclose(after[0][0], [0.8642857, 1.0388889], rtol=1e-6)
    np.testing.assert_allclose(after[1][0], [0.7353571, 1.0758333], rtol=1e-6)
    assert state["step"].item() == 2


@pytest.mark.parametrize(
    ("shapes", "betas", "decay", "max_norm"),  # clipped and not
    pairs([SHAPES, LARGE], [(0.9, 0.999), (0.0, 0.0), (0.95, 0.99999)], [0.0, 0.1], [0.5, 1e4]),
)
def test_float64(path, shapes, betas, decay, max_norm):
    weights, grads = drawn(shapes)
    words = ["--train.beta1", betas[0], "--train.beta2", betas[1], "--train.weight-decay", decay]
    train = settings(*words, "--train.max-grad-norm", max_norm)
    rates = [0.01 / (k + 1) for k in range(STEPS)]
    after, state = steps(weights, grads, train, rates)
    exact = [oracles.f64(w) for w in weights]
    moments = [np.zeros_like(w) for w in exact], [np.zeros_like(w) for w in exact], 0
    for k, rate in enumerate(rates):
        now = [oracles.f64(g) for g in grads[k]]
        exact, moments = oracles.adam(exact, now, moments, rate, betas, train.eps, max_norm, decay)
        for one, other in zip(after[k], exact, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)
    for name, expected in zip(("momentum", "second_moment"), moments[:2], strict=True):
        for (_, one), other in zip(named(state[name]), expected, strict=True):
            np.testing.assert_allclose(np.array(one), other, rtol=2e-5, atol=2e-7)
    assert state["step"].item() == STEPS


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_torch(path, decay):
    import torch

    weights, grads = drawn(SHAPES, seed=1)
    betas = (0.9, 0.999)
    train = settings("--train.beta1", betas[0], "--train.weight-decay", decay)
    theirs = [torch.nn.Parameter(torch.tensor(w)) for w in weights]
    other = torch.optim.AdamW(theirs, lr=1.0, betas=betas, eps=1e-5, weight_decay=decay)
    rates = [0.01 / (k + 1) for k in range(STEPS)]
    after, _ = steps(weights, grads, train, rates)
    for k, rate in enumerate(rates):
        for parameter, grad in zip(theirs, grads[k], strict=True):
            parameter.grad = torch.tensor(grad)
        norm = torch.nn.utils.clip_grad_norm_(theirs, train.max_grad_norm)
        assert norm > train.max_grad_norm
        other.param_groups[0]["lr"] = rate
        other.step()
        for one, parameter in zip(after[k], theirs, strict=True):
            np.testing.assert_allclose(one, parameter.detach().numpy(), rtol=0, atol=1e-6)


def test_a_long_run_needs_no_correction(path):
    """Beside one whose moments were 0, the corrections are gone, not NaN."""
    weights, grads = {"w": mx.ones(3)}, {"w": mx.array([0.1, -0.1, 0.0])}
    state = adam.init(weights) | {"momentum": grads, "second_moment": {"w": mx.full(3, 0.01)}}
    state["step"] = mx.array(float(2**24))
    train = settings("--train.max-grad-norm", 1)
    weights, _, ok = adam.step(weights, grads, state, mx.array(0.0), mx.array(0.1), train)
    assert ok.item()  # 1 -+ .1 * .1 / (.1 + 1e-5); .01 decays by .999 where the gradient is 0
    np.testing.assert_allclose(np.array(weights["w"]), [0.90001, 1.09999, 1], rtol=0, atol=1e-5)


def test_a_step_refuses_what_does_not_fit(extension):
    w, one = mx.zeros((3, 2)), mx.array(1.0)
    for wrong in (
        ([w], [w], [w], [], one, one, one),
        ([w], [w.T], [w], [w], one, one, one),
        ([w], [w], [w], [w.astype(mx.float16)], one, one, one),
        ([w], [w], [w], [w], one[None], one, one),
        ([w], [w], [w], [w], one, one, mx.array(1)),
    ):
        with pytest.raises(ValueError, match="adam_step"):
            extension.adam_step(*wrong, 1.5, 0.9, 0.999, 1e-5, 0.0)


def test_the_extension_is_what_a_cpu_uses(extension, monkeypatch):
    assert cpu_extension.load() is extension
    weights, grads = drawn(SHAPES)
    monkeypatch.setenv(COMPARING, "1")  # nothing gives way to what was replaced
    monkeypatch.setattr(adam, "adam", None)  # the graph
    steps(weights, grads[:1], settings(), [0.1])
