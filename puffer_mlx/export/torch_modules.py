"""PyTorch modules with the keys of PufferLib's and Stable-Baselines3's policies.

Use them to check exports, or to run policies without PufferLib on any device. Importing this file
imports torch, as does the encoders' ``torch_images.py``; import it inside functions.

    module = make_module(policy)            # our Policy, dialect torch, puffer3 or sb3
    module.load_state_dict(torch.load("breakout.pt", weights_only=True))
    outputs, values, state = module.step(observations, state)

For normalized observations the state_dict contains the buffers ``normalization.observations.mean``,
``.variance`` and ``.count``; after loading them the module normalizes its inputs. For rescaled
actions it contains ``rescaling.low`` and ``rescaling.high``; after loading them the module returns
actions in the environment's units.

``outputs`` are logits (..., A), or for continuous actions a tuple of means and log standard
deviations, both (..., a). A state is a tuple of tensors (L, n, H); their number depends on the
network. To reset the state, as ``policy.reset_on_terminal`` requires, multiply it by 0 before the
step.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from puffer_mlx.errors import UserError
from puffer_mlx.export.encoders import export_forms_of as encoder_forms
from puffer_mlx.export.networks import TorchNetwork, export_forms_of
from puffer_mlx.export.weight_layouts import layout_of, torch_unsupported_reason
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import ActionSpec
from puffer_mlx.vec.normalize import MAX_DEVIATIONS, VARIANCE_EPSILON

Outputs = Any  # Tensor, or a tuple of two
State = tuple[Tensor, ...]  # each (L, n, H)


# ---- scaling of observations and actions ---------------------------------------------------------


def buffers(**tensors: Tensor) -> nn.Module:
    """Return a module that only holds tensors, named as in its state_dict."""
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


def normalization(size: int) -> nn.Module:
    """Return a module for statistics (D,) of observations and their count."""
    module = nn.Module()
    zeros, ones = torch.zeros(size), torch.ones(size)
    module.observations = buffers(mean=zeros, variance=ones, count=torch.zeros(()))
    return module


# ---- a policy of an encoder, a network and a decoder ---------------------------------------------


class NetworkModule(nn.Module):
    """A network with the same submodules as its class in another program.

    Args:
        network: functions that compute the network in PyTorch.
        hidden: number of features H.
        layers: number of layers L.
    """

    def __init__(self, network: TorchNetwork, hidden: int, layers: int) -> None:
        super().__init__()
        self.size = layers, hidden
        self._network = network
        for name, module in network.modules(hidden, layers).items():
            self.add_module(name, module)

    def initial_state(self, n: int, device: Any = None) -> State:
        """Return zeros: the state of n agents before their first step."""
        layers, hidden = self.size
        zeros = [torch.zeros(layers, n, hidden, device=device) for _ in range(self._network.states)]
        return tuple(zeros)

    def forward(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """Return features (S, T, H) of T steps, and the state after the last step."""
        return self._network.scan(self, h, state)

    def step(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """Return features (n, H) of one step, and the next state."""
        return self._network.step(self, h, state)


class Composed(nn.Module):
    """A policy of three parts. Derived classes register them under upstream's names.

    Args:
        encode: (n, D) float32 -> features (n, H).
        network: (features, state) -> (features, state); None for a policy without state.
        decode: features (..., H) -> outputs, values (...).
    """

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor],
        network: NetworkModule | None,
        decode: Callable[[Tensor], tuple[Outputs, Tensor]],
    ) -> None:
        super().__init__()
        self.normalization: Any = None  # statistics of observations, after loading
        self.rescaling: Any = None  # low and high (a,) of actions, after loading
        self._parts = encode, network, decode  # a tuple hides them from the state_dict

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load weights, and the statistics and bounds if there are any."""
        device = next(self.parameters()).device
        if (low := state_dict.get("rescaling.low")) is not None:
            ones = torch.ones(len(low))
            self.rescaling = buffers(low=-ones, high=ones).to(device)
        if (mean := state_dict.get("normalization.observations.mean")) is not None:
            self.normalization = normalization(len(mean)).to(device)
        return super().load_state_dict(state_dict, strict, assign)

    def encode(self, observations: Tensor) -> Tensor:
        """Return features (n, H) of observations (n, D), any dtype.

        Observations are normalized if statistics were loaded.
        """
        seen = observations.to(next(self.parameters()).dtype)
        if self.normalization is not None:
            moments = self.normalization.observations
            seen = (seen - moments.mean) / torch.sqrt(moments.variance + VARIANCE_EPSILON)
            seen = seen.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        return self._parts[0](seen)

    def decode(self, h: Tensor) -> tuple[Outputs, Tensor]:
        """Return outputs and values (...) of features (..., H).

        Actions are rescaled if bounds were loaded.
        """
        outputs, values = self._parts[2](h)
        if self.rescaling is not None:  # see checkpoint/rescaling.py
            (mean, logstd), low, high = outputs, self.rescaling.low, self.rescaling.high
            half = (high - low) / 2
            outputs = (high + low) / 2 + half * mean, logstd + half.log()
        return outputs, values

    def initial_state(self, n: int, device: Any = None) -> State:
        """Return zeros: the state of n agents before their first step."""
        network = self._parts[1]
        return network.initial_state(n, device) if network else ()

    def forward(
        self, observations: Tensor, state: State | None = None
    ) -> tuple[Outputs, Tensor, State]:
        """Compute T steps of observations (S, T, D), any dtype; state None means zeros.

        Returns:
            Outputs, values (S, T), state after the last step.
        """
        h = self.encode(observations.flatten(0, 1)).unflatten(0, observations.shape[:2])
        before, network = state or self.initial_state(len(h), h.device), self._parts[1]
        h, after = network(h, before) if network else (h, before)
        return *self.decode(h), after

    def step(
        self, observations: Tensor, state: State | None = None
    ) -> tuple[Outputs, Tensor, State]:
        """Compute one step of observations (n, D), any dtype; state None means zeros.

        Returns:
            Outputs, values (n,), next state.
        """
        h = self.encode(observations)
        before, network = state or self.initial_state(len(h), h.device), self._parts[1]
        h, after = network.step(h, before) if network else (h, before)
        return *self.decode(h), after


def _with_deviations(
    outputs: Tensor, value: Tensor, logstd: Tensor | None
) -> tuple[Outputs, Tensor]:
    """Return logits, or means and log deviations (..., a); and values (...) from (..., 1)."""
    return outputs if logstd is None else (outputs, logstd.expand_as(outputs)), value.squeeze(-1)


class Decoder(nn.Module):
    """Decoder of 4.0: one linear layer for actions and one for the value, with biases.

    Args:
        action: Action space.
        hidden: Number of features H.
        value: Key of the value's layer.
        others: Further modules, registered before these layers.
    """

    decoder_logstd: Tensor | None  # (1, a)

    def __init__(
        self, action: ActionSpec, hidden: int, value: str = "value_function", **others: nn.Module
    ) -> None:
        super().__init__()
        logstd = nn.Parameter(torch.zeros(1, action.heads)) if action.continuous else None
        self.register_parameter("decoder_logstd", logstd)
        actions = "decoder_mean" if action.continuous else "decoder"
        products = {actions: nn.Linear(hidden, action.logits), value: nn.Linear(hidden, 1)}
        for name, module in (others | products).items():
            self.add_module(name, module)
        self._products = tuple(products.values())

    def forward(self, h: Tensor) -> tuple[Outputs, Tensor]:
        """Return outputs and values (...) of features (..., H)."""
        actions, value = self._products
        return _with_deviations(actions(h), value(h), self.decoder_logstd)


class PolicyModule(Composed):
    """Policy of 4.0: encoder, decoder, network."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, network: NetworkModule) -> None:
        super().__init__(encoder, network, decoder)
        self.encoder = encoder
        self.decoder = decoder
        self.network = network


class Wrapper(Composed):
    """Policy of 3.0 with one recurrent layer, whose modules are the wrapper's attributes."""

    def __init__(
        self, inputs: int, action: ActionSpec, hidden: int, network: NetworkModule
    ) -> None:
        encoder = nn.Sequential(nn.Linear(inputs, hidden), nn.GELU())
        policy = Decoder(action, hidden, "value", encoder=encoder)
        super().__init__(encoder, network, policy)
        self.policy = policy
        for name, module in network.named_children():
            self.add_module(name, module)


ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}


class Extractor(nn.Module):
    """Stable-Baselines3's feature networks of the actor and of the critic."""

    def __init__(self, inputs: int, hidden: int, layers: int, activation: str) -> None:
        super().__init__()
        widths = [inputs, *[hidden] * layers]

        def sequence() -> nn.Sequential:
            pairs = [(nn.Linear(width, hidden), ACTIVATIONS[activation]()) for width in widths]
            return nn.Sequential(*(module for pair in pairs for module in pair))

        self.policy_net, self.value_net = sequence(), sequence()

    def forward(self, observations: Tensor) -> Tensor:
        """Return features (n, 2H) of observations (n, D): the actor's, then the critic's."""
        return torch.cat([self.policy_net(observations), self.value_net(observations)], dim=-1)


class ActorCritic(Composed):
    """Stable-Baselines3's policy without state: the same function and keys."""

    log_std: Tensor | None  # (a,)

    def __init__(
        self, inputs: int, action: ActionSpec, hidden: int, layers: int, activation: str, key: str
    ) -> None:
        extractor = Extractor(inputs, hidden, layers, activation)
        super().__init__(extractor, None, self._decode)
        logstd = nn.Parameter(torch.zeros(action.heads)) if action.continuous else None
        self.register_parameter("log_std", logstd)
        self.add_module(key, extractor)
        self.action_net = nn.Linear(hidden, action.logits)
        self.value_net = nn.Linear(hidden, 1)

    def _decode(self, h: Tensor) -> tuple[Outputs, Tensor]:
        of_actions, of_value = h.chunk(2, dim=-1)
        return _with_deviations(self.action_net(of_actions), self.value_net(of_value), self.log_std)


def make_module(policy: Policy) -> PolicyModule | Wrapper | ActorCritic:
    """Return the module of a policy with initial weights. The native dialect has no module.

    Raises:
        UserError: If PufferLib has no class for a part of the policy.
    """
    if reason := torch_unsupported_reason(policy):
        raise UserError(reason, "convert it to the torch dialect first")
    encoder: Any = policy.encoder
    network: Any = policy.network
    action = policy.decoder.action
    hidden = policy.decoder.hidden
    forms = export_forms_of(network)
    if layout_of(policy) == "sb3" and (form := forms.sb3):
        sizes = encoder.inputs, action, hidden, network.layers
        return ActorCritic(*sizes, encoder.activation, form.module)
    if layout_of(policy) == "puffer3" and forms.puffer3 is not None:
        layer = NetworkModule(forms.puffer3.network, hidden, 1)
        return Wrapper(encoder.inputs, action, hidden, layer)
    form: Any = encoder_forms(encoder).torch
    assert forms.torch is not None  # see torch_unsupported_reason
    layers = NetworkModule(forms.torch.network, hidden, network.layers)
    return PolicyModule(form.module(encoder), Decoder(action, hidden), layers)
