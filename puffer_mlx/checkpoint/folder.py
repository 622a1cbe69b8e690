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

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_unflatten

from puffer_mlx.checkpoint.normalization import Memory
from puffer_mlx.config import Config, write_ini
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import locked
from puffer_mlx.system.json_text import is_count, is_finite
from puffer_mlx.trees import named

CONFIG, BEST, VIDEOS = "config.ini", "best", "videos"
WEIGHTS, STATE = "weights.safetensors", "state.safetensors"


# The temporary names of system/files.py for what is published in such a folder.
LEFT = re.compile(r"\.([0-9]{16}|config)-[a-z0-9_]{8}(\.ini|\.gif)?|\.best-[0-9]+")
COUNTERS = {  # and whether they are whole numbers
    **dict.fromkeys(("epoch", "global_step", "log_position"), True),
    **dict.fromkeys(("uptime", "learning_rate"), False),
}
OPTIONAL = "log_position", "learning_rate"


class State(NamedTuple):
    """What a run needs besides its weights to go on.

    Args:
        arrays: by dotted name.
        numbers: counters and what else is JSON.
    """

    arrays: dict[str, mx.array]
    numbers: dict[str, Any]

    def taken(self, mine: dict[str, Any]) -> dict[str, Any]:
        """The trees that belong to a trainer.

        Args:
            mine: trees of arrays by name, as the trainer has them.

        Returns:
            The saved ones, of the same names, shapes and dtypes.

        Raises:
            UserError: the state is of another configuration, or its counters make no sense.
        """
        _check_counters(self.numbers)
        arrays, wanted = self.arrays, named(mine)
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


def within(arrays: dict[str, mx.array], name: str) -> dict[str, mx.array]:
    """The arrays of a state whose names begin with a name and a dot, by what follows."""
    prefix = f"{name}."
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


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
    """Return the folder of a run's checkpoints."""
    return Path(config.base.checkpoint_dir) / config.slug / run_id


def prepare(config: Config, run_id: str, home: Path = Path()) -> Path:
    """Make a run's folder and write its configuration; an unwritable disk shows before training.

    Args:
        config: of the run.
        run_id: its name.
        home: the folder that a relative `base.checkpoint_dir` is in.

    Raises:
        UserError: the folder can't be written.
    """
    folder = home / run_folder(config, run_id)
    write_ini(config, folder / CONFIG)
    return folder


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run's folder during a block, and clear away half-written files of killed processes.

    Raises:
        UserError: another process trains this run, or the folder can't be written to.
    """
    with locked(folder, "the run") as alone:
        left = [*folder.iterdir(), *(folder / VIDEOS).glob(".*")] if alone else []
        for path in left:
            if not LEFT.fullmatch(path.name):
                continue
            if path.is_symlink() or path.is_file():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)
        yield


@contextlib.contextmanager
def new_run(config: Config, home: Path = Path()) -> Iterator[Path]:
    """Make the folder of a run that begins, and hold it during a block.

    Args:
        config: of the run.
        home: the folder that a relative `base.checkpoint_dir` is in.

    Yields:
        The folder; its name, the time in milliseconds, is the run's.

    Raises:
        UserError: the folder can't be written.
    """
    number = time.time_ns() // 1_000_000
    with contextlib.suppress(OSError):  # said by ``prepare``
        runs = home / run_folder(config, "")
        runs.mkdir(parents=True, exist_ok=True)
        while not _create(runs / str(number)):  # by a run that began at the same time
            number += 1
    folder = prepare(config, str(number), home)
    with held(folder):
        yield folder


def _create(folder: Path) -> bool:
    """Whether this call made a folder; False if it was there."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def is_due(config: Config, epoch: int) -> bool:
    """Whether upstream saves after this epoch (counted from 0): 4.0 and 5.0 differ by one."""
    interval = config.base.checkpoint_interval
    done = epoch + config.facts.saves_after
    return epoch == config.epochs - 1 or (interval > 0 and done % interval == 0)


def _check_counters(numbers: dict[str, Any]) -> None:
    """Refuse counters that no run can have: its log would be cut, or it would end at once."""
    for name, whole in COUNTERS.items():
        value = numbers.get(name)
        right = is_count(value) if whole else is_finite(value) and value >= 0
        if not right and (name in numbers or name not in OPTIONAL):
            kind = "a whole number" if whole else "a number"
            raise _senseless(f"{name} is {value!r:.80}, expected {kind} from 0")
    if numbers["epoch"] > numbers["global_step"]:  # an epoch has one step at least
        raise _senseless(f"epoch is {numbers['epoch']} after {numbers['global_step']} steps")


def _senseless(what: str) -> UserError:
    message = f"the run's state makes no sense: {what}"
    return UserError(message, "the file is damaged; go on from another checkpoint")
