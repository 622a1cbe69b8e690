"""GPU kernels without a GPU: their source compiled as C++, a block's threads in turns.

This covers syntax, indexing, bounds, barriers and arithmetic, not address spaces, timing or a GPU's
own exp. The 16-bit types allow no more conversions than a GPU's. A kernel runs when it is launched,
not when its results are needed, so MLX compiles nothing meanwhile. What isn't a kernel of this
package is computed by MLX on the CPU.
"""

import contextlib
import ctypes
import functools
import itertools
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import puffer_mlx
from puffer_mlx.ops.gpu import launch, text
from puffer_mlx.policy.networks.catalog import NETWORK_FACTS
from puffer_mlx.ppo import minibatch
from puffer_mlx.rollout.on_gpu import rollouts_in_one_launch
from puffer_mlx.system.backend import building_for
from puffer_mlx.system.compiler import compile_shared
from puffer_mlx.training.placement import Acting, Placement
from puffer_mlx.vec.native.gpu_rules import gpu_rules
from puffer_mlx.vec.native.make import find_environment, open_environment, read_spec

PACKAGE = Path(puffer_mlx.__file__).parent
C = Path(__file__).parent / "c"
FLAGS = ["-std=c++20", "-O1"]
SPAN = 4096  # values behind each array, to find missing bounds checks
LOW = mx.float16, mx.bfloat16  # float32 in NumPy
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
KERNEL = """
namespace of_{name} {{
{header}
static void kernel({parameters}, const uint3 thread_position_in_grid,
    const uint3 threadgroup_position_in_grid, const uint3 thread_position_in_threadgroup) {{
{constants}
{source}
}}
extern "C" int of_{name}_run(void** p, uint threads, uint block, uint turn) {{
  blockDim.x = block;
  return run_blocks({threads}, block, turn, {cluster}, [=](Place at) {{
    blockIdx = at.block, threadIdx = at.me;
    kernel({pointers}, at.grid, at.block, at.me);
  }});
}}
}}
"""
WHOLE_BLOCKS = "(threads + block - 1) / block * block"  # CUDA's grid
COMMON_TYPES = {mx.float32: "float", mx.int32: "int", mx.uint8: "uint8_t"}
TYPES = {
    "cuda": {**COMMON_TYPES, mx.float16: "__half", mx.bfloat16: "__nv_bfloat16"},
    "metal": {**COMMON_TYPES, mx.float16: "float16_t", mx.bfloat16: "bfloat16_t"},
}
NUMPY_TYPES = {mx.int32: np.int32, mx.uint8: np.uint8, mx.float16: np.float16}  # else float32
MEETING = "(blocks) __syncthreads();", "(blocks) if ((blocks) > 1) meet_cluster(); else meet();"


# ---- arrays --------------------------------------------------------------------------------------


def to_memory(array: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    """Return an array as it is in a kernel's memory: rounded, bfloat16 as its bits."""
    if dtype == mx.bfloat16:
        return np.array(mx.array(array).astype(dtype).view(mx.uint16))
    return array.astype(NUMPY_TYPES.get(dtype, np.float32))


def from_memory(array: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    """Convert an array from a kernel's memory to float32; integers stay as they are."""
    if dtype == mx.bfloat16:
        return np.array(mx.array(array).view(dtype).astype(mx.float32))
    return array if dtype in (mx.int32, mx.uint8) else array.astype(np.float32)


def to_numpy(array: mx.array) -> np.ndarray:
    """Convert an MLX array to NumPy; 16-bit floats become float32."""
    return np.array(array.astype(mx.float32) if array.dtype in LOW else array)


def _filling(dtype: mx.Dtype, size: int, number: float) -> np.ndarray:
    value = {mx.int32: -987654321, mx.uint8: 171}.get(dtype, number)
    return to_memory(np.full(size, value), dtype)


# ---- kernels -------------------------------------------------------------------------------------


def minibatch_texts() -> list[text.ComposedKernel]:
    """Return the sources of all minibatch kernels, each composed with a network's file."""
    folders = [forms.matrix_units for forms in NETWORK_FACTS.values() if forms.matrix_units]
    kernels = minibatch.KERNEL_FILE, minibatch.WIDE_KERNEL_FILE
    return [text.ComposedKernel(k, folder / text.WALKS_FILE) for k in kernels for folder in folders]


@functools.cache
def _texts(backend: str = "cuda") -> dict[str, text.KernelSource]:
    """Return the sources of all GPU kernels of the package, by name."""
    paths = [*PACKAGE.rglob("*.metal.h"), *minibatch_texts()]
    found = [kernel for path in paths for kernel in text.read_kernels(path, backend).values()]
    named = {kernel.name: kernel for kernel in found}
    assert len(named) == len(found), sorted(kernel.name for kernel in found)
    return named


@functools.cache
def _text(name: str, folders: tuple[Path, ...], backend: str = "cuda") -> text.KernelSource:
    """Return a GPU kernel's source by name.

    A rollout's is composed of its network's and its environment's files.

    Args:
        name: Name of the kernel.
        folders: Folders of environments that don't come with puffer_mlx.
        backend: metal or cuda.
    """
    if not name.startswith(("rollout_", "rows_", "step_")):
        return _texts(backend)[name]
    form, *network, environment = name.split("_", 1 if name.startswith("step_") else 2)
    beside = {folder.name: folder for folder in folders}
    folder = beside.get(environment) or find_environment(environment)
    library = open_environment(folder)
    rules = gpu_rules(folder, library, read_spec(folder, library))
    assert rules is not None
    game = text.EnvRules(*rules[:3])
    if form == "step":
        return text.environment_kernel(game, backend)
    file = text.ROWS_FILE if form == "rows" else text.LAYERS_FILE
    return text.rollout_kernel(PACKAGE / "policy" / "networks" / network[0] / file, game, backend)


def _written(kernel: text.KernelSource) -> set[str]:
    """Return the names of the input arrays that a GPU kernel writes to."""
    return set(re.findall(r"WRITTEN\(\w+, (\w+)\)", kernel.body)) & set(kernel.inputs)


@functools.cache
def _load_blocks() -> None:
    """Compile and load the C library that runs thread blocks of emulated kernels on the CPU."""
    source, header = C / "blocks.cpp", C / "blocks.h"
    library = compile_shared("blocks", [source], [*FLAGS, "-pthread"], "c++", [header])
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


@functools.cache
def _compiled(name: str, code: str) -> Any:
    _load_blocks()
    unknown = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.cpp"
        source.write_text(code)
        library = ctypes.CDLL(str(compile_shared(name, [source], [*FLAGS, *unknown], "c++")))
    return getattr(library, f"of_{name}_run")


def compiled_kernel(kernel: text.KernelSource, given: dict[str, Any], backend: str = "cuda") -> Any:
    """Compile a GPU kernel as C++ for these launch arguments; return the function."""
    types = TYPES[backend]
    dtypes = [*(a.dtype for a in given["inputs"]), *given["output_dtypes"]]
    names = [*(f"const {name}" for name in kernel.inputs), *kernel.outputs]
    pairs = zip(dtypes, names, strict=True)
    constants = [
        f"constexpr int {name} = {value};"
        if isinstance(value, int)
        else f"using {name} = {types[value]};"
        for name, value in given["template"]
    ]
    header = kernel.header.replace(*MEETING)
    program = KERNEL.format(
        name=kernel.name,
        header=header.replace("#define IN_SHARED threadgroup", "#define IN_SHARED"),
        parameters=", ".join(f"{types[dtype]}* {name}" for dtype, name in pairs),
        constants="\n".join(constants),
        source=kernel.body,
        threads=WHOLE_BLOCKS if backend == "cuda" else "threads",
        cluster=dict(given["template"]).get("CLUSTER", 1),
        pointers=", ".join(f"({types[dtype]}*)p[{i}]" for i, dtype in enumerate(dtypes)),
    )
    return _compiled(kernel.name, SHIM + program)


class Emulator:
    """Emulates GPU kernels on the CPU. Attributes: ``launches`` and ``names`` of kernels."""

    def __init__(self, folders: tuple[Path, ...], backend: str, checked: bool) -> None:
        self.names: set[str] = set()
        self.launches: list[str] = []
        self.backend = backend
        self._folders = folders
        self._checked = checked
        self._functions: dict[tuple, Any] = {}

    def __call__(self, name: str, **given: Any) -> list[mx.array]:
        """Run a kernel in emulation with the arguments of MLX's kernels; return its outputs."""
        self.names.add(name)
        self.launches.append(name)
        kernel = _text(name, self._folders, self.backend)
        inputs, dtypes = given["inputs"], given["output_dtypes"]
        shapes = given["output_shapes"]
        run = self._function(kernel, given)
        number, span = (np.nan, SPAN) if self._checked else (7, 1)
        memory = [to_memory(to_numpy(a).ravel(), a.dtype) for a in inputs]
        memory += [
            _filling(d, int(np.prod(s)), number) for s, d in zip(shapes, dtypes, strict=True)
        ]
        types = [*(a.dtype for a in inputs), *dtypes]
        # no NaN behind outputs: a kernel that reads behind an input can write NaN
        behind = [
            _filling(d, span, np.nan if i < len(inputs) else -777.0) for i, d in enumerate(types)
        ]
        before = [np.concatenate(pair) for pair in zip(memory, behind, strict=True)]
        turns = [self._run(run, before, given, turn) for turn in range(1 + self._checked)]
        arrays = turns[0]
        for array, other, expected in zip(arrays, turns[-1], behind, strict=True):
            message = f"{name}: a thread wrote behind an array"
            np.testing.assert_array_equal(array[-span:], expected, message)
            message = f"{name}: a barrier is missing, the order of a block's threads matters"
            np.testing.assert_array_equal(array, other, message)
        for key, array, after in zip(kernel.inputs, inputs, arrays, strict=False):
            if key in _written(kernel):  # memory that MLX knows as an input
                np.asarray(array)[...] = after[:-span].reshape(array.shape)
        return [
            mx.array(from_memory(a[:-span], d)).astype(d).reshape(shape)
            for a, d, shape in zip(arrays[len(inputs) :], dtypes, shapes, strict=True)
        ]

    def _function(self, kernel: text.KernelSource, given: dict[str, Any]) -> Any:
        dtypes = tuple(a.dtype for a in given["inputs"])
        key = (kernel.name, tuple(map(str, given["template"])), dtypes)
        if key not in self._functions:
            self._functions[key] = compiled_kernel(kernel, given, self.backend)
        return self._functions[key]

    def _run(
        self, run: Any, before: list[np.ndarray], given: dict[str, Any], turn: int
    ) -> list[np.ndarray]:
        arrays = [array.copy() for array in before]
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        together = run(pointers, given["grid"][0], given["threadgroup"][0], turn)
        assert together, "some of a block's threads came to a barrier, and others had ended"
        return arrays


@contextlib.contextmanager
def emulated_gpu(
    *folders: Path, backend: str = "cuda", checked: bool = False, cluster: int = 1
) -> Iterator[Emulator]:
    """Emulate a GPU within the ``with`` block: its kernels run as C++ on the CPU.

    Args:
        folders: Folders of environments that don't come with puffer_mlx.
        backend: metal or cuda.
        checked: Run each kernel with two orders of a block's threads, and check array bounds.
        cluster: Number of blocks in a cluster.
    """
    emulator = Emulator(folders, backend, checked)
    mx.disable_compile()
    try:
        with building_for(backend, emulator), pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "cluster_blocks", lambda: cluster)
            yield emulator
    finally:
        mx.enable_compile()


def on_gpu(
    backend: str, function: Callable[..., Any], *arrays: Any, cluster: int = 1
) -> list[np.ndarray]:
    """Return the arrays that a function computes on an emulated GPU with bounds checks."""
    with emulated_gpu(backend=backend, checked=True, cluster=cluster):
        found = function(*(None if array is None else mx.array(array) for array in arrays))
        return [to_numpy(array) for array in found]


def alternate(cases: Iterable[tuple]) -> list[tuple]:
    """Prepend a back-end to each test case: metal and cuda alternate."""
    backends = itertools.cycle(["metal", "cuda"])
    return [(backend, *case) for backend, case in zip(backends, cases, strict=False)]


def rolling_out_there(acting: Acting, *_: Any) -> Placement:
    """Stand in for ``choose_placement``: the CPU plays a GPU that runs rollouts in one launch."""
    whole = rollouts_in_one_launch(acting.policy, acting.vec, acting.config.train.horizon)
    return Placement(mx.Device(mx.cpu), mx.Device(mx.cpu), gpu_rollouts=whole)


def stand_in(monkeypatch: pytest.MonkeyPatch, item: ModuleType) -> None:
    """Let a check-gpu item run its GPU kernels in emulation."""

    def on(device: mx.Device) -> contextlib.AbstractContextManager[Any]:
        return emulated_gpu() if device.type == mx.gpu else contextlib.nullcontext()

    monkeypatch.setattr(item, "on", on)
    monkeypatch.setattr(item, "need_gpu", lambda: None)
