"""Train an agent, score it and record a GIF of it.

Needs puffer-mlx[gif,gym] and gymnasium[classic-control].

python examples/library/pictures.py
"""

from pathlib import Path

import puffer_mlx
from puffer_mlx.evaluation.frames import write_gif

with puffer_mlx.train("gym:CartPole-v1", total_timesteps=15_000, learning_rate=1e-3) as trainer:
    print(puffer_mlx.evaluate(trainer, episodes=8))
    write_gif(puffer_mlx.play(trainer, steps=40), Path("cartpole.gif"), fps=25)

print("wrote cartpole.gif")
