"""Create, lock and describe the folders of runs and their checkpoints.

    checkpoint_dir/ENV/RUN_ID/
        config.ini                   effective configuration
        0000000000262144/            checkpoint, named by environment steps
            config.ini               the same configuration
            weights.safetensors      weights; in its metadata: environment spec, score, step
            weights.bin              weights in PufferLib's flat format, if it can contain them
            normalization.safetensors    statistics of observations and rewards, if any
            state.safetensors        optimizer, random keys, recurrent states, environments, ...
        videos/0000000000262144.gif  an episode, with base.eval_video_interval
        best                         link to the checkpoint with the best score of the lineage

A checkpoint is written after every ``checkpoint_interval``-th epoch and after the last epoch. As in
PufferLib, the algorithm puffer4 counts epochs from 0 and puffer5 from 1. The newest
``checkpoint_keep`` and the best one are kept. Checkpoints abandoned by resuming from an earlier one
(``branches``) are removed first and are never the newest or the best. Folders are written under a
temporary name and renamed, so a killed run leaves only complete checkpoints and maybe temporary
files whose names start with a dot.
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
from puffer_mlx.trees import named_arrays

CONFIG, BEST, VIDEOS = "config.ini", "best", "videos"
WEIGHTS, STATE = "weights.safetensors", "state.safetensors"


# Temporary names that system/files.py uses in run folders.
TEMPORARY_NAME = re.compile(r"\.([0-9]{16}|config)-[a-z0-9_]{8}(\.ini|\.gif)?|\.best-[0-9]+")
SAVED_COUNTERS = {  # by name of a saved number: True if it must be a whole number
    **dict.fromkeys(("epoch", "global_step", "log_position"), True),
    **dict.fromkeys(("uptime", "learning_rate"), False),
}
OPTIONAL_COUNTERS = "log_position", "learning_rate"


class SavedState(NamedTuple):
    """Saved training state: everything besides the weights that is needed to resume a run.

    Args:
        arrays: Arrays by dotted name.
        values: Counters and other JSON values.
    """

    arrays: dict[str, mx.array]
    values: dict[str, Any]

    def matching_trees(self, template: dict[str, Any]) -> dict[str, Any]:
        """Check a saved training state. Returns its arrays, arranged as a trainer's trees of them.

        Args:
            template: The trainer's trees of arrays, by name.

        Returns:
            Saved arrays in the same trees, with the same shapes and dtypes.

        Raises:
            UserError: The state belongs to another configuration, or its counters are invalid.
        """
        _check_counters(self.values)
        arrays = self.arrays
        expected = named_arrays(template)
        shapes = {name: array.shape for name, array in arrays.items()}
        dtypes = {name: array.dtype for name, array in arrays.items()}
        wrong_shapes = [
            f"{name}: {shapes.get(name, 'missing')}, expected {a.shape}"
            for name, a in expected
            if shapes.get(name) != a.shape
        ]
        wrong_dtypes = [
            f"{name}: {dtypes[name]}, expected {a.dtype}"
            for name, a in expected
            if name in dtypes and dtypes[name] != a.dtype
        ]
        if wrong := wrong_shapes + wrong_dtypes:
            raise UserError(
                f"the run's state is of another configuration: {'; '.join(wrong[:3])}",
                "resume with the run's policy, vec.total_agents and vec.num_buffers",
            )
        return tree_unflatten([(name, arrays[name]) for name, _ in expected])  # type: ignore


def arrays_below(arrays: dict[str, mx.array], name: str) -> dict[str, mx.array]:
    """Return the arrays whose names start with ``name.``, by the rest of their names."""
    prefix = f"{name}."
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


class Checkpoint(NamedTuple):
    """Contents of a checkpoint, without the training state.

    Attributes:
        folder: Checkpoint folder.
        config: Configuration of the run.
        spec: Observations and actions of the environment.
        policy: Policy that uses the weights.
        weights: Tree of weights.
        step: Environment steps when the checkpoint was saved.
        statistics: Normalization statistics of the environments (``vec.base.HasNormalizer``).
    """

    folder: Path
    config: Config
    spec: EnvSpec
    policy: Policy
    weights: Any
    step: int
    statistics: Statistics


def run_folder(config: Config, run_id: str) -> Path:
    """Return the folder that contains a run's checkpoints: ``checkpoint_dir/ENV/RUN_ID``."""
    return Path(config.base.checkpoint_dir) / config.slug / run_id


def prepare_run_folder(config: Config, run_id: str, home: Path = Path()) -> Path:
    """Create a run folder and write the configuration to it, before training. Returns the folder.

    Args:
        config: Configuration of the run.
        run_id: Run id.
        home: Folder to which a relative `base.checkpoint_dir` refers.

    Raises:
        UserError: The folder can't be written.
    """
    folder = home / run_folder(config, run_id)
    write_ini(config, folder / CONFIG)
    return folder


@contextlib.contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Lock a run folder during a block, and remove temporary files of killed processes.

    Raises:
        UserError: Another process trains this run, or the folder can't be written.
    """
    with lock_folder(folder, "the run") as is_locked:
        paths = [*folder.iterdir(), *(folder / VIDEOS).glob(".*")] if is_locked else []
        for path in paths:
            if not TEMPORARY_NAME.fullmatch(path.name):
                continue
            if path.is_symlink() or path.is_file():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)
        yield


@contextlib.contextmanager
def new_run(config: Config, home: Path = Path()) -> Iterator[Path]:
    """Create the folder of a new run, and lock it during a block.

    Args:
        config: Configuration of the run.
        home: Folder to which a relative `base.checkpoint_dir` refers.

    Yields:
        Run folder, named by the time in milliseconds.

    Raises:
        UserError: The folder can't be written.
    """
    run_id = time.time_ns() // 1_000_000
    with contextlib.suppress(OSError):  # ``prepare_run_folder`` fails too and reports the error
        runs = home / run_folder(config, "")
        runs.mkdir(parents=True, exist_ok=True)
        while not _create(runs / str(run_id)):  # another run started in the same millisecond
            run_id += 1
    folder = prepare_run_folder(config, str(run_id), home)
    with lock_run(folder):
        yield folder


def _create(folder: Path) -> bool:
    """Create a folder. Returns True, or False if the folder already exists."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def is_checkpoint_due(config: Config, epoch: int) -> bool:
    """Return True if a run must save a checkpoint after an epoch, at the same epochs as PufferLib.

    PufferLib 4.0 and 5.0 differ by one epoch.

    Args:
        config: Configuration of the run.
        epoch: Number of the epoch, from 0.
    """
    interval = config.base.checkpoint_interval
    count = epoch + config.facts.saves_after  # number of the epoch, from 0 or 1
    return epoch == config.epochs - 1 or (interval > 0 and count % interval == 0)


def _check_counters(values: dict[str, Any]) -> None:
    """Raise an error if a saved training state has impossible counters, such as negative steps.

    A run resumed with wrong counters would truncate its log or end at once.
    """
    for name, is_whole in SAVED_COUNTERS.items():
        value = values.get(name)
        is_valid = is_count(value) if is_whole else is_finite(value) and value >= 0
        if not is_valid and (name in values or name not in OPTIONAL_COUNTERS):
            kind = "a whole number" if is_whole else "a number"
            raise _invalid_state(f"{name} is {value!r:.80}, expected {kind} from 0")
    if values["epoch"] > values["global_step"]:  # an epoch has at least one step
        raise _invalid_state(f"epoch is {values['epoch']} after {values['global_step']} steps")


def _invalid_state(reason: str) -> UserError:
    message = f"the run's state is invalid: {reason}"
    return UserError(message, "the file is damaged; resume from another checkpoint")
