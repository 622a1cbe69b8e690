"""The fused LSTM, GRU and GELU: against float64 oracles, forward and every gradient."""

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_gpu import Compiled, recording
from kernel_oracles import close, gelu_oracle, gru_oracle, lstm_oracle, random_keep
from oracles import f64

from puffer_mlx import ops
from puffer_mlx.errors import UserError
from puffer_mlx.ops.gelu import gpu as gelu_kernels
from puffer_mlx.ops.gpu import launch
from puffer_mlx.ops.recurrence import gpu as recurrence
from puffer_mlx.policy.networks.gru import gpu as gru
from puffer_mlx.policy.networks.lstm import gpu as lstm

# T, S, H. 16 channels are a vector, 6 or 8 rows a tile, 64 channels a panel, 512 steps a part.
SHAPES = [(1, 1, 1), (1, 9, 16), (3, 1, 5), (5, 13, 33), (4, 6, 64), (2, 7, 130), (9, 70, 20)]
GELU_POINTS = np.concatenate(
    [np.linspace(-16, 16, 4001), [0.0, 1e-30, -1e-30, 1e30, -1e30, np.inf]]
).astype(np.float32)


def random(rng, *shape):
    return (rng.normal(size=shape) * 0.7).astype(np.float32)


# ---- oracles -------------------------------------------------------------------------------------


def lstm_inputs(shape, seed=0):
    """z, weight, h0, c0, keep, dh."""
    T, S, H = shape
    rng = np.random.default_rng(seed)
    weight, h0, c0 = random(rng, 4 * H, H), random(rng, S, H), random(rng, S, H)
    return random(rng, T, S, 4 * H), weight, h0, c0, random_keep(rng, T, S), random(rng, T, S, H)


def gru_inputs(shape, seed=0):
    """z, weight, bias, h0, keep, dh."""
    T, S, H = shape
    rng = np.random.default_rng(seed)
    weight, bias, h0 = random(rng, 3 * H, H), random(rng, 3 * H), random(rng, S, H)
    return random(rng, T, S, 3 * H), weight, bias, h0, random_keep(rng, T, S), random(rng, T, S, H)


CASES = {  # inputs, oracle, and the places of the inputs whose gradients the oracle returns
    "lstm": (lstm_inputs, lstm_oracle, {0: 0, 2: 1, 3: 2}),
    "gru": (gru_inputs, gru_oracle, {0: 0, 3: 2}),
}


@pytest.mark.parametrize("keep", [0.0, 1.0])
@pytest.mark.parametrize("name", CASES)
def test_oracles_against_differences(name, keep):
    """The hand-written gradients above are those of the forward passes above."""
    make, oracle, places = CASES[name]
    inputs = [f64(a) for a in make((3, 2, 2))]
    inputs[-2][1:] = keep

    def loss():
        return np.sum(oracle(*inputs)[0][0] * inputs[-1])

    _, gradients = oracle(*inputs)
    for place, gradient in places.items():
        numerical = oracles.numerical_gradient(loss, inputs[place])
        np.testing.assert_allclose(gradients[gradient], numerical, atol=1e-7)


def backward_inputs(name, inputs, saved, dh):
    """The arguments of ``NAME_backward``, of which ``saved`` is what the forward pass returned."""
    weight, *state = inputs[1], *inputs[2 if name == "lstm" else 3 :]  # h0, (c0,) keep
    *before, gates = saved
    return [gates, weight, *state, *before, dh]


def passes(name, module, inputs, saved, dh):
    """Outputs of the forward and, from ``saved``, of the backward pass of ``module``."""
    forward, backward = (getattr(module, f"{name}_{way}") for way in ("forward", "backward"))
    after = backward_inputs(name, inputs, saved, dh)
    return *forward(*map(mx.array, inputs)), *backward(*map(mx.array, after))


def rounded(forward):
    """What an oracle's forward pass returned, as float32."""
    return [a.astype(np.float32) for a in forward]


# ---- the extension -------------------------------------------------------------------------------


def in_all_threads(module, compute, expected):
    """The results of 1, 2 and 5 threads: bit-equal, and close to what is expected."""
    results = []
    for threads in (1, 2, 5):
        module.set_threads(threads)
        results.append([np.array(a) for a in compute()])
    close(results[0], expected, tolerance=1e-5)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_recurrence(extension, name, shape):
    make, oracle, _ = CASES[name]
    *inputs, dh = make(shape, seed=sum(shape))
    forward, backward = oracle(*inputs, dh)
    saved = rounded(forward)
    in_all_threads(
        extension, lambda: passes(name, extension, inputs, saved, dh), (*forward, *backward)
    )


@pytest.mark.parametrize("name", CASES)
def test_extremes(extension, name):
    """Saturated gates; and NaN, which stays in its own segment and channel until the next step."""
    make, oracle, _ = CASES[name]
    *inputs, dh = make((3, 7, 17))
    inputs[0][:2] = np.random.default_rng(0).choice([-1e4, 0, 1e4], inputs[0][:2].shape)
    forward, backward = oracle(*inputs, dh)
    saved = rounded(forward)
    close(passes(name, extension, inputs, saved, dh), (*forward, *backward), tolerance=1e-5)
    inputs[0][2, 5, 16] = np.nan
    h = np.array(passes(name, extension, inputs, saved, dh)[0])
    assert np.argwhere(np.isnan(h)).tolist() == [[2, 5, 16]]


@pytest.mark.parametrize("name", CASES)
def test_wrong_arguments(extension, name):
    """One argument too small, of another dtype or of too few dimensions."""
    make, oracle, _ = CASES[name]
    *inputs, dh = make((3, 4, 5))
    arrays = [*inputs, *rounded(oracle(*inputs, dh)[0]), dh]
    for place, right in enumerate(arrays):
        for wrong in (right[:-1], right[..., :-1], right.astype(np.float16), right[0]):
            changed = [*arrays[:place], wrong, *arrays[place + 1 :]]
            with pytest.raises(ValueError, match=name):
                passes(name, extension, changed[:5], changed[5:-1], changed[-1])


# ---- GPU kernels as C++ --------------------------------------------------------------------------

GPU_SHAPES = {  # T, S, H: segments of a block
    (1, 1, 1): 1,
    (2, 7, 9): 1,  # more blocks than chunks of inputs
    (3, 5, 33): 4,  # a block with one segment, a warp with one channel
    (2, 9, 40): 8,
    (2, 3, 300): 2,  # two channels a thread
}
KERNELS = {"lstm": lstm, "gru": gru}
GPU_CASES = [(name, shape) for name in CASES for shape in GPU_SHAPES]
# The texts of Metal and of CUDA differ in little: these shapes are enough of Metal's.
METAL_CASES = [case for case in GPU_CASES if case[1] in ((3, 5, 33), (2, 3, 300))]
PAIRS = [("metal", *case) for case in METAL_CASES] + [("cuda", *case) for case in GPU_CASES]
WORDS = {
    "lstm": "z weight_hh h0 c0 keep h c gates dh",
    "gru": "z weight_hh bias_hh h0 keep h gates dh",
}
LEFT_OUT = [("lstm", "h0 c0"), ("lstm", "keep"), ("gru", "h0"), ("gru", "keep")]
LEFT_OUT_SHAPE = 3, 5, 9


def left_out_inputs(name, left_out):
    """What forward and backward are given, by name: None for what is left out."""
    make, oracle, _ = CASES[name]
    *inputs, dh = make(LEFT_OUT_SHAPE)
    after = backward_inputs(name, inputs, rounded(oracle(*inputs, dh)[0]), dh)
    names = WORDS[name].split()
    forward = dict(zip(names[: len(inputs)], inputs, strict=True))
    kept = names[2 if name == "lstm" else 3 : len(inputs)]
    saved = [n for n in names[len(inputs) :] if n not in ("gates", "dh")]
    backward = dict(zip(["gates", "weight_hh", *kept, *saved, "dh"], after, strict=True))
    for given in (forward, backward):
        given |= dict.fromkeys(left_out.split(), None)
    return forward, backward


@pytest.fixture(scope="module", params=["metal", "cuda"])
def compiled(request, tmp_path_factory):
    """Kernels 2 i and 2 i + 1: forward and backward of cases[i], of GELU, of LEFT_OUT[i]."""
    cases = METAL_CASES if request.param == "metal" else GPU_CASES
    with recording(request.param) as recorder, pytest.MonkeyPatch.context() as patch:
        for name, shape in cases:
            patch.setattr(recurrence, "rows_of_block", lambda *_, rows=GPU_SHAPES[shape]: rows)
            make, oracle, _ = CASES[name]
            *inputs, dh = make(shape)
            after = backward_inputs(name, inputs, rounded(oracle(*inputs, dh)[0]), dh)
            recorder.record(getattr(KERNELS[name], f"{name}_forward"), *inputs)
            recorder.record(getattr(KERNELS[name], f"{name}_backward"), *after)
        recorder.record(gelu_kernels.gelu_forward, GELU_POINTS)
        recorder.record(gelu_kernels.gelu_backward, GELU_POINTS, GELU_POINTS)
        for name, left_out in LEFT_OUT:
            inputs, after = left_out_inputs(name, left_out)
            for way, given in (("forward", inputs), ("backward", after)):
                arrays = [None if array is None else mx.array(array) for array in given.values()]
                recorder.record(getattr(KERNELS[name], f"{name}_{way}"), *arrays)
    found = Compiled(recorder, tmp_path_factory.mktemp("kernels"))
    found.cases = cases  # type: ignore
    return found


@pytest.mark.parametrize(("compiled", "name", "shape"), PAIRS, indirect=["compiled"])
def test_recurrence_on_a_gpu(compiled, name, shape):
    number = 2 * compiled.cases.index((name, shape))
    make, oracle, _ = CASES[name]
    *inputs, dh = make(shape, seed=7)
    forward, backward = oracle(*inputs, dh)
    arrays = dict(zip(WORDS[name].split(), [*inputs, *rounded(forward), dh], strict=True))
    found = run_both(compiled, number, arrays)
    for ours, expected in zip(found, (forward, backward), strict=True):
        close(ours, expected, tolerance=1e-5)


def run_both(compiled, number, arrays):
    """The outputs of kernels `number` and `number + 1`, forward and backward, of arrays by name."""
    transposed = {**arrays, "weight_hh": arrays["weight_hh"].T.copy()}  # as forward gets it
    for k, given in ((number, transposed), (number + 1, arrays)):
        names = compiled.calls[k]["input_names"]
        yield compiled.run(k, *(given[word] for word in names if word != "sizes"))


@pytest.mark.parametrize(("name", "left_out"), LEFT_OUT)
def test_nothing_stands_for_zeros_and_ones(compiled, name, left_out):
    """A first state, or `keep`, that isn't there: one number that is read by all."""
    number = 2 * len(compiled.cases) + 2 + 2 * LEFT_OUT.index((name, left_out))
    make, oracle, _ = CASES[name]
    *inputs, dh = make(LEFT_OUT_SHAPE)
    value = float(left_out == "keep")
    given = dict(zip(WORDS[name].split(), inputs, strict=False))
    given |= {word: np.full_like(given[word], value) for word in given if word in left_out.split()}
    forward, backward = oracle(*given.values(), dh)
    arrays = dict(zip(WORDS[name].split(), [*given.values(), *rounded(forward), dh], strict=True))
    arrays |= {word: np.full(8, value, np.float32) for word in left_out.split()}
    ours, gradients = run_both(compiled, number, arrays)
    close(ours, forward, tolerance=1e-5)
    wanted = len(backward) if left_out == "keep" else len(backward) - len(left_out.split())
    close(gradients[:wanted], backward[:wanted], tolerance=1e-5)
    assert all(gradient.shape == (1,) for gradient in gradients[wanted:])  # nobody needs them


def test_gelu_on_a_gpu(compiled):
    number = 2 * len(compiled.cases)
    check_gelu(
        GELU_POINTS,
        compiled.run(number, GELU_POINTS)[0],
        compiled.run(number + 1, GELU_POINTS, np.ones_like(GELU_POINTS))[0],
    )


def test_rows_of_a_block(monkeypatch):
    monkeypatch.setattr(launch, "backend", lambda: "metal")
    assert recurrence.rows_of_block(4096, 128, 4) == 4
    monkeypatch.setattr(launch, "backend", lambda: "cuda")
    assert recurrence.rows_of_block(4096, 128, 4) == 8
    assert recurrence.rows_of_block(4096, 512, 4) == 4  # 32 KiB
    assert recurrence.rows_of_block(512, 128, 4) == 4  # 128 blocks
    assert recurrence.rows_of_block(1, 2048, 4) == 1
    with pytest.raises(UserError, match=r"2049 wide") as error:
        recurrence.rows_of_block(1, 2049, 4)
    assert "2048 at most" in str(error.value.hint)
    assert recurrence.rows_of_block(1, 2730, 3) == 1
    with pytest.raises(UserError, match=r"2731 wide") as error:
        recurrence.rows_of_block(1, 2731, 3)
    assert "2730 at most" in str(error.value.hint)


# ---- GELU ----------------------------------------------------------------------------------------


def check_gelu(points, y, slope):
    expected = gelu_oracle(points)
    np.testing.assert_allclose(np.array(y), expected[0], rtol=2e-7, atol=5e-7)
    np.testing.assert_allclose(np.array(slope), expected[1], rtol=0, atol=5e-7)


def test_gelu(path):
    points = GELU_POINTS if path == "fused" else GELU_POINTS[:-1]  # at infinity: infinity times 0
    x = mx.array(points)
    check_gelu(points, ops.gelu(x), mx.grad(lambda a: mx.sum(ops.gelu(a)))(x))


def test_gelu_of_any_shape(extension):
    """Bit-equal for any number of threads, and whatever memory it may take over."""
    x = np.random.default_rng(0).normal(size=(3, 211, 70)).astype(np.float32)
    results = []
    for threads in (1, 2, 5):
        extension.set_threads(threads)
        given = mx.array(x)
        results.append(np.array(extension.gelu_forward(given)))
        results.append(np.array(extension.gelu_forward(given + 0)))  # needed no longer
        np.testing.assert_array_equal(np.array(given), x)
    np.testing.assert_allclose(results[0], gelu_oracle(x.ravel())[0].reshape(x.shape), atol=5e-7)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    with pytest.raises(ValueError, match="gelu"):
        extension.gelu_backward(given, given[0])
    with pytest.raises(ValueError, match="gelu"):
        extension.gelu_forward(given.astype(mx.float16))
