"""GPU kernels without a GPU: their source compiled as C++, a block's threads as real threads.

The Metal text is the source that MLX generates, which `mx.export_function` records on any machine;
the CUDA text is `kernels.py`'s own, its grid rounded up to whole blocks. Both get the arguments
that `kernels.py`'s functions give. This covers syntax, indexing, bounds, barriers and arithmetic,
not address spaces, timing or a GPU's own exp.
"""

import contextlib
import ctypes
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from puffer_mlx import kernels

SPAN = 4096  # numbers behind each array; nothing but a missing bounds check gets there

SHIM = """
#include <algorithm>
#include <barrier>
#include <cmath>
#include <thread>
#include <vector>
using std::exp;
typedef unsigned int uint;
struct uint3 { uint x, y, z; };
static std::barrier<>* meeting;
struct Place { uint3 grid, block, me; };
template <class Kernel>
static void run_blocks(uint threads, uint size, Kernel kernel) {
  for (uint b = 0; b * size < threads; ++b) {
    uint here = std::min(size, threads - b * size);
    std::barrier<> barrier(here);
    meeting = &barrier;
    std::vector<std::thread> all;
    for (uint me = 0; me < here; ++me)
      all.emplace_back(kernel, Place{{b * size + me, 0, 0}, {b, 0, 0}, {me, 0, 0}});
    for (auto& one : all) one.join();
  }
}
#define device
#define constant
#define thread
#define threadgroup static
#define threadgroup_barrier(flags) meeting->arrive_and_wait()
#define __device__
#define __shared__ static
#define __syncthreads() meeting->arrive_and_wait()
static uint3 blockDim;
static thread_local uint3 blockIdx, threadIdx;
"""
CUDA_KERNEL = """
namespace {name} {{
{header}
static void kernel({parameters}) {{
{constants}
{source}
}}
extern "C" void {name}_run(float** p, uint threads, uint block) {{
  blockDim.x = block;
  run_blocks((threads + block - 1) / block * block, block, [=](Place at) {{
    blockIdx = at.block, threadIdx = at.me;
    kernel({pointers});
  }});
}}
}}
"""
METAL_KERNEL = """
namespace {name} {{
{source}
extern "C" void {name}_run(float** p, uint threads, uint block) {{
  run_blocks(threads, block, [=](Place at) {{ {call}({pointers}, {places}); }});
}}
}}
"""
PLACES = {  # Metal's names
    "thread_position_in_grid": "at.grid",
    "threadgroup_position_in_grid": "at.block",
    "thread_position_in_threadgroup": "at.me",
}


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

    def record(self, function: Callable[..., Any], *samples: np.ndarray) -> int:
        """Append the C++ function `k<number>_run` for a kernel called with these inputs.

        Returns:
            its number.
        """
        arguments = [mx.array(sample) for sample in samples]
        printed = [""]
        if self.backend == "metal":
            with printed_by_c() as printed, tempfile.TemporaryDirectory() as folder:
                mx.export_function(f"{folder}/f.mlxfn", function, *arguments)
        else:
            function(*arguments)
        number = len(self.calls) - 1
        write = self._metal if self.backend == "metal" else self._cuda
        self.text += write(f"k{number}", self.calls[number], "".join(printed))
        return number

    def _metal(self, name: str, call: dict[str, Any], printed: str) -> str:
        source, _, last = printed.split("```")[1].rpartition("template ")
        instance = re.search(r"(\w+<[^<>]*>);", last)
        assert instance is not None
        return METAL_KERNEL.format(
            name=name,
            source=re.sub(r"\[\[.*?\]\]", "", source),
            call=instance[1],
            pointers=_pointers(call),
            places=", ".join(PLACES[place] for place in re.findall(r"uint3 (\w+) \[\[", source)),
        )

    def _cuda(self, name: str, call: dict[str, Any], _: str) -> str:
        inputs = [f"const float* {p}" for p in call["input_names"]]
        return CUDA_KERNEL.format(
            name=name,
            header=call["header"],
            parameters=", ".join([*inputs, *(f"float* {p}" for p in call["output_names"])]),
            constants="".join(f"constexpr int {k} = {v};\n" for k, v in call["template"]),
            source=call["source"],
            pointers=_pointers(call),
        )


def _pointers(call: dict[str, Any]) -> str:
    return ", ".join(f"p[{i}]" for i in range(len(call["input_names"] + call["output_names"])))


@contextlib.contextmanager
def recording(backend: str) -> Iterator[Recorder]:
    """A recorder that gets what `kernels.py` launches for this back-end."""
    recorder = Recorder(backend)
    kernels._kernel.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx.fast, backend + "_kernel", recorder)
        patch.setattr(kernels, "backend", lambda: backend)
        yield recorder
    kernels._kernel.cache_clear()


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


class Compiled:
    """A recorder's kernels, compiled; `run` calls one of them with NumPy arrays."""

    def __init__(self, recorder: Recorder, folder: Path) -> None:
        self.calls = recorder.calls
        source, library = folder / "kernels.cpp", folder / "kernels.so"
        source.write_text(recorder.text)
        command = ["c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-o", library]
        subprocess.run([*command, source], check=True)
        self.library = ctypes.CDLL(str(library))

    def run(self, number: int, *inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs of kernel `number`, its inputs C-contiguous and in the kernel's order."""
        call = self.calls[number]
        assert [i.shape for i in inputs] == [i.shape for i in call["inputs"]]
        assert call["grid"][1:] == call["threadgroup"][1:] == (1, 1)
        outputs = [np.full(np.prod(s) + SPAN, np.nan, np.float32) for s in call["output_shapes"]]
        floats = ctypes.POINTER(ctypes.c_float)
        padded = [np.concatenate([i.ravel(), np.full(SPAN, np.nan, np.float32)]) for i in inputs]
        pointers = [a.ctypes.data_as(floats) for a in (*padded, *outputs)]
        run = getattr(self.library, f"k{number}_run")
        run((floats * len(pointers))(*pointers), call["grid"][0], call["threadgroup"][0])
        assert all(np.isnan(o[-SPAN:]).all() for o in outputs), "a thread wrote behind an output"
        shapes = call["output_shapes"]
        return [o[:-SPAN].reshape(shape) for o, shape in zip(outputs, shapes, strict=True)]
