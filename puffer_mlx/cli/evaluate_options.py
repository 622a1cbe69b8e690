"""Options of ``evaluate.py``: which there are, and what they need."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.match_options import (
    GAMES,
    GAMES_IN_PYTHON,
    note_idle,
    usual_games,
)
from puffer_mlx.cli.option_types import number
from puffer_mlx.cli.verbosity import add_verbosity
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.config.fit import typed
from puffer_mlx.config.schema import KEYS
from puffer_mlx.errors import UserError
from puffer_mlx.rollout.whole_episodes import MAX_STEPS

LADDER = ("selfplay.eval_bots", "selfplay.eval_bot_envs", "selfplay.eval_bot_threads")
OBEYED = (  # keys that an evaluation depends on: it doesn't train
    *("base.seed", "base.device", "base.checkpoint_dir", "policy", "torch", "vec.seed"),
    *("vec.num_threads", "vec.max_threads"),
    *("vec.normalize_observations", "vec.normalize_rewards"),
    *LADDER,
    "train.algorithm",  # of a file without a configuration: whether states end with episodes
)
OBEYED_IN_PYTHON = (  # those that environments in C don't have
    *("base.family", "vec.total_agents", "vec.backend", "vec.timeout"),
    *("vec.rescale_actions", "train.bootstrap_truncated"),
    *(f"wrap.{key}" for key in KEYS["wrap"]),
)
EPISODES = 1000
EPISODES_IN_PYTHON = 100
STEPS = 300  # of a file
FPS = 15.0


def add_options(parser: argparse.ArgumentParser) -> None:
    introduce(parser, "evaluate")
    parser.usage = "%(prog)s ENV PATH [--against PLAYER ... | --ladder] [options]"
    group = parser.add_argument_group("this evaluation")
    group.add_argument(
        "--load-model-path",
        metavar="PATH",
        help="or the second word: a checkpoint's or a run's folder, a RUN_ID, latest, or a"
        " .safetensors or .bin file of ENV's policy",
    )
    group.add_argument(
        "--headless",
        action="store_true",
        help="PufferLib 5.0's word for scoring without showing, which is what happens anyway",
    )
    group.add_argument(
        "--greedy",
        action="store_true",
        help="take the most probable action; else it is drawn, as in training",
    )
    group.add_argument(
        "--episodes",
        "--eval-episodes",
        type=number(int, 1, 1e12),
        metavar="N",
        help="episodes to score, at least; every environment plays the same number"
        f" (default {EPISODES}, {EPISODES_IN_PYTHON} in Python; none if it is shown)",
    )
    group.add_argument(
        "--max-steps",
        type=number(int, 1, 1e12),
        metavar="N",
        help=f"end the scoring after so many steps of every agent (default {MAX_STEPS:_})",
    )
    group.add_argument("--json", metavar="FILE", type=Path, help="write every episode to a file")
    group.add_argument("--gif", metavar="FILE", type=Path, help="write a GIF of agent 0")
    group.add_argument("--mp4", metavar="FILE", type=Path, help="write a video of agent 0")
    group.add_argument(
        "--terminal", action="store_true", help="show agent 0 in the terminal; Ctrl-C ends it"
    )
    group.add_argument(
        "--window",
        action="store_true",
        help="show it in the environment's own window: its c_render or puf_render, and raylib",
    )
    length = group.add_mutually_exclusive_group()
    length.add_argument(
        "--steps",
        type=number(int, 1, 1e12),
        metavar="N",
        help=f"steps to show (default {STEPS}; --terminal, --window: no end)",
    )
    length.add_argument(
        "--seconds", type=number(float, 0.001, 1e12), metavar="S", help="the same as a time"
    )
    group.add_argument(
        "--fps", type=number(float, 0.1, 1000), help=f"steps a second (default {FPS:g})"
    )
    group.add_argument(
        "--scale",
        type=number(int, 1, 64),
        help="pixels a side for each pixel of a file (default 1)",
    )
    opponents = parser.add_argument_group(
        "against others, instead of scores", "PLAYER: as puffer-mlx match takes them."
    )
    opponents.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="PLAYER",
        help="have it play against each of these; with --greedy, --json, --gif, ...",
    )
    opponents.add_argument(
        "--ladder",
        action="store_true",
        help="have it play against bot.py at several skills, or selfplay.eval_bots; with"
        " --greedy, --json",
    )
    opponents.add_argument(
        "--games",
        type=number(int, 2, 1e9),
        metavar="N",
        help="games against each, half on either side"
        f" (default {GAMES}, {GAMES_IN_PYTHON} in Python)",
    )
    add_verbosity(parser)


def parse(argv: list[str], files: Sequence[str | Path] = ()) -> tuple[Config, argparse.Namespace]:
    """The configuration to evaluate with, and this script's own options."""
    obeyed = (*OBEYED, *OBEYED_IN_PYTHON)
    config, options = parse_command_line(
        spelled_out(argv), add_options, files, obeyed=obeyed, training=False
    )
    note_idle(config, OBEYED_IN_PYTHON)
    if idle := [name for name in LADDER if typed(config, name) and not options.ladder]:
        config.notes.append(f"unused here: {', '.join(idle)} (for --ladder)")
    return config, options


def spelled_out(argv: list[str]) -> list[str]:
    """The words with the second one, if it is no option, as --load-model-path: PufferLib 5.0's way.

    Raises:
        UserError: the policy is named twice.
    """
    if len(argv) < 2 or argv[0].startswith("-") or argv[1].startswith("-"):
        return argv
    env, path, *words = argv
    for word in words:
        if word.partition("=")[0].replace("_", "-") == "--load-model-path":
            raise UserError(f"the policy is named twice: {path} and --load-model-path", "once")
    return [env, "--load-model-path", path, *words]


def settle(options: argparse.Namespace, config: Config) -> None:
    """Refuse options that would do nothing, and fill in what was left out.

    Raises:
        UserError: no policy is named, or an option needs another one.
    """
    if not options.load_model_path:
        raise UserError(
            "--load-model-path is missing: what is to be evaluated?",
            "--load-model-path latest, or a run's or a checkpoint's folder",
        )
    if options.against or options.ladder:
        settle_against(options, config)
        return
    if options.games is not None:
        raise UserError(
            "--games does nothing without --against or --ladder", "--episodes, or --against random"
        )
    files = options.gif or options.mp4
    shown = options.shown = files or options.terminal or options.window
    if shown and options.headless:
        raise UserError("--headless shows nothing, and something is to be shown", "one of them")
    if options.episodes is None:
        usual = EPISODES_IN_PYTHON if config.python else EPISODES
        options.episodes = 0 if shown else usual
    for needed, words, names in (
        (options.episodes, "--episodes", ("json", "max_steps")),
        (shown, "--gif, --mp4, --terminal or --window", ("steps", "seconds")),
        (files or options.terminal, "--gif, --mp4 or --terminal", ("fps",)),
        (files, "--gif or --mp4", ("scale",)),
    ):
        for name in names:
            if not needed and getattr(options, name) is not None:
                option = name.replace("_", "-")
                raise UserError(f"--{option} does nothing without {words}", "add it")
    options.fps = options.fps or FPS
    if options.seconds:
        options.steps = max(1, round(options.seconds * options.fps))


def settle_against(options: argparse.Namespace, config: Config) -> None:
    """The same for games against others.

    Raises:
        UserError: as ``settle``.
    """
    if options.against and options.ladder:
        raise UserError("--against and --ladder are given", "one of them")
    how = "--against" if options.against else "--ladder"
    idle = ["episodes", "mp4", "terminal", "window", "steps", "seconds"]
    idle += [] if options.against else ["gif", "fps", "scale", "max_steps"]
    for name in idle:
        if getattr(options, name):
            hint = "--games says how many" + (", --gif FILE shows one" * bool(options.against))
            raise UserError(f"--{name.replace('_', '-')} does nothing with {how}", hint)
    for name in ("fps", "scale"):
        if getattr(options, name) and not options.gif:
            raise UserError(f"--{name} does nothing without --gif", "add it")
    options.games = options.games or usual_games(config)
