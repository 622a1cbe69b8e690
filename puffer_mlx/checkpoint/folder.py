"""Folders of runs and their checkpoints.

    checkpoint_dir/ENV/RUN_ID/
        config.ini                   effective configuration
        0000000000262144/            checkpoint, named by environment steps
            config.ini               the same configuration
            weights.safetensors      policy; metadata: environment spec, score, steps
            weights.bin              the same as PufferLib's flat file, if that can hold them
            normalization.safetensors    statistics of observations and rewards, if any
            state.safetensors        optimizer, random keys, recurrent states, environments, ...
        videos/0000000000262144.gif  an episode, with base.eval_video_interval
        best                         link to the checkpoint with the best score of the lineage

A checkpoint is written after every ``checkpoint_interval``-th epoch (puffer4 counts from 0, puffer5
from 1, as PufferLib does) and after the last epoch. The newest ``checkpoint_keep`` and the best one
are kept. Checkpoints abandoned by resuming from an earlier one (``branches``) are removed first and
are never the newest or the best. Folders are published by rename, so a killed run leaves only
complete checkpoints and possibly temporary names that start with a dot.
"""

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_unflatten

from puffer_mlx.checkpoint.normalization import Statistics
from puffer_mlx.config import Config, write_ini
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import lock_folder
from puffer_mlx.system.json_text import is_count, is_finite
from puffer_mlx.trees import named

CONFIG, BEST, VIDEOS = "config.ini", "best", "videos"
WEIGHTS, STATE = "weights.safetensors", "state.safetensors"


# Temporary names that system/files.py uses in these folders.
TEMPORARY = re.compile(r"\.([0-9]{16}|config)-[a-z0-9_]{8}(\.ini|\.gif)?|\.best-[0-9]+")
COUNTERS = {  # True for whole numbers
    **dict.fromkeys(("epoch", "global_step", "log_position"), True),
    **dict.fromkeys(("uptime", "learning_rate"), False),
}
OPTIONAL = "log_position", "learning_rate"


class State(NamedTuple):
    """Training state, everything besides the weights that resuming needs.

    Args:
        arrays: Arrays by dotted name.
        numbers: Counters and other JSON values.
    """

    arrays: dict[str, mx.array]
    numbers: dict[str, Any]

    def taken(self, mine: dict[str, Any]) -> dict[str, Any]:
        """Return the saved trees for a trainer.

        Args:
            mine: The trainer's trees of arrays, by name.

        Returns:
            Saved arrays in the same trees, with the same shapes and dtypes.

        Raises:
            UserError: If the state belongs to another configuration or its counters are invalid.
        """
        _check_counters(self.numbers)
        arrays = self.arrays
        wanted = named(mine)
        wrong = [
            f"{name}: {arrays[name].shape if name in arrays else 'missing'}, expected {a.shape}"
            for name, a in wanted
            if name not in arrays or arrays[name].shape != a.shape
        ] + [
            f"{name}: {arrays[name].dtype}, expected {a.dtype}"
            for name, a in wanted
            if name in arrays and arrays[name].dtype != a.dtype
        ]
        if wrong:
            raise UserError(
                f"the run's state is of another configuration: {'; '.join(wrong[:3])}",
                "go on with the run's own policy, vec.total_agents and vec.num_buffers",
            )
        return tree_unflatten([(name, arrays[name]) for name, _ in wanted])  # type: ignore


def subtree(arrays: dict[str, mx.array], name: str) -> dict[str, mx.array]:
    """Return the arrays below a dotted name, without that name and its dot."""
    prefix = f"{name}."
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


class Checkpoint(NamedTuple):
    """Contents of a checkpoint, without the training state.

    ``memory`` contains the statistics of the environments (``vec.base.HasNormalizer``), used to
    normalize the policy's observations.
    """

    folder: Path
    config: Config
    spec: EnvSpec
    policy: Policy
    weights: Any
    step: int
    statistics: Statistics


def run_folder(config: Config, run_id: str) -> Path:
    """Return the folder of a run's checkpoints."""
    return Path(config.base.checkpoint_dir) / config.slug / run_id


def prepare(config: Config, run_id: str, home: Path = Path()) -> Path:
    """Create a run folder and write its configuration. Reports an unwritable disk before training.

    Args:
        config: Configuration of the run.
        run_id: Run id.
        home: Folder to which a relative `base.checkpoint_dir` refers.

    Raises:
        UserError: If the folder can't be written.
    """
    folder = home / run_folder(config, run_id)
    write_ini(config, folder / CONFIG)
    return folder


@contextlib.contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Lock a run folder during the block, and remove temporary files of killed processes.

    Raises:
        UserError: If another process trains this run, or the folder can't be written.
    """
    with lock_folder(folder, "the run") as alone:
        left = [*folder.iterdir(), *(folder / VIDEOS).glob(".*")] if alone else []
        for path in left:
            if not TEMPORARY.fullmatch(path.name):
                continue
            if path.is_symlink() or path.is_file():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)
        yield


@contextlib.contextmanager
def new_run(config: Config, home: Path = Path()) -> Iterator[Path]:
    """Create and lock the folder of a new run during the block.

    Args:
        config: Configuration of the run.
        home: Folder to which a relative `base.checkpoint_dir` refers.

    Yields:
        Run folder, named by the time in milliseconds.

    Raises:
        UserError: If the folder can't be written.
    """
    number = time.time_ns() // 1_000_000
    with contextlib.suppress(OSError):  # ``prepare`` reports the error
        runs = home / run_folder(config, "")
        runs.mkdir(parents=True, exist_ok=True)
        while not _create(runs / str(number)):  # taken by another run that started now
            number += 1
    folder = prepare(config, str(number), home)
    with lock_run(folder):
        yield folder


def _create(folder: Path) -> bool:
    """Return True if this call created the folder, False if it existed."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def is_due(config: Config, epoch: int) -> bool:
    """Return True if PufferLib saves a checkpoint after this epoch (from 0).

    4.0 and 5.0 differ by one epoch.
    """
    interval = config.base.checkpoint_interval
    done = epoch + config.facts.saves_after
    return epoch == config.epochs - 1 or (interval > 0 and done % interval == 0)


def _check_counters(numbers: dict[str, Any]) -> None:
    """Raise an error for impossible counters: they would cut the log or end the run at once."""
    for name, whole in COUNTERS.items():
        value = numbers.get(name)
        right = is_count(value) if whole else is_finite(value) and value >= 0
        if not right and (name in numbers or name not in OPTIONAL):
            kind = "a whole number" if whole else "a number"
            raise _senseless(f"{name} is {value!r:.80}, expected {kind} from 0")
    if numbers["epoch"] > numbers["global_step"]:  # an epoch has at least one step
        raise _senseless(f"epoch is {numbers['epoch']} after {numbers['global_step']} steps")


def _senseless(what: str) -> UserError:
    message = f"the run's state makes no sense: {what}"
    return UserError(message, "the file is damaged; go on from another checkpoint")
