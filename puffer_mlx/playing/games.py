"""Games of two players, each half of them on either side.

A seat is an agent's number in its environment; of N = A E agents, number A e + s is seat s of
environment e. The first half of the seats is side 0, the second half side 1, unless the environment
says otherwise; a player acts for all agents of its side. The side whose agents got more reward in
an episode has won it.
"""

import zlib
from collections.abc import Callable, Generator

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.playing.episodes import MAX_STEPS
from puffer_mlx.playing.players import Player
from puffer_mlx.playing.results import PairResult, Tally
from puffer_mlx.vec.base import Environments, KnowsSeats, VecEnv
from puffer_mlx.vec.rows import allocate_rows

SIDES = 2


def sides_of(vec: VecEnv) -> np.ndarray:
    """Which side each seat is on, (E, A) bool: False side 0, True side 1.

    Environments of PufferLib 5.0's form say it, where any of their seats is for an opponent in
    self-play (``agents[i].policy``); of others side 1 is the second half of the seats.

    Args:
        vec: E environments of A agents.

    Raises:
        UserError: their agents are no two sides.
    """
    E = vec.num_environments
    A, policies = vec.num_agents // E, None
    uneven = vec.num_agents % E > 0
    if isinstance(vec, KnowsSeats):
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
    """Environments in which two players play, all stepped at once.

    Args:
        vec: E environments of A agents, in one group; they are reset.
        players: the first and the second.
        sides: (E,), which one the first has.
        seed: of both players' choices; each has its own numbers.

    Attributes:
        rows: of all agents, the latest.
        actions: of all agents, the latest.
        shown: the first of the first player's agents.
        order: (E, A), each environment's agents, the first player's before the second's.
    """

    def __init__(
        self, vec: Environments, players: tuple[Player, Player], sides: np.ndarray, seed: int
    ) -> None:
        E = vec.num_environments
        assert vec.num_groups == 1, "an environment's agents are all in one step"
        self._vec = vec
        self._firsts = sides_of(vec) == sides[:, None]  # (E, A)
        self._shape = E, A = self._firsts.shape
        if isinstance(vec, KnowsSeats):
            vec.set_tags(np.ones(E, np.int32))  # not only the learner plays, in any of them
        self.order = np.argsort(~self._firsts, axis=1, kind="stable") + A * np.arange(E)[:, None]
        self._agents = [np.flatnonzero(each) for each in (self._firsts, ~self._firsts)]
        self.shown = int(self._agents[0][0])
        seeds = np.random.SeedSequence(seed).generate_state(SIDES)
        self._choose = [
            player.sit_down(len(agents), int(each))
            for player, agents, each in zip(players, self._agents, seeds, strict=True)
        ]
        self.actions = np.zeros((vec.num_agents, vec.spec.action.heads), np.float32)
        self.rows = allocate_rows(vec, vec.num_agents)
        vec.reset(self.rows)

    def step(self) -> None:
        """Have both players choose in all environments, and wait for the outcome."""
        for agents, choose in zip(self._agents, self._choose, strict=True):
            self.actions[agents] = choose(self.rows.part(agents))
        self._vec.send(0, self.actions, self.rows)
        self._vec.wait(0)

    def ahead(self) -> np.ndarray:
        """Rewards of the first's agents less those of the second's, (E,) float64."""
        rewards = self.rows.rewards.reshape(self._shape).astype(np.float64)
        return np.where(self._firsts, rewards, -rewards).sum(axis=1)

    def over(self) -> np.ndarray:
        """Where a game has just ended, (E,) bool.

        Where last observations have rows of their own, agents may leave before others do: a game
        ends with the last of them.

        Raises:
            UserError: an episode ended for some of an environment's agents alone.
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
    """Counts games that differ in what the players saw or chose; one step after the other.

    Args:
        order: (E, A), each environment's agents, the first player's before the second's: the same
            game with the players' seats changed is one.
    """

    def __init__(self, order: np.ndarray) -> None:
        self._order = order
        self._codes = [0] * len(order)  # checksums of the games under way
        self._ended = np.zeros(len(order), bool)  # whose last observations are shown
        self._found: set[int] = set()

    @property
    def count(self) -> int:
        """How many games differ."""
        return len(self._found)

    def add(self, rows: np.ndarray) -> None:
        """Add what all agents saw or chose, (N, ...)."""
        each = rows[self._order].reshape(len(self._codes), -1)
        pairs = zip(each, self._codes, strict=True)
        self._codes = [zlib.crc32(row.tobytes(), code) for row, code in pairs]

    def end(self, over: np.ndarray, counted: np.ndarray, shows_last: bool) -> None:
        """A step has ended.

        Args:
            over: (E,) bool, where a game has.
            counted: (E,) bool, where it counts.
            shows_last: whether the next step only begins a new game there.
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
    """Have two players play the first ``each`` games of every environment.

    The first games of some environments alone would be the short ones.

    Args:
        first: whose wins are counted.
        second: the other one.
        vec: E environments, E even: in every second one they change sides.
        each: games of every environment.
        seed: of the players' choices.
        max_steps: of an environment, for its games.
        progress: called after each step with the number of games that are over.

    Raises:
        UserError: these are no environments of two sides, an episode doesn't end for all at once,
            or games don't end.
    """
    E = vec.num_environments
    assert E % SIDES == 0, "half of the environments for each side"
    sides = np.arange(E) % SIDES
    boards = Boards(vec, (first, second), sides, seed)
    distinct = None if first.draws or second.draws else DistinctGames(boards.order)
    left = np.full(E, each)
    won = np.zeros(E)  # rewards of the first less those of the second, of the games under way
    counts = np.zeros((SIDES, 3), int)  # side of the first; its wins, draws and losses
    steps = 0
    while left.any():
        if steps == max_steps:
            raise UserError(
                f"{np.count_nonzero(left)} of {E} environments of {vec.spec.name} had not ended"
                f" {each} games after {steps:,} steps",
                "a match needs an environment whose games end",
            )
        if distinct:
            distinct.add(boards.rows.observations)
        boards.step()
        if distinct:
            distinct.add(boards.actions)
        steps += 1
        won += boards.ahead()
        over = boards.over()
        counted = over & (left > 0)
        if distinct:
            distinct.end(over, counted, boards.rows.finals is not None)
        np.add.at(counts, (sides[counted], 1 - np.sign(won[counted]).astype(int)), 1)
        won[over] = 0.0
        left[counted] -= 1
        if progress is not None:
            progress(each * E - int(left.sum()))
    at_0, at_1 = (Tally(*map(int, row)) for row in counts)
    return PairResult((at_0, at_1), steps, distinct.count if distinct else None)


def watch(
    first: Player, second: Player, vec: Environments, seed: int
) -> Generator[np.ndarray, None, float]:
    """What the first player's first agent sees of one game: observations (D,).

    Of environments in C the last one is of the position before the last move: what follows is the
    next game's first.

    Args:
        first: on side 0.
        second: on side 1.
        vec: one environment.
        seed: of the players' choices.

    Returns:
        The first one's rewards less the second one's.
    """
    boards, won = Boards(vec, (first, second), np.zeros(1, int), seed), 0.0
    for _ in range(MAX_STEPS):
        yield boards.rows.observations[boards.shown].copy()
        boards.step()
        won += float(boards.ahead()[0])
        if boards.over()[0]:
            if boards.rows.finals is not None:
                yield boards.rows.observations[boards.shown].copy()
            break
    return won
