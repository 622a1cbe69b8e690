"""C environments that can step on a GPU: read their rules, and transfer their structs.

If an environment's ``binding.c`` defines MY_GPU, its rules also compile for a GPU
(``envs/include/vecenv.h``). Between two rollouts the environment consists only of the bytes of its
struct, so it can move between CPU and GPU.
"""

import ctypes
from pathlib import Path
from typing import NamedTuple

import numpy as np

from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.native.c_functions import (
    FLOAT32,
    OpenHandle,
    address,
    row_addresses,
    row_shapes,
)

WORD_BYTES = 4


class GPURules(NamedTuple):
    """Header and struct layout of a C environment, with which a GPU compiles and steps it."""

    header: Path
    struct: str  # name of the struct
    masked: bool  # True if the environment masks actions
    words: int  # size of the struct (1 word is 4 bytes)
    log: int  # offset of the log (words)
    logs: int  # size of the log (words)


def gpu_rules(folder: Path | str, library: ctypes.CDLL, spec: EnvSpec) -> GPURules | None:
    """Return what a GPU needs to compile and step a C environment, or None if it can't step there.

    Args:
        folder: Folder with ``binding.c``.
        library: The compiled environment.
        spec: Observations and actions of one agent.
    """
    counts = (ctypes.c_int * 3)()
    names = library.puffer_gpu_rules(counts)
    if names is None:
        return None
    struct, header = names.decode().split(" ", 1)
    size, log, logs = counts
    path = (Path(folder) / header).resolve()
    return GPURules(path, struct, spec.mask_size > 0, size // WORD_BYTES, log // WORD_BYTES, logs)


class GPUSide:
    """Access to C environments' structs, to copy them to and from a GPU that steps them.

    Args:
        rules: Rules of the environments.
        library: Library of the environments.
        handle: Handle of the open environments.
        spec: Observations and actions of one agent.
        agents: Number of agents N.
        environments: Number of environments E.
    """

    def __init__(
        self,
        rules: GPURules,
        library: ctypes.CDLL,
        handle: OpenHandle,
        spec: EnvSpec,
        agents: int,
        environments: int,
    ) -> None:
        self.rules = rules
        self._library = library
        self._handle = handle
        self._spec = spec
        self._agents, self._environments = agents, environments

    def take(self) -> np.ndarray:
        """Copy the structs of all C environments, (E, words) int32, to step them on a GPU."""
        structs = np.empty((self._environments, self.rules.words), np.int32)
        self._library.puffer_take_structs(self._handle.address(), structs.ctypes.data)
        return structs

    def give(self, structs: np.ndarray, actions: np.ndarray, rows: Rows) -> None:
        """Replace the structs of all C environments by those that a GPU stepped.

        Args:
            structs: (E, words) int32.
            actions: (N, heads) float32, actions of the last step.
            rows: Rows of the last step, of N agents.

        Raises:
            ValueError: An array has another shape or dtype, or isn't C-contiguous.
        """
        N, spec = self._agents, self._spec
        shape = (self._environments, self.rules.words)
        int32 = np.dtype(np.int32)
        structs_at = address(structs, shape, int32, "structs", written=False)
        actions_at = address(actions, (N, spec.action.heads), FLOAT32, "actions", written=False)
        rows_at = row_addresses(rows, spec, row_shapes(N, spec))
        self._library.puffer_give_structs(self._handle.address(), structs_at, actions_at, *rows_at)

    def add_log(self, log: np.ndarray) -> None:
        """Add a GPU's summed episode logs, (logs,) float32, to the next ``NativeVec.log``."""
        at = address(log, (self.rules.logs,), FLOAT32, "log", written=False)
        self._library.puffer_add_log(self._handle.address(), at)
