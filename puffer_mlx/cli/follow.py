"""What ranks other than the first do of ``train``: their part, without a word and without a file.

Each call of theirs that exchanges something with the first rank stands beside one of its own in
``cli/train_run.py``: ``ranks.any``, ``Trainer.state``, ``Trainer.evaluate``.
"""

from puffer_mlx.cli.stopping import StopRequests
from puffer_mlx.system import signals
from puffer_mlx.training.trainer import Trainer


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
