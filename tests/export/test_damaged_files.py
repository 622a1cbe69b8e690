"""Damaged files of every format load, or one message names the file and the reason."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from oracles import named
from policy_files import configuration_of

from puffer_mlx.checkpoint.flat_files import save_bin
from puffer_mlx.config import Config, Policy
from puffer_mlx.errors import UserError
from puffer_mlx.export import importing
from puffer_mlx.export.formats.onnx import save_onnx
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

SPEC = EnvSpec("x", 5, np.dtype(np.float32), ActionSpec((3,)))
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
    """Return the weights of a small policy by name, some of them replaced."""
    weights = make_policy(SPEC, Policy(8, 1)).init(mx.random.key(0))
    return dict(named(weights)) | changed


def write(kind: str, folder):
    """Write an undamaged policy file of a format, and return its path."""
    for package in NEEDS.get(kind, []):
        pytest.importorskip(package)
    path = folder / f"w.{kind}"
    policy = make_policy(SPEC, Policy(8, 1))
    weights = policy.init(mx.random.key(0))
    if kind == "onnx":
        save_onnx(policy, weights, path, METADATA, {})
    elif kind == "safetensors":  # without a checksum, so that damage reaches the reader
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
    """Import a policy file, as the import command does."""
    source = importing.read_any_policy_file(path)
    settings = source.settings
    settings |= source.file.sizes_for(source, SPEC, Config(policy=Policy(8, 1)))
    settings = {key: text for key, text in settings.items() if ":" not in text}
    config = configuration_of({"policy.hidden_size": "8", "policy.num_layers": "1", **settings})
    policy, weights = importing.convert_weights(source, SPEC, config)
    compared = importing.compare_with_file(source, policy, weights, SPEC)
    if compared and not compared.matches:
        raise UserError(f"{path} computes something else", "the file is damaged")


def check(path) -> bool:
    """Return True if a policy file can be imported.

    Otherwise assert that the error names the file.
    """
    try:
        load(path)
    except UserError as error:
        assert str(path) in error.message and error.hint
        return False
    return True


KINDS = pytest.mark.parametrize("kind", ["onnx", "safetensors", "bin", "pt"])


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


# ---- bytes ---------------------------------------------------------------------------------------

EDITS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=3)


@pytest.mark.filterwarnings("ignore:.*lacks the last")
@KINDS
@examples(40)
@given(
    cut=st.just(1.0) | st.floats(0, 1),
    edits=EDITS | EDITS.map(lambda e: [(x / 8, b) for x, b in e]),
)
@example(cut=1.0, edits=[])
def test_a_file_with_changed_bytes_loads_or_is_refused_by_name(kind, tmp_path, cut, edits):
    path = write(kind, tmp_path)
    whole = path.read_bytes()
    data = bytearray(whole)
    for place, flips in edits:  # most headers are in the first eighth
        data[int(place * len(data))] ^= flips
    data = data[: int(cut * len(data))]
    path.write_bytes(data)
    loads = check(path)
    assert loads or data != whole
    assert not loads or len(data) == len(whole) or kind == "bin"  # another policy may have its size


# ---- structure -----------------------------------------------------------------------------------


@examples(60)
@given(
    name=st.sampled_from(sorted(tensors_of())),
    shape=st.lists(st.integers(0, 9), max_size=3),
    metadata=st.sampled_from([METADATA, {}]),
)
@example(name="encoder.weight", shape=[8, 5], metadata={})
def test_a_tensor_of_another_shape_is_refused(tmp_path, name, shape, metadata):
    path = tmp_path / "w.safetensors"
    mx.save_safetensors(str(path), tensors_of(**{name: mx.zeros(shape)}), metadata)
    assert check(path) == (tuple(shape) == tensors_of()[name].shape)


SENSELESS = ["", "x", "-1", "1e400", "nan", "9" * 5000, "[" * 3000]


@examples(100)
@given(
    key=st.sampled_from([key for key in METADATA if key != "puffer_mlx"]),
    text=st.sampled_from(SENSELESS) | st.text(max_size=6),
)
def test_senseless_metadata_is_refused(tmp_path, key, text):
    path = tmp_path / "w.safetensors"
    mx.save_safetensors(str(path), tensors_of(), {**METADATA, key: text})
    loads = check(path)
    assert not loads or text not in SENSELESS


ONNX = [  # changes of a model m and its first tensor t
    "t.raw_data = t.raw_data[:-8]",
    "t.dims[:] = [10**9, 10**9]",
    "t.dims[:] = [-1, -8]",
    "t.data_type = 77",
    "t.data_type = 10",  # half as many bytes as there are
    "t.name = ''",
    "t.CopyFrom(onnx.helper.make_tensor(t.name, 8, [1], [b'a']))",
    "t.CopyFrom(onnx.numpy_helper.from_array(np.zeros((8, 5)), t.name))",
    "t.CopyFrom(onnx.numpy_helper.from_array(np.full((8, 5), np.nan, 'f4'), t.name))",
    "del m.graph.node[:]",
    "m.graph.node.reverse()",
    "m.graph.node[0].op_type = 'Nothing'",
    "del m.graph.input[:]",
    "del m.graph.output[0]",
    "m.graph.output[0].type.tensor_type.elem_type = 7",
    "del m.graph.initializer[:]",
    "m.ir_version = 10**6",
    "del m.opset_import[:]",
]


@examples(100)
@given(st.sampled_from(ONNX))
def test_an_onnx_file_of_another_structure_is_refused(tmp_path, change):
    path = write("onnx", tmp_path)
    import onnx

    m = onnx.load(path)
    exec(change, {"m": m, "t": m.graph.initializer[0], "onnx": onnx, "np": np})
    path.write_bytes(m.SerializeToString())
    assert not check(path)


STATE_DICTS = [  # w: the first tensor, called name
    "{1: w}",
    "{'state_dict': {name: w}}",
    "w",
    "{}",
    "{**whole, name: w.to_sparse()}",
    "{**whole, name: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8)}",
    "{**whole, name: w.to('meta')}",
    "{**whole, name: torch.zeros(1).expand(10**7, 10**7)}",
    "{**whole, name: w * float('nan')}",
    "{**whole, 'decoder.value_function.weight': torch.zeros(3)}",
    "{'policy.value.weight': torch.zeros(()), 'lstm.weight_ih_l0': w}",
    "{'action_net.weight': torch.zeros(4), 'mlp_extractor.policy_net.0.weight': w}",
]


@pytest.mark.filterwarnings("ignore")  # PyTorch's, of kinds of tensors that it will drop
@examples(100)
@given(st.sampled_from(STATE_DICTS))
def test_a_state_dict_of_another_structure_is_refused(tmp_path, contents):
    path = write("pt", tmp_path)
    import torch

    whole = torch.load(path)
    name, w = next(iter(whole.items()))
    torch.save(eval(contents, {"torch": torch, "whole": whole, "name": name, "w": w}), path)
    assert not check(path)
