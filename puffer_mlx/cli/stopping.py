"""How a run ends: whatever ends it, what can be saved is saved, and one line says what that was.

| what ends it | what is saved |
| --- | --- |
| its last epoch, ``--stop-at``, a first signal, a closed pipe | everything: ``--resume`` goes on |
| a Mac's driver, which ended an epoch's rollout or training | everything before that epoch |
| an exception (anyone's), a second signal | the weights that the last whole epoch left |

In the middle of an epoch weights, random keys and environments don't belong together, so nothing
can go on exactly from there.
"""

import errno
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from puffer_mlx.checkpoint.environment_statistics import gathered_statistics
from puffer_mlx.playing.evaluation import Evaluator
from puffer_mlx.rollout.on_gpu import GPUError
from puffer_mlx.system import output, signals, voice
from puffer_mlx.system.files import relative
from puffer_mlx.training.run import Run
from puffer_mlx.training.trainer import Trainer

EVALUATED = "evaluated"  # in a checkpoint's numbers: its weights' score while training
LONG = 10.0  # seconds to an epoch's end, from which on they are said
NOTHING = "no epoch ended; nothing to save"
AT_ITS_END = "nothing to train: --train.total-timesteps says how many steps"


class RunEnding:
    """Saves a run; a context manager around all of its training.

    Args:
        run: with its files, not trained yet since it was saved, if it was.
        evaluator: of its weights.
    """

    def __init__(self, run: Run, evaluator: Evaluator) -> None:
        self._run, self._trainer, self._evaluator = run, run.trainer, evaluator
        self._saved: Path | None = None  # the last checkpoint of this start
        self._whole = run.resumed and run.resumed.folder  # the last one that has everything
        self._epoch = run.trainer.epoch  # what there is to save is what was trained since
        self._lock = threading.Lock()

    def save(self, whole: bool = True) -> None:
        """Save the last epoch that ended, unless it is; not whole: only its weights.

        Raises:
            UserError: it can't be written.
        """
        with self._lock:
            trainer = self._trainer
            if trainer.epoch == self._epoch:
                return
            epoch, weights, vec = trainer.epoch, trainer.weights, trainer.vec
            state = trainer.state() if whole else None
            if state:
                state.numbers["log_position"] = self._run.log.position
                if (score := self._evaluator.score) is not None:
                    state.numbers[EVALUATED] = score
            step = epoch * trainer.config.batch_size
            statistics = gathered_statistics(vec)
            self._saved = self._run.keeper.save(
                step, vec.spec, trainer.policy, weights, state, statistics
            )
            self._epoch = epoch
            self._whole = self._saved if whole else self._whole

    def rescue(self, whole: bool = False) -> str:
        """Save where the training doesn't end by itself, from any thread; the line.

        Args:
            whole: save everything, if that can still be had; else the weights.
        """
        try:
            self.save(whole)
        except Exception as error:
            return self.rescue() if whole else self._lost(error)
        return self.line()

    @property
    def saved(self) -> Path | None:
        """The last checkpoint of this start, or that from which it goes on."""
        return self._saved or self._whole

    def line(self) -> str:
        """What was saved last, and what it is good for."""
        if self._saved is None:
            done = self._trainer.epoch >= self._trainer.config.epochs
            return AT_ITS_END if done else NOTHING
        if self._saved == self._whole:
            return f"saved {relative(self._saved)}"
        saved = relative(self._saved)
        line = f"saved {saved} (weights only: a new run can begin from them, with"
        line += f" --load-model-path {saved}"
        whole = f"; --resume {relative(self._whole)} goes on from there)" if self._whole else ")"
        return line + whole

    def _lost(self, error: Exception) -> str:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        left = f"there is {relative(self._saved)}" if self._saved else "there is no checkpoint"
        return f"not saved: {reason}; {left}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        whole = isinstance(error, GPUError) and self._trainer.ranks.size == 1
        output.say(self.line() if error is None else self.rescue(whole))
        if error is None and not voice.is_quiet():
            output.say(f"log   {relative(self._run.log.path)}")


class StopRequests:
    """What comes from outside and ends a run after its epoch.

    Attributes:
        trainer: the run's, once there is one.
        stopped: whether it is to end.
        status: that the program is to end with, if nobody asked it to end.
    """

    def __init__(self) -> None:
        self.trainer: Trainer | None = None
        self.stopped, self.status = False, 0

    def stop(self) -> str | None:
        """A signal, say: end after this epoch; what there is to say of that, if it takes long."""
        self.stopped = True
        if not self.trainer:
            return None
        self.trainer.stop = True
        epoch = self.trainer.progress
        if epoch is None or epoch.usual - epoch.seconds < LONG:
            return None
        return f"{epoch.text(self.trainer.epoch + 1, stopping=True)}; again to stop at once"

    def lost(self, error: OSError) -> str:
        """Standard output can't be written: end if its reader has left, else train on."""
        if error.errno != errno.EPIPE:
            return f"can't write standard output: {error.strerror}; the run and its log go on"
        self.stop()
        self.status = output.PIPE_STATUS
        return "nobody reads standard output any more: stopping after this epoch"


# ---- ranks other than the first: their part, without a word and without a file -------------------

# Each call of theirs that exchanges something with the first rank stands beside one of its own in
# ``cli/train_run.py``: ``ranks.any``, ``Trainer.state``, ``Trainer.evaluate``.


def follow(trainer: Trainer, outside: StopRequests) -> int:
    """Train with the first rank to the end; the exit code.

    Args:
        trainer: this rank's, as the first one's before its first epoch.
        outside: what may end the run.
    """
    config, ranks = trainer.config, trainer.ranks
    saved = trainer.epoch

    def give_part() -> int:
        """Give this rank's part to a checkpoint of the first one, unless it has it."""
        if trainer.epoch != saved:
            trainer.state()
        return trainer.epoch

    with signals.gently(outside.stop, lambda: f"rank {ranks.rank} has ended"):
        for _ in trainer:
            if ranks.any(False):  # the first one saves
                saved = give_part()
        saved = give_part()
        if trainer.fault:
            raise trainer.fault
        alone = config.base.eval_interval or config.facts.evaluates_apart
        if trainer.epoch == config.epochs and not alone:
            for _ in trainer.evaluate():
                pass
    return outside.status
