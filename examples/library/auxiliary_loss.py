"""Train with a custom loss: PPO's loss plus the error of observations reconstructed from features.

python examples/library/auxiliary_loss.py

The same on the command line, run in this folder; encoder and loss are named by module:name:

puffer-mlx train cartpole --torch.encoder auxiliary_loss:Encoder --train.loss auxiliary_loss:loss
"""

import puffer_mlx  # first: on Linux it gives MLX a fast BLAS

# isort: split
import mlx.core as mx
from mlx import nn

from puffer_mlx.ppo.loss import ppo_loss


class Encoder(nn.Module):
    """Encode observations into features, and hold the weights that reconstruct observations."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.encode = nn.Linear(inputs, hidden)
        self.reconstruct = nn.Linear(hidden, inputs)

    def __call__(self, observations):  # (n, inputs) -> (n, hidden)
        return nn.gelu(self.encode(observations))


def loss(now, batch, **coefficients):
    """Return PPO's loss plus a tenth of the mean squared error of reconstructed observations."""
    total, statistics = ppo_loss(now.logprob, now.entropy, now.value, batch, **coefficients)
    layer = now.weights["encoder"]["reconstruct"]
    reconstructed = now.features @ layer["weight"].T + layer["bias"]  # (T*S, D)
    error = mx.mean(mx.square(reconstructed - now.observations.reshape(reconstructed.shape)))
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
