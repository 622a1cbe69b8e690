"""Files that are written while MLX computes nothing: the same tensors."""

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint import tensor_files

TENSORS = {
    "b": mx.array([[1.5, -2.0, 3.0]]),
    "a.long": mx.array([1, 2, 3], mx.uint8),
    "half": mx.array([0.5, 1.0], mx.bfloat16),
    "scalar": mx.array(7, mx.int64),
}


def test_the_file_is_read_as_any_other(tmp_path, monkeypatch):
    mx.eval(TENSORS)
    tensor_files.write(tmp_path / "usual.safetensors", TENSORS, {"score": "1"})
    with monkeypatch.context() as patch:
        patch.delattr(mx, "save_safetensors")
        with tensor_files.without_mlx():
            tensor_files.write(tmp_path / "stuck.safetensors", TENSORS, {"score": "1"})
    usual, about = tensor_files.read(tmp_path / "usual.safetensors")
    stuck, same = tensor_files.read(tmp_path / "stuck.safetensors")
    assert about == same == {"score": "1"} and usual.keys() == stuck.keys()
    for name, array in usual.items():
        assert stuck[name].dtype == array.dtype
        np.testing.assert_array_equal(
            np.array(stuck[name].astype(mx.float32)), np.array(array.astype(mx.float32))
        )
    theirs = mx.load(str(tmp_path / "stuck.safetensors"))
    assert theirs.keys() == usual.keys()  # type: ignore
