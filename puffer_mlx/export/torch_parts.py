"""The encoders, the decoder and the networks of PufferLib 4.0's torch backend, written anew.

Their state_dict keys are upstream's. See ``torch_modules.py``, which composes them; like it, this
file is imported inside functions only.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from puffer_mlx.export.dialects import GATED
from puffer_mlx.policy.images import IMPALA, NATURE
from puffer_mlx.spec import ActionSpec
from puffer_mlx.vec.normalize import EPSILON, LIMIT

State = tuple[Tensor, ...]  # each (L, n, H)
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


# ---- encoders ------------------------------------------------------------------------------------


class DefaultEncoder(nn.Module):
    """4.0's: a product with bias."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(inputs, hidden)

    def forward(self, observations: Tensor) -> Tensor:
        """(n, D) float32 -> (n, H)."""
        return self.encoder(observations)


class ImageEncoder(nn.Module):
    """What is common to the encoders of images: flat observations, channels last, up to 255."""

    def __init__(self, shape: tuple[int, ...], network: nn.Sequential) -> None:
        super().__init__()
        self.shape = shape
        self.network = network

    def forward(self, observations: Tensor) -> Tensor:
        """(n, D) float32 -> (n, H)."""
        images = observations.reshape(-1, *self.shape).permute(0, 3, 1, 2)
        return self.network(images / 255)


class NatureEncoder(ImageEncoder):
    """Three convolutions and a product, with ReLU after each."""

    def __init__(self, shape: tuple[int, ...], hidden: int, features: int) -> None:
        layers, channels = [], shape[-1]
        for width, size, stride in NATURE:
            layers += [nn.Conv2d(channels, width, size, stride), nn.ReLU()]
            channels = width
        last = [nn.Flatten(), nn.Linear(features, hidden), nn.ReLU()]
        super().__init__(shape, nn.Sequential(*layers, *last))


class Residual(nn.Module):
    """A residual block of Impala."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, h, w), unchanged shape."""
        return x + self.conv1(functional.relu(self.conv0(functional.relu(x))))


class ConvSequence(nn.Module):
    """A block of Impala: convolution, pooling by 2, two residual blocks."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, channels, 3, padding=1)
        self.res_block0 = Residual(channels)
        self.res_block1 = Residual(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(n, I, h, w) -> (n, C, ceil(h / 2), ceil(w / 2))."""
        x = functional.max_pool2d(self.conv(x), 3, stride=2, padding=1)
        return self.res_block1(self.res_block0(x))


class ImpalaEncoder(ImageEncoder):
    """Three blocks, then a product between two ReLUs."""

    def __init__(self, shape: tuple[int, ...], hidden: int, features: int) -> None:
        inputs = (shape[-1], *IMPALA)
        blocks = [ConvSequence(*pair) for pair in zip(inputs, IMPALA, strict=False)]
        last = [nn.Flatten(), nn.ReLU(), nn.Linear(features, hidden), nn.ReLU()]
        super().__init__(shape, nn.Sequential(*blocks, *last))


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


# ---- networks ------------------------------------------------------------------------------------


class Network(nn.Module):
    """What all networks have: a number of layers, and tensors of their state."""

    parts = 1  # tensors of a state
    step: Any  # (n, H), state -> (n, H), next state

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.size = layers, hidden

    def initial_state(self, n: int, device: Any = None) -> State:
        """Zeros: the state of n agents before their first step."""
        layers, hidden = self.size
        return tuple(torch.zeros(layers, n, hidden, device=device) for _ in range(self.parts))


class MinGRU(Network):
    """MinGRU layers with highway connections, as the plain recurrence."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__(hidden, layers)
        self.layers = nn.ModuleList(
            nn.Linear(hidden, 3 * hidden, bias=False) for _ in range(layers)
        )

    def forward(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(S, T, H) and a state of S agents -> (S, T, H), the state after the last step."""
        after = []
        for layer, s in zip(self.layers, state[0], strict=True):
            hidden, gate, projection = layer(h).chunk(3, dim=-1)
            g = torch.where(hidden >= 0, hidden + 0.5, torch.sigmoid(hidden))
            z, q, states = torch.sigmoid(gate), torch.sigmoid(projection), []
            for t in range(h.shape[1]):
                s = s + z[:, t] * (g[:, t] - s)
                states.append(s)
            after.append(s)
            h = h + q * (torch.stack(states, dim=1) - h)
        return h, (torch.stack(after),)

    def step(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(n, H) -> (n, H), next state."""
        h, state = self(h[:, None], state)
        return h[:, 0], state


def share(stack: nn.Module, cells: Any) -> None:
    """Have cells use the tensors of the layers of a stack."""
    for i, cell in enumerate(cells):
        for name in GATED:
            setattr(cell, name, getattr(stack, f"{name}_l{i}"))


class LSTM(Network):
    """LSTM layers, and cells that share their tensors."""

    parts = 2

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__(hidden, layers)
        self.lstm = nn.LSTM(hidden, hidden, layers)
        self.cell = nn.ModuleList(nn.LSTMCell(hidden, hidden) for _ in range(layers))
        share(self.lstm, self.cell)

    def forward(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(S, T, H) and a state of S agents -> (S, T, H), the state after the last step."""
        out, after = self.lstm(h.transpose(0, 1), state)
        return out.transpose(0, 1), after

    def step(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(n, H) -> (n, H), next state."""
        after = []
        for cell, *before in zip(self.cell, *state, strict=True):
            after.append(cell(h, before))
            h = after[-1][0]
        return h, tuple(torch.stack(part) for part in zip(*after, strict=True))


class GRU(Network):
    """GRU layers, and cells that share their tensors; then RMSNorm(GRU(x) + x).

    As upstream trains them. Where it acts, it adds and normalises after every layer, which is
    something else for more than one.
    """

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__(hidden, layers)
        self.gru = nn.GRU(hidden, hidden, layers)
        self.cell = nn.ModuleList(nn.GRUCell(hidden, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden)
        share(self.gru, self.cell)

    def forward(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(S, T, H) and a state of S agents -> (S, T, H), the state after the last step."""
        out, after = self.gru(h.transpose(0, 1), state[0])
        return self.norm(out.transpose(0, 1) + h), (after,)

    def step(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(n, H) -> (n, H), next state."""
        after = []
        for cell, before in zip(self.cell, state[0], strict=True):
            after.append(cell(after[-1] if after else h, before))
        return self.norm(after[-1] + h), (torch.stack(after),)


class MLP(Network):
    """Products with bias and exact GELU, without memory."""

    parts = 0

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__(hidden, layers)
        pairs = [(nn.Linear(hidden, hidden), nn.GELU()) for _ in range(layers)]
        self.net = nn.Sequential(*(module for pair in pairs for module in pair))

    def forward(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(..., H) -> (..., H) and the empty state."""
        return self.net(h), state

    step = forward
