"""What ranks other than the first do of ``train``: their part, without a word and without a file.

Each call of theirs that exchanges something with the first rank stands beside one of its own in
``cli/train_run.py``: ``ranks.first``, ``ranks.any``, ``Trainer.state``, ``Trainer.evaluate``.
"""

import sys
import threading
from pathlib import Path

from puffer_mlx.checkpoint import Checkpoint, CheckpointManager
from puffer_mlx.checkpoint.environment_statistics import gathered_statistics
from puffer_mlx.cli.stopping import StopRequests
from puffer_mlx.system import signals
from puffer_mlx.training.trainer import Trainer


def follow(trainer: Trainer, outside: StopRequests, resumed: Checkpoint | None) -> int:
    """Train with the first rank to the end; the exit code.

    Args:
        trainer: this rank's, as the first one's before its first epoch.
        outside: what may end the run.
        resumed: the checkpoint that it goes on from.
    """
    config, ranks = trainer.config, trainer.ranks
    deputy = Deputy(trainer, Path(ranks.first("")), resumed and resumed.folder)
    ranks.rescue_by(deputy.rescue)
    with signals.gently(outside.stop, deputy.rescue), deputy:
        for _ in trainer:
            if ranks.any(False):  # the first one saves
                deputy.part()
        deputy.part()
        if trainer.fault:
            raise trainer.fault
        alone = config.base.eval_interval or config.facts.evaluates_apart
        if trainer.epoch == config.epochs and not alone:
            for _ in trainer.evaluate():
                pass
    return outside.status


class Deputy:
    """Gives its part to checkpoints, and saves the weights if the first rank is lost.

    Args:
        trainer: this rank's.
        folder: the run's, as the first rank names it.
        resumed: the checkpoint that it goes on from.
    """

    def __init__(self, trainer: Trainer, folder: Path, resumed: Path | None) -> None:
        self._trainer, self._folder, self._resumed = trainer, folder, resumed
        self._saved = trainer.epoch
        self._lock = threading.Lock()

    def part(self) -> None:
        """Give this rank's part to a checkpoint of the first one, unless it has it."""
        if self._trainer.epoch != self._saved:
            self._trainer.state()
            self._saved = self._trainer.epoch

    def rescue(self) -> str:
        """Save the last epoch's weights if nobody else does, from any thread; the line."""
        ranks = self._trainer.ranks
        try:
            with self._lock:
                if ranks.deputy and self._trainer.epoch != self._saved:
                    found = self._save()
                    return f"saved {found} (weights only: --load-model-path {found})"
        except Exception as error:
            return f"not saved: {(str(error).splitlines() or [type(error).__name__])[0]}"
        return f"rank {ranks.rank} has ended"

    def _save(self) -> Path:
        """Save the weights alone; where they are."""
        trainer, epoch = self._trainer, self._trainer.epoch
        keeper = CheckpointManager(self._folder, trainer.config, self._resumed)
        about = trainer.vec.spec, trainer.policy, trainer.weights, None
        step = epoch * trainer.config.batch_size
        found = keeper.save(step, *about, gathered_statistics(trainer.vec))
        self._saved = epoch
        return found

    def __enter__(self) -> "Deputy":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is not None:
            print(self.rescue(), file=sys.stderr, flush=True)
