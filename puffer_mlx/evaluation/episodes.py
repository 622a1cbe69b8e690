"""Play and score complete episodes of a policy without a trainer.

Agents act as in training: recurrent state continues from step to step and, unless the policy
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
from puffer_mlx.evaluation.frames import DrawFunction, Frame
from puffer_mlx.evaluation.results import action_mode
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system.mlx_memory import choose_cache_limit
from puffer_mlx.vec.base import Rows, ScoredVec
from puffer_mlx.vec.rows import allocate_rows

MAX_ENVIRONMENTS = 1024  # C environments to play at once
SEED_STRIDE = 1_000_003  # offset between the environment seeds of two evaluations
MIN_EPISODES_PER_AGENT = 10  # on average, if environments have several agents

SCORE_NAMES = "score", "episode_return", "perf"  # the first reported one is the main score

Episode = dict[str, float]  # what an environment reports: means over ``n`` episodes, usually one


class Spread(NamedTuple):
    """Mean, standard deviation, median, minimum and maximum of a value over episodes.

    ``std`` is the sample's (n - 1), and 0 for one episode.
    """

    mean: float
    std: float
    median: float
    min: float
    max: float


@dataclass(frozen=True)
class Scores:
    """Results of an evaluation: the records of all episodes.

    Args:
        episodes: Records of episodes, ordered by environment and then by time.
        environments: Number of environments E.
        each: Episodes k requested from each environment.
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
        """Number of episodes in the results of this evaluation."""
        return sum(round(record["n"]) for record in self.episodes)

    def values(self, name: str) -> np.ndarray:
        """Return one reported value, such as the score, of each episode, (count,) float64."""
        counts = [round(record["n"]) for record in self.episodes]
        return np.repeat([record[name] for record in self.episodes], counts)

    @property
    def score(self) -> Spread:
        """Mean, deviation, median, minimum and maximum of the main score over all episodes.

        ``main_score_name`` selects the main score.

        Raises:
            UserError: If no episode ended.
        """
        summary = self.summary()
        if (name := main_score_name(summary)) is None:
            raise UserError(f"no episode ended in {self.steps:,} steps", "use a larger max_steps")
        return summary[name]

    def __str__(self) -> str:
        if not self.episodes:
            return f"no episode ended in {self.steps:,} steps"
        mean, std, _, low, high = self.score
        return (
            f"score {mean:.4g} ± {std:.3g} ({low:.4g} to {high:.4g}), {self.count} episodes,"
            f" {action_mode(self.deterministic)}"
        )

    def __repr__(self) -> str:
        return f"<Scores: {self}>"

    def summary(self) -> dict[str, Spread]:
        """Return statistics of each value that all episodes report: mean, deviation, median, ...

        The result is empty without episodes.
        """
        if not self.episodes:
            return {}
        common = set.intersection(*(set(record) for record in self.episodes)) - {"env", "n"}
        summary = {}
        for name in self.episodes[0]:
            if name in common:
                x = self.values(name)
                std = np.std(x, ddof=1) if len(x) > 1 else 0.0
                statistics = (x.mean(), std, np.median(x), x.min(), x.max())
                summary[name] = Spread(*map(float, statistics))
        return summary


def main_score_name(names: Iterable[str]) -> str | None:
    """Return the name of the main score among the values that an environment reports.

    Args:
        names: Names of the reported values.

    Returns:
        The first of ``SCORE_NAMES`` that is reported, else the first name, or None for no names.
    """
    reported = list(names)
    return next((name for name in (*SCORE_NAMES, *reported) if name in reported), None)


class Actor:
    """Choose the actions of n agents by a policy, and carry their recurrent states.

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
        """Return the actions that the policy chooses for the agents' latest rows.

        They are (n, heads) float32, C-contiguous.
        """
        noise = None
        if self._key is not None:
            self._key, key = mx.random.split(self._key)
            noise = self._policy.distribution.noise(key, (self._n,))
        mask = None if rows.masks is None else mx.array(rows.masks)
        not_done = self._policy.not_done(mx.array(rows.terminals))
        actions, _, _, self._state = self._policy.act(
            self._weights, mx.array(rows.observations), self._state, noise, mask, not_done
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
        deterministic: True if actions aren't sampled.
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
        """Choose actions for all agents, step the environments and wait for the new rows."""
        actions = self._actor.choose(self.rows)
        for group, agents in enumerate(self._groups):
            self.vec.send(group, actions[agents], self.rows.select(agents))
        for group in range(len(self._groups)):
            self.vec.wait(group)


def seeded_eval_config(config: Config, environments: int, agents: int, seed: int) -> Config:
    """Return the configuration of the environments that an evaluation with a given seed plays.

    Evaluations with different seeds use different environment seeds.

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


def max_environments(config: Config, agents: int) -> int:
    """Return the maximum number of environments that an evaluation plays at once.

    In C: ``MAX_ENVIRONMENTS``, because more environments cost less per step. In Python, where each
    is an object or a process: as many as in training.
    """
    return max(1, config.vec.total_agents // agents) if config.python else MAX_ENVIRONMENTS


def environments_needed(episodes: int, max_count: int, agents: int) -> int:
    """Return the number of environments that should play a number of episodes.

    If the agents of an environment end their episodes separately, short episodes come first. To
    reduce this bias, environments with several agents play more episodes each.

    Args:
        episodes: Total number of episodes.
        max_count: Maximum number of environments.
        agents: Agents per environment.
    """
    each = -(-episodes // max_count)
    if agents > 1:
        each = max(each, min(MIN_EPISODES_PER_AGENT * agents, episodes))
    return -(-episodes // each)


def score_episodes(
    stepper: AgentStepper,
    episodes: int,
    *,
    max_steps: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Scores:
    """Play complete episodes and return their scores.

    Every environment contributes its first k episodes. The first episodes to end among all
    environments would be shorter than usual. A small bias remains if the agents of one environment
    end their episodes separately.

    Args:
        stepper: E environments after a reset.
        episodes: Minimum number of episodes; k = ceil(episodes / E).
        max_steps: Step limit of every agent. Unfinished episodes are left out and counted.
        progress: Called after each step with the numbers of finished and of expected episodes.
    """
    began = time.perf_counter()
    vec = stepper.vec
    E = vec.num_environments
    episodes_each = -(-episodes // E)
    remaining = [episodes_each] * E  # episodes still missing per environment
    records_by_environment: list[list[Episode]] = [[] for _ in range(E)]
    vec.episodes()  # discard the records of earlier episodes
    steps = 0
    while any(remaining) and (max_steps is None or steps < max_steps):
        stepper.step()
        steps += 1
        for record in vec.episodes():
            env = int(record["env"])
            n = min(remaining[env], round(record["n"]))
            if n:
                remaining[env] -= n
                records_by_environment[env].append({**record, "n": float(n)})
        if progress is not None:
            progress(episodes_each * E - sum(remaining), episodes_each * E)
    return Scores(
        episodes=[record for records in records_by_environment for record in records],
        environments=E,
        each=episodes_each,
        unfinished=sum(count > 0 for count in remaining),
        steps=steps,
        seconds=time.perf_counter() - began,
        deterministic=stepper.deterministic,
    )


def agent_frames(
    stepper: AgentStepper, draw: DrawFunction, steps: int | None = None
) -> Iterator[Frame]:
    """Play with a policy, and yield a frame of agent 0 for the reset and for each step.

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
