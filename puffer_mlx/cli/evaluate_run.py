"""What ``evaluate`` plays, once its words are understood."""

import argparse

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from puffer_mlx import vec
from puffer_mlx.cli.evaluate_against import climb, play_against
from puffer_mlx.cli.evaluate_output import record, report, show
from puffer_mlx.cli.evaluated_policy import Player, environments, load
from puffer_mlx.config import Config
from puffer_mlx.playing import frames
from puffer_mlx.playing.episodes import MAX_STEPS, Scores, environments_for, score
from puffer_mlx.system import voice
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import publish
from puffer_mlx.system.json_text import json_text

ENVIRONMENTS = 1024  # at once at most: the more, the less a step of one costs


def measure(player: Player, options: argparse.Namespace) -> Scores:
    """Play the episodes, with progress on a terminal."""
    config = player.config
    most = config.vec.total_agents // player.agents if config.python else ENVIRONMENTS
    console = Console(stderr=True)
    columns = ("episodes", *Progress.get_default_columns()[1:2])
    with (
        environments(player, environments_for(options.episodes, most, player.agents)) as envs,
        Progress(
            *columns,
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=voice.is_quiet() or not console.is_terminal,
        ) as bar,
    ):
        task = bar.add_task("episodes", total=options.episodes)
        return score(
            player.policy,
            player.weights,
            envs,
            options.episodes,
            seed=player.config.base.seed,
            greedy=options.greedy,
            max_steps=options.max_steps or MAX_STEPS,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def run(argv: list[str], config: Config, options: argparse.Namespace) -> None:
    """Score the policy, show it, or have it play against others."""
    select_device(config.base.device)
    player = load(argv, config, options.load_model_path)
    voice.detail(f"policy {player.source}")
    if options.against:
        play_against(argv, player, options)
        return
    if options.ladder:
        climb(player, options)
        return
    draw = None
    if (options.gif or options.mp4 or options.terminal) and not config.python:
        draw = frames.find_draw(vec.source_folder(config))
    if options.episodes:
        scores = measure(player, options)
        print(report(player, options, scores))
        if options.json:
            with publish(options.json) as path:
                path.write_text(json_text(record(player, options, scores), indent=1) + "\n")
    if options.shown:
        show(player, options, draw)
