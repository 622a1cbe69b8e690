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
from puffer_mlx.export.encoders import encoder_exports_of
from puffer_mlx.export.file_format import (
    DAMAGED_HINT,
    ExportInput,
    FileFormat,
    PolicyFile,
    convert_read_errors,
    mask_note,
    require_packages,
    reset_note,
)
from puffer_mlx.export.metadata import policy_file_from_tensors, policy_metadata
from puffer_mlx.export.networks import network_exports_of
from puffer_mlx.export.onnx_graph import Graph, decode, normalized
from puffer_mlx.export.parity import NamedOutputs
from puffer_mlx.export.weight_layouts import stacked_state
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system import program
from puffer_mlx.trees import named_arrays

# Versions of ONNX 1.12 (2022): newer runtimes can run the files.
OPSET_VERSION = 17
IR_VERSION = 8
Weights = Any


@dataclass(frozen=True)
class OnnxFormat(FileFormat):
    """Format of ONNX files, which contain the graph of one policy step."""

    name = "onnx"
    suffixes = (".onnx",)
    layouts = ("native", "torch", "puffer3", "sb3")
    tolerance = 1e-5
    purpose = "one step as a graph"
    supported = "all policies without custom classes; one step as a graph"
    packages = ("onnx", "onnxruntime")
    extra = "onnx"
    external = True

    def unsupported_reason(self, policy: Policy) -> str | None:
        """Return the reason why a policy has no ONNX graph, such as a custom class, or None."""
        components: dict[str, Any] = {"encoder": encoder_exports_of, "network": network_exports_of}
        for name, exports_of in components.items():
            component = getattr(policy, name)
            if exports_of(component).onnx is None:
                cls = type(component).__name__
                return f"the {name} {cls} has no ONNX graph in puffer_mlx/export/{name}s"
        return None

    def write(self, contents: ExportInput, path: Path) -> None:
        """Write the ONNX graph of a policy with weights, statistics and metadata."""
        properties = policy_metadata(contents.checkpoint, contents.policy)
        save_onnx(contents.policy, contents.weights, path, properties, contents.statistics)

    def notes(self, contents: ExportInput) -> list[str]:
        """Return notes for users of an ONNX policy file, such as on resets and masks."""
        return reset_note(contents) + mask_note(contents) + super().notes(contents)

    def read(self, path: Path) -> PolicyFile:
        """Read an ONNX file that puffer_mlx wrote; others are rejected."""
        require_packages(self.extra, "onnx")
        return policy_file_from_tensors(path, self, *read_onnx(path))

    def run(self, source: PolicyFile, policy: Policy, observations: np.ndarray) -> NamedOutputs:
        """Run the policy of an ONNX file with onnxruntime. Returns the outputs."""
        require_packages(self.extra, "onnxruntime")
        state = policy.initial_state(observations.shape[1])
        return run_onnx(source.path, observations, stacked_state(policy, state))


# Names of the tensors of the normalization statistics.
MEAN, VARIANCE, COUNT = (normalization.PREFIX + name for name in normalization.OBSERVATIONS)


def save_onnx(
    policy: Policy,
    weights: Weights,
    path: Path,
    properties: dict[str, str],
    statistics: normalization.Statistics,
) -> None:
    """Write one policy step as an ONNX graph.

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

    normalization_tensors = normalization.statistics_tensors(statistics)
    bounds = rescaling.bounds_tensors(policy.decoder.action.bounds)
    moments = {name: w for name, w in normalization_tensors.items() if name in (MEAN, VARIANCE)}
    graph = Graph({**dict(named_arrays(weights)), **moments, **bounds})
    states = stacked_state(policy, policy.initial_state(1))
    observation = "observation"
    if normalization_tensors:
        observation = normalized(graph, observation, MEAN, VARIANCE)
    features, next_states = _add_encoders_and_networks(graph, policy, observation, list(states))
    outputs = decode(graph, policy, features[0], features[-1])
    outputs |= {f"next_{name}": output for name, output in zip(states, next_states, strict=True)}
    for name, output in outputs.items():
        graph.node("Identity", [output], [name])

    def declare(name: str, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))

    encoder: Any = policy.encoder
    size = math.prod(encoder.shape) if hasattr(encoder, "shape") else encoder.inputs
    action = ("n", policy.decoder.action.logits)
    state_shapes = {name: (len(array), "n", array.shape[-1]) for name, array in states.items()}
    shapes = {"value": ("n",), **{f"next_{name}": each for name, each in state_shapes.items()}}
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "step",
            [declare("observation", "n", size)]
            + [declare(name, *shape) for name, shape in state_shapes.items()],
            [declare(name, *shapes.get(name, action)) for name in outputs],
            graph.initializers,
        ),
        opset_imports=[helper.make_opsetid("", OPSET_VERSION)],
        ir_version=IR_VERSION,
        producer_name="puffer_mlx",
    )
    count = {COUNT: repr(float(normalization_tensors[COUNT]))} if normalization_tensors else {}
    helper.set_model_props(model, {**properties, **count})
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def _add_encoders_and_networks(
    graph: Graph, policy: Policy, observation: str, states: list[str]
) -> tuple[list[str], list[str]]:
    """Add encoder and network to an ONNX graph, and also those of a separate value network.

    Args:
        graph: Graph to which nodes are added.
        policy: The policy.
        observation: Name of the normalized observations.
        states: Names of the states: those of the actor, then those of the value network.

    Returns:
        Names of the features of each network, and of all next states.
    """
    add_encoder: Any = encoder_exports_of(policy.encoder).onnx
    add_network: Any = network_exports_of(policy.network).onnx
    prefixes = ("", "critic.") if policy.separate_value else ("",)
    n = len(states) // len(prefixes)  # states of one network
    features = []
    next_states = []
    for i, prefix in enumerate(prefixes):
        graph.prefix = prefix
        encoded = add_encoder(graph, policy.encoder, observation)
        network_states = states[i * n : (i + 1) * n]
        output, network_next_states = add_network(graph, policy.network, encoded, network_states)
        features.append(output)
        next_states += network_next_states
    graph.prefix = ""
    return features, next_states


def read_onnx(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read an ONNX file of ``save_onnx``. Returns the tensors by our names, and the metadata.

    Raises:
        UserError: If the file isn't ONNX, isn't ours, or is incomplete.
    """
    from onnx import numpy_helper

    model = _load_model(path, path.read_bytes())
    properties = {entry.key: entry.value for entry in model.metadata_props}
    if "puffer_mlx" not in properties:
        raise UserError(
            f"{path} wasn't exported by puffer_mlx",
            f"only ONNX files of {program.COMMAND} export can be imported",
        )
    with convert_read_errors("onnx", path):
        tensors = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    if not_float := [name for name, array in tensors.items() if array.dtype != np.float32]:
        raise UserError(f"{path}: {not_float[0]} doesn't hold float32 numbers", DAMAGED_HINT)
    if COUNT in properties:
        with contextlib.suppress(ValueError):  # a missing count is an error later
            tensors[COUNT] = np.array(float(properties[COUNT]))
    return tensors, properties


def _load_model(path: Path, data: bytes) -> Any:
    """Load an ONNX model from the bytes of a file, and check it.

    External tensors are rejected: onnx and onnxruntime would look for their files in the working
    directory.

    Raises:
        UserError: If the file isn't ONNX, is damaged, or has external tensors.
    """
    import onnx
    from onnx import TensorProto

    with convert_read_errors("onnx", path):
        model = onnx.load_model_from_string(data)
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise UserError(
                f"{path} stores the values of {tensor.name or 'a tensor'!r} in another file, which"
                " isn't read",
                f"export it again: {program.COMMAND} export writes everything into one file",
            )
    with convert_read_errors("onnx", path):
        onnx.checker.check_model(model)
        for tensor in _tensors(model):
            tensor.name.encode()  # raises if the name isn't UTF-8: protobuf returns it as bytes
    return model


def _tensors(message: Any) -> Iterator[Any]:
    """Yield every tensor of an ONNX model: in the graph, in nodes, and in nested graphs."""
    from google.protobuf.message import Message
    from onnx import TensorProto

    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for child in [value] if isinstance(value, Message) else value:
                if isinstance(child, TensorProto):
                    yield child
                else:
                    yield from _tensors(child)


def run_onnx(path: Path, observations: np.ndarray, state: dict[str, np.ndarray]) -> NamedOutputs:
    """Run an ONNX file step by step with onnxruntime.

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
    _load_model(path, data)
    with convert_read_errors("onnxruntime", path):
        session: Any = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    inputs = [each.name for each in session.get_inputs()]
    names = [each.name for each in session.get_outputs()]
    tensors = [*session.get_inputs(), *session.get_outputs()]
    is_float32 = all(each.type == "tensor(float)" for each in tensors)
    has_inputs = set(inputs) == {"observation", *state}
    has_states = set(names) >= {f"next_{name}" for name in state}
    if not (is_float32 and has_inputs and has_states):
        message = f"{path}: its graph takes {', '.join(inputs)} and returns {', '.join(names)}"
        raise UserError(message[:300], DAMAGED_HINT)
    steps: list[Any] = []
    for row in observations.astype(np.float32):
        with convert_read_errors("onnxruntime", path):
            values = session.run(None, {"observation": row, **state})
        outputs: Any = dict(zip(names, values, strict=True))
        state = {name: outputs.pop(f"next_{name}") for name in state}
        steps.append(outputs)
    return {**{name: np.stack([step[name] for step in steps]) for name in steps[0]}, **state}


FORMAT = OnnxFormat()
