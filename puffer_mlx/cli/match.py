"""The command ``match``: let policies play against each other."""

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.options import (
    add_option_table,
    make_and_find_family,
    number_type,
    print_notes,
    reject_unused,
)
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.config.command_line import build_parser, option
from puffer_mlx.config.fit import MAX_STEPS, is_explicit
from puffer_mlx.errors import UserError
from puffer_mlx.system import verbosity
from puffer_mlx.system.files import relative
from puffer_mlx.system.json_text import write_json

if TYPE_CHECKING:  # imports MLX
    from puffer_mlx.evaluation.players import Player
    from puffer_mlx.library.evaluating import Configure

MATCH_KEYS = (  # keys with an effect
    "base.seed",
    "base.device",
    "base.checkpoint_dir",
    "policy",
    "torch",
    "vec.seed",
    "vec.num_threads",
    "vec.max_threads",
    "train.algorithm",  # for a policy file: decides if states are reset after episodes
)
PYTHON_MATCH_KEYS = (  # keys with an effect only for Python environments
    "base.family",
    "vec.total_agents",
    "vec.backend",
    "vec.timeout",
    "vec.rescale_actions",
    "vec.image_channels",
)
DEFAULT_GAMES = 4096  # PufferLib's default
DEFAULT_PYTHON_GAMES = 256
GIF_FPS = 2.0
RESULT_SECONDS = 2.0  # time for which a GIF shows the final state
PLAYERS_HELP = """\
PLAYER: checkpoint or run folder, RUN_ID, latest, a policy file that puffer-mlx import reads
(.safetensors, .bin, .pt, .onnx), random, or bot:SKILL, the environment's scripted player (SKILL
from 0 to 1, default 1). A player may play against itself: name it twice."""


OPTIONS = f"""
--players PLAYER...  the players; may be typed without the option, after ENV. All pairs of them
    play
--games N  games of each pair, at least, half on either side (default {DEFAULT_GAMES},
    {DEFAULT_PYTHON_GAMES} in Python)
--deterministic, --greedy  policies take the most probable action instead of sampling
--max-steps N  stop after N steps of every environment (default {MAX_STEPS:_})
--json FILE  write all results to a file; - is stdout
--gif FILE  write a GIF of a game of the first two players, from the first one's side
--fps FPS  steps per second of the GIF (default {GIF_FPS:g})
"""
TYPES = {"--games": number_type(int, 2, 1e9), "--fps": number_type(float, 0.1, 50)}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, "match")
    parser.usage = "%(prog)s ENV PLAYER PLAYER [PLAYER ...] [options]"
    add_option_table(parser, "this match", OPTIONS, PLAYERS_HELP, TYPES)


def parse_match(argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    """Parse the command line of ``match``. Returns the configuration and the options.

    Args:
        argv: Command line.

    Raises:
        UserError: If an option is invalid, or fewer than two players are named.
    """
    used = (*MATCH_KEYS, *PYTHON_MATCH_KEYS)
    config, options = parse_command_line(
        insert_players_option(argv),
        add_options,
        used=used,
        training=False,
        find_family=make_and_find_family,
    )
    note_python_keys(config, PYTHON_MATCH_KEYS)
    options.games = options.games or default_games(config)
    options.max_steps = options.max_steps or MAX_STEPS
    if not options.gif:
        reject_unused(options, ["fps"], "without --gif", "add it")
    options.fps = options.fps or GIF_FPS
    options.scale = 1  # of the GIF; ``evaluate`` has an option for it
    if len(options.players) < 2:
        raise UserError(
            f"a match needs two players, and {len(options.players)} were named",
            "add them after ENV, for example: latest random",
        )
    return config, options


def note_python_keys(config: Config, keys: Sequence[str]) -> None:
    """Note in a C environment's configuration which typed keys affect only Python environments.

    Args:
        config: Configuration.
        keys: Keys that have an effect only on Python environments.
    """
    unused = [name for name in keys if is_explicit(config, name) and not config.python]
    if unused:
        config.notes.append(f"unused here: {', '.join(unused)} (for Python)")


def default_games(config: Config) -> int:
    """Return the default number of games per pair of players, smaller for Python environments."""
    return DEFAULT_PYTHON_GAMES if config.python else DEFAULT_GAMES


def insert_players_option(argv: Sequence[str]) -> list[str]:
    """Return the command line of ``match`` with ``--players`` inserted before the players.

    So the players may be typed without the option. Other options may precede them.

    Raises:
        UserError: If players are typed with and without the option.
    """
    if not argv or argv[0].startswith("-"):  # no ENV
        return list(argv)
    start = 1
    while start < len(argv) and argv[start].startswith("-"):
        if "=" not in argv[start]:  # the next word may be this option's value
            return list(argv)
        start += 1
    if start == len(argv):
        return list(argv)
    if any(word.partition("=")[0] == "--players" for word in argv):
        raise UserError("players are named after ENV and with --players", "use one of them")
    return [*argv[:start], "--players", *argv[start:]]


def option_parser() -> argparse.ArgumentParser:
    return build_parser(add_options, used=(*MATCH_KEYS, *PYTHON_MATCH_KEYS))


@with_exit_code
def main(argv: list[str]) -> None:
    config, options = parse_match(argv)
    print_notes(config)
    from puffer_mlx.system.devices import select_device

    env, *words = insert_players_option(argv)

    def configure(settings: Mapping[str, str], files: Sequence[Path]) -> Config:
        # A player's files aren't read: the match has one environment for all players.
        return parse_match([env, *as_options(settings), *words])[0]

    select_device(config.base.device)
    record = run_match(config, options, options.players, configure)
    print("\n".join([match_tables(record), *repeated_games_notes(record, config)]))
    if not options.gif:
        verbosity.note("next  add --gif FILE to watch a game of the first two players")
    if options.json:
        write_json(record, options.json)


def as_options(settings: Mapping[str, str]) -> list[str]:
    """Return a dict of settings (``section.key`` -> text) as a list of command-line options."""
    return [f"{option(*key.split('.'))}={text}" for key, text in settings.items()]


def run_match(
    config: Config,
    options: argparse.Namespace,
    names: Sequence[str],
    configure: "Configure",
    learner: "Player | None" = None,
) -> dict[str, Any]:
    """Play games between pairs of players, and write a GIF of the first pair to ``--gif``.

    Args:
        config: Configuration of the environment.
        options: Parsed options of the command.
        names: Names of the players.
        configure: Function that returns the user's configuration, changed by the settings of a
            player's policy file.
        learner: Player that plays each of the others; None for games of every pair, with ratings.

    Returns:
        The results as a record for JSON.
    """
    from puffer_mlx import vec
    from puffer_mlx.evaluation.games import (
        agents_per_environment,
        play_pairs,
        without_normalization,
    )
    from puffer_mlx.evaluation.results import elo_ratings
    from puffer_mlx.library import evaluating

    config = without_normalization(config)
    deterministic = options.deterministic
    agents = agents_per_environment(config)
    spec = vec.look_up_spec(config)
    players = [
        evaluating.find_player(name, config, spec, deterministic, configure) for name in names
    ]
    players = evaluating.with_unique_names([learner, *players] if learner else players)
    if options.gif:
        write_game(players, config, agents, options)
    pairs = [
        (i, j)
        for i, j in itertools.combinations(range(len(players)), 2)
        if i == 0 or learner is None
    ]
    with progress_bar("games") as progress:
        results = play_pairs(
            players,
            pairs,
            config,
            agents,
            games=options.games,
            make=evaluating.make_match_environments,
            seed=config.base.seed,
            max_steps=options.max_steps or MAX_STEPS,
            progress=progress,
        )
    record = evaluating.games_record(players, results, config, deterministic)
    if learner is None:
        ratings = elo_ratings(
            {pair: result.independent for pair, result in results.items()}, len(players)
        )
        rated = zip(players, ratings, strict=True)
        record["players"] = [{"name": each.name, "elo": float(rating)} for each, rating in rated]
    return record


def write_game(
    players: Sequence["Player"], config: Config, agents: int, options: argparse.Namespace
) -> None:
    """Play one game between the first two players and write it to a GIF file.

    Args:
        players: At least two players.
        config: Configuration of the environment.
        agents: Number of agents per environment.
        options: Parsed options with the file, its frame rate and its scale.
    """
    from puffer_mlx.evaluation.frames import write_gif
    from puffer_mlx.library.evaluating import game_frames

    path = options.gif
    final_frames = max(1, round(RESULT_SECONDS * options.fps))
    frames = game_frames(players[0], players[1], config, agents, final_frames)
    write_gif(frames, path, options.fps, options.scale)
    print(f"wrote {relative(path)}, {path.stat().st_size / 1000:,.0f} kB")


# ---- output --------------------------------------------------------------------------------------


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on the terminal during a ``with`` block. Yields its update function."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(
        what,
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=verbosity.is_quiet() or not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def match_tables(record: dict[str, Any]) -> str:
    """Return the results of a match as text: a table of games and a table of Elo ratings."""
    players = sorted(record["players"], key=lambda player: -player["elo"])
    width = max(12, *(len(player["name"]) for player in players))
    lines = [*pair_table(record), "", f"{'':{width}}{'Elo':>8}"]
    return "\n".join(
        [*lines, *(f"{player['name']:{width}}{player['elo']:+8.0f}" for player in players)]
    )


def pair_table(record: dict[str, Any], games: str = "games of each pair") -> list[str]:
    """Return a table, as lines of text, of the wins, draws and losses of each pair of players.

    The pairs are grouped by the first player.

    Args:
        record: Results of the games as a record for JSON.
        games: Text after the number of games in the heading.
    """
    pairs = record["pairs"]
    how = "deterministic" if record["deterministic"] else "sampled actions"
    width = max(20, *(len(pair["second"]) for pair in pairs))
    lines = [
        f"{record['environment']}: {pairs[0]['games']:,} {games}, half on either side;"
        f" {how}, seed {record['seed']}",
        f"  {'':{width}}{'wins':>8}{'draws':>8}{'losses':>8}{'score':>8}  95 %",
    ]
    for first, group in itertools.groupby(pairs, lambda pair: pair["first"]):
        lines.append(f"{first} against")
        for pair in group:
            counts = "".join(f"{pair[key]:8,}" for key in ("wins", "draws", "losses"))
            lines.append(
                f"  {pair['second']:{width}}{counts}{pair['score']:8.3f}  {_interval_text(pair)}"
            )
    return lines


def _interval_text(pair: dict[str, Any]) -> str:
    if pair["low"] is None:
        return f"{pair['distinct']} distinct games"
    return f"{pair['low']:.3f} to {pair['high']:.3f}"


def repeated_games_notes(record: dict[str, Any], config: Config) -> list[str]:
    """Return notes about pairs of players that played the same game several times in a match.

    Each note has a hint.
    """
    # An environment may have a number of random moves at the start, for example opening_moves.
    opening = next((key for key in config.env if key.startswith("opening")), None)
    hint = "leave out --deterministic for different games"
    if opening and config.env[opening]:
        hint = "the interval is for distinct games"
    elif opening:
        hint = f"--env.{opening.replace('_', '-')} 8 starts each with random moves"
    return [
        f"{pair['first']} against {pair['second']}: {pair['distinct']:,} distinct games in"
        f" {pair['games']:,}, because neither player samples: {hint}"
        for pair in record["pairs"]
        if pair["distinct"] is not None and pair["distinct"] < pair["games"]
    ]
