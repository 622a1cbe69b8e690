"""`policy/custom.py`: a user's own classes, in the working directory."""

import threading

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from oracles import f64, named

from puffer_mlx import config
from puffer_mlx.errors import UserError
from puffer_mlx.policy import custom
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

SPEC = EnvSpec("x", 6, np.dtype(np.uint8), ActionSpec((3,)))
MINE = """
import mlx.core as mx
from mlx import nn

class Wide(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.layers = [nn.Linear(inputs, 2 * hidden), nn.Linear(2 * hidden, hidden)]

    def __call__(self, x):
        return self.layers[1](nn.relu(self.layers[0](x)))

class Silent:
    def __init__(self, *sizes):
        pass

    def init(self, key):
        return {}

function = len
"""


def generator() -> list:
    """Return the state of MLX's global generator."""
    return mx.random.state[0].tolist()  # type: ignore


@pytest.fixture
def mine(here):
    (here / "mine.py").write_text(MINE)


def make(encoder="mine:Wide", network="MinGRU"):
    size = config.Policy(hidden_size=4, num_layers=1)
    return make_policy(SPEC, size, config.Torch(encoder=encoder, network=network))


def test_mlx_module_as_encoder_has_weights_and_gradients(mine):
    policy = make()
    before = generator()
    weights, same, other = (make().init(mx.random.key(k)) for k in (0, 0, 1))
    assert generator() == before  # the global generator is left alone
    w, same, other = ({k: f64(a) for k, a in named(x["encoder"])} for x in (weights, same, other))
    assert sorted(w) == [f"layers.{i}.{kind}" for i in (0, 1) for kind in ("bias", "weight")]
    assert all((w[k] == same[k]).all() and (w[k] != other[k]).any() for k in w)

    x = mx.random.randint(0, 9, (3, 6)).astype(mx.uint8)
    hidden = np.maximum(f64(x) @ w["layers.0.weight"].T + w["layers.0.bias"], 0)
    expected = hidden @ w["layers.1.weight"].T + w["layers.1.bias"]
    found = policy.encoder(weights["encoder"], x)
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-5, atol=1e-5)
    gradient = mx.compile(mx.grad(lambda weights: mx.sum(policy.encoder(weights, x))))
    assert all(np.array(g).any() for _, g in named(gradient(weights["encoder"])))


def test_threads_use_a_module_with_their_own_weights():
    both = threading.Barrier(2, timeout=60)

    class Meets(nn.Module):
        def __init__(self, inputs, hidden):
            super().__init__()
            self.scale = mx.ones(1)

        def __call__(self, x):
            both.wait()  # each has put its weights in
            return x * self.scale

    encoder, found = custom.Module(Meets, (1, 1)), {}

    def run(scale):
        weights = {"scale": mx.array([scale])}
        found[scale] = encoder(weights, mx.ones((1, 1))).item()
        mx.clear_streams()

    threads = [threading.Thread(target=run, args=(scale,)) for scale in (2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {2.0: 2.0, 3.0: 3.0}


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("nowhere:Wide", "No module named", "nowhere.py in this folder"),
        ("mine:Narrow", "mine has no Narrow", "module:Class"),
        ("mine:function", "not a class", "module:Class"),
        ("mine:Silent", "lacks __call__", "docs/custom_policy.md"),
    ],
)
def test_class_that_is_no_encoder_is_refused(mine, name, message, hint):
    with pytest.raises(UserError, match=message) as error:
        make(name)
    assert hint in str(error.value)
    with pytest.raises(UserError, match="lacks initial_state, scan, step"):
        make(network="mine:Silent")
