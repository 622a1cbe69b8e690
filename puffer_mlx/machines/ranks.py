"""A run's ranks: processes with a part of its agents each, which train one policy.

``Alone`` is a run in one process: each of its methods gives back what it got. The trainer and the
learner call these methods and don't ask how many ranks there are.
"""

import contextlib
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.checkpoint.tensor_files import without_mlx
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.machines import exchange
from puffer_mlx.machines.attendance import Attendance
from puffer_mlx.machines.share import share
from puffer_mlx.machines.statistics import merged_means, merged_moments
from puffer_mlx.ppo.loss import Minibatch
from puffer_mlx.system.devices import building
from puffer_mlx.trees import leaves
from puffer_mlx.vec.base import Remembers, VecEnv

Step = Callable[..., Any]
COMPARED = 10  # epochs from one comparison of the weights to the next
LOST = re.compile(r"\[(ring|nccl|jaccl|mpi)\]|nccl|jaccl", re.IGNORECASE)  # in MLX's messages
HEARD = 3.0  # seconds until it is known which one, where MLX has noticed first
GOES_ON = "what it said tells why; --resume goes on from the last whole checkpoint"
OTHERS = "ranks."  # before a rank's number: its part of a checkpoint's arrays


class Alone:
    """A run in one process.

    Attributes:
        rank: this process's number.
        size: how many there are.
        deputy: whether this one saves in place of the first, which is lost.
    """

    rank, size = 0, 1
    deputy = False

    def own(self, config: Config) -> Config:
        """What this rank does of a run."""
        return config

    def drawn(self, config: Config) -> Config:
        """The run that minibatches are drawn in: a rank's own, or the whole."""
        return config

    def divided(self, steps: Any) -> Any:
        """The learner's steps (a NamedTuple) as ranks make them together."""
        return steps

    def columns(self, draw: Callable[[int], mx.array], agents: int) -> mx.array:
        """Random numbers (T, agents, ...) of this rank's agents; ``draw(N)`` makes those of N."""
        return draw(agents)

    def key(self, key: mx.array) -> mx.array:
        """The key that this rank draws its minibatches by."""
        return key

    def finals(self, own: np.ndarray | None, fields: Mapping[str, Any]) -> np.ndarray | None:
        """``VecEnv.finals`` of the agents that minibatches are drawn from."""
        return own

    def any(self, flag: bool) -> bool:
        """Whether one of the ranks says so."""
        return flag

    def begin(self, vec: VecEnv) -> None:
        """Note what environments have measured, the same on all ranks."""

    def meet(
        self, epoch: int, weights: Any, logs: dict[str, float], scores: Any
    ) -> tuple[dict[str, float], Any]:
        """Of an epoch: what all ranks' environments reported, and single episodes' scores.

        Raises:
            UserError: the ranks' weights differ.
        """
        return logs, scores

    def settle(self, vec: VecEnv) -> None:
        """Have environments go on from what those of all ranks have measured."""

    def gathered(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """The other ranks' arrays, for a checkpoint."""
        return {}

    def numbers(self) -> dict[str, int]:
        """What a checkpoint says of the ranks."""
        return {}

    def taken(self, arrays: dict[str, mx.array], numbers: Mapping[str, Any]) -> dict[str, mx.array]:
        """A checkpoint's arrays as this rank goes on from them.

        Raises:
            UserError: it is of another number of ranks.
        """
        if (found := numbers.get("ranks", 1)) != self.size:
            words = "one process" if self.size == 1 else f"{self.size} ranks"
            hint = "in one process" if found == 1 else f"with --train.gpus {found}, or mlx.launch"
            raise UserError(
                f"the run's state is of {found} ranks, and this is {words}",
                f"go on {hint}; or begin a new run from its weights: --load-model-path",
            )
        return arrays

    def guarded(self) -> contextlib.AbstractContextManager[object]:
        """A block in which ranks exchange something: one that is lost is reported.

        Raises:
            UserError: another rank has ended, or hangs.
        """
        return contextlib.nullcontext()

    def apart(self) -> contextlib.AbstractContextManager[object]:
        """A block in which this rank does something without the others."""
        return contextlib.nullcontext()

    def first(self, text: str) -> str:
        """What the first rank says."""
        return text

    def attended(self) -> contextlib.AbstractContextManager[object]:
        """All of a run: the others hear how it ends here."""
        return contextlib.nullcontext()

    def rescue_by(self, rescue: Callable[[], str]) -> None:
        """Have something saved, from another thread, if others are lost and this one waits."""

    def rescuing(self) -> contextlib.AbstractContextManager[object]:
        """A block that saves what there is though others may be lost."""
        return contextlib.nullcontext()


ALONE = Alone()


class Ranks(Alone):
    """One of several processes; ``joining.join`` makes it.

    Args:
        group: MLX's.
        config: the run's; ``train.draw_from`` and the segments of a minibatch count.

    Attributes:
        attendance: tells who is there.
    """

    def __init__(self, group: mx.distributed.Group, config: Config) -> None:
        self.attendance = Attendance(group.rank(), config.train.rank_timeout)
        self.group, self.together = group, config.train.draw_from == "all"
        self.rank, self.size = group.rank(), group.size()
        self._segments, self._last = config.segments, config.epochs - 1
        self._measured: dict[str, np.ndarray] = {}  # what environments had, the same on all ranks

    def own(self, config: Config) -> Config:
        """The rank's part of its numbers: see ``share``."""
        return share(config, self.rank, self.size)

    def drawn(self, config: Config) -> Config:
        """The whole run, if minibatches are drawn from all rollouts."""
        return config if self.together else self.own(config)

    def columns(self, draw: Callable[[int], mx.array], agents: int) -> mx.array:
        """Of all agents' numbers those of this rank's: as in one process."""
        return mx.contiguous(self._part(draw(agents * self.size), 1))

    def key(self, key: mx.array) -> mx.array:
        """One of its own, or the one that all ranks draw by."""
        return key if self.together else mx.random.split(key, self.size)[self.rank]

    def finals(self, own: np.ndarray | None, fields: Mapping[str, Any]) -> np.ndarray | None:
        """All ranks', if minibatches are drawn from all rollouts."""
        return own if own is None or not self.together else np.array(fields["finals"])

    # ---- a minibatch -----------------------------------------------------------------------------

    def divided(self, steps: Any) -> Any:
        """The steps below, around the learner's."""
        names = ["gradients"]
        if self.together:
            names += ["recompute", "split", "shuffle", "gather", "write_back"]
        ours = {name: partial(getattr(self, f"_{name}"), getattr(steps, name)) for name in names}
        return steps._replace(**ours)

    def _gradients(self, step: Step, weights, observations, actions, masks, keep, *rest) -> tuple:
        """Gradients and statistics are means over all ranks' samples."""
        self.attendance.place.count += 1
        compared, *others = rest
        with building:
            if isinstance(compared, Minibatch):
                compared = self._own_samples(compared, observations.shape[0], len(actions))
                compared = compared._replace(moments=exchange.moments(self.group, compared.adv))
        grads, metrics, *samples = step(
            weights, observations, actions, masks, keep, compared, *others
        )
        with building:
            grads, metrics = exchange.mean_of_ranks(self.group, grads, metrics)
        return grads, metrics, *samples

    def _own_samples(self, batch: Minibatch, steps: int, samples: int) -> Minibatch:
        """This rank's part of the targets of a minibatch, (T*S,) time-major, of all ranks."""
        if batch.adv.size == samples:
            return batch
        parts = (a if a is None else self._part(a.reshape(steps, -1), 1) for a in batch)
        return Minibatch(*(a if a is None else a.reshape(-1) for a in parts))  # type: ignore

    def _part(self, array: mx.array, axis: int = 0) -> mx.array:
        """This rank's part along an axis, of which each has as many."""
        each = array.shape[axis] // self.size
        mine = slice(self.rank * each, (self.rank + 1) * each)
        return array[(slice(None),) * axis + (mine,)]

    def _recompute(self, step: Step, fields: Mapping[str, Any], rollout: Any) -> dict[str, Any]:
        """All ranks' rollouts, (T, N, ...) by name."""
        fields = step(fields, rollout)
        with building:
            return {
                name: None if array is None else exchange.joined(self.group, array, axis=1)
                for name, array in fields.items()
            }

    def _states(self, states: Any) -> Any:
        """All ranks' recurrent states, (N, ...); None of None."""
        return states and tree_map(partial(exchange.joined, self.group), states)

    def _split(self, step: Step, fields: Mapping[str, Any], states: Any) -> Any:
        """Of each section of S agents this rank's part."""
        agents = fields["actions"].shape[1]
        sections = np.arange(agents).reshape(-1, self.size, self._segments // self.size)
        each = sections[:, self.rank]
        with building:
            rows = mx.array(each.reshape(-1), mx.int32)
            own = {n: None if a is None else mx.take(a, rows, 1) for n, a in fields.items()}
            states = self._states(states)
            states = states and tree_map(lambda a: mx.take(a, rows, axis=0), states)
        return step(own, states)

    def _shuffle(self, step: Step, fields, adv, states, learned, order) -> Any:
        """Of each of a pass's minibatches this rank's part."""
        with building:
            states, order = self._states(states), self._part(order, 1)
        return step(fields, adv, states, learned, order)

    def _gather(self, step: Step, fields: Mapping[str, Any], rows: mx.array) -> Any:
        """What the forward pass reads of this rank's part of the rows."""
        with building:
            rows = self._part(rows)
        return step(fields, rows)

    def _write_back(self, step: Step, values, ratios, rows, new_values, new_ratios, ok) -> tuple:
        """The rows' new values and ratios, of which each rank has computed its part."""
        with building:
            found = [exchange.joined(self.group, a, axis=1) for a in (new_values, new_ratios)]
        return step(values, ratios, rows, *found, ok)

    # ---- an epoch --------------------------------------------------------------------------------

    def any(self, flag: bool) -> bool:
        """One number, and all ranks wait for it."""
        self.attendance.place.count += 1
        with self.guarded():
            return mx.distributed.all_max(mx.array(int(flag)), group=self.group).item() == 1

    def meet(
        self, epoch: int, weights: Any, logs: dict[str, float], scores: Any
    ) -> tuple[dict[str, float], Any]:
        """One message for each rank; the weights' checksum in some epochs, and in the last."""
        crc = checksum(weights) if epoch % COMPARED == 0 or epoch == self._last else 0
        told = {name: float(value) for name, value in logs.items()}
        listed = None if scores is None else scores.tolist()
        with self._reported():
            all_told = exchange.all_objects(self.group, (crc, told, listed))
        self.attendance.place.begun = True
        crcs, told, listed = zip(*all_told, strict=True)
        if others := [rank for rank, found in enumerate(crcs) if found != crcs[0]]:
            raise UserError(
                f"after epoch {epoch + 1} the weights of ranks {others} differ from those of rank"
                " 0, and so would all that follows",
                "all ranks need the same kind of device and the same versions; --resume goes on"
                " from the last checkpoint",
            )
        self._all_there()  # after what all ranks find alike: one may have ended by it already
        if scores is not None:
            scores = np.array([one for some in listed for one in some]).reshape(-1, 2)
        return merged_means(told), scores

    def begin(self, vec: VecEnv) -> None:
        """Keep them, to tell what is added."""
        self._measured = vec.memory() if isinstance(vec, Remembers) else {}

    def settle(self, vec: VecEnv) -> None:
        """Their statistics are those of all ranks then, until they step again."""
        if not self._measured or not isinstance(vec, Remembers):
            return
        with self.guarded():
            found = exchange.all_bytes(self.group, to_bytes(vec.memory()))
        self._measured = merged_moments(self._measured, [from_bytes(data) for data in found])
        vec.remember(self._measured)

    # ---- a checkpoint ----------------------------------------------------------------------------

    def gathered(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """As bytes, by ``ranks.R``."""
        own = to_bytes({name: np.asarray(array) for name, array in arrays.items()})
        with self.guarded():
            found = exchange.all_bytes(self.group, own)
        texts = {f"{OTHERS}{rank}": text for rank, text in enumerate(found) if rank}
        return {name: mx.array(np.frombuffer(text, np.uint8)) for name, text in texts.items()}

    def numbers(self) -> dict[str, int]:
        """How many there are."""
        return {"ranks": self.size}

    def taken(self, arrays: dict[str, mx.array], numbers: Mapping[str, Any]) -> dict[str, mx.array]:
        """With this rank's own in place of the first one's."""
        arrays = super().taken(arrays, numbers)
        if not self.rank:
            return arrays
        own = from_bytes(np.asarray(arrays[f"{OTHERS}{self.rank}"]).tobytes())
        return {**arrays, **{name: mx.array(array) for name, array in own.items()}}

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
            if not LOST.search(str(error)):
                raise
            said = self.attendance.wait_lost(HEARD) or f"the ranks have lost each other: {error}"
            raise UserError(said, GOES_ON) from None

    def _all_there(self) -> None:
        if said := self.attendance.wait_lost(0):
            raise UserError(said, GOES_ON)

    def apart(self) -> contextlib.AbstractContextManager[object]:
        """The others know that it takes a while."""
        return self.attendance.alone()

    def first(self, text: str) -> str:
        """One message."""
        with self.guarded():
            return exchange.all_objects(self.group, text if not self.rank else "")[0]

    @contextlib.contextmanager
    def attended(self) -> Iterator[None]:
        """It says why it ends, if it fails."""
        try:
            yield
        except BaseException as error:
            self.attendance.close((str(error).splitlines() or [type(error).__name__])[0])
            raise
        self.attendance.close()

    @property
    def deputy(self) -> bool:
        """The second rank, if the first is the one that is lost."""
        return self.rank == 1 and self.attendance.gone == 0

    def rescue_by(self, rescue: Callable[[], str]) -> None:
        """Kept for then."""
        self.attendance.rescue = rescue

    def rescuing(self) -> contextlib.AbstractContextManager[object]:
        """MLX may wait for messages of the lost ones, and evaluate nothing meanwhile."""
        return without_mlx()


def checksum(weights: Any) -> int:
    """A CRC-32 of all weights."""
    crc = 0
    for array in leaves(weights):
        crc = zlib.crc32(np.ascontiguousarray(np.asarray(array)).data, crc)
    return crc


def to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """NumPy's arrays by name as one message."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore
    return file.getvalue()


def from_bytes(data: bytes) -> dict[str, np.ndarray]:
    """Arrays of ``to_bytes``."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return dict(file)
