"""Launch GPU kernels for Metal or CUDA. They are compiled from source at first use.

Activations, weights and gradients, declared ``Low`` in a kernel's source, share one type: float32,
bfloat16 or float16, as the first such input has. Arrays declared ``float`` are always float32; row
indices are ``int``, bytes ``uint8_t``. Metal supports bfloat since version 3.1 (macOS 14).

A template constant needs a new compilation for each value. So it is used only where it makes the
kernel faster; other sizes are passed as input arrays (``constant_array``).

A kernel declares its shared memory in one of two ways: ``SHARED`` arrays, or one SHARED_POOL whose
size is given at launch and may be all shared memory of a GPU core.

Timings on an H200 against plain MLX: ``benchmarks/RESULTS.md``. Kernels weren't run on Metal; tests
compile the sources as C++ and run them (``tests/ops``).
"""

import functools
import hashlib
import math
import os
from array import array as MachineArray
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu import nvrtc, text
from puffer_mlx.system.backend import gpu_backend, kernel_substitute

# Maximum threads of a block (CUDA) or threadgroup (Metal). Metal allows 1024, but fewer if a kernel
# uses many registers (896 on an M2 Ultra), which is known only after compilation.
THREADS = 256
SHARED_BYTES = 32768  # of shared memory per block: Metal's limit, kept on CUDA too
CUDA_SHARED_BYTES = 49152  # of SHARED arrays per block, CUDA's limit
MAX_ARRAYS = 31  # arrays per kernel, Metal's limit
MAX_LAUNCH_THREADS = 2**31 - 1  # MLX's limit
CUDA_POOL_BYTES = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448}  # of a SHARED_POOL, maximum
POOL_THREADS = {"metal": THREADS, "cuda": 512}  # threads of a block with a SHARED_POOL
# Numbers. Metal puts smaller arrays into read-only memory, for which MLX compiles another kernel.
MIN_ARRAY_SIZE = 8
# Types by their names in kernels' declarations. ``Low`` differs between launches.
DTYPES_BY_KEYWORD = {"float": mx.float32, "int": mx.int32, "uint8_t": mx.uint8}
Shape = tuple[int, ...]
Input = mx.array | Mapping[str, Any]  # input of a kernel: an array, or its values by name


def kernel_backend() -> str:
    """Return the GPU back-end for which kernels are built, ``metal`` or ``cuda``."""
    return gpu_backend()


def shared_pool_limits() -> tuple[int, int]:
    """Return the threads per block of kernels with a SHARED_POOL, and the pool's maximum bytes.

    On CUDA without a GPU the limits are an H200's. For unknown GPUs the maximum is 0 bytes.
    """
    backend = kernel_backend()
    if backend == "metal":
        return POOL_THREADS[backend], SHARED_BYTES
    return POOL_THREADS[backend], CUDA_POOL_BYTES.get(cuda_architecture().rstrip("a"), 0)


@functools.cache
def cuda_architecture() -> str:
    """Return the CUDA GPU's architecture, or an H200's (``sm_90``) if there is no GPU."""
    has_cuda = mx.cuda.is_available()
    return str(mx.device_info(mx.gpu)["architecture"]) if has_cuda else "sm_90"


def cluster_blocks() -> int:
    """Return the number of thread blocks in a cluster on this GPU: 8, or 1 without clusters.

    Blocks of a cluster run at the same time and can synchronize. CUDA without a GPU counts as an
    H200.
    """
    if kernel_backend() == "metal":
        return 1
    has_clusters = int(cuda_architecture().removeprefix("sm_").rstrip("abf")) >= 90
    can_compile = nvrtc.load_nvrtc() is not None or not mx.cuda.is_available()
    return 8 if has_clusters and can_compile else 1


def exact_products() -> int:
    """Return 1 if matrix products must have float32 precision (``MLX_ENABLE_TF32=0``), else 0.

    The number is a template constant.
    """
    return int(os.environ.get("MLX_ENABLE_TF32") == "0")


def tiles_side_by_side(width: int, rows: int, threads: int) -> int:
    """Choose the number of tiles that a group of threads multiplies at a time in a matrix product.

    A group has 32 threads; a tile has 16 rows and 8 columns of the product (``matrix.metal.h``).
    The result is the largest number, up to 6, with which all groups have work.

    Args:
        width: columns of the product.
        rows: rows of the product.
        threads: threads of the block.
    """
    tiles_per_row = width // 8
    groups = threads // 32
    divisors = [count for count in range(1, 7) if tiles_per_row % count == 0]
    busy = [count for count in divisors if rows // 16 * (tiles_per_row // count) >= groups]
    return max(busy, default=1)


@functools.lru_cache(maxsize=None, typed=True)  # 1 and 1.0 are different arrays
def constant_array(*values: float) -> mx.array:
    """Return a cached array of constants (n,) for kernels: int32 if all are ints, else float32."""
    are_ints = all(isinstance(value, int) for value in values)
    array = mx.array(values, mx.int32 if are_ints else mx.float32)
    mx.eval(array)
    return array


def _parameter_array(values: Sequence[Any]) -> mx.array:
    """Return a kernel's parameters as one array; float32 if one of them is a scalar array."""
    if not any(isinstance(value, mx.array) for value in values):
        return constant_array(*values)
    return mx.stack([v if isinstance(v, mx.array) else mx.array(v, mx.float32) for v in values])


@functools.cache
def placeholder(dtype: mx.Dtype, size: int = MIN_ARRAY_SIZE) -> mx.array:
    """Return a cached array of zeros that stands for an unused kernel input."""
    array = mx.array([0] * size, dtype)
    mx.eval(array)
    return array


@functools.cache
def indices(n: int) -> mx.array:
    """Return a cached array of the integers 0 to n - 1, (n,) int32."""
    array = mx.arange(n, dtype=mx.int32)
    mx.eval(array)
    return array


@functools.cache
def ones(shape: Shape) -> mx.array:
    """Return a cached float32 array of ones, to compute ``ones - x`` instead of ``1 - x``.

    MLX has a precompiled kernel for ``ones - x``. For ``1 - x`` it would fuse the broadcast with
    the difference, which takes seconds to compile on CUDA.
    """
    flat: Any = memoryview(MachineArray("f", [1.0]) * math.prod(shape))
    array = mx.array(flat).reshape(shape)
    mx.eval(array)
    return array


def _kernel(
    path: Path | text.ComposedKernel, name: str | text.EnvRules, backend: str
) -> text.KernelSource:
    """Return the source of the kernel that ``launch`` runs for a path and a name."""
    if isinstance(name, text.EnvRules):
        assert isinstance(path, Path)
        if path == text.ENVIRONMENTS_FILE:
            return text.environment_kernel(name, backend)
        return text.rollout_kernel(path, name, backend)
    return text.read_kernels(path, backend)[name]


@functools.cache
def compiled_kernel(
    path: Path | text.ComposedKernel, name: str | text.EnvRules, backend: str, shared: int = 0
):
    """Return the function that compiles and launches a kernel, cached by these arguments.

    On CUDA NVRTC compiles the kernel without MLX's headers (``nvrtc.py``). Otherwise MLX compiles
    it. MLX caches CUDA kernels on disk by name, so the name includes a hash of the source.

    Args:
        path: as in ``launch``.
        name: as in ``launch``.
        backend: ``metal`` or ``cuda``.
        shared: bytes of each block's SHARED_POOL; unused on Metal.
    """
    kernel = _kernel(path, name, backend)
    library = nvrtc.load_nvrtc() if backend == "cuda" else None
    if library is not None:
        return nvrtc.CompiledKernel(library, kernel, shared)
    digest = hashlib.sha256((kernel.header + kernel.body).encode()).hexdigest()[:8]
    return getattr(mx.fast, backend + "_kernel")(
        name=f"{kernel.name}_{digest}",
        input_names=list(kernel.inputs),
        output_names=list(kernel.outputs),
        header=kernel.header,
        source=kernel.body,
        **({"shared_memory": shared} if backend == "cuda" else {}),
    )


def launch(
    path: Path | text.ComposedKernel,
    name: str | text.EnvRules,
    inputs: Mapping[str, Input] | Sequence[Input],
    outputs: Mapping[str, Shape] | Sequence[Shape],
    threads: int,
    block: int = THREADS,
    shared: int = 0,
    **template: Any,
) -> list[mx.array]:
    """Run a GPU kernel. Inputs are cast to the types in the kernel's declaration.

    Args:
        path: file of the kernel's source; a ``ComposedKernel``; or, for complete rollouts, the file
            of the network's layers.
        name: name of the kernel. For a kernel that steps environments, the environment's rules
            (``text.rollout_kernel``, ``text.environment_kernel``).
        inputs: arrays in the order of the declaration, or by name; unused names are ignored. An
            array of parameters may be a dict of their values (numbers or scalar arrays) by name.
        outputs: shapes of the outputs in the order of the declaration, or by name.
        threads: total number of threads.
        block: number of threads per block.
        shared: bytes of each block's SHARED_POOL; unused on Metal.
        **template: template constants and types by name. ``Low`` is needed only if no input has
            that type.

    Returns:
        The outputs in the order of the declaration.
    """
    backend = kernel_backend()
    kernel = _kernel(path, name, backend)
    if isinstance(inputs, Mapping):
        arrays: dict[str, Any] = {key: inputs[key] for key in kernel.inputs}
    else:
        arrays = dict(zip(kernel.inputs, inputs, strict=True))
    for key, names in kernel.parameters.items():
        if isinstance(values := arrays[key], Mapping):
            arrays[key] = _parameter_array([values[name] for name in names])
    if not isinstance(outputs, Mapping):
        outputs = dict(zip(kernel.outputs, outputs, strict=True))
    if backend == "metal":
        check_metal_limits(kernel.name, len(arrays) + len(outputs), threads, block)
    low = next((a.dtype for key, a in arrays.items() if kernel.inputs[key] == "Low"), mx.float32)
    template = {"Low": low, **template}
    template_dtypes = {key: v for key, v in template.items() if isinstance(v, mx.Dtype)}
    dtypes = DTYPES_BY_KEYWORD | template_dtypes
    substitute = kernel_substitute()  # tests run kernels as C++ on the CPU
    if substitute:
        call = functools.partial(substitute, kernel.name)
    else:
        call = compiled_kernel(path, name, backend, shared)
    return call(
        inputs=[arrays[key].astype(dtypes[type_]) for key, type_ in kernel.inputs.items()],
        template=[(key, template[key]) for key in kernel.template],
        grid=(threads, 1, 1),
        threadgroup=(block, 1, 1),
        output_shapes=[outputs[key] for key in kernel.outputs],
        output_dtypes=[dtypes[type_] for type_ in kernel.outputs.values()],
    )


def check_metal_limits(name: str, arrays: int, threads: int, block: int) -> None:
    """Raise UserError if a kernel's launch exceeds Metal's limits of arrays or threads.

    Metal itself would report it later, with a line of generated code.
    """
    for count, limit, unit in (
        (arrays, MAX_ARRAYS, "arrays"),
        (block, THREADS, "threads in a block"),
        (threads, MAX_LAUNCH_THREADS, "threads"),
    ):
        if count > limit:
            raise UserError(
                f"the GPU's kernel {name} has {count} {unit}; on a Mac {limit} are the most",
                "run on the CPU: --device cpu",
            )
