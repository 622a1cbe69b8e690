"""Let policies play against each other: puffer-mlx match connect4_two latest random [options]."""

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import add_table, find_family, number, reject_unused, say_config
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.config.command_line import build_parser, option
from puffer_mlx.config.fit import MAX_STEPS, is_explicit
from puffer_mlx.errors import UserError
from puffer_mlx.system import voice
from puffer_mlx.system.files import relative
from puffer_mlx.system.json_text import write_json

if TYPE_CHECKING:  # imports MLX
    from puffer_mlx.evaluation.players import Player
    from puffer_mlx.library.evaluating import Configure

USED = (  # keys with an effect on a match
    *("base.seed", "base.device", "base.checkpoint_dir", "policy", "torch", "vec.seed"),
    *("vec.num_threads", "vec.max_threads"),
    "train.algorithm",  # for a policy file: decides if states are reset after episodes
)
USED_IN_PYTHON = (  # keys for environments in Python only
    *("base.family", "vec.total_agents", "vec.backend", "vec.timeout", "vec.rescale_actions"),
    "vec.image_channels",
)
GAMES = 4096  # PufferLib's default
GAMES_IN_PYTHON = 256
FPS = 2.0  # frames per second of a GIF
RESULT = 2.0  # seconds that a GIF shows the result
PLAYERS = """\
PLAYER: a checkpoint's or a run's folder, a RUN_ID, latest, a file of a policy (.safetensors, .bin,
.pt, .onnx: whatever puffer-mlx import reads), random, or bot:SKILL, the environment's scripted
player (SKILL from 0 to 1, 1 if it is left out). The same one may be named twice."""


OPTIONS = f"""
--players PLAYER...  who plays; or the words behind ENV. Each plays each other
--games N  games of each pair, at least, half of them on either side (default {GAMES},
    {GAMES_IN_PYTHON} in Python)
--deterministic, --greedy  policies take the most probable action instead of sampling
--max-steps N  give up after so many steps of an environment (default {MAX_STEPS:_})
--json FILE  write all results to a file; - is stdout
--gif FILE  write a GIF of a game of the first two, as the first one sees it
--fps FPS  steps a second of the GIF (default {FPS:g})
"""
TYPES = {"--games": number(int, 2, 1e9), "--fps": number(float, 0.1, 50)}


def add_options(parser: argparse.ArgumentParser) -> None:
    introduce(parser, "match")
    parser.usage = "%(prog)s ENV PLAYER PLAYER [PLAYER ...] [options]"
    add_table(parser, "this match", OPTIONS, PLAYERS, TYPES)


def parse(argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    """Return the environment's configuration and this script's own options.

    Args:
        argv: Words of the command line.

    Raises:
        UserError: An option is invalid, or fewer than two players are named.
    """
    used = (*USED, *USED_IN_PYTHON)
    config, options = parse_command_line(
        spelled_out(argv), add_options, used=used, training=False, find_family=find_family
    )
    note_unused(config, USED_IN_PYTHON)
    options.games = options.games or default_games(config)
    options.max_steps = options.max_steps or MAX_STEPS
    if not options.gif:
        reject_unused(options, ["fps"], "without --gif", "add it")
    options.fps = options.fps or FPS
    options.scale = 1
    if len(options.players) < 2:
        raise UserError(
            f"a match needs two players, and {len(options.players)} were named",
            "two words behind ENV: latest random, say",
        )
    return config, options


def note_unused(config: Config, keys: Sequence[str]) -> None:
    """Add a note about typed keys that have no effect on environments in C."""
    idle = [name for name in keys if is_explicit(config, name) and not config.python]
    if idle:
        config.notes.append(f"unused here: {', '.join(idle)} (for Python)")


def default_games(config: Config) -> int:
    """Return the default number of games per pair."""
    return GAMES_IN_PYTHON if config.python else GAMES


def spelled_out(argv: Sequence[str]) -> list[str]:
    """Return the words with --players inserted before the players; options may come between.

    Raises:
        UserError: Players are named in both ways.
    """
    first = next((i for i, word in enumerate(argv) if i and not word.startswith("-")), len(argv))
    end = next((i for i in range(first, len(argv)) if argv[i].startswith("-")), len(argv))
    if first == end or argv[0].startswith("-") or any("=" not in word for word in argv[1:first]):
        return list(argv)
    if any(word.partition("=")[0] == "--players" for word in argv):
        raise UserError("players are named behind ENV and with --players", "one of them")
    return [*argv[:first], "--players", *argv[first:]]


def option_parser() -> argparse.ArgumentParser:
    return build_parser(add_options, used=(*USED, *USED_IN_PYTHON))


@reported
def main(argv: list[str]) -> None:
    config, options = parse(argv)
    say_config(config)
    from puffer_mlx.system.devices import select_device

    env, *words = spelled_out(argv)

    def configure(settings: Mapping[str, str], files: Sequence[Path]) -> Config:
        return parse([env, *as_options(settings), *words])[0]

    select_device(config.base.device)
    record = play(config, options, options.players, configure)
    print("\n".join([report(record), *repeated_notes(record, config)]))
    voice.note("" if options.gif else "next  add --gif FILE to watch a game of the first two")
    if options.json:
        write_json(record, options.json)


def as_options(settings: Mapping[str, str]) -> list[str]:
    """Return settings by ``section.key`` as words of a command line."""
    return [f"{option(*key.split('.'))}={text}" for key, text in settings.items()]


def play(
    config: Config,
    options: argparse.Namespace,
    words: Sequence[str],
    configure: "Configure",
    learner: "Player | None" = None,
) -> dict[str, Any]:
    """Play games between pairs of players, and write a GIF of the first pair to ``--gif``.

    Args:
        config: Configuration of the environment.
        options: Parsed options of the command.
        words: Names of the players.
        configure: Returns the user's configuration based on the settings of a policy file.
        learner: Player who meets each of the others; None for games of every pair, with ratings.

    Returns:
        The results as a record for JSON.
    """
    from puffer_mlx import vec
    from puffer_mlx.evaluation.games import agents_of, play_pairs, without_statistics
    from puffer_mlx.evaluation.results import elo
    from puffer_mlx.library import evaluating

    config = without_statistics(config)
    how = options.deterministic
    agents = agents_of(config)
    spec = vec.look_up_spec(config)
    players = [evaluating.find_player(word, config, spec, how, configure) for word in words]
    players = evaluating.numbered([learner, *players] if learner else players)
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
            options.games,
            evaluating.make_plain,
            config.base.seed,
            options.max_steps or MAX_STEPS,
            progress,
        )
    record = evaluating.games_record(players, results, config, how)
    if learner is None:
        ratings = elo({pair: result.independent for pair, result in results.items()}, len(players))
        rated = zip(players, ratings, strict=True)
        record["players"] = [{"name": each.name, "elo": float(rating)} for each, rating in rated]
    return record


def write_game(
    players: Sequence["Player"], config: Config, agents: int, options: argparse.Namespace
) -> None:
    """Write a GIF of one game between the first two players."""
    from puffer_mlx.evaluation.frames import write_gif
    from puffer_mlx.library.evaluating import game_frames

    path = options.gif
    hold = max(1, round(RESULT * options.fps))
    frames = game_frames(players[0], players[1], config, agents, hold)
    write_gif(frames, path, options.fps, options.scale)
    print(f"wrote {relative(path)}, {path.stat().st_size / 1000:,.0f} kB")


# ---- what is shown -------------------------------------------------------------------------------


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on the terminal until the context ends. Yields its update function."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

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


def report(record: dict[str, Any]) -> str:
    """Return the results as tables."""
    players = sorted(record["players"], key=lambda player: -player["elo"])
    width = max(12, *(len(player["name"]) for player in players))
    lines = [*pair_table(record), "", f"{'':{width}}{'Elo':>8}"]
    return "\n".join(
        [*lines, *(f"{player['name']:{width}}{player['elo']:+8.0f}" for player in players)]
    )


def pair_table(record: dict[str, Any], games: str = "games of each pair") -> list[str]:
    """Return the lines of a table of games, grouped by first player."""
    pairs = record["pairs"]
    how = "deterministic" if record["deterministic"] else "sampled actions"
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
    hint = "without --deterministic they differ"
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
