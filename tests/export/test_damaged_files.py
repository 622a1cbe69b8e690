"""Damaged files of every format: each loads, or one message names the file and the reason."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from policy_files import configuration_of

from puffer_mlx.checkpoint.flat_files import save_bin
from puffer_mlx.config import Config, Policy
from puffer_mlx.errors import UserError
from puffer_mlx.export import importing
from puffer_mlx.export.formats.onnx import save_onnx
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

SPEC = EnvSpec("x", 5, np.dtype(np.float32), ActionSpec((3,)))
FLIPS = 40  # of each file; half of them in its first quarter, where headers are
NEEDS = {"onnx": ["onnx", "onnxruntime"], "pt": ["torch"]}
METADATA = {
    "puffer_mlx": "1",
    "observation_size": "5",
    "actions": "[3]",
    "policy.dialect": "native",
    "policy.hidden_size": "8",
    "policy.num_layers": "1",
    "torch.network": "MinGRU",
    "torch.encoder": "DefaultEncoder",
}


def tensors_of(**changed: Any) -> dict[str, mx.array]:
    """A small policy's weights by name, some of them changed, or left out by None."""
    weights = make_policy(SPEC, Policy(8, 1)).init(mx.random.key(0))
    tensors = {
        "encoder.weight": weights["encoder"]["weight"],
        "decoder.weight": weights["decoder"]["weight"],
        "network.0.weight": weights["network"][0]["weight"],
    }
    return {name: w for name, w in (tensors | changed).items() if w is not None}


def write(kind: str, folder):
    """A whole file of a small policy."""
    for package in NEEDS.get(kind, []):
        pytest.importorskip(package)
    path = folder / f"w.{kind}"
    policy = make_policy(SPEC, Policy(8, 1))
    weights = policy.init(mx.random.key(0))
    if kind == "onnx":
        save_onnx(policy, weights, path, METADATA, {})
    elif kind == "safetensors":  # without a checksum: what is changed isn't noticed by it
        mx.save_safetensors(str(path), tensors_of(), METADATA)
    elif kind == "bin":
        save_bin(policy, weights, path)
    else:
        import torch

        from puffer_mlx.export.weight_layouts import to_torch

        policy = make_policy(SPEC, Policy(8, 1, "torch"))
        arrays = to_torch(policy, policy.init(mx.random.key(0)))
        torch.save({key: torch.from_numpy(w) for key, w in arrays.items()}, path)
    return path


def load(path) -> None:
    """Import a file, as the command does."""
    source = importing.inspect(path)
    settings = source.settings
    settings |= source.file.sizes_for(source, SPEC, Config(policy=Policy(8, 1)))
    settings = {key: text for key, text in settings.items() if ":" not in text}
    config = configuration_of({"policy.hidden_size": "8", "policy.num_layers": "1", **settings})
    policy, weights = importing.convert_weights(source, SPEC, config)
    compared = importing.difference(source, policy, weights, SPEC)
    if compared and not compared.same:
        raise UserError(f"{path} computes something else", "the file is damaged")


def check(path) -> bool:
    """Return True if a file loads; else assert that one message names it."""
    try:
        load(path)
    except UserError as error:
        assert str(path) in error.message and error.hint
        return False
    return True


KINDS = pytest.mark.parametrize("kind", ["onnx", "safetensors", "bin", "pt"])


@KINDS
def test_whole_files_load(kind, tmp_path):
    assert check(write(kind, tmp_path))


@pytest.mark.filterwarnings("ignore:.*lacks the last")
@KINDS
def test_files_that_end_early(kind, tmp_path):
    path = write(kind, tmp_path)
    data = path.read_bytes()
    ends = {0, 1, 3, 7, 8, 9, len(data) - 8, len(data) - 1, *range(0, len(data), len(data) // 24)}
    for end in ends:
        path.write_bytes(data[:end])
        loads = check(path)
        assert not loads or kind == "bin", end  # its size may be another policy's


@KINDS
def test_files_with_bytes_changed(kind, tmp_path):
    path, rng = write(kind, tmp_path), np.random.default_rng(0)
    data = path.read_bytes()
    for i in range(FLIPS):
        at = int(rng.integers(len(data) // 4 if i % 2 else len(data)))
        changed = bytearray(data)
        changed[at] ^= 1 << int(rng.integers(8)) if i % 4 else 255
        path.write_bytes(changed)
        check(path)


@KINDS
def test_files_of_other_bytes(kind, tmp_path):
    path, rng = write(kind, tmp_path), np.random.default_rng(0)
    begin = path.read_bytes()[:16]
    for size in 1, 16, 4000:
        path.write_bytes(rng.bytes(size))
        check(path)
        path.write_bytes(begin + rng.bytes(size))
        check(path)
    path.unlink()
    path.mkdir()
    assert not check(path)


# ---- structure -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (3,), (8, 5), (2, 3, 4), (8, 0)])
@pytest.mark.parametrize("name", ["encoder.weight", "decoder.weight", "network.0.weight"])
@pytest.mark.parametrize("metadata", [METADATA, {}], ids=["metadata", "none"])
def test_tensors_of_other_shapes(tmp_path, name, shape, metadata):
    tensors = tensors_of(**{name: mx.zeros(shape)})
    mx.save_safetensors(str(tmp_path / "w.safetensors"), tensors, metadata)
    assert check(tmp_path / "w.safetensors") == (shape == (8, 5) and name == "encoder.weight")


@pytest.mark.parametrize("text", ["", "x", "-1", "1e400", "nan", "9" * 5000, "[" * 3000])
@pytest.mark.parametrize("key", [key for key in METADATA if key != "puffer_mlx"])
def test_metadata_that_make_no_sense(tmp_path, key, text):
    path = tmp_path / "w.safetensors"
    mx.save_safetensors(str(path), tensors_of(), {**METADATA, key: text})
    assert not check(path)


@pytest.mark.parametrize("shape", [[1] * 100, [0, 10**30], [10**9, 10**9], [2**31, 0]])
def test_shapes_that_no_array_has(tmp_path, shape):
    header = b'{"a": {"dtype": "F32", "shape": %s, "data_offsets": [0, 4]}}' % str(shape).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert not check(path)


ONNX = [  # of a model m and its first tensor t
    "t.raw_data = t.raw_data[:-8]",
    "t.dims[:] = [10**9, 10**9]",
    "t.dims[:] = [-1, -8]",
    "t.dims[:] = []",
    "t.data_type = 77",
    "t.data_type = 10",  # half as many bytes as there are
    "t.name = ''",
    "t.CopyFrom(onnx.helper.make_tensor(t.name, 8, [1], [b'a']))",
    "t.CopyFrom(onnx.numpy_helper.from_array(np.zeros((8, 5)), t.name))",
    "t.CopyFrom(onnx.numpy_helper.from_array(np.full((8, 5), np.nan, 'f4'), t.name))",
    "del m.graph.node[:]",
    "del m.graph.node[3:]",
    "m.graph.node.reverse()",
    "m.graph.node[0].op_type = 'Nothing'",
    "m.graph.node[0].domain = 'mine'",
    "del m.graph.input[:]",
    "del m.graph.output[:]",
    "del m.graph.output[0]",
    "m.graph.output[0].name = 'other'",
    "m.graph.output[0].type.tensor_type.elem_type = 7",
    "del m.graph.initializer[:]",
    "m.ClearField('graph')",
    "m.ir_version = 10**6",
    "m.opset_import[0].version = 999",
    "del m.opset_import[:]",
]


@pytest.mark.parametrize("change", ONNX)
def test_onnx_files_of_another_structure(tmp_path, change):
    path = write("onnx", tmp_path)
    import onnx

    m = onnx.load(path)
    exec(change, {"m": m, "t": m.graph.initializer[0], "onnx": onnx, "np": np})
    path.write_bytes(m.SerializeToString())
    assert not check(path)


def test_onnx_names_that_are_no_text(tmp_path):
    path = write("onnx", tmp_path)
    path.write_bytes(path.read_bytes().replace(b"network.0.weight", b"network.\xff.weight"))
    assert not check(path)


STATE_DICTS = [  # of the first tensor w, by its name
    "{1: w}",
    "{None: w}",
    "{'state_dict': {name: w}}",
    "w",
    "[]",
    "{}",
    "{**whole, name: w.to_sparse()}",
    "{**whole, name: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8)}",
    "{**whole, name: w.to('meta')}",
    "{**whole, name: torch.zeros(1).expand(10**7, 10**7)}",
    "{**whole, name: torch.zeros(())}",
    "{**whole, name: w[0]}",
    "{**whole, name: w * float('nan')}",
    "{**whole, 'decoder.value_function.weight': torch.zeros(3)}",
    "{'policy.value.weight': torch.zeros(()), 'lstm.weight_ih_l0': w}",
    "{'action_net.weight': torch.zeros(4), 'mlp_extractor.policy_net.0.weight': w}",
]


@pytest.mark.filterwarnings("ignore")  # PyTorch's, of kinds of tensors that it will drop
@pytest.mark.parametrize("contents", STATE_DICTS)
def test_state_dicts_of_another_structure(tmp_path, contents):
    path = write("pt", tmp_path)
    import torch

    whole = torch.load(path)
    name, w = next(iter(whole.items()))
    torch.save(eval(contents, {"torch": torch, "whole": whole, "name": name, "w": w}), path)
    assert not check(path)
