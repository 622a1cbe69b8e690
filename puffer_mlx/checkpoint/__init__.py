"""Write, read and find checkpoints on disk, and resume runs from them."""

from puffer_mlx.checkpoint.branches import (
    find_any_checkpoint,
    find_checkpoint,
    find_weights,
    score_of,
)
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
    SavedState,
    is_checkpoint_due,
    prepare_run_folder,
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
    "SavedState",
    "encoder_as_trained",
    "find_any_checkpoint",
    "find_checkpoint",
    "find_weights",
    "is_checkpoint_due",
    "load",
    "load_state",
    "prepare_run_folder",
    "read_statistics",
    "recorded",
    "run_folder",
    "save",
    "score_of",
    "write_checkpoint",
]
