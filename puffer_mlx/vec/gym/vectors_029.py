"""Gymnasium 0.29's vector environments with what 1.1 added: when the next episode begins.

0.29 begins it in the step that ends the one before, and merges no dictionaries in ``info``.
"""

import enum
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import vector
from gymnasium.vector import async_vector_env, utils

__all__ = ["AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv", "async_worker"]

_029: Any = vector  # type checkers see a newer one
_WORKER = "_worker_shared_memory"


class AutoresetMode(enum.Enum):
    """When the next episode begins; names and values are 1.1's."""

    NEXT_STEP = "NextStep"
    SAME_STEP = "SameStep"
    DISABLED = "Disabled"


class _As11:
    """What vector environments of both kinds have in 1.1."""

    closed = True  # until it is made: there is nothing to close before
    autoreset_mode: AutoresetMode
    metadata: dict[str, Any]
    num_envs: int
    call: Callable[..., Any]

    def _say_mode(self) -> None:
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}

    def render(self) -> Any:
        """Pictures of all environments."""
        return self.call("render")

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: Mapping[str, Any], env_num: int
    ) -> dict[str, Any]:
        """Merge one environment's info into that of all, dictionaries in it likewise."""
        unwanted = {"final_observation"}
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            unwanted.add("final_info")  # the step's own info is that
        for key, value in env_info.items():
            if key in unwanted:
                continue
            if isinstance(value, dict):
                merged = self._add_info(vector_infos.get(key, {}), value, env_num)
            else:
                merged = vector_infos.get(key)
                merged = self._empty(value) if merged is None else merged
                merged[env_num] = value
            vector_infos[key] = merged
            told = vector_infos.setdefault(f"_{key}", np.zeros(self.num_envs, bool))
            told[env_num] = True
        return vector_infos

    def _empty(self, value: Any) -> np.ndarray:
        if isinstance(value, bool | int | float | np.number):
            return np.zeros(self.num_envs, type(value))
        if isinstance(value, np.ndarray):
            return np.zeros((self.num_envs, *value.shape), value.dtype)
        return np.full(self.num_envs, None, object)


class SyncVectorEnv(_As11, _029.SyncVectorEnv):
    """n environments one after the other, in this process.

    Args:
        makes: n functions that make an environment.
        copy: whether observations are copies.
        autoreset_mode: ``NEXT_STEP`` or ``SAME_STEP``.
    """

    def __init__(
        self, makes: Sequence[Callable[[], Any]], *, copy: bool, autoreset_mode: AutoresetMode
    ) -> None:
        self.autoreset_mode = autoreset_mode
        _029.SyncVectorEnv.__init__(self, makes, copy=copy)
        self._over = np.zeros(self.num_envs, bool)  # whose next step begins an episode
        self._say_mode()

    def reset_wait(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        """Observations and infos of all environments; i is seeded with ``seed + i``."""
        self._over[:] = False
        self._env_obs, infos = [], {}
        for i, env in enumerate(self.envs):
            observation, info = env.reset(**({} if seed is None else {"seed": seed + i}))
            self._env_obs.append(observation)
            infos = self._add_info(infos, info, i)
        return self._together(), infos

    def step_wait(self) -> tuple[Any, ...]:
        """What all environments returned; one whose episode is over begins the next."""
        same = self.autoreset_mode is AutoresetMode.SAME_STEP
        self._env_obs, infos = [], {}
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        for i, (env, action) in enumerate(zip(self.envs, self._actions, strict=True)):
            if self._over[i]:
                observation, info = env.reset()
            else:
                observation, rewards[i], terminated[i], truncated[i], info = env.step(action)
            over = terminated[i] or truncated[i]
            if over and same:
                told = info
                observation, info = env.reset()
                info = {**info, "final_info": told}
            self._over[i] = over and not same
            self._env_obs.append(observation)
            infos = self._add_info(infos, info, i)
        return self._together(), rewards, terminated, truncated, infos

    def _together(self) -> Any:
        space = self.single_observation_space
        return utils.concatenate(space, self._env_obs, self.observations)


class AsyncVectorEnv(_As11, _029.AsyncVectorEnv):
    """n environments in n processes.

    Args:
        makes: n functions that make an environment; picklable.
        copy: whether observations are copies.
        context: how processes are started.
        worker: what runs in each, as 1.1 calls it: with the mode as its last argument.
        autoreset_mode: ``NEXT_STEP`` or ``SAME_STEP``.
    """

    def __init__(
        self,
        makes: Sequence[Callable[[], Any]],
        *,
        copy: bool,
        context: str,
        worker: Callable[..., None],
        autoreset_mode: AutoresetMode,
    ) -> None:
        self.autoreset_mode = autoreset_mode
        called = partial(_with_mode, worker, autoreset_mode)
        _029.AsyncVectorEnv.__init__(self, makes, copy=copy, context=context, worker=called)
        self._say_mode()

    def step_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """What all environments returned; rewards are numbers, or NaN for None."""
        observations, rewards, *rest = super().step_wait(timeout)
        return observations, np.asarray(rewards, np.float64), *rest


def _with_mode(worker: Callable[..., None], mode: AutoresetMode, *arguments: Any) -> None:
    worker(*arguments, mode)


def async_worker(
    index: int,
    make: Callable[[], Any],
    pipe: Any,
    parent_pipe: Any,
    memory: Any,
    errors: Any,
    mode: AutoresetMode,
) -> None:
    """A process: 0.29's worker, which begins the next episode when ``mode`` says."""
    env = _NextStep(make()) if mode is AutoresetMode.NEXT_STEP else make()
    work = getattr(async_vector_env, _WORKER)
    work(index, lambda: env, pipe, parent_pipe, memory, _Traced(errors))


class _NextStep(gymnasium.Wrapper):
    """Begins the next episode in the step after the one that ends it.

    0.29's worker resets it in the step that ends it. What that reset returns is the last
    observation again, so that it is what the worker shows.
    """

    _last: tuple[Any, dict[str, Any]] | None = None  # until the worker's reset has shown it
    _over = False

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        if self._last is not None:
            last, self._last = self._last, None
            return last
        self._over = False
        return self.env.reset(**keywords)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._over:
            self._over = False
            observation, info = self.env.reset()
            return observation, 0.0, False, False, info
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self._over, self._last = True, (observation, dict(info))
        return observation, reward, bool(terminated), bool(truncated), info


class _Traced:
    """A queue of errors, each with its traceback, as 1.1 tells them."""

    def __init__(self, errors: Any) -> None:
        self._errors = errors

    def put(self, error: tuple[Any, ...]) -> None:
        self._errors.put((*error, traceback.format_exc()))
