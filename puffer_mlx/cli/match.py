"""Let policies play against each other: puffer-mlx match connect4_two latest random [options]."""

import argparse
from collections.abc import Sequence

from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import add_table, number, reject_unused, say_config
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.config.fit import MAX_STEPS, typed
from puffer_mlx.errors import UserError

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
--json FILE  write all results to a file
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
    config, options = parse_command_line(spelled_out(argv), add_options, used=used, training=False)
    note_unused(config, USED_IN_PYTHON)
    options.games = options.games or default_games(config)
    options.max_steps = options.max_steps or MAX_STEPS
    if not options.gif:
        reject_unused(options, ["fps"], "without --gif", "add it")
    options.fps, options.scale = options.fps or FPS, 1
    if len(options.players) < 2:
        raise UserError(
            f"a match needs two players, and {len(options.players)} were named",
            "two words behind ENV: latest random, say",
        )
    return config, options


def note_unused(config: Config, keys: Sequence[str]) -> None:
    """Add a note about typed keys that have no effect on environments in C."""
    idle = [name for name in keys if typed(config, name) and not config.python]
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
    return build_parser(extra=add_options, used=(*USED, *USED_IN_PYTHON))


@reported
def main(argv: list[str]) -> None:
    config, options = parse(argv)
    say_config(config)
    from puffer_mlx.cli.match_run import run

    env, *words = spelled_out(argv)
    run(config, options, lambda further: parse([env, *further, *words])[0])
