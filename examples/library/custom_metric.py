"""Log a custom metric, and stop training when it reaches a value.

python examples/library/custom_metric.py
"""

import gymnasium

import puffer_mlx


class Tilt(gymnasium.Wrapper):
    """Report the pole's mean absolute angle in degrees at the end of each episode."""

    def reset(self, **how):
        self.angles = []
        return self.env.reset(**how)

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.angles.append(abs(observation[2]) * 57.3)
        if terminated or truncated:
            info["tilt"] = sum(self.angles) / len(self.angles)
        return observation, reward, terminated, truncated, info


def make():
    return Tilt(gymnasium.make("CartPole-v1"))


with puffer_mlx.Trainer({"total_timesteps": 100_000, "seed": 1}, make) as trainer:
    for logs in trainer:
        tilt = logs.get("env/tilt")  # the mean over the episodes that ended in this epoch
        if tilt is not None and tilt < 2.5 and logs["env/score_100"] > 100:
            trainer.stop = True
    print(f"stopped after {trainer.global_step:,} steps, tilt {tilt:.1f} degrees")
    print(puffer_mlx.evaluate(trainer, episodes=8))
