"""What ``evaluate.py`` plays against others: ``--against`` and ``--ladder``."""

import argparse

from puffer_mlx import vec
from puffer_mlx.checkpoint.environment_statistics import read_statistics
from puffer_mlx.cli.evaluate_options import parse, spelled_out
from puffer_mlx.cli.evaluated_policy import Player, ready
from puffer_mlx.cli.match_options import FPS
from puffer_mlx.cli.match_output import (
    games_of,
    pair_table,
    play_all,
    progress_bar,
    record_pairs,
    repeated_notes,
    write_game,
    write_json,
)
from puffer_mlx.cli.match_players import About, find_players, name_of, numbered
from puffer_mlx.config import Config
from puffer_mlx.playing import ladder
from puffer_mlx.playing import players as match_players
from puffer_mlx.playing.episodes import MAX_STEPS
from puffer_mlx.playing.matches import agents_of, without_statistics
from puffer_mlx.system import voice
from puffer_mlx.vec.base import Environments


def play_against(argv: list[str], player: Player, options: argparse.Namespace) -> None:
    """Have it play against others; its own configuration says where."""
    config = without_statistics(player.config)
    agents = agents_of(config)
    env, *words = spelled_out(argv)
    about = About(
        config,
        vec.look_up_spec(config),
        options.greedy,
        lambda told: parse([env, *told, *words])[0],
    )
    own = as_opponent(player, config, options)
    players = numbered([own, *find_players(options.against, about)])
    if options.gif:
        fps, scale = options.fps or FPS, options.scale or 1
        write_game(players, config, agents, options.gif, fps, scale)
    pairs = [(0, other) for other in range(1, len(players))]
    games = games_of(config, agents, options.games, options.max_steps or MAX_STEPS)
    results = play_all(players, pairs, games)
    told = record_pairs(players, results, config, options.greedy)
    table = pair_table(told, "games against each")
    print("\n".join([*table, *repeated_notes(told, config)]))
    if options.json:
        write_json(told, options.json)


def climb(player: Player, options: argparse.Namespace) -> None:
    """Have it play against its environment's scripted opponents."""
    voice.note(ladder.idle_note(player.config))
    if ladder.plays_bots_itself(player.config):
        found = against_its_own(player, options)
    else:
        config = ladder.in_bot_games(without_statistics(player.config))
        agents = agents_of(config)
        own, spec = as_opponent(player, config, options), vec.look_up_spec(config)
        with progress_bar() as show:
            asked = games_of(config, agents, options.games)
            found = ladder.play_skills(own, config, spec, asked, show)
    print(found)
    if options.json:
        config = player.config
        said = {"policy": options.load_model_path, "seed": config.base.seed}
        write_json({**found.record(), **said, "greedy": options.greedy}, options.json)


def against_its_own(player: Player, options: argparse.Namespace) -> ladder.Ladder:
    """Those that the environment plays itself."""
    config = player.config

    def make(config: Config) -> Environments:
        return ready(config, player.source)

    with progress_bar() as show:
        return ladder.play_bots(
            config,
            vec.look_up_spec(config),
            player.policy,
            player.weights,
            make,
            options.games,
            config.base.seed,
            options.greedy,
            show,
        )


def as_opponent(
    player: Player, config: Config, options: argparse.Namespace
) -> match_players.Player:
    """The policy as one of a match's players."""
    return match_players.policy_player(
        name_of(options.load_model_path, player.source, config),
        player.policy,
        player.weights,
        options.greedy,
        read_statistics(player.source),
    )
