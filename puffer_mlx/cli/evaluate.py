"""Score or watch a policy: python scripts/evaluate.py breakout --load-model-path latest [options].

Environments, policy and seed are the checkpoint's; options win over them.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import puffer_mlx  # noqa: F401  before MLX: on Linux it gives MLX a fast BLAS

# isort: split
import mlx.core as mx
import numpy as np
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint.environment_statistics import as_trained, restore_statistics
from puffer_mlx.checkpoint.weight_files import load_weights
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.config import Config, parse_command_line, take_notes
from puffer_mlx.config.fit import typed
from puffer_mlx.config.trust import known
from puffer_mlx.display import frames
from puffer_mlx.display.terminal_video import play_in_terminal
from puffer_mlx.errors import UserError
from puffer_mlx.evaluate import Scores, play, score
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import publish
from puffer_mlx.system.json_text import json_text
from puffer_mlx.vec.base import Environments
from puffer_mlx.vec.normalize import Normalized

OBEYED = (  # keys that an evaluation depends on: it doesn't train
    *("base.seed", "base.device", "base.checkpoint_dir", "policy", "torch", "vec.seed"),
    *("vec.num_threads", "vec.max_threads"),
    *("vec.normalize_observations", "vec.normalize_rewards"),
)
OBEYED_IN_PYTHON = (  # those that environments in C don't have
    *("vec.total_agents", "vec.backend", "vec.timeout", "train.bootstrap_truncated"),
)
EPISODES = 1000
EPISODES_IN_PYTHON = 100
NOTHING = np.zeros((1, 1, 3), np.uint8)  # the picture of what is seen elsewhere
ENVIRONMENTS = 1024  # at once at most: the more, the less a step of one costs
PER_AGENT = 10  # episodes at least of each of several agents, on average
STEPS = 300  # of a file
MAX_STEPS = 100_000
FPS = 15.0
FILES = (".safetensors", ".bin", ".pt", ".pth", ".onnx")  # the last three are to be imported
SEEDS = 1_000_003  # from one --seed's environments to the next one's


def number(kind: type, least: float, most: float = 1e12) -> Callable[[str], float]:
    """A parser of numbers in a range; a whole one may be written 1_000 or 1e3."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most or (kind is int and value != int(value)):
            words = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {words} from {least:g} to {most:g}")
        return kind(value)

    return parse


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("this evaluation")
    group.add_argument(
        "--load-model-path",
        metavar="PATH",
        help="what to evaluate: a checkpoint's or a run's folder, a RUN_ID, latest, or a"
        " .safetensors or .bin file of a policy as ENV's configuration describes it",
    )
    group.add_argument(
        "--greedy",
        action="store_true",
        help="take the most probable action instead of drawing one",
    )
    group.add_argument(
        "--episodes",
        "--eval-episodes",
        type=number(int, 1),
        metavar="N",
        help="episodes to score, at least; every environment plays the same number"
        f" (default {EPISODES}, {EPISODES_IN_PYTHON} in Python; none if it is shown)",
    )
    group.add_argument(
        "--max-steps",
        type=number(int, 1),
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
        help="show it in the environment's own window: its c_render, which needs raylib installed",
    )
    length = group.add_mutually_exclusive_group()
    length.add_argument(
        "--steps",
        type=number(int, 1),
        metavar="N",
        help=f"steps to show (default {STEPS}; --terminal, --window: no end)",
    )
    length.add_argument(
        "--seconds", type=number(float, 0.001), metavar="S", help="the same as a time"
    )
    group.add_argument(
        "--fps", type=number(float, 0.1, 1000), help=f"steps a second (default {FPS:g})"
    )
    group.add_argument(
        "--scale",
        type=number(int, 1, 64),
        help="pixels a side for each pixel of a file (default 1)",
    )


def parse(
    argv: list[str], files: Sequence[str | Path] = (), images: bool = False
) -> tuple[Config, argparse.Namespace]:
    """The configuration to evaluate with, and this script's own options."""
    obeyed = (*OBEYED, *OBEYED_IN_PYTHON)
    config, options = parse_command_line(
        argv, add_options, files, images, obeyed=obeyed, training=False
    )
    idle = [name for name in OBEYED_IN_PYTHON if typed(config, name) and not config.python]
    if idle:
        config.notes.append(f"unused here: {', '.join(idle)} (for Python)")
    return config, options


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
    files = options.gif or options.mp4
    shown = options.shown = files or options.terminal or options.window
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


class Player(NamedTuple):
    """Who plays where."""

    config: Config
    policy: Policy
    weights: Any
    agents: int  # of one environment
    source: Path  # the checkpoint's folder, or the file


def probe(config: Config) -> Environments:
    """Environments to be asked what they are, as many of them as go into one group."""
    one_group = replace(config.vec, num_buffers=1)
    return vec.make(replace(config, vec=one_group, origins={}, notes=[]), 1)


def load(argv: list[str], config: Config, path: str) -> Player:
    """What ``--load-model-path`` names, and the configuration to evaluate it with."""
    if Path(path).suffix in FILES and not Path(path).is_dir():
        config = as_trained(config, Path(path))
        with probe(config) as made:
            spec, agents = made.spec, made.num_agents // made.num_environments
        if config.python and spec.observation_shape:
            config = as_trained(parse(argv, images=True)[0], Path(path))
        policy = configured_policy(spec, config)
        weights = load_weights(path, policy.init(mx.random.key(0)))
        return Player(config, policy, weights, agents, Path(path))
    found = checkpoint.load(checkpoint.find(path, config), known(config))
    config, _ = parse(argv, [found.folder / "config.ini"])
    config = as_trained(config, found.folder)
    for section in ("policy", "torch"):
        own, asked = getattr(found.config, section), getattr(config, section)
        if own != asked:
            key = next(k for k, v in vars(own).items() if v != getattr(asked, k))
            raise UserError(
                f"{section}.{key} {getattr(asked, key)} contradicts the checkpoint's"
                f" {getattr(own, key)}",
                "leave it out: the policy is the checkpoint's",
            )
    with probe(config) as made:
        if replace(made.spec, name="") != replace(found.spec, name=""):
            raise UserError(
                f"{found.folder} is a policy for {described(found.spec)},"
                f" but {config.env_name} has {described(made.spec)}",
                f"evaluate it on {found.config.env_name}",
            )
        agents = made.num_agents // made.num_environments
    return Player(config, found.policy, found.weights, agents, found.folder)


def described(spec: EnvSpec) -> str:
    """What an environment shows and takes, in words."""
    shape = f" of shape {spec.observation_shape}" if spec.observation_shape else ""
    mask = ", masked" if spec.mask_size else ""
    return (
        f"{spec.observation_size} {spec.observation_dtype} observations{shape}"
        f" and action sizes {spec.action.sizes}{mask}"
    )


def environments(player: Player, count: int, render: bool = False) -> Environments:
    """So many environments, whose seeds no other --seed shares; ``render``: to be drawn."""
    config = player.config
    settings = replace(
        config.vec,
        total_agents=count * player.agents,
        num_buffers=1,
        seed=(config.vec.seed + SEEDS * config.base.seed) % 2**31,
    )
    made = vec.make(replace(config, vec=settings), threads(), render=render)
    restore_statistics(made, player.source, frozen=True)
    return made


def measure(player: Player, options: argparse.Namespace) -> Scores:
    """Play the episodes, with progress on a terminal."""
    config = player.config
    most = config.vec.total_agents // player.agents if config.python else ENVIRONMENTS
    each = -(-options.episodes // most)
    if player.agents > 1:  # who of several agents ends first ends quickly: more episodes of each
        each = max(each, min(PER_AGENT * player.agents, options.episodes))
    console = Console(stderr=True)
    columns = ("episodes", *Progress.get_default_columns()[1:2])
    with (
        environments(player, -(-options.episodes // each)) as envs,
        Progress(
            *columns,
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
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


def report(player: Player, options: argparse.Namespace, scores: Scores) -> str:
    """The scores as a table."""
    how = "greedy" if options.greedy else "stochastic"
    lines = [
        f"{player.config.env_name}: {scores.count:,} episodes, {scores.each} from each of"
        f" {scores.environments} environments; {how}, seed {player.config.base.seed};"
        f" {scores.steps:,} steps, {scores.seconds:.1f} s"
    ]
    if summary := scores.summary():
        lines.append(f"{'':24}" + "".join(f"{n:>12}" for n in next(iter(summary.values()))._fields))
        for name, spread in summary.items():
            lines.append(f"{name:24}" + "".join(f"{value:12,.3f}" for value in spread))
    if scores.unfinished:
        lines.append(
            f"{scores.unfinished} of {scores.environments} environments had not ended their"
            f" episodes after {scores.steps:,} steps (--max-steps): long episodes are missing"
        )
    return "\n".join(lines)


def record(player: Player, options: argparse.Namespace, scores: Scores) -> dict[str, Any]:
    """The scores as JSON."""
    return {
        "environment": player.config.env_name,
        "policy": options.load_model_path,
        "greedy": options.greedy,
        "seed": player.config.base.seed,
        "steps": scores.steps,
        "unfinished": scores.unfinished,
        "summary": {name: spread._asdict() for name, spread in scores.summary().items()},
        "episodes": scores.episodes,
    }


def show(player: Player, options: argparse.Namespace, draw: frames.Draw | None) -> None:
    """Write the files asked for, and play in the terminal or in a window."""

    def played(steps: int | None, window: bool = False) -> Iterator[frames.Frame]:
        with environments(player, 1, render=True) as envs:
            yield from play(
                player.policy,
                player.weights,
                envs,
                drawing(envs, None if window else draw, window),
                seed=player.config.base.seed,
                greedy=options.greedy,
                steps=steps,
            )

    for path, write in ((options.gif, frames.write_gif), (options.mp4, frames.write_mp4)):
        if path:
            write(played(options.steps or STEPS), path, options.fps, options.scale or 1)
            print(f"wrote {path}, {path.stat().st_size / 1000:,.0f} kB")
    if options.terminal:
        play_in_terminal(played(options.steps), options.fps)
    if options.window:
        with contextlib.suppress(WindowClosed):
            for _ in played(options.steps, window=True):
                pass  # the environment's c_render keeps the time


class WindowClosed(Exception):
    """By the person who watched."""


def drawing(envs: Environments, draw: frames.Draw | None, window: bool) -> frames.Draw:
    """What makes the picture of a step: the environment itself, or its draw.py."""

    def drawn(_: np.ndarray) -> np.ndarray:
        image = envs.render()
        if image is False:
            raise WindowClosed
        if isinstance(image, bool) and window:
            return NOTHING
        if isinstance(image, bool) or window:
            what = "in a window of its own" if isinstance(image, bool) else "pictures, no window"
            hint = "--window" if isinstance(image, bool) else "--terminal, --gif or --mp4"
            raise UserError(f"{envs.spec.name} draws {what}", hint)
        return image

    if draw is None:
        return drawn
    if isinstance(envs, Normalized):
        return lambda observation: draw(envs.raw(observation))
    return draw


def evaluate(argv: list[str]) -> None:
    config, options = parse(argv)
    for line in take_notes(config):
        print(line)
    settle(options, config)
    select_device(config.base.device)
    player = load(argv, config, options.load_model_path)
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


@reported
def main(argv: list[str]) -> None:
    evaluate(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
