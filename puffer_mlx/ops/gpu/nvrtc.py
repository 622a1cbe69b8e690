"""Compile CUDA kernels directly with NVRTC, NVIDIA's run-time compiler, in tens of milliseconds.

MLX includes its headers and CUDA's in every kernel, and takes two seconds to compile each. Our
kernels need only the declarations in ``without_headers.h``. NVRTC is the library that MLX has
loaded. If it isn't found by name, MLX compiles the kernels (``launch.py``).

Compiled kernels are cached in ``system.private_folders.cache_directory``. The file name has a hash
of the source, the compiler's options, the GPU's architecture and NVRTC's version.
"""

import contextlib
import ctypes
import functools
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu.text import KernelSource
from puffer_mlx.system.devices import CUBIN
from puffer_mlx.system.files import publish
from puffer_mlx.system.private_folders import cache_directory

LIBRARY_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
TYPES = {
    mx.float32: "float",
    mx.float16: "float16",
    mx.bfloat16: "bfloat16",
    mx.int32: "int",
    mx.uint8: "uint8_t",
}
DIGEST_BYTES = 32  # size of the hash at the start of a cached file, which detects damage


class Program(NamedTuple):
    """Complete CUDA source of a kernel with its types and constants."""

    name: str  # unique for this source, because MLX caches kernels by name
    text: str
    options: tuple[str, ...] = ()  # compiler options


@functools.cache
def load_nvrtc() -> ctypes.CDLL | None:
    """Load the NVRTC library. Returns None if it isn't found, or without MLX's CUDA back-end."""
    if not mx.cuda.is_available():
        return None
    for name in LIBRARY_NAMES:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def cuda_program(kernel: KernelSource, template: dict[str, Any]) -> Program:
    """Return a kernel's complete CUDA source, with its types and constants.

    Args:
        kernel: the kernel for CUDA.
        template: types and constants by their names in the kernel's template.
    """
    names = {"float": "float", "int": "int", "uint8_t": "uint8_t"}
    types = {"Low": mx.float32, **template}
    names |= {key: TYPES[value] for key, value in types.items() if isinstance(value, mx.Dtype)}
    parameters = [f"const {names[type_]}* {name}" for name, type_ in kernel.inputs.items()]
    parameters += [f"{names[type_]}* {name}" for name, type_ in kernel.outputs.items()]
    constants = "".join(map(_constant, template.items()))
    header = Path(__file__).with_name("without_headers.h").read_text() + kernel.header
    body = f"({', '.join(parameters)}) {{\n{constants}{kernel.body}}}\n"
    name = f"{kernel.name}_{hashlib.sha256((header + body).encode()).hexdigest()[:16]}"
    options = ("--fmad=false",) if kernel.exact else ("--use_fast_math",) if kernel.fast else ()
    bounds = ""
    if resident := template.get("RESIDENT", kernel.resident):
        threads = template["THREADS"]
        bounds = f"__launch_bounds__({threads}, {max(1, resident // threads)}) "
    if template.get("CLUSTER", 1) > 1:
        bounds += f"__attribute__((cluster_dims({template['CLUSTER']}, 1, 1))) "
    return Program(name, f'{header}\nextern "C" __global__ void {bounds}{name}{body}', options)


def _constant(parameter: tuple[str, Any]) -> str:
    name, value = parameter
    if isinstance(value, mx.Dtype):
        return f"  using {name} = {TYPES[value]};\n"
    return f"  constexpr int {name} = {value};\n"


def machine_code(nvrtc: Any, program: Program, architecture: str) -> bytes:
    """Return a CUDA program's machine code, from the disk cache or compiled by NVRTC.

    Args:
        nvrtc: the NVRTC library.
        program: source and compiler options.
        architecture: the GPU's architecture, for example ``sm_90``.
    """
    key = "\0".join([program.text, architecture, _version(nvrtc), *program.options])
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    path = cache_directory() / f"{program.name.rpartition('_')[0]}-{digest}{CUBIN}"
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        if hashlib.sha256(data[DIGEST_BYTES:]).digest() == data[:DIGEST_BYTES]:
            return data[DIGEST_BYTES:]
    code = _compile(nvrtc, program, architecture)
    with contextlib.suppress(UserError), publish(path) as file:  # a full disk only costs time
        file.write_bytes(hashlib.sha256(code).digest() + code)
    return code


def _version(nvrtc: Any) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _compile(nvrtc: Any, program: Program, architecture: str) -> bytes:
    handle = ctypes.c_void_p()
    text, file = program.text.encode(), f"{program.name}.cu".encode()
    failed = nvrtc.nvrtcCreateProgram(ctypes.byref(handle), text, file, 0, None, None)
    if failed:
        raise RuntimeError(f"NVRTC can't create a program from {program.name}: error {failed}")
    try:
        texts = [f"--gpu-architecture={architecture}", *program.options]
        options = (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
        failed = nvrtc.nvrtcCompileProgram(handle, len(texts), options)
        if failed:
            log = _read_result(handle, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            message = log.rstrip(b"\0").decode(errors="replace")
            raise RuntimeError(f"NVRTC can't compile {program.name} for {architecture}: {message}")
        return _read_result(handle, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(handle))


def _read_result(handle: ctypes.c_void_p, size_of: Any, get: Any) -> bytes:
    """Read a compilation result of NVRTC.

    Args:
        handle: the program.
        size_of: NVRTC's function that returns the result's size.
        get: NVRTC's function that returns the result.
    """
    size = ctypes.c_size_t()
    failed = size_of(handle, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    failed = failed or get(handle, content)
    if failed:
        raise RuntimeError(f"NVRTC can't return its result: error {failed}")
    return content.raw


class CompiledKernel:
    """A CUDA kernel compiled by NVRTC. Its call has the arguments of ``mx.fast.cuda_kernel``'s.

    Args:
        nvrtc: the NVRTC library.
        kernel: the kernel's source.
        shared: bytes of each block's SHARED_POOL.
    """

    def __init__(self, nvrtc: Any, kernel: KernelSource, shared: int = 0) -> None:
        self._nvrtc, self._kernel, self._shared = nvrtc, kernel, shared
        self._compiled: dict[tuple, tuple[str, bytes]] = {}  # name and machine code, by template

    def __call__(
        self,
        *,
        inputs: list[mx.array],
        template: list[tuple[str, Any]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: list[tuple[int, ...]],
        output_dtypes: list[mx.Dtype],
    ) -> list[mx.array]:
        """Launch the kernel. The first launch with new types or constants compiles it."""
        key = tuple(template)
        if key not in self._compiled:
            self._compiled[key] = self._compile(dict(template))
        name, code = self._compiled[key]
        return mx.fast.precompiled_cuda_kernel(
            name=name,
            compiled_source=code,
            inputs=inputs,
            output_shapes=output_shapes,
            output_dtypes=output_dtypes,
            scalars=[],
            shared_memory=self._shared,
            grid=grid,
            threadgroup=threadgroup,
            ensure_row_contiguous=True,
        )

    def _compile(self, template: dict[str, Any]) -> tuple[str, bytes]:
        source = cuda_program(self._kernel, template)
        architecture = str(mx.device_info(mx.gpu)["architecture"])
        return source.name, machine_code(self._nvrtc, source, architecture)
