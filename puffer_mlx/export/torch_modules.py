"""PufferLib's policies, and Stable-Baselines3's, as PyTorch modules with their keys.

For checking exports, and for running them where PufferLib isn't installed; on any device. Like the
encoders' ``torch_images.py``, this file imports torch when it is imported: import it inside
functions.

    module = make_module(policy)            # of our Policy, dialect torch, puffer3, sb3
    module.load_state_dict(torch.load("breakout.pt", weights_only=True))
    outputs, values, state = module.step(observations, state)

A policy that was trained on normalised observations has their statistics in its state_dict, as
buffers ``normalization.observations.mean``, ``.variance`` and ``.count``: loading makes the module
normalise what it is given. One whose actions are rescaled has ``rescaling.low`` and
``rescaling.high``: loading makes the module put out actions in the environment's units.

``outputs`` are logits (..., A); of continuous actions a tuple of means and log standard deviations,
both (..., a). A state is a tuple of tensors (L, n, H), as many as the network has. To forget, as
``policy.reset_on_terminal`` asks, multiply it by 0 before the step.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from puffer_mlx.errors import UserError
from puffer_mlx.export.dialects import dialect_of, torch_fault
from puffer_mlx.export.encoders import export_forms_of as encoder_forms
from puffer_mlx.export.networks import TorchNetwork, export_forms_of
from puffer_mlx.policy.policy import Policy as OurPolicy
from puffer_mlx.spec import ActionSpec
from puffer_mlx.vec.normalize import EPSILON, LIMIT

Outputs = Any  # Tensor, or a tuple of two
State = tuple[Tensor, ...]  # each (L, n, H)


# ---- scaling of observations and actions ---------------------------------------------------------


def buffers(**tensors: Tensor) -> nn.Module:
    """A module that only holds tensors, which its state_dict names."""
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


def normalization(size: int) -> nn.Module:
    """Statistics (D,) of observations, and their count; see ``vec/normalize.py``."""
    module = nn.Module()
    zeros, ones = torch.zeros(size), torch.ones(size)
    module.observations = buffers(mean=zeros, variance=ones, count=torch.zeros(()))
    return module


# ---- a policy of an encoder, a network and a decoder ---------------------------------------------


class Network(nn.Module):
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
    """A policy of three parts, which classes derived from it keep under upstream's names.

    Args:
        encode: (n, D) float32 -> features (n, H).
        network: from features and a state to both; None remembers nothing.
        decode: features (..., H) -> outputs, values (...).
    """

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor],
        network: Network | None,
        decode: Callable[[Tensor], tuple[Outputs, Tensor]],
    ) -> None:
        super().__init__()
        self.normalization: Any = None  # of observations, once it is loaded
        self.rescaling: Any = None  # low and high (a,) of continuous actions, likewise
        self._parts = encode, network, decode  # in a tuple: keys know them by other names

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As ``nn.Module.load_state_dict``; statistics and bounds in it are applied."""
        device = next(self.parameters()).device
        if (low := state_dict.get("rescaling.low")) is not None:
            ones = torch.ones(len(low))
            self.rescaling = buffers(low=-ones, high=ones).to(device)
        if (mean := state_dict.get("normalization.observations.mean")) is not None:
            self.normalization = normalization(len(mean)).to(device)
        return super().load_state_dict(state_dict, strict, assign)

    def encode(self, observations: Tensor) -> Tensor:
        """(n, D), any dtype -> features (n, H); normalised first if there are statistics."""
        seen = observations.to(next(self.parameters()).dtype)
        if self.normalization is not None:
            moments = self.normalization.observations
            seen = (seen - moments.mean) / torch.sqrt(moments.variance + EPSILON)
            seen = seen.clamp(-LIMIT, LIMIT)
        return self._parts[0](seen)

    def decode(self, h: Tensor) -> tuple[Outputs, Tensor]:
        """(..., H) -> outputs, values (...); actions in the environment's units, if rescaled."""
        outputs, values = self._parts[2](h)
        if self.rescaling is not None:  # see checkpoint/rescaling.py
            (mean, logstd), low, high = outputs, self.rescaling.low, self.rescaling.high
            half = (high - low) / 2
            outputs = (high + low) / 2 + half * mean, logstd + half.log()
        return outputs, values

    def initial_state(self, n: int, device: Any = None) -> State:
        """Zeros: the state of n agents before their first step."""
        network = self._parts[1]
        return network.initial_state(n, device) if network else ()

    def forward(
        self, observations: Tensor, state: State | None = None
    ) -> tuple[Outputs, Tensor, State]:
        """Observations (S, T, D), any dtype -> outputs, values (S, T), state; None is zeros."""
        h = self.encode(observations.flatten(0, 1)).unflatten(0, observations.shape[:2])
        before, network = state or self.initial_state(len(h), h.device), self._parts[1]
        h, after = network(h, before) if network else (h, before)
        return *self.decode(h), after

    def step(
        self, observations: Tensor, state: State | None = None
    ) -> tuple[Outputs, Tensor, State]:
        """Observations (n, D), any dtype -> outputs, values (n,), next state; None is zeros."""
        h = self.encode(observations)
        before, network = state or self.initial_state(len(h), h.device), self._parts[1]
        h, after = network.step(h, before) if network else (h, before)
        return *self.decode(h), after


def _with_deviations(
    outputs: Tensor, value: Tensor, logstd: Tensor | None
) -> tuple[Outputs, Tensor]:
    """Logits, or means and log standard deviations (..., a); values (..., 1) without that axis."""
    return outputs if logstd is None else (outputs, logstd.expand_as(outputs)), value.squeeze(-1)


class Decoder(nn.Module):
    """4.0's: a product for the actions and one for the value, both with bias.

    Args:
        action: the heads.
        hidden: H.
        value: the key of the value's product.
        others: further modules, whose keys come before the products'.
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
        """(..., H) -> outputs, values (...)."""
        actions, value = self._products
        return _with_deviations(actions(h), value(h), self.decoder_logstd)


class Policy(Composed):
    """4.0's: encoder, decoder, network."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, network: Network) -> None:
        super().__init__(encoder, network, decoder)
        self.encoder = encoder
        self.decoder = decoder
        self.network = network


class Wrapper(Composed):
    """3.0's: a policy around one layer, whose modules are the wrapper's own."""

    def __init__(self, inputs: int, action: ActionSpec, hidden: int, network: Network) -> None:
        encoder = nn.Sequential(nn.Linear(inputs, hidden), nn.GELU())
        policy = Decoder(action, hidden, "value", encoder=encoder)
        super().__init__(encoder, network, policy)
        self.policy = policy
        for name, module in network.named_children():
            self.add_module(name, module)


ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}


class Extractor(nn.Module):
    """Of Stable-Baselines3: features of actions, and of values."""

    def __init__(self, inputs: int, hidden: int, layers: int, activation: str) -> None:
        super().__init__()
        widths = [inputs, *[hidden] * layers]

        def sequence() -> nn.Sequential:
            pairs = [(nn.Linear(width, hidden), ACTIVATIONS[activation]()) for width in widths]
            return nn.Sequential(*(module for pair in pairs for module in pair))

        self.policy_net, self.value_net = sequence(), sequence()

    def forward(self, observations: Tensor) -> Tensor:
        """(n, D) -> (n, 2H): features of actions, then of values."""
        return torch.cat([self.policy_net(observations), self.value_net(observations)], dim=-1)


class ActorCritic(Composed):
    """Stable-Baselines3's, without memory; what it computes, and its keys."""

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


def make_module(policy: OurPolicy) -> Policy | Wrapper | ActorCritic:
    """The module of a policy of any dialect but native, with fresh weights.

    Raises:
        UserError: PufferLib has no class for a part of it.
    """
    if fault := torch_fault(policy):
        raise UserError(fault, "convert it to the torch dialect first")
    encoder: Any = policy.encoder
    network: Any = policy.network
    action = policy.decoder.action
    hidden = policy.decoder.hidden
    forms = export_forms_of(network)
    if dialect_of(policy) == "sb3" and (form := forms.sb3):
        sizes = encoder.inputs, action, hidden, network.layers
        return ActorCritic(*sizes, encoder.activation, form.module)
    if dialect_of(policy) == "puffer3" and forms.puffer3 is not None:
        layer = Network(forms.puffer3.network, hidden, 1)
        return Wrapper(encoder.inputs, action, hidden, layer)
    form: Any = encoder_forms(encoder).torch
    assert forms.torch is not None  # see torch_fault
    layers = Network(forms.torch.network, hidden, network.layers)
    return Policy(form.module(encoder), Decoder(action, hidden), layers)
