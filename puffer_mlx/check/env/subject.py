"""Create a few environments to check and step them with random actions."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

from puffer_mlx import vec
from puffer_mlx.check.env.random_play import Notes, play
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.playing.games import without_statistics
from puffer_mlx.vec.base import ScoredVec, VecEnv
from puffer_mlx.vec.native.vec import NativeVec

NATIVE_ENVIRONMENTS, PYTHON_ENVIRONMENTS = 64, 16  # environments to create
FEWEST = 4  # enough to divide among threads and groups
MOST_BYTES = 64 << 20  # largest size of float32 observations, which are copied a few times
LEAST = 20  # minimum steps, even in slow environments


class Subject:
    """The environment to check.

    Args:
        config: Configuration as for training. Normalization is disabled, to check raw values.
        seconds: Time to play for each item, in seconds.
        cores: Number of available threads.
    """

    def __init__(self, config: Config, seconds: float, cores: int) -> None:
        self._asked = config
        self.config = without_statistics(config)
        self.seconds = seconds
        self.cores = cores

    @cached_property
    def whole(self) -> "Facts":
        """Facts about the environments as training creates them."""
        vec.settle_family(self._asked)
        self.config = without_statistics(self._asked)
        with vec.make(self.config, self.cores) as environments:
            return Facts(environments)

    @cached_property
    def notes(self) -> Notes:
        """Notes of one random play, shared by most items."""
        return play(self.make, self.seconds, self.config.train.reward_clip)

    @property
    def normalized(self) -> tuple[bool, bool]:
        """Pair of bools: training normalizes observations, training normalizes rewards."""
        assert self.whole  # settles the configuration
        settings = self._asked.vec
        return settings.normalize_observations, settings.normalize_rewards

    @property
    def native(self) -> bool:
        """True for an environment in C."""
        return self.whole.native

    def few(self, count: int = 0, *, groups: int = 1, threads: int = 1, seed: int = -1) -> Config:
        """Return the configuration of a few environments.

        Args:
            count: Number of environments. 0: the default number, reduced for large observations.
            groups: Number of groups Q.
            threads: Number of threads that step the environments.
            seed: Seed of the first environment. -1: seed of the configuration.
        """
        agents = self._agents(count or self._enough())  # settles the configuration
        settings = self.config.vec
        changed = replace(
            settings,
            total_agents=agents,
            num_buffers=groups,
            num_threads=threads,
            max_threads=threads,
            seed=settings.seed if seed < 0 else seed,
            backend=self._backend(),
        )
        return replace(self.config, vec=changed)

    def _enough(self) -> int:
        """Return a number of environments that is useful for checks and fits into memory."""
        each = 4 * self.whole.spec.observation_size * self.whole.agents_each
        most = NATIVE_ENVIRONMENTS if self.native else PYTHON_ENVIRONMENTS
        return max(FEWEST, min(most, int(MOST_BYTES / each) // 2 * 2))  # for two groups

    def _agents(self, count: int) -> int:
        """Return the number of agents in some environments.

        The number is even, for two groups, if environments have different numbers of agents.
        """
        agents = count * self.whole.agents_each
        return round(agents) if agents.is_integer() else 2 * round(agents / 2)

    def _backend(self) -> str:
        """Return a backend without processes, which start slowly."""
        chosen = self.config.vec.backend
        processes = chosen == "async" or self.whole.description.startswith("async")
        return "sync" if processes and self.config.python else chosen

    def steps(self, most: int) -> Iterator[int]:
        """Yield 1 to ``most``, but stop after ``seconds`` and at least 20 steps."""
        began = time.perf_counter()
        for step in range(1, most + 1):
            if step > LEAST and time.perf_counter() - began > self.seconds:
                return
            yield step

    @contextmanager
    def make(self, **options: int) -> Iterator[ScoredVec]:
        """Create a few environments and close them at the end; ``options`` as in ``few``."""
        config = self.few(**options)
        try:
            environments = vec.make(config, config.vec.num_threads)
        except UserError:  # too few for environments with different numbers of agents
            more = replace(config.vec, total_agents=self.config.vec.total_agents)
            environments = vec.make(replace(config, vec=more), config.vec.num_threads)
        with environments:
            yield environments


class Facts:
    """Properties of vectorized environments, available after they are closed."""

    def __init__(self, environments: VecEnv) -> None:
        self.spec = environments.spec
        self.native = isinstance(environments, NativeVec)
        self.num_agents = environments.num_agents
        self.num_environments = environments.num_environments
        self.agents_each = environments.num_agents / environments.num_environments
        self.unread = list(environments.unread)
        self.description = environments.description
        self.can_render = bool(getattr(environments, "can_render", False))
