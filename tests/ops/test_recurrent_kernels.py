"""The fused MinGRU, LSTM, GRU and GELU: against float64 oracles, forward and every gradient."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_run import alternate, emulated_gpu
from kernel_oracles import (
    assert_close,
    gelu_oracle,
    gru_oracle,
    lstm_oracle,
    mingru_oracle,
    random_not_done,
)
from oracles import f64

from puffer_mlx.errors import UserError
from puffer_mlx.ops import recurrence
from puffer_mlx.ops.gelu import gelu
from puffer_mlx.ops.gpu import launch
from puffer_mlx.policy.networks import gru, lstm, mingru

# T, S, H. 16 channels are a vector, 6 or 8 rows a tile, 64 channels a panel, 512 steps a part.
SHAPES = [(5, 13, 33), (2, 7, 130), (9, 70, 20)]
GELU_POINTS = np.concatenate(
    [np.linspace(-16, 16, 4001), [0.0, 1e-30, -1e-30, 1e30, -1e30, np.inf]]
).astype(np.float32)


def random(rng, *shape):
    return (rng.normal(size=shape) * 0.7).astype(np.float32)


# ---- oracles -------------------------------------------------------------------------------------


class Recurrence(NamedTuple):
    """A recurrent network's kernels and float64 oracle, with the arrays' shapes and names."""

    oracle: Callable[..., tuple]  # of inputs and the gradient: outputs, and gradients
    module: Any  # its kernels
    inputs: dict[str, str]
    outputs: str
    backward: str
    places: dict[int, int]  # of the inputs, those that have a gradient, and which it is

    def drawn(self, shape, seed=0) -> dict[str, np.ndarray]:
        """Return random inputs of a recurrence and, last, the gradient by its first output."""
        rng, sizes = np.random.default_rng(seed), dict(zip("TSH", shape, strict=True))
        arrays = {}
        for name, letters in self.inputs.items():
            size = [int(w[0]) * sizes[w[1]] if w[1:] else sizes[w] for w in letters.split()]
            arrays[name] = random(rng, *size)
        arrays["not_done"] = random_not_done(rng, *shape[:2])
        return {**arrays, self.backward.split()[-1]: random(rng, *shape)}

    def saved(self, arrays) -> dict[str, np.ndarray]:
        """Return a recurrence's inputs and forward outputs, by the oracle, as float32."""
        forward, _ = self.oracle(*arrays.values())
        outputs = zip(self.outputs.split(), rounded(forward), strict=True)
        return {**arrays, **dict(outputs)}


STATE = "S H"
CASES = {
    "mingru": Recurrence(
        mingru_oracle,
        mingru,
        {"u": "T S 3H", "x": "T S H", "first": STATE},
        "out states",
        "u x first not_done states dout",
        {0: 0, 2: 2},
    ),
    "lstm": Recurrence(
        lstm_oracle,
        lstm,
        {"z": "T S 4H", "weight_hh": "4H H", "h0": STATE, "c0": STATE},
        "h c gates",
        "gates weight_hh h0 c0 not_done h c dh",
        {0: 0, 2: 1, 3: 2},
    ),
    "gru": Recurrence(
        gru_oracle,
        gru,
        {"z": "T S 3H", "weight_hh": "3H H", "bias_hh": "3H", "h0": STATE},
        "h gates",
        "gates weight_hh h0 not_done h dh",
        {0: 0, 3: 2},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_oracle_equal_numerical_differences(name):
    case = CASES[name]
    inputs = [f64(a) for a in case.drawn((3, 2, 2)).values()]
    inputs[-2][1:] = [[0, 1], [1, 0]]

    def loss():
        return np.sum(case.oracle(*inputs)[0][0] * inputs[-1])

    _, gradients = case.oracle(*inputs)
    for place, gradient in case.places.items():
        numerical = oracles.numerical_gradient(loss, inputs[place])
        np.testing.assert_allclose(gradients[gradient], numerical, atol=1e-7)


def passes(name, module, arrays):
    """Run a recurrent network's forward and backward kernels; return all outputs."""
    forward, backward = (getattr(module, f"{name}_{way}") for way in ("forward", "backward"))
    case = CASES[name]
    words = [*case.inputs, "not_done"], case.backward.split()
    given = (
        [None if arrays[word] is None else mx.array(arrays[word]) for word in each]
        for each in words
    )
    return *forward(*next(given)), *backward(*next(given))


def rounded(forward):
    """Round a list of arrays to float32."""
    return [a.astype(np.float32) for a in forward]


# ---- the extension -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape"), [*zip(CASES, SHAPES, strict=True), *zip(CASES, SHAPES[1:], strict=False)]
)
def test_recurrence_equals_numpy_for_any_number_of_threads(extension, name, shape):
    arrays = CASES[name].drawn(shape, seed=sum(shape))
    forward, backward = CASES[name].oracle(*arrays.values())
    results = []
    for threads in (1, 2, 5):
        extension.set_threads(threads)
        found = passes(name, extension, CASES[name].saved(arrays))
        results.append([np.array(a) for a in found])
    assert_close(results[0], (*forward, *backward), tolerance=1e-5)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", CASES)
def test_recurrence_of_saturated_gates_equals_numpy_and_nan_stays_in_its_channel(extension, name):
    arrays = CASES[name].drawn((3, 7, 17))
    gates = next(iter(arrays.values()))
    gates[:2] = np.random.default_rng(0).choice([-1e4, 0, 1e4], gates[:2].shape)
    forward, backward = CASES[name].oracle(*arrays.values())
    saved = CASES[name].saved(arrays)
    assert_close(passes(name, extension, saved), (*forward, *backward), tolerance=1e-5)
    gates[2, 5, 16] = np.nan
    h = np.array(passes(name, extension, {**saved, **arrays})[0])
    assert np.argwhere(np.isnan(h)).tolist() == [[2, 5, 16]]


@pytest.mark.parametrize("name", CASES)
def test_extension_refuses_wrong_arguments(extension, name):
    arrays = CASES[name].saved(CASES[name].drawn((3, 4, 5)))
    word = CASES[name].backward.split()[0]
    with pytest.raises(ValueError, match=name):
        passes(name, extension, {**arrays, word: arrays[word][..., :-1]})


# ---- GPU kernels as C++ --------------------------------------------------------------------------

GPU_CASES = [  # network, T, S, H, segments of a block
    ("lstm", (1, 1, 1), 1),
    ("gru", (2, 7, 9), 1),  # more blocks than chunks of inputs
    ("lstm", (3, 5, 33), 4),  # a block with one segment, a warp with one channel
    *(("gru", (2, 9, 40), 8), ("lstm", (2, 9, 40), 8)),
    *(("gru", (2, 3, 300), 2), ("lstm", (2, 3, 300), 2)),  # two channels a thread
    *(("mingru", (1, 1, 3), 1), ("mingru", (19, 2, 5), 1), ("mingru", (8, 3, 100), 1)),
]
LEFT_OUT = [("mingru", "first"), ("lstm", "h0 c0"), ("gru", "h0")]
LEFT_OUT += [(name, "not_done") for name in CASES]
SMALL = 3, 5, 9
LOW = {"metal": mx.bfloat16, "cuda": mx.float16}
STATES = {"first", "not_done", "states", "h0", "c0", "h", "c", "dh"}  # float32 in all precisions


def passes_on_gpu(backend, name, arrays):
    with emulated_gpu(backend=backend, checked=True):
        return passes(name, CASES[name].module, arrays)


@pytest.mark.processes
@pytest.mark.parametrize(("backend", "name", "shape", "rows"), alternate(GPU_CASES))
def test_recurrence_on_gpu_equals_numpy(monkeypatch, backend, name, shape, rows):
    monkeypatch.setattr(recurrence, "rows_per_block", lambda *_: rows)
    arrays = CASES[name].drawn(shape, seed=7)
    forward, backward = CASES[name].oracle(*arrays.values())
    found = passes_on_gpu(backend, name, CASES[name].saved(arrays))
    assert_close(found, (*forward, *backward), tolerance=1e-5)


@pytest.mark.processes
@pytest.mark.parametrize(("backend", "name"), alternate((name,) for name in CASES))
def test_16_bit_kernels_round_the_results_of_float32_kernels(backend, name):
    low = LOW[backend]
    arrays = {
        word: mx.array(array).astype(mx.float32 if word in STATES else low)
        for word, array in CASES[name].saved(CASES[name].drawn(SMALL)).items()
    }
    found = passes_on_gpu(backend, name, arrays)
    wide = {word: array.astype(mx.float32) for word, array in arrays.items()}
    assert low in {array.dtype for array in found}
    for ours, exact in zip(found, passes_on_gpu(backend, name, wide), strict=True):
        assert mx.array_equal(ours, exact.astype(ours.dtype))


@pytest.mark.processes
@pytest.mark.parametrize(("backend", "name", "left_out"), alternate(LEFT_OUT))
def test_missing_state_is_zero_and_missing_not_done_is_one(backend, name, left_out):
    value, words = float(left_out == "not_done"), left_out.split()
    given = CASES[name].drawn(SMALL)
    given |= {word: np.full_like(given[word], value) for word in words}
    forward, backward = CASES[name].oracle(*given.values())
    arrays = {**CASES[name].saved(given), **dict.fromkeys(words)}
    found = passes_on_gpu(backend, name, arrays)
    wanted = len(found) - (0 if left_out == "not_done" else len(words))
    assert_close(found[:wanted], [*forward, *backward][:wanted], tolerance=1e-5)
    assert all(gradient.shape == (1,) for gradient in found[wanted:])  # unused


@pytest.mark.parametrize(("most", "gates"), [(2048, 4), (2730, 3)])
def test_layer_too_wide_for_shared_memory_is_refused(monkeypatch, most, gates):
    monkeypatch.setattr(launch, "kernel_backend", lambda: "cuda")
    assert recurrence.rows_per_block(1, most, gates) == 1
    with pytest.raises(UserError, match=f"{most + 1} wide") as error:
        recurrence.rows_per_block(1, most + 1, gates)
    assert f"{most} at most" in str(error.value.hint)


# ---- GELU ----------------------------------------------------------------------------------------


def test_gelu_and_its_gradient_equal_numpy(path):
    points = GELU_POINTS if path == "fused" else GELU_POINTS[:-1]  # at infinity: infinity times 0
    x = mx.array(points)
    slope = mx.grad(lambda a: mx.sum(gelu(a)))(x)
    expected = gelu_oracle(points)
    np.testing.assert_allclose(np.array(gelu(x)), expected[0], rtol=2e-7, atol=5e-7)
    np.testing.assert_allclose(np.array(slope), expected[1], rtol=0, atol=5e-7)


def test_gelu_does_not_depend_on_threads_or_memory(extension):
    x = np.random.default_rng(0).normal(size=(3, 211, 70)).astype(np.float32)
    results, array = [], mx.array(x)
    for threads in (1, 5):
        extension.set_threads(threads)
        for argument in (array, array + 0):  # the latter is needed no longer
            results.append(np.array(extension.gelu_forward(argument)))
        np.testing.assert_array_equal(np.array(array), x)
    for each in results[1:]:
        np.testing.assert_array_equal(results[0], each)
