"""Train with Stable-Baselines3 in a separate process and Python: learning_peers.py JOB.

JOB is the JSON of a `Job`. Trains, evaluates complete episodes with frozen normalization statistics
(episode k with environment seed `evaluated` + k), and prints "measured " and the results as JSON.
CPU seconds are those of training only, without imports.
"""

import importlib
import json
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

WINDOW = 100  # episodes whose mean is a point of a curve
POINTS = 20


class Job(NamedTuple):
    """A training run with Stable-Baselines3: environment, settings, number of steps and seeds."""

    environment: str  # Gymnasium's name, or MODULE:FUNCTION
    settings: dict[str, Any]  # as in learning_zoo.py
    steps: int
    seed: int  # of the trainer
    environments_seed: int
    evaluated: int  # the seed of the first episode of the evaluation
    episodes: int
    greedy: bool = True  # the evaluation takes the most probable actions


def curve(means: list[tuple[int, float]], steps: int) -> list[list[float]]:
    """Return a learning curve with at most ``POINTS`` points.

    Args:
        means: (step, mean return of the last episodes) after each episode.
        steps: Steps of the run.

    Returns:
        Points [step, latest mean return] at equal distances, from the first episode on.
    """
    edges = [steps * (i + 1) / POINTS for i in range(POINTS)]
    means_so_far = [[mean for at, mean in means if at <= edge] for edge in edges]
    return [
        [edge, earlier[-1]] for edge, earlier in zip(edges, means_so_far, strict=True) if earlier
    ]


def import_attribute(text: str) -> Any:
    """Import an attribute from text such as MODULE:NAME, and return the attribute."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def scheduled(value: Any) -> Any:
    """Convert a setting of RL Zoo to a number or a schedule: `lin_x` falls from x to 0.

    A schedule maps the remaining fraction of the run to a number.
    """
    if not isinstance(value, str) or not value.startswith("lin_"):
        return value
    first = float(value.removeprefix("lin_"))

    def falling(left: float) -> float:
        return left * first

    return falling


def make_one(environment: str, wrapper: str | None, **how: Any) -> Any:
    """Create one Gymnasium environment with RL Zoo's wrapper.

    Its episodes are reported as they are without the wrapper.
    """
    import gymnasium
    from stable_baselines3.common.monitor import Monitor

    atari = environment.startswith("ALE/")
    if atari:
        importlib.import_module("ale_py")
    if environment.startswith("MiniGrid"):
        importlib.import_module("minigrid")
    if ":" in environment:
        env = import_attribute(environment)()
    else:  # the wrapper skips frames
        env = gymnasium.make(environment, **({"frameskip": 1} if atari else {}))
    env = Monitor(env)
    return import_attribute(wrapper)(env, **how) if wrapper else env


def make_environments(
    environment: str, settings: dict[str, Any], count: int, seed: int, **how: Any
) -> Any:
    """Create vectorized environments.

    Args:
        environment: Gymnasium's name, or MODULE:FUNCTION.
        settings: Settings of RL Zoo, with the wrapper and frame stack.
        count: Number of environments.
        seed: Seed of the first environment.
        how: Arguments of the wrapper.
    """
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    wrapper, frames = settings.get("wrapper"), settings.get("frame_stack")
    environments: Any = DummyVecEnv([lambda: make_one(environment, wrapper, **how)] * count)
    environments.seed(seed)
    return VecFrameStack(environments, frames) if frames else environments


def make_trainer(job: Job) -> Any:
    """Create Stable-Baselines3's PPO for a training run, with its environments."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    remaining = dict(job.settings)
    agents = remaining.pop("n_envs", 1)
    environments = make_environments(job.environment, remaining, agents, job.environments_seed)
    remaining = {k: v for k, v in remaining.items() if k not in ("wrapper", "frame_stack")}
    if remaining.pop("normalize", False):
        environments = VecNormalize(environments, gamma=remaining.get("gamma", 0.99))
    if "activation_fn" in remaining.get("policy_kwargs", {}):
        kwargs = remaining["policy_kwargs"]
        name = kwargs["activation_fn"]
        if remaining.get("algorithm", "").startswith("sbx:"):
            activation = import_attribute(f"flax.linen:{name.lower()}")
        else:
            activation = getattr(torch.nn, name)
        remaining["policy_kwargs"] = {**kwargs, "activation_fn": activation}
    algorithm: Any = PPO
    if "algorithm" in remaining:
        algorithm = import_attribute(remaining.pop("algorithm"))
    policy = remaining.pop("policy", "MlpPolicy")
    settings = {key: scheduled(value) for key, value in remaining.items()}
    return algorithm(policy, environments, seed=job.seed, device="cpu", **settings)


def watching(see: Callable[[int, list[float]], bool]) -> Any:
    """Return a callback that calls ``see`` with the steps so far and the returns of ended episodes.

    Training stops if ``see`` returns False.
    """
    from stable_baselines3.common.callbacks import BaseCallback

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            infos = self.locals["infos"]
            ended = [float(info["episode"]["r"]) for info in infos if "episode" in info]
            return see(self.num_timesteps, ended)

    return Watch()


def played(trainer: Any, job: Job) -> Iterator[float]:
    """Evaluate a trained Stable-Baselines3 policy. Yields the returns of complete episodes."""
    from stable_baselines3.common.vec_env import VecNormalize

    atari = {"terminal_on_life_loss": False, "clip_reward": False}
    how = atari if job.environment.startswith("ALE/") else {}
    environments = make_environments(job.environment, job.settings, 1, job.evaluated, **how)
    learned = trainer.get_vec_normalize_env()
    if learned is not None:
        environments = VecNormalize(environments, training=False, norm_reward=False)
        environments.obs_rms = learned.obs_rms
    for k in range(job.episodes):
        environments.seed(job.evaluated + k)
        observations, state, start = environments.reset(), None, [True]
        while True:
            actions, state = trainer.predict(
                observations, state=state, episode_start=start, deterministic=job.greedy
            )
            observations, _, start, infos = environments.step(actions)
            if "episode" in infos[0]:
                yield float(infos[0]["episode"]["r"])
                break


def measure(job: Job) -> dict[str, Any]:
    """Train and evaluate with Stable-Baselines3. Returns score, costs and learning curve."""
    last: deque[float] = deque(maxlen=WINDOW)
    means: list[tuple[int, float]] = []

    def see(steps: int, ended: list[float]) -> bool:
        last.extend(ended)
        if ended:
            means.append((steps, statistics.fmean(last)))
        return True

    trainer = make_trainer(job)
    began, wall = time.process_time(), time.perf_counter()
    trainer.learn(job.steps, callback=watching(see))
    seconds, wall = time.process_time() - began, time.perf_counter() - wall
    returns = list(played(trainer, job))
    packages = "stable-baselines3", "torch", "gymnasium"
    return {
        "score": statistics.fmean(returns),
        "steps": trainer.num_timesteps,
        "CPU s": round(seconds, 2),
        "seconds": round(wall, 2),
        "curve": curve(means, trainer.num_timesteps),
        "returns": returns,
        "versions": {package: version(package) for package in packages},
    }


if __name__ == "__main__":
    print("measured " + json.dumps(measure(Job(**json.loads(sys.argv[1])))))
