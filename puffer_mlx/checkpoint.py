"""Checkpoints of a run: ``checkpoint_dir/ENV/RUN_ID/``.

    config.ini                   the effective configuration
    0000000000262144.safetensors the weights after that many steps
    0000000000262144.bin         the same as upstream's flat file

Names and rhythm are upstream's: a checkpoint after every ``checkpoint_interval``-th epoch (counted
from 0) and after the last one.
"""

from pathlib import Path
from typing import Any

from puffer_mlx.config import Config, write_ini
from puffer_mlx.errors import UserError
from puffer_mlx.weights_io import save_bin, save_safetensors


def run_folder(config: Config, run_id: str) -> Path:
    """Where a run's checkpoints are."""
    return Path(config.base.checkpoint_dir) / config.env_name / run_id


def prepare(config: Config, run_id: str) -> Path:
    """Make a run's folder and write its configuration; an unwritable disk shows before training.

    Raises:
        UserError: the folder can't be written.
    """
    folder = run_folder(config, run_id)
    write_ini(config, folder / "config.ini")
    return folder


def is_due(config: Config, epoch: int) -> bool:
    """Whether upstream saves after this epoch (counted from 0)."""
    return epoch % config.base.checkpoint_interval == 0 or epoch == config.epochs - 1


def path_of(folder: Path, steps: int) -> Path:
    """The safetensors file of a run's weights after so many steps."""
    return folder / f"{steps:016d}.safetensors"


def save(path: Path, weights: Any) -> None:
    """Write the weights as safetensors, and as upstream's flat file beside it.

    Raises:
        UserError: they can't be written; nothing half-written is left.
    """
    save_bin(weights, path.with_suffix(".bin"))
    save_safetensors(weights, path)


def find_weights(path: str, config: Config) -> Path:
    """The file that ``--load-model-path`` names: a file, a run's folder, or ``latest``.

    ``latest`` is the newest checkpoint of any run of this environment; of a folder, the one with
    the most steps. Names that begin with a dot are what a killed run was writing.

    Raises:
        UserError: there is none.
    """
    root = Path(config.base.checkpoint_dir) / config.env_name
    if path == "latest":
        found = sorted(
            root.rglob("[!.]*.safetensors"), key=lambda file: (file.stat().st_mtime_ns, file)
        )
    elif Path(path).is_dir():
        root = Path(path)
        found = sorted(root.glob("[!.]*.safetensors")) or sorted(root.glob("[!.]*.bin"))
    else:
        return Path(path)
    if not found:
        raise UserError(f"there is no checkpoint in {root}", "train first, or name a file")
    return found[-1]
