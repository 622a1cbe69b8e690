"""The work of ``match`` and ``evaluate --against``: load players, play games, print tables."""

import argparse
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint.environment_statistics import read_statistics
from puffer_mlx.config import Config
from puffer_mlx.config.command_line import option
from puffer_mlx.config.trust import known
from puffer_mlx.errors import UserError
from puffer_mlx.export.importing import convert_weights, inspect
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.playing.episode_videos import drawing
from puffer_mlx.playing.episodes import MAX_STEPS, arena
from puffer_mlx.playing.frames import Frame, captioned, write_gif
from puffer_mlx.playing.games import watch
from puffer_mlx.playing.matches import Games, Results, agents_of, play_pairs, without_statistics
from puffer_mlx.playing.players import Player, player_without_policy, policy_player
from puffer_mlx.playing.results import elo
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system import voice
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import relative
from puffer_mlx.system.json_text import write_json
from puffer_mlx.vec.base import Environments

RESULT = 2.0  # seconds that a GIF shows the result
Reparse = Callable[..., Config]  # (further words, files) -> configuration


def run(config: Config, options: argparse.Namespace, reparse: Reparse) -> None:
    """Play all games, print the results and write them to ``--json``."""
    select_device(config.base.device)
    vec.settle_family(config)
    players, results, record = play(config, options, options.players, reparse)
    ratings = elo({pair: result.independent for pair, result in results.items()}, len(players))
    record["players"] = [
        {"name": player.name, "elo": float(rating)}
        for player, rating in zip(players, ratings, strict=True)
    ]
    print("\n".join([report(record), *repeated_notes(record, config)]))
    if options.json:
        write_json(record, options.json)


def play(
    config: Config,
    options: argparse.Namespace,
    words: Sequence[str],
    reparse: Reparse,
    learner: Player | None = None,
) -> tuple[list[Player], Results, dict[str, Any]]:
    """Play games between pairs of players, and write a GIF of the first pair to ``--gif``.

    Args:
        config: Configuration of the environment.
        options: Parsed options ``games``, ``max_steps``, ``greedy``, ``gif``, ``fps``, ``scale``.
        words: Names of the players.
        reparse: Parses the command line again with the settings of a policy file.
        learner: Player who meets each of the others; None for games of every pair.

    Returns:
        The players, the results by pair, and a record for JSON.
    """
    config = without_statistics(config)
    agents, spec = agents_of(config), vec.look_up_spec(config)
    named = [find_player(word, config, spec, options.greedy, reparse) for word in words]
    players = numbered([learner, *named] if learner else named)
    if options.gif:
        write_game(players, config, agents, options)
    pairs = list(itertools.combinations(range(len(players)), 2))
    if learner:
        pairs = [pair for pair in pairs if pair[0] == 0]
    games = games_of(config, agents, options.games, options.max_steps or MAX_STEPS)
    with progress_bar("games") as show:
        results = play_pairs(players, pairs, games, show)
    return players, results, record_pairs(players, results, config, options.greedy)


# ---- players: checkpoints, files of policies, ``random`` and ``bot`` -----------------------------


def find_player(word: str, config: Config, spec: EnvSpec, greedy: bool, reparse: Reparse) -> Player:
    """Return the player that the user named.

    Args:
        word: Name of the player.
        config: Configuration of the environment.
        spec: Spec of the environment.
        greedy: True to take the most probable action instead of sampling.
        reparse: Parses the command line again with the settings of a policy file.

    Raises:
        UserError: The player doesn't exist or is for another environment.
    """
    if player := player_without_policy(word, config, spec):
        return player
    path = Path(word)
    if path.suffix and path.is_file():  # any format that ``import`` reads
        file = inspect(path)
        settings = file.settings | file.file.sizes_for(file, spec, reparse([]))
        words = [f"{option(*key.split('.'))}={text}" for key, text in settings.items()]
        policy, weights = convert_weights(file, spec, reparse(words))
        return policy_player(str(path), policy, weights, greedy, file.statistics)
    saved = checkpoint.load(checkpoint.find(word, config), known(config))
    if not saved.spec.is_like(spec):
        raise UserError(
            f"{saved.folder} is a policy for {saved.spec.described()},"
            f" but {spec.name} has {spec.described()}",
            f"one that was trained on {spec.name}, or on what shows and takes the same",
        )
    name = name_of(word, saved.folder, config)
    return policy_player(name, saved.policy, saved.weights, greedy, read_statistics(saved.folder))


def numbered(players: Sequence[Player]) -> list[Player]:
    """Return players with unique names: a repeated name gets a number."""
    named: list[Player] = []
    times: Counter[str] = Counter()
    for player in players:
        times[player.name] += 1
        again = f" ({times[player.name]})" if times[player.name] > 1 else ""
        named.append(player._replace(name=player.name + again))
    return named


def name_of(word: str, folder: Path, config: Config) -> str:
    """Return a checkpoint's name: RUN_ID/STEP in the checkpoint folder, else the user's word."""
    home = (Path(config.base.checkpoint_dir) / config.slug).resolve()
    inside = folder.resolve().is_relative_to(home)
    return str(folder.resolve().relative_to(home)) if inside else word


# ---- games ---------------------------------------------------------------------------------------


def games_of(config: Config, agents: int, games: int, max_steps: int = MAX_STEPS) -> Games:
    """Return the games of one pair in environments of this many agents."""
    return Games(
        config, agents, games, lambda arena: vec.make(arena, threads()), config.base.seed, max_steps
    )


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on the terminal until the context ends. Yields its update function."""
    console = Console(stderr=True)
    with Progress(
        *(what, *Progress.get_default_columns()[1:2]),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=voice.is_quiet() or not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# ---- what is shown and written -------------------------------------------------------------------


def report(record: dict[str, Any]) -> str:
    """Return the results as tables."""
    players = sorted(record["players"], key=lambda player: -player["elo"])
    width = max(12, *(len(player["name"]) for player in players))
    lines = [*pair_table(record), "", f"{'':{width}}{'Elo':>8}"]
    return "\n".join(
        [*lines, *(f"{player['name']:{width}}{player['elo']:+8.0f}" for player in players)]
    )


def record_pairs(
    players: Sequence[Player], results: Results, config: Config, greedy: bool
) -> dict[str, Any]:
    """Return the results as a record for JSON and the tables."""
    pairs = []
    for (i, j), result in results.items():
        low, high = result.interval or (None, None)
        pairs.append(
            {
                "first": players[i].name,
                "second": players[j].name,
                "games": result.total.games,
                **result.total._asdict(),
                "score": result.total.score,
                "low": low,
                "high": high,
                "sides": [tally._asdict() for tally in result.sides],
                "steps": result.steps,
                "distinct": result.distinct,
            }
        )
    return {
        "environment": config.env_name,
        "seed": config.base.seed,
        "greedy": greedy,
        "pairs": pairs,
    }


def pair_table(record: dict[str, Any], games: str = "games of each pair") -> list[str]:
    """Return the lines of a table of games, grouped by first player."""
    pairs = record["pairs"]
    how = "greedy" if record["greedy"] else "stochastic"
    width = max(20, *(len(pair["second"]) for pair in pairs))
    lines = [
        f"{record['environment']}: {pairs[0]['games']:,} {games}, half on either side;"
        f" {how}, seed {record['seed']}",
        f"  {'':{width}}{'wins':>8}{'draws':>8}{'losses':>8}{'score':>8}  95 %",
    ]
    for first, own in itertools.groupby(pairs, lambda pair: pair["first"]):
        lines.append(f"{first} against")
        for pair in own:
            numbers = "".join(f"{pair[key]:8,}" for key in ("wins", "draws", "losses"))
            lines.append(
                f"  {pair['second']:{width}}{numbers}{pair['score']:8.3f}  {_interval(pair)}"
            )
    return lines


def _interval(pair: dict[str, Any]) -> str:
    if pair["low"] is None:
        return f"{pair['distinct']} distinct games"
    return f"{pair['low']:.3f} to {pair['high']:.3f}"


def repeated_notes(record: dict[str, Any], config: Config) -> list[str]:
    """Return notes about pairs that repeated the same games, each with a hint."""
    opening = next((key for key in config.env if key.startswith("opening")), None)
    hint = "without --greedy they differ"
    if opening and config.env[opening]:
        hint = "the interval is of these"
    elif opening:
        option = f"--env.{opening.replace('_', '-')} 8"
        hint = f"{option} begins each with stones put down at random"
    return [
        f"{pair['first']} against {pair['second']}: {pair['distinct']:,} distinct games in"
        f" {pair['games']:,}, as neither player draws: {hint}"
        for pair in record["pairs"]
        if pair["distinct"] is not None and pair["distinct"] < pair["games"]
    ]


def write_game(
    players: Sequence[Player], config: Config, agents: int, options: argparse.Namespace
) -> None:
    """Write a GIF of one game between the first two players."""
    path, fps = options.gif, options.fps
    place = arena(config, 1, agents, config.base.seed)
    with vec.make(place, threads(), render=True) as one:
        hold = max(1, round(RESULT * fps))
        write_gif(frames_of(players[0], players[1], one, config, hold), path, fps, options.scale)
    print(f"wrote {relative(path)}, {path.stat().st_size / 1000:,.0f} kB")


def frames_of(
    first: Player, second: Player, one: Environments, config: Config, hold: int
) -> Iterator[Frame]:
    """Yield the frames of one game, then the last frame ``hold`` times.

    Frames show agent 0's view or the environment's own drawing, with the names of the players above
    it and the result at the end.
    """
    draw, names = drawing(config, one), [first.name, f"against {second.name}"]
    results = [f"{first.name} won", f"{second.name} won", "a draw"]
    game, image, step = watch(first, second, one, config.base.seed), np.zeros((1, 1, 3)), 0
    while True:
        try:
            image = draw(next(game))
        except StopIteration as end:
            won = end.value
            break
        yield Frame(captioned(image, [*names, ""], results), step, 0, 0.0, 0.0, False)
        step += 1
    result = results[0 if won > 0 else 1 if won < 0 else 2]
    for _ in range(hold):
        yield Frame(captioned(image, [*names, result], results), step, 0, 0.0, won, True)
