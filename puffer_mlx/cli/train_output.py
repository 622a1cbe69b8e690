"""What ``train.py`` says of a run, and what the dashboard's advice depends on."""

from puffer_mlx.config import Config
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.config.folders import main_source
from puffer_mlx.config.schema import COMMAND_LINE, KEYS
from puffer_mlx.display.bottleneck import Setting
from puffer_mlx.display.run_view import abbreviate, agents_text
from puffer_mlx.system.blas import blas_name
from puffer_mlx.system.devices import has_gpu, kind
from puffer_mlx.training import placement
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.training.while_training import reached_text
from puffer_mlx.vec.base import Environments
from puffer_mlx.vec.from_config import source_folder


def device_text(trainer: Trainer) -> str:
    """Where it trains, and where it acts if that is elsewhere."""
    place = trainer.placement
    text = f"CPU, {blas_name()}" if kind(place.learner) == "cpu" else "GPU"
    return text if place.rollout == place.learner else f"{text}; rollouts on the CPU"


def summary(trainer: Trainer, run: str) -> dict[str, str]:
    """The facts of a run that don't change, by name; ``run`` is what it is called."""
    config, groups = trainer.config, trainer.config.vec.num_buffers
    return {
        "Environment": config.env_name,
        "Parameters": abbreviate(trainer.parameters),
        "Agents": agents_text(config.vec.total_agents, 1 if trainer.acts_in_c else groups),
        "Device": device_text(trainer),
        "Run": run,
    }


def setting(trainer: Trainer, environments: Environments) -> Setting:
    """What the dashboard's advice depends on."""
    config, place = trainer.config, trainer.placement
    cores = placement.rollout_cores(config)
    return Setting(
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
    usual, rate = KEYS["train"]["optimizer"].default, "train.learning_rate"
    if config.train.optimizer == usual or config.origins.get(rate) == COMMAND_LINE:
        return None
    if config.origins.get(rate) and config.origins.get("train.optimizer") != COMMAND_LINE:
        return None  # a file says both
    where = f" ({config.origins[rate]})" if rate in config.origins else ""
    return (
        f"{rate} {config.train.learning_rate:g}{where} was chosen for {usual}:"
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
    epoch = trainer.under_way
    return epoch.text(trainer.epoch + 1, trainer.stop) if epoch else ""


def reached_note(config: Config, score: float | None) -> str:
    """The line about a run that ended with an evaluation's score."""
    return f"{reached_text(config, score)}: the run ends (--stop-at-score none goes on)"
