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
from hypothesis import given, settings
from hypothesis import strategies as st

from puffer_mlx.system import blas, compiler, prebuilt, version

linux = pytest.mark.skipif(platform.system() != "Linux", reason="macOS uses Accelerate")
numpy_openblas = pytest.mark.skipif(
    not any(Path(np.__file__).parents[1].glob("numpy.libs/*openblas*")),
    reason="this NumPy carries no OpenBLAS",
)

SIZES = st.sampled_from([1, 3, 7, 17, 31, 63, 64, 65, 129, 200, 257, 385])  # around BLAS's blocks
FLAG = st.booleans()


def operand(random: np.random.Generator, shape: tuple[int, ...], how: dict[str, bool]):
    """Return a float64 array and the same numbers as a float32 array of MLX."""
    rows, columns = shape[-2:]
    stored = (*shape[:-2], rows * (1 + how["rows apart"]), columns + 3 * how["gaps"])
    x = random.standard_normal(stored)
    if how["transposed"]:
        y = mx.array(np.ascontiguousarray(x.swapaxes(-1, -2)), mx.float32).swapaxes(-1, -2)
    else:
        y = mx.array(x, mx.float32)
    step = 1 + how["rows apart"]
    return x[..., ::step, -columns:], y[..., ::step, -columns:]


LAYOUT = st.fixed_dictionaries({"transposed": FLAG, "rows apart": FLAG, "gaps": FLAG})


@given(m=SIZES, k=SIZES, n=SIZES, batch=st.sampled_from([(), (3,)]), left=LAYOUT, right=LAYOUT)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_products_of_any_layout_are_numpys(m, k, n, batch, left, right):
    random = np.random.default_rng(m * k * n)
    a, a32 = operand(random, (*batch, m, k), left)
    b, b32 = operand(random, (k, n), right)  # broadcast over a batch
    np.testing.assert_allclose(np.array(a32 @ b32), a @ b, rtol=2e-5, atol=4e-7 * max(k, 8))
    c = random.standard_normal(n)
    sums = mx.addmm(mx.array(c, mx.float32), a32, b32, alpha=0.5, beta=-2.0)
    expected = 0.5 * (a @ b) - 2 * c
    np.testing.assert_allclose(np.array(sums), expected, rtol=2e-5, atol=4e-7 * max(k, 8))


def test_products_of_many_threads_are_numpys():
    random = np.random.default_rng(0)
    a, b = random.standard_normal((4096, 118)), random.standard_normal((118, 128))
    ours = mx.array(a, mx.float32) @ mx.array(b, mx.float32)
    np.testing.assert_allclose(np.array(ours), a @ b, rtol=2e-5, atol=5e-5)


def test_double_and_complex_products_are_numpys():
    random = np.random.default_rng(0)
    a, b = random.standard_normal((65, 97)), random.standard_normal((97, 33))
    with mx.stream(mx.cpu):
        double = mx.array(a, mx.float64) @ mx.array(b, mx.float64)
    np.testing.assert_allclose(np.array(double), a @ b, rtol=1e-12, atol=1e-13)
    a = a + 1j * a[::-1]
    b = b - 2j * b[::-1]
    with mx.stream(mx.cpu):
        ours = mx.array(a.astype(np.complex64)) @ mx.array(b.astype(np.complex64))
    np.testing.assert_allclose(np.array(ours), a @ b, rtol=2e-5, atol=2e-4)


@linux
def test_shim_covers_every_blas_function_that_mlx_uses():
    library = Path(mx.__file__).parent / "lib" / "libmlx.so"
    taken = set(re.findall(rb"\0(cblas_\w+)(?=\0)", library.read_bytes()))
    assert taken == {f"cblas_{name}".encode() for name in blas.GEMMS}


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter with this environment alone."""
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
def test_products_use_numpys_openblas_and_a_cached_shim(tmp_path):
    done = python(WHERE, PUFFER_MLX_CACHE=str(tmp_path))
    said = [line for line in done.stderr.splitlines() if "compiling" not in line]
    assert (done.returncode, said) == (0, [])
    name, *files = done.stdout.splitlines()
    assert re.fullmatch(r"OpenBLAS \d+\.\S+ \(NumPy's\)", name)
    assert [Path(file).parent for file in files] == [tmp_path] * 3
    assert all("blas_shim" in Path(file).name for file in files)
    again = python(WHERE, PUFFER_MLX_CACHE=str(tmp_path), PATH="/nonexistent")  # no compiler
    assert (again.stdout, again.stderr) == (done.stdout, "")


COUNTED = """
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


@linux
@numpy_openblas
def test_product_of_mlx_calls_the_shims_target(tmp_path):
    done = python(COUNTED, PUFFER_MLX_CACHE=str(tmp_path))
    assert done.stdout in ("[(5, 7, 6)]\n", "[(7, 5, 6)]\n"), done.stderr


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
    done = python(before + WHERE, PUFFER_MLX_CACHE=str(tmp_path), **environment)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(SLOW, done.stderr) and said in done.stderr
    assert done.stdout.splitlines() == ["reference (slow)", *["not global"] * 3]


@linux
def test_preloaded_blas_is_used(tmp_path):
    (tmp_path / "mine.c").write_text("void cblas_sgemm(void) {}\n")
    mine = tmp_path / "mine.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", mine, tmp_path / "mine.c"], check=True)
    code = "from puffer_mlx.system import blas; print(blas.blas_name(), blas.get_blas_threads())"
    done = python(code, PUFFER_MLX_CACHE=str(tmp_path), LD_PRELOAD=str(mine))
    assert (done.stdout, done.stderr) == ("preloaded 0\n", "")


@linux
@numpy_openblas
def test_threads_can_be_set():
    before = blas.get_blas_threads()
    try:
        blas.set_blas_threads(2)
        assert blas.get_blas_threads() == 2
        with pytest.raises(ValueError, match="at least 1, got 0"):
            blas.set_blas_threads(0)
    finally:
        blas.set_blas_threads(before)


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
    prebuilt.add(tmp_path, blas.SHIM, "", blas.shim_for("int64_t"), other)
    assert blas._shim("int64_t")[0] == library
    (tmp_path / prebuilt.LIST).unlink()
    prebuilt.add(tmp_path, blas.SHIM, "", blas.shim_for("int64_t"), library)
    monkeypatch.setattr(compiler, "load_compiled", lambda *_: pytest.fail("it compiles"))
    path, shim = blas._shim("int64_t")
    assert path == tmp_path / "blas_shim.so"
    assert all(hasattr(shim, f"cblas_{name}") for name in blas.GEMMS)
