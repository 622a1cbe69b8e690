"""PufferLib 3.x's Python environments: which objects they are, making them, and stepping one.

Nothing of PufferLib is imported: an environment is what looks like one. It has the attributes
``single_observation_space``, ``single_action_space`` and ``num_agents``, and writes what its agents
see and get into arrays ``observations, rewards, terminals, truncations, masks`` of its own or of a
dict ``buf`` that it was made with. ``masks`` says which agents are there; it is no action mask.

Two kinds differ in when an episode ends:

* native ones (``pufferlib.PufferEnv``) begin the next episode within the step that ends one, and
  never show the last observation;
* emulated ones (``pufferlib.emulation``) show it, set ``done`` and wait for a reset. Here they get
  it within the step too, so that both kinds give the same rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.episodes import means_of
from puffer_mlx.vec.instances import (
    Buffers,
    Fact,
    Recipe,
    Shapes,
    close_if_possible,
    parameters,
    tell_unclosed,
)
from puffer_mlx.vec.python_faults import failing, form_fault
from puffer_mlx.vec.spaces import kind_of

_ARRAYS = ("observations", "rewards", "terminals", "truncations")
_ATTRIBUTES = ("single_observation_space", "single_action_space", "num_agents")
_METHODS = ("reset", "step")
_OURS = ("buf", "seed")  # arguments that aren't the user's


def is_puffer_env(candidate: Any) -> bool:
    """Whether an object is an environment of PufferLib 3.x, its class or a function that makes one.

    Classes and functions are told by their parameter ``buf``, which PufferLib hands to all of them,
    or by a base class named PufferEnv.
    """
    if isinstance(candidate, type) and any(c.__name__ == "PufferEnv" for c in candidate.__mro__):
        return True
    if isinstance(candidate, type) or not hasattr(candidate, "single_observation_space"):
        return callable(candidate) and "buf" in parameters(candidate)
    return all(hasattr(candidate, name) for name in (*_ATTRIBUTES, *_ARRAYS, *_METHODS))


@dataclass
class PufferRecipe(Recipe):
    """How an environment is made, by its class or a function that returns one.

    Raises:
        UserError: ``make`` doesn't take one of the arguments.
    """

    finals: bool = field(default=False, init=False)
    _packing: tuple[Any, np.dtype] | None = field(default=None, init=False)  # space and dtype

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise UserError(
                f"{self.name}: it is an environment already, expected what makes one",
                "name its class, or a function that returns an environment",
            )
        known = parameters(self.make)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
        for key in self.keywords:
            if key in _OURS:
                raise UserError(f"{self.name}: env.{key} can't be set", "use vec.seed")
            if key not in known and not takes_any:
                raise self.unknown(key)

    def takes(self) -> list[str]:
        """Without those that aren't the user's."""
        return [name for name in parameters(self.make) if name not in _OURS]

    @property
    def scales(self) -> bool:
        """Whether one instance can hold as many environments as there shall be."""
        return "num_envs" in parameters(self.make) and "num_envs" not in self.keywords

    def vector_form(self) -> tuple[str, str]:
        """One that takes ``num_envs`` is its own vectorised form."""
        if "num_envs" in self.keywords:
            return "", "env.num_envs is given"
        return ("it takes num_envs", "") if self.scales else super().vector_form()

    def look(self, seed: int) -> None:
        """Make an instance, of one environment if it can have any number."""
        env = self.one(None, seed, 1 if self.scales else None)
        try:
            self.agents = int(env.num_agents)
            inside = self.keywords.get("num_envs", 1)
            if isinstance(inside, int) and inside > 0 and self.agents % inside == 0:
                self.environments = inside
            self._spaces = env.single_observation_space, env.single_action_space
            seen = self._spaces[0]
            packed = np.dtype(getattr(env, "obs_dtype", np.uint8))
            if getattr(env, "is_obs_emulated", False) and packed.names is not None:
                # PufferLib's emulation packs the parts of a Dict or Tuple into bytes.
                seen = getattr(env, "env_single_observation_space", None)
                seen = env.env.observation_space if seen is None else seen
                self._packing = seen, packed
            self.layout = self.layout_of(seen, self._spaces[1])
        finally:
            tell_unclosed(self.name, close_if_possible(env))

    def unpack(self, observations: np.ndarray) -> Any:
        """What rows are written from, of an instance's observations."""
        if self._packing is None:
            return observations
        space, dtype = self._packing
        return _unpacked(space, observations.view(dtype).reshape(len(observations)))

    def shapes(self, n: int) -> Shapes:
        """Buffers are as the spaces have them."""
        space, action = self._spaces
        chosen = action.dtype if kind_of(action) == "Box" else np.int32
        return Buffers.shapes(n, (space.shape, space.dtype), (action.shape, chosen))

    def instance(
        self, buffers: Buffers, seed: int, num_envs: int | None, number: int
    ) -> "PufferInstance":
        """One whose agents write into ``buffers``."""
        arrays = {key: getattr(buffers, key) for key in (*_ARRAYS, "actions")}
        arrays["masks"] = buffers.present
        return PufferInstance(self.one(arrays, seed, num_envs, number), buffers, arrays)

    def buffered(self, actions: np.ndarray) -> Any:
        """They lie in the buffers as the space has them."""
        return self.layout.actions(actions)

    def actions(self, buffered: np.ndarray) -> np.ndarray:
        """Environments read the buffers."""
        return buffered

    def one(
        self,
        buf: dict[str, np.ndarray] | None,
        seed: int,
        num_envs: int | None = None,
        number: int = 0,
    ) -> Any:
        """One environment.

        Args:
            buf: arrays for it to write into; its own if None.
            seed: of its generator.
            num_envs: how many environments in it, if it ``scales``.
            number: of the instance, for messages.

        Raises:
            UserError: it can't be made, or isn't such an environment.
        """
        arguments = dict(self.keywords)
        known = parameters(self.make)  # by name: what takes **kwargs may hand them on
        if num_envs is not None:
            arguments["num_envs"] = num_envs
        if self.render and "render_mode" in known:
            arguments.setdefault("render_mode", "rgb_array")
        arguments |= {key: value for key, value in (("buf", buf), ("seed", seed)) if key in known}
        with self.explained(number, seed - number):
            env = self.make(**arguments)
        missing = [key for key in (*_ATTRIBUTES, *_ARRAYS, *_METHODS) if not hasattr(env, key)]
        if missing:
            raise UserError(
                f"{self.name}: the {type(env).__qualname__} it made has no {', '.join(missing)}",
                "an environment of PufferLib 3.x has them; docs/writing_envs.md shows one",
            )
        return env


def _unpacked(space: Any, packed: np.ndarray) -> Any:
    """The parts of a structured array, (n,), nested as a space is."""
    kind = kind_of(space)
    if kind == "Dict":
        return {key: _unpacked(part, packed[key]) for key, part in space.spaces.items()}
    if kind == "Tuple":
        return tuple(_unpacked(part, packed[f"f{i}"]) for i, part in enumerate(space.spaces))
    return packed


class PufferInstance:
    """An environment, or as many in one as it was made with.

    Args:
        env: the environment.
        buffers: of its agents.
        buf: what it was given to write into.
    """

    def __init__(self, env: Any, buffers: Buffers, buf: dict[str, np.ndarray]) -> None:
        self._env, self._buffers = env, buffers
        self._shown = [(name, buf[name]) for name in (*_ARRAYS, "masks")]
        self._begun: list[np.ndarray] = []  # what a reset within the last step wrote, see ``step``
        self.num_agents = int(env.num_agents)

    def reset(self, seed: int | None = None) -> None:
        """Begin new episodes."""
        self._begun = []
        with failing("failed in reset"):
            self._env.reset(**({} if seed is None else {"seed": seed}))
            self._collect()

    def step(self, actions: np.ndarray) -> Sequence[Fact]:
        """A step of all agents, and the reset that an emulated one waits for.

        Of that only observations are shown now. The other arrays show the step, and get what the
        reset wrote before the next one: the environment may count on it.
        """
        if self._begun:
            for (_, target), begun in zip(self._shown[1:], self._begun, strict=True):
                target[:] = begun
            self._begun = []
        result = self._env.step(actions)
        if fault := form_fault("step", result):
            raise fault
        infos = result[4]
        self._collect()
        facts = list(self._facts(infos)) if infos else ()
        if getattr(self._env, "done", False):
            self._buffers.terminals[:] = True
            stepped = [target.copy() for _, target in self._shown[1:]]
            self.reset()
            self._begun = [target.copy() for _, target in self._shown[1:]]
            for (_, target), was in zip(self._shown[1:], stepped, strict=True):
                target[:] = was
        return facts

    def render(self) -> Any:
        """What it draws."""
        return self._env.render()

    def close(self) -> None:
        """Close it, if it can be closed."""
        if callable(close := getattr(self._env, "close", None)):
            close()

    def _collect(self) -> None:
        """Copy what the environment wrote elsewhere than into its buffers."""
        for name, target in self._shown:
            written = getattr(self._env, name, None)
            if written is target or written is None:
                continue
            if np.shape(written) != target.shape:
                raise ValueError(f"{name}: expected {target.shape}, found {np.shape(written)}")
            target[:] = written

    def _facts(self, infos: Any) -> Iterable[Fact]:
        """What a step's ``infos`` say: a list of dicts, or what emulation passes on."""
        if not isinstance(infos, Mapping):
            each = [(-1, info) for info in infos]
        else:
            agents = getattr(self._env, "possible_agents", None)
            ended = self._buffers.terminals | self._buffers.truncations
            each = [
                (place, infos if agents is None else infos.get(agents[place], {}))
                for place in np.flatnonzero(ended).tolist()
            ]
        for place, info in each:
            if numbers := means_of(info):
                yield Fact(place, numbers)
