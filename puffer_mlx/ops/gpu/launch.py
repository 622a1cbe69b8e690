"""Launching a kernel: it is compiled from its text at first use, for Metal or CUDA.

The functions that launch one are those of the CPU extension, with the same arguments. Where that
knows float32 alone, these take activations, weights and gradients in float32, bfloat16 or float16:
the type of the first such argument is the type of all of them, which the texts call ``Low``. What
stays float32 in any case is ``float`` in the text; rows are ``int``, bytes ``uint8_t``. Metal has
bfloat since 3.1 (macOS 14).

What changes from launch to launch, or is of no use to a compiler, is not of the text's template but
an input: ``numbers`` makes one that is kept. So another size needs no other kernel.

Measured on the H200 against the pure MLX forms: see ``benchmarks/RESULTS.md``. Not run on Metal:
the texts are checked by compiling them as C++ and running them (``tests/ops``).
"""

import functools
import hashlib
import math
import os
from array import array as Numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu import nvrtc, text
from puffer_mlx.system.backend import gpu_backend, stand_in

# Of one block (CUDA) or threadgroup (Metal), at most. Metal allows 1024 threads, but fewer where a
# kernel takes many registers: an M2 Ultra 896, of which one learns only from its compiler.
THREADS = 256
SHARED_BYTES = 32768  # of a block's shared memory: Metal's limit; who sizes such memory asks for it
SHARED_ON_CUDA = 49152  # the same there, of what is declared
BUFFERS = 31  # arrays of a kernel: Metal's limit
GRID = 2**31 - 1  # threads of a launch: MLX's limit
SHARED_POOLS = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448}  # and of a SHARED_POOL on CUDA
POOL_THREADS = {"metal": THREADS, "cuda": 512}  # of a block that has one
FEWEST = 8  # numbers of an array, and agents: Metal has fewer in a place that can't be written
DTYPES = {"float": mx.float32, "int": mx.int32, "uint8_t": mx.uint8}  # besides Low
Shape = tuple[int, ...]


def backend() -> str:
    """``metal`` or ``cuda``: the GPU back-end of this MLX build, or that graphs are built for."""
    return gpu_backend()


def pool_block() -> tuple[int, int]:
    """Threads of a block with a SHARED_POOL, and how many bytes that may have.

    Of CUDA without a GPU they are an H200's; where none is known to have the room, 0.
    """
    kind = backend()
    if kind == "metal":
        return POOL_THREADS[kind], SHARED_BYTES
    here = mx.cuda.is_available()
    architecture = str(mx.device_info(mx.gpu)["architecture"]) if here else "sm_90"
    return POOL_THREADS[kind], SHARED_POOLS.get(architecture.rstrip("a"), 0)


def cluster_blocks() -> int:
    """How many blocks a kernel's CLUSTER has, which run together and meet; 1: there are none.

    As many as any GPU with clusters has room for; of CUDA without a GPU they are an H200's.
    """
    if backend() == "metal":
        return 1
    here = mx.cuda.is_available()
    architecture = str(mx.device_info(mx.gpu)["architecture"]) if here else "sm_90"
    new = int(architecture.removeprefix("sm_").rstrip("abf")) >= 90
    return 8 if new and (nvrtc.library() is not None or not here) else 1


def exact_products() -> int:
    """1 if matrix units are to be as exact as float32, as MLX was told (``MLX_ENABLE_TF32=0``)."""
    return int(os.environ.get("MLX_ENABLE_TF32") == "0")


def tiles_side_by_side(width: int, rows: int, threads: int) -> int:
    """Tiles of 8 columns that 32 threads multiply at a time: as many as leave none idle.

    Of a product (rows, width), by a block of some threads: see ``matrix.metal.h``.
    """
    tiles, groups = width // 8, threads // 32
    fits = [c for c in range(1, 7) if tiles % c == 0]
    return max([c for c in fits if rows // 16 * (tiles // c) >= groups], default=1)


@functools.lru_cache(maxsize=None, typed=True)  # 1 and 1.0 are different arrays
def numbers(*values: float) -> mx.array:
    """A kernel's input of these: (n,) int32 where all of them are ints, else float32; kept."""
    whole = all(isinstance(value, int) for value in values)
    array = mx.array(values, mx.int32 if whole else mx.float32)
    mx.eval(array)
    return array


@functools.cache
def nothing(dtype: mx.Dtype, size: int = FEWEST) -> mx.array:
    """In place of an array that there is none of: zeros, kept."""
    array = mx.array([0] * size, dtype)
    mx.eval(array)
    return array


@functools.cache
def indices(n: int) -> mx.array:
    """0 to n - 1, (n,) int32; kept."""
    array = mx.arange(n, dtype=mx.int32)
    mx.eval(array)
    return array


@functools.cache
def ones(shape: Shape) -> mx.array:
    """float32, kept.

    Compiled, ``1 - x`` is a kernel that MLX takes seconds to compile on CUDA, since it fuses what
    makes 1 as large as x with the difference; the difference alone it has.
    """
    flat: Any = memoryview(Numbers("f", [1.0]) * math.prod(shape))
    array = mx.array(flat).reshape(shape)
    mx.eval(array)
    return array


def _kernel(path: Path | text.Composed, name: str | text.Rules, backend: str) -> text.Kernel:
    if isinstance(name, text.Rules):
        assert isinstance(path, Path)
        alone = path == text.ENVIRONMENTS
        return text.environments(name, backend) if alone else text.rollout(path, name, backend)
    return text.kernels(path, backend)[name]


@functools.cache
def compiled(path: Path | text.Composed, name: str | text.Rules, backend: str, shared: int = 0):
    """What launches a kernel: see ``launch``.

    On CUDA it is NVRTC that compiles it, without MLX's headers (``nvrtc.py``); elsewhere MLX. Which
    keeps compiled CUDA kernels on disk under their names: a hash makes another text another name,
    so that a newer version of this package never runs an older one's kernel.
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
    path: Path | text.Composed,
    name: str | text.Rules,
    inputs: Mapping[str, mx.array] | Sequence[mx.array],
    outputs: Mapping[str, Shape] | Sequence[Shape],
    threads: int,
    block: int = THREADS,
    shared: int = 0,
    **sizes: Any,
) -> list[mx.array]:
    """Run a kernel of ``threads`` threads, ``block`` to a block.

    Every array gets the type that the text gives it: what MLX compiled for one is never given
    another.

    Args:
        path: the file with the kernel's text, or a kernel composed with a network's file; for whole
            rollouts the file of the network's layers.
        name: the kernel's; where environments step, their rules: see ``text.rollout`` and
            ``text.environments``.
        inputs: arrays in the order of the text's description, or by their names in it; it gets
            those that it names.
        outputs: shapes of the arrays that it writes, likewise.
        threads: how many there are in all.
        block: how many of them meet at barriers.
        shared: bytes of a block's SHARED_POOL, which on CUDA the launch asks for.
        **sizes: numbers by their names in the text's template; types, which arrays may be said to
            have there; ``Low`` where no array has it.

    Returns:
        The outputs, in the text's order.
    """
    kind = backend()
    kernel = _kernel(path, name, kind)
    if isinstance(inputs, Mapping):
        inputs = {key: inputs[key] for key in kernel.inputs}
    else:
        inputs = dict(zip(kernel.inputs, inputs, strict=True))
    if not isinstance(outputs, Mapping):
        outputs = dict(zip(kernel.outputs, outputs, strict=True))
    if kind == "metal":
        refuse_beyond_metal(kernel.name, len(inputs) + len(outputs), threads, block)
    low = next((a.dtype for key, a in inputs.items() if kernel.inputs[key] == "Low"), mx.float32)
    template = {"Low": low, **sizes}
    dtypes = {**DTYPES, **{k: v for k, v in template.items() if isinstance(v, mx.Dtype)}}
    instead = stand_in()
    call = (
        functools.partial(instead, kernel.name) if instead else compiled(path, name, kind, shared)
    )
    return call(
        inputs=[inputs[key].astype(dtypes[type_]) for key, type_ in kernel.inputs.items()],
        template=[(key, template[key]) for key in kernel.template],
        grid=(threads, 1, 1),
        threadgroup=(block, 1, 1),
        output_shapes=[outputs[key] for key in kernel.outputs],
        output_dtypes=[dtypes[type_] for type_ in kernel.outputs.values()],
    )


def refuse_beyond_metal(name: str, arrays: int, threads: int, block: int) -> None:
    """Raise UserError for a launch with more arrays or threads than a Mac has room for.

    Metal's own message comes later, and names a line of generated text.
    """
    blocks = (block, THREADS, "threads in a block")
    for count, most, unit in ((arrays, BUFFERS, "arrays"), blocks, (threads, GRID, "threads")):
        if count > most:
            raise UserError(
                f"the GPU's kernel {name} has {count} {unit}; on a Mac {most} are the most",
                "run on the CPU: --device cpu",
            )
