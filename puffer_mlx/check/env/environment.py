"""Create a few copies of the checked environment and step them with random actions."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from puffer_mlx import vec
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.games import without_statistics
from puffer_mlx.vec.base import TRUNCATED, HasExactObservations, Rows, ScoredVec, VecEnv
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import allocate_rows, random_actions

NATIVE_ENVIRONMENTS, PYTHON_ENVIRONMENTS = 64, 16  # environments to create
FEWEST = 4  # enough to divide among threads and groups
MOST_BYTES = 64 << 20  # largest size of float32 observations, which are copied a few times
LEAST = 20  # minimum steps, even in slow environments
LEAST_PLAYED, MOST_PLAYED = 500, 20_000  # steps of every agent in the shared random play
PLAY_TIMEOUT = 20.0  # seconds, even with fewer steps
KEPT = 512  # maximum number of first rows, and of episode lengths
LOG_INTERVAL = 256  # steps


class EnvUnderTest:
    """The environment to check.

    Args:
        given: Configuration as for training.
        seconds: Time to play for each item, in seconds.
        cores: Number of available threads.

    Attributes:
        config: The configuration without normalization, to check raw values.
    """

    def __init__(self, given: Config, seconds: float, cores: int) -> None:
        self.given = given
        self.config = without_statistics(given)
        self.seconds = seconds
        self.cores = cores

    @cached_property
    def full(self) -> VecEnv:
        """The environments as training creates them, closed."""
        vec.settle_family(self.given)
        self.config = without_statistics(self.given)
        with vec.make(self.config, self.cores) as environments:
            return environments

    @property
    def native(self) -> bool:
        """True for an environment in C."""
        return isinstance(self.full, NativeVec)

    @property
    def agents_each(self) -> float:
        """Mean number of agents per environment."""
        return self.full.num_agents / self.full.num_environments

    @cached_property
    def observed(self) -> "Observed":
        """Statistics of one random play, shared by most items."""
        with self.make() as environments:
            return play(environments, self.seconds)

    def small_config(
        self, count: int = 0, *, groups: int = 1, threads: int = 1, seed: int = -1
    ) -> Config:
        """Return the configuration of a few environments.

        The number of agents is even, for two groups, if environments differ in their agents.

        Args:
            count: Number of environments. 0: the default, reduced for large observations.
            groups: Number of groups Q.
            threads: Number of threads that step the environments.
            seed: Seed of the first environment. -1: seed of the configuration.
        """
        each = self.agents_each
        most = NATIVE_ENVIRONMENTS if self.native else PYTHON_ENVIRONMENTS
        fitting = int(MOST_BYTES / (4 * self.full.spec.observation_size * each)) // 2 * 2
        agents = (count or max(FEWEST, min(most, fitting))) * each
        settings = self.config.vec
        processes = "async" in (settings.backend, self.full.description[:5])
        changed = replace(
            settings,
            total_agents=round(agents) if agents.is_integer() else 2 * round(agents / 2),
            num_buffers=groups,
            num_threads=threads,
            max_threads=threads,
            seed=settings.seed if seed < 0 else seed,
            # Processes cost more to start than a few environments to step.
            backend="sync" if processes and self.config.python else settings.backend,
        )
        return replace(self.config, vec=changed)

    def steps(self, most: int) -> Iterator[int]:
        """Yield 1 to ``most``, but stop after ``seconds`` and at least 20 steps."""
        began = time.perf_counter()
        for step in range(1, most + 1):
            if step > LEAST and time.perf_counter() - began > self.seconds:
                return
            yield step

    @contextmanager
    def make(self, **options: int) -> Iterator[ScoredVec]:
        """Create a few environments; close them at the end. ``options`` as in ``small_config``."""
        config = self.small_config(**options)
        try:
            environments = vec.make(config, config.vec.num_threads)
        except UserError:  # too few for environments with different numbers of agents
            more = replace(config.vec, total_agents=self.config.vec.total_agents)
            environments = vec.make(replace(config, vec=more), config.vec.num_threads)
        with environments:
            yield environments


class RandomRollout:
    """Step all agents of vectorized environments together with random actions.

    Args:
        environments: The environments.
        seed: Seed of the actions.
        reset: Reset the environments.
    """

    def __init__(self, environments: VecEnv, seed: int = 0, reset: bool = True) -> None:
        self.vec = environments
        self.rows = allocate_rows(environments, environments.num_agents)
        self._rng = np.random.default_rng(seed)
        self._n = environments.num_agents // environments.num_groups
        if reset:
            environments.reset(self.rows)

    def actions(self) -> np.ndarray:
        """Return random actions (N, heads) float32 that the masks allow."""
        return random_actions(self.vec, self.vec.num_agents, self._rng, self.rows.masks)

    def step(self, actions: np.ndarray | None = None) -> Rows:
        """Step all groups with actions (N, heads). Returns the rows of all agents."""
        actions = self.actions() if actions is None else actions
        for group in range(self.vec.num_groups):
            mine = slice(group * self._n, (group + 1) * self._n)
            self.vec.send(group, actions[mine], self.rows.select(mine))
        for group in range(self.vec.num_groups):
            self.vec.wait(group)
        return self.rows

    def observations(self) -> np.ndarray:
        """Return the observations of all agents, (N, D), in float64 if float32 would round them."""
        exact = None
        if isinstance(self.vec, HasExactObservations):
            exact = self.vec.exact_observations(slice(0, self.vec.num_agents))
        return self.rows.observations if exact is None else exact


@dataclass
class Observed:
    """Statistics of a random play of N agents.

    Args:
        started: Rows after the reset, (N, D) float32.
        low: Minimum of each observation element, (D,).
        high: Maximum of each observation element, (D,).
        absent: Agents absent in the latest row, (N,) bool.
        age: Steps in the episode of each agent, (N,) int.
        fresh: Rows (D,) float32 that arrived with a terminal.
        before: Rows one step before ``fresh``.
        moved: Pairs of successive rows within an episode, (2, D) each.
        not_finite: First observation that isn't finite: (step, agent, element).
        nothing_legal: First agent without a legal choice: (step, agent, head).
        masked: Number of masked choices.
        choices: Total number of choices.
        rewards: Rewards of each step, (N,) float32.
        terminals: Number of terminals.
        ended: (steps, truncated) of episodes whose last observation is known.
        lengths: Steps between terminals.
        logs: Non-empty results of ``log``.
        steps: Steps of every agent.
        seconds: Duration of the play.
    """

    started: np.ndarray
    low: np.ndarray
    high: np.ndarray
    absent: np.ndarray
    age: np.ndarray
    fresh: list[np.ndarray] = field(default_factory=list)
    before: list[np.ndarray] = field(default_factory=list)
    moved: list[np.ndarray] = field(default_factory=list)
    not_finite: tuple[int, int, int] | None = None
    nothing_legal: tuple[int, int, int] | None = None
    masked: int = 0
    choices: int = 0
    rewards: list[np.ndarray] = field(default_factory=list)
    terminals: int = 0
    ended: list[tuple[int, bool]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    logs: list[dict[str, float]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0

    @property
    def agents(self) -> int:
        """Number of agents N."""
        return len(self.age)

    def add_observations(self, x: np.ndarray) -> None:
        """Add the observations of all agents, (N, D)."""
        np.minimum(self.low, x.min(0), out=self.low)
        np.maximum(self.high, x.max(0), out=self.high)
        if self.not_finite is None and x.dtype != np.uint8 and not np.isfinite(x.sum()):
            # Empty if only the sum overflowed.
            for agent, element in np.argwhere(~np.isfinite(x))[:1]:
                self.not_finite = self.steps, int(agent), int(element)

    def add_masks(self, masks: np.ndarray | None, sizes: tuple[int, ...]) -> None:
        """Add the masks of all agents, (N, sum of sizes), or None."""
        if masks is None:
            return
        self.choices += masks.size
        self.masked += int(masks.size - np.count_nonzero(masks))
        for head, legal in enumerate(np.split(masks != 0, np.cumsum(sizes)[:-1], axis=1)):
            some = legal.any(1)
            if self.nothing_legal is None and not some.all():
                self.nothing_legal = self.steps, int(np.argmin(some)), head

    def add_ends(self, rows: Rows, before: np.ndarray) -> None:
        """Add ended episodes. ``finals`` marks last observations, one step before the first."""
        absent = np.zeros(self.agents, bool)  # until their environment is reset
        if rows.finals is not None:
            absent = (rows.finals > 0) & (rows.terminals > 0)
            for agent in np.flatnonzero((rows.finals > 0) & ~absent):
                self.ended.append((int(self.age[agent]), bool(rows.finals[agent] == TRUNCATED)))
        over = np.flatnonzero(rows.terminals)
        self.terminals += int(np.count_nonzero(~self.absent[over]))
        for agent in over:
            if len(self.lengths) < KEPT and not self.absent[agent]:
                self.lengths.append(int(self.age[agent]) - (rows.finals is not None))
            if len(self.fresh) < KEPT and not absent[agent]:
                self.fresh.append(rows.observations[agent].astype(np.float32))
                self.before.append(before[agent].astype(np.float32))
        agent = self.steps % self.agents
        if not rows.terminals[agent] and len(self.moved) < KEPT:
            pair = before[agent], rows.observations[agent]
            self.moved.append(np.stack(pair).astype(np.float32))
        self.age[over] = 0
        self.absent = absent


def play(environments: ScoredVec, seconds: float) -> Observed:
    """Play for ``seconds``, at least ``LEAST_PLAYED`` and at most ``MOST_PLAYED`` steps."""
    rollout = RandomRollout(environments)
    x = rollout.observations().astype(np.float64)
    agents = environments.num_agents
    sizes = environments.spec.action.sizes
    started = rollout.rows.observations.astype(np.float32)
    absent = np.zeros(agents, bool)
    age = np.zeros(agents, int)
    observed = Observed(started, x.min(0), x.max(0), absent, age)
    observed.add_observations(rollout.observations())
    observed.add_masks(rollout.rows.masks, sizes)
    environments.log()  # discard earlier episodes
    began = time.perf_counter()
    while observed.steps < MOST_PLAYED:
        observed.seconds = time.perf_counter() - began
        if observed.seconds > (seconds if observed.steps >= LEAST_PLAYED else PLAY_TIMEOUT):
            break
        before = rollout.rows.observations.copy()
        rows = rollout.step()
        observed.steps += 1
        observed.age += 1
        observed.add_observations(rollout.observations())
        observed.rewards.append(rows.rewards.copy())
        observed.add_masks(rows.masks, sizes)
        observed.add_ends(rows, before)
        if observed.steps % LOG_INTERVAL == 0 and (log := environments.log()):
            observed.logs.append(log)
    if log := environments.log():
        observed.logs.append(log)
    return observed
