"""Native environments that a GPU steps itself: what it must know of them, and how they get there.

An environment whose ``binding.c`` defines MY_GPU has rules that compile for a GPU, too
(``envs/include/vecenv.h``). Between two rollouts it is the bytes of its struct, wherever it is
stepped, so it may go from one to the other.
"""

import ctypes
from pathlib import Path
from typing import NamedTuple

import numpy as np

from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.native.c_functions import FLOAT32, address, addresses, shapes
from puffer_mlx.vec.native.open_handle import OpenHandle

WORD = 4  # bytes


class GPURules(NamedTuple):
    """An environment's rules, as a GPU's compiler needs them."""

    header: Path
    struct: str  # its name
    masked: bool
    words: int  # of the struct
    log: int  # words before its log
    logs: int  # words of its log


def gpu_rules(folder: Path | str, library: ctypes.CDLL, spec: EnvSpec) -> GPURules | None:
    """The rules of a folder's environment; None if they compile for a CPU alone.

    Args:
        folder: with its ``binding.c``.
        library: what was compiled of it.
        spec: what its agents see and do.
    """
    counts = (ctypes.c_int * 3)()
    names = library.puffer_gpu_rules(counts)
    if names is None:
        return None
    struct, header = names.decode().split(" ", 1)
    size, log, logs = counts
    path = (Path(folder) / header).resolve()
    return GPURules(path, struct, spec.mask_size > 0, size // WORD, log // WORD, logs)


class GPUSide:
    """Environments' structs, to be stepped elsewhere for a while.

    Args:
        rules: theirs.
        library: their functions.
        handle: of the environments.
        spec: what their agents see and do.
        agents: N.
        environments: E.
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
        self._library, self._handle, self._spec = library, handle, spec
        self._agents, self._environments = agents, environments

    def take(self) -> np.ndarray:
        """All structs, (E, words) int32."""
        structs = np.empty((self._environments, self.rules.words), np.int32)
        self._library.puffer_take_structs(self._handle.address(), structs.ctypes.data)
        return structs

    def give(self, structs: np.ndarray, actions: np.ndarray, rows: Rows) -> None:
        """Go on from structs that were stepped elsewhere.

        Args:
            structs: (E, words) int32.
            actions: (N, heads) float32, the last.
            rows: of N agents, what arrived with them.

        Raises:
            ValueError: an array has another shape or dtype, or isn't C-contiguous.
        """
        N, spec = self._agents, self._spec
        shape, int32 = (self._environments, self.rules.words), np.dtype(np.int32)
        structs_at = address(structs, shape, int32, "structs", written=False)
        actions_at = address(actions, (N, spec.action.heads), FLOAT32, "actions", written=False)
        rows_at = addresses(rows, spec, shapes(N, spec))
        self._library.puffer_give_structs(self._handle.address(), structs_at, actions_at, *rows_at)

    def add_log(self, log: np.ndarray) -> None:
        """What ``NativeVec.log`` reports next: sums of all logs, (logs,) float32."""
        at = address(log, (self.rules.logs,), FLOAT32, "log", written=False)
        self._library.puffer_add_log(self._handle.address(), at)
