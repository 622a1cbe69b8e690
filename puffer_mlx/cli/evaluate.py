"""Score or watch a policy: puffer-mlx evaluate breakout latest [options].

Environments, policy and seed come from the checkpoint; options override them.
"""

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from puffer_mlx.cli import match
from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.match import (
    GAMES,
    GAMES_IN_PYTHON,
    as_options,
    default_games,
    note_unused,
    progress_bar,
)
from puffer_mlx.cli.options import (
    add_table,
    find_family,
    number,
    reject_unused,
    say_config,
    say_next,
)
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.config.command_line import build_parser, typed_options, typed_values
from puffer_mlx.config.fit import MAX_STEPS, is_explicit
from puffer_mlx.config.help import RARE_OPTIONS
from puffer_mlx.config.schema import KEYS
from puffer_mlx.errors import UserError
from puffer_mlx.system import program, voice
from puffer_mlx.system.files import relative
from puffer_mlx.system.json_text import write_json

if TYPE_CHECKING:  # imports MLX
    from puffer_mlx.evaluation.episodes import Scores
    from puffer_mlx.evaluation.frames import Draw
    from puffer_mlx.library.evaluating import Configure
    from puffer_mlx.library.policy import Policy
    from puffer_mlx.vec.base import Environments

LADDER = ("selfplay.eval_bots", "selfplay.eval_bot_envs", "selfplay.eval_bot_threads")
USED = (  # keys with an effect on an evaluation
    *match.USED,
    *("vec.normalize_observations", "vec.normalize_rewards", *LADDER),
)
USED_IN_PYTHON = (  # keys for environments in Python only
    *match.USED_IN_PYTHON,
    *("train.bootstrap_truncated", *(f"wrap.{key}" for key in KEYS["wrap"])),
)
EPISODES = 1000
EPISODES_IN_PYTHON = 100
STEPS = 300  # length of a GIF or video
FPS = 15.0
MOST_FPS = 50.0  # of a GIF


OPTIONS = f"""
--load-model-path PATH  or the second word: a checkpoint's or a run's folder, a RUN_ID, latest,
    best, or a .safetensors or .bin file of ENV's policy
--deterministic, --greedy  take the most probable action; else actions are sampled, as in
    training
--episodes, --eval-episodes N  episodes to score, at least; every environment plays the same number
    (default {EPISODES}, {EPISODES_IN_PYTHON} in Python; none if it is shown)
--json FILE  write every episode to a file; - is stdout
--gif FILE  write a GIF of agent 0
--mp4 FILE  write a video of agent 0
--terminal  show agent 0 in the terminal; Ctrl-C ends it
--window  show it in the environment's own window: its c_render or puf_render, and raylib
--steps N  steps to show (default {STEPS}; --terminal, --window: no end)
--seconds S  the same as a time
--fps FPS  steps a second (default metadata["render_fps"] of a Python environment, else {FPS:g})
--scale SCALE  pixels a side for each pixel of a file (default 1)
"""
AGAINST = f"""
--against PLAYER...  have it play against each of these; with --deterministic, --json, --gif, ...
--ladder  have it play against bot.py at several skills, or selfplay.eval_bots; with
    --deterministic, --json
--games N  games against each, half on either side (default {GAMES}, {GAMES_IN_PYTHON} in Python)
"""
RARE = f"""
--max-steps N  end the scoring after so many steps of every agent (default {MAX_STEPS:_})
--headless  PufferLib 5.0's word for scoring without showing, which is what happens anyway
"""
TYPES = {
    "--seconds": number(float, 0.001),
    "--fps": number(float, 0.1, 1000),
    "--scale": number(int, 1, 64),
    "--games": number(int, 2, 1e9),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    introduce(parser, "evaluate")
    parser.usage = "%(prog)s ENV PATH [--against PLAYER ... | --ladder] [options]"
    add_table(parser, "this evaluation", OPTIONS, types=TYPES)
    players = "PLAYER: as puffer-mlx match takes them."
    add_table(parser, "against others, instead of scores", AGAINST, players, TYPES)
    add_table(parser, RARE_OPTIONS, RARE)


def parse(argv: list[str], files: Sequence[str | Path] = ()) -> tuple[Config, argparse.Namespace]:
    """Return the configuration of the evaluation and this script's own options."""
    used = (*USED, *USED_IN_PYTHON)
    words = spelled_out(argv)
    path = Path(typed_values(typed_options(words[1:])).get("base.load_model_path") or "")
    bare = path.suffix and not path.is_dir()  # weights without a configuration
    config, options = parse_command_line(
        words,
        add_options,
        files,
        used=used,
        training=False,
        find_family=find_family if bare else None,
    )
    note_unused(config, USED_IN_PYTHON)
    if idle := [name for name in LADDER if is_explicit(config, name) and not options.ladder]:
        config.notes.append(f"unused here: {', '.join(idle)} (for --ladder)")
    return config, options


def spelled_out(argv: list[str]) -> list[str]:
    """Return the words with --load-model-path inserted before the policy, as in PufferLib 5.0.

    Raises:
        UserError: The policy is named twice.
    """
    if len(argv) < 2 or argv[0].startswith("-") or argv[1].startswith("-"):
        return argv
    env, path, *words = argv
    for word in words:
        if word.partition("=")[0].replace("_", "-") == "--load-model-path":
            raise UserError(f"the policy is named twice: {path} and --load-model-path", "once")
    return [env, "--load-model-path", path, *words]


def settle(options: argparse.Namespace, config: Config) -> None:
    """Refuse options without effect and fill in the defaults of the others.

    Raises:
        UserError: No policy is named, or an option has no effect here.
    """
    if not options.load_model_path:
        raise UserError(
            "no policy is named", "a word after ENV: latest, or a run's or a checkpoint's folder"
        )
    if options.against or options.ladder:
        settle_against(options, config)
        return
    reject_unused(
        options, ["games"], "without --against or --ladder", "--episodes, or --against random"
    )
    files = options.gif or options.mp4
    shown = options.shown = files or options.terminal or options.window
    if shown and options.headless:
        raise UserError("--headless shows nothing, and something is to be shown", "one of them")
    if options.steps and options.seconds:
        raise UserError("--steps and --seconds are given", "one of them")
    if options.episodes is None:
        usual = EPISODES_IN_PYTHON if config.python else EPISODES
        options.episodes = 0 if shown else usual
    for needed, words, names in (
        (options.episodes, "--episodes", ("json", "max_steps")),
        (shown, "--gif, --mp4, --terminal or --window", ("steps", "seconds")),
        (files or options.terminal, "--gif, --mp4 or --terminal", ("fps",)),
        (files, "--gif or --mp4", ("scale",)),
    ):
        if not needed:
            reject_unused(options, names, f"without {words}", "add it")
    options.scale = options.scale or 1


def set_speed(options: argparse.Namespace, config: Config) -> None:
    """Fill in the steps per second and the number of steps of what is shown."""
    if not options.fps and config.python:
        from puffer_mlx import vec
        from puffer_mlx.vec.gym.make import declared_fps

        options.fps = min(declared_fps(vec.python_factory(config)) or FPS, MOST_FPS)
    options.fps = options.fps or FPS
    if options.seconds:
        options.steps = max(1, round(options.seconds * options.fps))
    options.film = options.steps or STEPS  # a terminal or a window has no limit


def settle_against(options: argparse.Namespace, config: Config) -> None:
    """Refuse options without effect on games against others, and fill in the defaults.

    Raises:
        UserError: An option has no effect.
    """
    if options.against and options.ladder:
        raise UserError("--against and --ladder are given", "one of them")
    idle = ["episodes", "mp4", "terminal", "window", "steps", "seconds"]
    how, hint = "with --against", "--games says how many, --gif FILE shows one"
    if options.ladder:
        how, hint = "with --ladder", "--games says how many"
        idle += ["gif", "fps", "scale", "max_steps"]
    reject_unused(options, idle, how, hint)
    if not options.gif:
        reject_unused(options, ["fps", "scale"], "without --gif", "add it")
    options.fps = options.fps or match.FPS
    options.scale = options.scale or 1
    options.games = options.games or default_games(config)


def option_parser() -> argparse.ArgumentParser:
    return build_parser(add_options, used=(*USED, *USED_IN_PYTHON))


@reported
def main(argv: list[str]) -> None:
    config, options = parse(argv)
    say_config(config)
    settle(options, config)
    from puffer_mlx.evaluation.frames import find_draw
    from puffer_mlx.library import evaluating
    from puffer_mlx.system.devices import select_device
    from puffer_mlx.vec.from_config import source_folder

    env, *words = spelled_out(argv)

    def configure(settings: Mapping[str, str], files: Sequence[Path]) -> Config:
        return parse([env, *as_options(settings), *words], files)[0]

    select_device(config.base.device)
    policy = evaluating.load_policy(config, options.load_model_path, configure)
    voice.detail(f"policy {relative(policy.folder)}")
    if options.against:
        play_against(policy, options, configure)
        return
    if options.ladder:
        play_ladder(policy, options)
        return
    if (options.gif or options.mp4 or options.terminal) and not config.python:
        find_draw(source_folder(config))  # report a missing draw.py before scoring
    if options.episodes:
        score(policy, options, env)
    if options.shown:
        set_speed(options, policy.config)
        show(policy, options)
        if options.terminal:
            say_steps(policy, env, options.load_model_path, watched=True)


# ---- scores --------------------------------------------------------------------------------------


def score(policy: "Policy", options: argparse.Namespace, env: str) -> None:
    """Play the episodes, print the scores, and write them to ``--json``."""
    from puffer_mlx.library import evaluating

    with progress_bar("episodes") as progress:
        scores = evaluating.evaluate(
            policy,
            episodes=options.episodes,
            deterministic=options.deterministic,
            max_steps=options.max_steps or MAX_STEPS,
            progress=progress,
        )
    print(report(policy.config, scores))
    if options.json:
        write_json(evaluating.scores_record(policy, options.load_model_path, scores), options.json)
    if not options.shown:
        say_steps(policy, env, options.load_model_path)


def say_steps(policy: "Policy", env: str, path: str, watched: bool = False) -> None:
    """Print what to type after an evaluation.

    Args:
        policy: The policy.
        env: Environment as typed.
        path: Path of the policy as typed.
        watched: True after watching, False after scoring.
    """
    from puffer_mlx.vec.from_config import source_folder

    config = policy.config
    steps = []
    if policy.folder.is_dir():
        which = f"latest --env {config.env_name}" if path == "latest" else path
        steps.append((f"{program.command('export')} {which} --to onnx", "use it elsewhere"))
    if watched:
        steps = [(f"{program.command('evaluate')} {env} {path}", "score it"), *steps]
    elif config.python or (source_folder(config) / "draw.py").is_file():
        steps = [(f"{program.command('evaluate')} {env} {path} --terminal", "watch it"), *steps]
    if steps:
        say_next(*steps)


def report(config: Config, scores: "Scores") -> str:
    """Return the scores as a table."""
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
            f"{scores.unfinished} of {scores.environments} environments had not ended their"
            f" episodes after {scores.steps:,} steps (--max-steps): long episodes are missing"
        )
    return "\n".join(lines)


# ---- pictures ------------------------------------------------------------------------------------


def show(policy: "Policy", options: argparse.Namespace) -> None:
    """Write the requested GIF and video, and play in the terminal or in a window."""
    from puffer_mlx.evaluation.frames import write_gif, write_mp4
    from puffer_mlx.evaluation.terminal_video import play_in_terminal
    from puffer_mlx.library.evaluating import play

    how = options.deterministic
    for path, write in ((options.gif, write_gif), (options.mp4, write_mp4)):
        if path:
            frames = play(policy, steps=options.film, deterministic=how)
            write(frames, path, options.fps, options.scale)
            print(f"wrote {relative(path)}, {path.stat().st_size / 1000:,.0f} kB")
    if options.terminal:
        play_in_terminal(play(policy, steps=options.steps, deterministic=how), options.fps)
    if options.window:
        with contextlib.suppress(WindowClosed):
            for _ in play(policy, steps=options.steps, deterministic=how, draw=in_window):
                pass  # c_render limits the frame rate


class WindowClosed(Exception):
    """The user closed the window."""


def in_window(config: Config, environments: "Environments") -> "Draw":
    """Return a draw function that renders in the environment's own window.

    It returns a placeholder picture and raises ``WindowClosed`` when the user closes the window.
    """
    import numpy as np

    def draw(_: np.ndarray) -> np.ndarray:
        image = environments.render()
        if image is False:
            raise WindowClosed
        if image is not True:
            name = environments.spec.name
            raise UserError(f"{name} draws pictures, no window", "--terminal, --gif or --mp4")
        return np.zeros((1, 1, 3), np.uint8)

    return draw


# ---- games against others ------------------------------------------------------------------------


def play_against(policy: "Policy", options: argparse.Namespace, configure: "Configure") -> None:
    """Play games against other players and print the results."""
    from puffer_mlx.library import evaluating

    config = policy.config
    name = evaluating.name_of(options.load_model_path, policy.folder, config)
    learner = policy.as_player(name, options.deterministic)
    record = match.play(config, options, options.against, configure, learner)
    table = match.pair_table(record, "games against each")
    print("\n".join([*table, *match.repeated_notes(record, config)]))
    if options.json:
        write_json(record, options.json)


def play_ladder(policy: "Policy", options: argparse.Namespace) -> None:
    """Play games against the environment's scripted opponents and print the results."""
    from puffer_mlx.evaluation.ladder import unused_note
    from puffer_mlx.library import evaluating

    voice.note(unused_note(policy.config))
    with progress_bar("games") as progress:
        result = evaluating.play_ladder(policy, options.games, options.deterministic, progress)
    print(result)
    if options.json:
        inputs = {"policy": options.load_model_path, "seed": policy.config.base.seed}
        write_json({**result.record(), **inputs}, options.json)
