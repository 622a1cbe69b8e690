"""Make and step PettingZoo's parallel environments: several agents each, one policy for all.

Environment i is reset with ``seed + i``. Rows are in the order of ``possible_agents``.

A parallel environment has ``possible_agents``, a space for each of them, and a ``step`` that takes
a dictionary of their actions.

**Last observations** always have separate rows (``final_observations``). After the last agent of an
environment is done, the next step begins its next episode.

**Absent agents**, which died before the others or haven't joined yet, have rows of zeros, terminal
1, ``TERMINATED`` in ``final_observations`` and reward 0. So nothing is learned from these rows, and
they belong to no episode. An agent returns when ``agents`` lists it again after a step without it.
It then begins a new episode, as does an agent that joins late. An agent that ended and stays in
``agents`` counts as dead.

| agent | row |
| --- | --- |
| acts | observation and reward |
| died in this step, or time is up | last observation and reward; terminal or truncation 1 |
| absent | zeros, terminal 1; every action is legal |
| returns or joins late | first observation; terminal 1 |

When no agent is left, the next step ignores its actions and begins a new episode.
"""

import importlib.machinery
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import load_object, nearest
from puffer_mlx.vec.env_failures import (
    EnvFailure,
    as_info,
    describe_exception,
    format_value,
    one_flag,
    one_number,
    raising_failure,
    result_failure,
)
from puffer_mlx.vec.episodes import mean_metrics
from puffer_mlx.vec.gym.agents import MASK_KEY, Masks
from puffer_mlx.vec.instances import (
    RENDER_HINT,
    Buffers,
    EnvFactory,
    EpisodeInfo,
    Probe,
    close_if_possible,
    wrong_env_class,
)
from puffer_mlx.vec.layout import SpaceLayout
from puffer_mlx.vec.spaces import kind_of

PREFIX = "pettingzoo:"
_PACKAGES = ("mpe2", "pettingzoo")
_MODULE = re.compile(r".+_v\d+\.py")
_REQUIRED_MODULES = {  # group of PettingZoo -> module that its environments need
    "atari": "multi_agent_ale_py",
    "butterfly": "pymunk",
    "classic": "pygame",
    "sisl": "pymunk",
}
_STEP_RESULTS = "observations", "rewards", "terminations", "truncations", "infos"
OBSERVATION_KEY = "observation"  # key in observations that are a Dict of observation and mask


def looks_parallel(env: Any) -> bool:
    """Return True if an object has the attributes of a parallel environment of PettingZoo."""
    has = ("possible_agents", "observation_space", "action_space", "reset", "step")
    return all(hasattr(env, name) for name in has) and not _looks_aec(env)


def _looks_aec(env: Any) -> bool:
    names = "agent_selection", "agent_iter"  # wrappers have the first only after a reset
    return hasattr(env, "possible_agents") and any(hasattr(env, name) for name in names)


@dataclass
class ZooFactory(EnvFactory):
    """Factory of instances of a parallel environment of PettingZoo."""

    def open(self, seed: int, count: int | None, number: int) -> Any:
        """Return a new parallel environment of PettingZoo.

        Raises:
            UserError: The environment can't be made, or isn't a parallel one.
        """
        with self.reporting_failures(number, seed - number), _suppress_warnings():
            env = self.constructor(**self.arguments())
        if looks_parallel(env):
            return env
        close_if_possible(env)
        if _looks_aec(env):
            raise turn_based_error(self.name)
        raise wrong_env_class(self.name, env, "pettingzoo.ParallelEnv", "return one")

    def spaces_of(self, env: Any) -> tuple[Any, Any]:
        """Return the observation space, without mask, and action space of a PettingZoo agent."""
        spaces = AgentSpaces(self.name, env)
        return spaces.observation, spaces.action

    def describe(self, env: Any, seed: int) -> Probe:
        """Return a new PettingZoo environment's properties: agents, spaces, and action masks.

        Raises:
            EnvFailure: The environment failed.
            UserError: The agents have different spaces.
        """
        spaces = AgentSpaces(self.name, env)
        _, infos = _reset(env, seed)
        masked = spaces.masked or any(MASK_KEY in as_info(info) for info in infos.values())
        return Probe((spaces.observation, spaces.action), len(spaces.agents), masked=masked)

    def as_instance(self, env: Any, buffers: Buffers) -> "ParallelInstance":
        """Wrap a parallel environment as an instance that writes its agents' rows into buffers."""
        return ParallelInstance(self.name, env, buffers, self.layout)


class AgentSpaces:
    """Observation and action space that all agents of a parallel environment share.

    Args:
        name: Name of the environment, for messages.
        env: The parallel environment.

    Attributes:
        agents: All possible agents.
        observation: Observation space of one agent, without its mask.
        action: Action space of one agent.
        masked: True if observations contain action masks.

    Raises:
        UserError: Agents have different spaces.
    """

    def __init__(self, name: str, env: Any) -> None:
        self.agents = list(env.possible_agents)
        if not self.agents:
            raise UserError(f"{name}: possible_agents is empty", "list all agents there may be")
        first = self.agents[0]
        for what, space in (("sees", env.observation_space), ("does", env.action_space)):
            for other in self.agents[1:]:
                if space(other) != space(first):
                    raise UserError(
                        f"{name}: its agents differ: {first} {what} {space(first)},"
                        f" {other} {space(other)}; one policy is trained for all of them",
                        "make their spaces equal: supersuit.pad_observations_v0 and"
                        " supersuit.pad_action_space_v0 (pip install supersuit)",
                    )
        self.observation, self.action = env.observation_space(first), env.action_space(first)
        self.masked = kind_of(self.observation) == "Dict" and {OBSERVATION_KEY, MASK_KEY} <= set(
            self.observation.spaces
        )
        if self.masked:
            self.observation = self.observation[OBSERVATION_KEY]


class ParallelInstance:
    """Instance that steps one parallel environment and writes its agents' rows into buffers.

    Args:
        name: Name of the environment, for messages.
        env: The parallel environment.
        buffers: Arrays of its agents.
        layout: Layout of rows, with ``mask_size`` if the environment masks actions.

    Attributes:
        num_agents: Number of agents A.
    """

    def __init__(self, name: str, env: Any, buffers: Buffers, layout: SpaceLayout) -> None:
        self._name = name
        self._spaces = spaces = AgentSpaces(name, env)
        self._env = env
        self._buffers = buffers
        self._agents = spaces.agents
        self.num_agents = len(spaces.agents)
        self._writers = [layout.writer(row) for row in buffers.observations]
        self._masks = Masks(name, spaces.action) if layout.spec.mask_size else None
        self._done: set[Any] = set()  # in this episode
        self._over = False

    def reset(self, seed: int | None = None) -> None:
        """Begin a new episode of the parallel environment.

        Raises:
            EnvFailure: The environment failed, or returned an invalid result.
        """
        observations, infos = _reset(self._env, seed)
        self._buffers.rewards[:] = 0
        self._buffers.terminals[:] = self._buffers.truncations[:] = False
        self._done = set()
        self._check(observations)
        self._write(observations, infos)
        self._over = False

    def step(self, actions: list[Any]) -> Sequence[EpisodeInfo]:
        """Step the present agents, or begin the next episode if no agent is left.

        Raises:
            EnvFailure: The environment returned an invalid result.
        """
        if self._over:
            self.reset()
            return []
        previous = set(self._env.agents)
        acting = previous - self._done
        actions_by_agent = {a: x for a, x in zip(self._agents, actions, strict=True) if a in acting}
        try:
            result = self._env.step(actions_by_agent)
        except KeyError as error:
            self._raise_explained(error)
            raise
        observations, rewards, terminations, truncations, infos = _check_results("step", result)
        present = set(self._env.agents)
        self._done -= present - previous  # agents that return
        observations = {a: each for a, each in observations.items() if a not in self._done}
        buffers = self._buffers
        reported: list[EpisodeInfo] = []
        for i, agent in enumerate(self._agents):
            counts = agent in rewards and (agent in acting or agent in observations)
            what = f"a reward for agent {agent}"
            buffers.rewards[i] = one_number(rewards[agent], what) if counts else 0
            terminated = one_flag(terminations.get(agent), f"terminated for agent {agent}")
            cut = one_flag(truncations.get(agent), f"truncated for agent {agent}")
            buffers.terminals[i], buffers.truncations[i] = terminated, cut
            left = agent in acting and agent not in observations and agent not in present
            if terminated or cut or left:
                self._done.add(agent)
        self._check(observations)
        self._write(observations, infos)
        for index in np.flatnonzero(buffers.terminals | buffers.truncations).tolist():
            info = as_info(infos.get(self._agents[index]))
            if metrics := mean_metrics(
                {key: each for key, each in info.items() if key != MASK_KEY}
            ):
                reported.append(EpisodeInfo(index, metrics))
        self._over = present <= self._done
        return reported

    def _check(self, observations: Mapping[Any, Any]) -> None:
        """Raise an error if a present agent has no observation, or an agent is unknown.

        Raises:
            EnvFailure: There is such an agent.
        """
        present = set(self._env.agents)
        for agent in present.difference(self._agents):
            what = f"has agent {agent} in its agents, which isn't in possible_agents"
            raise EnvFailure(what, "", None, "list all agents there may be in possible_agents")
        if missing := present - self._done - observations.keys():
            first = min(missing, key=self._agents.index)
            what = f"returned no observation for agent {first}, which is in its agents"
            hint = "return one for each agent that acts next, or take the agent out of agents"
            raise EnvFailure(what, "", None, hint)

    def _raise_explained(self, error: KeyError) -> None:
        """Raise a better error if a KeyError of an environment names an agent that has ended.

        Raises:
            EnvFailure: The key is an agent that ended and is still in ``agents``.
        """
        agent = error.args[0] if error.args else None
        if agent in self._done and agent in self._env.agents:
            text = f"agent {agent} ended in an earlier step and is still in agents, so it gets no"
            hint = "remove agents that ended from agents; they may come back in a later step"
            raise EnvFailure(
                "failed in step", f"{text} action: {describe_exception(error)}", None, hint
            ) from error

    def render(self) -> Any:
        """Return a picture of the parallel environment.

        Raises:
            UserError: The environment can't be drawn; ``render`` is optional in PettingZoo.
        """
        if hasattr(self._env, "render"):
            with suppress(NotImplementedError):
                return self._env.render()
        raise UserError(f"{self._name}: it can't be drawn: it has no render()", RENDER_HINT)

    def close(self) -> None:
        """Close the parallel environment of PettingZoo in this instance."""
        self._env.close()

    def _write(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        """Write the agents' observations and action masks into buffers; zeros for absent agents."""
        buffers = self._buffers
        masked = self._spaces.masked
        for i, agent in enumerate(self._agents):
            buffers.present[i] = is_present = agent in observations
            if is_present:
                observation = observations[agent]
                self._writers[i](observation[OBSERVATION_KEY] if masked else observation)
            else:
                buffers.observations[i] = 0
                buffers.terminals[i], buffers.truncations[i] = True, False
            if self._masks is None:
                continue
            if buffers.terminals[i] or buffers.truncations[i]:  # the agent doesn't act
                buffers.legal[i] = 1
                continue
            mask = as_info((observations if masked else infos).get(agent)).get(MASK_KEY)
            try:
                self._masks.write(mask, buffers.legal[i])
            except EnvFailure as failure:
                raise EnvFailure(
                    "failed", f"agent {agent} {failure.event}", None, failure.hint
                ) from None


def _reset(env: Any, seed: int | None) -> list[Mapping[Any, Any]]:
    """Reset a parallel environment of PettingZoo. Returns observations and infos, by agent.

    Raises:
        EnvFailure: The environment failed, or returned an invalid result.
    """
    with raising_failure("failed in reset"):
        result = env.reset() if seed is None else env.reset(seed=seed)
    return _check_results("reset", result)


def _check_results(method: str, result: Any) -> list[Mapping[Any, Any]]:
    """Check that a parallel environment's ``step`` or ``reset`` returned the expected dicts.

    Args:
        method: ``step`` or ``reset``.
        result: The returned tuple. Each value is a dict with an entry per agent.

    Returns:
        The dicts, with {} for None.

    Raises:
        EnvFailure: There are too few or too many values, or one isn't a dict.
    """
    if failure := result_failure(method, result):
        raise failure
    names = _STEP_RESULTS if method == "step" else (_STEP_RESULTS[0], _STEP_RESULTS[-1])
    for name, each in zip(names, result, strict=True):
        if each is not None and not isinstance(each, Mapping):
            what = f"returned {name} of {format_value(each)}, expected a dict by agent"
            raise EnvFailure(
                what, "", None, "return a dict with an entry for each agent that acted"
            )
    return [{} if each is None else each for each in result]


def _suppress_warnings() -> AbstractContextManager[Any]:
    """Suppress the warnings of PettingZoo and pygame in a block."""
    return warnings.catch_warnings(action="ignore")


# ---- Names ---------------------------------------------------------------------------------------


def turn_based_error(name: str) -> UserError:
    """Return the error for an AEC environment of PettingZoo, in which agents take turns."""
    return UserError(
        f"{name}: its agents take turns (AEC), expected a parallel one, in which all act at once",
        "if agents could also act at once, use a function that"
        " returns pettingzoo.utils.aec_to_parallel(env)",
    )


def parallel_names() -> dict[str, list[str]]:
    """Return the installed parallel environments by group, such as ``sisl.pursuit_v5`` in ``sisl``.

    Contains environments that need a missing package (``missing_group_package``).
    """
    groups: dict[str, list[str]] = {}
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            files = [*folder.glob("*.py"), *folder.glob("*/*.py")]
            for path in sorted(path for path in files if _MODULE.fullmatch(path.name)):
                group = package if path.parent == folder else path.parent.name
                if "parallel_env" in path.read_text(encoding="utf-8", errors="replace"):
                    groups.setdefault(group, []).append(f"{group}.{path.stem}")
    return groups


def missing_group_package(group: str) -> str:
    """Return the package that a group of PettingZoo needs; "" if it is installed."""
    module = _REQUIRED_MODULES.get(group)
    return f"pettingzoo[{group}]" if module and not importlib.util.find_spec(module) else ""


def find_parallel(name: str) -> Callable[..., Any]:
    """Find a PettingZoo environment by name, and return the function that makes it.

    Args:
        name: Module with ``parallel_env`` of any package, such as ``mpe2.simple_spread_v3``, or of
            PettingZoo, such as ``sisl.pursuit_v5``; or an ID, such as ``classic/rps_v2``.

    Raises:
        UserError: There is no such module.
    """
    try:
        import pettingzoo  # type: ignore
    except ImportError as error:
        hint = "pip install 'puffer-mlx[pettingzoo]'"
        raise UserError(f"PettingZoo can't be imported: {error}", hint) from None
    if "/" in name:
        if not hasattr(pettingzoo, "make"):
            raise UserError(
                f"{PREFIX}{name}: PettingZoo {pettingzoo.__version__} has no IDs",
                f"use its module, {PREFIX}{name.replace('/', '.')}",
            )
        try:
            pettingzoo.spec("parallel", name)
        except Exception:
            raise _unknown_id_error(name, pettingzoo) from None
        return partial(pettingzoo.make, "parallel", name)
    top = name.partition(".")[0]
    if not _is_importable(top):
        if importlib.util.find_spec(f"pettingzoo.{top}") is None:
            near = _nearest_name(name)
            raise UserError(
                f"{PREFIX}{name}: there is no module {top}",
                near
                or f"{PREFIX}mpe2.simple_spread_v3 (pip install mpe2), for example; or an ID,"
                f" {PREFIX}classic/rps_v2",
            )
        name = f"pettingzoo.{name}"
    with _suppress_warnings():
        return _parallel_env(name)


def _parallel_env(module: str) -> Any:
    """Import ``parallel_env`` from a module of PettingZoo."""
    short = module.removeprefix("pettingzoo.")
    try:
        return load_object(f"{module}:parallel_env")
    except UserError as error:
        loaded = sys.modules.get(module)
        if hasattr(loaded, "env"):  # an AEC environment of PettingZoo
            raise turn_based_error(PREFIX + short) from None
        near = "" if loaded or _is_module(module) else _nearest_name(short)
        raise UserError(error.message, near or error.hint) from None


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # the module's package isn't installed either
        return False


def _unknown_id_error(name: str, pettingzoo: Any) -> UserError:
    """Return the error for an environment ID that isn't a parallel environment of PettingZoo."""
    plain = name.replace("_v", "-v")
    if plain in pettingzoo.aec_registry:
        return turn_based_error(PREFIX + name)
    near = nearest(plain, pettingzoo.parallel_registry, PREFIX)
    hint = near or "puffer-mlx list has what is installed"
    return UserError(f"{PREFIX}{name}: PettingZoo has no such parallel environment", hint)


def _nearest_name(name: str) -> str:
    names = [each for group in parallel_names().values() for each in group]
    return nearest(name, names, PREFIX)


def _is_importable(top: str) -> bool:
    """Return True if a top-level module is installed or in the working directory."""
    local = importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd())])
    return (importlib.util.find_spec(top) or local) is not None
