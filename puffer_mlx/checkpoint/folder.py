"""Checkpoints of a run: folders that hold everything needed to go on exactly.

    checkpoint_dir/ENV/RUN_ID/
        config.ini                   the effective configuration
        0000000000262144/            after that many steps
            config.ini               the same
            weights.safetensors      the policy; metadata: the environment's spec, the score, steps
            weights.bin              the same as upstream's flat file, where that can express it
            normalization.safetensors    statistics of observations and rewards, if there are any
            state.safetensors        optimizer, random keys, recurrent states, environments, ...
        videos/0000000000262144.gif  an episode then, with base.eval_video_interval
        best                         a link to the one with the best score of the trained branch

A checkpoint is written after every ``checkpoint_interval``-th epoch (puffer4 counts from 0, puffer5
from 1) and after the last one, upstream's rhythm; the newest ``checkpoint_keep`` and the best are
kept. What was trained after a checkpoint that the run went on from later is abandoned
(``branches``): it is removed first, and isn't the newest or the best. Folders are published by
rename: a killed run leaves whole checkpoints, and perhaps a name that begins with a dot.
"""

from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.checkpoint.normalization import Memory
from puffer_mlx.config import Config, write_ini
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec

CONFIG, BEST, VIDEOS = "config.ini", "best", "videos"
WEIGHTS, STATE = "weights.safetensors", "state.safetensors"


class State(NamedTuple):
    """What a run needs besides its weights to go on.

    Args:
        arrays: by dotted name.
        numbers: counters and what else is JSON.
    """

    arrays: dict[str, mx.array]
    numbers: dict[str, Any]


class Checkpoint(NamedTuple):
    """A checkpoint's contents, without the state.

    ``memory`` is what its environments had learned (``vec.base.Remembers``): the statistics that
    the policy's observations are normalised by, if they are.
    """

    folder: Path
    config: Config
    spec: EnvSpec
    policy: Policy
    weights: Any
    step: int
    memory: Memory


def run_folder(config: Config, run_id: str) -> Path:
    """Where a run's checkpoints are."""
    return Path(config.base.checkpoint_dir) / config.slug / run_id


def prepare(config: Config, run_id: str) -> Path:
    """Make a run's folder and write its configuration; an unwritable disk shows before training.

    Raises:
        UserError: the folder can't be written.
    """
    folder = run_folder(config, run_id)
    write_ini(config, folder / CONFIG)
    return folder


def is_due(config: Config, epoch: int) -> bool:
    """Whether upstream saves after this epoch (counted from 0): 4.0 and 5.0 differ by one."""
    interval = config.base.checkpoint_interval
    done = epoch + config.facts.saves_after
    return epoch == config.epochs - 1 or (interval > 0 and done % interval == 0)
