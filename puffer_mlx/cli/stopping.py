"""The end of a run: save the run, and print its result and the next steps.

| cause | saved |
| --- | --- |
| the last epoch, ``--stop-at``, a first signal, a closed pipe | everything: ``--resume`` works |
| a Mac's driver aborts an epoch's rollout or training | everything before that epoch |
| any other exception, a second signal | the weights after the last complete epoch |

During an epoch, weights, random keys and environments don't belong to the same step, so an exact
resume from there is impossible.
"""

import errno
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from puffer_mlx.evaluation.evaluator import Evaluator
from puffer_mlx.rollout.on_gpu import GPUError
from puffer_mlx.system import output, signals, verbosity
from puffer_mlx.system.files import relative
from puffer_mlx.training.run import Run
from puffer_mlx.training.trainer import Trainer

LONG = 10.0  # seconds: a longer wait for the epoch's end is announced
NOTHING = "no epoch ended; nothing to save"
AT_ITS_END = "nothing to train: --train.total-timesteps says how many steps"


class RunEnding:
    """Save a run when training ends. A context manager around the training.

    Args:
        run: Run with its files; already saved, if it was trained before.
        evaluator: Evaluator of the run's weights.

    Attributes:
        reached: Lines about the steps, the score and the best evaluation, in this order.
        next: Lines about what to do next, printed last.
    """

    def __init__(self, run: Run, evaluator: Evaluator) -> None:
        self.reached: list[str] = []
        self.next: list[str] = []
        self._run = run
        self._trainer = run.trainer
        self._evaluator = evaluator
        self._saved: Path | None = None  # last checkpoint written by this process
        self._whole = run.resumed and run.resumed.folder  # last checkpoint that can be resumed
        self._epoch = run.trainer.epoch  # last saved epoch
        self._lock = threading.Lock()

    def save(self, whole: bool = True) -> None:
        """Save the last complete epoch if it isn't saved yet.

        Args:
            whole: True for a checkpoint that can be resumed, False for weights only.

        Raises:
            UserError: The checkpoint can't be written.
        """
        with self._lock:
            trainer = self._trainer
            if trainer.epoch == self._epoch:
                return
            epoch = trainer.epoch
            self._saved = self._run.save(self._evaluator.score, whole)
            self._epoch = epoch
            self._whole = self._saved if whole else self._whole

    def rescue(self, whole: bool = False) -> str:
        """Save after an unexpected end, from any thread. Returns a line about it for the user.

        Args:
            whole: True to try a checkpoint that can be resumed first; False for weights only.
        """
        try:
            self.save(whole)
        except Exception as error:
            return self.rescue() if whole else self._lost(error)
        return self.line()

    @property
    def saved(self) -> Path | None:
        """Last checkpoint of this process or the resumed one."""
        return self._saved or self._whole

    def line(self) -> str:
        """Return a line about the last checkpoint and its use."""
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
        if error is not None:
            whole = isinstance(error, GPUError) and self._trainer.ranks.size == 1
            output.print_important(self.rescue(whole))
            return
        if verbosity.is_quiet():
            print(*self.reached[1:], sep="\n", flush=True)  # without the steps
        else:
            verbosity.note(*self.reached)
        output.print_important(self.line())
        if not verbosity.is_quiet():
            output.print_important(f"log   {relative(self._run.log.path)}")
            print(*self.next, sep="\n", flush=True)  # not wrapped: lines to copy


class StopRequests:
    """Requests from outside to end a run after its epoch.

    Attributes:
        trainer: Trainer of the run; None before it is made.
        stopped: True after a request.
        status: Exit code of the process, unless a signal sets another one.
    """

    def __init__(self) -> None:
        self.trainer: Trainer | None = None
        self.stopped = False
        self.status = 0

    def stop(self) -> str | None:
        """Request a stop after this epoch. Returns a message if the epoch takes long, else None."""
        self.stopped = True
        if not self.trainer:
            return None
        self.trainer.stop = True
        epoch = self.trainer.progress
        if epoch is None or epoch.usual_seconds - epoch.seconds < LONG:
            return None
        return f"{epoch.text(self.trainer.epoch + 1, stopping=True)}; again to stop at once"

    def lost(self, error: OSError) -> str:
        """Handle a failed write to standard output. Returns a message for the user.

        If the reader has closed the output, the run stops; otherwise it continues.
        """
        if error.errno != errno.EPIPE:
            return f"can't write standard output: {error.strerror}; the run and its log go on"
        self.stop()
        self.status = output.PIPE_STATUS
        return "nobody reads standard output any more: stopping after this epoch"


# ---- ranks other than the first: their part, without a word and without a file -------------------

# Each collective call here needs a counterpart by the first rank in ``cli/train_run.py``:
# ``ranks.any``, ``Trainer.state``, ``Trainer.evaluate``.


def follow(trainer: Trainer, outside: StopRequests) -> int:
    """Train together with the first rank until the run ends. Returns the exit code.

    Args:
        trainer: Trainer of this rank, in the same state as the first rank's.
        outside: Requests to end the run.
    """
    config, ranks = trainer.config, trainer.ranks
    saved = trainer.epoch

    def give_part() -> int:
        """Take part in the first rank's checkpoint if there was an epoch since the last one."""
        if trainer.epoch != saved:
            trainer.state()
        return trainer.epoch

    with signals.stop_gracefully(outside.stop, lambda: f"rank {ranks.rank} has ended"):
        for _ in trainer:
            if ranks.any(False):  # the first rank saves
                saved = give_part()
        saved = give_part()
        if trainer.error:
            raise trainer.error
        alone = config.base.eval_interval or config.facts.evaluates_apart
        if trainer.epoch == config.epochs and not alone:
            for _ in trainer.evaluate():
                pass
    return outside.status
