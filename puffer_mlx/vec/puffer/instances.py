"""PufferLib 3.x's Python environments: which objects they are, how they are made and stepped.

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

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.python_faults import RAISED, Fault, told
from puffer_mlx.vec.spaces import kind_of

__all__ = ["Buffers", "Fact", "Instances", "PufferRecipe", "is_puffer_env"]

_ATTRIBUTES = ("single_observation_space", "single_action_space", "num_agents")
_ARRAYS = ("observations", "rewards", "terminals", "truncations")
_SHARED = (*_ARRAYS, "masks", "actions")
_METHODS = ("reset", "step")
_OURS = ("buf", "seed")  # arguments that aren't the user's


def is_puffer_env(found: Any) -> bool:
    """Whether an object is an environment of PufferLib 3.x, its class or a function that makes one.

    Classes and functions are told by their parameter ``buf``, which PufferLib hands to all of them,
    or by a base class named PufferEnv.
    """
    if isinstance(found, type) and any(c.__name__ == "PufferEnv" for c in found.__mro__):
        return True
    if isinstance(found, type) or not hasattr(found, "single_observation_space"):
        return callable(found) and "buf" in _parameters(found)
    return all(hasattr(found, name) for name in (*_ATTRIBUTES, *_ARRAYS, *_METHODS))


class Buffers(NamedTuple):
    """What n agents share with their environments, C-contiguous arrays, and what came of a step."""

    observations: np.ndarray  # (n, ...) as the space
    rewards: np.ndarray  # (n,) float32
    terminals: np.ndarray  # (n,) bool
    truncations: np.ndarray  # (n,) bool
    masks: np.ndarray  # (n,) bool
    actions: np.ndarray  # (n, ...) int32, or as the space for continuous actions
    # ours: what the arrays above were before environments that wanted it were reset
    paid: np.ndarray  # (n,) float32
    ended: np.ndarray  # (n,) bool
    there: np.ndarray  # (n,) bool

    def part(self, agents: slice) -> "Buffers":
        """Those of some agents."""
        return Buffers(*(array[agents] for array in self))

    @staticmethod
    def layout(n: int, observation: Any, action: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shapes and dtypes for n agents with these spaces."""
        chosen = action.dtype if kind_of(action) == "Box" else np.int32
        return {
            "observations": ((n, *observation.shape), observation.dtype),
            "rewards": ((n,), np.float32),
            "terminals": ((n,), np.bool_),
            "truncations": ((n,), np.bool_),
            "masks": ((n,), np.bool_),
            "actions": ((n, *action.shape), chosen),
            "paid": ((n,), np.float32),
            "ended": ((n,), np.bool_),
            "there": ((n,), np.bool_),
        }


class Fact(NamedTuple):
    """What an environment told: of the episode that ``agent`` just ended, or (-1) of several."""

    agent: int  # its place in the group
    numbers: dict[str, float]


@dataclass
class PufferRecipe:
    """How an environment is made.

    Args:
        name: for messages.
        make: the environment's class, or a function that returns one.
        keywords: its further arguments.
        render: make it with ``render_mode="rgb_array"``, if it takes one.

    Raises:
        UserError: ``make`` doesn't take one of the arguments.
    """

    name: str
    make: Callable[..., Any]
    keywords: dict[str, Any] = field(default_factory=dict)
    render: bool = False

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise UserError(
                f"{self.name}: it is an environment already, expected what makes one",
                "name its class, or a function that returns an environment",
            )
        known = _parameters(self.make)
        for key in self.keywords:
            if key in _OURS:
                raise UserError(f"{self.name}: env.{key} can't be set", "use vec.seed")
            if not self.takes(key):
                takes = ", ".join(name for name in known if name not in _OURS)
                raise UserError(
                    f"{self.name}: it takes no env.{key}",
                    f"it takes {takes}" if takes else "leave it out",
                )

    def takes(self, key: str) -> bool:
        """Whether it has this parameter."""
        known = _parameters(self.make)
        return key in known or any(p.kind is p.VAR_KEYWORD for p in known.values())

    @property
    def scales(self) -> bool:
        """Whether one instance can hold as many environments as there shall be."""
        return "num_envs" in _parameters(self.make) and "num_envs" not in self.keywords

    def __call__(
        self, buffers: Buffers | None, seed: int, num_envs: int | None = None, number: int = 0
    ) -> Any:
        """One instance.

        Args:
            buffers: for it to write into; its own if None.
            seed: of its generator.
            num_envs: how many environments in it, if it ``scales``.
            number: of the instance, for messages.

        Raises:
            UserError: it can't be made, or isn't such an environment.
        """
        arguments = dict(self.keywords)
        known = _parameters(self.make)  # by name: what takes **kwargs may hand them on
        if num_envs is not None:
            arguments["num_envs"] = num_envs
        if self.render and "render_mode" in known:
            arguments.setdefault("render_mode", "rgb_array")
        buf = None if buffers is None else {key: getattr(buffers, key) for key in _SHARED}
        arguments |= {key: value for key, value in (("buf", buf), ("seed", seed)) if key in known}
        try:
            made = self.make(**arguments)
        except RAISED as error:
            failed = Fault("failed when it was made", told(error), number)
            raise failed.report(self.name, 0, seed - number) from error
        missing = [key for key in (*_ATTRIBUTES, *_ARRAYS, *_METHODS) if not hasattr(made, key)]
        if missing:
            raise UserError(
                f"{self.name}: the {type(made).__qualname__} it made has no {', '.join(missing)}",
                "an environment of PufferLib 3.x has them; docs/writing_envs.md shows one",
            )
        return made


class Instances:
    """Environments that step one after another, each with some of the n agents of a group.

    Args:
        recipe: how they are made.
        buffers: of the n agents; they are written when the environments are stepped.
        count: of environments' instances.
        num_envs: of each, or None: see ``PufferRecipe``.
        seed: of instance 0 of all groups.
        number: of the first instance here.

    Raises:
        UserError: they can't be made, or have other numbers of agents than expected.
    """

    def __init__(
        self,
        recipe: PufferRecipe,
        buffers: Buffers,
        count: int,
        num_envs: int | None,
        seed: int,
        number: int,
    ) -> None:
        self._recipe, self._seed, self._number = recipe, seed, number
        self._buffers = buffers
        self.environments: list[Any] = []
        n = len(buffers.rewards) // count
        self._agents = [slice(i * n, (i + 1) * n) for i in range(count)]
        self._parts = [buffers.part(agents) for agents in self._agents]
        buffers.masks[:] = True
        try:
            for i, part in enumerate(self._parts):
                made = recipe(part, seed + number + i, num_envs, number + i)
                self.environments.append(made)
                if made.num_agents != n:
                    asked = "" if num_envs is None else f" with num_envs={num_envs}"
                    raise UserError(
                        f"{recipe.name}: made{asked} it has {made.num_agents} agents, expected {n}",
                        "all instances must have the same number, in proportion to num_envs",
                    )
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int) -> None:
        """Begin anew; instance i of all groups with ``seed + i``."""
        self._buffers.masks[:] = True
        for i, env in enumerate(self.environments):
            try:
                env.reset(seed=seed + self._number + i)
                self._collect(i)
            except RAISED as error:
                raise self._fault(i, "failed in reset", error) from error
        self._buffers.paid[:] = 0
        self._buffers.ended[:] = False

    def step(self) -> list[Fact]:
        """Take the actions in the buffers, and tell what the environments did."""
        buffers, facts = self._buffers, []
        waiting = []  # for a reset
        for i, env in enumerate(self.environments):
            part = self._parts[i]
            try:
                infos = env.step(part.actions)[4]
                self._collect(i)
            except RAISED as error:
                raise self._fault(i, "failed in step", error) from error
            if infos:
                facts += _facts(
                    infos, env, self._agents[i].start, part.terminals | part.truncations
                )
            if getattr(env, "done", False):
                waiting.append(i)
        buffers.paid[:] = buffers.rewards
        np.logical_or(buffers.terminals, buffers.truncations, out=buffers.ended)
        buffers.there[:] = buffers.masks
        for i in waiting:
            self._parts[i].ended[:] = True
            try:
                self.environments[i].reset()
                self._collect(i)
            except RAISED as error:
                raise self._fault(i, "failed in reset", error) from error
        return facts

    def render(self) -> Any:
        """What the first one draws."""
        return self.environments[0].render()

    def close(self) -> None:
        """Close all of them."""
        made, self.environments = self.environments, []
        for env in made:
            if hasattr(env, "close"):
                env.close()

    def _collect(self, i: int) -> None:
        """Copy what the environment wrote elsewhere than into its buffers."""
        env, part = self.environments[i], self._parts[i]
        for name in (*_ARRAYS, "masks"):
            target, found = getattr(part, name), getattr(env, name, None)
            if found is target or found is None:
                continue
            if np.shape(found) != target.shape:
                raise ValueError(f"{name}: expected {target.shape}, found {np.shape(found)}")
            target[:] = found

    def _fault(self, i: int, what: str, error: BaseException) -> UserError:
        return Fault(what, told(error), i).report(self._recipe.name, self._number, self._seed)


def _parameters(make: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # built in, or none at all
        return {}


def _facts(infos: Any, env: Any, first: int, ended: np.ndarray) -> Iterable[Fact]:
    """What a step's ``infos`` say: a list of dicts, or what emulation passes on."""
    if not isinstance(infos, Mapping):
        for info in infos:
            if numbers := _numbers(info):
                yield Fact(-1, numbers)
        return
    agents = getattr(env, "possible_agents", None)
    for place in np.flatnonzero(ended).tolist():
        info = infos if agents is None else infos.get(agents[place], {})
        if numbers := _numbers(info):
            yield Fact(first + place, numbers)


def _numbers(info: Any, outer: str = "") -> dict[str, float]:
    """Its numbers; means of lists; those of nested dicts as ``outer/inner``."""
    found: dict[str, float] = {}
    for key, value in info.items() if isinstance(info, Mapping) else ():
        if isinstance(value, Mapping):
            found |= _numbers(value, f"{outer}{key}/")
            continue
        try:
            array = np.asarray(value, np.float64)
        except (TypeError, ValueError):  # a text, or something else that is no number
            continue
        if array.size and not isinstance(value, str | bytes):
            found[f"{outer}{key}"] = float(array.mean())
    return found
