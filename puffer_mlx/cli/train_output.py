"""What ``train.py`` says of a run, and what the dashboard's advice depends on."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

from rich.console import Console

from puffer_mlx import vec
from puffer_mlx.config import Config, take_notes
from puffer_mlx.config.dialects import main_source
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.config.notes import family_note
from puffer_mlx.config.schema import COMMAND_LINE
from puffer_mlx.display.bottleneck import Conditions
from puffer_mlx.display.dashboard import Dashboard
from puffer_mlx.display.notebook import summary
from puffer_mlx.playing import after_self_play, evaluation
from puffer_mlx.playing.episode_videos import refuse_undrawable
from puffer_mlx.playing.evaluation import reached_text
from puffer_mlx.policy.encoders.catalog import plainer_note
from puffer_mlx.system import voice
from puffer_mlx.system.blas import blas_name
from puffer_mlx.system.devices import has_gpu, kind
from puffer_mlx.system.files import relative
from puffer_mlx.system.private_folders import cache_directory
from puffer_mlx.tracking.scores import SCORE
from puffer_mlx.training import placement
from puffer_mlx.training.run import Run
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, TellsScores
from puffer_mlx.vec.from_config import source_folder


def device_text(trainer: Trainer) -> str:
    """Where it trains, and where it acts if that is elsewhere."""
    place = trainer.placement
    text = f"CPU, {blas_name()}" if kind(place.learner) == "cpu" else "GPU"
    return text if place.rollout == place.learner else f"{text}; rollouts on the CPU"


def introduce(config: Config, environments: Environments) -> None:
    """Print what there is to be said of environments; refuse those that can't be evaluated.

    Or can't be drawn, where videos are asked for.
    """
    voice.note(*take_notes(config))
    evaluation.refuse_agents(config, environments)
    refuse_undrawable(config, environments)
    voice.note(after_self_play.prepare(config, environments.spec))
    if unused := vec.unused_keys(config, environments):
        voice.note(f"unused here: {', '.join(unused)}")
    if config.python:
        voice.note(environments.description, family_note(config), images_note(environments))


def images_note(environments: Environments) -> str | None:
    """Return the line that says how images are read; None if there are none."""
    layout = getattr(environments, "layout", None)
    images = layout.images() if layout else []
    return f"images: {'; '.join(images)}" if images else None


def resumed_notes(run: Run, newest: Path | None) -> Iterator[str]:
    """Yield the lines about a resumed run.

    Args:
        run: the run.
        newest: the newest checkpoint that could have been meant.
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
    if isinstance(trainer.vec, TellsScores) and "scores" not in run.state.arrays:
        yield f"{SCORE} counts from here: the checkpoint has none of the last episodes' scores"


def files_text(run: Run) -> str:
    """Where a run's files are."""
    folder, log = relative(run.folder), relative(run.log.path)
    return f"checkpoints {folder}\nlog         {log}\ncompiled    {cache_directory()}"


def notes(run: Run) -> list[str | None]:
    """The lines about a run that begins to train."""
    trainer, config = run.trainer, run.trainer.config
    encoder, own_network = trainer.policy.encoder, vec.has_own_network(config)
    plainer = plainer_note(config.env_name, encoder, own_network)
    placed = placement.notes(config, trainer.placement)
    return [run.log.note, plainer, *placed, evaluation_note(config)]


def dashboard_of(run: Run, stop_at: int | None) -> Dashboard:
    """The dashboard of a run that may end at a step; with ``-q`` it draws nowhere."""
    trainer, size = run.trainer, run.trainer.config.batch_size
    total = trainer.config.epochs * size
    if stop_at:  # a run that goes on beyond it has one epoch more
        total = min(total, max(-(-stop_at // size) * size, trainer.global_step + size))
    console = Console(quiet=True, force_terminal=False) if voice.is_quiet() else None
    facts = {**summary(trainer), "Device": device_text(trainer), "Run": run.folder.name}
    return Dashboard(facts, total, console, conditions(trainer), partial(under_way, trainer))


def conditions(trainer: Trainer) -> Conditions:
    """What the dashboard's advice depends on."""
    config, place = trainer.config, trainer.placement
    environments = cast(Environments, trainer.vec)
    cores = placement.rollout_cores(config)
    return Conditions(
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
    """Why environments can't go on."""
    if config.python:
        return "those of Python can't save their state"
    main = main_source(source_folder(config))
    return f"this one can't save its state (MY_STATE in its {main.name if main else 'binding.c'})"


def rate_note(config: Config) -> str | None:
    """The line about a learning rate that was chosen for another optimizer; None without one."""
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
    """The line about evaluations while training; None without any."""
    base = config.base
    if not base.eval_interval:
        return None
    how = "the most probable actions" if base.eval_greedy else "drawn actions, as in training"
    return (
        f"evaluation every {base.eval_interval:,} steps: {base.eval_episodes:,} whole episodes"
        f" in environments of their own, {how}"
    )


def under_way(trainer: Trainer) -> str:
    """The line about a trainer's epoch under way; empty if there is none."""
    epoch = trainer.progress
    return epoch.text(trainer.epoch + 1, trainer.stop) if epoch else ""


def reached_note(config: Config, score: float | None) -> str:
    """The line about a run that ended with an evaluation's score."""
    return f"{reached_text(config, score)}: the run ends (--stop-at-score none goes on)"
