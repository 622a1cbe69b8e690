"""Define the tasks of the learning benchmarks: options of each trainer, and training steps.

This module doesn't import puffer_mlx when it loads: the other trainers' Python interpreter, which
lacks puffer_mlx, imports it too.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from learning_zoo import RECURRENT, SETTINGS

PUFFER_MLX, SB3 = "puffer_mlx", "sb3"
UPSTREAM = "upstream-"  # upstream-NAME: the folder ocean/NAME of PufferLib 4.0
RECORDED_UPSTREAM = "path/to/PufferLib"  # PufferLib's folder in a record
PARTIAL = "partial-"  # partial-TASK-NETWORK: a partially observed task (partial_environments.py)


class Task(NamedTuple):
    """A learning task: arguments of `scripts/train.py`, and settings of other trainers."""

    words: str
    steps: int = 0
    peers: Mapping[str, dict[str, Any]] = MappingProxyType({})
    episodes: int = 30
    greedy: bool = True
    backend: str = "sync"

    @property
    def environment(self) -> str:
        """Name of the environment."""
        return self.words.split()[0]

    @property
    def in_python(self) -> bool:
        """True if the environment is written in Python, False for C."""
        return ":" in self.environment

    @property
    def train_arguments(self) -> list[str]:
        """Arguments of `scripts/train.py`, with the number of steps if it is set."""
        length = ["--train.total-timesteps", f"{self.steps:_}"] if self.steps else []
        return [*self.words.split(), *length]


def _gym(name: str, steps: int, options: str = "", **evaluation: Any) -> Task:
    """Return the task of a Gymnasium environment: our shipped settings, and RL Zoo's for SB3."""
    peers = {} if "--torch.network" in options else {SB3: SETTINGS[name]}
    return Task(f"gym:{name} {options}".rstrip(), steps, peers, **evaluation)


MILLION = 1_000_000
BREAKOUTS = ("breakout", *(f"breakout-{name}" for name in ("a", "c", "f", "fast", "fast-gpu")))
IN_C = {
    **{name: Task(name) for name in BREAKOUTS},
    "cartpole": Task("cartpole"),
    "cartpole_continuous": Task("cartpole_continuous"),
    "connect4": Task("connect4"),
    "catch": Task("catch"),
    "g2048": Task("g2048 --policy.hidden-size 128 --policy.num-layers 2", 60 * MILLION),
    "target": Task("target", 20 * MILLION),
    **{
        f"memory-{network}": Task(
            f"memory --torch.network {network} --policy.num-layers 2", 20 * MILLION
        )
        for network in ("MinGRU", "LSTM", "GRU", "MLP")
    },
}
GRIDS = ("MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-8x8-v0", "MiniGrid-DoorKey-5x5-v0")
# Options of environments with short episodes: more episodes are evaluated.
SHORT_EPISODES: dict[str, Any] = {"episodes": 100}
IN_PYTHON = {
    "CartPole-v1": _gym("CartPole-v1", 100_000, **SHORT_EPISODES),
    "Acrobot-v1": _gym("Acrobot-v1", MILLION, **SHORT_EPISODES),
    "MountainCar-v0": _gym("MountainCar-v0", MILLION, **SHORT_EPISODES),
    "Pendulum-v1": _gym("Pendulum-v1", 100_000, **SHORT_EPISODES),
    "LunarLander-v3": _gym("LunarLander-v3", MILLION),
    "LunarLanderContinuous-v3": _gym("LunarLanderContinuous-v3", MILLION),
    "BipedalWalker-v3": _gym("BipedalWalker-v3", MILLION),
    "BipedalWalker-v3-5M": _gym("BipedalWalker-v3", 5 * MILLION),
    **{
        f"{name}-v5": _gym(f"{name}-v5", MILLION)
        for name in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Swimmer")
    },
    **{name: _gym(name, 100_000, **SHORT_EPISODES) for name in GRIDS},
    **{
        f"{name}-LSTM": _gym(name, 100_000, "--torch.network LSTM", **SHORT_EPISODES)
        for name in GRIDS
    },
    **{  # sampled actions, like RL Zoo on Atari: a game that waits for FIRE would never end
        f"ALE/{name}-v5": _gym(f"ALE/{name}-v5", 2 * MILLION, greedy=False, backend="auto")
        for name in ("Pong", "Breakout")
    },
}
PARTIAL_TASKS = {  # name -> training steps, episodes of the evaluation
    "memory": (50_000, 100),
    "t_maze": (50_000, 100),
    "cartpole_without_velocity": (100_000, 30),
    "pendulum_without_velocity": (100_000, 30),
}
NETWORKS = "MinGRU", "LSTM", "GRU", "MLP"
# RecurrentPPO has a separate network, so it is trained once per task, with the first of ours.
PARTIALLY_OBSERVED = {
    f"{PARTIAL}{name}-{network}": Task(
        f"partial_environments:{name} --torch.network {network}",
        steps,
        RECURRENT[name] if network == NETWORKS[0] else {},
        episodes,
    )
    for name, (steps, episodes) in PARTIAL_TASKS.items()
    for network in NETWORKS
}
TASKS = {**IN_C, **IN_PYTHON, **PARTIALLY_OBSERVED}


def find(name: str, upstream: Path | str = RECORDED_UPSTREAM) -> Task:
    """Return a task by its name. PufferLib's environments are in the folder ``upstream``."""
    if name.startswith(UPSTREAM):
        return Task(f"{upstream}/ocean/{name.removeprefix(UPSTREAM)}")
    return TASKS[name]


def record_stem(name: str, trainer: str) -> str:
    """Return the file name, without .json, of the record of a task and a trainer."""
    file_name = name.replace("/", "-")
    if trainer == PUFFER_MLX:
        return file_name
    if name.startswith(PARTIAL):
        return f"{PARTIAL}{'-'.join(split_partial_name(name, trainer))}"
    return f"{file_name}.{trainer}"


def split_partial_name(name: str, trainer: str) -> tuple[str, str]:
    """Split the name `partial-TASK-NETWORK` into task and network.

    For other trainers, the trainer's name replaces the network.
    """
    task, _, network = name.removeprefix(PARTIAL).partition("-")
    return task, network if trainer == PUFFER_MLX else trainer


def metric(environment: str) -> str:
    """Return the key under which logs contain an environment's score: its file's [sweep] metric."""
    from puffer_mlx import config  # not at the top, as other trainers' Python lacks puffer_mlx

    return config.load(environment).metric
