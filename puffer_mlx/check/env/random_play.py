"""Play an environment with random legal actions and take notes."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from puffer_mlx.vec.base import TRUNCATED, Rows, ScoredVec, ShowsExactly, VecEnv
from puffer_mlx.vec.rows import allocate_rows, random_actions

LEAST, STEPS = 500, 20_000  # minimum and maximum steps of every agent
PATIENCE = 20.0  # timeout in seconds, even with fewer than LEAST steps
KEPT = 512  # maximum number of first rows, and of episode lengths
ASKED = 256  # steps between two logs


class Table:
    """Step all agents of vectorized environments together."""

    def __init__(self, environments: VecEnv, reset: bool = True) -> None:
        self.vec = environments
        self.rows = allocate_rows(environments, environments.num_agents)
        self._n = environments.num_agents // environments.num_groups
        if reset:
            environments.reset(self.rows)

    def legal(self, rng: np.random.Generator) -> np.ndarray:
        """Return random actions (N, heads) float32 that the masks allow."""
        actions = random_actions(self.vec, self.vec.num_agents, rng)
        if self.rows.masks is not None:
            for head, mask in enumerate(by_head(self.rows.masks, self.vec.spec.action.sizes)):
                actions[:, head] = np.where(mask, rng.random(mask.shape), -1.0).argmax(1)
        return actions

    def step(self, actions: np.ndarray) -> Rows:
        """Step all groups with actions (N, heads). Returns the rows of all agents."""
        for group in range(self.vec.num_groups):
            mine = slice(group * self._n, (group + 1) * self._n)
            self.vec.send(group, actions[mine], self.rows.part(mine))
        for group in range(self.vec.num_groups):
            self.vec.wait(group)
        return self.rows

    def observations(self) -> np.ndarray:
        """Return the observations of all agents, (N, D), in float64 if float32 would round them."""
        vec, exact = self.vec, None
        if isinstance(vec, ShowsExactly):
            exact = vec.exact_observations(slice(0, vec.num_agents))
        return self.rows.observations if exact is None else exact


def by_head(masks: np.ndarray, sizes: tuple[int, ...]) -> list[np.ndarray]:
    """Return the legal choices of each head, a list of (N, size) bool."""
    return np.split(masks != 0, np.cumsum(sizes)[:-1], axis=1)


@dataclass
class Notes:
    """Notes about N agents.

    Args:
        agents: Number of agents N.
        started: Rows after the reset, (N, D) float32.
        low: Minimum of each observation element, (D,).
        high: Maximum of each observation element, (D,).
        fresh: Rows (D,) float32 that arrived with a terminal.
        before: Rows one step before ``fresh``.
        moved: Pairs of successive rows within an episode, (2, D) each.
        wrong: First observation that isn't finite: (step, agent, element).
        wrong_reward: First reward that isn't finite: (step, agent).
        nothing_legal: First agent without a legal choice: (step, agent, head).
        masked: Number of masked choices.
        choices: Total number of choices.
        reward_low: Minimum reward.
        reward_high: Maximum reward.
        rewarded: Number of rewards that aren't 0.
        clipped: Number of rewards beyond ± train.reward_clip.
        terminals: Number of terminals.
        ended: (steps, truncated) of episodes whose last observation is known.
        lengths: Steps between terminals.
        away: Agents absent in the latest row, (N,) bool.
        logs: Non-empty results of ``log``.
        steps: Steps of every agent.
        seconds: Duration of the play.
    """

    agents: int
    started: np.ndarray
    low: np.ndarray
    high: np.ndarray
    fresh: list[np.ndarray] = field(default_factory=list)
    before: list[np.ndarray] = field(default_factory=list)
    moved: list[np.ndarray] = field(default_factory=list)
    wrong: tuple[int, int, int] | None = None
    wrong_reward: tuple[int, int] | None = None
    nothing_legal: tuple[int, int, int] | None = None
    masked: int = 0
    choices: int = 0
    reward_low: float = np.inf
    reward_high: float = -np.inf
    rewarded: int = 0
    clipped: int = 0
    terminals: int = 0
    ended: list[tuple[int, bool]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    away: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    logs: list[dict[str, float]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0


def play(
    make: Callable[[], AbstractContextManager[ScoredVec]], seconds: float, reward_clip: float
) -> Notes:
    """Play for ``seconds``, at least ``LEAST`` and at most ``STEPS`` steps.

    Args:
        make: Creates the environments.
        seconds: Time to play, in seconds.
        reward_clip: Limit of rewards (``train.reward_clip``).
    """
    rng = np.random.default_rng(0)
    with make() as environments:
        table = Table(environments)
        first, seen = table.rows.observations.astype(np.float32), table.observations()
        low, high = seen.min(0).astype(np.float64), seen.max(0).astype(np.float64)
        notes = Notes(environments.num_agents, first, low, high)
        notes.away = np.zeros(environments.num_agents, bool)
        age = np.zeros(environments.num_agents, int)  # steps in each agent's episode
        _observe(notes, table.observations())
        _look_at_masks(notes, table.rows, environments.spec.action.sizes)
        environments.log()  # discard earlier episodes
        began = time.perf_counter()
        while notes.steps < STEPS:
            notes.seconds = time.perf_counter() - began
            if notes.seconds > (seconds if notes.steps >= LEAST else PATIENCE):
                break
            before = table.rows.observations.copy()
            rows = table.step(table.legal(rng))
            notes.steps += 1
            age += 1
            _observe(notes, table.observations())
            _look_at_rewards(notes, rows, reward_clip)
            _look_at_masks(notes, rows, environments.spec.action.sizes)
            _look_at_ends(notes, rows, before, age)
            if notes.steps % ASKED == 0 and (log := environments.log()):
                notes.logs.append(log)
        if log := environments.log():
            notes.logs.append(log)
    return notes


def _observe(notes: Notes, x: np.ndarray) -> None:
    np.minimum(notes.low, x.min(0), out=notes.low)
    np.maximum(notes.high, x.max(0), out=notes.high)
    if notes.wrong is None and x.dtype != np.uint8 and not np.isfinite(x.sum()):
        places = np.argwhere(~np.isfinite(x))  # empty if only the sum overflowed
        if len(places):
            notes.wrong = notes.steps, int(places[0][0]), int(places[0][1])


def _look_at_rewards(notes: Notes, rows: Rows, clip: float) -> None:
    rewards = rows.rewards
    finite = np.isfinite(rewards)
    if notes.wrong_reward is None and not finite.all():
        notes.wrong_reward = notes.steps, int(np.argmin(finite))
    if finite.any():
        notes.reward_low = min(notes.reward_low, float(rewards[finite].min()))
        notes.reward_high = max(notes.reward_high, float(rewards[finite].max()))
    notes.rewarded += int(np.count_nonzero(rewards))
    notes.clipped += int((np.abs(rewards) > clip).sum())


def _look_at_masks(notes: Notes, rows: Rows, sizes: tuple[int, ...]) -> None:
    if rows.masks is None:
        return
    notes.choices += rows.masks.size
    notes.masked += int(rows.masks.size - np.count_nonzero(rows.masks))
    for head, legal in enumerate(by_head(rows.masks, sizes)):
        some = legal.any(1)
        if notes.nothing_legal is None and not some.all():
            notes.nothing_legal = notes.steps, int(np.argmin(some)), head


def _look_at_ends(notes: Notes, rows: Rows, before: np.ndarray, age: np.ndarray) -> None:
    """Note ended episodes. ``finals`` marks last observations, one step before the first ones."""
    away = np.zeros(len(age), bool)  # absent until their environment is reset
    if rows.finals is not None:
        away = (rows.finals > 0) & (rows.terminals > 0)
        for agent in np.flatnonzero((rows.finals > 0) & ~away):
            notes.ended.append((int(age[agent]), bool(rows.finals[agent] == TRUNCATED)))
    over = np.flatnonzero(rows.terminals)
    notes.terminals += int(np.count_nonzero(~notes.away[over]))
    for agent in over:
        if len(notes.lengths) < KEPT and not notes.away[agent]:
            notes.lengths.append(int(age[agent]) - (rows.finals is not None))
        if len(notes.fresh) < KEPT and not away[agent]:
            notes.fresh.append(rows.observations[agent].astype(np.float32))
            notes.before.append(before[agent].astype(np.float32))
    agent = notes.steps % notes.agents
    if not rows.terminals[agent] and len(notes.moved) < KEPT:
        pair = before[agent], rows.observations[agent]
        notes.moved.append(np.stack(pair).astype(np.float32))
    age[over] = 0
    notes.away = away
