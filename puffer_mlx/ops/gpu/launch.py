"""Launch GPU kernels, which are compiled from source at first use, for Metal or CUDA.

Functions that launch kernels have the names and arguments of the CPU extension's functions.
Activations, weights and gradients can be float32, bfloat16 or float16. All have the type of the
first such argument, which the source calls ``Low``. Arrays declared ``float`` are always float32;
rows are ``int``, bytes ``uint8_t``. Metal supports bfloat since version 3.1 (macOS 14).

Values that change between launches, or don't help the compiler, are inputs (``constant_array``),
not template constants, so a new size needs no new kernel.

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
SHARED_BYTES = 32768  # of shared memory per block: Metal's limit
SHARED_ON_CUDA = 49152  # CUDA's limit for declared shared memory
BUFFERS = 31  # arrays of a kernel: Metal's limit
GRID = 2**31 - 1  # threads of a launch: MLX's limit
SHARED_POOLS = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448}  # bytes per SHARED_POOL
POOL_THREADS = {"metal": THREADS, "cuda": 512}  # threads of a block with a SHARED_POOL
FEWEST = 8  # minimum size of an array: Metal puts smaller ones into read-only memory
DTYPES = {"float": mx.float32, "int": mx.int32, "uint8_t": mx.uint8}  # besides Low
Shape = tuple[int, ...]
Input = mx.array | Mapping[str, Any]  # of a kernel: an array, or an array's values by name


def backend() -> str:
    """Return ``metal`` or ``cuda``, the GPU back-end for which graphs are built."""
    return gpu_backend()


def shared_pool_limits() -> tuple[int, int]:
    """Return the threads of a block with a SHARED_POOL, and the maximum bytes of the pool.

    CUDA without a GPU returns an H200's numbers. Unknown GPUs return 0 bytes.
    """
    kind = backend()
    if kind == "metal":
        return POOL_THREADS[kind], SHARED_BYTES
    return POOL_THREADS[kind], SHARED_POOLS.get(cuda_architecture().rstrip("a"), 0)


@functools.cache
def cuda_architecture() -> str:
    """Return the CUDA GPU's architecture, or an H200's (``sm_90``) if there is no GPU."""
    here = mx.cuda.is_available()
    return str(mx.device_info(mx.gpu)["architecture"]) if here else "sm_90"


def cluster_blocks() -> int:
    """Return the number of blocks in a kernel's CLUSTER, 1 if the GPU has no clusters.

    Blocks of a cluster run at the same time and can synchronize. All GPUs with clusters support 8
    blocks. CUDA without a GPU returns an H200's number.
    """
    if backend() == "metal":
        return 1
    new = int(cuda_architecture().removeprefix("sm_").rstrip("abf")) >= 90
    return 8 if new and (nvrtc.library() is not None or not mx.cuda.is_available()) else 1


def exact_products() -> int:
    """Return 1 if ``MLX_ENABLE_TF32=0`` requires float32 precision of matrix units, else 0."""
    return int(os.environ.get("MLX_ENABLE_TF32") == "0")


def tiles_side_by_side(width: int, rows: int, threads: int) -> int:
    """Return the number of tiles of 8 columns that 32 threads multiply at a time.

    It is the largest number that leaves no thread idle: see ``matrix.metal.h``.

    Args:
        width: columns of the product.
        rows: rows of the product.
        threads: threads of the block.
    """
    tiles, groups = width // 8, threads // 32
    fits = [c for c in range(1, 7) if tiles % c == 0]
    return max([c for c in fits if rows // 16 * (tiles // c) >= groups], default=1)


@functools.lru_cache(maxsize=None, typed=True)  # 1 and 1.0 are different arrays
def constant_array(*values: float) -> mx.array:
    """Return a cached kernel input with n values: int32 if all are ints, else float32."""
    whole = all(isinstance(value, int) for value in values)
    array = mx.array(values, mx.int32 if whole else mx.float32)
    mx.eval(array)
    return array


def _parameters(values: Sequence[Any]) -> mx.array:
    """Return an array of parameters, float32 if one of them is an array: see ``constant_array``."""
    if not any(isinstance(value, mx.array) for value in values):
        return constant_array(*values)
    return mx.stack([v if isinstance(v, mx.array) else mx.array(v, mx.float32) for v in values])


@functools.cache
def placeholder(dtype: mx.Dtype, size: int = FEWEST) -> mx.array:
    """Return a cached array of zeros, the placeholder for an unused kernel input."""
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
    """Return a cached float32 array of ones.

    With it ``ones - x`` uses one of MLX's precompiled kernels. For ``1 - x`` MLX would fuse the
    broadcast with the difference, which takes seconds to compile on CUDA.
    """
    flat: Any = memoryview(MachineArray("f", [1.0]) * math.prod(shape))
    array = mx.array(flat).reshape(shape)
    mx.eval(array)
    return array


def _kernel(
    path: Path | text.ComposedKernel, name: str | text.EnvRules, backend: str
) -> text.Kernel:
    if isinstance(name, text.EnvRules):
        assert isinstance(path, Path)
        alone = path == text.ENVIRONMENTS
        return text.environments(name, backend) if alone else text.rollout(path, name, backend)
    return text.kernels(path, backend)[name]


@functools.cache
def compiled(
    path: Path | text.ComposedKernel, name: str | text.EnvRules, backend: str, shared: int = 0
):
    """Return the function that launches a kernel: see ``launch``.

    On CUDA NVRTC compiles the kernel without MLX's headers (``nvrtc.py``). Otherwise MLX compiles
    it. MLX caches CUDA kernels on disk by name, so the name includes a hash of the source.
    """
    kernel = _kernel(path, name, backend)
    library = nvrtc.library() if backend == "cuda" else None
    if library is not None:
        return nvrtc.CompiledKernel(library, kernel, shared)
    digest = hashlib.sha256((kernel.before + kernel.body).encode()).hexdigest()[:8]
    return getattr(mx.fast, backend + "_kernel")(
        name=f"{kernel.name}_{digest}",
        input_names=list(kernel.inputs),
        output_names=list(kernel.outputs),
        header=kernel.before,
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
    **sizes: Any,
) -> list[mx.array]:
    """Run a kernel. Inputs are cast to the types that its declaration specifies.

    Args:
        path: the file of the kernel's source, or a kernel composed with a network's file; for
            complete rollouts the file of the network's layers.
        name: name of the kernel. For kernels that step environments, the environment's rules: see
            ``text.rollout`` and ``text.environments``.
        inputs: arrays in the order of the declaration, or by name; unused names are ignored. An
            array of parameters may be a dict of their values by name: numbers or scalar arrays.
        outputs: shapes of the outputs in the order of the declaration, or by name.
        threads: total number of threads.
        block: number of threads per block.
        shared: bytes of a block's SHARED_POOL, used on CUDA only.
        **sizes: template constants and types by name. Includes ``Low`` if no input has that type.

    Returns:
        The outputs in the order of the declaration.
    """
    kind = backend()
    kernel = _kernel(path, name, kind)
    if isinstance(inputs, Mapping):
        arrays: dict[str, Any] = {key: inputs[key] for key in kernel.inputs}
    else:
        arrays = dict(zip(kernel.inputs, inputs, strict=True))
    for key, names in kernel.parameters.items():
        if isinstance(values := arrays[key], Mapping):
            arrays[key] = _parameters([values[name] for name in names])
    if not isinstance(outputs, Mapping):
        outputs = dict(zip(kernel.outputs, outputs, strict=True))
    if kind == "metal":
        refuse_beyond_metal(kernel.name, len(arrays) + len(outputs), threads, block)
    low = next((a.dtype for key, a in arrays.items() if kernel.inputs[key] == "Low"), mx.float32)
    template = {"Low": low, **sizes}
    dtypes = {**DTYPES, **{k: v for k, v in template.items() if isinstance(v, mx.Dtype)}}
    instead = kernel_substitute()
    call = (
        functools.partial(instead, kernel.name) if instead else compiled(path, name, kind, shared)
    )
    return call(
        inputs=[arrays[key].astype(dtypes[type_]) for key, type_ in kernel.inputs.items()],
        template=[(key, template[key]) for key in kernel.template],
        grid=(threads, 1, 1),
        threadgroup=(block, 1, 1),
        output_shapes=[outputs[key] for key in kernel.outputs],
        output_dtypes=[dtypes[type_] for type_ in kernel.outputs.values()],
    )


def refuse_beyond_metal(name: str, arrays: int, threads: int, block: int) -> None:
    """Raise UserError if a launch exceeds Metal's limits of arrays or threads.

    Metal would report the error later, and refer to a line of generated code.
    """
    blocks = (block, THREADS, "threads in a block")
    for count, most, unit in ((arrays, BUFFERS, "arrays"), blocks, (threads, GRID, "threads")):
        if count > most:
            raise UserError(
                f"the GPU's kernel {name} has {count} {unit}; on a Mac {most} are the most",
                "run on the CPU: --device cpu",
            )
