"""PyTorch modules with the keys of PufferLib's and Stable-Baselines3's policies.

Use them to check exports, or to run policies without PufferLib on any device. Importing this file
imports torch, as does the encoders' ``torch_images.py``; import it inside functions.

    module = make_module(policy)            # our Policy, weight layout torch, puffer3 or sb3
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
from puffer_mlx.export.encoders import encoder_exports_of
from puffer_mlx.export.networks import TorchNetwork, network_exports_of
from puffer_mlx.export.weight_layouts import layout_of, torch_unsupported_reason
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import ActionSpec
from puffer_mlx.vec.normalize import MAX_DEVIATIONS, VARIANCE_EPSILON

TorchOutputs = Any  # Tensor, or a tuple of two
State = tuple[Tensor, ...]  # each (L, n, H)


# ---- scaling of observations and actions ---------------------------------------------------------


def buffer_module(**tensors: Tensor) -> nn.Module:
    """Return a PyTorch module that only holds tensors, named as in its state_dict."""
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


def normalization_module(size: int) -> nn.Module:
    """Return a PyTorch module that holds normalization statistics: mean, variance (D,), count."""
    module = nn.Module()
    zeros = torch.zeros(size)
    ones = torch.ones(size)
    module.observations = buffer_module(mean=zeros, variance=ones, count=torch.zeros(()))
    return module


# ---- a policy of an encoder, a network and a decoder ---------------------------------------------


class NetworkModule(nn.Module):
    """A policy's network in PyTorch, with the submodules of its class in another program.

    Args:
        network: Functions that compute the network in PyTorch.
        hidden: Number of features H.
        layers: Number of layers L.
    """

    def __init__(self, network: TorchNetwork, hidden: int, layers: int) -> None:
        super().__init__()
        self.size = layers, hidden
        self._network = network
        for name, module in network.modules(hidden, layers).items():
            self.add_module(name, module)

    def initial_state(self, n: int, device: Any = None) -> State:
        """Return the network's recurrent state of n agents before their first step: zeros."""
        layers, hidden = self.size
        zeros = [torch.zeros(layers, n, hidden, device=device) for _ in range(self._network.states)]
        return tuple(zeros)

    def forward(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute T steps of the PyTorch network from features (S, T, H) and a state.

        Returns features (S, T, H) and the state after the last step.
        """
        return self._network.scan(self, h, state)

    def step(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute one step of the PyTorch network. Returns features (n, H) and the next state."""
        return self._network.step(self, h, state)


class ComposedPolicy(nn.Module):
    """A PyTorch policy composed of encoder, network and decoder.

    Derived classes register these modules under the names of the other program.

    Args:
        encode: (n, D) float32 -> features (n, H).
        network: (features, state) -> (features, state); None for a policy without state.
        decode: features (..., H) -> outputs, values (...).
    """

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor],
        network: NetworkModule | None,
        decode: Callable[[Tensor], tuple[TorchOutputs, Tensor]],
    ) -> None:
        super().__init__()
        self.normalization: Any = None  # statistics of observations, after loading
        self.rescaling: Any = None  # low and high (a,) of actions, after loading
        self._components = encode, network, decode  # a tuple hides them from the state_dict

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load weights into a PyTorch policy, also normalization statistics and action bounds."""
        device = next(self.parameters()).device
        if (low := state_dict.get("rescaling.low")) is not None:
            ones = torch.ones(len(low))
            self.rescaling = buffer_module(low=-ones, high=ones).to(device)
        if (mean := state_dict.get("normalization.observations.mean")) is not None:
            self.normalization = normalization_module(len(mean)).to(device)
        return super().load_state_dict(state_dict, strict, assign)

    def encode(self, observations: Tensor) -> Tensor:
        """Encode observations (n, D), any dtype, as the policy's features (n, H).

        Observations are normalized if statistics were loaded.
        """
        inputs = observations.to(next(self.parameters()).dtype)
        if self.normalization is not None:
            moments = self.normalization.observations
            inputs = (inputs - moments.mean) / torch.sqrt(moments.variance + VARIANCE_EPSILON)
            inputs = inputs.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        return self._components[0](inputs)

    def decode(self, h: Tensor) -> tuple[TorchOutputs, Tensor]:
        """Decode features (..., H) to the policy's outputs and values (...).

        Actions are rescaled if bounds were loaded.
        """
        outputs, values = self._components[2](h)
        if self.rescaling is not None:  # see checkpoint/rescaling.py
            (mean, logstd) = outputs
            low = self.rescaling.low
            high = self.rescaling.high
            half = (high - low) / 2
            outputs = (high + low) / 2 + half * mean, logstd + half.log()
        return outputs, values

    def initial_state(self, n: int, device: Any = None) -> State:
        """Return the policy's recurrent state of n agents before their first step: zeros."""
        network = self._components[1]
        return network.initial_state(n, device) if network else ()

    def forward(
        self, observations: Tensor, state: State | None = None
    ) -> tuple[TorchOutputs, Tensor, State]:
        """Compute T steps of the PyTorch policy; state None means zeros.

        Args:
            observations: Observations (S, T, D), any dtype.
            state: State before the first step.

        Returns:
            Outputs, values (S, T), state after the last step.
        """
        h = self.encode(observations.flatten(0, 1)).unflatten(0, observations.shape[:2])
        previous = state or self.initial_state(len(h), h.device)
        network = self._components[1]
        h, next_state = network(h, previous) if network else (h, previous)
        return *self.decode(h), next_state

    def step(
        self, observations: Tensor, state: State | None = None
    ) -> tuple[TorchOutputs, Tensor, State]:
        """Compute one step of the PyTorch policy; state None means zeros.

        Args:
            observations: Observations (n, D), any dtype.
            state: State before the step.

        Returns:
            Outputs, values (n,), next state.
        """
        h = self.encode(observations)
        previous = state or self.initial_state(len(h), h.device)
        network = self._components[1]
        h, next_state = network.step(h, previous) if network else (h, previous)
        return *self.decode(h), next_state


def _with_deviations(
    outputs: Tensor, value: Tensor, logstd: Tensor | None
) -> tuple[TorchOutputs, Tensor]:
    """Combine the outputs of a PyTorch decoder's layers to a policy's outputs and values.

    Returns:
        Logits, or means and log standard deviations (..., a); and values (...) from (..., 1).
    """
    return outputs if logstd is None else (outputs, logstd.expand_as(outputs)), value.squeeze(-1)


class DecoderModule(nn.Module):
    """Decoder of PufferLib 4.0: a linear layer for actions and one for the value, with biases.

    Args:
        action: Action space.
        hidden: Number of features H.
        value: Key of the value's layer.
        first_modules: Modules to register before these layers, by name.
    """

    decoder_logstd: Tensor | None  # (1, a)

    def __init__(
        self,
        action: ActionSpec,
        hidden: int,
        value: str = "value_function",
        **first_modules: nn.Module,
    ) -> None:
        super().__init__()
        logstd = nn.Parameter(torch.zeros(1, action.heads)) if action.continuous else None
        self.register_parameter("decoder_logstd", logstd)
        actions = "decoder_mean" if action.continuous else "decoder"
        products = {actions: nn.Linear(hidden, action.logits), value: nn.Linear(hidden, 1)}
        for name, module in (first_modules | products).items():
            self.add_module(name, module)
        self._products = tuple(products.values())

    def forward(self, h: Tensor) -> tuple[TorchOutputs, Tensor]:
        """Decode features (..., H) to the policy's outputs and values (...)."""
        actions, value = self._products
        return _with_deviations(actions(h), value(h), self.decoder_logstd)


class PolicyModule(ComposedPolicy):
    """PyTorch policy of PufferLib 4.0: encoder, decoder, network."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, network: NetworkModule) -> None:
        super().__init__(encoder, network, decoder)
        self.encoder = encoder
        self.decoder = decoder
        self.network = network


class Puffer3Wrapper(ComposedPolicy):
    """PyTorch policy of PufferLib 3.0: one recurrent layer around a policy.

    The layer's modules are attributes of the wrapper.
    """

    def __init__(
        self, inputs: int, action: ActionSpec, hidden: int, network: NetworkModule
    ) -> None:
        encoder = nn.Sequential(nn.Linear(inputs, hidden), nn.GELU())
        policy = DecoderModule(action, hidden, "value", encoder=encoder)
        super().__init__(encoder, network, policy)
        self.policy = policy
        for name, module in network.named_children():
            self.add_module(name, module)


ACTIVATION_MODULES = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}


class Sb3Extractor(nn.Module):
    """Stable-Baselines3's feature networks of the actor and of the critic."""

    def __init__(self, inputs: int, hidden: int, layers: int, activation: str) -> None:
        super().__init__()
        widths = [inputs, *[hidden] * layers]

        def sequence() -> nn.Sequential:
            pairs = [
                (nn.Linear(width, hidden), ACTIVATION_MODULES[activation]()) for width in widths
            ]
            return nn.Sequential(*(module for pair in pairs for module in pair))

        self.policy_net = sequence()
        self.value_net = sequence()

    def forward(self, observations: Tensor) -> Tensor:
        """Encode observations (n, D) as features (n, 2H): the actor's, then the critic's."""
        return torch.cat([self.policy_net(observations), self.value_net(observations)], dim=-1)


class Sb3Policy(ComposedPolicy):
    """PyTorch policy of Stable-Baselines3 without recurrent state, with that program's keys."""

    log_std: Tensor | None  # (a,)

    def __init__(
        self, inputs: int, action: ActionSpec, hidden: int, layers: int, activation: str, key: str
    ) -> None:
        extractor = Sb3Extractor(inputs, hidden, layers, activation)
        super().__init__(extractor, None, self._decode)
        logstd = nn.Parameter(torch.zeros(action.heads)) if action.continuous else None
        self.register_parameter("log_std", logstd)
        self.add_module(key, extractor)
        self.action_net = nn.Linear(hidden, action.logits)
        self.value_net = nn.Linear(hidden, 1)

    def _decode(self, h: Tensor) -> tuple[TorchOutputs, Tensor]:
        actor_features, critic_features = h.chunk(2, dim=-1)
        return _with_deviations(
            self.action_net(actor_features), self.value_net(critic_features), self.log_std
        )


def make_module(policy: Policy) -> PolicyModule | Puffer3Wrapper | Sb3Policy:
    """Create the PyTorch module of a policy, with initial weights.

    Raises:
        UserError: If there is no module: PufferLib has no class for a component of the policy, or
            the policy has the weight layout ``native``.
    """
    if reason := torch_unsupported_reason(policy):
        raise UserError(reason, "convert it to the weight layout torch first")
    encoder: Any = policy.encoder
    network: Any = policy.network
    action = policy.decoder.action
    hidden = policy.decoder.hidden
    exports = network_exports_of(network)
    if layout_of(policy) == "sb3" and (encoder_class := exports.sb3):
        sizes = encoder.inputs, action, hidden, network.layers
        return Sb3Policy(*sizes, encoder.activation, encoder_class.module)
    if layout_of(policy) == "puffer3" and exports.puffer3 is not None:
        layer = NetworkModule(exports.puffer3.network, hidden, 1)
        return Puffer3Wrapper(encoder.inputs, action, hidden, layer)
    encoder_class: Any = encoder_exports_of(encoder).torch
    assert exports.torch is not None  # see torch_unsupported_reason
    layers = NetworkModule(exports.torch.network, hidden, network.layers)
    return PolicyModule(encoder_class.module(encoder), DecoderModule(action, hidden), layers)
