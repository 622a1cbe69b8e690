"""A number of your own in the records, and an end of training that depends on it.

python examples/library/own_metric.py
"""

import gymnasium

import puffer_mlx


class Tilt(gymnasium.Wrapper):
    """Tells at each episode's end how far the pole leant, in degrees, on average."""

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
