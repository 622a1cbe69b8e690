"""Messages of ``puffer-mlx train``, and the dashboard with its conditions for advice."""

import contextlib
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
from puffer_mlx.config.dialects import main_source
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.config.notes import best_score, family_note, missing_steps
from puffer_mlx.config.schema import COMMAND_LINE
from puffer_mlx.display.bottleneck import PerfContext
from puffer_mlx.display.dashboard import Dashboard
from puffer_mlx.display.notebook import summary
from puffer_mlx.display.run_view import RunState, label
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import evaluator, ladder
from puffer_mlx.evaluation.episode_videos import refuse_undrawable
from puffer_mlx.evaluation.evaluator import target_message
from puffer_mlx.policy.encoders.catalog import plainer_note
from puffer_mlx.profiling.phases import duration
from puffer_mlx.system import program, voice
from puffer_mlx.system.blas import blas_name
from puffer_mlx.system.devices import has_gpu, kind
from puffer_mlx.system.files import relative
from puffer_mlx.system.private_folders import cache_directory
from puffer_mlx.tracking.json_lines import read_records
from puffer_mlx.tracking.scores import METRIC, SCORE
from puffer_mlx.training import placement
from puffer_mlx.training.run import Run
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, ReportsScores
from puffer_mlx.vec.from_config import source_folder


def device_text(trainer: Trainer) -> str:
    """Return the device that trains, and the device of rollouts if it differs."""
    place = trainer.placement
    text = f"CPU, {blas_name()}" if kind(place.learner) == "cpu" else "GPU"
    return text if place.rollout == place.learner else f"{text}; rollouts on the CPU"


def introduce(config: Config, environments: Environments) -> None:
    """Print notes on the environments, and refuse unsuitable ones.

    Args:
        config: Configuration of the run.
        environments: Environments of the run.

    Raises:
        UserError: They can't be evaluated, or can't be drawn although videos are requested.
    """
    voice.note(*take_notes(config))
    evaluator.refuse_agents(config, environments)
    refuse_undrawable(config, environments)
    voice.note(ladder.prepare(config, environments.spec))
    if unused := vec.unused_env_keys(config, environments):
        voice.note(f"unused here: {', '.join(unused)}")
    if config.python:
        voice.note(environments.description, family_note(config), images_note(environments))


def images_note(environments: Environments) -> str | None:
    """Return a line about the layout of images, or None without images."""
    layout = getattr(environments, "layout", None)
    images = layout.images() if layout else []
    return f"images: {'; '.join(images)}" if images else None


def resumed_notes(run: Run, newest: Path | None) -> Iterator[str]:
    """Yield the lines about a resumed run.

    Args:
        run: Run.
        newest: Folder of the newest checkpoint; None for a new run.
    """
    if not (run.resumed and run.state):
        return
    trainer = run.trainer
    epochs = "1 epoch" if trainer.epoch == 1 else f"{trainer.epoch} epochs"
    yield f"going on with {relative(run.resumed.folder)} after {epochs}"
    if newest and run.home / newest != run.resumed.folder:
        yield (
            f"{relative(newest)} is newer, but has weights only, which --resume can't use:"
            f" --load-model-path {relative(newest)} starts a new run from them"
        )
    if not run.exact:
        yield (
            f"environments restarted: {restarted(trainer.config)}, so the run differs from an"
            " uninterrupted one"
        )
    if isinstance(trainer.vec, ReportsScores) and "scores" not in run.state.arrays:
        yield f"{SCORE} counts from here: the checkpoint has none of the last episodes' scores"


def refuse_shorter(run: Run) -> None:
    """Raise ``UserError`` if a resumed run already has more steps than requested."""
    trainer = run.trainer
    if trainer.epoch > trainer.config.epochs:
        asked = int(trainer.config.train.total_timesteps)
        raise UserError(
            f"train.total_timesteps {asked:,} is less than the {trainer.global_step:,} steps done",
            f"--train.total-timesteps {2 * trainer.global_step:_}, for example",
        )


def files_text(run: Run) -> str:
    """Return the paths of a run's files."""
    folder, log = relative(run.folder), relative(run.log.path)
    return f"checkpoints {folder}\nlog         {log}\ncompiled    {cache_directory()}"


def notes(run: Run) -> list[str | None]:
    """Return the lines to print before training."""
    trainer, config = run.trainer, run.trainer.config
    encoder = trainer.policy.encoder
    own_network = vec.has_own_network(config)
    plainer = plainer_note(config.env_name, encoder, own_network)
    placed = placement.notes(config, trainer.placement)
    return [run.log.note, plainer, *placed, evaluation_note(config)]


def dashboard_of(run: Run, stop_at: int | None) -> Dashboard:
    """Return the dashboard of a run; with ``-q`` it prints nothing.

    Args:
        run: Run.
        stop_at: Environment step of ``--stop-at``; None for the full run.
    """
    trainer, size = run.trainer, run.trainer.config.batch_size
    total = trainer.config.epochs * size
    if stop_at:  # a run resumed after this step trains one more epoch
        total = min(total, max(-(-stop_at // size) * size, trainer.global_step + size))
    console = Console(quiet=True, force_terminal=False) if voice.is_quiet() else None
    facts = {**summary(trainer), "Device": device_text(trainer), "Run": run.folder.name}
    in_progress = partial(under_way, trainer)
    metric = trainer.config.metric
    dashboard = Dashboard(facts, total, console, conditions(trainer), in_progress, metric)
    if run.resumed:
        for logs in read_records(run.log.path):
            dashboard.run.update(logs)
        dashboard.run.logs.setdefault("agent_steps", trainer.global_step)  # without a log
    return dashboard


def conditions(trainer: Trainer) -> PerfContext:
    """Return the facts that the dashboard's advice depends on."""
    config, place = trainer.config, trainer.placement
    environments = cast(Environments, trainer.vec)
    cores = placement.rollout_cores(config)
    return PerfContext(
        device=kind(place.learner),
        rollout_device=kind(place.rollout),
        overlap=place.overlap,
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
        chosen=config.vec.backend != "auto",
        environments=environments.num_environments,
        in_c=trainer.acts_in_c,
        started=trainer.epoch,
    )


def restarted(config: Config) -> str:
    """Return the reason why environments couldn't be resumed."""
    if config.python:
        return "those of Python can't save their state"
    main = main_source(source_folder(config))
    return f"this one can't save its state (MY_STATE in its {main.name if main else 'binding.c'})"


def rate_note(config: Config) -> str | None:
    """Return a line about a learning rate chosen for another optimizer, or None."""
    rate = "train.learning_rate"
    origin = config.origins.get(rate, "")
    if config.train.optimizer == config.rate_for or origin == COMMAND_LINE:
        return None
    where = f" ({origin})" if origin else ""
    return (
        f"{rate} {config.train.learning_rate:g}{where} was chosen for {config.rate_for}:"
        f" --train.learning-rate sets one for {config.train.optimizer}"
    )


def evaluation_note(config: Config) -> str | None:
    """Return a line about evaluations while training, or None without evaluations."""
    base = config.base
    if not base.eval_interval:
        return None
    how = "the most probable actions" if base.eval_greedy else "sampled actions, as in training"
    return (
        f"evaluation every {base.eval_interval:,} steps: {base.eval_episodes:,} whole episodes"
        f" in environments of their own, {how}"
    )


def under_way(trainer: Trainer) -> str:
    """Return a line about the epoch in progress, or "" between epochs."""
    epoch = trainer.progress
    return epoch.text(trainer.epoch + 1, trainer.stop) if epoch else ""


def best_note(run: Run, score: float | None) -> str:
    """Return the line about an evaluation that is better than all before."""
    best = relative(run.folder / checkpoint.BEST)
    return f"new best, saved: {label(run.trainer.config.metric)} {score:.3f}, {best}"


def reached_note(config: Config, score: float | None) -> str:
    """Return the line about a run that ends because of an evaluation's score."""
    return f"{target_message(config, score)}: the run ends (--stop-at-score none goes on)"


# ---- the end of a run ----------------------------------------------------------------------------


def steps_text(trainer: Trainer, uptime: float) -> str:
    """Return a line about the trained steps, and why they aren't as many as requested.

    Args:
        trainer: Trainer.
        uptime: Duration of the training in seconds.
    """
    steps = trainer.epoch * trainer.config.batch_size
    return f"steps {steps:,} in {duration(uptime)}{missing_steps(trainer.config, trainer.epoch)}"


def score_texts(run: Run, shown: RunState, last: dict[str, float]) -> Iterator[str]:
    """Yield lines about the score of a run, and the best evaluation's.

    Args:
        run: Run.
        shown: Records of the run.
        last: Record of the evaluation of the final weights; may be empty.
    """
    config = run.trainer.config
    name = shown.score_name(last)
    if name:
        best = best_score(config) if name == METRIC else None
        possible = f" of {best:g} possible" if best else ""
        yield f"score {last[name]:.3f}{possible} ({last.get('env/n', 1):,.0f} episodes)"
    elif scores := [*shown.scores().values()]:
        yield f"score {scores[0]} in training"
    else:
        hint = "; --wrap.max-episode-steps N ends them" if config.python else ""
        yield f"score none: no episode ended{hint}"
    found = checkpoint_info(run.folder / checkpoint.BEST) if config.base.eval_interval else None
    if found and found.score is not None:
        yield f"best  {found.score:.3f} after {found.step:,} steps, {relative(found.folder)}"


def draws_pictures(config: Config) -> bool:
    """Return True if an environment in Python is known to draw pictures, without making it."""
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
    """Return the commands to type after a run: score or watch it, train longer, and others.

    Args:
        run: Run that has ended.
        argv: Words of the command line.
    """
    trainer = run.trainer
    config = trainer.config
    default = config.base.checkpoint_dir == Base().checkpoint_dir
    allow = ["--allow-code"] * ("--allow-code" in argv)
    folder = "latest" if default else relative(run.folder)
    evaluate = [argv[0], folder, *allow]
    film: list[str] = []
    if not config.python and (source_folder(config) / "draw.py").is_file():
        evaluate.append("--terminal")
    elif draws_pictures(config):
        film = ["--gif", "play.gif"]
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
    if film:
        commands["watch it play"] = f"{evaluate_command} {shlex.join(film)}"
    if config.base.track == "tensorboard":
        commands["curves"] = f"tensorboard --logdir {shlex.quote(config.base.log_dir)}"
    if not config.source and (not config.python or config.env_name.startswith("gym:")):
        own = f"{program.command('check-env')} module:Class"
        commands["your own"] = f"{own}  # docs/gymnasium.md; in C: docs/writing_envs.md"
    lines = [f"  {what:13}  {command}" for what, command in commands.items()]
    width = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and any(len(line) > width for line in lines):
        lines = [line for what, command in commands.items() for line in (f"  {what}", command)]
    return ["next", *lines]
