"""The policy: encoder, network, decoder; weights are nested dictionaries in file order.

    observations (T, S, D) -> encoder -> (T, S, H) -> network -> (T, S, H) -> decoder -> outputs of
    T*S samples (discrete: logits (A, T*S)), values (T*S,)

With ``separate_value`` values have an encoder and a network of their own, the critic's, of the same
kinds: the decoder's value row is of their features.

No part holds arrays; weights, recurrent state and randomness are arguments, so a snapshot of the
weights is a reference.

Each part computes in the dtype of the weights that it is given, float32, bfloat16 or float16: it
casts its input to that. Recurrent states are float32 whatever the weights are, and so are the
decoder's outputs, values, actions and log-probabilities. Gradients have the dtype of what they are
by.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from puffer_mlx import config
from puffer_mlx.config.memory_needs import refuse_policy
from puffer_mlx.config.schema.policy import OWN
from puffer_mlx.config.trust import permit
from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu.launch import ones
from puffer_mlx.ops.implementation import implementation
from puffer_mlx.policy.activations import chosen_activation
from puffer_mlx.policy.decoders import GAINS, Fused, Outputs, Separate
from puffer_mlx.policy.distributions import ActionBounds, Categorical, Gaussian
from puffer_mlx.policy.encoders import Encoder
from puffer_mlx.policy.encoders.catalog import make_encoder
from puffer_mlx.policy.encoders.combined import Combined
from puffer_mlx.policy.networks import Network
from puffer_mlx.policy.networks.catalog import forms_of, make_network
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.backend import backend
from puffer_mlx.system.plain_functions import record
from puffer_mlx.trees import leaves

Weights = dict[str, Any]
State = Any  # a tree of arrays, the network's own
PARTS = "actor", "critic"  # of a state, where values have a network of their own


@dataclass(frozen=True)
class Policy:
    """Composes an encoder, a network and a decoder that agree on H.

    ``reset_on_terminal`` asks whoever steps or trains the policy to pass ``keep``. With
    ``separate_value`` there are weights for encoder and network twice, and a state twice: the
    actor's, and under ``critic`` the value's own.
    """

    encoder: Encoder
    network: Network
    decoder: Fused | Separate
    reset_on_terminal: bool = False
    separate_value: bool = False

    @property
    def distribution(self) -> Categorical | Gaussian:
        """What the decoder's outputs mean."""
        return self.decoder.distribution

    @property
    def has_memory(self) -> bool:
        """Whether the network has a state: what it does depends on more than an observation."""
        return bool(leaves(self.initial_state(1)))

    def init(self, key: mx.array) -> Weights:
        """Fresh weights; the order of the dictionary is the order of upstream's flat file."""
        encoder, decoder, network = mx.random.split(key, 3)
        weights = {
            "encoder": self.encoder.init(encoder),
            "decoder": self.decoder.init(decoder),
            "network": self.network.init(network),
        }
        if self.separate_value:
            encoder, network = mx.random.split(key, 5)[3:]  # the first three of 5 are other keys
            weights["critic"] = {
                "encoder": self.encoder.init(encoder),
                "network": self.network.init(network),
            }
        return weights

    def initial_state(self, n: int) -> State:
        """Recurrent state of n agents before their first step."""
        if self.separate_value:
            return {part: self.network.initial_state(n) for part in PARTS}
        return self.network.initial_state(n)

    def keep(self, terminals: mx.array) -> mx.array | None:
        """What the recurrent state is multiplied by before a step: terminals arrive with it."""
        if not self.reset_on_terminal:
            return None
        return (1 if backend() == "cpu" else ones(terminals.shape)) - terminals

    def scan(
        self,
        weights: Weights,
        observations: mx.array,
        state: State | None,
        keep: mx.array | None = None,
    ) -> tuple[Outputs, mx.array, State]:
        """Evaluate T steps of S segments.

        Args:
            weights: as ``init`` makes them.
            observations: (T, S, D), any dtype.
            state: the network's, of S segments, before the first step; None is the initial one.
            keep: (T, S), what the state is multiplied by before each step; None is ones.

        Returns:
            The decoder's outputs of T*S samples, values (T*S,), the state after the last step.
        """
        y, state = self.product(weights, observations, state, keep)
        return *self.decoder.split(weights["decoder"], y), state

    def product(
        self,
        weights: Weights,
        observations: mx.array,
        state: State | None,
        keep: mx.array | None = None,
    ) -> tuple[mx.array, State]:
        """``scan`` up to the decoder's product (A + 1, T*S), which ``decoder.split`` divides."""
        h, value_features, state = self.features(weights, observations, state, keep)
        return self.decoder.product(weights["decoder"], h, value_features), state

    def features(
        self,
        weights: Weights,
        observations: mx.array,
        state: State | None,
        keep: mx.array | None = None,
    ) -> tuple[mx.array, mx.array | None, State]:
        """``scan`` up to what the decoder reads.

        Returns:
            Features (T*S, H); those that values are of, None if they are the same; the state after
            the last step.
        """
        T, S = observations.shape[:2]
        if state is None and not forms_of(self.network).from_zeros:
            state = self.initial_state(S)
        flat = observations.reshape(T * S, -1)

        def scanned(part: Weights, state: State) -> tuple[mx.array, State]:
            h = self.encoder(part["encoder"], flat).reshape(T, S, -1)
            h, state = self.network.scan(part["network"], h, state, keep)
            return h.reshape(T * S, -1), state

        return self._of_parts(weights, state, scanned)

    def step(
        self, weights: Weights, observations: mx.array, state: State, keep: mx.array | None = None
    ) -> tuple[Outputs, mx.array, State]:
        """Evaluate one step: observations (n, D), keep (n,) -> outputs, values (n,), next state."""

        def stepped(part: Weights, state: State) -> tuple[mx.array, State]:
            h = self.encoder(part["encoder"], observations)
            return self.network.step(part["network"], h, state, keep)

        h, value_features, state = self._of_parts(weights, state, stepped)
        y = self.decoder.product(weights["decoder"], h, value_features)
        return *self.decoder.split(weights["decoder"], y), state

    def _of_parts(
        self, weights: Weights, state: State | None, features: Callable[[Weights, State], Any]
    ) -> tuple[mx.array, mx.array | None, State]:
        """The actor's features of (weights, state), the critic's or None, and states after them."""
        if not self.separate_value:
            h, state = features(weights, state)
            return h, None, state
        before = state or dict.fromkeys(PARTS)
        h, actor = features(weights, before["actor"])
        value_features, critic = features(weights["critic"], before["critic"])
        return h, value_features, dict(zip(PARTS, (actor, critic), strict=True))

    def act(
        self,
        weights: Weights,
        observations: mx.array,
        state: State,
        noise: mx.array | None,
        mask: mx.array | None = None,
        keep: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, mx.array, State]:
        """Choose actions for one step of n agents.

        Args:
            weights: as ``init`` makes them.
            observations: (n, D), any dtype.
            state: the network's, of n agents.
            noise: (n, heads), from ``distribution.noise``; None takes the most probable action.
            mask: (n, A) uint8, non-zero where legal, or None.
            keep: (n,), what the state is multiplied by first; None is ones.

        Returns:
            Actions (n, heads) float32, log-probabilities (n,), values (n,), next state.
        """
        outputs, values, state = self.step(weights, observations, state, keep)
        actions, logprobs = self.distribution.sample(outputs, noise, mask)
        return actions, logprobs, values, state


def make_policy(spec: EnvSpec, policy: config.Policy, parts: config.Torch | None = None) -> Policy:
    """The policy that a program describes, for an environment; ``configured_policy`` is for files.

    Args:
        spec: the environment's observations and actions.
        policy: section [policy]: size and dialect.
        parts: section [torch]: the classes of encoder and network; the defaults if None.

    Raises:
        UserError: the parts don't fit the environment, or a class of the user's own isn't usable.
    """
    return configured_policy(spec, config.Config(policy=policy, torch=parts or config.Torch()))


def configured_policy(spec: EnvSpec, configuration: config.Config) -> Policy:
    """The policy that a configuration describes, for an environment.

    Args:
        spec: the environment's observations and actions.
        configuration: of which sections [policy] and [torch] count, and within which limits its
            algorithm keeps continuous actions.

    Raises:
        UserError: as ``make_policy``; it is too large for this machine's memory; or only a file
            names a class (``puffer_mlx.config.trust``).
    """
    if configuration.torch.decoder == OWN:
        raise UserError(
            "the policy is an mlx.nn.Module of somebody's program (torch.decoder is own): no file"
            " says how it is made",
            "in Python: puffer_mlx.Policy.load(path, policy=module), and Trainer.load likewise",
        )
    if spec.mask_size and spec.action.continuous:
        raise UserError(f"{spec.name}: continuous actions can't be masked", "remove MY_ACTION_MASK")
    permit(configuration, "torch")
    refuse_policy(configuration, spec)
    policy, parts = configuration.policy, configuration.torch
    H, L, dialect = policy.hidden_size, policy.num_layers, policy.dialect
    activation = chosen_activation(policy)
    network = make_network(parts.network, H, L, dialect, activation)
    limits = ActionBounds(*configuration.facts.limits)
    begins = spec.action, H, limits, policy.log_std_init
    decoder = Fused(*begins) if dialect == "native" else Separate(*begins, GAINS[dialect])
    encoder = make_encoder(spec, H, dialect, parts.encoder, activation)
    normalised = configuration.vec.normalize_observations and spec.observation_dtype != "uint8"
    if isinstance(encoder, Combined) and normalised:
        raise UserError(
            f"vec.normalize_observations is True, and {spec.name} shows images beside other"
            " numbers, whose bytes the encoder scales itself",
            "--vec.normalize-observations 0; or --torch.encoder DefaultEncoder, for which an image"
            " is numbers like the others",
        )
    return Policy(encoder, network, decoder, policy.reset_on_terminal, policy.separate_value)


# ---- what fused forms compute ------------------------------------------------------------------

IN_C = implementation(("policy.policy",), "the policy's step in C")


def acting_of(policy: Policy) -> list[Callable[..., Any]]:
    """The functions by which a policy acts."""
    parts = [policy.act, policy.keep, *_features(policy)]
    return [*parts, policy.network.step, policy.distribution.sample]


def training_of(policy: Policy) -> list[Callable[..., Any]]:
    """Those by which it is trained: a minibatch's forward pass."""
    parts = [policy.product, policy.keep, *_features(policy)]
    return [*parts, policy.distribution.log_prob_entropy]


def _features(policy: Policy) -> list[Callable[..., Any]]:
    decoder = policy.decoder
    encoder: Any = type(policy.encoder).__call__
    return [encoder, policy.network.scan, decoder.product, decoder.split, decoder.logstd]


record(__name__)
