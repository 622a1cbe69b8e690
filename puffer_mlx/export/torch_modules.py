"""PufferLib's policies, and Stable-Baselines3's, as PyTorch modules with their keys.

For checking exports, and for running them where PufferLib isn't installed; on any device. Like
``torch_parts.py`` and the networks' ``torch_module.py``, this file imports torch when it is
imported: import them inside functions.

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

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from puffer_mlx.errors import UserError
from puffer_mlx.export.dialects import dialect_of, torch_fault
from puffer_mlx.export.torch_parts import (
    DefaultDecoder,
    Normalization,
    Outputs,
    Rescaling,
)
from puffer_mlx.policy.encoders.catalog import torch_encoder
from puffer_mlx.policy.networks.catalog import forms_of
from puffer_mlx.policy.networks.torch_network import Network, State, torch_class
from puffer_mlx.policy.policy import Policy as OurPolicy
from puffer_mlx.spec import ActionSpec

__all__ = ["ActorCritic", "Policy", "Wrapper", "make_module"]


class Composed(nn.Module):
    """A policy of ``encode``, ``remember`` (sequences, or ``recall`` one step) and ``decode``."""

    encode: Any
    decode: Any
    remember: Any
    recall: Any
    initial_state: Any

    def __init__(self) -> None:
        super().__init__()
        self.normalization: Normalization | None = None  # of observations, once it is loaded
        self.rescaling: Rescaling | None = None  # of continuous actions, likewise

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As ``nn.Module.load_state_dict``; statistics and bounds in it are applied."""
        device = next(self.parameters()).device
        if (low := state_dict.get("rescaling.low")) is not None:
            self.rescaling = Rescaling(len(low)).to(device)
        if (mean := state_dict.get("normalization.observations.mean")) is not None:
            self.normalization = Normalization(len(mean)).to(device)
        return super().load_state_dict(state_dict, strict, assign)

    def see(self, observations: Tensor) -> Tensor:
        """(n, D), any dtype -> (n, D) float32, normalised if there are statistics."""
        seen = observations.float()
        return seen if self.normalization is None else self.normalization(seen)

    def put_out(self, h: Tensor) -> tuple[Outputs, Tensor]:
        """(..., H) -> outputs, values (...); actions in the environment's units, if rescaled."""
        outputs, values = self.decode(h)
        return outputs if self.rescaling is None else self.rescaling(*outputs), values

    def forward(
        self, observations: Tensor, state: State | None = None
    ) -> tuple[Outputs, Tensor, State]:
        """Observations (S, T, D), any dtype -> outputs, values (S, T), state; None is zeros."""
        S, T = observations.shape[:2]
        h = self.encode(self.see(observations.flatten(0, 1))).unflatten(0, (S, T))
        h, after = self.remember(h, state or self.initial_state(S, h.device))
        return *self.put_out(h), after

    def step(
        self, observations: Tensor, state: State | None = None
    ) -> tuple[Outputs, Tensor, State]:
        """Observations (n, D), any dtype -> outputs, values (n,), next state; None is zeros."""
        h = self.encode(self.see(observations))
        h, after = self.recall(h, state or self.initial_state(len(h), h.device))
        return *self.put_out(h), after


class Policy(Composed):
    """4.0's: encoder, decoder, network."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, network: Network) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.network = network

    def encode(self, observations: Tensor) -> Tensor:
        """(n, D) -> (n, H)."""
        return self.encoder(observations)

    def decode(self, h: Tensor) -> tuple[Outputs, Tensor]:
        """(..., H) -> outputs, values (...)."""
        return self.decoder(h)

    def remember(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(S, T, H) -> (S, T, H), state."""
        return self.network(h, state)

    def recall(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(n, H) -> (n, H), state."""
        return self.network.step(h, state)

    def initial_state(self, n: int, device: Any = None) -> State:
        """Zeros: the state of n agents before their first step."""
        return self.network.initial_state(n, device)


class Default(nn.Module):
    """3.0's: a product with GELU, and the decoder's products."""

    decoder: nn.Module
    decoder_mean: nn.Module

    def __init__(self, inputs: int, action: ActionSpec, hidden: int) -> None:
        super().__init__()
        if action.continuous:
            self.decoder_logstd = nn.Parameter(torch.zeros(1, action.heads))
        self.encoder = nn.Sequential(nn.Linear(inputs, hidden), nn.GELU())
        actions = nn.Linear(hidden, action.logits)
        self.add_module("decoder_mean" if action.continuous else "decoder", actions)
        self.value = nn.Linear(hidden, 1)
        self.continuous = action.continuous

    def decode(self, h: Tensor) -> tuple[Outputs, Tensor]:
        """(..., H) -> outputs, values (...)."""
        value = self.value(h).squeeze(-1)
        if not self.continuous:
            return self.decoder(h), value
        mean = self.decoder_mean(h)
        return (mean, self.decoder_logstd.expand_as(mean)), value


class Wrapper(Composed):
    """3.0's: ``Default`` around one layer, whose modules are the wrapper's own."""

    def __init__(self, inputs: int, action: ActionSpec, hidden: int, network: Network) -> None:
        super().__init__()
        self.policy = Default(inputs, action, hidden)
        for name, module in network.named_children():
            self.add_module(name, module)
        self._network = (network,)  # in a tuple: as a module of this one its keys had a prefix

    def encode(self, observations: Tensor) -> Tensor:
        """(n, D) -> (n, H)."""
        return self.policy.encoder(observations)

    def decode(self, h: Tensor) -> tuple[Outputs, Tensor]:
        """(..., H) -> outputs, values (...)."""
        return self.policy.decode(h)

    def remember(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(S, T, H) -> (S, T, H), state."""
        return self._network[0](h, state)

    def recall(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(n, H) -> (n, H), state."""
        return self._network[0].step(h, state)

    def initial_state(self, n: int, device: Any = None) -> State:
        """Zeros: the state of n agents before their first step."""
        return self._network[0].initial_state(n, device)


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


class ActorCritic(Composed):
    """Stable-Baselines3's, without memory; what it computes, and its keys."""

    def __init__(
        self, inputs: int, action: ActionSpec, hidden: int, layers: int, activation: str, key: str
    ) -> None:
        super().__init__()
        if action.continuous:
            self.log_std = nn.Parameter(torch.zeros(action.heads))
        extractor = Extractor(inputs, hidden, layers, activation)
        self.add_module(key, extractor)
        self._extractor = (extractor,)  # in a tuple: it is a module by its key already
        self.action_net = nn.Linear(hidden, action.logits)
        self.value_net = nn.Linear(hidden, 1)
        self.continuous = action.continuous

    def encode(self, observations: Tensor) -> Tensor:
        """(n, D) -> (n, 2H): features of actions, then of values."""
        (extractor,) = self._extractor
        both = [extractor.policy_net(observations), extractor.value_net(observations)]
        return torch.cat(both, dim=-1)

    def decode(self, h: Tensor) -> tuple[Outputs, Tensor]:
        """(..., 2H) -> outputs, values (...)."""
        of_actions, of_value = h.chunk(2, dim=-1)
        outputs, value = self.action_net(of_actions), self.value_net(of_value).squeeze(-1)
        return ((outputs, self.log_std.expand_as(outputs)) if self.continuous else outputs), value

    def remember(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """Nothing."""
        return h, state

    recall = remember

    def initial_state(self, n: int, device: Any = None) -> State:
        """The empty state."""
        return ()


def make_module(policy: OurPolicy) -> Policy | Wrapper | ActorCritic:
    """The module of a policy of any dialect but native, with fresh weights.

    Raises:
        UserError: PufferLib has no class for a part of it.
    """
    if fault := torch_fault(policy):
        raise UserError(fault, "convert it to the torch dialect first")
    encoder: Any = policy.encoder
    network: Any = policy.network
    action, hidden = policy.decoder.action, policy.decoder.hidden
    if dialect_of(policy) == "sb3" and (form := forms_of(network).sb3):
        sizes = encoder.inputs, action, hidden, network.layers
        return ActorCritic(*sizes, encoder.activation, form.module)
    puffer3 = forms_of(network).puffer3
    if dialect_of(policy) == "puffer3" and puffer3 is not None:
        return Wrapper(encoder.inputs, action, hidden, puffer3.module(hidden))
    remembering = torch_class(network)(hidden, network.layers)
    return Policy(torch_encoder(encoder), DefaultDecoder(action, hidden), remembering)
