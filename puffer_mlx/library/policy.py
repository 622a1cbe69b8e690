"""A trained policy for programs, from observations to actions of the environment."""

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
from puffer_mlx.library.settings import source_of, with_environment
from puffer_mlx.policy.actor_critic import actor_critic
from puffer_mlx.policy.policy import Policy as Architecture
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.devices import building, refuse_forked
from puffer_mlx.training.trainer import Trains
from puffer_mlx.vec.layout import SpaceLayout, saved_layout
from puffer_mlx.vec.spaces import kind_of, leaf_spaces, nested, path_text


class ObservationAdapter(Protocol):
    """Conversion of an environment's observations and actions; picklable."""

    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Return an observation's rows (n, D), and True for a single observation."""
        ...

    def actions(self, chosen: np.ndarray, single: bool) -> Any:
        """Return actions in the environment's format.

        Args:
            chosen: Actions of the policy, (n, heads) float32.
            single: True to return one action instead of a batch.
        """
        ...


class SpaceAdapter:
    """Observations and actions of a Python environment, as its spaces define them."""

    def __init__(self, layout: SpaceLayout, spec: EnvSpec) -> None:
        observation_space, action_space = layout.spaces
        self._layout = layout
        self._spec = spec
        self._parts = list(leaf_spaces(spec.name, observation_space, "observation"))
        self._action_paths = [path for path, _, _ in leaf_spaces(spec.name, action_space, "action")]

    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Return an observation's rows (n, D), and True for a single observation."""
        spec = self._spec
        parts = self._parts
        is_dict = kind_of(self._layout.spaces[0]) == "Dict"
        if is_dict and isinstance(observation, list | np.ndarray):
            names = ", ".join(path_text(path) for path, _, _ in parts)
            raise UserError(
                f"the observation is of type {type(observation).__name__}, expected a dict with"
                f" parts {names}",
                "for a batch, arrays with a leading dimension n as its parts",
            )
        values = {path: _at(spec, observation, path) for path, _, _ in parts}
        path, space, _ = parts[0]
        single = values[path].shape == tuple(space.shape)
        if single:
            values = {path: value[None] for path, value in values.items()}
        n = len(values[path]) if values[path].ndim else 0
        for path, space, _ in parts:
            if not n or values[path].shape != (n, *space.shape):
                raise _misfit(
                    spec, values[path].shape[single:], tuple(space.shape), path_text(path)
                )
        out = np.zeros((n, spec.observation_size), self._layout.exact_dtype)
        self._layout.write(nested(self._layout.spaces[0], values), out)
        return out, single

    def actions(self, chosen: np.ndarray, single: bool) -> Any:
        """Return actions in the environment's format."""
        batch = self._layout.actions(chosen)
        if not single:
            return batch
        first = {path: _at(self._spec, batch, path)[0] for path in self._action_paths}
        return nested(self._layout.spaces[1], first)


class FlatAdapter:
    """Observations and actions of a C environment: rows and heads. One head has no axis."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        self._shapes: list[tuple[int, ...]] = [(spec.observation_size,)]
        if spec.observation_shape:
            self._shapes.append(spec.observation_shape)

    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Return an observation's rows (n, D), and True for a single observation."""
        spec = self._spec
        shapes = self._shapes
        values = np.asarray(observation)
        single = values.shape in shapes
        if not single and (values.shape[1:] not in shapes or not len(values)):
            raise _misfit(spec, values.shape, shapes[0], "")
        return values.reshape(-1, spec.observation_size).astype(spec.observation_dtype), single

    def actions(self, chosen: np.ndarray, single: bool) -> Any:
        """Return actions in the environment's format."""
        action = self._spec.action
        batch = chosen if action.continuous else chosen.astype(np.int64)
        batch = batch if action.continuous or action.heads > 1 else batch[:, 0]
        return batch[0] if single else batch


def _at(spec: EnvSpec, value: Any, path: tuple) -> np.ndarray:
    """Return the array at a path of nested dicts and tuples."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise UserError(
                f"the observation has no part {path_text(path)}",
                f"one of {spec.name}, as its reset and step return it",
            ) from None
    return np.asarray(value)


def _misfit(spec: EnvSpec, shape: tuple, expected: tuple, where: str) -> UserError:
    part = f" of {where}" if where else ""
    return UserError(
        f"the observation{part} has shape {shape}, and {spec.name} shows {expected}",
        f"one of shape {expected}, or n of them: (n{''.join(f', {size}' for size in expected)})",
    )


class Prediction(NamedTuple):
    """Result of ``predict``, unpacked like Stable-Baselines3's.

    Args:
        action: Action for the environment's ``step``. For a batch: an array (n, ...), or nested
            dicts and tuples of arrays.
        state: Recurrent state after this step; None for a policy without one.
    """

    action: Any
    state: Any


class Policy:
    """A trained policy with its recurrent state, observation normalization and action units.

    Create one with ``Policy.load(path)``, or as ``Policy(trainer)`` from the trainer's current
    weights. Later training doesn't change it.

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
        self._begin(checkpoint_of(trainer))
        self._adapter = _adapter_of(trainer.vec, trainer.vec.spec)

    def _begin(self, saved: checkpoint.Checkpoint) -> None:
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
        """Read a policy from a checkpoint.

        Args:
            path: Folder given to ``Trainer.save``, a folder of a run or a checkpoint, or ``latest``
                or ``best`` of the newest run in ``checkpoints``, of ``env`` if it is given.
            env: Name, class, function or object of the environment, needed for scoring if its name
                isn't found. ``predict`` uses its spaces. None uses the checkpoint's spaces, or in
                an older checkpoint those of the environment that it names.
            policy: Module of a policy that is an ``mlx.nn.Module``; its weights aren't used.
            allow_code: Import the code that the checkpoint names, even if it is untrusted on this
                machine.

        Returns:
            The policy, at the start of an episode.

        Raises:
            UserError: If the checkpoint is missing, damaged or of another policy, or names
                untrusted code.
        """
        name = None if env is None else source_of(env).name
        folder = checkpoint.find_any(str(path), env=name)
        saved = checkpoint.load(folder, allow_code, policy_factory(policy))
        acting = cls.of_checkpoint(saved._replace(config=with_environment(saved.config, env)))
        if env is None and (layout := saved_layout(saved.spec)):
            acting._adapter = SpaceAdapter(layout, saved.spec)
        return acting

    @classmethod
    def of_checkpoint(cls, saved: checkpoint.Checkpoint) -> Self:
        """Return the policy of a checkpoint that was read."""
        policy = cls.__new__(cls)
        policy._begin(saved)
        return policy

    def as_player(self, name: str, deterministic: bool) -> Player:
        """Return this policy as a player of games."""
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
        """Choose actions.

        A recurrent policy continues with the state of the last call. ``reset`` starts a new
        episode, ``episode_start`` does so for a part of a batch.

        Args:
            observation: Observation as returned by the environment's ``reset`` and ``step``, or a
                batch of them. A batch has a leading dimension n in each array of dicts and tuples.
            state: Recurrent state to continue with, as returned by an earlier call.
            episode_start: True where an episode starts and the state is reset, (n,) bool or one
                bool.
            deterministic: Take the most probable action. False samples, as Stable-Baselines3 does.
            action_masks: Non-zero for legal actions, (n, A), or (A,) for a single observation.

        Returns:
            The action and the recurrent state.

        Raises:
            UserError: If the observation doesn't match the environment, or its number of agents
                doesn't match the state.
        """
        refuse_forked()
        adapter = self._known_adapter()
        rows, single = adapter.rows(observation)
        n = len(rows)
        rows = normalization.apply(self.memory, rows).astype(
            self.spec.observation_dtype, copy=False
        )
        before = self._recurrent_state(n, state)
        not_done = None
        if episode_start is not None:
            not_done = 1 - mx.array(np.broadcast_to(np.asarray(episode_start, np.float32), (n,)))
        mask = self._mask(action_masks, n)
        with building:  # calls from several threads share the random keys, one after the other
            noise = None
            random = self._random
            if not deterministic:
                random, key = mx.random.split(random)
                noise = self.architecture.distribution.noise(key, (n,))
            actions, _, _, after = self.architecture.act(
                self.weights, mx.array(rows), before, noise, mask, not_done
            )
            mx.async_eval(actions, after, random)  # other threads can't evaluate lazy arrays
            self._random = random
        mx.eval(actions, after)
        self._state = after
        self._agents = n
        chosen = adapter.actions(np.ascontiguousarray(actions), single)
        return Prediction(chosen, after if self.architecture.is_recurrent else None)

    def __repr__(self) -> str:
        """Return a line with the environment, its spaces and the steps."""
        spaces = self.spec.described()
        return f"<Policy of {self.config.env_name}: {spaces}, {self.step:,} steps>"

    def reset(self, seed: int | None = None) -> None:
        """Start a new episode with the next observation.

        Args:
            seed: Seed of the sampled actions; None continues the sequence of random numbers.
        """
        self._state = None
        if seed is not None:
            self._random = mx.random.key(seed)

    def copy_state_from(self, other: "Policy") -> None:
        """Copy the recurrent state and random key of another policy of the same kind."""
        self._state = other._state
        self._agents = other._agents
        self._random = other._random

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without functions that pickle refuses.

        ``predict`` needs none of them, because the spaces are looked up first.
        """
        with suppress(UserError):
            self._known_adapter()
        config = replace(self.config, objects={}, again=None)
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
        """Return the recurrent state of n agents."""
        if state is not None:
            return state
        if self._state is None or not self.architecture.is_recurrent:
            return self.architecture.initial_state(n)
        if n != self._agents:
            raise UserError(
                f"the policy remembers {self._agents} agents, and these are observations of {n}",
                "policy.reset() where episodes begin",
            )
        return self._state

    def _mask(self, masks: Any, n: int) -> mx.array | None:
        if masks is None:
            return None
        A = self.spec.action.logits
        array = np.asarray(masks)
        if self.spec.action.continuous or array.size != n * A:
            raise UserError(
                f"action_masks are of shape {array.shape}",
                "continuous actions have none" if self.spec.action.continuous else f"({n}, {A})",
            )
        return mx.array(array.reshape(n, A) != 0).astype(mx.uint8)

    def _known_adapter(self) -> ObservationAdapter:
        """Return the environment's conversion; looks it up on the first call."""
        if self._adapter is None:
            try:
                self._adapter = _probed_adapter(self.config, self.spec)
            except UserError as error:
                raise UserError(
                    f"the spaces of {self.config.env_name} aren't known: {error.message}",
                    "Policy.load(path, env=…) with its class, a function that makes it, or a name",
                ) from error
        return self._adapter


def checkpoint_of(trainer: Trains) -> checkpoint.Checkpoint:
    """Return a checkpoint of a trainer's policy, with unrounded normalization statistics."""
    parts = trainer.config, trainer.vec.spec, trainer.policy, trainer.weights
    memory = current_statistics(trainer.vec)
    return checkpoint.Checkpoint(Path(), *parts, trainer.global_step, memory)


def player(policy: "Policy | Trains", seed: int | None) -> tuple[Policy, int]:
    """Return the policy (for a trainer, its newest one) and the seed, by default the run's."""
    refuse_forked()
    acting = policy if isinstance(policy, Policy) else Policy(policy)
    return acting, acting.config.base.seed if seed is None else seed


def check_compatible(policy: Policy, spec: EnvSpec, name: str) -> None:
    """Check that an environment's observations and actions match a policy.

    Args:
        policy: The policy.
        spec: Observations and actions of the environment.
        name: Name of the environment for the message.

    Raises:
        UserError: If they don't match.
    """
    if not spec.is_like(policy.spec):
        trained = policy.config.env_name
        message = f"a policy of {trained} is for {policy.spec.described()}"
        hint = f"an environment like {trained}"
        raise UserError(f"{message}, and {name} has {spec.described()}", hint)


def policy_factory(module: nn.Module | None) -> Callable[[EnvSpec, Config], Architecture]:
    """Return a function that makes the configured policy, or the one of a module."""

    def make(spec: EnvSpec, config: Config) -> Architecture:
        if module is None:
            return configured_policy(spec, config)
        return actor_critic(module, spec, config)

    return make


def _probed_adapter(config: Config, spec: EnvSpec) -> ObservationAdapter:
    """Return the conversion for a configuration's environment. One in C needn't be compiled."""
    if not config.python:
        return FlatAdapter(spec)
    with vec.probe(config) as environments:
        return _adapter_of(environments, spec)


def _adapter_of(environments: Any, spec: EnvSpec) -> ObservationAdapter:
    layout = getattr(environments, "layout", None)
    return SpaceAdapter(layout, spec) if layout else FlatAdapter(spec)
