"""Graphs for a GPU are built on a machine without one."""

import mlx.core as mx
import pytest

from puffer_mlx.ops.gpu import launch
from puffer_mlx.ops.pack import launch_pack, pack
from puffer_mlx.system.backend import backend, building_for, kernel_substitute
from puffer_mlx.system.devices import unified


def test_backend_is_that_of_the_default_device(monkeypatch):
    assert backend() == "cpu" and kernel_substitute() is None
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert backend() == launch.backend() in ("metal", "cuda")


@pytest.mark.parametrize("name", ["metal", "cuda"])
def test_building_for_a_gpu_calls_the_substitute_until_it_ends(name):
    calls = []

    def kernel(name, *, output_shapes, output_dtypes, **given):
        calls.append((name, [array.shape for array in given["inputs"]]))
        shapes = zip(output_shapes, output_dtypes, strict=True)
        return [mx.full(shape, 7, dtype) for shape, dtype in shapes]

    x = mx.zeros((3, 2))
    with pytest.raises(ZeroDivisionError), building_for(name, kernel):
        assert backend() == launch.backend() == name
        assert pack.choose() is launch_pack
        assert unified() == (name == "metal")
        assert pack([x])[0].tolist() == [7] * 6
        raise ZeroDivisionError
    [(called, shapes)] = calls
    assert called == "pack" and (3, 2) in shapes
    assert backend() == "cpu" and kernel_substitute() is None
    assert pack([x])[0].tolist() == [0] * 6
