"""Step Gymnasium's environments as instances, single or vectorised, with action masks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.env_failures import (
    ENV_EXCEPTIONS,
    UNKNOWN_INDEX,
    EnvFailure,
    all_flags,
    all_numbers,
    as_info,
    failure_of,
    one_flag,
    one_number,
    raising_failure,
    rendering_hint,
    result_failure,
)
from puffer_mlx.vec.episodes import scalar_metrics
from puffer_mlx.vec.gym.installed import gymnasium, suppress_warnings
from puffer_mlx.vec.instances import Buffers, EpisodeInfo
from puffer_mlx.vec.layout import SpaceLayout
from puffer_mlx.vec.spaces import choices_of, kind_of

MASK_KEY = "action_mask"  # key of action masks in infos of Gymnasium's environments
FINAL_OBSERVATION_KEY = "final_obs"  # key of last observations in infos, in SAME_STEP mode
NO_MASK_MESSAGE = "gave no action mask"
MASK_HINT = (
    f'return info["{MASK_KEY}"] in every reset and step: 1 for each legal choice of each head, else'
    " 0"
)


class GymInstance:
    """Instance that steps one ``gymnasium.Env`` and writes its agent's observations into buffers.

    Args:
        name: Name of the environment, for messages.
        env: The environment.
        buffers: Arrays of its agent.
        layout: Layout of rows.
        final_observations: True if an episode's last observation has a separate row: then the next
            step begins the next episode, else the same step.
    """

    num_agents = 1

    def __init__(
        self, name: str, env: Any, buffers: Buffers, layout: SpaceLayout, final_observations: bool
    ) -> None:
        self._name = name
        self._env = env
        self._final_observations = final_observations
        self._rewards = buffers.rewards
        self._legal = buffers.legal
        self._terminals = buffers.terminals
        self._truncations = buffers.truncations
        self._write = layout.writer(buffers.observations[0])
        self._masks = Masks(name, env.action_space) if layout.spec.mask_size else None
        self._over = False

    def reset(self, seed: int | None = None) -> None:
        """Start an episode of this instance's Gymnasium environment."""
        self._over = False
        self._rewards[0] = 0
        self._terminals[0] = self._truncations[0] = False
        self._begin(**({} if seed is None else {"seed": seed}))

    def step(self, actions: list[Any]) -> Sequence[EpisodeInfo]:
        """Step the Gymnasium environment, or begin its next episode if the last step ended one.

        Raises:
            EnvFailure: The environment returned something else than the five values of a step.
        """
        if self._over:
            self.reset()
            return ()
        result = self._env.step(actions[0])
        if (type(result) is not tuple or len(result) != 5) and (
            failure := result_failure("step", result)
        ):
            raise failure
        observation, reward, terminated, truncated, info = result
        # Check the usual types inline: calls would slow down cheap environments.
        self._rewards[0] = reward if type(reward) is float else one_number(reward, "a reward")
        if type(terminated) is not bool:
            terminated = one_flag(terminated, "terminated")
        if type(truncated) is not bool:
            truncated = one_flag(truncated, "truncated")
        self._terminals[0], self._truncations[0] = terminated, truncated
        if type(info) is not dict:
            info = as_info(info)
        if not (terminated or truncated):
            self._write_all(observation, info)
            return ()
        if self._final_observations:
            self._over = True
            self._write(observation)
            self._legal[:] = 1  # the next action is ignored
        else:
            self._begin()
        return [EpisodeInfo(0, metrics)] if (metrics := scalar_metrics(info)) else ()

    def render(self) -> Any:
        """Return a picture of this instance's Gymnasium environment."""
        return render_env(self._name, self._env)

    def close(self) -> None:
        """Close the Gymnasium environment of this instance."""
        self._env.close()

    def _begin(self, **keywords: Any) -> None:
        with raising_failure("failed in reset"):
            result = self._env.reset(**keywords)
        if failure := result_failure("reset", result):
            raise failure
        self._write_all(result[0], as_info(result[1]))

    def _write_all(self, observation: Any, info: Mapping[str, Any]) -> None:
        """Write an agent's observation, and the action mask in its info, into its buffers."""
        self._write(observation)
        if self._masks is not None:
            self._masks.write(info.get(MASK_KEY), self._legal[0])


class VectorInstance:
    """Instance that steps a Gymnasium ``VectorEnv`` and writes its agents' rows into buffers.

    Args:
        name: Name of the environments, for messages.
        env: The environments.
        buffers: Arrays of their agents.
        layout: Layout of rows.
        final_observations: True if an episode's last observation has a separate row.
    """

    def __init__(
        self, name: str, env: Any, buffers: Buffers, layout: SpaceLayout, final_observations: bool
    ) -> None:
        self._name = name
        self._env = env
        self._final_observations = final_observations
        self._buffers = buffers
        self._layout = layout
        self.num_agents = env.num_envs
        self._last = [layout.writer(row) for row in buffers.last]
        self._masks = Masks(name, env.single_action_space) if layout.spec.mask_size else None

    def reset(self, seed: int | None = None) -> None:
        """Start new episodes in all environments of the ``VectorEnv``.

        Raises:
            EnvFailure: The reset failed, or returned something else than observations and infos.
        """
        with raising_failure("failed in reset", UNKNOWN_INDEX):
            result = self._env.reset(seed=seed)
        if failure := result_failure("reset", result, UNKNOWN_INDEX):
            raise failure
        observations = result[0]
        infos = as_info(result[1], UNKNOWN_INDEX)
        buffers = self._buffers
        buffers.rewards[:] = 0
        buffers.terminals[:] = buffers.truncations[:] = False
        self._layout.write(observations, buffers.observations)
        self._write_masks(infos, buffers.terminals)

    def step(self, actions: Any) -> Sequence[EpisodeInfo]:
        """Step all environments of the ``VectorEnv``. Returns reports of episodes that ended.

        Raises:
            EnvFailure: An environment failed, or returned something else than the five values of a
                step.
        """
        try:  # a context manager would take a microsecond
            result = self._env.step(actions)
        except ENV_EXCEPTIONS as error:
            raise failure_of("failed in step", error, UNKNOWN_INDEX) from error
        if failure := result_failure("step", result, UNKNOWN_INDEX):
            raise failure
        observations, rewards, terminated, truncated, infos = result
        n = self.num_agents
        buffers = self._buffers
        infos = as_info(infos, UNKNOWN_INDEX)
        buffers.rewards[:] = all_numbers(rewards, "rewards", n)
        buffers.terminals[:] = all_flags(terminated, "terminated", n)
        buffers.truncations[:] = all_flags(truncated, "truncated", n)
        self._layout.write(observations, buffers.observations)
        if not infos and self._masks is None and not self._last:
            return ()
        over = np.logical_or(buffers.terminals, buffers.truncations)
        if self._last:
            self._write_last(infos)
        self._write_masks(infos, over if self._final_observations else np.zeros_like(over))
        ended = infos if self._final_observations else infos.get("final_info")
        if not ended or not over.any():
            return ()
        return [
            EpisodeInfo(index, self.episode_metrics(info))
            for index, info in ended_infos(ended, over).items()
        ]

    def episode_metrics(self, info: dict[str, Any]) -> dict[str, float]:
        """Return the metrics of an episode of the ``VectorEnv`` in the info of its last step."""
        return scalar_metrics(info)

    def render(self) -> Any:
        """Return a picture of the first environment of the ``VectorEnv``."""
        frames = render_env(self._name, self._env)
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close all environments of the ``VectorEnv``."""
        self._env.close()

    def _write_last(self, infos: Mapping[str, Any]) -> None:
        """Copy the last observations of episodes that a time limit ended from infos to buffers.

        Raises:
            EnvFailure: Infos don't contain them.
        """
        buffers = self._buffers
        for index in np.flatnonzero(buffers.truncations & ~buffers.terminals).tolist():
            last = None
            if FINAL_OBSERVATION_KEY in infos:
                only_last = {FINAL_OBSERVATION_KEY: infos[FINAL_OBSERVATION_KEY]}
                last = _info_of(only_last, index).get(FINAL_OBSERVATION_KEY)
            if last is None:
                what = (
                    "truncated an episode without its last observation,"
                    f' infos["{FINAL_OBSERVATION_KEY}"]'
                )
                hint = "add it, as SAME_STEP requires; or set --train.bootstrap-truncated 0"
                raise EnvFailure(what, "", UNKNOWN_INDEX, hint)
            self._last[index](last)

    def _write_masks(self, infos: Mapping[str, Any], last: np.ndarray) -> None:
        """Write the agents' action masks into buffers; all 1 after an episode's last step."""
        if self._masks is None:
            return
        has = infos.get(f"_{MASK_KEY}", np.full(len(last), MASK_KEY in infos))
        for index, row in enumerate(self._buffers.legal):
            if last[index]:
                row[:] = 1
            else:
                self._masks.write(infos[MASK_KEY][index] if has[index] else None, row, index)


def render_env(name: str, env: Any) -> Any:
    """Render an environment. Returns the result of its ``render``.

    Raises:
        UserError: A package or a display that it needs is missing.
    """
    try:
        with suppress_warnings():
            return env.render()
    except gymnasium().error.DependencyNotInstalled as error:
        raise UserError(f"{name} can't be drawn: {error}", "install the package") from None
    except ENV_EXCEPTIONS as error:
        if hint := rendering_hint(error):
            raise UserError(f"{name} can't be drawn: {error}", hint) from None
        raise


class Masks:
    """Converter of the action masks that environments return to the layout of a policy's logits.

    Args:
        name: Name of the environment, for messages.
        action_space: Action space of one agent.

    Raises:
        UserError: The actions aren't discrete.
    """

    def __init__(self, name: str, action_space: Any) -> None:
        if kind_of(action_space) not in ("Discrete", "MultiDiscrete"):
            raise UserError(
                f'{name}: info contains "{MASK_KEY}", but actions are {action_space}',
                "masks are for Discrete and MultiDiscrete; leave the mask out",
            )
        sizes, _ = choices_of(action_space)
        # Values with a single choice have no head.
        self._columns = np.flatnonzero(np.repeat(np.array(sizes) > 1, sizes))
        self._choices = sum(sizes)

    def write(self, mask: Any, out: np.ndarray, index: int | None = None) -> None:
        """Write the action mask of one agent to an array.

        Args:
            mask: Array, or a list of arrays by head; None is an error.
            out: (logits,) uint8; 1 where an action is legal.
            index: Index of the agent, for messages.

        Raises:
            EnvFailure: The mask is missing, or has another size.
        """
        by_head = mask if isinstance(mask, tuple | list) else (mask,)
        if mask is None or any(each is None for each in by_head):
            raise EnvFailure(NO_MASK_MESSAGE, "", index, MASK_HINT)
        row = np.concatenate([np.ravel(each) for each in by_head])
        if row.shape != (self._choices,):
            what = f"gave an action mask of {row.size} numbers, expected {self._choices}"
            raise EnvFailure(what, "", index, MASK_HINT)
        np.not_equal(row[self._columns], 0, out=out)


def ended_infos(infos: Mapping[str, Any], over: np.ndarray) -> dict[int, dict[str, Any]]:
    """Split the infos of a ``VectorEnv``: one dict for each environment whose episode ended.

    Args:
        infos: Merged infos of all environments.
        over: (n,) bool, True where an episode ended.
    """
    return {index: _info_of(infos, index) for index in np.flatnonzero(over).tolist()}


def _info_of(infos: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the info of one environment from the merged infos of a ``VectorEnv``."""
    one = {}
    for key, values in infos.items():
        if f"_{key}" in infos and not infos[f"_{key}"][index]:
            continue
        if isinstance(values, Mapping):
            one[key] = _info_of(values, index)
        elif not (key.startswith("_") and key[1:] in infos) and len(values) > index:
            one[key] = values[index]
    return one
