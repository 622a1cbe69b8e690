"""Many arrays in one: the kernel and plain MLX against NumPy."""

import mlx.core as mx
import numpy as np
import pytest
from emulated_gpu import Compiled, recording

from puffer_mlx.ops import cast
from puffer_mlx.ops.pack import launch_cast, launch_pack, pack

# Of few, of as many as a launch takes and one more, and of a third launch.
CASES = {
    "one": ([(3, 7)], 1024),
    "some": ([(5,), (), (40, 30), (1, 1), (1024,), (2, 3, 1, 2)], 1024),
    "scalars": ([()] * 5, 1),
    "a launch": ([(n % 5 + 1,) for n in range(24)], 1),
    "one more": ([(n % 5 + 1,) for n in range(25)], 1),
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
def test_plain(case):
    shapes, multiple = CASES[case]
    check(pack([mx.array(a) for a in drawn(shapes)], multiple), case)


@pytest.mark.parametrize("backend", ["metal", "cuda"])
def test_kernel(backend, tmp_path):
    def function(multiple):
        return lambda *arrays: launch_pack(arrays, multiple)

    with recording(backend) as recorder:
        calls = {
            case: recorder.record_all(function(multiple), *drawn(shapes))
            for case, (shapes, multiple) in CASES.items()
        }
    assert [len(numbers) for numbers in calls.values()] == [1, 1, 1, 1, 2, 3]
    compiled = Compiled(recorder, tmp_path)
    for case, (shapes, multiple) in CASES.items():
        arrays = [mx.array(a) for a in drawn(shapes)]
        check(compiled.play(calls[case], function(multiple), *arrays), case)


@pytest.mark.parametrize("low", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize("backend", ["metal", "cuda"])
def test_casts(backend, low, tmp_path):
    """To a type and back: as MLX casts each alone, in a launch for each 24."""
    case = [drawn(shapes) for shapes, _ in (CASES["some"], CASES["one more"])]
    functions = {dtype: lambda *a, d=dtype: launch_cast(a, d) for dtype in (low, mx.float32)}
    with recording(backend) as recorder:
        calls = []
        for arrays in case:
            for dtype, given in ((low, mx.float32), (mx.float32, low)):
                samples = [mx.array(a).astype(given) for a in arrays]
                calls.append((recorder.record_all(functions[dtype], *samples), dtype, samples))
    assert [len(numbers) for numbers, *_ in calls] == [1, 1, 2, 2]
    compiled = Compiled(recorder, tmp_path)
    for numbers, dtype, samples in calls:
        found = compiled.play(numbers, functions[dtype], *samples)
        for one, other in zip(found, cast(samples, dtype), strict=True):
            assert one.dtype == other.dtype == dtype and one.shape == other.shape
            assert mx.array_equal(one, other)
