"""What training changes, and the numbers of an epoch that it is trained with."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from puffer_mlx.ppo import precision


@dataclass(frozen=True)
class TrainState:
    """What training changes: weights, the optimizer's state and loss scaling's, trees of arrays."""

    weights: Any
    optimizer: Any
    scaler: precision.Scaler

    def arrays(self) -> tuple[Any, Any, precision.Scaler]:
        """All of it."""
        return self.weights, self.optimizer, self.scaler


@dataclass(frozen=True)
class Scheduled:
    """An epoch's scheduled numbers, scalar arrays."""

    lr: mx.array
    ent_coef: mx.array
    beta: mx.array  # of the priorities
