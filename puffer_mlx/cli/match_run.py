"""What ``match`` plays and prints, once its words are understood."""

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

from puffer_mlx import vec
from puffer_mlx.cli.match_options import FPS, parse, spelled_out
from puffer_mlx.cli.match_output import (
    games_of,
    pair_table,
    play_all,
    record_pairs,
    repeated_notes,
    write_game,
    write_json,
)
from puffer_mlx.cli.match_players import About, find_players, numbered
from puffer_mlx.config import Config
from puffer_mlx.playing.matches import agents_of, without_statistics
from puffer_mlx.playing.results import elo
from puffer_mlx.system.devices import select_device


def report(told: dict[str, Any]) -> str:
    """The results as tables."""
    players = sorted(told["players"], key=lambda player: -player["elo"])
    width = max(12, *(len(player["name"]) for player in players))
    lines = [*pair_table(told), "", f"{'':{width}}{'Elo':>8}"]
    return "\n".join(
        [*lines, *(f"{player['name']:{width}}{player['elo']:+8.0f}" for player in players)]
    )


def run(argv: Sequence[str], config: Config, options: argparse.Namespace) -> None:
    """Have the players play each other, print the results, and write them to ``--json``."""
    select_device(config.base.device)
    vec.settle_family(config)
    config = without_statistics(config)
    agents = agents_of(config)
    env, *words = spelled_out(argv)
    about = About(
        config,
        vec.look_up_spec(config),
        options.greedy,
        lambda told: parse([env, *told, *words])[0],
    )
    players = numbered(find_players(options.players, about))
    if options.gif:
        write_game(players, config, agents, options.gif, options.fps or FPS)
    pairs = list(itertools.combinations(range(len(players)), 2))
    games = games_of(config, agents, options.games, options.max_steps)
    results = play_all(players, pairs, games)
    told = record_pairs(players, results, config, options.greedy)
    ratings = elo({pair: result.independent for pair, result in results.items()}, len(players))
    told["players"] = [
        {"name": player.name, "elo": float(rating)}
        for player, rating in zip(players, ratings, strict=True)
    ]
    print("\n".join([report(told), *repeated_notes(told, config)]))
    if options.json:
        write_json(told, options.json)
