"""PufferLib 3.x's Python environments, stepped one after another.

Two kinds differ in when an episode ends:

* native ones (``pufferlib.PufferEnv``) begin the next episode within the step that ends one, and
  never show the last observation;
* emulated ones (``pufferlib.emulation``) show it, set ``done`` and wait for a reset. Here they get
  it within the step too, so that both kinds give the same rows.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.puffer.buffers import ARRAYS, Buffers
from puffer_mlx.vec.puffer.make import Makes
from puffer_mlx.vec.python_faults import RAISED, Fault, told


class Fact(NamedTuple):
    """What an environment told: of the episode that ``agent`` just ended, or (-1) of several."""

    agent: int  # its place in the group
    numbers: dict[str, float]


class Instances:
    """Environments that step one after another, each with some of the n agents of a group.

    Args:
        recipe: how they are made.
        buffers: of the n agents; they are written when the environments are stepped.
        count: of environments' instances.
        num_envs: of each, or None: see ``Makes``.
        seed: of instance 0 of all groups.
        number: of the first instance here.

    Raises:
        UserError: they can't be made, or have other numbers of agents than expected.
    """

    def __init__(
        self,
        recipe: Makes,
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
        for name in (*ARRAYS, "masks"):
            target, found = getattr(part, name), getattr(env, name, None)
            if found is target or found is None:
                continue
            if np.shape(found) != target.shape:
                raise ValueError(f"{name}: expected {target.shape}, found {np.shape(found)}")
            target[:] = found

    def _fault(self, i: int, what: str, error: BaseException) -> UserError:
        return Fault(what, told(error), i).report(self._recipe.name, self._number, self._seed)


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
