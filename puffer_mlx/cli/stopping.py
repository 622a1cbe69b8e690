"""End a run: save it, and print its result and the next commands.

| cause | saved |
| --- | --- |
| the last epoch, ``--stop-at``, a first signal, a closed pipe | everything: ``--resume`` works |
| a Mac's driver aborts an epoch's rollout or training | everything before that epoch |
| any other exception, a second signal | the weights after the last complete epoch |

In the middle of an epoch, weights, random keys and environments are at different steps, so an exact
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

LONG_WAIT_S = 10.0  # a longer wait for the end of the epoch is announced
NOTHING_SAVED = "nothing to save: no epoch was completed"
NOTHING_TO_TRAIN = "nothing to train: --train.total-timesteps sets the number of steps"


class RunEnding:
    """Context manager around a training run that finally saves the run and prints its result.

    Args:
        run: Run with its files; already saved, if it was trained before.
        evaluator: Evaluator of the run's weights.

    Attributes:
        result_lines: Lines about the steps, the score and the best evaluation, in this order.
        next_lines: Lines with the next commands, printed last.
    """

    def __init__(self, run: Run, evaluator: Evaluator) -> None:
        self.result_lines: list[str] = []
        self.next_lines: list[str] = []
        self._run = run
        self._trainer = run.trainer
        self._evaluator = evaluator
        self._saved: Path | None = None  # last checkpoint written by this process
        # last checkpoint that can be resumed
        self._resumable = run.resumed.folder if run.resumed else None
        self._epoch = run.trainer.epoch  # last saved epoch
        self._lock = threading.Lock()

    def save(self, resumable: bool = True) -> None:
        """Write a checkpoint of the run's last complete epoch, if there is none yet.

        Args:
            resumable: True for a checkpoint that can be resumed, False for weights only.

        Raises:
            UserError: If the checkpoint can't be written.
        """
        with self._lock:
            trainer = self._trainer
            if trainer.epoch == self._epoch:
                return
            epoch = trainer.epoch
            self._saved = self._run.save(self._evaluator.score, resumable)
            self._epoch = epoch
            self._resumable = self._saved if resumable else self._resumable

    def rescue(self, resumable: bool = False) -> str:
        """Save what is possible of a run that ended unexpectedly.

        Returns a line that says what was saved. It may be called from any thread.

        Args:
            resumable: True to try a checkpoint that can be resumed first; False for weights only.
        """
        try:
            self.save(resumable)
        except Exception as error:
            if resumable:
                return self.rescue(resumable=False)  # the weights may still be saved
            return self._not_saved_line(error)
        return self.saved_line()

    @property
    def saved(self) -> Path | None:
        """Folder of the run's newest checkpoint, written or resumed by this process, or None."""
        return self._saved or self._resumable

    def saved_line(self) -> str:
        """Return a line that tells the user where the run's last checkpoint is."""
        if self._saved is None:
            done = self._trainer.epoch >= self._trainer.config.epochs
            return NOTHING_TO_TRAIN if done else NOTHING_SAVED
        if self._saved == self._resumable:
            return f"saved {relative(self._saved)}"
        saved = relative(self._saved)
        line = f"saved {saved} (weights only; --load-model-path {saved} starts a new run from them"
        if self._resumable:
            line += f"; --resume {relative(self._resumable)} resumes an earlier checkpoint"
        return f"{line})"

    def _not_saved_line(self, error: Exception) -> str:
        """Return a line that tells the user why a checkpoint couldn't be written."""
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        checkpoint = f"last checkpoint: {relative(self._saved)}" if self._saved else "no checkpoint"
        return f"not saved: {reason}; {checkpoint}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            resumable = isinstance(error, GPUError) and self._trainer.ranks.size == 1
            output.print_important(self.rescue(resumable))
            return
        if verbosity.is_quiet():
            print(*self.result_lines[1:], sep="\n", flush=True)  # without the steps
        else:
            verbosity.note(*self.result_lines)
        output.print_important(self.saved_line())
        if not verbosity.is_quiet():
            output.print_important(f"log   {relative(self._run.log.path)}")
            print(
                *self.next_lines, sep="\n", flush=True
            )  # not wrapped, because users copy these lines


class StopRequests:
    """Requests, by signals or a closed pipe, to end a training run after the current epoch.

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
        """Request that training stops after the current epoch.

        Returns a message if that will take long, otherwise None.
        """
        self.stopped = True
        if not self.trainer:
            return None
        self.trainer.stop = True
        epoch = self.trainer.progress
        if epoch is None or epoch.usual_seconds - epoch.seconds < LONG_WAIT_S:
            return None
        return f"{epoch.text(self.trainer.epoch + 1, stopping=True)}; again to stop at once"

    def handle_lost_output(self, error: OSError) -> str:
        """Stop the run if the pipe of standard output was closed; otherwise let it continue.

        This handles a failed write to standard output. Returns a message for the user.
        """
        if error.errno != errno.EPIPE:
            return f"can't write standard output: {error.strerror}; the run and its log continue"
        self.stop()
        self.status = output.PIPE_STATUS
        return "the reader of standard output ended: stopping after this epoch"


# ---- ranks other than the first print nothing and write no files ---------------------------------

# Each collective call here (``ranks.any``, ``Trainer.state``, ``Trainer.evaluate``) needs a
# counterpart by the first rank in ``cli/train_run.py``.


def follow_first_rank(trainer: Trainer, stop_requests: StopRequests) -> int:
    """Train on a rank (process) other than the first, until the first one ends the run.

    Returns the exit code.

    Args:
        trainer: Trainer of this rank, in the same state as the first rank's.
        stop_requests: Requests to end the run.
    """
    config, ranks = trainer.config, trainer.ranks
    saved_epoch = trainer.epoch

    with signals.stop_gracefully(stop_requests.stop, lambda: f"rank {ranks.rank} has ended"):
        for _ in trainer:
            # If the first rank saves, it needs this rank's state.
            if ranks.any(False) and trainer.epoch != saved_epoch:
                trainer.state()
                saved_epoch = trainer.epoch
        if trainer.epoch != saved_epoch:  # the first rank saves the last epoch
            trainer.state()
        if trainer.error:
            raise trainer.error
        # The first rank evaluates alone in separate environments, or all ranks evaluate together.
        only_first_evaluates = config.base.eval_interval or config.facts.evaluates_apart
        if trainer.epoch == config.epochs and not only_first_evaluates:
            for _ in trainer.evaluate():
                pass
    return stop_requests.status
