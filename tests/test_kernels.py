"""The fused operations: GPU kernels as C++, run thread by thread, and the CPU extension.

The Metal text is the source that MLX generates, which `mx.export_function` records on any machine;
the CUDA text is `kernels.py`'s own, its grid rounded up to whole blocks. Both get the arguments
that `kernels.py`'s functions give. This covers syntax, indexing, bounds and arithmetic, not address
spaces, timing or a GPU's own exp.
"""

import contextlib
import ctypes
import os
import re
import subprocess
import tempfile
from typing import Any

import mlx.core as mx
import numpy as np
import oracles
import pytest
from oracles import f64

from puffer_mlx import cpu_ops, kernels, ops

SHAPES = [(1, 1, 3), (5, 3, 100), (4, 2, 128), (3, 7, 111)]  # T, S, H: 3, 300, 256 and 777 threads
SPAN = 4096  # numbers behind each array; nothing but a missing bounds check gets there


def layer(shape, seed=0):
    """u, x, first, dout."""
    T, S, H = shape
    rng = np.random.default_rng(seed)
    sizes = (T, S, 3 * H), (T, S, H), (S, H), (T, S, H)
    u, x, first, dout = (rng.normal(size=size).astype(np.float32) * 2 for size in sizes)
    return u, x, np.abs(first), dout


def series(shape, seed=0):
    """delta, decay."""
    return np.random.default_rng(seed).normal(size=(2, *shape)).astype(np.float32)


def mingru_oracle(u, x, first, dout):
    """Outputs and states, and all gradients, in float64."""
    T, _, H = x.shape
    u, x, first, dout = map(f64, (u, x, first, dout))
    hidden, z, q = u[..., :H], oracles.sigmoid(u[..., H : 2 * H]), oracles.sigmoid(u[..., 2 * H :])
    g = np.where(hidden >= 0, hidden + 0.5, oracles.sigmoid(hidden))
    slope = np.where(hidden >= 0, 1, g * (1 - g))
    states = np.zeros((T + 1, *first.shape))  # states[t] is the one before step t
    states[0] = first
    for t in range(T):
        states[t + 1] = (1 - z[t]) * states[t] + z[t] * g[t]
    out = q * states[1:] + (1 - q) * x
    du, carry = np.zeros_like(u), np.zeros_like(first)
    for t in reversed(range(T)):
        ds = carry + dout[t] * q[t]
        du[t, :, :H] = ds * z[t] * slope[t]
        du[t, :, H : 2 * H] = ds * (g[t] - states[t]) * z[t] * (1 - z[t])
        du[t, :, 2 * H :] = dout[t] * (states[t + 1] - x[t]) * q[t] * (1 - q[t])
        carry = ds * (1 - z[t])
    return (out, states[1:]), (du, dout * (1 - q), carry)


def discount_oracle(delta, decay):
    adv = np.zeros((len(delta) + 1, delta.shape[1]))
    for t in reversed(range(len(delta))):
        adv[t] = f64(delta)[t] + f64(decay)[t] * adv[t + 1]
    return adv


def close(found, expected, tolerance=4e-6):
    for ours, oracle in zip(found, expected, strict=True):
        assert np.shape(ours) == oracle.shape
        scale = max(1.0, np.abs(oracle).max())
        np.testing.assert_allclose(np.array(ours), oracle, rtol=0, atol=tolerance * scale)


# ---- kernels as C++ ------------------------------------------------------------------------------

SHIM = """
#include <cmath>
using std::exp;
typedef unsigned int uint;
struct uint3 { uint x, y, z; };
#define device
#define constant
#define thread
static uint3 blockIdx, blockDim, threadIdx;
"""
CUDA_KERNEL = """
static void {name}({parameters}) {{
{constants}
{source}
}}
extern "C" void {name}_run(float** p, uint threads, uint block) {{
  blockDim.x = block;
  for (blockIdx.x = 0; blockIdx.x * block < threads; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) {name}({pointers});
}}
"""
METAL_KERNEL = """
{source}
extern "C" void {name}_run(float** p, uint threads, uint block) {{
  for (uint i = 0; i < threads; ++i) {call}({pointers}, uint3{{i, 0, 0}});
}}
"""


class Recorder:
    """Stands in for `mx.fast.metal_kernel` or `cuda_kernel`: turns calls into C++ functions."""

    def __init__(self, backend: str) -> None:
        self.backend, self.text, self.calls = backend, SHIM, []
        self.real = getattr(mx.fast, backend + "_kernel")

    def __call__(self, **made: Any):
        def call(**given: Any):
            self.calls.append({**made, **given})
            if self.backend == "metal":
                return self.real(**made)(**given, verbose=True)
            shapes = zip(given["output_shapes"], given["output_dtypes"], strict=True)
            return [mx.zeros(shape, dtype) for shape, dtype in shapes]

        return call

    def record(self, function, *samples: np.ndarray) -> None:
        """Append the C++ function `k<number>_run` for a kernel called with these inputs."""
        arguments = [mx.array(sample) for sample in samples]
        printed = ""
        if self.backend == "metal":
            with printed_by_c() as output, tempfile.TemporaryDirectory() as folder:
                mx.export_function(f"{folder}/f.mlxfn", function, *arguments)
                printed = output
        else:
            function(*arguments)
        call = self.calls[-1]
        name, inputs, outputs = f"k{len(self.calls) - 1}", call["input_names"], call["output_names"]
        pointers = ", ".join(f"p[{i}]" for i in range(len(inputs) + len(outputs)))
        if self.backend == "metal":
            source = re.sub(r"\[\[.*?\]\]", "", "".join(printed).split("```")[1])
            source, _, last = source.rpartition("template ")
            instance = re.search(r"(\w+<[^<>]*>);", last)
            assert instance is not None
            self.text += METAL_KERNEL.format(
                name=name, source=source, call=instance[1], pointers=pointers
            )
        else:
            parameters = [f"const float* {p}" for p in inputs] + [f"float* {p}" for p in outputs]
            self.text += CUDA_KERNEL.format(
                name=name,
                parameters=", ".join(parameters),
                constants="".join(f"constexpr int {k} = {v};\n" for k, v in call["template"]),
                source=call["source"],
                pointers=pointers,
            )


@contextlib.contextmanager
def printed_by_c():
    """A list that gets what is printed to the file descriptor of standard output, also by C++."""
    output: list[str] = []
    with tempfile.TemporaryFile("w+") as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield output
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            output.append(file.read())


class Compiled:
    """A recorder's kernels, compiled; `run` calls one of them with NumPy arrays."""

    def __init__(self, recorder: Recorder, folder) -> None:
        self.calls = recorder.calls
        source, library = folder / "kernels.cpp", folder / "kernels.so"
        source.write_text(recorder.text)
        command = ["c++", "-std=c++17", "-O1", "-fPIC", "-shared", "-o", library, source]
        subprocess.run(command, check=True)
        self.library = ctypes.CDLL(str(library))

    def run(self, number: int, *inputs: np.ndarray) -> list[np.ndarray]:
        call = self.calls[number]
        assert [i.shape for i in inputs] == [i.shape for i in call["inputs"]]
        assert call["grid"][1:] == call["threadgroup"][1:] == (1, 1)
        outputs = [np.full(np.prod(s) + SPAN, np.nan, np.float32) for s in call["output_shapes"]]
        floats = ctypes.POINTER(ctypes.c_float)
        padded = [np.concatenate([i.ravel(), np.zeros(SPAN, np.float32)]) for i in inputs]
        pointers = [a.ctypes.data_as(floats) for a in (*padded, *outputs)]
        run = getattr(self.library, f"k{number}_run")
        run((floats * len(pointers))(*pointers), call["grid"][0], call["threadgroup"][0])
        assert all(np.isnan(o[-SPAN:]).all() for o in outputs), "a thread wrote behind an output"
        shapes = call["output_shapes"]
        return [o[:-SPAN].reshape(shape) for o, shape in zip(outputs, shapes, strict=True)]


@pytest.fixture(scope="module", params=["metal", "cuda"])
def compiled(request, tmp_path_factory):
    """Kernels 0 .. 3: forward for each of SHAPES, 4 .. 7: backward, 8 .. 11: discount."""
    recorder = Recorder(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx.fast, request.param + "_kernel", recorder)
        patch.setattr(kernels, "backend", lambda: request.param)
        kernels._kernel.cache_clear()
        for shape in SHAPES:
            recorder.record(kernels.mingru_forward, *layer(shape)[:3])
        for shape in SHAPES:
            u, x, first, dout = layer(shape)
            recorder.record(kernels.mingru_backward, u, x, first, x, dout)
        for T, S, H in SHAPES:
            recorder.record(kernels.discount, *series((T, S * H)))
    kernels._kernel.cache_clear()
    return Compiled(recorder, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_gpu_kernels(compiled, number):
    u, x, first, dout = layer(SHAPES[number], seed=number)
    forward, backward = mingru_oracle(u, x, first, dout)
    states = forward[1].astype(np.float32)
    T, S, H = SHAPES[number]
    rows = series((T, S * H), seed=number)
    found = (
        compiled.run(number, u, x, first),
        compiled.run(4 + number, u, x, first, states, dout),
        compiled.run(8 + number, *rows),
    )
    for ours, expected in zip(found, (forward, backward, [discount_oracle(*rows)]), strict=True):
        close(ours, expected)

    extension = cpu_ops.load()
    if extension is not None:
        by_cpu = (
            extension.mingru_forward(*map(mx.array, (u, x, first))),
            extension.mingru_backward(*map(mx.array, (u, x, first, states, dout))),
            [extension.discount(*map(mx.array, rows))],
        )
        for ours, other in zip(found, by_cpu, strict=True):
            close(ours, [np.array(o) for o in other])


# ---- the CPU extension ---------------------------------------------------------------------------


@pytest.fixture
def extension():
    module = cpu_ops.load()
    if module is None:
        pytest.skip("the extension can't be built here")
    yield module
    module.set_threads(cpu_ops.threads())


@pytest.mark.parametrize("shape", [*SHAPES, (2, 400, 5)])
def test_extension(extension, shape):
    """Against float64, and bit-identical for any number of threads."""
    u, x, first, dout = layer(shape)
    T, S, H = shape
    rows = series((T, S * H))
    forward, backward = mingru_oracle(u, x, first, dout)
    states = mx.array(forward[1].astype(np.float32))
    results = []
    for threads in (1, 2, 5):
        extension.set_threads(threads)
        out = extension.mingru_forward(*map(mx.array, (u, x, first)))
        gradient = extension.mingru_backward(*map(mx.array, (u, x, first)), states, mx.array(dout))
        adv = extension.discount(*map(mx.array, rows))
        results.append([np.array(a) for a in (*out, *gradient, adv)])
    close(results[0], [*forward, *backward, discount_oracle(*rows)])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("dtype", "tail"),
    [
        (np.uint8, (118,)),
        (np.uint8, (3, 7)),
        (np.float32, ()),
        (np.float32, (5,)),
        (np.int16, (3,)),
    ],
)
def test_take_rows(extension, monkeypatch, dtype, tail, threads):
    extension.set_threads(threads)
    rng = np.random.default_rng(threads)
    source = rng.integers(0, 256, (6, 9, *tail)).astype(dtype)
    rows = rng.integers(0, 9, 333).astype(np.int32)
    found = ops.take_rows(mx.array(source), mx.array(rows), 5)  # the carry row isn't taken
    np.testing.assert_array_equal(np.array(found), source[:5, rows])
    assert np.array(found).dtype == dtype
    strided = mx.array(source.swapaxes(0, 1)).swapaxes(0, 1)
    np.testing.assert_array_equal(
        np.array(ops.take_rows(strided, mx.array(rows), 5)), source[:5, rows]
    )
    monkeypatch.setattr(cpu_ops, "load", lambda: None)
    pure = ops.take_rows(mx.array(source), mx.array(rows), 5)
    np.testing.assert_array_equal(np.array(pure), source[:5, rows])


def test_rows_outside_never_read_other_memory(extension):
    source = mx.arange(12).reshape(2, 6)
    found = extension.take_rows(source, mx.array([-5, 6, 99]), 2)
    np.testing.assert_array_equal(np.array(found), [[0, 5, 5], [6, 11, 11]])


def test_wrong_arguments(extension):
    T, S, H = 3, 4, 5
    u, x, first, dout = map(mx.array, layer((T, S, H)))
    rows = mx.zeros(2, mx.int32)
    wrong = [
        lambda: extension.mingru_forward(u[..., :-1], x, first),
        lambda: extension.mingru_forward(u, x, first[:-1]),
        lambda: extension.mingru_forward(u[:-1], x, first),
        lambda: extension.mingru_forward(u, x[0], first),
        lambda: extension.mingru_forward(u.astype(mx.float16), x, first),
        lambda: extension.mingru_backward(u, x, first, x[:-1], dout),
        lambda: extension.mingru_backward(u, x, first, x, dout[:, :-1]),
        lambda: extension.mingru_backward(u, x, first, x, dout.astype(mx.float16)),
        lambda: extension.discount(x[0], x[0, :-1]),
        lambda: extension.discount(x, x),
        lambda: extension.discount(x[0].astype(mx.int32), x[0]),
        lambda: extension.take_rows(x, rows, T + 1),
        lambda: extension.take_rows(x, rows, 0),
        lambda: extension.take_rows(x, rows.astype(mx.int64), T),
        lambda: extension.take_rows(x, rows[None], T),
        lambda: extension.take_rows(x[0, 0], rows, 1),
    ]
    for call in wrong:
        with pytest.raises(ValueError):
            call()


def extremes():
    """u, x, first, dout with logits of +-1e4 and exact zeros."""
    u, x, first, dout = layer(SHAPES[1])
    u[:2] = np.random.default_rng(0).choice([-1e4, 0, 1e4], u[:2].shape)
    return u, x, first, dout


def check_extremes(forward, backward):
    """Finite and right; at exact zero the gradient is the positive branch's."""
    u, x, first, dout = extremes()
    expected = mingru_oracle(u, x, first, dout)
    states = expected[0][1].astype(np.float32)
    found = (*forward(u, x, first), *backward(u, x, first, states, dout))
    for ours, oracle in zip(found, (*expected[0], *expected[1]), strict=True):
        assert np.isfinite(np.array(ours)).all()
        np.testing.assert_allclose(np.array(ours), oracle, rtol=1e-4, atol=2e-5)


def test_extremes_on_a_gpu(compiled):
    check_extremes(lambda *a: compiled.run(1, *a), lambda *a: compiled.run(5, *a))


def test_extremes_in_the_extension(extension):
    check_extremes(
        lambda *a: extension.mingru_forward(*map(mx.array, a)),
        lambda *a: extension.mingru_backward(*map(mx.array, a)),
    )
