"""Messages of the command ``train``, and its dashboard."""

import contextlib
import math
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from rich.console import Console

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint.branches import checkpoint_info
from puffer_mlx.config import Base, Config, take_notes
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.config.notes import best_score, family_note, missing_steps_text
from puffer_mlx.config.releases import main_source
from puffer_mlx.config.schema import COMMAND_LINE
from puffer_mlx.display.bottleneck import PerfContext
from puffer_mlx.display.dashboard import Dashboard
from puffer_mlx.display.notebook import run_summary
from puffer_mlx.display.run_view import RunState, score_label
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import evaluator, ladder
from puffer_mlx.evaluation.episode_videos import check_drawable
from puffer_mlx.evaluation.evaluator import target_message
from puffer_mlx.policy.encoders.catalog import missing_encoder_note
from puffer_mlx.profiling.phases import format_duration
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.blas import blas_name
from puffer_mlx.system.devices import has_gpu, kind
from puffer_mlx.system.files import relative
from puffer_mlx.system.private_folders import cache_directory
from puffer_mlx.tracking.json_lines import read_records
from puffer_mlx.tracking.scores import DEFAULT_METRIC, MEAN_SCORE
from puffer_mlx.training import placement
from puffer_mlx.training.run import Run
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, ReportsScores
from puffer_mlx.vec.from_config import source_folder


def device_description(trainer: Trainer) -> str:
    """Return text that names the device that trains, and the device of rollouts if it differs."""
    devices = trainer.placement
    text = f"CPU, {blas_name()}" if kind(devices.learner) == "cpu" else "GPU"
    return text if devices.rollout == devices.learner else f"{text}; rollouts on the CPU"


def inspect_environments(config: Config, environments: Environments) -> None:
    """Print notes about a run's environments, and raise a UserError if they can't be used.

    Args:
        config: Configuration of the run.
        environments: Environments of the run.

    Raises:
        UserError: If they can't be evaluated, or can't be drawn although videos are requested.
    """
    verbosity.note(*take_notes(config))
    evaluator.check_eval_agents(config, environments)
    check_drawable(config, environments)
    verbosity.note(ladder.check_ladder_config(config, environments.spec))
    if unused := vec.unused_env_keys(config, environments):
        verbosity.note(f"unused here: {', '.join(unused)}")
    if config.python:
        verbosity.note(environments.description, family_note(config), images_note(environments))


def images_note(environments: Environments) -> str | None:
    """Return a line about the layout of the environments' images; None without images."""
    layout = getattr(environments, "layout", None)
    images = layout.images() if layout else []
    return f"images: {'; '.join(images)}" if images else None


def resumed_notes(run: Run, newest: Path | None) -> Iterator[str]:
    """Yield the lines to print when a run is resumed: its checkpoint and what differs.

    Args:
        run: The run.
        newest: Folder of the newest checkpoint; None for a new run.
    """
    if not (run.resumed and run.state):
        return
    trainer = run.trainer
    epochs = "1 epoch" if trainer.epoch == 1 else f"{trainer.epoch} epochs"
    yield f"resuming {relative(run.resumed.folder)} after {epochs}"
    if newest and run.home / newest != run.resumed.folder:
        yield (
            f"{relative(newest)} is newer, but has weights only, which --resume can't use:"
            f" --load-model-path {relative(newest)} starts a new run from them"
        )
    if not run.continues_episodes:
        yield (
            f"environments restarted: {restart_reason(trainer.config)}, so the run differs from an"
            " uninterrupted one"
        )
    if isinstance(trainer.vec, ReportsScores) and "scores" not in run.state.arrays:
        yield f"{MEAN_SCORE} restarts: the checkpoint lacks the scores of the last episodes"


def refuse_fewer_steps(run: Run) -> None:
    """Raise a UserError if a resumed run already has more steps than it should train in all."""
    trainer = run.trainer
    if trainer.epoch > trainer.config.epochs:
        total = int(trainer.config.train.total_timesteps)
        raise UserError(
            f"train.total_timesteps {total:,} is less than the {trainer.global_step:,} steps done",
            f"--train.total-timesteps {2 * trainer.global_step:_}, for example",
        )


def file_paths(run: Run) -> str:
    """Return text with the paths of a run's checkpoints, log and compiled code."""
    folder, log = relative(run.folder), relative(run.log.path)
    return f"checkpoints {folder}\nlog         {log}\ncompiled    {cache_directory()}"


def training_notes(run: Run) -> list[str | None]:
    """Return lines to print before training: about log, encoder, devices and evaluations."""
    trainer, config = run.trainer, run.trainer.config
    encoder = trainer.policy.encoder
    cuda_network = vec.has_cuda_network(config)
    encoder_note = missing_encoder_note(config.env_name, encoder, cuda_network)
    placement_notes = placement.placement_notes(config, trainer.placement)
    return [run.log.note, encoder_note, *placement_notes, evaluation_note(config)]


def dashboard_of(run: Run, stop_at: int | None) -> Dashboard:
    """Return the dashboard that shows a run's progress; with ``-q`` it prints nothing.

    Args:
        run: The run.
        stop_at: Environment step of ``--stop-at``; None for the full run.
    """
    trainer, size = run.trainer, run.trainer.config.batch_size
    total = trainer.config.epochs * size
    if stop_at:  # a run resumed after STEP trains one more epoch
        stop_epoch = math.ceil(stop_at / size)
        total = min(total, max(stop_epoch * size, trainer.global_step + size))
    console = Console(quiet=True, force_terminal=False) if verbosity.is_quiet() else None
    header = {**run_summary(trainer), "Device": device_description(trainer), "Run": run.folder.name}
    in_progress = partial(progress_line, trainer)
    metric = trainer.config.metric
    dashboard = Dashboard(header, total, console, conditions(trainer), in_progress, metric)
    if run.resumed:
        for logs in read_records(run.log.path):
            dashboard.run.update(logs)
        dashboard.run.logs.setdefault("agent_steps", trainer.global_step)  # if the log is missing
    return dashboard


def conditions(trainer: Trainer) -> PerfContext:
    """Return the facts about a run on which the dashboard bases its hints about speed."""
    config, devices = trainer.config, trainer.placement
    environments = cast(Environments, trainer.vec)
    cores = placement.rollout_cores(config)
    return PerfContext(
        device=kind(devices.learner),
        rollout_device=kind(devices.rollout),
        overlap=devices.overlap,
        precision=config.train.precision,
        cores=cores,
        num_threads=rollout_threads(config, cores),
        num_buffers=config.vec.num_buffers,
        total_agents=config.vec.total_agents,
        minibatch_size=config.train.minibatch_size,
        minibatches=config.minibatches,
        parameters=trainer.parameters,
        has_gpu=has_gpu(),
        backend=environments.backend,
        backend_is_set=config.vec.backend != "auto",
        environments=environments.num_environments,
        in_c=trainer.acts_in_c,
        epochs_before=trainer.epoch,
    )


def restart_reason(config: Config) -> str:
    """Return text that says why a resumed run's environments couldn't continue."""
    if config.python:
        return "Python environments can't save their state"
    main = main_source(source_folder(config))
    file = main.name if main else "binding.c"
    return f"this one can't save its state (define MY_STATE in {file})"


def rate_note(config: Config) -> str | None:
    """Return a note if the learning rate was chosen for another optimizer; None otherwise."""
    rate = "train.learning_rate"
    origin = config.origins.get(rate, "")
    if config.train.optimizer == config.rate_optimizer or origin == COMMAND_LINE:
        return None
    source = f" ({origin})" if origin else ""
    return (
        f"{rate} {config.train.learning_rate:g}{source} was chosen for {config.rate_optimizer}:"
        f" --train.learning-rate sets one for {config.train.optimizer}"
    )


def evaluation_note(config: Config) -> str | None:
    """Return a line that says how often and how a run is evaluated; None without evaluations."""
    base = config.base
    if not base.eval_interval:
        return None
    actions = "most probable actions" if base.eval_greedy else "sampled actions"
    return (
        f"evaluation every {base.eval_interval:,} steps: {base.eval_episodes:,} episodes"
        f" in separate environments, {actions}"
    )


def progress_line(trainer: Trainer) -> str:
    """Return a line that shows how far the current epoch of training is, or "" between epochs."""
    epoch = trainer.progress
    return epoch.text(trainer.epoch + 1, trainer.stop) if epoch else ""


def best_note(run: Run, score: float | None) -> str:
    """Return a line that reports an evaluation's new best score and where the policy was saved."""
    best = relative(run.folder / checkpoint.BEST)
    return f"new best, saved: {score_label(run.trainer.config.metric)} {score:.3f}, {best}"


def reached_note(config: Config, score: float | None) -> str:
    """Return a line that says that an evaluation reached the target score, so that the run ends."""
    return f"{target_message(config, score)}: the run ends (--stop-at-score none continues)"


# ---- the end of a run ----------------------------------------------------------------------------


def steps_line(trainer: Trainer, uptime: float) -> str:
    """Return a line with a run's number of steps and duration, and why steps are missing.

    Args:
        trainer: Trainer of the run.
        uptime: Duration of the training in seconds.
    """
    steps = trainer.epoch * trainer.config.batch_size
    missing = missing_steps_text(trainer.config, trainer.epoch)
    return f"steps {steps:,} in {format_duration(uptime)}{missing}"


def score_lines(run: Run, state: RunState, last: dict[str, float]) -> Iterator[str]:
    """Yield lines that report a run's final score and its best evaluation.

    Args:
        run: The run.
        state: Records of the run.
        last: Record of the evaluation of the final weights; may be empty.
    """
    config = run.trainer.config
    name = state.score_name(last)
    if name:
        maximum = best_score(config) if name == DEFAULT_METRIC else None
        possible = f" of {maximum:g} possible" if maximum else ""
        yield f"score {last[name]:.3f}{possible} ({last.get('env/n', 1):,.0f} episodes)"
    elif scores := [*state.scores().values()]:
        yield f"score {scores[0]} in training"
    else:
        hint = "; --wrap.max-episode-steps N truncates episodes" if config.python else ""
        yield f"score none: no episode ended{hint}"
    best = checkpoint_info(run.folder / checkpoint.BEST) if config.base.eval_interval else None
    if best and best.score is not None:
        yield f"best  {best.score:.3f} after {best.step:,} steps, {relative(best.folder)}"


def declares_pictures(config: Config) -> bool:
    """Return True if a Python environment says that it can render pictures, for a GIF."""
    if config.python and config.base.eval_video_interval:
        return True  # checked before training
    kind, _, name = config.env_name.partition(":")
    if kind != "gym":
        return False
    import gymnasium

    from puffer_mlx.vec.gym.make import declared_metadata

    with contextlib.suppress(gymnasium.error.Error, ImportError, AttributeError):
        return "rgb_array" in declared_metadata(name).get("render_modes", ())
    return False


def next_steps(run: Run, argv: Sequence[str]) -> list[str]:
    """Return lines with suggested commands after a run: evaluate, watch, train longer, ...

    Args:
        run: Run that has ended.
        argv: Command line of the run.
    """
    trainer = run.trainer
    config = trainer.config
    default = config.base.checkpoint_dir == Base().checkpoint_dir
    allow = ["--allow-code"] if "--allow-code" in argv else []
    folder = "latest" if default else relative(run.folder)
    evaluate = [argv[0], folder, *allow]
    gif_options: list[str] = []
    if not config.python and (source_folder(config) / "draw.py").is_file():
        evaluate.append("--terminal")
    elif declares_pictures(config):
        gif_options = ["--gif", "play.gif"]
    resume = [argv[0], "--resume", folder, *allow]
    complete = trainer.epoch == config.epochs
    if complete:
        resume += ["--train.total-timesteps", f"{2 * int(config.train.total_timesteps):_}"]
    if config.base.stop_at_score != "none":
        resume += ["--stop-at-score", "none"]
    evaluate_command = f"{program.command('evaluate')} {shlex.join(evaluate)}"
    commands = {
        "watch it play" if "--terminal" in evaluate else "score it": evaluate_command,
        "train longer"
        if complete
        else "resume": f"{program.command('train')} {shlex.join(resume)}",
    }
    if gif_options:
        commands["watch it play"] = f"{evaluate_command} {shlex.join(gif_options)}"
    if config.base.track == "tensorboard":
        commands["curves"] = f"tensorboard --logdir {shlex.quote(config.base.log_dir)}"
    if not config.source and (not config.python or config.env_name.startswith("gym:")):
        check = f"{program.command('check-env')} module:Class"
        commands["your own"] = f"{check}  # docs/gymnasium.md; in C: docs/writing_envs.md"
    lines = [f"  {purpose:13}  {command}" for purpose, command in commands.items()]
    width = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and any(len(line) > width for line in lines):
        lines = [line for purpose, text in commands.items() for line in (f"  {purpose}", text)]
    return ["next", *lines]
