"""What training changes."""

from dataclasses import dataclass
from typing import Any

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
