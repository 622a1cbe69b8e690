"""Policies: an encoder, a network and a decoder.

    observations (T, S, D) -> encoder -> (T, S, H) -> network -> (T, S, H) -> decoder -> outputs of
    T*S samples (discrete: logits (A, T*S)), values (T*S,)

With ``separate_value`` the critic has a separate encoder and network of the same kinds, and the
decoder computes values from the critic's features.

These objects contain no arrays. Weights, recurrent state and random numbers are arguments. Weights
are nested dictionaries, in the order of PufferLib's flat file.

Encoder, network and decoder cast their input to the dtype of the weights: float32, bfloat16 or
float16. Recurrent states, the decoder's outputs, values, actions and log-probabilities are always
float32. A gradient has the dtype of its array.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from puffer_mlx import config
from puffer_mlx.config.memory_needs import refuse_large_policy
from puffer_mlx.config.schema.policy import CUSTOM_MODULE
from puffer_mlx.config.trust import refuse_untrusted_code
from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu.launch import ones
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.policy.activations import chosen_activation
from puffer_mlx.policy.decoders import GAINS, Fused, Outputs, Separate
from puffer_mlx.policy.distributions import ActionBounds, Categorical, Gaussian
from puffer_mlx.policy.encoders import Encoder
from puffer_mlx.policy.encoders.catalog import make_encoder
from puffer_mlx.policy.encoders.combined import Combined
from puffer_mlx.policy.networks import Network, NotDone
from puffer_mlx.policy.networks.catalog import make_network, network_facts
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.backend import backend
from puffer_mlx.system.plain_functions import record
from puffer_mlx.trees import leaves

Weights = dict[str, Any]
State = Any  # tree of arrays, defined by the network
TOWERS = "actor", "critic"  # keys of the state with ``separate_value``


@dataclass(frozen=True)
class Policy:
    """A policy: an encoder, a network and a decoder with the same number H of features.

    With ``reset_on_terminal`` pass ``not_done`` to ``step``, ``act`` and ``scan``. With
    ``separate_value`` the weights contain another encoder and network under ``critic``, and the
    recurrent state is a dictionary with the keys ``actor`` and ``critic``.
    """

    encoder: Encoder
    network: Network
    decoder: Fused | Separate
    reset_on_terminal: bool = False
    separate_value: bool = False

    @property
    def distribution(self) -> Categorical | Gaussian:
        """The distribution of actions (discrete or continuous) that the policy samples from."""
        return self.decoder.distribution

    @property
    def is_recurrent(self) -> bool:
        """True if the policy's network has a recurrent state."""
        return bool(leaves(self.initial_state(1)))

    def init(self, key: mx.array) -> Weights:
        """Return a policy's random initial weights, in the order of PufferLib's flat file."""
        encoder, decoder, network = mx.random.split(key, 3)
        weights = {
            "encoder": self.encoder.init(encoder),
            "decoder": self.decoder.init(decoder),
            "network": self.network.init(network),
        }
        if self.separate_value:
            encoder, network = mx.random.split(key, 5)[3:]  # independent of the first three
            weights["critic"] = {
                "encoder": self.encoder.init(encoder),
                "network": self.network.init(network),
            }
        return weights

    def initial_state(self, n: int) -> State:
        """Return a policy's recurrent state for n agents before their first step."""
        if self.separate_value:
            return {tower: self.network.initial_state(n) for tower in TOWERS}
        return self.network.initial_state(n)

    def not_done(self, terminals: mx.array) -> mx.array | None:
        """Return the factors that multiply recurrent states before a step: 1 - terminals.

        Returns None, which means 1, without ``reset_on_terminal``.

        Args:
            terminals: (n,) or (T, S) float32, 1 where an episode ended before the step.
        """
        if not self.reset_on_terminal:
            return None
        return (1 if backend() == "cpu" else ones(terminals.shape)) - terminals

    def scan(
        self, weights: Weights, observations: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[Outputs, mx.array, State]:
        """Evaluate the policy for T steps of S segments.

        Args:
            weights: Tree of arrays with the structure of ``init``.
            observations: (T, S, D), any dtype.
            state: Recurrent state of the S segments at the start; None for the initial state.
            not_done: (T, S), factors that multiply the state at the start of each step; None for 1.

        Returns:
            The decoder's outputs of T*S samples, values (T*S,), and the state after the last step.
        """
        y, state = self.product(weights, observations, state, not_done)
        return *self.decoder.split(weights["decoder"], y), state

    def product(
        self, weights: Weights, observations: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Evaluate the policy for T steps of S segments, up to the decoder's matrix product.

        Returns:
            The product (A + 1, T*S), and the state after the last step.
        """
        h, value_features, state = self.features(weights, observations, state, not_done)
        return self.decoder.product(weights["decoder"], h, value_features), state

    def features(
        self, weights: Weights, observations: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[mx.array, mx.array | None, State]:
        """Evaluate the policy without its decoder for T steps of S segments.

        Returns:
            The actor's features (T*S, H), the critic's features or None without
            ``separate_value``, and the state after the last step.
        """
        T, S = observations.shape[:2]
        if state is None and not network_facts(self.network).from_zeros:
            state = self.initial_state(S)
        flat = observations.reshape(T * S, -1)

        def scan(tower: Weights, state: State) -> tuple[mx.array, State]:
            h = self.encoder(tower["encoder"], flat).reshape(T, S, -1)
            h, state = self.network.scan(tower["network"], h, state, not_done)
            return h.reshape(T * S, -1), state

        return self._by_tower(weights, state, scan)

    def step(
        self, weights: Weights, observations: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[Outputs, mx.array, State]:
        """Evaluate the policy for one step of n agents: see ``act`` for the arguments.

        Returns:
            The decoder's outputs, values (n,), and the next state.
        """

        def step(tower: Weights, state: State) -> tuple[mx.array, State]:
            h = self.encoder(tower["encoder"], observations)
            return self.network.step(tower["network"], h, state, not_done)

        h, value_features, state = self._by_tower(weights, state, step)
        y = self.decoder.product(weights["decoder"], h, value_features)
        return *self.decoder.split(weights["decoder"], y), state

    def _by_tower(
        self, weights: Weights, state: State | None, features: Callable[[Weights, State], Any]
    ) -> tuple[mx.array, mx.array | None, State]:
        """Compute features by the actor and, with ``separate_value``, also by the critic.

        Args:
            weights: Tree of arrays with the structure of ``init``.
            state: Recurrent state; None for the initial state.
            features: (weights of actor or critic, state) -> features and the next state.

        Returns:
            The actor's features, the critic's features or None, and the next state.
        """
        if not self.separate_value:
            h, state = features(weights, state)
            return h, None, state
        states = state or dict.fromkeys(TOWERS)
        h, actor = features(weights, states["actor"])
        value_features, critic = features(weights["critic"], states["critic"])
        return h, value_features, dict(zip(TOWERS, (actor, critic), strict=True))

    def act(
        self,
        weights: Weights,
        observations: mx.array,
        state: State,
        noise: mx.array | None,
        mask: mx.array | None = None,
        not_done: NotDone = None,
    ) -> tuple[mx.array, mx.array, mx.array, State]:
        """Choose actions for one step of n agents.

        Args:
            weights: Tree of arrays with the structure of ``init``.
            observations: (n, D), any dtype.
            state: Recurrent state of n agents.
            noise: (n, heads), from ``distribution.noise``; None for the most probable action.
            mask: (n, A) uint8, non-zero where legal, or None.
            not_done: (n,), factors that multiply the state at the start of the step; None for 1.

        Returns:
            Actions (n, heads) float32, log-probabilities (n,), values (n,), next state.
        """
        outputs, values, state = self.step(weights, observations, state, not_done)
        actions, logprobs = self.distribution.sample(outputs, noise, mask)
        return actions, logprobs, values, state


def make_policy(spec: EnvSpec, policy: config.Policy, torch: config.Torch | None = None) -> Policy:
    """Create a policy for an environment, from the sections [policy] and [torch].

    Args:
        spec: Observations and actions of the environment.
        policy: Section [policy] of a configuration.
        torch: Section [torch]: the classes of encoder and network; None for the defaults.

    Raises:
        UserError: If an encoder or network doesn't fit the environment or isn't usable.
    """
    return configured_policy(spec, config.Config(policy=policy, torch=torch or config.Torch()))


def configured_policy(spec: EnvSpec, configuration: config.Config) -> Policy:
    """Create the policy that a configuration describes, for an environment.

    Args:
        spec: Observations and actions of the environment.
        configuration: Uses the sections [policy] and [torch], the algorithm's limits of continuous
            actions, and ``vec.normalize_observations``.

    Raises:
        UserError: If an encoder or network doesn't fit the environment, a custom class isn't usable
            or is untrusted (``puffer_mlx.config.trust``), or the machine has too little memory.
    """
    if configuration.torch.decoder == CUSTOM_MODULE:
        raise UserError(
            "the policy is a custom mlx.nn.Module (torch.decoder is own), and no file contains its"
            " code",
            "in Python: puffer_mlx.Policy.load(path, policy=module), or Trainer.load",
        )
    if spec.mask_size and spec.action.continuous:
        raise UserError(f"{spec.name}: continuous actions can't be masked", "remove MY_ACTION_MASK")
    refuse_untrusted_code(configuration, "torch")
    refuse_large_policy(configuration, spec)
    policy = configuration.policy
    torch = configuration.torch
    H = policy.hidden_size
    weight_layout = policy.dialect
    activation = chosen_activation(policy)
    network = make_network(torch.network, H, policy.num_layers, weight_layout, activation)
    limits = ActionBounds(*configuration.facts.limits)
    arguments = spec.action, H, limits, policy.log_std_init
    native = weight_layout == "native"
    decoder = Fused(*arguments) if native else Separate(*arguments, GAINS[weight_layout])
    encoder = make_encoder(spec, H, weight_layout, torch.encoder, activation)
    normalised = configuration.vec.normalize_observations and spec.observation_dtype != "uint8"
    if isinstance(encoder, Combined) and normalised:
        raise UserError(
            f"vec.normalize_observations is True, but {spec.name} has images besides other"
            " observations, and the encoder scales their pixels itself",
            "--vec.normalize-observations 0; or --torch.encoder DefaultEncoder, which treats pixels"
            " like other observations",
        )
    return Policy(encoder, network, decoder, policy.reset_on_terminal, policy.separate_value)


# ---- functions that fused implementations replace ------------------------------------------------

IN_C = Implementation(("policy.policy",), "the policy's step in C")


def acting_functions(policy: Policy) -> list[Callable[..., Any]]:
    """Return the functions that a policy calls to act, in plain MLX.

    Fused implementations replace them.
    """
    functions = [policy.act, policy.not_done, *_feature_functions(policy)]
    return [*functions, policy.network.step, policy.distribution.sample]


def training_functions(policy: Policy) -> list[Callable[..., Any]]:
    """Return the functions that a policy calls in the forward pass of training, in plain MLX."""
    functions = [policy.product, policy.not_done, *_feature_functions(policy)]
    return [*functions, policy.distribution.log_prob_entropy]


def _feature_functions(policy: Policy) -> list[Callable[..., Any]]:
    decoder = policy.decoder
    encoder: Any = type(policy.encoder).__call__
    return [encoder, policy.network.scan, decoder.product, decoder.split, decoder.logstd]


record(__name__)
