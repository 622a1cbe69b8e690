"""Write one policy step as an ONNX graph, and read the weights of such a file.

| input, output | shape, float32 | |
| --- | --- | --- |
| ``observation`` | (n, D) | raw; bytes as 0 to 255; images flat: height, width, channel |
| the network's state, if it has one: ``state``, or ``h`` and ``c`` | (L, n, H) | zeros at first |
| ``logits`` | (n, A) | discrete actions, concatenated heads |
| ``mean``, ``logstd`` | (n, a) | continuous actions, in the environment's units |
| ``value`` | (n,) | |
| the next state: ``next_state``, or ``next_h`` and ``next_c`` | (L, n, H) | |

The graph is built node by node instead of traced from PyTorch. Its initializers are our weights
with the same names and bits, so files can be imported again and PyTorch isn't needed. Normalization
of observations and rescaling of actions are part of the graph.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.checkpoint import normalization, rescaling
from puffer_mlx.errors import UserError
from puffer_mlx.export.encoders import export_forms_of as encoder_forms
from puffer_mlx.export.file_format import (
    DAMAGED,
    ExportInput,
    FileFormat,
    PolicyFile,
    mask_note,
    need,
    read_by,
    reset_note,
)
from puffer_mlx.export.metadata import metadata, with_metadata
from puffer_mlx.export.networks import export_forms_of
from puffer_mlx.export.onnx_graph import Graph, decode, normalised
from puffer_mlx.export.parity import Outputs
from puffer_mlx.export.weight_layouts import stacked_state
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system import program
from puffer_mlx.trees import named_arrays

OPSET, IR = 17, 8  # of ONNX 1.12 (2022): runtimes at least as new can run the file
Weights = Any


@dataclass(frozen=True)
class OnnxFormat(FileFormat):
    """ONNX graph of one step."""

    name = "onnx"
    suffixes = (".onnx",)
    dialects = ("native", "torch", "puffer3", "sb3")
    tolerance = 1e-5
    use = "one step as a graph"
    holds = "everything but classes of your own; one step as a graph"
    packages = ("onnx", "onnxruntime")
    extra = "onnx"
    foreign = True

    def unsupported_reason(self, policy: Policy) -> str | None:
        """Return the reason if a part is a custom class, or None."""
        parts: dict[str, Any] = {"encoder": encoder_forms, "network": export_forms_of}
        for name, forms in parts.items():
            part = getattr(policy, name)
            if forms(part).onnx is None:
                cls = type(part).__name__
                return f"the {name} {cls} has no ONNX graph in puffer_mlx/export/{name}s"
        return None

    def write(self, contents: ExportInput, path: Path) -> None:
        """Write the graph with weights, statistics and metadata."""
        properties = metadata(contents.checkpoint, contents.policy)
        save_onnx(contents.policy, contents.weights, path, properties, contents.statistics)

    def notes(self, contents: ExportInput) -> list[str]:
        """Return notes, also on resets and masks: these aren't part of the graph."""
        return reset_note(contents) + mask_note(contents) + super().notes(contents)

    def read(self, path: Path) -> PolicyFile:
        """Read a file that puffer_mlx wrote; others are rejected."""
        need(self.extra, "onnx")
        return with_metadata(path, self, *read_onnx(path))

    def run(self, source: PolicyFile, policy: Policy, observations: np.ndarray) -> Outputs:
        """Return the outputs of onnxruntime."""
        need(self.extra, "onnxruntime")
        state = policy.initial_state(observations.shape[1])
        return run_onnx(source.path, observations, stacked_state(policy, state))


MEAN, VARIANCE, COUNT = (normalization.PREFIX + name for name in normalization.OBSERVATIONS)


def save_onnx(
    policy: Policy,
    weights: Weights,
    path: Path,
    properties: dict[str, str],
    statistics: normalization.Statistics,
) -> None:
    """Write the graph of one step.

    Args:
        policy: Policy for which ``OnnxFormat.unsupported_reason`` returns None.
        weights: Weights of the policy.
        path: File to write.
        properties: Properties of the model.
        statistics: Normalization statistics of observations. The graph uses mean and variance; the
            count, for resuming, becomes a property.

    Raises:
        OSError: If the file can't be written.
    """
    import onnx
    from onnx import TensorProto, helper

    seen = normalization.statistics_tensors(statistics)
    bounds = rescaling.bounds_tensors(policy.decoder.action.bounds)
    used = {name: seen[name] for name in seen if name in (MEAN, VARIANCE)}
    graph = Graph({**dict(named_arrays(weights)), **used, **bounds})
    states = stacked_state(policy, policy.initial_state(1))
    observation = normalised(graph, "observation", MEAN, VARIANCE) if seen else "observation"
    h, after = _features(graph, policy, observation, list(states))
    outputs = decode(graph, policy, h[0], h[-1])
    outputs |= {f"next_{name}": output for name, output in zip(states, after, strict=True)}
    for name, output in outputs.items():
        graph.node("Identity", [output], [name])

    def declare(name: str, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))

    encoder: Any = policy.encoder
    size = math.prod(encoder.shape) if hasattr(encoder, "shape") else encoder.inputs
    action = ("n", policy.decoder.action.logits)
    stacks = {name: (len(array), "n", array.shape[-1]) for name, array in states.items()}
    shapes = {"value": ("n",), **{f"next_{name}": shape for name, shape in stacks.items()}}
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "step",
            [declare("observation", "n", size)]
            + [declare(name, *shape) for name, shape in stacks.items()],
            [declare(name, *shapes.get(name, action)) for name in outputs],
            graph.initialisers,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="puffer_mlx",
    )
    count = {COUNT: repr(float(seen[COUNT]))} if seen else {}
    helper.set_model_props(model, {**properties, **count})
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def _features(
    graph: Graph, policy: Policy, observation: str, states: list[str]
) -> tuple[list[str], list[str]]:
    """Return features of the actor (and of a separate value network), and next states."""
    add_encoder: Any = encoder_forms(policy.encoder).onnx
    add_network: Any = export_forms_of(policy.network).onnx
    prefixes = ("", "critic.") if policy.separate_value else ("",)
    each = len(states) // len(prefixes)
    features, after = [], []
    for i, graph.prefix in enumerate(prefixes):
        h = add_encoder(graph, policy.encoder, observation)
        h, stacks = add_network(graph, policy.network, h, states[i * each : (i + 1) * each])
        features.append(h)
        after += stacks
    graph.prefix = ""
    return features, after


def read_onnx(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors of a file of ``save_onnx`` by our names, and its metadata.

    Raises:
        UserError: If the file isn't ONNX, isn't ours, or is incomplete.
    """
    from onnx import numpy_helper

    model = _parsed(path, path.read_bytes())
    properties = {entry.key: entry.value for entry in model.metadata_props}
    if "puffer_mlx" not in properties:
        raise UserError(
            f"{path} isn't one of puffer_mlx's ONNX files",
            f"only those that {program.COMMAND} export wrote name weights in a way known here",
        )
    with read_by("onnx", path):
        tensors = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    if odd := [name for name, array in tensors.items() if array.dtype != np.float32]:
        raise UserError(f"{path}: {odd[0]} doesn't hold float32 numbers", DAMAGED)
    if COUNT in properties:
        with contextlib.suppress(ValueError):  # a missing count is reported later
            tensors[COUNT] = np.array(float(properties[COUNT]))
    return tensors, properties


def _parsed(path: Path, data: bytes) -> Any:
    """Return the model in a file's bytes, checked by onnx.

    External tensors are rejected: onnx and onnxruntime would look for their files in the working
    directory.

    Raises:
        UserError: If the file isn't ONNX, is damaged, or has external tensors.
    """
    import onnx
    from onnx import TensorProto

    with read_by("onnx", path):
        model = onnx.load_model_from_string(data)
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise UserError(
                f"{path} keeps the numbers of {tensor.name or 'a tensor'!r} in another file, which"
                " isn't read",
                f"export it again: {program.COMMAND} export writes everything into one file",
            )
    with read_by("onnx", path):
        onnx.checker.check_model(model)
        # Raises for names that aren't UTF-8, which protobuf returns as bytes.
        [each.name.encode() for each in _tensors(model)]
    return model


def _tensors(message: Any) -> Iterator[Any]:
    """Yield every tensor of a model, in the graph, in nodes, and in nested graphs."""
    from google.protobuf.message import Message
    from onnx import TensorProto

    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in [value] if isinstance(value, Message) else value:
                if isinstance(part, TensorProto):
                    yield part
                else:
                    yield from _tensors(part)


def run_onnx(path: Path, observations: np.ndarray, state: dict[str, np.ndarray]) -> Outputs:
    """Run a file step by step with onnxruntime.

    Args:
        path: File of ``save_onnx``.
        observations: (T, S, D), any dtype.
        state: State before the first step: arrays (L, S, H) by name.

    Returns:
        Outputs (T, S, ...) by name, and the last state under the names in ``state``.

    Raises:
        UserError: If the graph isn't one that ``save_onnx`` writes.
    """
    import onnxruntime

    data = path.read_bytes()
    _parsed(path, data)
    with read_by("onnxruntime", path):
        session: Any = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    ends = [session.get_inputs(), session.get_outputs()]
    taken, names = ([each.name for each in end] for end in ends)
    wanted = {"observation", *state}, {f"next_{name}" for name in state}
    floats = all(each.type == "tensor(float)" for end in ends for each in end)
    if not (floats and set(taken) == wanted[0] and set(names) >= wanted[1]):
        message = f"{path}: its graph takes {', '.join(taken)} and returns {', '.join(names)}"
        raise UserError(message[:300], DAMAGED)
    steps: list[Any] = []
    for row in observations.astype(np.float32):
        with read_by("onnxruntime", path):
            values = session.run(None, {"observation": row, **state})
        outputs: Any = dict(zip(names, values, strict=True))
        state = {name: outputs.pop(f"next_{name}") for name in state}
        steps.append(outputs)
    return {**{name: np.stack([step[name] for step in steps]) for name in steps[0]}, **state}


FORMAT = OnnxFormat()
