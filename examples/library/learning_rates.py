"""Compare three learning rates by the score after the same number of steps, in one process.

python examples/library/learning_rates.py
"""

import puffer_mlx

scores = {}
for rate in (1e-4, 1e-3, 1e-2):
    with puffer_mlx.train("gym:CartPole-v1", total_timesteps=8_000, learning_rate=rate) as trainer:
        scores[rate] = puffer_mlx.evaluate(trainer, episodes=8, seed=5)

for rate, score in scores.items():
    print(f"{rate:g}: {score}")
best = max(scores, key=lambda rate: scores[rate].score.mean)
print(f"best: {best:g}")
