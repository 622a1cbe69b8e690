"""Convert policies between weight layouts, and name their tensors as PyTorch classes do.

A weight layout (``policy.dialect``) is ``native``, ``torch``, ``puffer3`` or ``sb3``.

A native policy equals one of layout torch with biases of 0. So native to torch is exact, and torch
to native works only if all biases are 0. The torch classes have the same tensors under other names,
with image channels first:

| ours | torch, 4.0 | 3.0 |
| --- | --- | --- |
| ``encoder.*`` | ``encoder.*``, see ``export/encoders`` | see ``export/encoders`` |
| ``decoder.actions.*``, discrete actions | ``decoder.decoder.*`` | ``policy.decoder.*`` |
| ``decoder.actions.*``, continuous | ``decoder.decoder_mean.*`` | ``policy.decoder_mean.*`` |
| ``decoder.logstd`` | ``decoder.decoder_logstd`` | ``policy.decoder_logstd`` |
| ``decoder.value.*`` | ``decoder.value_function.*`` | ``policy.value.*`` |
| ``network.*`` | ``network.*``, see ``export/networks`` | see ``export/networks`` |

Layout sb3 has the tensors of Stable-Baselines3's policy: the sequences ``policy_net.*`` and
``value_net.*`` in the network's module, and ``action_net.*``, ``value_net.*`` and ``log_std`` (a,).

A tensor may have a second name in a state_dict, used by a cell that shares it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path

from puffer_mlx.errors import UserError
from puffer_mlx.export.encoders import encoder_exports_of, refuse_bias
from puffer_mlx.export.networks import network_exports_of
from puffer_mlx.policy.decoders import GAINS, Fused, Separate
from puffer_mlx.policy.networks.catalog import network_facts, networks_with
from puffer_mlx.policy.policy import Policy
from puffer_mlx.trees import named_arrays

Weights = Any
Tensors = dict[str, np.ndarray]


def layout_of(policy: Policy) -> str:
    """Return the weight layout of a policy: ``native``, ``torch``, ``puffer3`` or ``sb3``."""
    if isinstance(policy.decoder, Fused):
        return "native"
    gains = policy.decoder.gains
    return next(layout for layout, each in GAINS.items() if each == gains)


# ---- conversion ----------------------------------------------------------------------------------


def to_layout(policy: Policy, weights: Weights, layout: str) -> tuple[Policy, Weights]:
    """Convert a policy and its weights to another weight layout. Its outputs don't change.

    Raises:
        UserError: If the policy can't have the layout; the message says why.
    """
    current = layout_of(policy)
    if layout == current:
        return policy, weights
    if "sb3" in (current, layout):
        raise UserError(
            f"a policy can't be converted from weight layout {current} to {layout}: only sb3 has"
            " its activations",
            f"keep {current}: --to onnx, safetensors or torch",
        )
    encoder = policy.encoder
    converted = dict(weights)
    if convert := encoder_exports_of(encoder).to_layout:
        encoder, converted["encoder"] = convert(policy.encoder, weights["encoder"], layout)
        if policy.separate_value:
            critic = weights["critic"]
            _, value_features = convert(policy.encoder, critic["encoder"], layout)
            converted["critic"] = {**critic, "encoder": value_features}
    decoder, converted_decoder = _convert_decoder(policy.decoder, weights["decoder"], layout)
    converted["decoder"] = converted_decoder
    return replace(policy, encoder=encoder, decoder=decoder), converted


def _convert_decoder(decoder: Any, weights: Weights, layout: str) -> tuple[Any, Weights]:
    """Convert a policy's decoder and its weights to another weight layout."""
    action = decoder.action
    hidden = decoder.hidden
    extra = {"logstd": weights["logstd"]} if action.continuous else {}
    if layout != "native":
        separate = Separate(action, hidden, gains=GAINS[layout])
        if isinstance(decoder, Separate):
            return separate, weights
        A = action.logits
        weight = weights["weight"]
        actions = {"weight": weight[:A], "bias": mx.zeros(A)}
        value = {"weight": weight[A:], "bias": mx.zeros(1)}
        return separate, {**extra, "actions": actions, "value": value}
    for head in "actions", "value":
        refuse_bias(f"decoder.{head}.bias", weights[head]["bias"])
    rows = [weights[head]["weight"] for head in ("actions", "value")]
    return Fused(action, hidden), {"weight": mx.concatenate(rows), **extra}


# ---- the tensors of the torch classes ------------------------------------------------------------


def torch_unsupported_reason(policy: Policy) -> str | None:
    """Return the reason why no PyTorch class can hold a policy in its weight layout, or None."""
    layout = layout_of(policy)
    network = policy.network
    exports_of_encoder = encoder_exports_of(policy.encoder)
    exports_of_network = network_exports_of(network)
    encoder_name = type(policy.encoder).__name__
    network_name = type(network).__name__
    layers = getattr(network, "layers", 1)
    if layout == "sb3":
        for name, exports in (
            (encoder_name, exports_of_encoder),
            (network_name, exports_of_network),
        ):
            if exports.sb3 is None:
                return f"{name}: Stable-Baselines3's policy only has linear layers and activations"
    elif policy.separate_value:
        return "policy.separate_value: PufferLib has no separate value network"
    elif layout == "puffer3":
        if exports_of_encoder.puffer3 is None:
            return f"the encoder {encoder_name}: PufferLib 3.0 only has AffineGelu"
        if exports_of_network.puffer3 is None or layers != 1:
            return (
                f"the network {network_name}, layers {layers}: PufferLib 3.0's wrapper only has"
                f" {' or '.join(networks_with('puffer3'))} with 1 layer"
            )
    elif layout == "native":
        return "the decoder Fused: the torch classes have two linear layers (--dialect torch)"
    elif exports_of_encoder.torch is None:
        return f"the encoder {encoder_name} has no torch class in puffer_mlx/export/encoders"
    elif exports_of_network.torch is None:
        return f"the network {network_name} has no torch class in puffer_mlx/export/networks"
    return None


def state_dict_keys(policy: Policy) -> dict[str, list[str]]:
    """Map our tensor names to the keys of a policy's state_dict, in its order.

    Returns:
        A list for each tensor: its key, then second names.

    Raises:
        UserError: If ``torch_unsupported_reason`` returns a reason.
    """
    if reason := torch_unsupported_reason(policy):
        raise UserError(reason, "export it with --to safetensors or onnx")
    if layout_of(policy) == "sb3":
        return _sb3_keys(policy)
    is_puffer3 = layout_of(policy) == "puffer3"
    prefix, value = ("policy", "value") if is_puffer3 else ("decoder", "value_function")
    actions = "decoder_mean" if policy.decoder.action.continuous else "decoder"
    heads = {
        "decoder.actions": f"{prefix}.{actions}",
        "decoder.logstd": f"{prefix}.decoder_logstd",
        "decoder.value": f"{prefix}.{value}",
    }
    encoder_key = _encoder_key(policy.encoder, is_puffer3)
    network_keys = _network_keys(policy.network, is_puffer3)
    keys = {}
    for name, _ in named_arrays(policy.init(mx.random.key(0))):
        if name in network_keys:
            keys[name] = network_keys[name]
        elif name.startswith("encoder."):
            keys[name] = [encoder_key(name.removeprefix("encoder."))]
        else:
            keys[name] = [_head_key(name, heads)]
    return keys


def _head_key(name: str, heads: dict[str, str]) -> str:
    """Return the state_dict key of a decoder's tensor.

    ``heads`` maps the beginnings of our tensor names to those of keys.
    """
    head = next(head for head in heads if name.startswith(head))
    return name.replace(head, heads[head])


SB3_HEADS = {
    "decoder.logstd": "log_std",
    "decoder.actions": "action_net",
    "decoder.value": "value_net",
}


def _sb3_keys(policy: Policy) -> dict[str, list[str]]:
    """Map our tensor names to the state_dict keys of a Stable-Baselines3 policy.

    Its value network always has separate modules. If ours shares them with the actor, their keys
    are second names.
    """
    encoder = encoder_exports_of(policy.encoder).sb3
    network = network_exports_of(policy.network).sb3
    assert encoder and network  # see torch_unsupported_reason
    key_functions = {"encoder": encoder, "network": network.key}
    actor = ["policy_net"] if policy.separate_value else ["policy_net", "value_net"]
    keys = {}
    for name, _ in named_arrays(policy.init(mx.random.key(0))):
        component, _, suffix = name.removeprefix("critic.").partition(".")
        if component == "decoder":
            keys[name] = [_head_key(name, SB3_HEADS)]
        else:
            modules = ["value_net"] if name.startswith("critic.") else actor
            key = key_functions[component](suffix)
            keys[name] = [f"{network.module}.{module}.{key}" for module in modules]
    return keys


def _encoder_key(encoder: Any, is_puffer3: bool) -> Callable[[str], str]:
    """Return a function that maps the names of an encoder's tensors to state_dict keys.

    Args:
        encoder: The encoder.
        is_puffer3: True for the keys of PufferLib 3.0's wrapper.
    """
    exports = encoder_exports_of(encoder)
    if is_puffer3 and exports.puffer3:
        return exports.puffer3
    assert exports.torch  # see torch_unsupported_reason
    key = exports.torch.key
    return lambda name: f"encoder.{key(name)}"


def _network_keys(network: Any, is_puffer3: bool) -> dict[str, list[str]]:
    """Map the names of a network's tensors to state_dict keys.

    Args:
        network: The network.
        is_puffer3: True for the keys of PufferLib 3.0's wrapper.
    """
    exports = network_exports_of(network)
    prefix = "" if is_puffer3 else "network."
    keys: dict[str, list[str]] = {}
    if is_puffer3 and exports.puffer3:
        keys = exports.puffer3.keys
    elif exports.torch:
        keys = exports.torch.keys(network.layers)
    return {f"network.{name}": [prefix + key for key in names] for name, names in keys.items()}


def to_torch(policy: Policy, weights: Weights) -> Tensors:
    """Convert a policy's weights to a state_dict of float32 arrays; not for native policies.

    Raises:
        UserError: If ``torch_unsupported_reason`` returns a reason.
    """
    keys = state_dict_keys(policy)
    tensors = {}
    aliases: Tensors = {}
    for name, w in named_arrays(weights):
        array = _convert_layout(policy, name, np.array(w, np.float32), "to_torch")
        first, *alias_keys = keys[name]
        tensors[first] = array
        aliases.update(dict.fromkeys(alias_keys, array))
    return {**tensors, **aliases}


def from_torch(policy: Policy, tensors: Tensors) -> Weights:
    """Convert a state_dict to the weights of ``policy``, the inverse of ``to_torch``.

    Raises:
        UserError: If keys or shapes don't fit the policy, or a second name has other values.
    """
    keys = state_dict_keys(policy)
    reference = policy.init(mx.random.key(0))
    expected = {key for every in keys.values() for key in every}
    wrong = [f"{key}: not in this policy" for key in tensors if key not in expected]

    def take(name: str, w: mx.array) -> mx.array:
        first, *alias_keys = keys[name]
        shape = _convert_layout(policy, name, np.empty(w.shape, np.float32), "to_torch").shape
        if first not in tensors or tensors[first].shape != shape:
            actual = tensors[first].shape if first in tensors else "missing"
            wrong.append(f"{first}: {actual}, expected {shape}")
            return w
        for key in alias_keys:
            if key in tensors and not np.array_equal(tensors[key], tensors[first]):
                wrong.append(f"{key}: differs from {first}, which is the same tensor")
        return mx.array(_convert_layout(policy, name, tensors[first], "from_torch"))

    weights = tree_map_with_path(take, reference)
    if wrong:
        more = f" and {len(wrong) - 6} more" if len(wrong) > 6 else ""
        raise UserError(
            f"the tensors are those of another policy: {'; '.join(wrong[:6])}{more}",
            "compare policy.* and torch.* with the settings of its training",
        )
    return weights


def _convert_layout(policy: Policy, name: str, array: np.ndarray, conversion: str) -> np.ndarray:
    """Convert one weight between our layout and that of the torch class.

    Args:
        policy: Policy with the weight.
        name: Our name of the weight.
        array: The weight.
        conversion: Direction: ``to_torch`` or ``from_torch``.
    """
    encoder_class = encoder_exports_of(policy.encoder).torch
    if encoder_class and name.startswith("encoder."):
        array = getattr(encoder_class, conversion)(array)
    if name == "decoder.logstd" and layout_of(policy) == "sb3":
        array = array[0] if conversion == "to_torch" else array[None]
    return np.ascontiguousarray(array)


def stacked_state(policy: Policy, state: Any) -> Tensors:
    """Convert a policy's recurrent state to the arrays that torch and ONNX use.

    Returns:
        Arrays (L, n, H) by name, without entries if there is no state. The states of a separate
        value network follow with the prefix ``critic_``. The states of custom networks stay as they
        are.
    """
    if not policy.separate_value:
        return _stacked(policy.network, state)
    critic = _stacked(policy.network, state["critic"])
    values = {f"critic_{name}": array for name, array in critic.items()}
    return {**_stacked(policy.network, state["actor"]), **values}


def _stacked(network: Any, state: Any) -> Tensors:
    """Convert the recurrent state of one network of a policy to arrays by name."""
    if stacked := network_facts(network).stacked_state:
        return {
            name: np.stack([np.array(a) for a in layers]) for name, layers in stacked(state).items()
        }
    return {f"state.{name}": np.array(array) for name, array in named_arrays(state)}
