"""A rank: one of several processes that train one policy together.

Each rank has a shard of the run's agents. ``single_process.py`` documents the methods.
"""

import contextlib
import io
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.distributed import exchange
from puffer_mlx.distributed.heartbeat import Heartbeat
from puffer_mlx.distributed.launching import orphaned
from puffer_mlx.distributed.messages import HostAllGather, LostRank
from puffer_mlx.distributed.shards import partition
from puffer_mlx.distributed.single_process import Draw, SingleProcess, Step
from puffer_mlx.errors import UserError
from puffer_mlx.ops import implementation, verification
from puffer_mlx.ops.pack import pack
from puffer_mlx.trees import leaves
from puffer_mlx.vec.base import HasNormalizer, VecEnv

COMPILES = 2  # epochs in which kernels are compiled: the second is the first to be measured
COMPARED = 10  # epochs between two comparisons of the weights
LOST = re.compile(r"\[(ring|nccl|jaccl|mpi)\]|nccl|jaccl", re.IGNORECASE)  # in MLX's errors
REASON_TIMEOUT = 3.0  # seconds to wait for the lost rank's number, if MLX notices the loss first
ORPHANED = "the process that started the ranks has ended: stopping after this epoch"
GOES_ON = "what it said tells why; --resume goes on from the last whole checkpoint"
OTHERS = "ranks."  # prefix of a rank's arrays in a checkpoint, before its number


class Ranks(SingleProcess):
    """One of several processes; created by ``joining.init_distributed``.

    Args:
        group: MLX's group of processes.
        config: configuration of the entire run.

    Attributes:
        heartbeat: detects lost ranks.
    """

    def __init__(self, group: mx.distributed.Group, config: Config) -> None:
        self.group = group
        self.heartbeat = Heartbeat(group.rank(), config.train.rank_timeout)
        self.rank = group.rank()
        self.size = group.size()
        self._last = config.epochs - 1
        self._exchange = partial(exchange.all_bytes, group)  # until ``use_host_all_gather``
        self._met = 0  # epochs
        self._measured: dict[str, np.ndarray] = {}  # statistics that all ranks have in common

    def local_config(self, config: Config) -> Config:
        """Return this rank's configuration: see ``partition``."""
        return partition(config, self.rank, self.size)

    def columns(self, draw: Draw, key: mx.array, steps: int, agents: int) -> mx.array:
        """Draw for all agents, as one process does, and return the columns of this rank's."""
        first = self.rank * agents
        whole = draw(key, (steps, agents * self.size))
        return mx.contiguous(whole[:, first : first + agents])

    def local_key(self, key: mx.array) -> mx.array:
        """Return this rank's random key."""
        return mx.random.split(key, self.size)[self.rank]

    # ---- a minibatch -----------------------------------------------------------------------------

    def average_gradients(self, gradients: Step, normalised: bool) -> Step:
        """Return a function of arrays, which can be compiled, so that the host need not wait.

        The moments that normalize advantages are means over all ranks' samples, too.
        """

        def of_all(weights, minibatch, *others) -> tuple:
            if normalised:
                targets = minibatch.targets
                targets = targets._replace(moments=exchange.moments(self.group, targets.adv))
                minibatch = minibatch._replace(targets=targets)
            (loss, metrics, *samples), grads = gradients(weights, minibatch, *others)
            grads, metrics = exchange.mean_of_ranks(self.group, grads, metrics)
            return (loss, metrics, *samples), grads

        return of_all

    def count_progress(self, gradients: Step) -> Step:
        """Return a function that counts each minibatch as progress of this rank."""

        def count(*inputs: Any) -> Any:
            self.heartbeat.progress.count += 1
            return gradients(*inputs)

        return count

    # ---- an epoch --------------------------------------------------------------------------------

    def any(self, flag: bool) -> bool:
        """Exchange one byte. All ranks wait for it."""
        self.heartbeat.progress.count += 1
        return b"1" in self._all_bytes(b"1" if flag else b"0")

    def should_stop(self, flag: bool) -> bool:
        """The first rank prints the reason if the launcher has ended."""
        ends = self.any(flag or orphaned())
        if ends and not flag and not self.rank and orphaned():  # also if another one saw it first
            print(ORPHANED, file=sys.stderr, flush=True)
        return ends

    def sync_epoch(
        self, epoch: int, weights: Any, logs: dict[str, float], scores: Any
    ) -> tuple[dict[str, float], Any]:
        """Exchange one message; it has the weights' checksum in some epochs and in the last one.

        Acting may verify kernels in another thread, where ranks can't exchange anything. They agree
        on refused ones here.
        """
        crc = checksum(weights) if epoch % COMPARED == 0 or epoch == self._last else 0
        reported = {name: float(value) for name, value in logs.items()}
        listed = None if scores is None else scores.tolist()
        refused = sorted(implementation.refused)
        with self._reported():
            messages = self._exchange(json.dumps((crc, reported, listed, refused)).encode())
        self._met += 1
        self.heartbeat.progress.begun = self._met >= COMPILES
        crcs, reported, listed, refused = zip(*map(json.loads, messages), strict=True)
        _refuse_all(refused)
        if others := [rank for rank, crc in enumerate(crcs) if crc != crcs[0]]:
            raise UserError(
                f"after epoch {epoch + 1} the weights of ranks {others} differ from those of rank"
                " 0, and so would all that follows",
                "all ranks need the same kind of device and the same versions; --resume goes on"
                " from the last checkpoint",
            )
        self._all_there()  # after what all ranks find alike: one may have ended by it already
        if scores is not None:
            scores = np.array([one for some in listed for one in some]).reshape(-1, 2)
        return exchange.merged_means(reported), scores

    def begin_statistics(self, vec: VecEnv) -> None:
        """Store the statistics as they are before this rank adds to them."""
        self._measured = vec.statistics() if isinstance(vec, HasNormalizer) else {}

    def merge_statistics(self, vec: VecEnv) -> None:
        """Merge what all ranks added to the statistics since ``begin`` or the last call."""
        if not self._measured or not isinstance(vec, HasNormalizer):
            return
        memories = self._all_bytes(to_bytes(vec.statistics()))
        self._measured = exchange.merged_moments(
            self._measured, [from_bytes(data) for data in memories]
        )
        vec.restore_statistics(self._measured)

    # ---- a checkpoint ----------------------------------------------------------------------------

    def gather_arrays(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Return each rank's arrays as bytes, named ``ranks.R``."""
        mine = to_bytes({name: np.asarray(array) for name, array in arrays.items()})
        with self.report_lost_ranks():
            parts = exchange.all_bytes(self.group, mine)
        texts = {f"{OTHERS}{rank}": text for rank, text in enumerate(parts) if rank}
        return {name: mx.array(np.frombuffer(text, np.uint8)) for name, text in texts.items()}

    def numbers(self) -> dict[str, int]:
        """Return the number of ranks."""
        return {"ranks": self.size}

    def restore(
        self, arrays: dict[str, mx.array], numbers: Mapping[str, Any]
    ) -> dict[str, mx.array]:
        """Replace the first rank's arrays by this rank's."""
        arrays = super().restore(arrays, numbers)
        if not self.rank:
            return arrays
        mine = from_bytes(np.asarray(arrays[f"{OTHERS}{self.rank}"]).tobytes())
        return {**arrays, **{name: mx.array(array) for name, array in mine.items()}}

    def agree_on_refused(self) -> bool:
        """Exchange one message."""
        return _refuse_all(self.all_objects(sorted(implementation.refused)))

    @contextlib.contextmanager
    def report_lost_ranks(self) -> Iterator[None]:
        """Check for lost ranks at the end, too. Within, ranks agree on the kernels they refuse."""
        with self._reported(), verification.agreeing(self.agree_on_refused):
            yield
        self._all_there()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Raise UserError for an error of MLX or of ``HostAllGather`` that means a lost rank."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, LostRank) and not LOST.search(str(error)):
                raise
            reason = self.heartbeat.wait_lost(REASON_TIMEOUT)
            reason = reason or f"the ranks have lost each other: {error}"
            raise UserError(reason, GOES_ON) from None

    def _all_there(self) -> None:
        if reason := self.heartbeat.wait_lost(0):
            raise UserError(reason, GOES_ON)

    def exempt_from_timeout(self) -> contextlib.AbstractContextManager[object]:
        """Mark this rank as busy, so that the others wait longer."""
        return self.heartbeat.exempt_from_timeout()

    def broadcast_text(self, text: str) -> str:
        """Exchange one message."""
        return self._all_bytes(text.encode() if not self.rank else b"")[0].decode()

    def all_objects(self, value: Any) -> list[Any]:
        """Return each rank's object, in the order of the ranks. Objects are sent as JSON."""
        return [json.loads(text) for text in self._all_bytes(json.dumps(value).encode())]

    def use_host_all_gather(self) -> None:
        """Exchange small messages through ``HostAllGather`` from now on, instead of MLX."""
        self._exchange = HostAllGather(
            self.heartbeat.messages, self.size, lambda: self.heartbeat.lost
        ).all_bytes

    def _all_bytes(self, data: bytes) -> list[bytes]:
        """Return each rank's bytes, in the order of the ranks."""
        with self.report_lost_ranks():
            return self._exchange(data)

    @contextlib.contextmanager
    def report_end(self) -> Iterator[None]:
        """Send the error to the other ranks if the block raises."""
        try:
            yield
        except BaseException as error:
            self.heartbeat.close((str(error).splitlines() or [type(error).__name__])[0])
            raise
        self.heartbeat.close()

    def set_rescue(self, rescue: Callable[[], str]) -> None:
        """Store the function for ``heartbeat``."""
        self.heartbeat.rescue = rescue


def _refuse_all(by_rank: Sequence[list[str]]) -> bool:
    """Refuse what any rank refused. Returns True if ranks had refused different implementations."""
    verification.refuse({name for names in by_rank for name in names}, gpu="another rank's GPU")
    return any(names != by_rank[0] for names in by_rank)


def checksum(weights: Any) -> int:
    """Return a CRC-32 of all weights.

    It reads a copy, because MLX would move the weights to the host's memory for good.
    """
    packed, _ = pack(leaves(weights))
    return zlib.crc32(np.asarray(packed).data)


def to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return named arrays as one message."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore
    return file.getvalue()


def from_bytes(data: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a message from ``to_bytes``."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return dict(file)
