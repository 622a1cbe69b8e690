"""Use a trained policy in a program: convert observations, choose actions, keep the state."""

import copy
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import mlx.core as mx
import numpy as np
from mlx import nn

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint import normalization
from puffer_mlx.checkpoint.environment_statistics import current_statistics
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.players import Player, policy_player
from puffer_mlx.library.settings import environment_source, with_environment
from puffer_mlx.policy.actor_critic import actor_critic
from puffer_mlx.policy.policy import Policy as Architecture
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.devices import building, refuse_forked
from puffer_mlx.training.trainer import Trains
from puffer_mlx.vec.layout import SpaceLayout, saved_layout
from puffer_mlx.vec.spaces import kind_of, leaf_spaces, nested, path_text


class ObservationAdapter(Protocol):
    """Converter between an environment's observations and actions and a policy's arrays.

    It must be picklable.
    """

    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Convert one observation or a batch to rows (n, D) of the array for the policy.

        Returns:
            The rows, and True for one observation, False for a batch.
        """
        ...

    def actions(self, policy_actions: np.ndarray, single: bool) -> Any:
        """Convert actions from the policy's array to the format that the environment expects.

        Args:
            policy_actions: Actions of the policy, (n, heads) float32.
            single: True to return one action instead of a batch.
        """
        ...


class SpaceAdapter:
    """Converter between a policy's arrays and a Python environment's observations and actions.

    It uses the environment's spaces.
    """

    def __init__(self, layout: SpaceLayout, spec: EnvSpec) -> None:
        observation_space, action_space = layout.spaces
        self._layout = layout
        self._spec = spec
        self._leaf_spaces = list(leaf_spaces(spec.name, observation_space, "observation"))
        self._action_paths = [path for path, _, _ in leaf_spaces(spec.name, action_space, "action")]

    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Convert one observation, or a batch, of a Python environment to rows (n, D) for a policy.

        Also return True for one observation, False for a batch.
        """
        spec = self._spec
        leaf_spaces = self._leaf_spaces
        is_dict = kind_of(self._layout.spaces[0]) == "Dict"
        if is_dict and isinstance(observation, list | np.ndarray):
            names = ", ".join(path_text(path) for path, _, _ in leaf_spaces)
            raise UserError(
                f"the observation is of type {type(observation).__name__}, expected a dict with"
                f" keys {names}",
                "for a batch, its values are arrays with a leading dimension n",
            )
        values = {path: _entry(spec, observation, path) for path, _, _ in leaf_spaces}
        path, space, _ = leaf_spaces[0]
        single = values[path].shape == tuple(space.shape)
        if single:
            values = {path: value[None] for path, value in values.items()}
        n = len(values[path]) if values[path].ndim else 0
        for path, space, _ in leaf_spaces:
            if not n or values[path].shape != (n, *space.shape):
                shape = values[path].shape
                shape = shape[1:] if single else shape  # without the dimension added above
                raise _shape_error(spec, shape, tuple(space.shape), path_text(path))
        out = np.zeros((n, spec.observation_size), self._layout.exact_dtype)
        self._layout.write(nested(self._layout.spaces[0], values), out)
        return out, single

    def actions(self, policy_actions: np.ndarray, single: bool) -> Any:
        """Convert a policy's array of actions to the format of a Python environment's spaces."""
        batch = self._layout.actions(policy_actions)
        if not single:
            return batch
        first = {path: _entry(self._spec, batch, path)[0] for path in self._action_paths}
        return nested(self._layout.spaces[1], first)


class FlatAdapter:
    """Converter between a policy's arrays and a C environment's observations and actions.

    An action of a single discrete head is a number without an axis.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        self._shapes: list[tuple[int, ...]] = [(spec.observation_size,)]
        if spec.observation_shape:
            self._shapes.append(spec.observation_shape)

    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Convert one observation, or a batch, of a C environment to rows (n, D) for a policy.

        Also return True for one observation, False for a batch.
        """
        spec = self._spec
        shapes = self._shapes
        values = np.asarray(observation)
        single = values.shape in shapes
        if not single and (values.shape[1:] not in shapes or not len(values)):
            raise _shape_error(spec, values.shape, shapes[0], "")
        return values.reshape(-1, spec.observation_size).astype(spec.observation_dtype), single

    def actions(self, policy_actions: np.ndarray, single: bool) -> Any:
        """Convert a policy's array of actions to the format of a C environment."""
        action = self._spec.action
        batch = policy_actions
        if not action.continuous:
            batch = batch.astype(np.int64)
            if action.heads == 1:
                batch = batch[:, 0]
        return batch[0] if single else batch


def _entry(spec: EnvSpec, value: Any, path: tuple) -> np.ndarray:
    """Return the array at a path in an observation of nested dicts and tuples.

    Raises:
        UserError: The observation has no such entry.
    """
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise UserError(
                f"the observation has no entry {path_text(path)}",
                f"pass an observation of {spec.name}, as its reset and step return it",
            ) from None
    return np.asarray(value)


def _shape_error(spec: EnvSpec, shape: tuple, expected: tuple, path: str) -> UserError:
    """Return the error for an observation, or a part of one at a path, with a wrong shape."""
    entry = f" at {path}" if path else ""
    return UserError(
        f"the observation{entry} has shape {shape}, but those of {spec.name} have {expected}",
        f"one of shape {expected}, or n of them: (n{''.join(f', {size}' for size in expected)})",
    )


class Prediction(NamedTuple):
    """Result of a policy's ``predict``: action and recurrent state, as in Stable-Baselines3.

    Args:
        action: Action for the environment's ``step``. For a batch: an array (n, ...), or nested
            dicts and tuples of arrays.
        state: Recurrent state after this step; None for a policy without one.
    """

    action: Any
    state: Any


class Policy:
    """A trained policy that maps observations of an environment to actions.

    It normalizes observations and keeps the recurrent state between calls. Create it with
    ``Policy.load(path)``, or with ``Policy(trainer)`` from a trainer's current weights; later
    training doesn't change it.

    Args:
        trainer: Trainer of the policy.

    Attributes:
        config: Configuration of the training run.
        spec: Observations and actions of the environment.
        architecture: Encoder, network and decoder, without weights.
        weights: Tree of arrays.
        memory: Normalization statistics of observations by name; empty without normalization.
        step: Environment steps trained on.
        folder: Folder of the checkpoint; empty for the policy of a trainer.
    """

    def __init__(self, trainer: Trains) -> None:
        self._set_checkpoint(checkpoint_of(trainer))
        self._adapter = _adapter_of(trainer.vec, trainer.vec.spec)

    def _set_checkpoint(self, saved: checkpoint.Checkpoint) -> None:
        """Set all attributes of this policy from a loaded checkpoint, with no recurrent state."""
        refuse_forked()
        self.folder = saved.folder
        self.config = saved.config
        self.spec = saved.spec
        self.architecture = saved.policy
        self.weights = saved.weights
        self.step = saved.step
        self.memory = saved.statistics
        self._adapter: ObservationAdapter | None = None
        self._state: Any = None
        self._agents = 0
        self._random = mx.random.key(self.config.base.seed)

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: Any = None,
        *,
        policy: nn.Module | None = None,
        allow_code: bool = False,
    ) -> Self:
        """Load a policy from a checkpoint.

        Args:
            path: Folder passed to ``Trainer.save``, folder of a run or a checkpoint, or ``latest``
                or ``best`` for the newest run in ``checkpoints`` (of ``env``, if passed).
            env: Name, class, function or object of the environment. ``predict`` uses its spaces.
                None uses the spaces in the checkpoint, or those of the environment that an older
                checkpoint names. Needed for scoring if the environment isn't found by its name.
            policy: Module, if the policy is an ``mlx.nn.Module``; its weights aren't used.
            allow_code: Import the code that the checkpoint names, even if it is untrusted on this
                machine.

        Returns:
            The policy, at the start of an episode.

        Raises:
            UserError: The checkpoint is missing, damaged or of another policy, or names untrusted
                code.
        """
        name = None if env is None else environment_source(env).name
        folder = checkpoint.find_any_checkpoint(str(path), env=name)
        saved = checkpoint.load(folder, allow_code, policy_factory(policy))
        loaded = cls.of_checkpoint(saved._replace(config=with_environment(saved.config, env)))
        if env is None and (layout := saved_layout(saved.spec)):
            loaded._adapter = SpaceAdapter(layout, saved.spec)
        return loaded

    @classmethod
    def of_checkpoint(cls, saved: checkpoint.Checkpoint) -> Self:
        """Create a policy from a checkpoint that is already loaded."""
        policy = cls.__new__(cls)
        policy._set_checkpoint(saved)
        return policy

    def as_player(self, name: str, deterministic: bool) -> Player:
        """Return an object with which this policy plays matches against other players."""
        return policy_player(name, self.architecture, self.weights, deterministic, self.memory)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        *,
        action_masks: Any = None,
    ) -> Prediction:
        """Choose actions for observations.

        A recurrent policy continues with the state of the previous call. ``reset`` starts a new
        episode for the entire batch, ``episode_start`` for some of its observations.

        Args:
            observation: Observation as returned by the environment's ``reset`` and ``step``, or a
                batch, in which every array has a leading dimension n.
            state: Recurrent state to continue with, as returned by an earlier call.
            episode_start: True where an episode starts and the state is reset, (n,) bool or one
                bool.
            deterministic: Take the most probable action. False samples, as Stable-Baselines3 does.
            action_masks: Non-zero for legal actions, (n, A), or (A,) for a single observation.

        Returns:
            The action and the recurrent state.

        Raises:
            UserError: The observation doesn't match the environment, or its number of agents
                doesn't match the state.
        """
        refuse_forked()
        adapter = self._get_adapter()
        rows, single = adapter.rows(observation)
        n = len(rows)
        rows = normalization.normalize_observations(self.memory, rows).astype(
            self.spec.observation_dtype, copy=False
        )
        previous_state = self._recurrent_state(n, state)
        not_done = None
        if episode_start is not None:
            starts = np.broadcast_to(np.asarray(episode_start, np.float32), (n,))
            not_done = 1 - mx.array(starts)
        mask = self._mask(action_masks, n)
        with building:  # a lock: of simultaneous threads, one at a time uses the random key
            noise = None
            random = self._random
            if not deterministic:
                random, key = mx.random.split(random)
                noise = self.architecture.distribution.noise(key, (n,))
            actions, _, _, next_state = self.architecture.act(
                self.weights, mx.array(rows), previous_state, noise, mask, not_done
            )
            # Start the computation here: another thread, which may use the random key next, can't
            # evaluate this thread's lazy arrays.
            mx.async_eval(actions, next_state, random)
            self._random = random
        mx.eval(actions, next_state)
        self._state = next_state
        self._agents = n
        action = adapter.actions(np.ascontiguousarray(actions), single)
        return Prediction(action, next_state if self.architecture.is_recurrent else None)

    def __repr__(self) -> str:
        """Return a one-line description of the policy: environment, spaces and trained steps."""
        spaces = self.spec.described()
        return f"<Policy of {self.config.env_name}: {spaces}, {self.step:,} steps>"

    def reset(self, seed: int | None = None) -> None:
        """Reset the recurrent state: the next observation starts a new episode.

        Args:
            seed: Seed of the sampled actions; None continues the sequence of random numbers.
        """
        self._state = None
        if seed is not None:
            self._random = mx.random.key(seed)

    def copy_state_from(self, other: "Policy") -> None:
        """Copy the recurrent state and the random key from another policy of the same kind."""
        self._state = other._state
        self._agents = other._agents
        self._random = other._random

    def __getstate__(self) -> dict[str, Any]:
        """Return the policy's attributes for pickling, without functions that can't be pickled.

        ``predict`` doesn't need these functions once the environment's spaces are known.
        """
        with suppress(UserError):
            self._get_adapter()
        config = replace(self.config, objects={}, family_reloader=None)
        try:
            pickle.dumps(config.factory)
        except Exception:
            config = replace(config, factory=None)
        return {**self.__dict__, "config": config}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def _recurrent_state(self, n: int, state: Any) -> Any:
        """Return the policy's recurrent state for n agents, an initial one if there is none yet.

        Raises:
            UserError: The policy has the state of another number of agents.
        """
        if state is not None:
            return state
        if self._state is None or not self.architecture.is_recurrent:
            return self.architecture.initial_state(n)
        if n != self._agents:
            raise UserError(
                f"the policy has the state of {self._agents} agents, but got {n} observations",
                "call policy.reset() when episodes begin",
            )
        return self._state

    def _mask(self, masks: Any, n: int) -> mx.array | None:
        if masks is None:
            return None
        A = self.spec.action.logits
        array = np.asarray(masks)
        if self.spec.action.continuous or array.size != n * A:
            raise UserError(
                f"action_masks has shape {array.shape}",
                "continuous actions have none" if self.spec.action.continuous else f"({n}, {A})",
            )
        return mx.array(array.reshape(n, A) != 0).astype(mx.uint8)

    def _get_adapter(self) -> ObservationAdapter:
        """Return the converter of the environment's observations and actions.

        The first call looks up the environment's spaces.

        Raises:
            UserError: The spaces can't be determined.
        """
        if self._adapter is None:
            try:
                self._adapter = _probed_adapter(self.config, self.spec)
            except UserError as error:
                raise UserError(
                    f"the spaces of {self.config.env_name} aren't known: {error.message}",
                    "Policy.load(path, env=…) with its class, name, or a function that makes it",
                ) from error
        return self._adapter


def checkpoint_of(trainer: Trains) -> checkpoint.Checkpoint:
    """Return a trainer's current policy as a checkpoint in memory, for example to evaluate it.

    The normalization statistics aren't rounded.
    """
    return checkpoint.Checkpoint(
        Path(),
        trainer.config,
        trainer.vec.spec,
        trainer.policy,
        trainer.weights,
        trainer.global_step,
        current_statistics(trainer.vec),
    )


def policy_and_seed(policy: "Policy | Trains", seed: int | None) -> tuple[Policy, int]:
    """Return the policy of an argument that may be a trainer, and the seed for an evaluation.

    Args:
        policy: Policy, or trainer whose current weights are used.
        seed: Seed; None for that of the run.
    """
    refuse_forked()
    policy = policy if isinstance(policy, Policy) else Policy(policy)
    return policy, policy.config.base.seed if seed is None else seed


def check_compatible(policy: Policy, spec: EnvSpec, name: str) -> None:
    """Raise an error if an environment's observations or actions don't fit a policy.

    Args:
        policy: The policy.
        spec: Observations and actions of the environment.
        name: Name of the environment for the message.

    Raises:
        UserError: They don't match.
    """
    if not spec.matches(policy.spec):
        trained = policy.config.env_name
        message = f"a policy of {trained} is for {policy.spec.described()}"
        hint = f"an environment like {trained}"
        raise UserError(f"{message}, but {name} has {spec.described()}", hint)


def policy_factory(module: nn.Module | None) -> Callable[[EnvSpec, Config], Architecture]:
    """Return a function that builds a policy for an environment's spec and a configuration.

    Args:
        module: Module to use as the policy; None for the configured policy.
    """

    def make(spec: EnvSpec, config: Config) -> Architecture:
        if module is None:
            return configured_policy(spec, config)
        return actor_critic(module, spec, config)

    return make


def _probed_adapter(config: Config, spec: EnvSpec) -> ObservationAdapter:
    """Return the converter of observations and actions for the configured environment.

    C environments aren't compiled for this.
    """
    if not config.python:
        return FlatAdapter(spec)
    with vec.probe(config) as environments:
        return _adapter_of(environments, spec)


def _adapter_of(environments: Any, spec: EnvSpec) -> ObservationAdapter:
    """Return the converter of observations and actions for these environments.

    It uses the spaces of Python environments.
    """
    layout = getattr(environments, "layout", None)
    return SpaceAdapter(layout, spec) if layout else FlatAdapter(spec)
