"""Policies that consist of one custom ``mlx.nn.Module``, which is both actor and critic.

    module(observations) -> outputs, values
    module(observations, state) -> outputs, values, state    recurrent: also has initial_state(n)

| | shape | |
| --- | --- | --- |
| observations | (n, D), images (n, height, width, channels) | weights' dtype; pixels: 0 to 255 |
| outputs | (n, A) | discrete: concatenated logits of all heads; continuous: means |
| values | (n,) or (n, 1) | |
| state | a tree of arrays (n, ...) | one row per agent |

Log standard deviations of continuous actions are additional weights (``logstd``). The policy has an
identity encoder, the module as its network, and an identity decoder. They have no C or GPU
implementation, so the policy acts through MLX.
"""

import copy
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map

from puffer_mlx import config
from puffer_mlx.config.schema.policy import CUSTOM_MODULE, STATELESS_NETWORK
from puffer_mlx.errors import UserError
from puffer_mlx.ops.low_precision import dtype_of
from puffer_mlx.policy.custom import PerThread
from puffer_mlx.policy.decoders import Decoder
from puffer_mlx.policy.distributions import ActionBounds
from puffer_mlx.policy.networks import NotDone
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.trees import leaves

Weights = Any  # tree of arrays
State = Any  # tree of arrays (n, ...)
CALL = "module(observations) -> outputs, values"
CALL_WITH_STATE = "module(observations, state) -> outputs, values, state"


def is_recurrent(module: nn.Module) -> bool:
    """Return True if a user's actor-critic module has a recurrent state (``initial_state``)."""
    return callable(getattr(module, "initial_state", None))


def torch_section(module: nn.Module) -> config.Torch:
    """Return section [torch] of the configuration for a policy that is a user's MLX module."""
    cls = type(module)
    name = f"{cls.__module__}:{cls.__name__}" if is_recurrent(module) else STATELESS_NETWORK
    return config.Torch(network=name, encoder="auto", decoder=CUSTOM_MODULE)


def actor_critic(module: nn.Module, spec: EnvSpec, configuration: config.Config) -> Policy:
    """Make a policy from a user's MLX module (actor and critic) for an environment.

    Args:
        module: Actor and critic: see the module's docstring. The policy contains a copy.
        spec: Observations and actions of the environment.
        configuration: Supplies ``policy.reset_on_terminal``, ``policy.log_std_init`` and the
            algorithm's action bounds.

    Raises:
        UserError: If the module's results have another format or don't fit the environment.
    """
    if not isinstance(module, nn.Module):
        name = f"the class {module.__name__}" if isinstance(module, type) else repr(module)
        hint = f"expected an mlx.nn.Module, an object: {CALL}"
        if isinstance(module, str):
            hint = 'leave it out; network="MLP" or "LSTM", for example, chooses the network'
        raise UserError(f"policy is {name}", hint)
    network = ModuleNetwork(module, spec)
    network.check()
    limits = ActionBounds(*configuration.facts.limits)
    settings = configuration.policy
    decoder = IdentityDecoder(spec.action, network.hidden, limits, settings.log_std_init)
    encoder: Any = IdentityEncoder(spec.observation_size)
    return Policy(encoder, network, decoder, settings.reset_on_terminal)  # type: ignore


class IdentityEncoder:
    """Encoder without weights, which returns observations unchanged.

    Args:
        hidden: Observation size D.
    """

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden

    def init(self, key: mx.array) -> dict:
        """Return an empty dictionary, as this encoder has no weights."""
        return {}

    def __call__(self, weights: dict, observations: mx.array) -> mx.array:
        """Return the observations (n, D) unchanged as features."""
        return observations


class ModuleNetwork:
    """Adapts a custom module to the interface of ``networks.Network``.

    Maps observations (n, D) to features (n, A + 1): the module's outputs, then the value.

    Args:
        module: Actor and critic; this object contains a copy.
        spec: Observations and actions of the environment.

    Raises:
        UserError: If another thread created the module and didn't evaluate its arrays.
    """

    def __init__(self, module: nn.Module, spec: EnvSpec) -> None:
        self.hidden = spec.action.logits + 1
        self._spec = spec
        self._module = copy.deepcopy(module)
        try:
            mx.eval(self._module)  # arrays of this thread; others can't evaluate them
        except RuntimeError as error:
            if "There is no Stream" not in str(error):
                raise
            raise UserError(
                f"{self._name} was created in another thread, and its arrays aren't evaluated",
                "mx.eval(module) in the thread that creates it",
            ) from None
        self._per_thread = PerThread(partial(copy.deepcopy, self._module))
        self._is_recurrent = is_recurrent(module)

    def init(self, key: mx.array) -> Weights:
        """Return the current weights of the wrapped custom module; ``key`` is unused."""
        return tree_map(mx.array, self._module.parameters())

    def initial_state(self, n: int) -> State:
        """Return a custom module's initial recurrent state for n agents, or an empty list."""
        return self._module.initial_state(n) if self._is_recurrent else []  # type: ignore

    def scan(
        self, weights: Weights, h: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Evaluate a custom module for T steps of S segments.

        Maps observations (T, S, D) to outputs and values (T, S, A + 1), and returns the last state.
        """
        T, S = h.shape[:2]
        if not self._is_recurrent:
            y, state = self.step(weights, h.reshape(T * S, -1), state)
            return y.reshape(T, S, -1), state
        steps = []
        for t in range(T):
            y, state = self.step(weights, h[t], state, None if not_done is None else not_done[t])
            steps.append(y)
        return mx.stack(steps), tree_map(mx.stop_gradient, state)

    def step(
        self, weights: Weights, h: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Evaluate a custom module for one step of n agents.

        Maps observations (n, D) to outputs and values (n, A + 1), and returns the next state.
        """
        module = self._per_thread.module
        module.update(weights)
        n = len(h)
        observations = h.reshape(n, *(self._spec.observation_shape or (-1,)))
        observations = observations.astype(dtype_of(weights))
        if not self._is_recurrent:
            outputs, values = module(observations)
        else:
            if not_done is not None:
                state = tree_map(lambda a: a * not_done.reshape(n, *[1] * (a.ndim - 1)), state)
            outputs, values, state = module(observations, state)
        return mx.concatenate([outputs, values.reshape(n, 1)], axis=1), state

    def check(self) -> None:
        """Check a custom module's results by calling it once for two agents.

        Raises:
            UserError: If the call fails or the results have other types or shapes than expected.
        """
        n = 2
        A = self.hidden - 1
        if not leaves(self._module.parameters()):
            raise UserError(f"{self._name} has no weights, so it can't be trained", "add a layer")
        shape = self._spec.observation_shape or (self._spec.observation_size,)
        observations = mx.zeros((n, *shape))
        arguments = (observations, self.initial_state(n)) if self._is_recurrent else (observations,)
        call = CALL_WITH_STATE if self._is_recurrent else CALL
        try:
            result = self._module(*arguments)  # type: ignore
        except (TypeError, ValueError, IndexError) as error:
            raise UserError(
                f"{self._name} can't take observations {observations.shape} of {self._spec.name}:"
                f" {error}",
                f"expected {call}",
            ) from None
        results = result if type(result) is tuple else ()
        shapes = [getattr(each, "shape", None) for each in results]
        if len(shapes) != len(arguments) + 1 or None in shapes[:2]:
            what = f"a tuple of {len(shapes)}" if shapes else type(result).__name__
            raise UserError(f"{self._name} returned {what}", f"expected {call}")
        if shapes[0] != (n, A) or shapes[1] not in ((n,), (n, 1)):
            raise UserError(
                f"{self._name} returned outputs {shapes[0]} and values {shapes[1]} of {n} agents",
                f"{self._spec.name} needs outputs ({n}, {A}), and values ({n},)",
            )

    @property
    def _name(self) -> str:
        return type(self._module).__name__


class IdentityDecoder(Decoder):
    """Decoder that returns a custom module's outputs and values unchanged.

    Its only weight is ``logstd``, for continuous actions.
    """

    def init(self, key: mx.array) -> dict:
        """Return the decoder's initial weights: ``logstd`` for continuous actions, else none."""
        return self._logstd_weights()

    def product(
        self, weights: dict, h: mx.array, value_features: mx.array | None = None
    ) -> mx.array:
        """Return a custom module's outputs and values (n, A + 1), transposed to (A + 1, n)."""
        return h.T
