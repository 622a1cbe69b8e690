"""The fused operations of the networks."""

from types import SimpleNamespace
from typing import Any

from puffer_mlx.ops.choice import FusedOperation
from puffer_mlx.ops.discount.operation import DISCOUNT
from puffer_mlx.ops.gelu.operation import BACKWARD, FORWARD
from puffer_mlx.ops.gpu import gru, lstm, mingru

OPERATIONS = (
    FusedOperation("mingru_forward", mingru.mingru_forward, float32=(1,)),
    FusedOperation("mingru_backward", mingru.mingru_backward, float32=(2,)),
    FusedOperation("lstm_forward", lstm.lstm_forward, float32=(0, 1)),
    FusedOperation("lstm_backward", lstm.lstm_backward, float32=(1, 2)),
    FusedOperation("gru_forward", gru.gru_forward, float32=(0,)),
    FusedOperation("gru_backward", gru.gru_backward, float32=(2,)),
    FORWARD,
    BACKWARD,
    DISCOUNT,
)


def fused() -> Any:
    """The operations that are fused on the default device, or None where there are none."""
    forms = {operation.name: operation.form() for operation in OPERATIONS}
    return None if None in forms.values() else SimpleNamespace(**forms)
