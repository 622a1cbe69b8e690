"""Whole episodes of a policy and its weights, without a trainer, and their scores.

Agents act as in training: recurrent state is carried from step to step and, unless the policy
resets it on terminals, from episode to episode. The same environments (parameters, seed, agents)
and the same seed give the same result, bit for bit on a CPU.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.config.fit import MAX_STEPS as MAX_STEPS  # commands say it before MLX is there
from puffer_mlx.errors import UserError
from puffer_mlx.playing.frames import Draw, Frame
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system.mlx_memory import choose_cache_limit
from puffer_mlx.vec.base import Rows, ScoredVec
from puffer_mlx.vec.rows import allocate_rows

ENVIRONMENTS = 1024  # of C, at once at most
SEED_STRIDE = 1_000_003  # from one seed's environments to the next one's
PER_AGENT = 10  # episodes at least of each of several agents, on average

SCORES = "score", "episode_return", "perf"

Episode = dict[str, float]  # what the environment's my_log says of it; n episodes if they are means


class Spread(NamedTuple):
    """A number over episodes. ``std`` is the sample's (n - 1), 0 for one episode."""

    mean: float
    std: float
    median: float
    min: float
    max: float


@dataclass(frozen=True)
class Scores:
    """Episodes of an evaluation.

    Args:
        episodes: in order of environments, an environment's in order of time.
        environments: E.
        each: episodes of every environment that were asked for.
        unfinished: environments that ended fewer within the limit of steps.
        steps: of every agent.
        seconds: all of it took.
    """

    episodes: list[Episode]
    environments: int
    each: int
    unfinished: int
    steps: int
    seconds: float

    @property
    def count(self) -> int:
        """Episodes in all."""
        return sum(round(record["n"]) for record in self.episodes)

    def values(self, name: str) -> np.ndarray:
        """One number for each episode, (count,) float64."""
        times = [round(record["n"]) for record in self.episodes]
        return np.repeat([record[name] for record in self.episodes], times)

    @property
    def score(self) -> Spread:
        """The spread of the number that people read: see ``headline``.

        Raises:
            UserError: no episode ended.
        """
        summary = self.summary()
        if (name := headline(summary)) is None:
            raise UserError(f"no episode ended in {self.steps:,} steps", "a larger max_steps")
        return summary[name]

    def __str__(self) -> str:
        if not self.episodes:
            return f"no episode ended in {self.steps:,} steps"
        mean, std, _, low, high = self.score
        return f"score {mean:.4g} ± {std:.3g} ({low:.4g} to {high:.4g}), {self.count} episodes"

    def summary(self) -> dict[str, Spread]:
        """The spread of each number that all episodes have; empty if no episode ended."""
        if not self.episodes:
            return {}
        common = set.intersection(*(set(record) for record in self.episodes)) - {"env", "n"}
        summary = {}
        for name in self.episodes[0]:
            if name in common:
                x = self.values(name)
                std = np.std(x, ddof=1) if len(x) > 1 else 0.0
                numbers = (x.mean(), std, np.median(x), x.min(), x.max())
                summary[name] = Spread(*map(float, numbers))
        return summary


def headline(names: Iterable[str]) -> str | None:
    """The number of an evaluation that people read: its score, or the nearest to one.

    Of others the first; None if there is none.
    """
    known = list(names)
    return next((name for name in (*SCORES, *known) if name in known), None)


class Actor:
    """A policy that acts for n agents, with their recurrent states.

    Args:
        policy: as it was trained.
        weights: its weights.
        n: agents.
        seed: of the actions.
        greedy: take the most probable action instead of drawing one.
    """

    def __init__(self, policy: Policy, weights: Any, n: int, seed: int, greedy: bool) -> None:
        choose_cache_limit()
        self._policy, self._weights, self._n = policy, weights, n
        self._key = None if greedy else mx.random.key(seed)
        self._state = policy.initial_state(n)

    def choose(self, rows: Rows) -> np.ndarray:
        """Actions (n, heads) float32, C-contiguous."""
        noise = None
        if self._key is not None:
            self._key, key = mx.random.split(self._key)
            noise = self._policy.distribution.noise(key, (self._n,))
        mask = None if rows.masks is None else mx.array(rows.masks)
        keep = self._policy.not_done(mx.array(rows.terminals))
        actions, _, _, self._state = self._policy.act(
            self._weights, mx.array(rows.observations), self._state, noise, mask, keep
        )
        mx.eval(actions, self._state)
        return np.ascontiguousarray(actions)  # MLX's may be a view of columns


class AgentStepper:
    """A policy in environments, all agents of which act and step at once.

    Args:
        policy: as it was trained.
        weights: its weights.
        vec: environments; they are reset.
        seed: of the actions.
        greedy: take the most probable action instead of drawing one.

    Attributes:
        rows: the agents' observations and rewards.
        vec: as given.
    """

    def __init__(
        self, policy: Policy, weights: Any, vec: ScoredVec, seed: int = 0, greedy: bool = False
    ) -> None:
        self._actor = Actor(policy, weights, vec.num_agents, seed, greedy)
        self.vec = vec
        n = vec.num_agents // vec.num_groups
        self._groups = [slice(g * n, (g + 1) * n) for g in range(vec.num_groups)]
        self.rows = allocate_rows(vec, vec.num_agents)
        vec.reset(self.rows)

    def step(self) -> None:
        """Act once, and wait for the outcome."""
        chosen = self._actor.choose(self.rows)
        for group, agents in enumerate(self._groups):
            self.vec.send(group, chosen[agents], self.rows.part(agents))
        for group in range(len(self._groups)):
            self.vec.wait(group)


def arena(config: Config, environments: int, agents: int, seed: int) -> Config:
    """The configuration of environments to evaluate in, whose seeds no other ``seed`` shares.

    Args:
        config: of the policy's run.
        environments: how many.
        agents: of one environment.
        seed: of the evaluation.
    """
    vec = replace(
        config.vec,
        total_agents=environments * agents,
        num_buffers=1,
        seed=(config.vec.seed + SEED_STRIDE * seed) % 2**31,
    )
    return replace(config, vec=vec)


def most_environments(config: Config, agents: int) -> int:
    """How many environments of so many agents play at once, at most.

    Of C ``ENVIRONMENTS``: the more, the less a step of one costs. Of Python, where each is an
    object or a process, those that the configuration's agents fill.
    """
    return max(1, config.vec.total_agents // agents) if config.python else ENVIRONMENTS


def environments_for(episodes: int, most: int, agents: int) -> int:
    """How many environments are to play so many episodes.

    Args:
        episodes: of all of them.
        most: environments there may be.
        agents: of each: who of several ends first ends quickly, so each plays more episodes then.
    """
    each = -(-episodes // most)
    if agents > 1:
        each = max(each, min(PER_AGENT * agents, episodes))
    return -(-episodes // each)


def score(
    stepper: AgentStepper,
    episodes: int,
    *,
    max_steps: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Scores:
    """Play whole episodes.

    Every environment contributes its first k, the same number: the first that end anywhere would be
    the short ones. (Where several agents of one environment end their episodes on their own, its
    first k are still rather those of the quick ones, the less the larger k is.)

    Args:
        stepper: of E environments, at their beginning.
        episodes: at least so many in all; k = ceil(episodes / E).
        max_steps: of every agent; what hasn't ended by then is left out and counted.
        progress: called after each step with the episodes that ended and those there will be.
    """
    began, vec = time.perf_counter(), stepper.vec
    E = vec.num_environments
    each = -(-episodes // E)
    left = [each] * E  # episodes that an environment still owes
    taken: list[list[Episode]] = [[] for _ in range(E)]
    vec.episodes()  # of what was played before
    steps = 0
    while any(left) and (max_steps is None or steps < max_steps):
        stepper.step()
        steps += 1
        for record in vec.episodes():
            env = int(record["env"])
            n = min(left[env], round(record["n"]))
            if n:
                left[env] -= n
                taken[env].append({**record, "n": float(n)})
        if progress is not None:
            progress(each * E - sum(left), each * E)
    return Scores(
        episodes=[record for records in taken for record in records],
        environments=E,
        each=each,
        unfinished=sum(owed > 0 for owed in left),
        steps=steps,
        seconds=time.perf_counter() - began,
    )


def frames_of(stepper: AgentStepper, draw: Draw, steps: int | None = None) -> Iterator[Frame]:
    """Frames of agent 0, the first one after the reset.

    Args:
        stepper: of environments, at their beginning. One is enough.
        draw: an observation's picture (``frames.find_draw``).
        steps: how many frames; without end if None.
    """
    episode, total = 0, 0.0
    for step in count() if steps is None else range(steps):
        if step:
            stepper.step()
        reward, terminal = float(stepper.rows.rewards[0]), bool(stepper.rows.terminals[0])
        total += reward
        episode += terminal
        image = draw(stepper.rows.observations[0].copy())
        yield Frame(image, step, episode, reward, total, terminal)
        if terminal:
            total = 0.0
