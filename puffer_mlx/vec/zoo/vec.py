"""PettingZoo's parallel environments as a ``VecEnv``: A agents each, one policy for all.

Environments step one after another, or in several processes. Environment i is reset with
``seed + i``.

**Last observations** have rows of their own always (``finals``). When the last agent of an
environment is done, the next step begins its next episode.

**Agents that are away** because they died before the others have rows of zeros, terminal 1,
``TERMINATED`` in ``finals`` and reward 0, until their environment begins anew: so nothing is
learned from these rows, and no value flows through them. They are no part of an episode.
"""

from collections.abc import Mapping
from typing import Any

from puffer_mlx.vec.python_vec import PythonVec
from puffer_mlx.vec.zoo.make import ZooRecipe

__all__ = ["ZooVec"]


class ZooVec(PythonVec):
    """N agents of parallel environments in Q groups; implements ``ScoredVec``.

    Args:
        make: what makes an environment (``zoo.make``).
        name: of the environment, for messages.
        total_agents: N, a multiple of Q and of the agents of one environment.
        env: further arguments of ``make``.
        render: make environments that can ``render``.
        rescale_actions: a continuous action's -1 to 1 is the low to high of its bounds.
        settings: the others of ``PythonVec``.

    Raises:
        UserError: the environment can't be made, its agents differ, or don't add up to N.
    """

    def __init__(
        self,
        make: Any,
        *,
        name: str,
        total_agents: int,
        env: Mapping[str, Any] | None = None,
        render: bool = False,
        rescale_actions: bool = False,
        **settings: Any,
    ) -> None:
        recipe = ZooRecipe(name, make, dict(env or {}), render, rescale_actions)
        super().__init__(recipe, total_agents, **settings)
