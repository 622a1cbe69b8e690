"""MLX's matrix products are NumPy's in float64, and the shim's BLAS computes them."""

import ctypes
import platform
import re
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from puffer_mlx.system import blas, compiler, prebuilt, version

linux = pytest.mark.skipif(platform.system() != "Linux", reason="macOS uses Accelerate")
numpy_openblas = pytest.mark.skipif(
    not any(Path(np.__file__).parents[1].glob("numpy.libs/*openblas*")),
    reason="this NumPy carries no OpenBLAS",
)


def operand(random: np.random.Generator, shape: tuple[int, ...], layout: str):
    """Return a random float64 operand and the equal MLX array, in a given memory layout."""
    x = random.standard_normal(shape)
    rows = np.repeat(x, 2, axis=-2)
    margin = np.zeros((*shape[:-1], 3))
    stored = {
        "plain": lambda: mx.array(x, mx.float32),
        "transposed": lambda: mx.array(x.swapaxes(-1, -2), mx.float32).swapaxes(-1, -2),
        "every second row": lambda: mx.array(rows, mx.float32)[..., ::2, :],
        "gaps": lambda: mx.array(np.concatenate([margin, x], -1), mx.float32)[..., 3:],
    }
    return x, stored[layout]()


@pytest.mark.parametrize(  # single rows and columns, and both sides of OpenBLAS's blocks
    ("shape", "columns", "left", "right"),
    [
        ((1, 64), 1, "plain", "transposed"),
        ((2, 65, 63), 129, "transposed", "transposed"),
        ((17, 31), 13, "every second row", "gaps"),
        ((3, 129, 257), 65, "gaps", "every second row"),
        ((4096, 118), 128, "plain", "plain"),  # threads
    ],
)
def test_products_are_numpys(shape, columns, left, right):
    """The right operand is broadcast over a batch."""
    random = np.random.default_rng(0)
    a, a32 = operand(random, shape, left)
    b, b32 = operand(random, (shape[-1], columns), right)
    c = random.standard_normal(columns)
    bound = 4e-7 * max(shape[-1], 8)
    np.testing.assert_allclose(np.array(a32 @ b32), a @ b, rtol=2e-5, atol=bound)
    sums = mx.addmm(mx.array(c, mx.float32), a32, b32, alpha=0.5, beta=-2.0)
    np.testing.assert_allclose(np.array(sums), 0.5 * (a @ b) - 2 * c, rtol=2e-5, atol=bound)


@linux
def test_shim_covers_every_blas_function_that_mlx_uses():
    library = Path(mx.__file__).parent / "lib" / "libmlx.so"
    taken = set(re.findall(rb"\0(cblas_\w+)(?=\0)", library.read_bytes()))
    assert taken == {f"cblas_{name}".encode() for name in blas.GEMMS}


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new interpreter with these environment variables alone."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


# Prints the BLAS's name, and the sizes of a product that reaches the shim's target.
CALLED = """
import ctypes
import puffer_mlx
from puffer_mlx.system import blas
import mlx.core as mx

calls = []
gemm = ctypes.CFUNCTYPE(None, *[ctypes.c_int] * 3, *[ctypes.c_int64] * 3, ctypes.c_float)
counter = gemm(lambda *args: calls.append(sorted(args[3:6])))
print(blas.blas_name())
if hasattr(ctypes.CDLL(None), "puffer_mlx_sgemm"):
    target = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "puffer_mlx_sgemm")
    target.value = ctypes.cast(counter, ctypes.c_void_p).value
mx.eval(mx.ones((5, 6), mx.float32) @ mx.ones((6, 7), mx.float32))
print(calls)
"""


@linux
@numpy_openblas
def test_products_call_numpys_openblas_through_a_cached_shim(tmp_path):
    done = python(CALLED, PUFFER_MLX_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    name, calls = done.stdout.splitlines()
    assert re.fullmatch(r"OpenBLAS \d+\.\S+ \(NumPy's\)", name) and calls == "[[5, 6, 7]]"
    assert [*tmp_path.glob("blas_shim*.so")]
    again = python(CALLED, PUFFER_MLX_CACHE=str(tmp_path), PATH="/nonexistent")  # no compiler
    assert (again.stdout, again.stderr) == (done.stdout, "")


SLOW = r"puffer_mlx: MLX's CPU backend keeps its slow reference BLAS: .+; hint: .+\n"


def system_openblas() -> bool:
    try:
        ctypes.CDLL("libopenblas.so.0")
    except OSError:
        return False
    return True


@linux
@pytest.mark.skipif(system_openblas(), reason="the system's OpenBLAS would serve")
@pytest.mark.parametrize(
    ("before", "environment", "said"),
    [
        ("", {"PATH": "/nonexistent"}, ""),
        ("import mlx.core\n", {}, "mlx was imported first"),
    ],
    ids=["no compiler", "MLX first"],
)
def test_one_line_says_that_products_are_slow(tmp_path, before, environment, said):
    done = python(before + CALLED, PUFFER_MLX_CACHE=str(tmp_path), **environment)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(SLOW, done.stderr) and said in done.stderr
    assert done.stdout.splitlines() == ["reference (slow)", "[]"]


@linux
def test_preloaded_blas_is_used(tmp_path):
    (tmp_path / "mine.c").write_text("void cblas_sgemm(void) {}\n")
    mine = tmp_path / "mine.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", mine, tmp_path / "mine.c"], check=True)
    code = "from puffer_mlx.system import blas; print(blas.blas_name(), blas.get_blas_threads())"
    done = python(code, PUFFER_MLX_CACHE=str(tmp_path), LD_PRELOAD=str(mine))
    assert (done.stdout, done.stderr) == ("preloaded 0\n", "")


def test_version_text_names_what_a_bug_report_needs(tmp_path, monkeypatch):
    """MLX's wheels are read from names: reading all metadata takes half a second."""
    for name in "mlx-0.32.4", "mlx_cpu-0.32.4", "mlx_cuda_13-0.32.4", "other-1.0":
        (tmp_path / f"{name}.dist-info").mkdir()
    (tmp_path / "mlx-0.32.4.dist-info" / "METADATA").write_text("Name: mlx\nVersion: 0.32.4\n")
    monkeypatch.setattr(version.importlib.metadata, "distributions", None)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    lines = dict(line.split(maxsplit=1) for line in version.version_text().splitlines())
    assert list(lines) == ["puffer_mlx", "Python", "MLX", "device", "BLAS", "platform"]
    assert lines["MLX"] == "0.32.4 (mlx-cpu, mlx-cuda-13)"
    assert lines["Python"] == platform.python_version()
    assert lines["BLAS"].startswith(blas.blas_name())


@linux
def test_shim_of_a_wheel_needs_no_compiler_and_a_damaged_one_is_compiled(monkeypatch, tmp_path):
    library = blas.compile_shim("int64_t")
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.delenv("PUFFER_MLX_NO_PREBUILT", raising=False)
    other = tmp_path / "other"
    other.write_bytes(b"for another C library")
    prebuilt.add_library(tmp_path, blas.SHIM, "", blas.shim_versions("int64_t"), other)
    assert blas._shim("int64_t")[0] == library
    (tmp_path / prebuilt.LIST_FILE).unlink()
    prebuilt.add_library(tmp_path, blas.SHIM, "", blas.shim_versions("int64_t"), library)
    monkeypatch.setattr(compiler, "load_compiled", lambda *_: pytest.fail("it compiles"))
    path, shim = blas._shim("int64_t")
    assert path == tmp_path / "blas_shim.so"
    assert all(hasattr(shim, f"cblas_{name}") for name in blas.GEMMS)
