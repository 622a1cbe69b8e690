"""Checkpoints on disk: write and read them, find the newest or the best, and resume from one."""

from puffer_mlx.checkpoint.branches import find, find_any, find_weights, score_of
from puffer_mlx.checkpoint.contents import (
    CheckpointManager,
    encoder_as_trained,
    load,
    load_state,
    recorded,
    save,
    write_checkpoint,
)
from puffer_mlx.checkpoint.environment_statistics import read_statistics
from puffer_mlx.checkpoint.folder import (
    BEST,
    CONFIG,
    STATE,
    VIDEOS,
    WEIGHTS,
    Checkpoint,
    State,
    is_due,
    prepare,
    run_folder,
)

__all__ = [
    "BEST",
    "CONFIG",
    "STATE",
    "VIDEOS",
    "WEIGHTS",
    "Checkpoint",
    "CheckpointManager",
    "State",
    "encoder_as_trained",
    "find",
    "find_any",
    "find_weights",
    "is_due",
    "load",
    "load_state",
    "prepare",
    "read_statistics",
    "recorded",
    "run_folder",
    "save",
    "score_of",
    "write_checkpoint",
]
