"""Convert policies between dialects (weight layouts), and name their tensors as PyTorch classes do.

A policy of the native dialect equals one of the torch dialect with biases of 0. So native to torch
is exact, and torch to native works only if all biases are 0. The torch classes have the same
tensors under other names, with image channels first:

| ours | torch, 4.0 | 3.0 |
| --- | --- | --- |
| ``encoder.*`` | ``encoder.*``, see ``export/encoders`` | see ``export/encoders`` |
| ``decoder.actions.*``, discrete actions | ``decoder.decoder.*`` | ``policy.decoder.*`` |
| ``decoder.actions.*``, continuous | ``decoder.decoder_mean.*`` | ``policy.decoder_mean.*`` |
| ``decoder.logstd`` | ``decoder.decoder_logstd`` | ``policy.decoder_logstd`` |
| ``decoder.value.*`` | ``decoder.value_function.*`` | ``policy.value.*`` |
| ``network.*`` | ``network.*``, see ``export/networks`` | see ``export/networks`` |

The sb3 dialect has the tensors of Stable-Baselines3's policy: the sequences ``policy_net.*`` and
``value_net.*`` in the network's module, and ``action_net.*``, ``value_net.*`` and ``log_std`` (a,).

A tensor may have a second name, used by a cell that shares it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path

from puffer_mlx.errors import UserError
from puffer_mlx.export.encoders import export_forms_of as encoder_forms
from puffer_mlx.export.encoders import refuse_bias
from puffer_mlx.export.networks import export_forms_of
from puffer_mlx.policy.decoders import GAINS, Fused, Separate
from puffer_mlx.policy.networks.catalog import forms_of, names_of
from puffer_mlx.policy.policy import Policy
from puffer_mlx.trees import named_arrays

Weights = Any
Tensors = dict[str, np.ndarray]


def layout_of(policy: Policy) -> str:
    """Return the dialect of a policy: ``native``, ``torch``, ``puffer3`` or ``sb3``."""
    if isinstance(policy.decoder, Fused):
        return "native"
    gains = policy.decoder.gains
    return next(dialect for dialect, each in GAINS.items() if each == gains)


# ---- from dialect to dialect ---------------------------------------------------------------------


def to_layout(policy: Policy, weights: Weights, dialect: str) -> tuple[Policy, Weights]:
    """Return the same policy and its weights in another dialect. Values don't change.

    Raises:
        UserError: If the dialect can't express a part; the message names it.
    """
    current = layout_of(policy)
    if dialect == current:
        return policy, weights
    if "sb3" in (current, dialect):
        raise UserError(
            f"a policy of the {current} dialect can't become one of {dialect}: no other dialect has"
            " the activations of sb3",
            f"keep the dialect {current}, which --to onnx, safetensors and torch do",
        )
    encoder, converted = policy.encoder, dict(weights)
    if convert := encoder_forms(encoder).to_layout:
        encoder, converted["encoder"] = convert(policy.encoder, weights["encoder"], dialect)
        if policy.separate_value:
            critic = weights["critic"]
            _, value_features = convert(policy.encoder, critic["encoder"], dialect)
            converted["critic"] = {**critic, "encoder": value_features}
    decoder, own_decoder = _convert_decoder(policy.decoder, weights["decoder"], dialect)
    converted["decoder"] = own_decoder
    return replace(policy, encoder=encoder, decoder=decoder), converted


def _convert_decoder(decoder: Any, weights: Weights, dialect: str) -> tuple[Any, Weights]:
    action, hidden = decoder.action, decoder.hidden
    extra = {"logstd": weights["logstd"]} if action.continuous else {}
    if dialect != "native":
        separate = Separate(action, hidden, gains=GAINS[dialect])
        if isinstance(decoder, Separate):
            return separate, weights
        A, weight = action.logits, weights["weight"]
        actions = {"weight": weight[:A], "bias": mx.zeros(A)}
        value = {"weight": weight[A:], "bias": mx.zeros(1)}
        return separate, {**extra, "actions": actions, "value": value}
    for part in "actions", "value":
        refuse_bias(f"decoder.{part}.bias", weights[part]["bias"])
    rows = [weights[part]["weight"] for part in ("actions", "value")]
    return Fused(action, hidden), {"weight": mx.concatenate(rows), **extra}


# ---- the tensors of the torch classes ------------------------------------------------------------


def torch_unsupported_reason(policy: Policy) -> str | None:
    """Return the reason if the torch classes of the dialect lack a part, or None."""
    dialect, network = layout_of(policy), policy.network
    of_encoder = encoder_forms(policy.encoder)
    of_network = export_forms_of(network)
    encoder_name, network_name = type(policy.encoder).__name__, type(network).__name__
    layers = getattr(network, "layers", 1)
    if dialect == "sb3":
        for name, forms in ((encoder_name, of_encoder), (network_name, of_network)):
            if forms.sb3 is None:
                return f"{name}: Stable-Baselines3's policy has products and activations alone"
    elif policy.separate_value:
        return "values with a network of their own (policy.separate_value): PufferLib has none"
    elif dialect == "puffer3":
        if of_encoder.puffer3 is None:
            return f"the encoder {encoder_name}: PufferLib 3.0's is AffineGelu"
        if of_network.puffer3 is None or layers != 1:
            return (
                f"the network {network_name}, layers {layers}: PufferLib 3.0's wrapper has"
                f" {' or '.join(names_of('puffer3'))} with 1 layer"
            )
    elif dialect == "native":
        return "the decoder Fused: the torch classes have two products (--dialect torch)"
    elif of_encoder.torch is None:
        return f"the encoder {encoder_name} has no torch class in puffer_mlx/export/encoders"
    elif of_network.torch is None:
        return f"the network {network_name} has no torch class in puffer_mlx/export/networks"
    return None


def torch_keys(policy: Policy) -> dict[str, list[str]]:
    """Return the keys of a state_dict by our tensor names, in its order.

    Returns:
        A list for each tensor: its key, then second names.

    Raises:
        UserError: If ``torch_unsupported_reason`` returns a reason.
    """
    if reason := torch_unsupported_reason(policy):
        raise UserError(reason, "export it with --to safetensors or onnx")
    if layout_of(policy) == "sb3":
        return _sb3_keys(policy)
    old = layout_of(policy) == "puffer3"
    prefix, value = ("policy", "value") if old else ("decoder", "value_function")
    actions = "decoder_mean" if policy.decoder.action.continuous else "decoder"
    heads = {
        "decoder.actions": f"{prefix}.{actions}",
        "decoder.logstd": f"{prefix}.decoder_logstd",
        "decoder.value": f"{prefix}.{value}",
    }
    encoder_key, network_keys = (
        _encoder_key(policy.encoder, old),
        _network_keys(policy.network, old),
    )
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
    """Return the key of a decoder's tensor; ``heads`` maps our names' prefixes to keys."""
    head = next(head for head in heads if name.startswith(head))
    return name.replace(head, heads[head])


SB3_HEADS = {
    "decoder.logstd": "log_std",
    "decoder.actions": "action_net",
    "decoder.value": "value_net",
}


def _sb3_keys(policy: Policy) -> dict[str, list[str]]:
    """Return ``torch_keys`` for Stable-Baselines3's policy.

    Its value network always has separate modules. If ours shares them with the actor, their keys
    are second names.
    """
    encoder, network = encoder_forms(policy.encoder).sb3, export_forms_of(policy.network).sb3
    assert encoder and network  # see torch_unsupported_reason
    key_of = {"encoder": encoder, "network": network.key}
    actor = ["policy_net"] if policy.separate_value else ["policy_net", "value_net"]
    keys = {}
    for name, _ in named_arrays(policy.init(mx.random.key(0))):
        part, _, rest = name.removeprefix("critic.").partition(".")
        if part == "decoder":
            keys[name] = [_head_key(name, SB3_HEADS)]
        else:
            modules = ["value_net"] if name.startswith("critic.") else actor
            keys[name] = [f"{network.module}.{module}.{key_of[part](rest)}" for module in modules]
    return keys


def _encoder_key(encoder: Any, old: bool) -> Callable[[str], str]:
    """Return a function from the encoder's tensor names to keys; ``old`` selects 3.0's wrapper."""
    forms = encoder_forms(encoder)
    if old and forms.puffer3:
        return forms.puffer3
    assert forms.torch  # see torch_unsupported_reason
    of_class = forms.torch.key
    return lambda name: f"encoder.{of_class(name)}"


def _network_keys(network: Any, old: bool) -> dict[str, list[str]]:
    """Return the keys of each tensor of the network; ``old`` selects 3.0's wrapper."""
    forms = export_forms_of(network)
    prefix = "" if old else "network."
    keys: dict[str, list[str]] = {}
    if old and forms.puffer3:
        keys = forms.puffer3.keys
    elif forms.torch:
        keys = forms.torch.keys(network.layers)
    return {f"network.{name}": [prefix + key for key in names] for name, names in keys.items()}


def to_torch(policy: Policy, weights: Weights) -> Tensors:
    """Return the state_dict of a policy as float32 arrays. The native dialect has no state_dict.

    Raises:
        UserError: If ``torch_unsupported_reason`` returns a reason.
    """
    keys, tensors = torch_keys(policy), {}
    aliases: Tensors = {}
    for name, w in named_arrays(weights):
        array = _transpose(policy, name, np.array(w, np.float32), "to_torch")
        first, *others = keys[name]
        tensors[first] = array
        aliases.update(dict.fromkeys(others, array))
    return {**tensors, **aliases}


def from_torch(policy: Policy, tensors: Tensors) -> Weights:
    """Return the weights of ``policy`` from a state_dict, the inverse of ``to_torch``.

    Raises:
        UserError: If keys or shapes don't fit the policy, or a second name has other values.
    """
    keys = torch_keys(policy)
    like = policy.init(mx.random.key(0))
    expected = {key for every in keys.values() for key in every}
    wrong = [f"{key}: not in this policy" for key in tensors if key not in expected]

    def take(name: str, w: mx.array) -> mx.array:
        first, *others = keys[name]
        shape = _transpose(policy, name, np.empty(w.shape, np.float32), "to_torch").shape
        if first not in tensors or tensors[first].shape != shape:
            actual = tensors[first].shape if first in tensors else "missing"
            wrong.append(f"{first}: {actual}, expected {shape}")
            return w
        for other in others:
            if other in tensors and not np.array_equal(tensors[other], tensors[first]):
                wrong.append(f"{other}: differs from {first}, of which it is the second name")
        return mx.array(_transpose(policy, name, tensors[first], "from_torch"))

    weights = tree_map_with_path(take, like)
    if wrong:
        more = f" and {len(wrong) - 6} more" if len(wrong) > 6 else ""
        raise UserError(
            f"the tensors are of another policy: {'; '.join(wrong[:6])}{more}",
            "compare policy.* and torch.* with what it was trained with",
        )
    return weights


def _transpose(policy: Policy, name: str, array: np.ndarray, way: str) -> np.ndarray:
    """Convert one weight to the layout of the torch class, or back for ``way`` ``from_torch``."""
    form = encoder_forms(policy.encoder).torch
    if form and name.startswith("encoder."):
        array = getattr(form, way)(array)
    if name == "decoder.logstd" and layout_of(policy) == "sb3":
        array = array[0] if way == "to_torch" else array[None]
    return np.ascontiguousarray(array)


def stacked_state(policy: Policy, state: Any) -> Tensors:
    """Return a recurrent state in the form of torch and ONNX.

    Returns:
        Arrays (L, n, H) by name, without entries if there is no state. The states of a separate
        value network follow with the prefix ``critic_``. Custom networks keep their state's form.
    """
    if not policy.separate_value:
        return _stacked(policy.network, state)
    critic = _stacked(policy.network, state["critic"])
    values = {f"critic_{name}": array for name, array in critic.items()}
    return {**_stacked(policy.network, state["actor"]), **values}


def _stacked(network: Any, state: Any) -> Tensors:
    if stacked := forms_of(network).stacked_state:
        return {
            part: np.stack([np.array(a) for a in layers]) for part, layers in stacked(state).items()
        }
    return {f"state.{name}": np.array(array) for name, array in named_arrays(state)}
