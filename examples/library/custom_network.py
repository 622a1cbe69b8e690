"""Train a custom actor-critic: any mlx.nn.Module that returns logits and values.

python examples/library/custom_network.py
"""

import puffer_mlx  # first: on Linux it gives MLX a fast BLAS

# isort: split
import mlx.core as mx
from mlx import nn


class Residual(nn.Module):
    """Two residual blocks, then logits of the actions (actor) and a value (critic)."""

    def __init__(self, inputs: int, actions: int, width: int = 64):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.blocks = [nn.Linear(width, width) for _ in range(2)]
        self.actor = nn.Linear(width, actions)
        self.critic = nn.Linear(width, 1)

    def __call__(self, observations):  # (n, inputs)
        h = nn.tanh(self.first(observations))
        for block in self.blocks:
            h = h + nn.tanh(block(h))
        return self.actor(h), self.critic(h)  # (n, actions), (n, 1)


mx.random.seed(0)  # the module draws its initial weights
trainer = puffer_mlx.train(
    "gym:CartPole-v1",
    policy=Residual(4, 2),
    total_timesteps=20_000,
    learning_rate=1e-3,
    minibatch_size=256,  # few minibatches: with a module, each takes a millisecond
)
trainer.save("residual")

policy = puffer_mlx.Policy.load("residual", policy=Residual(4, 2))
print(puffer_mlx.evaluate(policy, episodes=8))
