"""Image encoders against torch's layers in float64: features, gradients, initial weights."""

import math
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from oracles import assert_close, f64, named

from puffer_mlx import config
from puffer_mlx.errors import UserError
from puffer_mlx.policy.encoders.catalog import make_encoder
from puffer_mlx.policy.encoders.combined import Combined
from puffer_mlx.policy.encoders.default import Linear
from puffer_mlx.policy.encoders.impala import Impala
from puffer_mlx.policy.encoders.nature import Nature
from puffer_mlx.policy.policy import configured_policy, make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec, ImageSlice

HIDDEN = 24


def torch_conv(layer, x, **keywords):
    from torch.nn import functional

    weight = layer["weight"].permute(0, 3, 1, 2)
    return functional.conv2d(x, weight, layer["bias"], **keywords)


def torch_linear(layer, x):
    """Apply a linear layer to images of PyTorch's layout, whose channels come first."""
    return x.permute(0, 2, 3, 1).flatten(1) @ layer["weight"].T + layer["bias"]


def torch_nature(weights, x):
    for layer, stride in zip(weights["convs"], (4, 2, 1), strict=True):
        x = torch_conv(layer, x, stride=stride).relu()
    return torch_linear(weights["linear"], x).relu()


def torch_impala(weights, x):
    from torch.nn import functional

    for block in weights["blocks"]:
        x = torch_conv(block["conv"], x, padding=1)
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        for name in "res0", "res1":
            inner = torch_conv(block[name]["conv0"], x.relu(), padding=1).relu()
            x = x + torch_conv(block[name]["conv1"], inner, padding=1)
    return torch_linear(weights["linear"], x.relu()).relu()


CASES = [
    (Nature, torch_nature, (36, 36, 1)),
    (Nature, torch_nature, (41, 54, 3)),  # some pixels are in no window
    (Impala, torch_impala, (5, 7, 3)),
    (Impala, torch_impala, (1, 1, 2)),
]


@pytest.mark.parametrize(
    ("encoder", "reference", "shape"),
    CASES,
)
def test_features_and_gradients_equal_torch(encoder, reference, shape):
    torch = pytest.importorskip("torch")
    n = 3
    rng = np.random.default_rng(sum(shape))
    made = encoder(shape, HIDDEN)
    weights = made.init(mx.random.key(1))
    observations = rng.integers(0, 256, (n, int(np.prod(shape)))).astype(np.uint8)
    probe = rng.normal(size=(n, HIDDEN))

    def scalar(weights, x, probe):
        return mx.sum(made(weights, x) * probe)

    inputs = mx.array(observations)
    out = mx.compile(made)(weights, inputs)
    assert out.dtype == mx.float32

    theirs = tree_map(lambda w: torch.tensor(f64(w), requires_grad=True), weights)
    images = torch.tensor(f64(observations).reshape(n, *shape) / 255).permute(0, 3, 1, 2)
    expected = reference(theirs, images)
    assert_close(out, expected, "features")
    (expected * torch.tensor(probe)).sum().backward()
    ours = mx.compile(mx.grad(scalar))(weights, inputs, mx.array(probe.astype(np.float32)))
    for (name, found), (_, tensor) in zip(named(ours), named(theirs), strict=True):
        assert_close(found, tensor.grad, name)


@pytest.mark.parametrize(
    ("made", "features"),
    [(Nature((84, 84, 4), 512), 7 * 7 * 64), (Impala((36, 36, 1), 256), 5 * 5 * 32)],
    ids=["Nature", "Impala"],
)
def test_initial_weights_are_uniform_within_fan_in(made, features):
    weights = dict(named(made.init(mx.random.key(7))))
    assert weights["linear.weight"].shape[1] == features
    for name, weight in weights.items():
        of = weights[name.removesuffix("bias") + "weight"] if name.endswith("bias") else weight
        bound, values = np.prod(of.shape[1:]) ** -0.5, f64(weight).ravel()
        assert 0.8 * bound < np.abs(values).max() <= bound, name
        if values.size > 1000:
            assert np.std(values) == pytest.approx(bound / 3**0.5, rel=0.1), name
    assert len({float(w.reshape(-1)[0]) for w in weights.values()}) == len(weights)


# ---- images besides other observations -----------------------------------------------------------

BESIDE = ((2, (36, 40, 3), True), (2 + 4320, (5, 7, 2), False)), 2 + 4320 + 70 + 3


def beside(parts, size, dtype: Any = np.float32):
    parts = tuple(ImageSlice(*part) for part in parts)
    return EnvSpec("e", size, np.dtype(dtype), ActionSpec((3,)), image_parts=parts)


def test_combined_encoder_equals_its_parts_by_hand():
    parts, size = BESIDE
    made = make_encoder(beside(parts, size), HIDDEN, "native", "auto")
    assert type(made) is Combined
    weights = made.init(mx.random.key(1))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, size)).astype(np.float32)
    spans = [slice(start, start + math.prod(shape)) for start, shape, _ in parts]
    for span in spans:
        x[:, span] = rng.integers(0, 256, x[:, span].shape)

    def by_hand(weights):
        found, others = [], np.ones(size, bool)
        for (_, (h, w, c), first), span, own in zip(parts, spans, weights["images"], strict=True):
            others[span] = False
            image = x[:, span]
            if first:
                image = image.reshape(-1, c, h, w).transpose(0, 2, 3, 1).reshape(4, -1)
            kind = Nature if h >= 36 else Impala
            found.append(kind((h, w, c), HIDDEN)(own, mx.array(np.ascontiguousarray(image))))
        row = mx.concatenate([*found, mx.array(x[:, others])], axis=1)
        linear = weights["linear"]
        return mx.maximum(row @ linear["weight"].T + linear["bias"], 0)

    assert_close(mx.compile(made)(weights, mx.array(x)), by_hand(weights), "features")
    gradients = mx.compile(mx.grad(lambda w, x: mx.sum(mx.square(made(w, x)))))
    expected = mx.grad(lambda w: mx.sum(mx.square(by_hand(w))))(weights)
    for (name, one), (_, other) in zip(
        named(gradients(weights, mx.array(x))), named(expected), strict=True
    ):
        assert_close(one, other, name)


def test_combined_encoder_of_bytes_equals_that_of_floats():
    spec = beside(((1, (5, 7, 2), False),), 73, np.uint8)
    made = make_encoder(spec, HIDDEN, "native", "CombinedEncoder")
    weights = made.init(mx.random.key(0))
    x = np.random.default_rng(0).integers(0, 256, (3, 73)).astype(np.uint8)
    low = tree_map(lambda w: w.astype(mx.bfloat16), weights)
    assert made(low, mx.array(x)).dtype == mx.bfloat16
    expected = made(weights, mx.array(x.astype(np.float32)))
    np.testing.assert_array_equal(np.array(made(weights, mx.array(x))), np.array(expected))


def test_encoder_that_does_not_fit_the_observations_is_refused():
    spec, whole = beside(*BESIDE), config.Config("e")
    whole.torch.encoder = "NatureEncoder"
    with pytest.raises(UserError, match=r"images among other parts\n.*CombinedEncoder, or auto"):
        configured_policy(spec, whole)
    whole.torch.encoder, whole.vec.normalize_observations = "auto", True
    with pytest.raises(UserError, match=r"images besides other.*\n.*observations 0; or"):
        configured_policy(spec, whole)
    assert type(configured_policy(replace(spec, image_parts=()), whole).encoder) is Linear
    whole.torch.encoder = "CombinedEncoder"
    with pytest.raises(UserError, match=r"needs images among the parts of a Dict or Tuple; e has"):
        configured_policy(replace(spec, image_parts=()), whole)


def test_image_too_small_for_nature_is_refused():
    with pytest.raises(UserError, match=r"36x36.*got 36x35") as error:
        Nature((36, 35, 1), HIDDEN)
    assert "ImpalaEncoder" in error.value.hint


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((36, 40, 3), Nature), ((36, 35, 3), Impala), ((8, 8, 1), Impala), ((), Linear)],
)
def test_auto_chooses_the_encoder_by_the_observations(shape, expected):
    size = math.prod(shape) if shape else 5
    spec = EnvSpec("e", size, np.dtype(np.uint8), ActionSpec((3,)), 0, shape)
    settings = config.Policy(hidden_size=8, num_layers=1)
    policy = make_policy(spec, settings, config.Torch(encoder="auto"))
    assert type(policy.encoder) is expected
