"""GPU kernels without a GPU: their source compiled as C++, a block's threads in turns.

The Metal text is the source that MLX generates, which `mx.export_function` records on any machine;
the CUDA text is this package's own, its grid rounded up to whole blocks. Both get the arguments
that are given to MLX. This covers syntax, indexing, bounds, barriers and arithmetic,
not address spaces, timing or a GPU's own exp. The 16-bit types are stand-ins that allow no more
conversions than a GPU's: Metal's half is a plain number, its bfloat is made of a float only by a
cast; CUDA's two convert both ways, and so are ambiguous where a float could be meant as well.
"""

import contextlib
import ctypes
import functools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from puffer_mlx.ops.gpu import launch, nvrtc
from puffer_mlx.system.compiler import compile_shared

FLAGS = ["-std=c++20", "-O1"]
LOW = mx.float16, mx.bfloat16  # float32 in NumPy
SPAN = 4096  # numbers behind each array; nothing but a missing bounds check gets there

C = Path(__file__).parent / "c"
SHIM = (
    (C / "blocks.h").read_text()
    + """
#define device
#define constant
#define thread
#define threadgroup static
#define threadgroup_barrier(flags) meet()
#define __device__
#define __shared__ static thread_local
#define __syncthreads() meet()
#define fmaf(a, b, c) ((a) * (b) + (c))  // in software it takes long
#define fma(a, b, c) ((a) * (b) + (c))
static uint3 blockDim;
static thread_local uint3 blockIdx, threadIdx;
static uint16_t round_to_bfloat(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return 0x7fc0;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest, ties to even
}
static float widen(uint16_t bits) { return std::bit_cast<float>((uint32_t)bits << 16); }
typedef _Float16 float16_t;
struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  explicit bfloat16_t(float x) : bits(round_to_bfloat(x)) {}
  operator float() const { return widen(bits); }
};
struct __half {
  _Float16 value;
  __half() = default;
  __half(float x) : value((_Float16)x) {}
  operator float() const { return (float)value; }
};
struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float x) : bits(round_to_bfloat(x)) {}
  operator float() const { return widen(bits); }
};
"""
)
COMMON_TYPES = {mx.float32: "float", mx.int32: "int", mx.uint8: "uint8_t"}
CUDA_TYPES = {**COMMON_TYPES, mx.float16: "__half", mx.bfloat16: "__nv_bfloat16"}
METAL_TYPES = {**COMMON_TYPES, mx.float16: "float16_t", mx.bfloat16: "bfloat16_t"}
NUMPY_TYPES = {mx.int32: np.int32, mx.uint8: np.uint8, mx.float16: np.float16}  # else float32
CUDA_KERNEL = """
namespace {name} {{
{header}
static void kernel({parameters}) {{
{constants}
{source}
}}
extern "C" int {name}_run(void** p, uint threads, uint block, uint turn) {{
  blockDim.x = block;
  return run_blocks((threads + block - 1) / block * block, block, turn, {cluster}, [=](Place at) {{
    blockIdx = at.block, threadIdx = at.me;
    kernel({pointers});
  }});
}}
}}
"""
METAL_KERNEL = """
namespace {name} {{
{source}
extern "C" int {name}_run(void** p, uint threads, uint block, uint turn) {{
  return run_blocks(threads, block, turn, 1, [=](Place at) {{ {call}({pointers}, {places}); }});
}}
}}
"""
MEETING = "(blocks) __syncthreads();", "(blocks) if ((blocks) > 1) meet_cluster(); else meet();"
PLACES = {  # Metal's names
    "thread_position_in_grid": "at.grid",
    "threadgroup_position_in_grid": "at.block",
    "thread_position_in_threadgroup": "at.me",
}


class Recorder:
    """Stands in for `mx.fast.metal_kernel` or `cuda_kernel`: turns calls into C++ functions."""

    def __init__(self, backend: str) -> None:
        self.backend, self.text, self.calls = backend, SHIM, []
        self._numbers: dict[str, int] = {}  # of texts that are there
        self.real = getattr(mx.fast, backend + "_kernel")

    def __call__(self, **made: Any):
        def call(**given: Any):
            self.calls.append({**made, **given})
            if self.backend == "metal":
                return self.real(**made)(**given, verbose=True)
            shapes = zip(given["output_shapes"], given["output_dtypes"], strict=True)
            return [mx.zeros(shape, dtype) for shape, dtype in shapes]

        return call

    def record(self, function: Callable[..., Any], *samples: np.ndarray | mx.array | None) -> int:
        """Append the C++ function `k<number>_run` for a kernel called with these inputs.

        Returns:
            its number.
        """
        return self.record_all(function, *samples)[-1]

    def record_all(self, function: Callable[..., Any], *samples: Any) -> list[int]:
        """Append what is not yet there of the kernels that are called with these inputs.

        Returns:
            their numbers, call by call: for ``Compiled.play``.
        """
        first = len(self.calls)
        arguments = [mx.array(sample) for sample in samples if sample is not None]

        def given_none(*arguments: mx.array) -> Any:
            given = iter(arguments)
            return function(*(None if sample is None else next(given) for sample in samples))

        printed = [""]
        if self.backend == "metal":
            with printed_by_c() as printed, tempfile.TemporaryDirectory() as folder:
                mx.export_function(f"{folder}/f.mlxfn", given_none, *arguments)
        else:
            given_none(*arguments)
        sources = "".join(printed).split("```")[1::2] or [""] * len(self.calls[first:])
        write = self._metal if self.backend == "metal" else self._cuda
        for call, source in zip(self.calls[first:], sources, strict=True):
            same = write("same", call, source)
            if same not in self._numbers:
                self._numbers[same] = len(self._numbers)
                self.text += write(f"k{self._numbers[same]}", call, source)
            call["number"] = self._numbers[same]
        return [*range(first, len(self.calls))]

    def _metal(self, name: str, call: dict[str, Any], printed: str) -> str:
        source, _, last = printed.rpartition("template [[host_name(")
        if source:  # of a template, MLX says at the end what it is made for
            instance = re.search(r"(\w+<[^<>]*>);", last)
        else:
            source, instance = last, re.search(r"\[\[kernel\]\] void (\w+)\(", last)
        assert instance is not None
        source = source.replace("#define IN_SHARED threadgroup", "#define IN_SHARED")
        return METAL_KERNEL.format(
            name=name,
            source=re.sub(r"\[\[.*?\]\]", "", source),
            call=instance[1],
            pointers=_pointers(call, METAL_TYPES),
            places=", ".join(PLACES[place] for place in re.findall(r"uint3 (\w+) \[\[", source)),
        )

    def _cuda(self, name: str, call: dict[str, Any], _: str) -> str:
        types = [CUDA_TYPES[dtype] + "*" for dtype in _dtypes(call)]
        names = [*(f"const {name}" for name in call["input_names"]), *call["output_names"]]
        return CUDA_KERNEL.format(
            name=name,
            header=call["header"].replace(*MEETING),
            parameters=", ".join(f"{t} {name}" for t, name in zip(types, names, strict=True)),
            constants="".join(map(_constant, call["template"])),
            cluster=dict(call["template"]).get("CLUSTER", 1),
            source=call["source"],
            pointers=_pointers(call, CUDA_TYPES),
        )


def _dtypes(call: dict[str, Any]) -> list[mx.Dtype]:
    """Of a kernel's inputs and outputs."""
    return [*(a.dtype for a in call["inputs"]), *call["output_dtypes"]]


def _constant(argument: tuple[str, Any]) -> str:
    name, value = argument
    if isinstance(value, int):
        return f"constexpr int {name} = {value};\n"
    return f"using {name} = {CUDA_TYPES[value]};\n"


def _pointers(call: dict[str, Any], types: dict[mx.Dtype, str]) -> str:
    return ", ".join(f"({types[dtype]}*)p[{i}]" for i, dtype in enumerate(_dtypes(call)))


def to_memory(array: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    """Numbers as they are in memory: rounded; bfloat16 as the bits, which NumPy has not."""
    if dtype == mx.bfloat16:
        return np.array(mx.array(array).astype(dtype).view(mx.uint16))
    return array.astype(NUMPY_TYPES.get(dtype, np.float32))


def from_memory(array: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    """What `to_memory` made: float32, or whole numbers as they are."""
    if dtype == mx.bfloat16:
        return np.array(mx.array(array).view(dtype).astype(mx.float32))
    return array if dtype in (mx.int32, mx.uint8) else array.astype(np.float32)


def _untouched(dtype: mx.Dtype, number: float = np.nan) -> np.ndarray:
    """What is behind an array, and in one before it is written."""
    value = {mx.int32: -987654321, mx.uint8: 171}.get(dtype, number)
    return to_memory(np.full(SPAN, value), dtype)


@contextlib.contextmanager
def recording(backend: str, cluster: int = 1) -> Iterator[Recorder]:
    """A recorder that gets what is launched for this back-end, with clusters of so many blocks."""
    recorder = Recorder(backend)
    launch.compiled.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx.fast, backend + "_kernel", recorder)
        patch.setattr(nvrtc, "library", lambda: None)
        patch.setattr(launch, "backend", lambda: backend)
        patch.setattr(launch, "cluster_blocks", lambda: cluster)
        yield recorder
    launch.compiled.cache_clear()


@contextlib.contextmanager
def printed_by_c() -> Iterator[list[str]]:
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


@functools.cache
def _load_blocks() -> None:
    """Let libraries of kernels find what runs their blocks."""
    source, header = C / "blocks.cpp", C / "blocks.h"
    library = compile_shared("blocks", [source], [*FLAGS, "-pthread"], "c++", [header])
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def compiled(name: str, code: str, folder: Path) -> ctypes.CDLL:
    """The library of a text that begins with ``SHIM``, which is written to a folder."""
    _load_blocks()
    source = folder / "kernels.cpp"
    source.write_text(code)
    unknown = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    return ctypes.CDLL(str(compile_shared(name, [source], [*FLAGS, *unknown], "c++")))


class Compiled:
    """A recorder's kernels, compiled; `run` calls one of them with NumPy arrays.

    `inputs` are those of the last call as they were after it: a kernel may write to memory that MLX
    knows as an input.
    """

    def __init__(self, recorder: Recorder, folder: Path, cluster: int = 1) -> None:
        self.calls, self.backend, self.cluster = recorder.calls, recorder.backend, cluster
        self.library = compiled(f"{recorder.backend}_kernels", recorder.text, folder)

    def run(self, number: int, *inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs of kernel `number`; inputs in the kernel's order.

        Both are in memory in the types that the kernel was recorded with. Of 16 bits they are
        float32 here. The last inputs may be left out where they are the launching function's own
        (`launch.constant_array`).
        """
        call = self.calls[number]
        inputs += tuple(np.array(own) for own in call["inputs"][len(inputs) :])
        assert [i.shape for i in inputs] == [i.shape for i in call["inputs"]]
        assert call["grid"][1:] == call["threadgroup"][1:] == (1, 1)
        dtypes, n, shapes = _dtypes(call), len(inputs), call["output_shapes"]
        given = [to_memory(i.ravel(), d) for i, d in zip(inputs, dtypes, strict=False)]
        empty = [
            np.resize(_untouched(d), int(np.prod(shape)))
            for shape, d in zip(shapes, dtypes[n:], strict=True)
        ]
        # Behind outputs no NaN: whoever reads behind an input has NaN to write.
        behind = [_untouched(d, np.nan if i < n else -777.0) for i, d in enumerate(dtypes)]
        arrays = [*given, *empty]
        original = [np.concatenate(pair) for pair in zip(arrays, behind, strict=True)]
        run, turns = getattr(self.library, f"k{call['number']}_run"), []
        for turn in range(2):
            memory = [a.copy() for a in original]
            pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in memory]
            places = (ctypes.c_void_p * len(pointers))(*pointers)
            together = run(places, call["grid"][0], call["threadgroup"][0], turn)
            assert together, "some of a block's threads came to a barrier, and others had ended"
            turns.append(memory)
        for found, other, expected in zip(*turns, behind, strict=True):
            said = "a thread wrote behind an array"
            np.testing.assert_array_equal(found[-SPAN:], expected, said)
            said = "it depends on the order of a block's threads: a barrier is missing"
            np.testing.assert_array_equal(found, other, said)
        pairs = [*zip(memory, dtypes, strict=True)]
        after = (from_memory(a[:-SPAN], d) for a, d in pairs[:n])
        self.inputs = [a.reshape(i.shape) for a, i in zip(after, inputs, strict=True)]
        outputs = [from_memory(a[:-SPAN], d) for a, d in pairs[n:]]
        return [o.reshape(shape) for o, shape in zip(outputs, shapes, strict=True)]

    def play(self, calls: list[int], function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function makes of its arguments if its kernels run here.

        Args:
            calls: those that ``record_all`` recorded of it.
            function: what launches them.
            *arguments: of any values, and the recorded ones' shapes.
        """
        left = iter(calls)

        def kernel(**made: Any):
            def call(**given: Any):
                number = next(left)
                inputs = [
                    np.array(a.astype(mx.float32) if a.dtype in LOW else a) for a in given["inputs"]
                ]
                assert self.calls[number]["name"] == made["name"]
                assert self.calls[number]["output_shapes"] == given["output_shapes"]
                outputs = self.run(number, *inputs)
                dtypes = given["output_dtypes"]
                return [mx.array(o).astype(d) for o, d in zip(outputs, dtypes, strict=True)]

            return call

        launch.compiled.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mx.fast, self.backend + "_kernel", kernel)
            patch.setattr(nvrtc, "library", lambda: None)
            patch.setattr(launch, "backend", lambda: self.backend)
            patch.setattr(launch, "cluster_blocks", lambda: self.cluster)
            result = function(*arguments)
        launch.compiled.cache_clear()
        assert next(left, None) is None
        return result


def pretend_gpu(patch: pytest.MonkeyPatch) -> None:
    """Operations take their forms for a GPU."""
    patch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))


class Functions:
    """Functions of arrays, recorded as a GPU would launch them, then compiled all at once.

    ``cases``: by a key of any kind, a function that returns a list of arrays, and its arguments.
    ``cluster``: how many blocks a cluster has.
    """

    def __init__(
        self, backend: str, folder: Path, cases: dict[Any, tuple], cluster: int = 1
    ) -> None:
        self.cases = cases
        with recording(backend, cluster) as recorder, pytest.MonkeyPatch.context() as patch:
            pretend_gpu(patch)
            self.calls = {key: recorder.record_all(*case) for key, case in cases.items()}
        self.compiled = Compiled(recorder, folder, cluster)

    def run(self, key: Any, *arrays: Any, function: Any = None) -> list[np.ndarray]:
        """What a case gives by its kernels.

        Args:
            key: the case's.
            *arrays: other arrays of the same shapes; none: the case's own.
            function: another one, with the same launches.
        """
        recorded, *own = self.cases[key]
        with pytest.MonkeyPatch.context() as patch:
            pretend_gpu(patch)
            given = (None if array is None else mx.array(array) for array in arrays or own)
            found = self.compiled.play(self.calls[key], function or recorded, *given)
        return [np.array(a.astype(mx.float32) if a.dtype in LOW else a) for a in found]
