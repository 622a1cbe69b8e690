"""Make and step Python environments of PufferLib 3.x, with or without an installed PufferLib.

PufferLib isn't imported: an environment is recognised by its attributes
``single_observation_space``, ``single_action_space`` and ``num_agents`` and its arrays
``observations, rewards, terminals, truncations``. ``masks`` marks the agents that are present; it
isn't an action mask. Instance i is made and reset with ``seed + i``.

``pufferlib.vector`` isn't used: it needs subclasses of PufferEnv, waits forever for a process that
died, and ends episodes of emulated environments a step later than those of native ones.

**Episode ends.** Native environments (``pufferlib.PufferEnv``) begin the next episode in the step
that ends one and never return the last observation, so an episode that a time limit ended counts as
terminated. Emulated ones (``pufferlib.emulation``) return it, set ``done`` and wait for a reset.
They are reset in the same step here, so both kinds give the same rows.

**Names** (``pufferlib:puffer_breakout``) are read from the text of PufferLib's module. Importing it
takes seconds, needs PyTorch, and makes a link ``resources`` in the working directory. Constructors
are looked up here, because ``env_creator`` of PufferLib 3.0 returns a text for environments whose C
code isn't compiled.

**Absent agents.** The rows of an agent that has left are passed on unchanged, as in PufferLib's
trainer: the agent acts without effect, and its reward is what the environment writes. Such steps
belong to no episode.
"""

import ast
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import nearest
from puffer_mlx.vec.env_failures import (
    ENV_EXCEPTIONS,
    describe_exception,
    raising_failure,
    result_failure,
)
from puffer_mlx.vec.episodes import mean_metrics
from puffer_mlx.vec.instances import (
    Buffers,
    EnvFactory,
    EpisodeInfo,
    Probe,
    close_if_possible,
    parameters,
)
from puffer_mlx.vec.layout import SpaceLayout
from puffer_mlx.vec.spaces import kind_of

PREFIX = "pufferlib:"
_NAME_START = "puffer_"  # prefix of the names of PufferLib's environments
_TABLE_NAME = "MAKE_FUNCTIONS"  # table of constructors in ``_MODULE``
_MODULE = "pufferlib.ocean.environment"
_ARRAY_ATTRIBUTES = ("observations", "rewards", "terminals", "truncations")
_ATTRIBUTES = ("single_observation_space", "single_action_space", "num_agents")
_REQUIRED_METHODS = ("reset", "step")
_RESERVED_ARGUMENTS = ("buf", "seed")  # arguments that a user can't set


def is_puffer_env(candidate: Any) -> bool:
    """Return True if an object is an environment of PufferLib 3.x, or a constructor of one.

    A constructor has a parameter ``buf``, which PufferLib passes to each, or is a class with a base
    class that is named PufferEnv.
    """
    if isinstance(candidate, type) and any(c.__name__ == "PufferEnv" for c in candidate.__mro__):
        return True
    is_object = not isinstance(candidate, type) and hasattr(candidate, "single_observation_space")
    if not is_object:
        return callable(candidate) and "buf" in parameters(candidate)
    return all(
        hasattr(candidate, name) for name in (*_ATTRIBUTES, *_ARRAY_ATTRIBUTES, *_REQUIRED_METHODS)
    )


@dataclass
class PufferFactory(EnvFactory):
    """Factory of instances of a PufferLib 3.x environment, made by a class or function.

    Raises:
        UserError: The constructor isn't callable, or a reserved argument is set.
    """

    final_observations: bool = field(default=False, init=False)
    _probe: Probe | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not callable(self.constructor):
            raise UserError(
                f"{self.name}: it is an environment object, expected a class or function",
                "use its class, or a function that returns an environment",
            )
        for key in _RESERVED_ARGUMENTS:
            if key in self.keywords:
                raise UserError(f"{self.name}: env.{key} can't be set", "use vec.seed")

    def argument_names(self) -> list[str]:
        """Return the names of the PufferLib environment's arguments that a user can set."""
        return [name for name in parameters(self.constructor) if name not in _RESERVED_ARGUMENTS]

    @property
    def scales(self) -> bool:
        """True if one PufferLib object can contain any number of environments."""
        return "num_envs" in parameters(self.constructor) and "num_envs" not in self.keywords

    def vectorised_version(self) -> tuple[str, str]:
        """Describe the environment's vectorised version, or return a reason not to use it.

        Returns (description, "") if the version can be used, else ("", reason).
        """
        if "num_envs" in self.keywords:
            return "", "env.num_envs is set"
        return ("it takes num_envs", "") if self.scales else super().vectorised_version()

    def describe(self, env: Any, seed: int) -> Probe:
        """Return the properties (``Probe``) of a new PufferLib environment: agents and spaces."""
        agents = int(env.num_agents)
        num_envs = self.keywords.get("num_envs", 1)
        is_count = isinstance(num_envs, int) and num_envs > 0 and agents % num_envs == 0
        environments = num_envs if is_count else 1
        array_spaces = env.single_observation_space, env.single_action_space
        spaces = self.spaces_of(env)
        packed = _packed_dtype(env)
        return Probe(spaces, agents, environments, packed=packed, buffered=array_spaces)

    def spaces_of(self, env: Any) -> tuple[Any, Any]:
        """Return a PufferLib environment's observation space (before packing) and action space."""
        observation = env.single_observation_space
        if _packed_dtype(env) is not None:
            observation = getattr(env, "env_single_observation_space", None)
            observation = env.env.observation_space if observation is None else observation
        return observation, env.single_action_space

    def _apply(self, probe: Probe) -> None:
        super()._apply(probe)
        self._probe = probe

    def _new_arrays(self, count: int | None) -> dict[str, np.ndarray] | None:
        """Return arrays for a new PufferLib environment to write into; None before the probe."""
        if self._probe is None:
            return None
        n = self.agents * (count or 1)
        observation, action = self._probe.buffered
        action_dtype = action.dtype if kind_of(action) == "Box" else np.int32
        return {
            "observations": np.zeros((n, *observation.shape), observation.dtype),
            "actions": np.zeros((n, *action.shape), action_dtype),
            "rewards": np.zeros(n, np.float32),
            "terminals": np.zeros(n, bool),
            "truncations": np.zeros(n, bool),
            "masks": np.ones(n, bool),
        }

    def _measure_step(self, env: Any, seed: int) -> float:
        """Measure how long a step of a PufferLib environment takes, in seconds, in a second one.

        The first one was made before the probe, so it has no arrays to write into.
        """
        env = self.open(seed, 1 if self.scales else None, 0)
        try:
            return super()._measure_step(env, seed)
        finally:
            close_if_possible(env)

    def actions(self, rows: np.ndarray) -> np.ndarray:
        """Convert a policy's actions, rows of numbers, to an array of the action space's dtype."""
        actions = self.layout.actions(rows)
        return actions if self.layout.spec.action.continuous else actions.astype(np.int32)

    def as_instance(self, env: Any, buffers: Buffers) -> "PufferInstance":
        """Wrap a PufferLib environment as an instance that writes its agents' rows into buffers."""
        assert self._probe is not None
        return PufferInstance(env, buffers, self.layout, self._probe.packed)

    def open(self, seed: int, count: int | None, number: int) -> Any:
        """Return a new environment object of PufferLib that contains ``count`` environments.

        Raises:
            UserError: The object can't be made, or lacks attributes of such an environment.
        """
        arguments = dict(self.keywords)
        # Reserved arguments are passed only if they are declared: a function with **kwargs may
        # pass all of them to a constructor that doesn't take them.
        declared = parameters(self.constructor)
        if count is not None and self.scales:
            arguments["num_envs"] = count
        if self.render and "render_mode" in declared:
            arguments.setdefault("render_mode", "rgb_array")
        reserved = ("buf", self._new_arrays(count)), ("seed", seed)
        arguments |= {key: value for key, value in reserved if key in declared}
        with self.reporting_failures(number, seed - number):
            env = self.constructor(**arguments)
        missing = [
            key
            for key in (*_ATTRIBUTES, *_ARRAY_ATTRIBUTES, *_REQUIRED_METHODS)
            if not hasattr(env, key)
        ]
        if missing:
            raise UserError(
                f"{self.name}: the {type(env).__qualname__} it made has no {', '.join(missing)}",
                "an environment of PufferLib 3.x has them; docs/writing_envs.md shows one",
            )
        return env


def _packed_dtype(env: Any) -> np.dtype | None:
    """Return the dtype into which PufferLib packs observations of a Dict or Tuple, or None.

    Returns None when observations aren't packed.
    """
    dtype = np.dtype(getattr(env, "obs_dtype", np.uint8))
    return dtype if getattr(env, "is_obs_emulated", False) and dtype.names else None


def _unpacked(space: Any, packed: np.ndarray) -> Any:
    """Convert observations that PufferLib packed, a structured array (n,), to nested dicts."""
    kind = kind_of(space)
    if kind == "Dict":
        return {key: _unpacked(each, packed[key]) for key, each in space.spaces.items()}
    if kind == "Tuple":
        return tuple(_unpacked(each, packed[f"f{i}"]) for i, each in enumerate(space.spaces))
    return packed


class PufferInstance:
    """Instance that steps a PufferLib 3.x environment object, which may contain several.

    Args:
        env: The environment.
        buffers: Arrays of its agents.
        layout: Layout of one agent's rows.
        packed: Dtype of packed observations, or None for plain arrays.
    """

    def __init__(
        self, env: Any, buffers: Buffers, layout: SpaceLayout, packed: np.dtype | None
    ) -> None:
        self._env = env
        self._buffers = buffers
        self._layout = layout
        self._packed = packed
        self.num_agents = int(env.num_agents)
        self._running = np.zeros(self.num_agents, bool)  # True after an episode's first step

    def reset(self, seed: int | None = None) -> None:
        """Start new episodes in all environments of the PufferLib object."""
        self._reset(seed)
        buffers = self._buffers
        buffers.rewards[:] = self._array("rewards")
        buffers.terminals[:] = self._array("terminals")
        buffers.truncations[:] = self._array("truncations")
        buffers.present[:] = self._present()
        self._running[:] = False
        self._write_observations()

    def step(self, actions: np.ndarray) -> Sequence[EpisodeInfo]:
        """Step all agents of the PufferLib object, and reset an emulated environment that ended."""
        result = self._env.step(actions)
        if failure := result_failure("step", result):
            raise failure
        buffers = self._buffers
        buffers.rewards[:] = self._array("rewards")
        buffers.terminals[:] = self._array("terminals")
        buffers.truncations[:] = self._array("truncations")
        # An agent that leaves in this step is absent now, but the step belongs to its episode.
        stepped = self._present() | self._running
        infos = list(self._reported(result[4])) if result[4] else ()
        if getattr(self._env, "done", False):
            buffers.terminals[:] = True
            self._reset(None)
        ended = buffers.terminals | buffers.truncations
        self._running = stepped & ~ended
        buffers.present[:] = stepped
        self._write_observations()
        return infos

    def render(self) -> Any:
        """Return a picture of the PufferLib environment, or True if it draws in its own window."""
        picture = self._env.render()
        if isinstance(picture, np.ndarray | list):
            array = np.asarray(picture)
            if array.ndim == 3 and array.dtype == np.uint8:
                return array
        return True

    def close(self) -> None:
        """Close the PufferLib environment object, if it has ``close``."""
        if callable(close := getattr(self._env, "close", None)):
            close()

    def _reset(self, seed: int | None) -> None:
        with raising_failure("failed in reset"):
            self._env.reset(**({} if seed is None else {"seed": seed}))
            self._array("rewards")

    def _array(self, name: str) -> np.ndarray:
        """Return an array of the environment object, such as its rewards, after checking its shape.

        Raises:
            ValueError: The array has another shape.
        """
        array = getattr(self._env, name)
        if np.shape(array) != (self.num_agents,):
            raise ValueError(f"{name}: expected {(self.num_agents,)}, found {np.shape(array)}")
        return array

    def _present(self) -> np.ndarray:
        """Return which agents are present in the PufferLib environment, a mask (n,) bool."""
        if getattr(self._env, "masks", None) is None:
            return np.ones(self.num_agents, bool)
        return np.asarray(self._array("masks"), bool)

    def _write_observations(self) -> None:
        """Copy the PufferLib environment's observations into the agents' buffers."""
        observations = np.asarray(self._env.observations)
        if self._packed is not None:
            packed = observations.view(self._packed).reshape(self.num_agents)
            observations = _unpacked(self._layout.spaces[0], packed)
        self._layout.write(observations, self._buffers.observations)

    def _reported(self, infos: Any) -> Iterable[EpisodeInfo]:
        """Yield reports of the metrics of ended episodes, from the ``infos`` of a step.

        Args:
            infos: List of dicts with means over several episodes, or the dict of an emulated
                environment, for episodes that end in this step.
        """
        if not isinstance(infos, Mapping):
            reports = [(-1, info) for info in infos]  # -1: see ``EpisodeInfo.agent``
        else:
            agents = getattr(self._env, "possible_agents", None)
            ended = self._buffers.terminals | self._buffers.truncations
            reports = [
                (index, infos if agents is None else infos.get(agents[index], {}))
                for index in np.flatnonzero(ended).tolist()
            ]
        for index, info in reports:
            if metrics := mean_metrics(info):
                yield EpisodeInfo(index, metrics)


# ---- Names ---------------------------------------------------------------------------------------


def ocean_names() -> list[str]:
    """Return the names of the installed PufferLib 3's environments, such as ``puffer_breakout``.

    Returns [] if PufferLib isn't installed.
    """
    spec = importlib.util.find_spec("pufferlib")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        path = Path(folder, "ocean", "environment.py")
        if path.is_file():
            return sorted(
                _NAME_START + key for key in _table_keys(path.read_text(encoding="utf-8"))
            )
    return []


def find_ocean(name: str) -> Callable[..., Any]:
    """Return the constructor of ``pufferlib:NAME``: a class, or a function that emulates one.

    Args:
        name: NAME, such as ``puffer_breakout``.

    Raises:
        UserError: PufferLib isn't installed, has no such environment, or can't import it.
    """
    names = ocean_names()
    if not names:
        raise UserError(
            f"{PREFIX}{name}: PufferLib 3 isn't installed",
            "pip install 'puffer-mlx[pufferlib]', in a separate environment: docs/install.md",
        )
    if name not in names:
        full_name = name if name.startswith(_NAME_START) else _NAME_START + name
        example = f"for example {PREFIX}{names[0]}; puffer-mlx list shows all"
        near = nearest(full_name, names, PREFIX) or example
        raise UserError(f"{PREFIX}{name}: PufferLib has no such environment", near)
    key = name.removeprefix(_NAME_START)
    try:
        factory = getattr(importlib.import_module(_MODULE), _TABLE_NAME)[key]
        if isinstance(factory, str):
            factory = getattr(importlib.import_module(f"pufferlib.ocean.{key}.{key}"), factory)
    except ENV_EXCEPTIONS as error:
        raise UserError(
            f"{PREFIX}{name} can't be imported: {describe_exception(error)}",
            "its C code is compiled when PufferLib is installed: was it?",
        ) from None
    return factory


def _table_keys(text: str) -> list[str]:
    """Read the environments' names from the source text of PufferLib's module that lists them."""
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if any(isinstance(each, ast.Name) and each.id == _TABLE_NAME for each in node.targets):
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            return [key for key in keys if isinstance(key, str)]
    return []
