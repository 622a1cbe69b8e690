"""The policy: encoder, network, decoder; weights are nested dictionaries in file order.

    observations (T, S, D) -> encoder -> (T, S, H) -> network -> (T, S, H) -> decoder -> logits (A,
    T*S), values (T*S,)

No part holds arrays; weights, recurrent state and randomness are arguments, so a snapshot of the
weights is a reference.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from puffer_mlx.policy.decoders import Discrete
from puffer_mlx.policy.encoders import Linear
from puffer_mlx.policy.networks import MinGRU
from puffer_mlx.spec import EnvSpec

Weights = dict[str, Any]
State = Any  # a tree of arrays, the network's own


@dataclass(frozen=True)
class Policy:
    """Composes an encoder, a network and a decoder that agree on H."""

    encoder: Linear
    network: MinGRU
    decoder: Discrete

    def init(self, key: mx.array) -> Weights:
        """Fresh weights; the order of the dictionary is the order of upstream's flat file."""
        encoder, decoder, network = mx.random.split(key, 3)
        return {
            "encoder": self.encoder.init(encoder),
            "decoder": self.decoder.init(decoder),
            "network": self.network.init(network),
        }

    def initial_state(self, n: int) -> State:
        """Recurrent state of n agents before their first step."""
        return self.network.initial_state(n)

    def scan(
        self, weights: Weights, observations: mx.array, state: State
    ) -> tuple[mx.array, mx.array, State]:
        """Evaluate T steps of S segments.

        Args:
            weights: as ``init`` makes them.
            observations: (T, S, D), any dtype.
            state: the network's, of S segments, before the first step.

        Returns:
            Logits (A, T*S), values (T*S,), and the state after the last step.
        """
        T, S = observations.shape[:2]
        h = self.encoder(weights["encoder"], observations.reshape(T * S, -1))
        h, state = self.network.scan(weights["network"], h.reshape(T, S, -1), state)
        return *self.decoder(weights["decoder"], h.reshape(T * S, -1)), state

    def act(
        self,
        weights: Weights,
        observations: mx.array,
        state: State,
        noise: mx.array,
        mask: mx.array | None = None,
    ) -> tuple[mx.array, mx.array, mx.array, State]:
        """Choose actions for one step of n agents.

        Args:
            weights: as ``init`` makes them.
            observations: (n, D), any dtype.
            state: the network's, of n agents.
            noise: (n, heads), from ``decoder.noise``.
            mask: (n, A) uint8, non-zero where legal, or None.

        Returns:
            Actions (n, heads) float32, log-probabilities (n,), values (n,), next state.
        """
        h = self.encoder(weights["encoder"], observations)
        h, state = self.network.step(weights["network"], h, state)
        logits, values = self.decoder(weights["decoder"], h)
        actions, logprobs = self.decoder.sample(logits, noise, mask)
        return actions, logprobs, values, state


def make_policy(spec: EnvSpec, hidden: int, layers: int) -> Policy:
    """Upstream's native policy for an environment.

    Args:
        spec: the environment's observations and actions.
        hidden: H.
        layers: L.
    """
    return Policy(
        Linear(spec.observation_size, hidden), MinGRU(hidden, layers), Discrete(spec.action, hidden)
    )
