"""Matches of several players: which pairs play, where, and how many games."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from puffer_mlx import vec
from puffer_mlx.config import Config
from puffer_mlx.playing.episodes import MAX_STEPS, arena, most_environments
from puffer_mlx.playing.games import PairResult, play_pair, sides_of
from puffer_mlx.playing.players import Player
from puffer_mlx.vec.base import Environments

Pair = tuple[int, int]  # the players' numbers
Results = dict[Pair, PairResult]


class Games:
    """What each pair plays.

    Args:
        config: of the environments, without statistics.
        agents: of an environment.
        games: at least.
        make: makes a configuration's environments, which are closed here.
        seed: of the environments and of the players' choices.
        max_steps: of an environment.

    Attributes:
        count: of environments: an even number. In Python there are at most as many at once as the
            configuration's agents fill.
        each: games of every environment.
    """

    def __init__(
        self,
        config: Config,
        agents: int,
        games: int,
        make: Callable[[Config], Environments],
        seed: int,
        max_steps: int = MAX_STEPS,
    ) -> None:
        most = most_environments(config, agents)
        self.count = max(2, min(most - most % 2, games + games % 2))
        self.each = -(-games // self.count)
        self.seed, self.max_steps = seed, max_steps
        self._make, self._config = make, arena(config, self.count, agents, seed)

    def environments(self) -> Environments:
        """New ones; each time the same ones."""
        return self._make(self._config)


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
        with games.environments() as environments:
            results[i, j] = play_pair(
                players[i],
                players[j],
                environments,
                games.each,
                games.seed,
                games.max_steps,
                lambda done, before=number * total: progress(before + done, len(pairs) * total),
            )
    return results
