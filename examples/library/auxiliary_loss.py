"""A loss of your own: observations are reconstructed from features, through weights of the encoder.

python examples/library/auxiliary_loss.py

The same on the command line, from this folder, with the encoder and the loss by their names:

puffer-mlx train cartpole --torch.encoder auxiliary_loss:Encoder --train.loss auxiliary_loss:loss
"""

import puffer_mlx  # first: on Linux it gives MLX a fast BLAS

# isort: split
import mlx.core as mx
from mlx import nn

from puffer_mlx.ppo.loss import ppo_loss


class Encoder(nn.Module):
    """An encoder that also has the weights that reconstruct observations from features."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.encode, self.reconstruct = nn.Linear(inputs, hidden), nn.Linear(hidden, inputs)

    def __call__(self, observations):  # (n, inputs) -> (n, hidden)
        return nn.gelu(self.encode(observations))


def loss(now, batch, **numbers):
    """PPO's loss, and a tenth of the mean squared error of reconstructed observations."""
    total, statistics = ppo_loss(now.logprob, now.entropy, now.value, batch, **numbers)
    layer = now.weights["encoder"]["reconstruct"]
    found = now.features @ layer["weight"].T + layer["bias"]  # (T*S, D)
    error = mx.mean(mx.square(found - now.observations.reshape(found.shape)))
    return total + 0.1 * error, statistics, {"reconstruction": error}


if __name__ == "__main__":
    settings = {
        "torch.encoder": "auxiliary_loss:Encoder",
        "policy": {"hidden_size": 32, "num_layers": 1},
        "vec.total_agents": 256,
        "train.horizon": 32,
        "train.minibatch_size": 2048,
    }
    trainer = puffer_mlx.train("cartpole", settings, loss=loss, total_timesteps=400_000)
    first, last = trainer.history[0], trainer.history[-1]
    for name in ("loss/reconstruction", "env/score"):
        print(f"{name}: from {first[name]:.3f} to {last[name]:.3f}")
