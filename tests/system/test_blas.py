"""MLX's matrix products against NumPy in float64, and which BLAS computes them."""

import ctypes
import itertools
import platform
import re
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from puffer_mlx.system import blas, compiler, prebuilt

linux = pytest.mark.skipif(platform.system() != "Linux", reason="macOS uses Accelerate")
numpy_openblas = pytest.mark.skipif(
    not any(Path(np.__file__).parents[1].glob("numpy.libs/*openblas*")),
    reason="this NumPy carries no OpenBLAS",
)

# (M, K, N): single rows and columns, and both sides of OpenBLAS's blocks (64 to 512) and of the
# size from which it uses threads.
SHAPES = [(1, 1, 1), (1, 7, 1), (3, 1, 5), (1, 64, 128), (64, 128, 1), (17, 31, 13), (64, 64, 64)]
SHAPES += [(65, 63, 129), (384, 256, 192), (513, 385, 257), (4096, 118, 128)]


@pytest.fixture
def random():
    return np.random.default_rng(0)


def check(ours: mx.array, exact: np.ndarray, terms: int):
    """``ours`` is the float32 rounding of ``exact``, a sum of that many terms of order 1."""
    assert ours.shape == exact.shape
    np.testing.assert_allclose(np.array(ours), exact, rtol=2e-5, atol=4e-7 * max(terms, 8))


def single(x: np.ndarray) -> mx.array:
    return mx.array(x, mx.float32)


def transposed(x: np.ndarray) -> mx.array:
    """``x``, stored column by column: BLAS is told to transpose it."""
    return mx.array(np.ascontiguousarray(x.T), mx.float32).T


def test_products_and_transposes(random):
    for (m, k, n), left, right in itertools.product(
        SHAPES, (single, transposed), (single, transposed)
    ):
        a, b = random.standard_normal((m, k)), random.standard_normal((k, n))
        check(left(a) @ right(b), a @ b, k)


def test_batches_and_broadcasts(random):
    for shape in [(3, 5, 7, 4), (6, 64, 65, 33), (2, 300, 129, 140)]:
        batch, m, k, n = shape
        a, b = random.standard_normal((batch, m, k)), random.standard_normal((batch, k, n))
        a32, b32 = single(a), single(b)
        check(a32 @ b32, a @ b, k)
        check(a32 @ b32[0], a @ b[0], k)
        check(a32[0] @ b32, a[0] @ b, k)
        check(a32[::-1] @ b32, a[::-1] @ b, k)
        check(a32.swapaxes(1, 2) @ a32, a.swapaxes(1, 2) @ a, m)


def test_strided_operands(random):
    a, b = random.standard_normal((130, 260)), random.standard_normal((390, 70))
    a32, b32 = single(a), single(b)
    check(a32[:, ::2] @ b32[::3], a[:, ::2] @ b[::3], 130)  # every 2nd column, every 3rd row
    check(a32[::2, 5:135] @ b32[:130, 1:], a[::2, 5:135] @ b[:130, 1:], 130)  # rows with gaps
    check(a32[:, 130:] @ b32[130:260], a[:, 130:] @ b[130:260], 130)  # an offset


def test_addmm(random):
    for m, k, n in [(5, 3, 4), (200, 129, 65)]:
        for alpha, beta in [(1.0, 1.0), (0.5, -2.0), (1.0, 0.0)]:
            a, b = random.standard_normal((m, k)), random.standard_normal((k, n))
            a32, b32 = single(a), single(b)
            for c in (random.standard_normal((m, n)), random.standard_normal(n)):
                ours = mx.addmm(single(c), a32, b32, alpha=alpha, beta=beta)
                check(ours, alpha * (a @ b) + beta * c, k)


def test_double_and_complex_products(random):
    """The shim's other two functions: float64 and complex64, the latter's scalars by address."""
    a, b = random.standard_normal((65, 97)), random.standard_normal((97, 33))
    with mx.stream(mx.cpu):
        double = mx.array(a, mx.float64) @ mx.array(b, mx.float64)
    np.testing.assert_allclose(np.array(double), a @ b, rtol=1e-12, atol=1e-13)
    a, b = a + 1j * a[::-1], b - 2j * b[::-1]
    with mx.stream(mx.cpu):
        ours = mx.array(a.astype(np.complex64)) @ mx.array(b.astype(np.complex64))
    np.testing.assert_allclose(np.array(ours), a @ b, rtol=2e-5, atol=2e-4)


@linux
def test_the_shim_covers_every_blas_function_mlx_takes():
    library = Path(mx.__file__).parent / "lib" / "libmlx.so"
    taken = set(re.findall(rb"\0(cblas_\w+)(?=\0)", library.read_bytes()))
    assert taken == {f"cblas_{name}".encode() for name in blas.GEMMS}


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter whose environment is ``environment`` alone."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


# Where libmlx.so's cblas_sgemm comes from: the global scope, and the memory map.
WHERE = """
import ctypes
import puffer_mlx
from puffer_mlx.system import blas
import mlx.core as mx

class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]

mx.eval(mx.ones((64, 64)) @ mx.ones((64, 64)))
process, info = ctypes.CDLL(None), Info()
print(blas.blas_name())
for name in blas.GEMMS:
    try:
        symbol = ctypes.cast(getattr(process, "cblas_" + name), ctypes.c_void_p)
    except AttributeError:
        print("not global")
    else:
        assert process.dladdr(symbol, ctypes.byref(info))
        print(info.file.decode())
"""


@linux
@numpy_openblas
def test_products_go_through_the_shim_to_numpys_openblas(tmp_path):
    done = python(WHERE, PUFFER_MLX_CACHE=str(tmp_path))
    said = [line for line in done.stderr.splitlines() if "compiling" not in line]  # that it is slow
    assert (done.returncode, said) == (0, [])
    name, *files = done.stdout.splitlines()
    assert re.fullmatch(r"OpenBLAS \d+\.\S+ \(NumPy's\)", name)
    assert len(files) == 3
    for file in files:
        assert "blas_shim" in Path(file).name
        assert Path(file).is_relative_to(tmp_path)
    again = python(WHERE, PUFFER_MLX_CACHE=str(tmp_path), PATH="/nonexistent")  # needs no compiler
    assert (again.stdout, again.stderr) == (done.stdout, "")


@linux
@numpy_openblas
def test_the_shim_is_called(tmp_path):
    """Counts calls: MLX's product must reach the shim, whose target is replaced by a counter."""
    code = """
import ctypes
import puffer_mlx
from puffer_mlx.system import blas
import mlx.core as mx
calls = []
gemm = ctypes.CFUNCTYPE(None, *[ctypes.c_int] * 3, *[ctypes.c_int64] * 3, ctypes.c_float)
counter = gemm(lambda *args: calls.append(args[3:6]))
target = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "puffer_mlx_sgemm")
target.value = ctypes.cast(counter, ctypes.c_void_p).value
mx.eval(mx.ones((5, 6), mx.float32) @ mx.ones((6, 7), mx.float32))
print(calls)
"""
    done = python(code, PUFFER_MLX_CACHE=str(tmp_path))
    assert done.stdout in ("[(5, 7, 6)]\n", "[(7, 5, 6)]\n"), done.stderr


SLOW = r"puffer_mlx: MLX's CPU backend keeps its slow reference BLAS: .+; hint: .+\n"


def system_openblas() -> bool:
    try:
        ctypes.CDLL("libopenblas.so.0")
    except OSError:
        return False
    return True


LOSSES = {  # code before the import, the environment, what is said
    "no compiler": ("", {"PATH": "/nonexistent"}, ""),
    "an unwritable cache": ("", {"PUFFER_MLX_CACHE": "{}/file"}, ""),
    "MLX came first": ("import mlx.core\n", {}, "mlx was imported first"),
}


@linux
@pytest.mark.skipif(system_openblas(), reason="the system's OpenBLAS would serve")
@pytest.mark.parametrize("what", LOSSES)
def test_one_line_says_that_products_are_slow(tmp_path, what):
    (tmp_path / "file").touch()
    before, environment, said = LOSSES[what]
    environment = {key: value.format(tmp_path) for key, value in environment.items()}
    done = python(before + WHERE, **{"PUFFER_MLX_CACHE": str(tmp_path), **environment})
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(SLOW, done.stderr) and said in done.stderr
    assert done.stdout.splitlines() == ["reference (slow)", *["not global"] * 3]


@linux
def test_a_preloaded_blas_stays(tmp_path):
    """Whoever sets LD_PRELOAD has chosen: an empty stand-in is enough to be respected."""
    (tmp_path / "mine.c").write_text("void cblas_sgemm(void) {}\n")
    mine = tmp_path / "mine.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", mine, tmp_path / "mine.c"], check=True)
    code = "from puffer_mlx.system import blas; print(blas.blas_name(), blas.get_blas_threads())"
    done = python(code, PUFFER_MLX_CACHE=str(tmp_path), LD_PRELOAD=str(mine))
    assert (done.stdout, done.stderr) == ("preloaded 0\n", "")


@linux
@numpy_openblas
def test_threads_can_be_set():
    assert blas.blas_name().startswith("OpenBLAS"), "the products above ran on MLX's own BLAS"
    before = blas.get_blas_threads()
    try:
        for threads in (1, 2):
            blas.set_blas_threads(threads)
            assert blas.get_blas_threads() == threads
        with pytest.raises(ValueError, match="at least 1, got 0"):
            blas.set_blas_threads(0)
    finally:
        blas.set_blas_threads(before)


def test_mlxs_wheels_are_read_from_names_alone(tmp_path, monkeypatch):
    """Reading the metadata of all that is installed takes half a second."""
    from puffer_mlx.system import version

    for name in "mlx-0.32.4", "mlx_cpu-0.32.4", "mlx_cuda_13-0.32.4", "other-1.0":
        (tmp_path / f"{name}.dist-info").mkdir()
    (tmp_path / "mlx-0.32.4.dist-info" / "METADATA").write_text("Name: mlx\nVersion: 0.32.4\n")
    monkeypatch.setattr(version.importlib.metadata, "distributions", None)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert version._mlx_version() == "0.32.4 (mlx-cpu, mlx-cuda-13)"


def test_version_text_names_what_a_bug_report_needs():
    from puffer_mlx.system.version import version_text

    lines = dict(line.split(maxsplit=1) for line in version_text().splitlines())
    assert list(lines) == ["puffer_mlx", "Python", "MLX", "device", "BLAS", "platform"]
    assert lines["Python"] == platform.python_version()
    assert lines["BLAS"].startswith(blas.blas_name())


# ---- the shim of a wheel -------------------------------------------------------------------------


@linux
def test_the_wheels_shim_needs_no_compiler(monkeypatch, tmp_path):
    library = blas.compile_shim("int64_t")
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.delenv("PUFFER_MLX_NO_PREBUILT", raising=False)
    prebuilt.add(tmp_path, blas.SHIM, "", blas.shim_for("int64_t"), library)
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(compiler, "load_compiled", lambda compile, load: (library, None))
    path, shim = blas._shim("int64_t")
    assert path == tmp_path / "blas_shim.so"
    assert all(hasattr(shim, f"cblas_{name}") for name in blas.GEMMS)
    assert blas._shim("int")[0] == library  # for an OpenBLAS with narrower integers


@linux
def test_a_shim_that_does_not_load_is_compiled(monkeypatch, tmp_path):
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.delenv("PUFFER_MLX_NO_PREBUILT", raising=False)
    other = tmp_path / "other"
    other.write_bytes(b"for another C library")
    prebuilt.add(tmp_path, blas.SHIM, "", blas.shim_for("int64_t"), other)
    path, _ = blas._shim("int64_t")
    assert path == blas.compile_shim("int64_t")
