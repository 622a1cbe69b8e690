"""One of several processes that train one policy together.

Each has a part of the run's agents. ``single_process.py`` says what trainer and learner call.
"""

import contextlib
import io
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.machines import exchange
from puffer_mlx.machines.attendance import Attendance
from puffer_mlx.machines.launching import orphaned
from puffer_mlx.machines.messages import LostRank, Post
from puffer_mlx.machines.share import share
from puffer_mlx.machines.single_process import SingleProcess, Step
from puffer_mlx.ops.pack import pack
from puffer_mlx.trees import leaves
from puffer_mlx.vec.base import Remembers, VecEnv

COMPILES = 2  # epochs in which kernels are compiled: the second is the first to be measured
COMPARED = 10  # epochs from one comparison of the weights to the next
LOST = re.compile(r"\[(ring|nccl|jaccl|mpi)\]|nccl|jaccl", re.IGNORECASE)  # in MLX's messages
HEARD = 3.0  # seconds until it is known which one, where MLX has noticed first
ORPHANED = "the process that started the ranks has ended: stopping after this epoch"
GOES_ON = "what it said tells why; --resume goes on from the last whole checkpoint"
OTHERS = "ranks."  # before a rank's number: its part of a checkpoint's arrays


class Ranks(SingleProcess):
    """One of several processes; ``joining.join`` makes it.

    Args:
        group: MLX's.
        config: the run's.

    Attributes:
        attendance: tells who is there.
    """

    def __init__(self, group: mx.distributed.Group, config: Config) -> None:
        self.attendance = Attendance(group.rank(), config.train.rank_timeout)
        self.group = group
        self.rank, self.size = group.rank(), group.size()
        self._last = config.epochs - 1
        self._exchange = partial(exchange.all_bytes, group)  # until ``use_post``
        self._met = 0  # epochs
        self._measured: dict[str, np.ndarray] = {}  # what environments had, the same on all ranks

    def own(self, config: Config) -> Config:
        """The rank's part of its numbers: see ``share``."""
        return share(config, self.rank, self.size)

    def columns(self, draw: Callable[[int], mx.array], agents: int) -> mx.array:
        """Return the columns of this rank's agents, out of the random numbers of all agents.

        So each agent gets the numbers that it would get in one process.
        """
        first = self.rank * agents
        return mx.contiguous(draw(agents * self.size)[:, first : first + agents])

    def key(self, key: mx.array) -> mx.array:
        """Return this rank's own key."""
        return mx.random.split(key, self.size)[self.rank]

    # ---- a minibatch -----------------------------------------------------------------------------

    def summed(self, gradients: Step, normalised: bool) -> Step:
        """Gradients and statistics are means over all ranks' samples.

        So are the moments that advantages are normalised by. A function of arrays, so that it may
        be compiled: then a GPU computes minibatch after minibatch, and the host waits for none.
        """

        def of_all(weights, observations, actions, masks, keep, compared, *others) -> tuple:
            if normalised:
                compared = compared._replace(moments=exchange.moments(self.group, compared.adv))
            inputs = weights, observations, actions, masks, keep, compared, *others
            grads, metrics, *samples = gradients(*inputs)
            return *exchange.mean_of_ranks(self.group, grads, metrics), *samples

        return of_all

    def counted(self, gradients: Step) -> Step:
        """Count each minibatch, so that the other ranks see progress."""

        def count(*inputs: Any) -> Any:
            self.attendance.progress.count += 1
            return gradients(*inputs)

        return count

    # ---- an epoch --------------------------------------------------------------------------------

    def any(self, flag: bool) -> bool:
        """One byte, and all ranks wait for it."""
        self.attendance.progress.count += 1
        return b"1" in self._all_bytes(b"1" if flag else b"0")

    def stops(self, flag: bool) -> bool:
        """The first rank says why."""
        ends = self.any(flag or orphaned())
        if ends and not flag and not self.rank and orphaned():  # also if another one saw it first
            print(ORPHANED, file=sys.stderr, flush=True)
        return ends

    def meet(
        self, epoch: int, weights: Any, logs: dict[str, float], scores: Any
    ) -> tuple[dict[str, float], Any]:
        """One message for each rank; the weights' checksum in some epochs, and in the last."""
        crc = checksum(weights) if epoch % COMPARED == 0 or epoch == self._last else 0
        reported = {name: float(value) for name, value in logs.items()}
        listed = None if scores is None else scores.tolist()
        with self._reported():
            messages = self._exchange(json.dumps((crc, reported, listed)).encode())
        self._met += 1
        self.attendance.progress.begun = self._met >= COMPILES
        crcs, reported, listed = zip(*map(json.loads, messages), strict=True)
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

    def begin(self, vec: VecEnv) -> None:
        """Keep them, to tell what is added."""
        self._measured = vec.memory() if isinstance(vec, Remembers) else {}

    def merge_statistics(self, vec: VecEnv) -> None:
        """Their statistics are those of all ranks then, until they step again."""
        if not self._measured or not isinstance(vec, Remembers):
            return
        memories = self._all_bytes(to_bytes(vec.memory()))
        self._measured = exchange.merged_moments(
            self._measured, [from_bytes(data) for data in memories]
        )
        vec.remember(self._measured)

    # ---- a checkpoint ----------------------------------------------------------------------------

    def gathered(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """As bytes, by ``ranks.R``."""
        mine = to_bytes({name: np.asarray(array) for name, array in arrays.items()})
        with self.guarded():
            parts = exchange.all_bytes(self.group, mine)
        texts = {f"{OTHERS}{rank}": text for rank, text in enumerate(parts) if rank}
        return {name: mx.array(np.frombuffer(text, np.uint8)) for name, text in texts.items()}

    def numbers(self) -> dict[str, int]:
        """How many there are."""
        return {"ranks": self.size}

    def taken(self, arrays: dict[str, mx.array], numbers: Mapping[str, Any]) -> dict[str, mx.array]:
        """With this rank's own in place of the first one's."""
        arrays = super().taken(arrays, numbers)
        if not self.rank:
            return arrays
        mine = from_bytes(np.asarray(arrays[f"{OTHERS}{self.rank}"]).tobytes())
        return {**arrays, **{name: mx.array(array) for name, array in mine.items()}}

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Asks afterwards, too."""
        with self._reported():
            yield
        self._all_there()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """MLX's error becomes a message."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, LostRank) and not LOST.search(str(error)):
                raise
            reason = self.attendance.wait_lost(HEARD) or f"the ranks have lost each other: {error}"
            raise UserError(reason, GOES_ON) from None

    def _all_there(self) -> None:
        if reason := self.attendance.wait_lost(0):
            raise UserError(reason, GOES_ON)

    def apart(self) -> contextlib.AbstractContextManager[object]:
        """The others know that it takes a while."""
        return self.attendance.alone()

    def first(self, text: str) -> str:
        """One message."""
        return self._all_bytes(text.encode() if not self.rank else b"")[0].decode()

    def all_objects(self, value: Any) -> list[Any]:
        """Each rank's object, of what JSON can hold, in the order of the ranks."""
        return [json.loads(text) for text in self._all_bytes(json.dumps(value).encode())]

    def use_post(self) -> None:
        """Send small messages by connections of their own, which all ranks have to the first."""
        self._exchange = Post(
            self.attendance.messages, self.size, lambda: self.attendance.lost
        ).all_bytes

    def _all_bytes(self, data: bytes) -> list[bytes]:
        """Each rank's bytes, in the order of the ranks."""
        with self.guarded():
            return self._exchange(data)

    @contextlib.contextmanager
    def attended(self) -> Iterator[None]:
        """It says why it ends, if it fails."""
        try:
            yield
        except BaseException as error:
            self.attendance.close((str(error).splitlines() or [type(error).__name__])[0])
            raise
        self.attendance.close()

    def rescue_by(self, rescue: Callable[[], str]) -> None:
        """Kept for then."""
        self.attendance.rescue = rescue


def checksum(weights: Any) -> int:
    """A CRC-32 of all weights; of a copy, since MLX leaves with the host what the host reads."""
    packed, _ = pack(leaves(weights))
    return zlib.crc32(np.asarray(packed).data)


def to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """NumPy's arrays by name as one message."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore
    return file.getvalue()


def from_bytes(data: bytes) -> dict[str, np.ndarray]:
    """Arrays of ``to_bytes``."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return dict(file)
