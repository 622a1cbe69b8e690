"""Options of ``match.py``, and the players among its words."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.option_types import number
from puffer_mlx.cli.verbosity import add_verbosity
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.config.fit import typed
from puffer_mlx.errors import UserError
from puffer_mlx.rollout.whole_episodes import MAX_STEPS

OBEYED = (  # keys that a match depends on: it doesn't train
    *("base.seed", "base.device", "base.checkpoint_dir", "policy", "torch", "vec.seed"),
    *("vec.num_threads", "vec.max_threads"),
    "train.algorithm",  # of a file without a configuration: whether states end with episodes
)
OBEYED_IN_PYTHON = (  # those that environments in C don't have
    *("base.family", "vec.total_agents", "vec.backend", "vec.timeout", "vec.rescale_actions"),
)
GAMES = 4096  # PufferLib's number
GAMES_IN_PYTHON = 256
FPS = 2.0  # of a GIF of a game
PLAYERS = """\
PLAYER: a checkpoint's or a run's folder, a RUN_ID, latest, a file of a policy (.safetensors, .bin,
.pt, .onnx: whatever puffer-mlx import reads), random, or bot:SKILL, the environment's scripted
player (SKILL from 0 to 1, 1 if it is left out). The same one may be named twice."""


def add_options(parser: argparse.ArgumentParser) -> None:
    introduce(parser, "match")
    parser.usage = "%(prog)s ENV PLAYER PLAYER [PLAYER ...] [options]"
    group = parser.add_argument_group("this match", PLAYERS)
    group.add_argument(
        "--players",
        nargs="+",
        default=[],
        metavar="PLAYER",
        help="who plays; or the words behind ENV. Each plays each other",
    )
    group.add_argument(
        "--games",
        type=number(int, 2, 1e9),
        metavar="N",
        help="games of each pair, at least, half of them on either side"
        f" (default {GAMES}, {GAMES_IN_PYTHON} in Python)",
    )
    group.add_argument(
        "--greedy",
        action="store_true",
        help="policies take the most probable action instead of drawing one",
    )
    group.add_argument(
        "--max-steps",
        type=number(int, 1, 1e12),
        default=MAX_STEPS,
        metavar="N",
        help=f"give up after so many steps of an environment (default {MAX_STEPS:_})",
    )
    group.add_argument("--json", metavar="FILE", type=Path, help="write all results to a file")
    group.add_argument(
        "--gif",
        metavar="FILE",
        type=Path,
        help="write a GIF of a game of the first two, as the first one sees it",
    )
    group.add_argument(
        "--fps", type=number(float, 0.1, 50), help=f"steps a second of the GIF (default {FPS:g})"
    )
    add_verbosity(parser)


def parse(argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    """The environment's configuration, and this script's own options.

    Raises:
        UserError: anything wrong with them.
    """
    obeyed = (*OBEYED, *OBEYED_IN_PYTHON)
    config, options = parse_command_line(
        spelled_out(argv), add_options, obeyed=obeyed, training=False
    )
    note_idle(config, OBEYED_IN_PYTHON)
    options.games = options.games or usual_games(config)
    if options.fps and not options.gif:
        raise UserError("--fps does nothing without --gif", "add it")
    if len(options.players) < 2:
        raise UserError(
            f"a match needs two players, and {len(options.players)} were named",
            "two words behind ENV: latest random, say",
        )
    return config, options


def note_idle(config: Config, keys: Sequence[str]) -> None:
    """Have the configuration say which keys for environments in Python do nothing in C."""
    idle = [name for name in keys if typed(config, name) and not config.python]
    if idle:
        config.notes.append(f"unused here: {', '.join(idle)} (for Python)")


def usual_games(config: Config) -> int:
    """Of each pair, where nobody says how many."""
    return GAMES_IN_PYTHON if config.python else GAMES


def spelled_out(argv: Sequence[str]) -> list[str]:
    """The words with those behind ENV as --players; files' own settings may stand between.

    Raises:
        UserError: players are named in both ways.
    """
    first = next((i for i, word in enumerate(argv) if i and not word.startswith("-")), len(argv))
    end = next((i for i in range(first, len(argv)) if argv[i].startswith("-")), len(argv))
    if not argv or argv[0].startswith("-") or any("=" not in word for word in argv[1:first]):
        return list(argv)
    if first == end:
        return list(argv)
    if any(word.partition("=")[0] == "--players" for word in argv):
        raise UserError("players are named behind ENV and with --players", "one of them")
    return [argv[0], *argv[1:first], "--players", *argv[first:end], *argv[end:]]
