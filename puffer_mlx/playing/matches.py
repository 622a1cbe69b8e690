"""Matches of several players: which pairs play, where, and how many games."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from puffer_mlx import vec
from puffer_mlx.config import Config
from puffer_mlx.playing.episodes import MAX_STEPS
from puffer_mlx.playing.games import PairResult, play_pair, sides_of
from puffer_mlx.playing.players import Player
from puffer_mlx.vec.base import Environments

ENVIRONMENTS = 1024  # at once at most: the more, the less a step of one costs

Pair = tuple[int, int]  # the players' numbers
Results = dict[Pair, PairResult]


class Games(NamedTuple):
    """What each pair plays.

    Args:
        make: new environments, so many of them, which are closed here; each time the same ones.
        games: at least.
        most: environments at once.
        seed: of the players' choices.
        max_steps: of an environment.
    """

    make: Callable[[int], Environments]
    games: int
    most: int
    seed: int
    max_steps: int = MAX_STEPS

    @property
    def count(self) -> int:
        """Of environments: an even number."""
        return max(2, min(self.most - self.most % 2, self.games + self.games % 2))

    @property
    def each(self) -> int:
        """Games of every environment."""
        return -(-self.games // self.count)


def without_statistics(config: Config) -> Config:
    """A configuration of environments that show every player plain observations.

    Policies of normalised ones normalise for themselves, each by its own statistics.
    """
    plain = replace(config.vec, normalize_observations=False, normalize_rewards=False)
    return replace(config, vec=plain)


def agents_of(config: Config) -> int:
    """How many agents sit in an environment.

    Raises:
        UserError: they are no two sides; or as ``vec.make``.
    """
    with vec.probe(config) as environments:
        sides_of(environments)
        return environments.num_agents // environments.num_environments


def most_environments(config: Config, agents: int) -> int:
    """How many may play at once: in Python as many as the configuration's agents fill."""
    return max(2, config.vec.total_agents // agents) if config.python else ENVIRONMENTS


def play_pairs(
    players: Sequence[Player],
    pairs: Sequence[Pair],
    games: Games,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Results:
    """Have pairs of players play each other; a pair's result doesn't depend on who else plays.

    Args:
        players: all of them.
        pairs: who plays whom.
        games: where, and how many.
        progress: called after each step with the games that are over and those there will be.

    Raises:
        UserError: as ``play_pair``.
    """
    total = games.each * games.count
    results: Results = {}
    for number, (i, j) in enumerate(pairs):
        with games.make(games.count) as boards:
            results[i, j] = play_pair(
                players[i],
                players[j],
                boards,
                games.each,
                games.seed,
                games.max_steps,
                lambda done, before=number * total: progress(before + done, len(pairs) * total),
            )
    return results
