"""The environment that is looked at: makes a few of it, and steps them with random actions."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

from puffer_mlx import vec
from puffer_mlx.check.env.random_play import Notes, play
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.playing.matches import without_statistics
from puffer_mlx.vec.base import ScoredVec, VecEnv
from puffer_mlx.vec.native.vec import NativeVec

NATIVE_ENVIRONMENTS, PYTHON_ENVIRONMENTS = 64, 16  # of which few are made
FEWEST = 4  # that threads and groups can share
MOST_BYTES = 64 << 20  # of observations as float32, of which a few copies are kept
LEAST = 20  # steps, however slow


class Subject:
    """An environment by its configuration.

    Args:
        config: as for training; but nothing is normalised: what comes is looked at.
        seconds: how long to play for each thing that needs playing.
        cores: threads there are.
    """

    def __init__(self, config: Config, seconds: float, cores: int) -> None:
        self._asked = config
        self.config = without_statistics(config)
        self.seconds = seconds
        self.cores = cores

    @cached_property
    def whole(self) -> "Facts":
        """What the environments, made as for training, say of themselves."""
        vec.settle_family(self._asked)
        self.config = without_statistics(self._asked)
        with vec.make(self.config, self.cores) as environments:
            return Facts(environments)

    @cached_property
    def notes(self) -> Notes:
        """What is noted of playing it once, which most items read."""
        return play(self.make, self.seconds, self.config.train.reward_clip)

    @property
    def normalized(self) -> tuple[bool, bool]:
        """Whether training would normalise observations, and rewards."""
        assert self.whole  # the configuration is settled by that
        settings = self._asked.vec
        return settings.normalize_observations, settings.normalize_rewards

    @property
    def native(self) -> bool:
        """Whether it is a folder of C."""
        return self.whole.native

    def few(self, count: int = 0, *, groups: int = 1, threads: int = 1, seed: int = -1) -> Config:
        """The configuration of fewer environments.

        Args:
            count: how many; 0: as many as say something, fewer where they are of many agents that
                see much.
            groups: Q.
            threads: that step them.
            seed: of the first; -1: that of the configuration.
        """
        agents = self._agents(count or self._enough())  # the configuration is settled by that
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
        """Environments that say something, and that memory has room for."""
        each = 4 * self.whole.spec.observation_size * self.whole.agents_each
        most = NATIVE_ENVIRONMENTS if self.native else PYTHON_ENVIRONMENTS
        return max(FEWEST, min(most, int(MOST_BYTES / each) // 2 * 2))  # for two groups

    def _agents(self, count: int) -> int:
        """Of so many environments; even, if they aren't all alike: for two groups."""
        agents = count * self.whole.agents_each
        return round(agents) if agents.is_integer() else 2 * round(agents / 2)

    def _backend(self) -> str:
        """Without processes, which take longer to begin than a few environments to step."""
        chosen = self.config.vec.backend
        processes = chosen == "async" or self.whole.description.startswith("async")
        return "sync" if processes and self.config.python else chosen

    def steps(self, most: int) -> Iterator[int]:
        """Count from 1 to ``most``, or to what ``seconds`` allow; the first 20 in any case."""
        began = time.perf_counter()
        for step in range(1, most + 1):
            if step > LEAST and time.perf_counter() - began > self.seconds:
                return
            yield step

    @contextmanager
    def make(self, **options: int) -> Iterator[ScoredVec]:
        """A few of them, closed at the end; ``options`` as for ``few``."""
        config = self.few(**options)
        try:
            environments = vec.make(config, config.vec.num_threads)
        except UserError:  # so few can't be: environments of different numbers of agents
            more = replace(config.vec, total_agents=self.config.vec.total_agents)
            environments = vec.make(replace(config, vec=more), config.vec.num_threads)
        with environments:
            yield environments


class Facts:
    """What vectorised environments say of themselves, kept when they are closed."""

    def __init__(self, environments: VecEnv) -> None:
        self.spec = environments.spec
        self.native = isinstance(environments, NativeVec)
        self.num_agents = environments.num_agents
        self.num_environments = environments.num_environments
        self.agents_each = environments.num_agents / environments.num_environments
        self.unread = list(environments.unread)
        self.description = environments.description
        self.can_render = bool(getattr(environments, "can_render", False))
