"""Graphs of a GPU that isn't there."""

import mlx.core as mx
import pytest

from puffer_mlx.ops.gpu import launch
from puffer_mlx.ops.pack import launch_pack, pack
from puffer_mlx.system.backend import backend, building_for, kernel_substitute
from puffer_mlx.system.devices import unified


def test_the_default_device_counts(monkeypatch):
    assert backend() == "cpu" and kernel_substitute() is None
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert backend() == launch.backend() in ("metal", "cuda")


@pytest.mark.parametrize("name", ["metal", "cuda"])
def test_operations_are_built_for_another(name):
    calls = []

    def kernel(name, *, output_shapes, output_dtypes, **given):
        calls.append((name, [array.shape for array in given["inputs"]]))
        shapes = zip(output_shapes, output_dtypes, strict=True)
        return [mx.full(shape, 7, dtype) for shape, dtype in shapes]

    x = mx.zeros((3, 2))
    with building_for(name, kernel):
        assert backend() == launch.backend() == name
        assert pack.choose() is launch_pack
        assert unified() == (name == "metal")
        assert pack([x])[0].tolist() == [7] * 6
    [(called, shapes)] = calls
    assert called == "pack" and (3, 2) in shapes
    assert backend() == "cpu" and kernel_substitute() is None
    assert pack([x])[0].tolist() == [0] * 6


def test_it_ends_where_something_fails():
    with pytest.raises(ZeroDivisionError), building_for("metal", lambda *_, **__: []):
        raise ZeroDivisionError
    assert backend() == "cpu"
