"""Native environments that a GPU steps: their rules, and transfer of their structs.

If an environment's ``binding.c`` defines MY_GPU, its rules also compile for a GPU
(``envs/include/vecenv.h``). Between two rollouts the environment is only the bytes of its struct,
so it can move between CPU and GPU.
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

WORD_BYTES = 4  # bytes


class GPURules(NamedTuple):
    """Rules of an environment, as a GPU's compiler needs them."""

    header: Path
    struct: str  # name of the struct
    masked: bool
    words: int  # in the struct
    log: int  # words before the log
    logs: int  # words in the log


def gpu_rules(folder: Path | str, library: ctypes.CDLL, spec: EnvSpec) -> GPURules | None:
    """Return the rules of a folder's environment, or None if they compile for a CPU only.

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
    """Structs of environments, which a GPU may step between two steps on the CPU.

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
        """Return all structs, (E, words) int32."""
        structs = np.empty((self._environments, self.rules.words), np.int32)
        self._library.puffer_take_structs(self._handle.address(), structs.ctypes.data)
        return structs

    def give(self, structs: np.ndarray, actions: np.ndarray, rows: Rows) -> None:
        """Continue from structs that a GPU stepped.

        Args:
            structs: (E, words) int32.
            actions: Last actions, (N, heads) float32.
            rows: Rows of the last step, N agents.

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
        """Add the sums of all logs, (logs,) float32, to the next report of ``NativeVec.log``."""
        at = address(log, (self.rules.logs,), FLOAT32, "log", written=False)
        self._library.puffer_add_log(self._handle.address(), at)
