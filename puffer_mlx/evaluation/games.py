"""Play games between two players, who swap sides in half of the environments.

A seat is an agent's index in its environment: with N = A E agents, agent A e + s has seat s of
environment e. The first half of the seats is side 0 and the second half side 1, unless the
environment assigns them differently. A player acts for all agents of its side. The side with the
larger sum of rewards in an episode wins it.
"""

import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.episodes import MAX_STEPS, eval_config, most_environments
from puffer_mlx.evaluation.players import Player
from puffer_mlx.evaluation.results import PairResult, Tally
from puffer_mlx.vec.base import Environments, HasSeats, VecEnv
from puffer_mlx.vec.from_config import probe
from puffer_mlx.vec.rows import allocate_rows

SIDES = 2
Pair = tuple[int, int]  # indices of two players
Results = dict[Pair, PairResult]
Progress = Callable[[int, int], object]  # (finished games, expected games)


def sides_of(vec: VecEnv) -> np.ndarray:
    """Return the side of each seat, (E, A) bool: False for side 0, True for side 1.

    PufferLib 5.0 environments assign sides themselves if any seat is for a self-play opponent
    (``agents[i].policy``). In all others side 1 is the second half of the seats.

    Args:
        vec: E environments with A agents each.

    Raises:
        UserError: If the agents don't form two sides.
    """
    E = vec.num_environments
    A = vec.num_agents // E
    policies = None
    uneven = vec.num_agents % E > 0
    if isinstance(vec, HasSeats):
        environments, policies = vec.seats()
        uneven = (np.bincount(environments, minlength=E) != A).any()
    if policies is not None and policies.any() and not uneven:
        sides = policies.reshape(E, A) > 0
        if sides.any(axis=1).all() and not sides.all(axis=1).any():
            return sides
    elif not uneven and A % SIDES == 0:
        return np.tile(np.arange(A) >= A // SIDES, (E, 1))
    raise UserError(
        f"{vec.spec.name} has {vec.num_agents / E:g} agents an environment, and a match is between"
        " two sides",
        "an environment of 2, 4, 6 … agents, as connect4_two: half of them are each player's",
    )


class Boards:
    """Environments in which two players play, stepped together.

    Args:
        vec: E environments with A agents each, in one group. They are reset here.
        players: First and second player.
        sides: Side of the first player in each environment, (E,).
        seed: Seed of the actions. Each player gets a separate seed derived from it.

    Attributes:
        rows: Latest rows of all agents.
        actions: Latest actions of all agents.
        shown: Index of the first player's first agent.
        order: Agents of each environment, the first player's before the second's, (E, A).
    """

    def __init__(
        self, vec: Environments, players: tuple[Player, Player], sides: np.ndarray, seed: int
    ) -> None:
        E = vec.num_environments
        assert vec.num_groups == 1, "an environment's agents are all in one step"
        self._vec = vec
        self._firsts = sides_of(vec) == sides[:, None]  # (E, A)
        self._shape = E, A = self._firsts.shape
        if isinstance(vec, HasSeats):
            vec.set_tags(np.ones(E, np.int32))  # mark all as games against an opponent
        self.order = np.argsort(~self._firsts, axis=1, kind="stable") + A * np.arange(E)[:, None]
        self._agents = [np.flatnonzero(each) for each in (self._firsts, ~self._firsts)]
        self.shown = int(self._agents[0][0])
        seeds = np.random.SeedSequence(seed).generate_state(SIDES)
        self._choose = [
            player.start(len(agents), int(each))
            for player, agents, each in zip(players, self._agents, seeds, strict=True)
        ]
        self.actions = np.zeros((vec.num_agents, vec.spec.action.heads), np.float32)
        self.rows = allocate_rows(vec, vec.num_agents)
        vec.reset(self.rows)

    def step(self) -> None:
        """Let both players act in all environments and wait for the result."""
        for agents, choose in zip(self._agents, self._choose, strict=True):
            self.actions[agents] = choose(self.rows.select(agents))
        self._vec.send(0, self.actions, self.rows)
        self._vec.wait(0)

    def score_difference(self) -> np.ndarray:
        """Return the first player's rewards minus the second's, (E,) float64."""
        rewards = self.rows.rewards.reshape(self._shape).astype(np.float64)
        return np.where(self._firsts, rewards, -rewards).sum(axis=1)

    def finished(self) -> np.ndarray:
        """Return where a game has just ended, (E,) bool.

        If last observations have separate rows, agents may leave at different times. The game
        then ends with the last agent.

        Raises:
            UserError: If an episode ended for only some agents of an environment.
        """
        finals = self.rows.finals
        flags = self.rows.terminals if finals is None else finals
        ended = flags.reshape(self._shape) != 0
        over = ended.all(axis=1)
        if finals is None and (ended.any(axis=1) != over).any():
            raise UserError(
                f"an episode of {self._vec.spec.name} ended for some of an environment's"
                f" {self._shape[1]} agents alone",
                "a match needs an environment whose games end for all at once: terminals of all",
            )
        return over


class DistinctGames:
    """Count games that differ in observations or actions.

    Args:
        order: Agents of each environment, the first player's before the second's, (E, A). Games
            that differ only by the players' sides count once.
    """

    def __init__(self, order: np.ndarray) -> None:
        self._order = order
        self._codes = [0] * len(order)  # checksums of the games in progress
        self._ended = np.zeros(len(order), bool)  # environments that show last observations
        self._found: set[int] = set()

    @property
    def count(self) -> int:
        """Number of distinct games."""
        return len(self._found)

    def add(self, rows: np.ndarray) -> None:
        """Add the observations or actions of all agents, (N, ...)."""
        each = rows[self._order].reshape(len(self._codes), -1)
        pairs = zip(each, self._codes, strict=True)
        self._codes = [zlib.crc32(row.tobytes(), code) for row, code in pairs]

    def record_step(self, over: np.ndarray, counted: np.ndarray, shows_last: bool) -> None:
        """Record the games that ended in a step.

        Args:
            over: Environments whose game has ended, (E,) bool.
            counted: Environments whose game counts, (E,) bool.
            shows_last: True if the step after a game's end only starts a new game.
        """
        for e in np.flatnonzero(counted).tolist():
            self._found.add(self._codes[e])
        for e in np.flatnonzero(over | self._ended).tolist():
            self._codes[e] = 0
        self._ended = over if shows_last else self._ended


def play_pair(
    first: Player,
    second: Player,
    vec: Environments,
    each: int,
    seed: int,
    max_steps: int = MAX_STEPS,
    progress: Callable[[int], object] | None = None,
) -> PairResult:
    """Let two players play the first ``each`` games of every environment.

    Taking the first games that end in any environment would favour short ones.

    Args:
        first: Player whose wins are counted.
        second: Opponent of the first player.
        vec: E environments, E even. The players swap sides in every second one.
        each: Games per environment.
        seed: Seed of the players' actions.
        max_steps: Step limit per environment.
        progress: Called after each step with the number of finished games.

    Raises:
        UserError: If the environments don't have two sides, an episode doesn't end for all agents
            at once, or games don't end.
    """
    E = vec.num_environments
    assert E % SIDES == 0, "half of the environments for each side"
    sides = np.arange(E) % SIDES
    boards = Boards(vec, (first, second), sides, seed)
    repeats = first.deterministic and second.deterministic
    distinct = DistinctGames(boards.order) if repeats else None
    left = np.full(E, each)
    won = np.zeros(E)  # first player's rewards minus the second's, in current games
    counts = np.zeros((SIDES, 3), int)  # by the first player's side: wins, draws, losses
    steps = 0
    while left.any():
        if steps == max_steps:
            raise _endless(vec, int(np.count_nonzero(left)), each, steps)
        if distinct:
            distinct.add(boards.rows.observations)
        boards.step()
        if distinct:
            distinct.add(boards.actions)
        steps += 1
        won += boards.score_difference()
        over = boards.finished()
        counted = over & (left > 0)
        if distinct:
            distinct.record_step(over, counted, boards.rows.finals is not None)
        np.add.at(counts, (sides[counted], 1 - np.sign(won[counted]).astype(int)), 1)
        won[over] = 0.0
        left[counted] -= 1
        if progress is not None:
            progress(each * E - int(left.sum()))
    at_0, at_1 = (Tally(*map(int, row)) for row in counts)
    games = distinct.count if distinct else None
    return PairResult((at_0, at_1), steps, games, first.deterministic)


def _endless(vec: Environments, left: int, each: int, steps: int) -> UserError:
    """Return the error for games that didn't end."""
    return UserError(
        f"{left} of {vec.num_environments} environments of {vec.spec.name} had not ended"
        f" {each} games after {steps:,} steps",
        "a match needs an environment whose games end",
    )


def watch(
    first: Player, second: Player, vec: Environments, seed: int
) -> Generator[np.ndarray, None, float]:
    """Yield the observations (D,) of the first player's first agent in one game.

    In C environments the last observation is the position before the final move, because the next
    row belongs to the next game.

    Args:
        first: Player on side 0.
        second: Player on side 1.
        vec: One environment.
        seed: Seed of the players' actions.

    Returns:
        The first player's rewards minus the second's.
    """
    boards = Boards(vec, (first, second), np.zeros(1, int), seed)
    won = 0.0
    for _ in range(MAX_STEPS):
        yield boards.rows.observations[boards.shown].copy()
        boards.step()
        won += float(boards.score_difference()[0])
        if boards.finished()[0]:
            if boards.rows.finals is not None:
                yield boards.rows.observations[boards.shown].copy()
            break
    return won


# ---- matches of several players ------------------------------------------------------------------


def without_statistics(config: Config) -> Config:
    """Return the configuration without normalization.

    A policy trained with normalization applies its own statistics.
    """
    plain = replace(config.vec, normalize_observations=False, normalize_rewards=False)
    return replace(config, vec=plain)


def agents_of(config: Config) -> int:
    """Return the number of agents per environment.

    Raises:
        UserError: If the agents don't form two sides or the environment can't be created.
    """
    with probe(config) as environments:
        sides_of(environments)
        return environments.num_agents // environments.num_environments


def play_pairs(
    players: Sequence[Player],
    pairs: Sequence[Pair],
    config: Config,
    agents: int,
    games: int,
    make: Callable[[Config], Environments],
    seed: int,
    max_steps: int = MAX_STEPS,
    progress: Progress = lambda done, total: None,
) -> Results:
    """Let pairs of players play each other. Results of pairs don't depend on each other.

    Args:
        players: All players.
        pairs: Pairs of indices into ``players``.
        config: Configuration of the environments, without normalization.
        agents: Agents per environment.
        games: Minimum number of games of each pair.
        make: Creates environments from a configuration. They are closed here.
        seed: Seed of the environments and of the players' actions.
        max_steps: Step limit per environment.
        progress: Called after each step with the numbers of finished and of expected games.

    Raises:
        UserError: If a pair's games can't be played; see ``play_pair``.
    """
    most = most_environments(config, agents)
    count = max(2, min(most - most % 2, games + games % 2))  # even
    each = -(-games // count)
    pair_config = eval_config(config, count, agents, seed)
    results: Results = {}
    for number, (i, j) in enumerate(pairs):
        before = number * each * count
        with make(pair_config) as environments:
            results[i, j] = play_pair(
                players[i],
                players[j],
                environments,
                each,
                seed,
                max_steps,
                lambda done, before=before: progress(before + done, len(pairs) * each * count),
            )
    return results
