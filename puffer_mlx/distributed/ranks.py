"""Ranks: several processes that train one policy together, each with a shard of the agents.

``single_process.py`` documents the interface.
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
from puffer_mlx.distributed.single_process import DrawFunction, GradientFunction, SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.ops import implementation, verification
from puffer_mlx.ops.pack import pack_arrays
from puffer_mlx.trees import leaves
from puffer_mlx.vec.base import HasNormalizer, VecEnv

COMPILE_EPOCHS = 2  # first epochs, in which kernels are compiled
CHECK_INTERVAL = 10  # epochs between two comparisons of the ranks' weights
LOST_PATTERN = re.compile(r"\[(ring|nccl|jaccl|mpi)\]|nccl|jaccl", re.IGNORECASE)  # in MLX's errors
REASON_TIMEOUT = 3.0  # seconds to wait for the lost rank's number if MLX notices the loss first
ORPHANED_MESSAGE = "the process that started the ranks has ended: stopping after this epoch"
RESUME_HINT = "see the output of that rank; --resume continues from the last complete checkpoint"
ARRAY_PREFIX = "ranks."  # a checkpoint contains the arrays of rank R as ``ranks.R``


class Ranks(SingleProcess):
    """This process as one of several that train together; ``joining.init_distributed`` creates it.

    Args:
        group: MLX's group of processes.
        config: Configuration of the entire run.

    Attributes:
        heartbeat: Detects lost ranks.
    """

    def __init__(self, group: mx.distributed.Group, config: Config) -> None:
        self.group = group
        self.heartbeat = Heartbeat(group.rank(), config.train.rank_timeout)
        self.rank = group.rank()
        self.size = group.size()
        self._last_epoch = config.epochs - 1
        # Function that sends bytes to all ranks; ``use_host_all_gather`` replaces it.
        self._gather_bytes = partial(exchange.all_gather_bytes, group)
        self._synced_epochs = 0
        self._common_statistics: dict[str, np.ndarray] = {}  # the same on all ranks

    def local_config(self, config: Config) -> Config:
        """Return the configuration of this rank's shard of a run: of its agents and minibatches."""
        return partition(config, self.rank, self.size)

    def draw_columns(self, draw: DrawFunction, key: mx.array, steps: int, agents: int) -> mx.array:
        """Draw random numbers for the agents of all ranks, and return those for this rank's agents.

        So a run gets the same random numbers on any number of ranks.
        """
        first = self.rank * agents
        all_columns = draw(key, (steps, agents * self.size))
        return mx.contiguous(all_columns[:, first : first + agents])

    def local_key(self, key: mx.array) -> mx.array:
        """Return this rank's random key for choosing minibatches, derived from the common key."""
        return mx.random.split(key, self.size)[self.rank]

    # ---- a minibatch -----------------------------------------------------------------------------

    def average_gradients(self, gradients: GradientFunction, normalised: bool) -> GradientFunction:
        """Wrap a gradient function so that gradients and metrics are means over all ranks.

        The result can be compiled, so the host doesn't wait for the exchange. Advantages are
        normalized by the moments of all ranks' samples.
        """

        def averaged(weights, minibatch, *arguments) -> tuple:
            if normalised:
                targets = minibatch.targets
                targets = targets._replace(moments=exchange.gather_moments(self.group, targets.adv))
                minibatch = minibatch._replace(targets=targets)
            (loss, metrics, *samples), grads = gradients(weights, minibatch, *arguments)
            grads, metrics = exchange.mean_of_ranks(self.group, grads, metrics)
            return (loss, metrics, *samples), grads

        return averaged

    def count_progress(self, gradients: GradientFunction) -> GradientFunction:
        """Return a gradient function that counts each call as progress, for heartbeats."""

        def count(*inputs: Any) -> Any:
            self.heartbeat.progress.count += 1
            return gradients(*inputs)

        return count

    # ---- an epoch --------------------------------------------------------------------------------

    def any(self, flag: bool) -> bool:
        """Return True if ``flag`` is True on any rank. All ranks wait for this exchange."""
        self.heartbeat.progress.count += 1
        return b"1" in self._gather_checked(b"1" if flag else b"0")

    def should_stop(self, flag: bool) -> bool:
        """Return True if the run must stop: ``flag`` is True on a rank or the launcher has ended.

        Rank 0 prints a message if its launcher has ended.
        """
        should_stop = self.any(flag or orphaned())
        if should_stop and not flag and self.rank == 0 and orphaned():
            print(ORPHANED_MESSAGE, file=sys.stderr, flush=True)
        return should_stop

    def sync_epoch(
        self, epoch: int, weights: Any, logs: dict[str, float], scores: Any
    ) -> tuple[dict[str, float], Any]:
        """Merge logs and scores of all ranks after an epoch, and compare weights in some epochs.

        The ranks also disable the kernels that any rank has disabled. A rollout may verify kernels
        in another thread, in which ranks can't exchange messages.
        """
        crc = (
            weights_crc(weights) if epoch % CHECK_INTERVAL == 0 or epoch == self._last_epoch else 0
        )
        rank_logs = {name: float(value) for name, value in logs.items()}
        rank_scores = None if scores is None else scores.tolist()
        rank_refused = sorted(implementation.refused)
        message = json.dumps((crc, rank_logs, rank_scores, rank_refused))
        with self._lost_rank_as_error():
            messages = self._gather_bytes(message.encode())
        self._synced_epochs += 1
        self.heartbeat.progress.has_compiled = self._synced_epochs >= COMPILE_EPOCHS
        crcs, all_logs, all_scores, all_refused = zip(*map(json.loads, messages), strict=True)
        _disable_all(all_refused)
        if different := [rank for rank, crc in enumerate(crcs) if crc != crcs[0]]:
            raise UserError(
                f"after epoch {epoch + 1} the weights of ranks {different} differ from those of"
                " rank 0",
                "all ranks need the same kind of device and the same versions; --resume continues"
                " from the last checkpoint",
            )
        # Last, because other ranks may have ended after raising one of the errors above.
        self._raise_if_lost()
        if scores is not None:
            episodes = [episode for rank in all_scores for episode in rank]
            scores = np.array(episodes).reshape(-1, 2)
        return exchange.merged_means(all_logs), scores

    def begin_statistics(self, vec: VecEnv) -> None:
        """Remember the normalization statistics, equal on all ranks, for ``merge_statistics``."""
        self._common_statistics = vec.statistics() if isinstance(vec, HasNormalizer) else {}

    def merge_statistics(self, vec: VecEnv) -> None:
        """Merge the samples that all ranks added to the environments' normalization statistics.

        These are the samples since the last call, or since ``begin_statistics``.
        """
        if not self._common_statistics or not isinstance(vec, HasNormalizer):
            return
        messages = self._gather_checked(to_bytes(vec.statistics()))
        self._common_statistics = exchange.merged_moments(
            self._common_statistics, [from_bytes(data) for data in messages]
        )
        vec.restore_statistics(self._common_statistics)

    # ---- a checkpoint ----------------------------------------------------------------------------

    def gather_arrays(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Gather all ranks' arrays to store them in a checkpoint of rank 0.

        Returns the arrays of each rank R but 0, encoded as an array of bytes ``ranks.R``.
        """
        mine = to_bytes({name: np.asarray(array) for name, array in arrays.items()})
        with self.report_lost_ranks():
            messages = exchange.all_gather_bytes(self.group, mine)
        by_name = {f"{ARRAY_PREFIX}{rank}": data for rank, data in enumerate(messages) if rank}
        return {name: mx.array(np.frombuffer(data, np.uint8)) for name, data in by_name.items()}

    def checkpoint_values(self) -> dict[str, int]:
        """Return the number of ranks as a dictionary, to store it in a checkpoint."""
        return {"ranks": self.size}

    def restore(
        self, arrays: dict[str, mx.array], values: Mapping[str, Any]
    ) -> dict[str, mx.array]:
        """Return a checkpoint's arrays for this rank: its arrays replace those of rank 0.

        Raises:
            UserError: The checkpoint was saved with another number of ranks.
        """
        arrays = super().restore(arrays, values)
        if not self.rank:
            return arrays
        mine = from_bytes(np.asarray(arrays[f"{ARRAY_PREFIX}{self.rank}"]).tobytes())
        return {**arrays, **{name: mx.array(array) for name, array in mine.items()}}

    def agree_on_disabled(self) -> bool:
        """Disable on all ranks each implementation of an operation that any rank found to be wrong.

        Returns:
            True if the ranks had disabled different implementations.
        """
        return _disable_all(self.all_objects(sorted(implementation.refused)))

    @contextlib.contextmanager
    def report_lost_ranks(self) -> Iterator[None]:
        """Run a block that exchanges data between ranks, and raise a UserError if a rank is lost.

        The ranks also agree on the kernels that the block finds to be wrong: all disable them.
        """
        with self._lost_rank_as_error(), verification.sharing_refusals(self.agree_on_disabled):
            yield
        self._raise_if_lost()

    @contextlib.contextmanager
    def _lost_rank_as_error(self) -> Iterator[None]:
        """Raise a UserError if an exchange in a ``with`` block fails because a rank is lost."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, LostRank) and not LOST_PATTERN.search(str(error)):
                raise
            reason = self.heartbeat.wait_lost(REASON_TIMEOUT)
            reason = reason or f"the ranks have lost each other: {error}"
            raise UserError(reason, RESUME_HINT) from None

    def _raise_if_lost(self) -> None:
        if reason := self.heartbeat.wait_lost(0):
            raise UserError(reason, RESUME_HINT)

    def exempt_from_timeout(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which this rank is busy, so that others wait without a timeout."""
        return self.heartbeat.exempt_from_timeout()

    def broadcast_text(self, text: str) -> str:
        """Send rank 0's text to all ranks and return it."""
        return self._gather_checked(text.encode() if not self.rank else b"")[0].decode()

    def all_objects(self, value: Any) -> list[Any]:
        """Send an object to all ranks as JSON, and return the objects of all ranks, by rank."""
        return [json.loads(text) for text in self._gather_checked(json.dumps(value).encode())]

    def use_host_all_gather(self) -> None:
        """Exchange small messages between ranks over TCP instead of MLX, from the next one on."""
        self._gather_bytes = HostAllGather(
            self.heartbeat.messages, self.size, lambda: self.heartbeat.lost
        ).gather

    def _gather_checked(self, data: bytes) -> list[bytes]:
        """Send bytes to all ranks and return the bytes that all ranks sent, by rank.

        Raises:
            UserError: A rank is lost.
        """
        with self.report_lost_ranks():
            return self._gather_bytes(data)

    @contextlib.contextmanager
    def report_end(self) -> Iterator[None]:
        """Tell the other ranks when a ``with`` block ends, and with which error if it fails."""
        try:
            yield
        except BaseException as error:
            self.heartbeat.close((str(error).splitlines() or [type(error).__name__])[0])
            raise
        self.heartbeat.close()

    def set_rescue(self, rescue: Callable[[], str]) -> None:
        """Set the function that saves the run if another rank is lost and this one is blocked."""
        self.heartbeat.rescue = rescue


def _disable_all(by_rank: Sequence[list[str]]) -> bool:
    """Disable the implementations of operations that any rank has disabled.

    Returns True if the ranks had disabled different ones.

    Args:
        by_rank: Names of disabled implementations, by rank.
    """
    verification.refuse({name for names in by_rank for name in names}, gpu="another rank's GPU")
    return any(names != by_rank[0] for names in by_rank)


def weights_crc(weights: Any) -> int:
    """Return the CRC-32 of all weights of a policy, to check that all ranks have the same weights.

    Reading the arrays themselves would move them to host memory permanently, so a copy is read.
    """
    packed, _ = pack_arrays(leaves(weights))
    return zlib.crc32(np.asarray(packed).data)


def to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Encode arrays and their names as bytes, to send them to another rank or store them."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore
    return file.getvalue()


def from_bytes(data: bytes) -> dict[str, np.ndarray]:
    """Decode bytes that ``to_bytes`` returned. Returns the arrays by name."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return dict(file)
