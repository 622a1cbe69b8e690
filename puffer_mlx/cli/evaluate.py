"""The command ``evaluate``: score or watch a policy.

Environments, policy and seed are the checkpoint's, unless options change them.
"""

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from puffer_mlx.cli import match
from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.match import (
    DEFAULT_GAMES,
    DEFAULT_PYTHON_GAMES,
    as_options,
    default_games,
    note_python_keys,
    progress_bar,
)
from puffer_mlx.cli.options import (
    add_option_table,
    make_and_find_family,
    number_type,
    print_next_commands,
    print_notes,
    reject_unused,
)
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.config.command_line import build_parser, typed_options, typed_values
from puffer_mlx.config.fit import MAX_STEPS, is_explicit
from puffer_mlx.config.help import RARE_OPTIONS
from puffer_mlx.config.schema import KEYS
from puffer_mlx.errors import UserError
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.files import relative
from puffer_mlx.system.json_text import write_json

if TYPE_CHECKING:  # imports MLX
    from puffer_mlx.evaluation.episodes import Scores
    from puffer_mlx.evaluation.frames import DrawFunction
    from puffer_mlx.library.evaluating import Configure
    from puffer_mlx.library.policy import Policy
    from puffer_mlx.vec.base import Environments

LADDER_KEYS = ("selfplay.eval_bots", "selfplay.eval_bot_envs", "selfplay.eval_bot_threads")
EVALUATION_KEYS = (  # keys with an effect
    *match.MATCH_KEYS,
    "vec.normalize_observations",
    "vec.normalize_rewards",
    *LADDER_KEYS,
)
PYTHON_EVALUATION_KEYS = (  # keys with an effect only for Python environments
    *match.PYTHON_MATCH_KEYS,
    "train.bootstrap_truncated",
    *(f"wrap.{key}" for key in KEYS["wrap"]),
)
DEFAULT_EPISODES = 1000
DEFAULT_PYTHON_EPISODES = 100
VIDEO_STEPS = 300
VIDEO_FPS = 15.0
MAX_GIF_FPS = 50.0


OPTIONS = f"""
--load-model-path PATH  checkpoint or run folder, RUN_ID, latest, best, or a .safetensors or .bin
    file of ENV's policy; may be typed without the option, after ENV
--deterministic, --greedy  take the most probable action instead of sampling
--episodes, --eval-episodes N  episodes to score, at least; every environment plays the same number
    (default {DEFAULT_EPISODES}, {DEFAULT_PYTHON_EPISODES} in Python; 0 when watching)
--json FILE  write the scores of all episodes to a file; - is stdout
--gif FILE  write a GIF of agent 0
--mp4 FILE  write a video of agent 0
--terminal  show agent 0 in the terminal; Ctrl-C ends it
--window  show the environment's window (c_render or puf_render with raylib)
--steps N  steps to show (default {VIDEO_STEPS}; --terminal, --window: no limit)
--seconds S  time to show, instead of --steps
--fps FPS  steps per second (default: a Python environment's metadata["render_fps"], or
    {VIDEO_FPS:g})
--scale SCALE  enlarge the pixels of a file by this factor (default 1)
"""
GAME_OPTIONS = f"""
--against PLAYER...  play against each of these players
--ladder  play against bot.py at increasing skill levels, or against selfplay.eval_bots
--games N  games against each opponent, half on either side (default
    {DEFAULT_GAMES}, {DEFAULT_PYTHON_GAMES} in Python)
"""
RARE_EVALUATE_OPTIONS = f"""
--max-steps N  stop after N steps of every agent (default {MAX_STEPS:_})
--headless  score without showing, the default; PufferLib 5.0's option
"""
TYPES = {
    "--seconds": number_type(float, 0.001),
    "--fps": number_type(float, 0.1, 1000),
    "--scale": number_type(int, 1, 64),
    "--games": number_type(int, 2, 1e9),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, "evaluate")
    parser.usage = "%(prog)s ENV PATH [--against PLAYER ... | --ladder] [options]"
    add_option_table(parser, "this evaluation", OPTIONS, types=TYPES)
    players = "PLAYER: see puffer-mlx match --help."
    add_option_table(parser, "play against others instead of scoring", GAME_OPTIONS, players, TYPES)
    add_option_table(parser, RARE_OPTIONS, RARE_EVALUATE_OPTIONS)


def parse_evaluate(
    argv: list[str], files: Sequence[str | Path] = ()
) -> tuple[Config, argparse.Namespace]:
    """Parse the command line of ``evaluate``. Returns the configuration and the options."""
    used = (*EVALUATION_KEYS, *PYTHON_EVALUATION_KEYS)
    words = insert_policy_option(argv)
    path = Path(typed_values(typed_options(words[1:])).get("base.load_model_path") or "")
    is_weights_file = path.suffix and not path.is_dir()  # without a configuration
    config, options = parse_command_line(
        words,
        add_options,
        files,
        used=used,
        training=False,
        find_family=make_and_find_family if is_weights_file else None,
    )
    note_python_keys(config, PYTHON_EVALUATION_KEYS)
    typed_keys = [name for name in LADDER_KEYS if is_explicit(config, name)]
    if typed_keys and not options.ladder:
        config.notes.append(f"unused here: {', '.join(typed_keys)} (for --ladder)")
    return config, options


def insert_policy_option(argv: list[str]) -> list[str]:
    """Return a command line of ``evaluate`` with ``--load-model-path`` inserted before the policy.

    So the policy may be typed without the option, as in PufferLib 5.0.

    Raises:
        UserError: If the policy is named twice.
    """
    if len(argv) < 2 or argv[0].startswith("-") or argv[1].startswith("-"):
        return argv
    env, path, *words = argv
    for word in words:
        if word.partition("=")[0].replace("_", "-") == "--load-model-path":
            raise UserError(
                f"the policy is named twice: {path} and --load-model-path", "name it once"
            )
    return [env, "--load-model-path", path, *words]


def set_evaluate_defaults(options: argparse.Namespace, config: Config) -> None:
    """Set the untyped options of ``evaluate`` to their defaults, after checking the others.

    Raises:
        UserError: If no policy is named, or an option has no effect together with the others.
    """
    if not options.load_model_path:
        raise UserError(
            "no policy is named", "add it after ENV: latest, or the folder of a run or checkpoint"
        )
    if options.against or options.ladder:
        set_game_defaults(options, config)
        return
    reject_unused(
        options, ["games"], "without --against or --ladder", "--episodes, or --against random"
    )
    files = options.gif or options.mp4
    shows_episodes = options.shows_episodes = files or options.terminal or options.window
    if shows_episodes and options.headless:
        message = "--headless excludes --gif, --mp4, --terminal and --window"
        raise UserError(message, "use one of them")
    if options.steps and options.seconds:
        raise UserError("--steps and --seconds exclude each other", "use one of them")
    if options.episodes is None:
        default = DEFAULT_PYTHON_EPISODES if config.python else DEFAULT_EPISODES
        options.episodes = 0 if shows_episodes else default
    for required, flags, names in (
        (options.episodes, "--episodes", ("json", "max_steps")),
        (shows_episodes, "--gif, --mp4, --terminal or --window", ("steps", "seconds")),
        (files or options.terminal, "--gif, --mp4 or --terminal", ("fps",)),
        (files, "--gif or --mp4", ("scale",)),
    ):
        if not required:
            reject_unused(options, names, f"without {flags}", "add it")
    options.scale = options.scale or 1


def set_speed(options: argparse.Namespace, config: Config) -> None:
    """Set the frame rate and the number of steps for showing a policy, if they weren't typed."""
    if not options.fps and config.python:
        from puffer_mlx import vec
        from puffer_mlx.vec.gym.make import declared_fps

        options.fps = min(declared_fps(vec.python_factory(config)) or VIDEO_FPS, MAX_GIF_FPS)
    options.fps = options.fps or VIDEO_FPS
    if options.seconds:
        options.steps = max(1, round(options.seconds * options.fps))
    options.video_steps = options.steps or VIDEO_STEPS  # a terminal or a window has no limit


def set_game_defaults(options: argparse.Namespace, config: Config) -> None:
    """Set the defaults of ``evaluate`` for games against other players, after checking the options.

    Raises:
        UserError: If an option has no effect on these games.
    """
    if options.against and options.ladder:
        raise UserError("--against and --ladder exclude each other", "use one of them")
    unused = ["episodes", "mp4", "terminal", "window", "steps", "seconds"]
    reason = "with --against"
    hint = "--games sets the number of games, --gif FILE records one"
    if options.ladder:
        reason = "with --ladder"
        hint = "--games sets the number of games"
        unused += ["gif", "fps", "scale", "max_steps"]
    reject_unused(options, unused, reason, hint)
    if not options.gif:
        reject_unused(options, ["fps", "scale"], "without --gif", "add it")
    options.fps = options.fps or match.GIF_FPS
    options.scale = options.scale or 1
    options.games = options.games or default_games(config)


def option_parser() -> argparse.ArgumentParser:
    return build_parser(add_options, used=(*EVALUATION_KEYS, *PYTHON_EVALUATION_KEYS))


@with_exit_code
def main(argv: list[str]) -> None:
    config, options = parse_evaluate(argv)
    print_notes(config)
    set_evaluate_defaults(options, config)
    from puffer_mlx.evaluation.frames import find_draw
    from puffer_mlx.library import evaluating
    from puffer_mlx.system.devices import select_device
    from puffer_mlx.vec.from_config import source_folder

    env, *words = insert_policy_option(argv)

    def configure(settings: Mapping[str, str], files: Sequence[Path]) -> Config:
        return parse_evaluate([env, *as_options(settings), *words], files)[0]

    select_device(config.base.device)
    policy = evaluating.load_policy(config, options.load_model_path, configure)
    verbosity.detail(f"policy {relative(policy.folder)}")
    if options.against:
        play_against(policy, options, configure)
        return
    if options.ladder:
        play_ladder_games(policy, options)
        return
    if (options.gif or options.mp4 or options.terminal) and not config.python:
        find_draw(source_folder(config))  # report a missing draw.py before scoring
    if options.episodes:
        score_policy(policy, options, env)
    if options.shows_episodes:
        set_speed(options, policy.config)
        show_episodes(policy, options)
        if options.terminal:
            print_next_steps(policy, env, options.load_model_path, after_watching=True)


# ---- scores --------------------------------------------------------------------------------------


def score_policy(policy: "Policy", options: argparse.Namespace, env: str) -> None:
    """Evaluate a policy by complete episodes, print the scores, and write them to ``--json``."""
    from puffer_mlx.library import evaluating

    with progress_bar("episodes") as progress:
        scores = evaluating.evaluate(
            policy,
            episodes=options.episodes,
            deterministic=options.deterministic,
            max_steps=options.max_steps or MAX_STEPS,
            progress=progress,
        )
    print(scores_table(policy.config, scores))
    if options.json:
        write_json(evaluating.scores_record(policy, options.load_model_path, scores), options.json)
    if not options.shows_episodes:
        print_next_steps(policy, env, options.load_model_path)


def print_next_steps(policy: "Policy", env: str, path: str, after_watching: bool = False) -> None:
    """Print commands that the user may type after an evaluation of a policy.

    Args:
        policy: The evaluated policy.
        env: Environment as typed.
        path: Path of the policy as typed.
        after_watching: True after watching, False after scoring.
    """
    from puffer_mlx.vec.from_config import source_folder

    config = policy.config
    commands = []
    if policy.folder.is_dir():
        arguments = f"latest --env {config.env_name}" if path == "latest" else path
        export = f"{program.command('export')} {arguments} --to onnx"
        commands.append((export, "use it in other programs"))
    if after_watching:
        commands.insert(0, (f"{program.command('evaluate')} {env} {path}", "score it"))
    elif config.python or (source_folder(config) / "draw.py").is_file():
        watch = f"{program.command('evaluate')} {env} {path} --terminal"
        commands.insert(0, (watch, "watch it"))
    if commands:
        print_next_commands(*commands)


def scores_table(config: Config, scores: "Scores") -> str:
    """Return the scores of an evaluation as text: a table with one line per metric."""
    how = "deterministic" if scores.deterministic else "sampled actions"
    lines = [
        f"{config.env_name}: {scores.count:,} episodes, {scores.each} from each of"
        f" {scores.environments:,} environments",
        f"{how}, seed {config.base.seed}; {scores.steps:,} steps, {scores.seconds:.1f} s",
    ]
    if summary := scores.summary():
        rows = [["", *next(iter(summary.values()))._fields]]
        for name, spread in summary.items():
            rows.append([name, *(f"{value:,.3f}" for value in spread)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for name, *cells in rows:
            aligned = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
            lines.append("  ".join([f"{name:{widths[0]}}", *aligned]))
    if scores.unfinished:
        lines.append(
            f"{scores.unfinished} of {scores.environments} environments had not finished their"
            f" episodes after {scores.steps:,} steps (--max-steps): long episodes are missing"
        )
    return "\n".join(lines)


# ---- pictures ------------------------------------------------------------------------------------


def show_episodes(policy: "Policy", options: argparse.Namespace) -> None:
    """Play with a policy and show it: as GIF, as video, in the terminal or in a window."""
    from puffer_mlx.evaluation.frames import write_gif, write_mp4
    from puffer_mlx.evaluation.terminal_video import play_in_terminal
    from puffer_mlx.library.evaluating import play

    deterministic = options.deterministic
    for path, write in ((options.gif, write_gif), (options.mp4, write_mp4)):
        if path:
            frames = play(policy, steps=options.video_steps, deterministic=deterministic)
            write(frames, path, options.fps, options.scale)
            print(f"wrote {relative(path)}, {path.stat().st_size / 1000:,.0f} kB")
    if options.terminal:
        frames = play(policy, steps=options.steps, deterministic=deterministic)
        play_in_terminal(frames, options.fps)
    if options.window:
        with contextlib.suppress(WindowClosed):
            for _ in play(
                policy, steps=options.steps, deterministic=deterministic, draw=draw_in_window
            ):
                pass  # c_render limits the frame rate


class WindowClosed(Exception):
    """Raised when the user closes the environment's window."""


def draw_in_window(config: Config, environments: "Environments") -> "DrawFunction":
    """Return a function that shows an environment's state in a window instead of drawing a picture.

    The environment renders itself. The function returns a placeholder picture. It raises
    ``WindowClosed`` after the user closed the window.
    """
    import numpy as np

    def draw(_: np.ndarray) -> np.ndarray:
        image = environments.render()
        if image is False:
            raise WindowClosed
        if image is not True:
            name = environments.spec.name
            hint = "use --terminal, --gif or --mp4"
            raise UserError(f"{name} draws pictures and has no window", hint)
        return np.zeros((1, 1, 3), np.uint8)

    return draw


# ---- games against others ------------------------------------------------------------------------


def play_against(policy: "Policy", options: argparse.Namespace, configure: "Configure") -> None:
    """Play games between a policy and other players, and print the results."""
    from puffer_mlx.library import evaluating

    config = policy.config
    name = evaluating.checkpoint_name(options.load_model_path, policy.folder, config)
    learner = policy.as_player(name, options.deterministic)
    record = match.run_match(config, options, options.against, configure, learner)
    table = match.pair_table(record, "games against each opponent")
    print("\n".join([*table, *match.repeated_games_notes(record, config)]))
    if options.json:
        write_json(record, options.json)


def play_ladder_games(policy: "Policy", options: argparse.Namespace) -> None:
    """Play games between a policy and the scripted opponents, and print the results."""
    from puffer_mlx.evaluation.ladder import unused_bot_keys
    from puffer_mlx.library import evaluating

    verbosity.note(unused_bot_keys(policy.config))
    with progress_bar("games") as progress:
        result = evaluating.play_policy_ladder(
            policy, options.games, options.deterministic, progress
        )
    print(result)
    if options.json:
        inputs = {"policy": options.load_model_path, "seed": policy.config.base.seed}
        write_json({**result.record(), **inputs}, options.json)
