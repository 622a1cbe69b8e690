"""The work of ``evaluate`` after parsing: play, print scores, write files."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint.environment_statistics import (
    check_action_scale,
    read_statistics,
    restore_statistics,
    with_saved_preprocessing,
)
from puffer_mlx.checkpoint.weight_files import load_weights
from puffer_mlx.cli import match_run
from puffer_mlx.cli.match_run import progress_bar
from puffer_mlx.config import Config
from puffer_mlx.config.trust import known
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.playing import frames, ladder
from puffer_mlx.playing import players as match_players
from puffer_mlx.playing.episode_videos import drawing
from puffer_mlx.playing.episodes import (
    MAX_STEPS,
    AgentStepper,
    Scores,
    arena,
    environments_for,
    frames_of,
    most_environments,
    score,
)
from puffer_mlx.playing.matches import agents_of, without_statistics
from puffer_mlx.playing.terminal_video import play_in_terminal
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.system import voice
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import relative
from puffer_mlx.system.json_text import write_json
from puffer_mlx.vec.base import Environments

FILES = (".safetensors", ".bin", ".pt", ".pth", ".onnx")  # .pt, .pth and .onnx need an import
BLACK = np.zeros((1, 1, 3), np.uint8)  # placeholder frame when a window shows the environment


class Player(NamedTuple):
    """A loaded policy and the configuration of its environment."""

    config: Config
    policy: Policy
    weights: Any
    agents: int  # agents per environment
    source: Path  # checkpoint folder or weights file, absolute

    def stepper(self, environments: Environments, greedy: bool) -> AgentStepper:
        """Return a stepper that runs the policy in these environments."""
        seed = self.config.base.seed
        return AgentStepper(self.policy, self.weights, environments, seed, greedy)


def run(config: Config, options: argparse.Namespace, reparse: match_run.Reparse) -> None:
    """Score the policy, show it, or let it play against others."""
    select_device(config.base.device)
    player = load(config, options.load_model_path, reparse)
    voice.detail(f"policy {relative(player.source)}")
    if options.against:
        play_against(player, options, reparse)
        return
    if options.ladder:
        climb(player, options)
        return
    if (options.gif or options.mp4 or options.terminal) and not config.python:
        frames.find_draw(vec.source_folder(config))  # report a missing draw.py before scoring
    if options.episodes:
        scores = measure(player, options)
        print(report(player, options, scores))
        if options.json:
            write_json(record(player, options, scores), options.json)
    if options.shown:
        show(player, options)


# ---- the policy, and the environments that it plays in -------------------------------------------


def load(config: Config, path: str, reparse: match_run.Reparse) -> Player:
    """Load the policy that ``--load-model-path`` names.

    Args:
        config: Configuration from the command line.
        path: Checkpoint, run, or weights file.
        reparse: Parses the command line again with further files.

    Raises:
        UserError: The weights don't fit the environment or the options.
    """
    if Path(path).suffix in FILES and not Path(path).is_dir():
        vec.settle_family(config)
        config = with_saved_preprocessing(config, Path(path))
        with vec.probe(config) as probe:
            spec, agents = probe.spec, probe.num_agents // probe.num_environments
        policy = configured_policy(spec, config)
        weights = load_weights(path, policy.init(mx.random.key(0)))
        return Player(config, policy, weights, agents, Path(path).absolute())
    saved = checkpoint.load(checkpoint.find(path, config), known(config))
    config = reparse(files=[saved.folder / checkpoint.CONFIG])
    config = with_saved_preprocessing(config, saved.folder)
    for section in ("policy", "torch"):
        trained, chosen = getattr(saved.config, section), getattr(config, section)
        if trained != chosen:
            key = next(k for k, v in vars(trained).items() if v != getattr(chosen, k))
            raise UserError(
                f"{section}.{key} {getattr(chosen, key)} contradicts the checkpoint's"
                f" {getattr(trained, key)}",
                "leave it out: the policy is the checkpoint's",
            )
    with vec.probe(config) as probe:
        if not probe.spec.is_like(saved.spec):
            raise UserError(
                f"{saved.folder} is a policy for {saved.spec.described()},"
                f" but {config.env_name} has {probe.spec.described()}",
                f"evaluate it on {saved.config.env_name}",
            )
        agents = probe.num_agents // probe.num_environments
    return Player(config, saved.policy, saved.weights, agents, saved.folder.absolute())


def environments(player: Player, count: int, render: bool = False) -> Environments:
    """Create environments with seeds that no other --seed shares.

    Args:
        player: Policy to play.
        count: Number of environments.
        render: True if frames will be drawn.
    """
    config = arena(player.config, count, player.agents, player.config.base.seed)
    return ready(config, player.source, render)


def ready(config: Config, source: Path, render: bool = False) -> Environments:
    """Create environments with the observation and action conversion of a saved policy.

    Args:
        config: Configuration of the environments.
        source: Checkpoint folder or weights file.
        render: True if frames will be drawn.
    """
    environments = vec.make(config, threads(), render=render)
    restore_statistics(environments, source, frozen=True)
    check_action_scale(environments, source)
    return environments


# ---- scores --------------------------------------------------------------------------------------


def measure(player: Player, options: argparse.Namespace) -> Scores:
    """Play the episodes and show progress on a terminal."""
    config = player.config
    most = most_environments(config, player.agents)
    count = environments_for(options.episodes, most, player.agents)
    with environments(player, count) as envs, progress_bar("episodes") as progress:
        stepper, steps = player.stepper(envs, options.greedy), options.max_steps or MAX_STEPS
        return score(stepper, options.episodes, max_steps=steps, progress=progress)


def report(player: Player, options: argparse.Namespace, scores: Scores) -> str:
    """Return the scores as a table."""
    how = "greedy" if options.greedy else "stochastic"
    lines = [
        f"{player.config.env_name}: {scores.count:,} episodes, {scores.each} from each of"
        f" {scores.environments:,} environments; {how}, seed {player.config.base.seed};"
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
    """Return the scores as a JSON object."""
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


def show(player: Player, options: argparse.Namespace) -> None:
    """Write the requested GIF and video, and play in the terminal or in a window."""

    def played(steps: int | None, window: bool = False) -> Iterator[frames.Frame]:
        with environments(player, 1, render=True) as envs:
            pictures = in_window(envs) if window else drawing(player.config, envs)
            yield from frames_of(player.stepper(envs, options.greedy), pictures, steps)

    for path, write in ((options.gif, frames.write_gif), (options.mp4, frames.write_mp4)):
        if path:
            write(played(options.film), path, options.fps, options.scale)
            print(f"wrote {relative(path)}, {path.stat().st_size / 1000:,.0f} kB")
    if options.terminal:
        play_in_terminal(played(options.steps), options.fps)
    if options.window:
        with contextlib.suppress(WindowClosed):
            for _ in played(options.steps, window=True):
                pass  # c_render limits the frame rate


class WindowClosed(Exception):
    """The user closed the window."""


def in_window(envs: Environments) -> frames.Draw:
    """Return a draw function that renders in the environment's own window.

    It returns a placeholder frame and raises ``WindowClosed`` when the user closes the window.
    """

    def drawn(_: np.ndarray) -> np.ndarray:
        image = envs.render()
        if image is False:
            raise WindowClosed
        if image is not True:
            name = envs.spec.name
            raise UserError(f"{name} draws pictures, no window", "--terminal, --gif or --mp4")
        return BLACK

    return drawn


# ---- games against others ------------------------------------------------------------------------


def play_against(player: Player, options: argparse.Namespace, reparse: match_run.Reparse) -> None:
    """Play games against other players and print the results."""
    config = without_statistics(player.config)
    learner = as_opponent(player, config, options)
    _, _, games = match_run.play(config, options, options.against, reparse, learner)
    table = match_run.pair_table(games, "games against each")
    print("\n".join([*table, *match_run.repeated_notes(games, config)]))
    if options.json:
        write_json(games, options.json)


def climb(player: Player, options: argparse.Namespace) -> None:
    """Play games against the environment's scripted opponents and print the results."""
    config, spec = player.config, vec.look_up_spec(player.config)
    voice.note(ladder.idle_note(config))
    with progress_bar("games") as progress:
        if ladder.plays_bots_itself(config):
            result = ladder.play_bots(
                config,
                spec,
                player.policy,
                player.weights,
                lambda config: ready(config, player.source),
                options.games,
                config.base.seed,
                options.greedy,
                progress,
            )
        else:
            plain = ladder.in_bot_games(without_statistics(config))
            games = match_run.games_of(plain, agents_of(plain), options.games)
            learner = as_opponent(player, plain, options)
            result = ladder.play_skills(learner, plain, spec, games, progress)
    print(result)
    if options.json:
        inputs = {"policy": options.load_model_path, "seed": config.base.seed}
        write_json({**result.record(), **inputs, "greedy": options.greedy}, options.json)


def as_opponent(
    player: Player, config: Config, options: argparse.Namespace
) -> match_players.Player:
    """Return the policy as a player of a match."""
    return match_players.policy_player(
        match_run.name_of(options.load_model_path, player.source, config),
        player.policy,
        player.weights,
        options.greedy,
        read_statistics(player.source),
    )
