"""The kernel that packs many arrays into one, and plain MLX, against NumPy."""

import mlx.core as mx
import numpy as np
import pytest
from emulated_run import alternate, emulated_gpu

from puffer_mlx.ops.pack import launch_pack, launch_pack_as, pack_arrays

CASES = {  # shapes, multiple. A launch takes 24 arrays.
    "one launch": ([(5,), (), (40, 30), (1, 1), (1024,), (2, 3, 1, 2)], 1024),
    "two launches": ([(n % 5 + 1,) for n in range(25)], 1),
    "three launches": ([(n % 7 + 1, 3) for n in range(49)], 16),
}


def drawn(shapes):
    rng = np.random.default_rng(len(shapes))
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def expected(arrays, multiple):
    flat = np.zeros(0)
    for array in arrays:
        flat = np.append(flat, array.ravel())
        flat = np.append(flat, np.zeros(-len(flat) % multiple))
    blocks = np.append(flat, np.zeros(-len(flat) % 1024)).reshape(-1, 1024)
    return flat, (blocks**2).sum(axis=1)


def check(found, case):
    shapes, multiple = CASES[case]
    flat, squares = expected(drawn(shapes), multiple)
    np.testing.assert_array_equal(np.array(found[0]), flat.astype(np.float32))
    np.testing.assert_allclose(np.array(found[1]), squares, rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_pack_equals_numpy(case):
    shapes, multiple = CASES[case]
    check(pack_arrays([mx.array(a) for a in drawn(shapes)], multiple), case)


@pytest.mark.parametrize(("backend", "case"), alternate((case,) for case in CASES))
def test_kernel_packs_in_few_launches(backend, case):
    shapes, multiple = CASES[case]
    with emulated_gpu(backend=backend, checked=True) as gpu:
        check(launch_pack([mx.array(a) for a in drawn(shapes)], multiple), case)
    assert len(gpu.launches) == 1 + [*CASES].index(case)


@pytest.mark.parametrize(
    ("backend", "dtype", "shapes"),
    [
        ("metal", mx.bfloat16, CASES["one launch"][0]),
        ("cuda", mx.float32, [(n % 5 + 1,) for n in range(24)]),
    ],
)
def test_pack_as_casts_like_mlx(backend, dtype, shapes):
    arrays = drawn(shapes)
    with emulated_gpu(backend=backend, checked=True) as gpu:
        found = launch_pack_as(dtype, [mx.array(array) for array in arrays])
    assert len(gpu.launches) == 1 and found.dtype == dtype
    flat, _ = expected(arrays, 1024)
    assert mx.array_equal(found, mx.array(flat.astype(np.float32)).astype(dtype))
