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
from puffer_mlx.evaluation.games import without_normalization
from puffer_mlx.vec.base import TRUNCATED, HasExactObservations, Rows, ScoredVec, VecEnv
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import allocate_rows, random_actions

MAX_NATIVE_ENVIRONMENTS = 64
MAX_PYTHON_ENVIRONMENTS = 16
MIN_ENVIRONMENTS = 4  # enough to divide among threads and groups
MAX_OBSERVATION_BYTES = 64 << 20  # of float32 observations, which are copied a few times
MIN_STEPS = 20  # even in slow environments
MIN_PLAY_STEPS = 500  # steps of every agent in the shared random play
MAX_PLAY_STEPS = 20_000
PLAY_TIMEOUT = 20.0  # seconds after which the play may end with fewer than MIN_PLAY_STEPS
MAX_SAMPLES = 512  # episode starts, episode lengths and pairs of rows to store
LOG_INTERVAL = 256  # steps


class EnvUnderTest:
    """An environment that the command ``check-env`` checks, with methods to create and play it.

    Args:
        training_config: Configuration as for training.
        seconds: Time to play for each check, in seconds.
        cores: Number of available threads.

    Attributes:
        config: The configuration without normalization, to check raw values.
    """

    def __init__(self, training_config: Config, seconds: float, cores: int) -> None:
        self.training_config = training_config
        self.config = without_normalization(training_config)
        self.seconds = seconds
        self.cores = cores

    @cached_property
    def full(self) -> VecEnv:
        """Environments with as many agents as in training, already closed. Used for properties."""
        vec.settle_family(self.training_config)
        self.config = without_normalization(self.training_config)
        with vec.make(self.config, self.cores) as environments:
            return environments

    @property
    def native(self) -> bool:
        """True if the checked environment is written in C."""
        return isinstance(self.full, NativeVec)

    @property
    def agents_each(self) -> float:
        """Mean number of agents in each of the checked environments."""
        return self.full.num_agents / self.full.num_environments

    @cached_property
    def observed(self) -> "PlayStatistics":
        """Statistics of one play with random actions, recorded once and used by most checks."""
        with self.make() as environments:
            return play_randomly(environments, self.seconds)

    def small_config(
        self, count: int = 0, *, groups: int = 1, threads: int = 1, seed: int = -1
    ) -> Config:
        """Return the checked environment's configuration, with only a few environments.

        If environments differ in their numbers of agents, the total is even, for two groups.

        Args:
            count: Number of environments. 0: the default, reduced for large observations.
            groups: Number of groups Q.
            threads: Number of threads that step the environments.
            seed: Seed of the first environment. -1: seed of the configuration.
        """
        agents_each = self.agents_each
        max_environments = MAX_NATIVE_ENVIRONMENTS if self.native else MAX_PYTHON_ENVIRONMENTS
        max_fitting = (
            int(MAX_OBSERVATION_BYTES / (4 * self.full.spec.observation_size * agents_each))
            // 2
            * 2
        )
        agents = (count or max(MIN_ENVIRONMENTS, min(max_environments, max_fitting))) * agents_each
        settings = self.config.vec
        processes = "async" in (settings.backend, self.full.description[:5])
        vec_settings = replace(
            settings,
            total_agents=round(agents) if agents.is_integer() else 2 * round(agents / 2),
            num_buffers=groups,
            num_threads=threads,
            max_threads=threads,
            seed=settings.seed if seed < 0 else seed,
            # Starting processes takes longer than stepping a few environments.
            backend="sync" if processes and self.config.python else settings.backend,
        )
        return replace(self.config, vec=vec_settings)

    def steps(self, max_steps: int) -> Iterator[int]:
        """Yield the numbers of the steps that a check plays: 1 to ``max_steps``, or fewer.

        It ends when ``seconds`` have passed, but not before step 20.
        """
        began = time.perf_counter()
        for step in range(1, max_steps + 1):
            if step > MIN_STEPS and time.perf_counter() - began > self.seconds:
                return
            yield step

    @contextmanager
    def make(self, **options: int) -> Iterator[ScoredVec]:
        """Create a few environments to check during a block. Options as in ``small_config``."""
        config = self.small_config(**options)
        try:
            environments = vec.make(config, config.vec.num_threads)
        except UserError:  # too few agents if environments differ in their numbers of agents
            more = replace(config.vec, total_agents=self.config.vec.total_agents)
            environments = vec.make(replace(config, vec=more), config.vec.num_threads)
        with environments:
            yield environments


class RandomRollout:
    """Step all agents of vectorized environments together with random actions.

    Args:
        environments: Environments to step.
        seed: Seed of the actions.
        reset: True to reset the environments first.
    """

    def __init__(self, environments: VecEnv, seed: int = 0, reset: bool = True) -> None:
        self.vec = environments
        self.rows = allocate_rows(environments, environments.num_agents)
        self._rng = np.random.default_rng(seed)
        self._n = environments.num_agents // environments.num_groups
        if reset:
            environments.reset(self.rows)

    def actions(self) -> np.ndarray:
        """Return random legal actions for all agents, (N, heads) float32."""
        return random_actions(self.vec, self.vec.num_agents, self._rng, self.rows.masks)

    def step(self, actions: np.ndarray | None = None) -> Rows:
        """Step all environments. Returns the rows of all agents.

        Args:
            actions: (N, heads) float32. None: random legal actions.
        """
        actions = self.actions() if actions is None else actions
        for group in range(self.vec.num_groups):
            agents = slice(group * self._n, (group + 1) * self._n)
            self.vec.send(group, actions[agents], self.rows.select(agents))
        for group in range(self.vec.num_groups):
            self.vec.wait(group)
        return self.rows

    def observations(self) -> np.ndarray:
        """Return the observations of all agents, (N, D): float64 where float32 would round."""
        exact = None
        if isinstance(self.vec, HasExactObservations):
            exact = self.vec.exact_observations(slice(0, self.vec.num_agents))
        return self.rows.observations if exact is None else exact


@dataclass
class PlayStatistics:
    """Statistics of N agents that played with random actions.

    Args:
        initial: Observations after the reset, (N, D) float32.
        low: Minimum of each observation element, (D,).
        high: Maximum of each observation element, (D,).
        absent: Agents that wait for their environment's reset, (N,) bool.
        episode_steps: Steps in the current episode of each agent, (N,) int.
        first_rows: Observations (D,) float32 that arrived with a terminal.
        last_rows: Observations one step before ``first_rows``.
        successive: Pairs of successive observations within an episode, (2, D) each.
        not_finite: First observation that isn't finite, (step, agent, element), or None.
        no_legal_choice: First agent without a legal choice, (step, agent, head), or None.
        masked: Number of masked choices.
        choices: Total number of choices.
        rewards: Rewards of each step, (N,) float32.
        terminals: Number of terminals.
        observed_ends: (steps, truncated) of episodes whose last observation is known.
        lengths: Steps between terminals.
        logs: Non-empty results of ``log``.
        steps: Steps of every agent.
        seconds: Duration of the play.
    """

    initial: np.ndarray
    low: np.ndarray
    high: np.ndarray
    absent: np.ndarray
    episode_steps: np.ndarray
    first_rows: list[np.ndarray] = field(default_factory=list)
    last_rows: list[np.ndarray] = field(default_factory=list)
    successive: list[np.ndarray] = field(default_factory=list)
    not_finite: tuple[int, int, int] | None = None
    no_legal_choice: tuple[int, int, int] | None = None
    masked: int = 0
    choices: int = 0
    rewards: list[np.ndarray] = field(default_factory=list)
    terminals: int = 0
    observed_ends: list[tuple[int, bool]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    logs: list[dict[str, float]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0

    @property
    def agents(self) -> int:
        """Number of agents N that played."""
        return len(self.episode_steps)

    def add_observations(self, x: np.ndarray) -> None:
        """Update the minima and maxima of observations, and record values that aren't finite."""
        np.minimum(self.low, x.min(0), out=self.low)
        np.maximum(self.high, x.max(0), out=self.high)
        if self.not_finite is None and x.dtype != np.uint8 and not np.isfinite(x.sum()):
            # argwhere is empty if only the sum overflowed.
            for agent, element in np.argwhere(~np.isfinite(x))[:1]:
                self.not_finite = self.steps, int(agent), int(element)

    def add_masks(self, masks: np.ndarray | None, sizes: tuple[int, ...]) -> None:
        """Update the statistics of action masks with those of one step.

        Args:
            masks: Masks of all agents, (N, sum of sizes), or None.
            sizes: Number of choices of each head.
        """
        if masks is None:
            return
        self.choices += masks.size
        self.masked += int(masks.size - np.count_nonzero(masks))
        for head, legal_choices in enumerate(np.split(masks != 0, np.cumsum(sizes)[:-1], axis=1)):
            has_legal = legal_choices.any(1)
            if self.no_legal_choice is None and not has_legal.all():
                self.no_legal_choice = self.steps, int(np.argmin(has_legal)), head

    def add_ends(self, rows: Rows, previous_observations: np.ndarray) -> None:
        """Update the statistics of episode ends with one step.

        With ``rows.final_observations`` an episode's last observation has a separate row, and the
        next episode's first observation follows one step later.

        Args:
            rows: Rows of the step.
            previous_observations: Observations of the previous step, (N, D).
        """
        absent = np.zeros(self.agents, bool)
        if rows.final_observations is not None:
            absent = (rows.final_observations > 0) & (rows.terminals > 0)
            for agent in np.flatnonzero((rows.final_observations > 0) & ~absent):
                self.observed_ends.append(
                    (
                        int(self.episode_steps[agent]),
                        bool(rows.final_observations[agent] == TRUNCATED),
                    )
                )
        ended_agents = np.flatnonzero(rows.terminals)
        self.terminals += int(np.count_nonzero(~self.absent[ended_agents]))
        for agent in ended_agents:
            if len(self.lengths) < MAX_SAMPLES and not self.absent[agent]:
                self.lengths.append(
                    int(self.episode_steps[agent]) - (rows.final_observations is not None)
                )
            if len(self.first_rows) < MAX_SAMPLES and not absent[agent]:
                self.first_rows.append(rows.observations[agent].astype(np.float32))
                self.last_rows.append(previous_observations[agent].astype(np.float32))
        agent = self.steps % self.agents
        if not rows.terminals[agent] and len(self.successive) < MAX_SAMPLES:
            rows_pair = previous_observations[agent], rows.observations[agent]
            self.successive.append(np.stack(rows_pair).astype(np.float32))
        self.episode_steps[ended_agents] = 0
        self.absent = absent


def play_randomly(environments: ScoredVec, seconds: float) -> PlayStatistics:
    """Play environments with random actions and return statistics of the play.

    Args:
        environments: Environments to play. They are reset here.
        seconds: Duration of the play, extended to ``MIN_PLAY_STEPS`` and cut at
            ``MAX_PLAY_STEPS`` steps.
    """
    rollout = RandomRollout(environments)
    x = rollout.observations().astype(np.float64)
    agents = environments.num_agents
    sizes = environments.spec.action.sizes
    initial = rollout.rows.observations.astype(np.float32)
    absent = np.zeros(agents, bool)
    episode_steps = np.zeros(agents, int)
    observed = PlayStatistics(initial, x.min(0), x.max(0), absent, episode_steps)
    observed.add_observations(rollout.observations())
    observed.add_masks(rollout.rows.masks, sizes)
    environments.log()  # discard the logs of earlier episodes
    began = time.perf_counter()
    while observed.steps < MAX_PLAY_STEPS:
        observed.seconds = time.perf_counter() - began
        if observed.seconds > (seconds if observed.steps >= MIN_PLAY_STEPS else PLAY_TIMEOUT):
            break
        previous_observations = rollout.rows.observations.copy()
        rows = rollout.step()
        observed.steps += 1
        observed.episode_steps += 1
        observed.add_observations(rollout.observations())
        observed.rewards.append(rows.rewards.copy())
        observed.add_masks(rows.masks, sizes)
        observed.add_ends(rows, previous_observations)
        if observed.steps % LOG_INTERVAL == 0 and (log := environments.log()):
            observed.logs.append(log)
    if log := environments.log():
        observed.logs.append(log)
    return observed
