"""The decoder, the normalisation and the rescaling of PufferLib 4.0's torch backend, written anew.

Their state_dict keys are upstream's. See ``torch_modules.py``, which composes them; like it, this
file is imported inside functions only.
"""

from typing import Any

import torch
from torch import Tensor, nn

from puffer_mlx.spec import ActionSpec
from puffer_mlx.vec.normalize import EPSILON, LIMIT

Outputs = Any  # Tensor, or a tuple of two

# ---- observations --------------------------------------------------------------------------------


class Moments(nn.Module):
    """The statistics of columns: buffers, which the state_dict holds."""

    mean: Tensor  # (D,)
    variance: Tensor  # (D,)
    count: Tensor  # (): of rows; only for training on

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("count", torch.zeros(()))


class Normalization(nn.Module):
    """Observations as the policy learned to see them: see ``vec/normalize.py``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.observations = Moments(size)

    def forward(self, observations: Tensor) -> Tensor:
        """(n, D) float32 -> the same, normalised and clipped."""
        seen = self.observations
        centred = observations - seen.mean
        return (centred / torch.sqrt(seen.variance + EPSILON)).clamp(-LIMIT, LIMIT)


# ---- actions -------------------------------------------------------------------------------------


class Rescaling(nn.Module):
    """Continuous actions in the environment's units: see ``checkpoint/rescaling.py``."""

    low: Tensor  # (a,)
    high: Tensor  # (a,)

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("low", -torch.ones(heads))
        self.register_buffer("high", torch.ones(heads))

    def forward(self, mean: Tensor, logstd: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log standard deviations, both (..., a)."""
        half = (self.high - self.low) / 2
        return (self.high + self.low) / 2 + half * mean, logstd + half.log()


# ---- decoders ------------------------------------------------------------------------------------


class DefaultDecoder(nn.Module):
    """4.0's: a product for the actions and one for the value, both with bias."""

    def __init__(self, action: ActionSpec, hidden: int) -> None:
        super().__init__()
        if action.continuous:
            self.decoder_logstd = nn.Parameter(torch.zeros(1, action.heads))
            self.decoder_mean = nn.Linear(hidden, action.heads)
        else:
            self.decoder = nn.Linear(hidden, action.logits)
        self.continuous = action.continuous
        self.value_function = nn.Linear(hidden, 1)

    def forward(self, h: Tensor) -> tuple[Outputs, Tensor]:
        """(..., H) -> outputs, values (...)."""
        value = self.value_function(h).squeeze(-1)
        if not self.continuous:
            return self.decoder(h), value
        mean = self.decoder_mean(h)
        return (mean, self.decoder_logstd.expand_as(mean)), value
