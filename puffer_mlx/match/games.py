"""Games of two players, each half of them in either seat.

A seat is an agent's number in its environment, 0 or 1; of N = 2 E agents, number 2 e + s is seat s
of environment e. Who got more reward in an episode has won it.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.match.players import Player
from puffer_mlx.rollout.whole_episodes import MAX_STEPS
from puffer_mlx.vec.base import Environments
from puffer_mlx.vec.rows import allocate_rows

SEATS = 2


class Tally(NamedTuple):
    """What games came to, for one of two players."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """How many there were."""
        return sum(self)

    @property
    def score(self) -> float:
        """The part that was won; a draw is half a win."""
        return (self.wins + self.draws / 2) / self.games


class PairResult(NamedTuple):
    """What two players' games came to, for the first of them.

    Args:
        seats: one for its games in seat 0, one for those in seat 1; as many games are in both.
        steps: of an environment, all its games together.
    """

    seats: tuple[Tally, Tally]
    steps: int

    @property
    def total(self) -> Tally:
        """Of both seats."""
        return Tally(*map(sum, zip(*self.seats, strict=True)))


class Boards:
    """Environments where two players sit, and all of them step at once.

    Args:
        vec: E environments of two agents, in one group; they are reset.
        players: the first and the second.
        seats: (E,), where the first one sits.
        seed: of both players' choices; each has its own numbers.
    """

    def __init__(
        self, vec: Environments, players: tuple[Player, Player], seats: np.ndarray, seed: int
    ) -> None:
        E = vec.num_environments
        if vec.num_agents != SEATS * E or vec.num_groups != 1:
            raise UserError(
                f"{vec.spec.name} has {vec.num_agents / E:g} agents an environment",
                "matches are between the two of an environment that has two, as connect4_two",
            )
        self._vec = vec
        self._agents = [SEATS * np.arange(E) + seats, SEATS * np.arange(E) + 1 - seats]
        seeds = np.random.SeedSequence(seed).generate_state(SEATS)
        self._choose = [
            player.sit_down(E, int(own)) for player, own in zip(players, seeds, strict=True)
        ]
        self._actions = np.zeros((vec.num_agents, vec.spec.action.heads), np.float32)
        self.rows = allocate_rows(vec, vec.num_agents)
        vec.reset(self.rows)

    def step(self) -> None:
        """Have both players choose in all environments, and wait for the outcome."""
        for agents, choose in zip(self._agents, self._choose, strict=True):
            self._actions[agents] = choose(self.rows.part(agents))
        self._vec.send(0, self._actions, self.rows)
        self._vec.wait(0)

    def of_first(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of agents (N,) as those of the first player and of the second, each (E,)."""
        return values[self._agents[0]], values[self._agents[1]]


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
        vec: E environments of two agents, E even: in every second one they change seats.
        each: games of every environment.
        seed: of the players' choices.
        max_steps: of an environment, for its games.
        progress: called after each step with the number of games that are over.

    Raises:
        UserError: these are no environments of two, an episode doesn't end for both at once, or
            games don't end.
    """
    E = vec.num_environments
    assert E % 2 == 0, "half of the environments for each seat"
    seats = np.arange(E) % SEATS
    boards = Boards(vec, (first, second), seats, seed)
    left = np.full(E, each)
    won = np.zeros(E)  # rewards of the first less those of the second, of the games under way
    counts = np.zeros((SEATS, 3), int)  # seat of the first; its wins, draws and losses
    steps = 0
    while left.any():
        if steps == max_steps:
            raise UserError(
                f"{np.count_nonzero(left)} of {E} environments of {vec.spec.name} had not ended"
                f" {each} games after {steps:,} steps",
                "a match needs an environment whose games end",
            )
        boards.step()
        steps += 1
        mine, theirs = boards.of_first(boards.rows.rewards)
        won += mine.astype(np.float64) - theirs
        over, also = (ended != 0 for ended in boards.of_first(boards.rows.terminals))
        if (over != also).any():
            raise UserError(
                f"an episode of {vec.spec.name} ended for one of its two agents alone",
                "a match needs an environment whose games end for both at once: terminals of both",
            )
        counted = over & (left > 0)
        np.add.at(counts, (seats[counted], 1 - np.sign(won[counted]).astype(int)), 1)
        won[over] = 0.0
        left[counted] -= 1
        if progress is not None:
            progress(each * E - int(left.sum()))
    at_0, at_1 = (Tally(*map(int, row)) for row in counts)
    return PairResult((at_0, at_1), steps)


def watch(first: Player, second: Player, vec: Environments, seed: int) -> Iterator[np.ndarray]:
    """What seat 0, where the first player sits, sees of one game: observations (D,).

    The last one is of the position before the last move: what follows is the next game's first.

    Args:
        first: in seat 0.
        second: in seat 1.
        vec: one environment of two agents.
        seed: of the players' choices.
    """
    boards = Boards(vec, (first, second), np.zeros(1, int), seed)
    for _ in range(MAX_STEPS):
        yield boards.rows.observations[0].copy()
        boards.step()
        if boards.rows.terminals[0]:
            return
