"""What ranks other than the first do of ``train``: their part, without a word and without a file.

Each call of theirs that exchanges something with the first rank stands beside one of its own in
``cli/train.py``: ``ranks.any``, ``Trainer.state``, ``Trainer.evaluate``.
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
    config, saved = trainer.config, trainer.epoch

    def ended() -> str:
        return f"rank {trainer.ranks.rank} ends; the first one saves"

    with signals.gently(outside.stop, ended):
        for _ in trainer:
            if trainer.ranks.any(False):  # the first one saves
                trainer.state()
                saved = trainer.epoch
        if saved != trainer.epoch:
            trainer.state()
        if trainer.fault:
            raise trainer.fault
        alone = config.base.eval_interval or config.train.algorithm == "puffer5"
        if trainer.epoch == config.epochs and not alone:
            for _ in trainer.evaluate():
                pass
    return outside.status
