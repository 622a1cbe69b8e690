"""`ops/gpu/nvrtc.py`: kernels compiled for CUDA without MLX; here by a library that stands in."""

import ctypes
from typing import Any

import mlx.core as mx
import pytest

from puffer_mlx.ops.gpu import launch, nvrtc, text
from puffer_mlx.policy.networks.mingru import KERNELS_FILE, mingru_forward

FORWARD = text.read_kernels(KERNELS_FILE, "cuda")["mingru_forward"]


class Library:
    """Stub of NVIDIA's compiler library NVRTC. Its machine code is the reversed source."""

    version, compiled, log = (13, 5), 0, b""

    def nvrtcVersion(self, major, minor):
        major._obj.value, minor._obj.value = self.version
        return 0

    def nvrtcCreateProgram(self, handle, source, name, *_):
        handle._obj.value, self.source, self.name = 77, source, name
        return 0

    def nvrtcCompileProgram(self, handle, count, options):
        assert (handle.value, count) == (77, len(options))
        self.compiled, self.option = self.compiled + 1, options[0]
        return 6 if self.log else 0

    def nvrtcDestroyProgram(self, handle):
        assert handle._obj.value == 77
        handle._obj.value = None
        return 0

    def give(self, found, size, memory):
        if size is not None:
            size._obj.value = len(found)
        else:
            memory[: len(found)] = found
        return 0

    def nvrtcGetCUBINSize(self, _, size):
        return self.give(self.source[::-1], size, None)

    def nvrtcGetCUBIN(self, _, memory):
        return self.give(self.source[::-1], None, memory)

    def nvrtcGetProgramLogSize(self, _, size):
        return self.give(self.log, size, None)

    def nvrtcGetProgramLog(self, _, memory):
        return self.give(self.log, None, memory)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(folder))
    return folder


def made(**template):
    return nvrtc.cuda_program(FORWARD, {"Low": mx.float32, "FAST": 1, **template})


def test_program_declares_the_kernel_with_its_types():
    program = made()
    head = f'extern "C" __global__ void {program.name}(const float* u, const float* x, const float*'
    assert head in program.text and "#include" not in program.text
    low = made(Low=mx.bfloat16)
    assert "(const bfloat16* u, const bfloat16* x, const float* first, const float*" in low.text
    assert low.name != program.name  # MLX keeps kernels by their names


def test_machine_code_is_cached_and_damaged_files_are_compiled_again(cache):
    library, program = Library(), made()
    code = nvrtc.machine_code(library, program, "sm_90")
    assert code == program.text.encode()[::-1]
    assert library.option == b"--gpu-architecture=sm_90"
    assert library.name == f"{program.name}.cu".encode()
    (file,) = cache.iterdir()
    assert file.name.startswith("mingru_forward-") and file.suffix == ".cubin"
    again = Library()
    assert nvrtc.machine_code(again, program, "sm_90") == code and again.compiled == 0

    file.write_bytes(file.read_bytes()[:-1])  # cut off
    assert nvrtc.machine_code(again, program, "sm_90") == code and again.compiled == 1
    assert nvrtc.machine_code(again, program, "sm_90") == code and again.compiled == 1


def test_cache_file_depends_on_template_options_architecture_and_version(cache):
    exact = made()._replace(options=("--fmad=false",))
    library = Library()
    cases = (made(), "sm_90"), (made(), "sm_80"), (made(N=3), "sm_90"), (exact, "sm_90")
    for program, architecture in cases:
        nvrtc.machine_code(library, program, architecture)
    library.version = 13, 6
    nvrtc.machine_code(library, made(), "sm_90")
    assert library.compiled == 5 == len(list(cache.iterdir()))


def test_unwritable_cache_is_no_error(cache):
    cache.rmdir()
    cache.write_text("no folder")
    library = Library()
    for count in (1, 2):
        assert nvrtc.machine_code(library, made(), "sm_90") == made().text.encode()[::-1]
        assert library.compiled == count


def test_compiler_message_is_in_the_error(cache):
    library = Library()
    library.log = b"kernel.cu(3): error: no such thing\0"
    with pytest.raises(RuntimeError, match=r"mingru_forward_\w+ for sm_90: .* no such thing$"):
        nvrtc.machine_code(library, made(), "sm_90")
    assert not list(cache.iterdir())


@pytest.fixture
def launched(monkeypatch):
    """Emulate a machine with CUDA; return a list that gets the arguments of kernel launches."""
    launched: list[dict[str, Any]] = []

    def precompiled(**given):
        launched.append(given)
        shapes = zip(given["output_shapes"], given["output_dtypes"], strict=True)
        return [mx.zeros(shape, dtype) for shape, dtype in shapes]

    monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", precompiled)
    monkeypatch.setattr(mx, "device_info", lambda _: {"architecture": "sm_90"})
    monkeypatch.setattr(launch, "kernel_backend", lambda: "cuda")
    launch.compiled_kernel.cache_clear()
    yield launched
    launch.compiled_kernel.cache_clear()


def test_kernel_is_compiled_once_per_type_and_launched(cache, launched, monkeypatch):
    library = Library()
    monkeypatch.setattr(nvrtc, "load_nvrtc", lambda: library)
    for dtype in (mx.float32, mx.float32, mx.float16):
        out, _ = mingru_forward(mx.ones((1, 5, 6), dtype), mx.ones((1, 5, 2), dtype), None, None)
        assert out.dtype == dtype
    assert library.compiled == 2
    names = [given.pop("name") for given in launched]
    assert names[0] == names[1] == made().name != names[2]
    codes = [given.pop("compiled_source") for given in launched]
    assert codes[0] == made().text.encode()[::-1] != codes[2]
    *_, sizes = launched[0]["inputs"]
    assert sizes.tolist()[:3] == [1, 5, 2]
    assert (launched[0]["grid"], launched[0]["threadgroup"]) == ((10, 1, 1), (256, 1, 1))


def test_mlx_compiles_if_nvrtc_is_missing(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(mx.fast, "cuda_kernel", lambda **given: given["name"])
    nvrtc.load_nvrtc.cache_clear()
    launch.compiled_kernel.cache_clear()
    assert nvrtc.load_nvrtc() is None
    name: Any = launch.compiled_kernel(KERNELS_FILE, "mingru_forward", "cuda")
    assert name.startswith("mingru_forward_")
    launch.compiled_kernel.cache_clear()
    nvrtc.load_nvrtc.cache_clear()
