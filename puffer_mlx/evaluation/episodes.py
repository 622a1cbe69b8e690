"""Play and score whole episodes of a policy without a trainer.

Agents act as in training: recurrent state is carried from step to step and, unless the policy
resets it on terminals, from episode to episode. Equal environments (parameters, seed, agents) and
equal seeds give equal results, to the bit on a CPU.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.config.fit import MAX_STEPS as MAX_STEPS  # commands print it before they load MLX
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.frames import Draw, Frame
from puffer_mlx.evaluation.results import mode
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system.mlx_memory import choose_cache_limit
from puffer_mlx.vec.base import Rows, ScoredVec
from puffer_mlx.vec.rows import allocate_rows

ENVIRONMENTS = 1024  # maximum number of C environments at once
SEED_STRIDE = 1_000_003  # offset between the environment seeds of two evaluations
PER_AGENT = 10  # minimum episodes per agent, on average, with several agents

SCORES = "score", "episode_return", "perf"

Episode = dict[str, float]  # values of the environment's my_log: means of n episodes


class Spread(NamedTuple):
    """Statistics of a value over episodes. ``std`` is the sample's (n - 1), 0 for one episode."""

    mean: float
    std: float
    median: float
    min: float
    max: float


@dataclass(frozen=True)
class Scores:
    """Episodes of an evaluation.

    Args:
        episodes: Records, ordered by environment and then by time.
        environments: Number of environments E.
        each: Episodes requested from every environment.
        unfinished: Environments that didn't finish within the step limit.
        steps: Steps of every agent.
        seconds: Duration of the evaluation.
        deterministic: True if the most probable actions were taken, False if they were sampled.
    """

    episodes: list[Episode]
    environments: int
    each: int
    unfinished: int
    steps: int
    seconds: float
    deterministic: bool = False

    @property
    def count(self) -> int:
        """Number of episodes."""
        return sum(round(record["n"]) for record in self.episodes)

    def values(self, name: str) -> np.ndarray:
        """Return one value per episode, (count,) float64."""
        times = [round(record["n"]) for record in self.episodes]
        return np.repeat([record[name] for record in self.episodes], times)

    @property
    def score(self) -> Spread:
        """Statistics of the main value; see ``headline``.

        Raises:
            UserError: If no episode ended.
        """
        summary = self.summary()
        if (name := headline(summary)) is None:
            raise UserError(f"no episode ended in {self.steps:,} steps", "a larger max_steps")
        return summary[name]

    def __str__(self) -> str:
        if not self.episodes:
            return f"no episode ended in {self.steps:,} steps"
        mean, std, _, low, high = self.score
        return (
            f"score {mean:.4g} ± {std:.3g} ({low:.4g} to {high:.4g}), {self.count} episodes,"
            f" {mode(self.deterministic)}"
        )

    def __repr__(self) -> str:
        return f"<Scores: {self}>"

    def summary(self) -> dict[str, Spread]:
        """Return the statistics of each value that all episodes report, or an empty dict."""
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
    """Return the first reported name of ``SCORES``, or else the first name.

    Args:
        names: Names of the reported values.

    Returns:
        The name, or None without names.
    """
    known = list(names)
    return next((name for name in (*SCORES, *known) if name in known), None)


class Actor:
    """Choose the actions of n agents and carry their recurrent states.

    Args:
        policy: Trained policy.
        weights: Weights of the policy.
        n: Number of agents.
        seed: Seed of the actions.
        deterministic: Take the most probable action instead of sampling.
    """

    def __init__(
        self, policy: Policy, weights: Any, n: int, seed: int, deterministic: bool
    ) -> None:
        choose_cache_limit()
        self._policy = policy
        self._weights = weights
        self._n = n
        self._key = None if deterministic else mx.random.key(seed)
        self._state = policy.initial_state(n)

    def choose(self, rows: Rows) -> np.ndarray:
        """Return actions, (n, heads) float32, C-contiguous."""
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
        return np.ascontiguousarray(actions)  # the MLX array may be a view of columns


class AgentStepper:
    """Step environments with the actions of a policy, all agents at once.

    Args:
        policy: Trained policy.
        weights: Weights of the policy.
        vec: Environments. They are reset here.
        seed: Seed of the actions.
        deterministic: Take the most probable action instead of sampling.

    Attributes:
        rows: Latest observations and rewards of the agents.
        vec: The environments.
        deterministic: The argument.
    """

    def __init__(
        self,
        policy: Policy,
        weights: Any,
        vec: ScoredVec,
        seed: int = 0,
        deterministic: bool = False,
    ) -> None:
        self.deterministic = deterministic
        self._actor = Actor(policy, weights, vec.num_agents, seed, deterministic)
        self.vec = vec
        n = vec.num_agents // vec.num_groups
        self._groups = [slice(g * n, (g + 1) * n) for g in range(vec.num_groups)]
        self.rows = allocate_rows(vec, vec.num_agents)
        vec.reset(self.rows)

    def step(self) -> None:
        """Act once and wait for the result."""
        chosen = self._actor.choose(self.rows)
        for group, agents in enumerate(self._groups):
            self.vec.send(group, chosen[agents], self.rows.select(agents))
        for group in range(len(self._groups)):
            self.vec.wait(group)


def eval_config(config: Config, environments: int, agents: int, seed: int) -> Config:
    """Return the configuration of evaluation environments, with seeds unique to ``seed``.

    Args:
        config: Configuration of the policy's run.
        environments: Number of environments.
        agents: Agents per environment.
        seed: Seed of the evaluation.
    """
    vec = replace(
        config.vec,
        total_agents=environments * agents,
        num_buffers=1,
        seed=(config.vec.seed + SEED_STRIDE * seed) % 2**31,
    )
    return replace(config, vec=vec)


def most_environments(config: Config, agents: int) -> int:
    """Return the maximum number of environments to play at once.

    C environments: ``ENVIRONMENTS``, because more at once cost less per step. Python environments,
    each an object or a process: the number that the configured agents fill.
    """
    return max(1, config.vec.total_agents // agents) if config.python else ENVIRONMENTS


def environments_for(episodes: int, most: int, agents: int) -> int:
    """Return the number of environments that play the requested episodes.

    Agents that finish early finish short episodes, so environments with several agents play more
    episodes each.

    Args:
        episodes: Total number of episodes.
        most: Maximum number of environments.
        agents: Agents per environment.
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

    Every environment contributes its first k episodes, because the first to end anywhere would be
    short ones. A small bias remains if agents of one environment end their episodes separately.

    Args:
        stepper: E environments after a reset.
        episodes: Minimum number of episodes; k = ceil(episodes / E).
        max_steps: Step limit of every agent. Unfinished episodes are left out and counted.
        progress: Called after each step with the numbers of finished and of expected episodes.
    """
    began = time.perf_counter()
    vec = stepper.vec
    E = vec.num_environments
    each = -(-episodes // E)
    left = [each] * E  # episodes still missing per environment
    taken: list[list[Episode]] = [[] for _ in range(E)]
    vec.episodes()  # discard earlier episodes
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
        deterministic=stepper.deterministic,
    )


def frames_of(stepper: AgentStepper, draw: Draw, steps: int | None = None) -> Iterator[Frame]:
    """Yield frames of agent 0, beginning with the reset.

    Args:
        stepper: Environments after a reset. One environment is enough.
        draw: Maps an observation to a picture (``frames.find_draw``).
        steps: Number of frames. None: unlimited.
    """
    episode = 0
    total = 0.0
    for step in count() if steps is None else range(steps):
        if step:
            stepper.step()
        reward = float(stepper.rows.rewards[0])
        terminal = bool(stepper.rows.terminals[0])
        total += reward
        episode += terminal
        image = draw(stepper.rows.observations[0].copy())
        yield Frame(image, step, episode, reward, total, terminal)
        if terminal:
            total = 0.0
