"""Play matches between pairs of several players."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from puffer_mlx import vec
from puffer_mlx.config import Config
from puffer_mlx.playing.episodes import MAX_STEPS, eval_config, most_environments
from puffer_mlx.playing.games import PairResult, play_pair, sides_of
from puffer_mlx.playing.players import Player
from puffer_mlx.vec.base import Environments

Pair = tuple[int, int]  # indices of two players
Results = dict[Pair, PairResult]
Progress = Callable[[int, int], object]  # (finished games, expected games)


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
    with vec.probe(config) as environments:
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
