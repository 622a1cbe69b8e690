"""What PufferLib's and PettingZoo's environments share: ``Here`` or ``Workers`` step each group."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.episodes import Episodes
from puffer_mlx.vec.finite import check_finite
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.puffer.backends import Plan
from puffer_mlx.vec.puffer.workers import Here, Workers
from puffer_mlx.vec.python_vec import PythonVec
from puffer_mlx.vec.rows import RowShapes


class InWorkers(PythonVec[Here | Workers, Rows]):
    """The part of ``ScoredVec`` that ``PufferVec`` and ``ZooVec`` share; they set what is named.

    Args:
        name: of the environment, for messages.
        agents: N.
        groups: Q.
        threads: that may act for the policy in ``collect``.
        seed: of environment 0.
    """

    backend: str
    layout: Layout
    _seeds: Sequence[int]  # of each environment

    def __init__(self, name: str, agents: int, groups: int, threads: int, seed: int) -> None:
        self._envs, self._under_way = [], [None] * groups
        self.unread: list[str] = []  # an argument that ``make`` doesn't take is an error
        self.num_agents, self.num_groups, self.num_threads = agents, groups, threads
        self._n = agents // groups  # agents of a group
        self._name, self._seed, self._resets = name, seed, 0

    def _build(self, plan: Plan, layout: Layout, buffers: Any, agents: int, timeout: float) -> None:
        """Make the environments.

        Args:
            plan: how a group steps.
            layout: of rows.
            buffers: of a group: ``Buffers.layout``.
            agents: of one environment.
            timeout: seconds after which an environment's process hangs.
        """
        self.layout, self.spec = layout, layout.spec
        self._rows = RowShapes(self.spec, self._n)
        self._all_rows = RowShapes(self.spec, self.num_agents)
        self.backend, self.description = plan.form, plan.describe(self.num_groups)
        self._per_environment = agents
        self.num_environments = self.num_agents // agents
        self._episodes = Episodes(self.num_agents, agents)
        with self._closing_on_failure():
            for group in range(self.num_groups):
                self._envs.append(plan.build(buffers, group, self._seed, timeout))

    def reset(self, out: Rows) -> None:
        """Start new episodes for all N agents; write their first rows, rewards and terminals 0.

        Waits for steps under way. The k-th time (from 0), environment i gets the seed
        ``seed + i + k * num_environments``.
        """
        self._all_rows.check(out)
        for group in range(self.num_groups):
            self.wait(group)
        seed = self._seed + self._resets * self.num_environments
        out.rewards[:] = 0
        out.terminals[:] = 0
        self._episodes.restart()
        self._resets += 1
        for group, env in enumerate(self._envs):
            with self._closing_on_failure():
                env.reset(seed)
                self._begin_episodes(group, out.part(self._agents(group)))

    @abstractmethod
    def _begin_episodes(self, group: int, out: Rows) -> None:
        """A group was reset: write its first rows."""

    def busy_seconds(self) -> float:
        """Seconds spent inside environment steps since creation, all processes together."""
        return sum(env.seconds for env in self._envs)

    def _agents(self, group: int) -> slice:
        return slice(group * self._n, (group + 1) * self._n)

    def _check_finite(self, group: int, out: Rows) -> None:
        first = group * self._n // self._per_environment
        check_finite(
            self._name, out.observations, out.rewards, first, self._seeds, self._per_environment
        )
