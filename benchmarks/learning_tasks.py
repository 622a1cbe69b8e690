"""Tasks of the learning benchmarks, with trainers and steps.

Plain data, because the Python of the other trainers reads it as well.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from learning_zoo import RECURRENT, SETTINGS

PUFFER_MLX, SB3 = "puffer_mlx", "sb3"
UPSTREAM = "upstream-"  # upstream-NAME: the folder ocean/NAME of PufferLib 4.0
RECORDED_UPSTREAM = "path/to/PufferLib"  # PufferLib's folder in a record
PARTIAL = "partial-"  # partial-TASK-NETWORK: a task of partial_environments.py


class Task(NamedTuple):
    """A learning task: arguments of `scripts/train.py`, and settings of other trainers."""

    words: str  # arguments of `python scripts/train.py`
    steps: int = 0  # training steps; 0: as in the environment's file
    peers: Mapping[str, dict[str, Any]] = MappingProxyType({})  # trainer -> its settings
    episodes: int = 30  # of the evaluation
    greedy: bool = True  # the evaluation takes the most probable actions
    backend: str = "sync"  # of the evaluation; each episode has a separate seed

    @property
    def environment(self) -> str:
        return self.words.split()[0]

    @property
    def python(self) -> bool:
        return ":" in self.environment

    @property
    def commands(self) -> list[str]:
        """Arguments with which `scripts/train.py` trains this task, with its number of steps."""
        length = ["--train.total-timesteps", f"{self.steps:_}"] if self.steps else []
        return [*self.words.split(), *length]


def _gym(name: str, steps: int, more: str = "", **how: Any) -> Task:
    """Return the task of a Gymnasium environment: our shipped settings, and RL Zoo's for SB3."""
    peers = {} if "--torch.network" in more else {SB3: SETTINGS[name]}
    return Task(f"gym:{name} {more}".rstrip(), steps, peers, **how)


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
CHEAP = {"episodes": 100}
IN_PYTHON = {
    "CartPole-v1": _gym("CartPole-v1", 100_000, **CHEAP),
    "Acrobot-v1": _gym("Acrobot-v1", MILLION, **CHEAP),
    "MountainCar-v0": _gym("MountainCar-v0", MILLION, **CHEAP),
    "Pendulum-v1": _gym("Pendulum-v1", 100_000, **CHEAP),
    "LunarLander-v3": _gym("LunarLander-v3", MILLION),
    "LunarLanderContinuous-v3": _gym("LunarLanderContinuous-v3", MILLION),
    "BipedalWalker-v3": _gym("BipedalWalker-v3", MILLION),
    "BipedalWalker-v3-5M": _gym("BipedalWalker-v3", 5 * MILLION),
    **{
        f"{name}-v5": _gym(f"{name}-v5", MILLION)
        for name in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Swimmer")
    },
    **{name: _gym(name, 100_000, **CHEAP) for name in GRIDS},
    **{f"{name}-LSTM": _gym(name, 100_000, "--torch.network LSTM", **CHEAP) for name in GRIDS},
    **{  # sampled actions, like RL Zoo on Atari: a game that waits for FIRE would never end
        f"ALE/{name}-v5": _gym(f"ALE/{name}-v5", 2 * MILLION, greedy=False, backend="auto")
        for name in ("Pong", "Breakout")
    },
}
HIDDEN = {  # task -> steps, episodes of the evaluation
    "memory": (50_000, 100),
    "t_maze": (50_000, 100),
    "cartpole_without_velocity": (100_000, 30),
    "pendulum_without_velocity": (100_000, 30),
}
NETWORKS = "MinGRU", "LSTM", "GRU", "MLP"
IN_PART = {  # RecurrentPPO has a different network, and is only compared with our first one
    f"{PARTIAL}{name}-{network}": Task(
        f"partial_environments:{name} --torch.network {network}",
        steps,
        RECURRENT[name] if network == NETWORKS[0] else {},
        episodes,
    )
    for name, (steps, episodes) in HIDDEN.items()
    for network in NETWORKS
}
TASKS = {**IN_C, **IN_PYTHON, **IN_PART}


def find(name: str, upstream: Path | str = RECORDED_UPSTREAM) -> Task:
    """Return a task by its name. PufferLib's environments are in the folder ``upstream``."""
    if name.startswith(UPSTREAM):
        return Task(f"{upstream}/ocean/{name.removeprefix(UPSTREAM)}")
    return TASKS[name]


def stem(name: str, trainer: str) -> str:
    """Return the file name, without extension, of the record of a task and a trainer."""
    plain = name.replace("/", "-")
    if name.startswith(PARTIAL) and trainer != PUFFER_MLX:
        return f"{PARTIAL}{'-'.join(in_part(name, trainer))}"
    return plain if trainer == PUFFER_MLX else f"{plain}.{trainer}"


def in_part(name: str, trainer: str) -> tuple[str, str]:
    """Split a task name such as `partial-TASK-NETWORK`. Returns the task and the network.

    For other trainers, the trainer's name replaces the network.
    """
    task, _, network = name.removeprefix(PARTIAL).partition("-")
    return task, network if trainer == PUFFER_MLX else trainer


def metric(environment: str) -> str:
    """Return the key under which logs contain an environment's score: its file's [sweep] metric."""
    from puffer_mlx import config  # not at the top, as other trainers' Python lacks puffer_mlx

    return config.load(environment).metric
