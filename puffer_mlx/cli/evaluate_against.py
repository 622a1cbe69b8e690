"""What ``evaluate.py`` plays against others: ``--against``."""

import argparse

from puffer_mlx import vec
from puffer_mlx.checkpoint.environment_statistics import read_statistics
from puffer_mlx.cli.evaluate_options import parse, spelled_out
from puffer_mlx.cli.evaluated_policy import Player
from puffer_mlx.cli.match_options import FPS
from puffer_mlx.cli.match_output import pair_table, play_all, record_pairs, write_game, write_json
from puffer_mlx.cli.match_players import About, find_players, name_of, numbered
from puffer_mlx.match.players import policy_player
from puffer_mlx.match.playing import agents_of, without_statistics
from puffer_mlx.rollout.whole_episodes import MAX_STEPS


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
    own = policy_player(
        name_of(options.load_model_path, player.source, config),
        player.policy,
        player.weights,
        options.greedy,
        read_statistics(player.source),
    )
    players = numbered([own, *find_players(options.against, about)])
    if options.gif:
        fps, scale = options.fps or FPS, options.scale or 1
        write_game(players, config, agents, options.gif, fps, scale)
    pairs = [(0, other) for other in range(1, len(players))]
    results = play_all(
        players, pairs, config, agents, options.games, options.max_steps or MAX_STEPS
    )
    told = record_pairs(players, results, config, options.greedy)
    print("\n".join(pair_table(told, "games against each")))
    if options.json:
        write_json(told, options.json)
