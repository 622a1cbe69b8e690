"""A trainer's policy to a file of another program."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint import Checkpoint
from puffer_mlx.checkpoint.environment_statistics import gathered_statistics
from puffer_mlx.config.schema.torch import OWN
from puffer_mlx.errors import UserError
from puffer_mlx.export import Format, Report, export, formats
from puffer_mlx.training.trainer import Trainer


def export_policy(
    trainer: Trainer, path: Path, to: str | None, dialect: str | None, options: Mapping[str, Any]
) -> Report:
    """What ``puffer-mlx export`` does with a checkpoint of the trainer: see ``Trainer.export``."""
    if trainer.config.torch.decoder == OWN:
        raise UserError(
            "the policy is an mlx.nn.Module of your own, which no format holds",
            "save() keeps its weights; docs/custom_policy.md has parts that safetensors holds",
        )
    form = Format(to or formats.by_suffix(path).name, dialect, **options)
    memory = {  # as a checkpoint has it
        name: np.array(np.asarray(array, np.float32), np.float64)
        for name, array in gathered_statistics(trainer.vec).items()
    }
    about = trainer.config, trainer.vec.spec, trainer.policy, trainer.weights
    step = trainer.epoch * trainer.config.batch_size
    made = Checkpoint(Path(), *about, step, memory)
    recorded = mx.array(np.array(trainer.recorded)) if trainer.epoch else None
    device = mx.default_device()
    mx.set_default_device(mx.cpu)  # exact where it is compared with itself; plenty fast
    try:
        return export(made, form, path, recorded)
    finally:
        mx.set_default_device(device)
