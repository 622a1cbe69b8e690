"""Making PufferLib 3.x's Python environments: which objects they are, and what they take.

Nothing of PufferLib is imported: an environment is what looks like one. It has the attributes
``single_observation_space``, ``single_action_space`` and ``num_agents``, and writes what its agents
see and get into arrays ``observations, rewards, terminals, truncations, masks`` of its own or of a
dict ``buf`` that it was made with. ``masks`` says which agents are there; it is no action mask.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.instances import Buffers
from puffer_mlx.vec.puffer.instance import ARRAYS, PufferInstance, buffer_for
from puffer_mlx.vec.python_faults import RAISED, Fault, told

_ATTRIBUTES = ("single_observation_space", "single_action_space", "num_agents")
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
    return all(hasattr(found, name) for name in (*_ATTRIBUTES, *ARRAYS, *_METHODS))


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

    def instance(
        self, buffers: Buffers, seed: int, num_envs: int | None, number: int
    ) -> PufferInstance:
        """One whose agents write into ``buffers``: see ``Makes``."""
        buf = buffer_for(buffers)
        return PufferInstance(self(buf, seed, num_envs, number), buffers, buf)

    def actions(self, buffered: np.ndarray) -> np.ndarray:
        """They are in the buffers as the space has them."""
        return buffered

    def __call__(
        self,
        buf: dict[str, np.ndarray] | None = None,
        seed: int = 0,
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
        known = _parameters(self.make)  # by name: what takes **kwargs may hand them on
        if num_envs is not None:
            arguments["num_envs"] = num_envs
        if self.render and "render_mode" in known:
            arguments.setdefault("render_mode", "rgb_array")
        arguments |= {key: value for key, value in (("buf", buf), ("seed", seed)) if key in known}
        try:
            made = self.make(**arguments)
        except RAISED as error:
            failed = Fault("failed when it was made", told(error), number)
            raise failed.report(self.name, 0, seed - number) from error
        missing = [key for key in (*_ATTRIBUTES, *ARRAYS, *_METHODS) if not hasattr(made, key)]
        if missing:
            raise UserError(
                f"{self.name}: the {type(made).__qualname__} it made has no {', '.join(missing)}",
                "an environment of PufferLib 3.x has them; docs/writing_envs.md shows one",
            )
        return made


def _parameters(make: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # built in, or none at all
        return {}
