"""Have policies play against each other: puffer-mlx match connect4_two latest random [options]."""

import argparse
import itertools
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from puffer_mlx import vec
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.match_options import FPS, OBEYED, add_options, parse
from puffer_mlx.cli.match_players import find_players
from puffer_mlx.cli.verbosity import detail_config
from puffer_mlx.config import Config, take_notes
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.display import frames
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import arena
from puffer_mlx.match.games import SEATS, PairResult, play_pair, watch
from puffer_mlx.match.players import Player
from puffer_mlx.match.standings import elo, wilson
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.system import voice
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import publish
from puffer_mlx.system.json_text import json_text
from puffer_mlx.vec.base import Environments

ENVIRONMENTS = 1024  # at once at most: the more, the less a step of one costs

Results = dict[tuple[int, int], PairResult]  # by the players' numbers


def environments(config: Config, count: int) -> Environments:
    """So many environments of two agents, the same ones for each pair.

    Raises:
        UserError: the environment's have another number of agents.
    """
    return vec.make(arena(config, count, SEATS, config.base.seed), threads())


def refuse_others(config: Config) -> None:
    """Refuse environments in which no two can meet.

    Raises:
        UserError: it is one in Python, or has another number of agents.
    """
    if config.python:
        raise UserError(
            f"{config.env_name} is an environment in Python, and matches are of environments in C",
            "one with two agents, as connect4_two",
        )
    with vec.probe(config) as made:
        agents = made.num_agents / made.num_environments
    if agents != SEATS:
        raise UserError(
            f"{config.env_name} has {agents:g} agents an environment, and a match is between two",
            "one with two agents, as connect4_two",
        )


def play_all(players: list[Player], config: Config, options: argparse.Namespace) -> Results:
    """Have each play each other, with progress on a terminal."""
    count = min(ENVIRONMENTS, options.games + options.games % 2)
    each = -(-options.games // count)
    pairs = list(itertools.combinations(range(len(players)), 2))
    console = Console(stderr=True)
    results: Results = {}
    with Progress(
        *("games", *Progress.get_default_columns()[1:2]),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=voice.is_quiet() or not console.is_terminal,
    ) as bar:
        task = bar.add_task("games", total=len(pairs) * each * count)
        for number, (i, j) in enumerate(pairs):
            before = number * each * count
            with environments(config, count) as boards:
                results[i, j] = play_pair(
                    players[i],
                    players[j],
                    boards,
                    each,
                    config.base.seed,
                    options.max_steps,
                    lambda done, before=before: bar.update(task, completed=before + done),
                )
    return results


def record(
    players: list[Player], results: Results, config: Config, options: argparse.Namespace
) -> dict[str, Any]:
    """All results as JSON, of which the report is made, too."""
    totals = {pair: result.total for pair, result in results.items()}
    ratings = elo(totals, len(players))
    pairs = []
    for (i, j), result in results.items():
        low, high = wilson(result.total)
        pairs.append(
            {
                "first": players[i].name,
                "second": players[j].name,
                "games": result.total.games,
                **result.total._asdict(),
                "score": result.total.score,
                "low": low,
                "high": high,
                "seats": [tally._asdict() for tally in result.seats],
                "steps": result.steps,
            }
        )
    return {
        "environment": config.env_name,
        "seed": config.base.seed,
        "greedy": options.greedy,
        "pairs": pairs,
        "players": [
            {"name": player.name, "elo": float(rating)}
            for player, rating in zip(players, ratings, strict=True)
        ],
    }


def report(told: dict[str, Any]) -> str:
    """The results as tables."""
    pairs, players = told["pairs"], told["players"]
    how = "greedy" if told["greedy"] else "stochastic"
    width = max(12, *(len(player["name"]) for player in players))
    lines = [
        f"{told['environment']}: {pairs[0]['games']:,} games of each pair, half in either seat;"
        f" {how}, seed {told['seed']}",
        f"{'':{width}}  {'against':{width}}{'wins':>8}{'draws':>8}{'losses':>8}{'score':>8}  95 %",
    ]
    for pair in pairs:
        numbers = "".join(f"{pair[key]:8,}" for key in ("wins", "draws", "losses"))
        lines.append(
            f"{pair['first']:{width}}  {pair['second']:{width}}{numbers}"
            f"{pair['score']:8.3f}  {pair['low']:.3f} to {pair['high']:.3f}"
        )
    lines += ["", f"{'':{width}}{'Elo':>8}"]
    for player in sorted(players, key=lambda player: -player["elo"]):
        lines.append(f"{player['name']:{width}}{player['elo']:+8.0f}")
    return "\n".join(lines)


def match(argv: Sequence[str]) -> None:
    config, options = parse(argv)
    for line in take_notes(config):
        voice.note(line)
    detail_config(config)
    select_device(config.base.device)
    if not config.python:
        vec.settle_family(config)
    refuse_others(config)
    draw = frames.find_draw(vec.source_folder(config)) if options.gif else None
    spec = vec.look_up_spec(config)
    players = find_players(options.players, argv, config, spec, options.greedy)
    told = record(players, play_all(players, config, options), config, options)
    print(report(told))
    if options.json:
        with publish(options.json) as path:
            path.write_text(json_text(told, indent=1) + "\n")
    if draw:
        with environments(config, 1) as one:
            seen = watch(players[0], players[1], one, config.base.seed)
            game = (
                frames.Frame(draw(each), step, 0, 0.0, 0.0, False) for step, each in enumerate(seen)
            )
            frames.write_gif(game, options.gif, options.fps or FPS)
        print(f"wrote {options.gif}, {options.gif.stat().st_size / 1000:,.0f} kB")


def option_parser() -> argparse.ArgumentParser:
    return build_parser(extra=add_options, obeyed=OBEYED)


@reported
def main(argv: list[str]) -> None:
    match(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
