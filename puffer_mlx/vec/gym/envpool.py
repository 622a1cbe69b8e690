"""The factory of EnvPool's environments: a pool in C++ steps a group of them in its threads.

A pool is a ``gymnasium.vector.VectorEnv`` whose next step begins the next episode, so last
observations have separate rows. It differs from Gymnasium's vectorised forms in three ways:

- Seeds are fixed when a pool is created: environment i gets ``seed + i``. A reset with another seed
  creates a new pool.
- Infos contain bookkeeping beside the environment's own numbers.
- An environment that can't be drawn may end the process. Drawing is tried in another process first.
"""

import functools
import importlib
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from puffer_mlx.config.finding import ENVPOOL_PREFIX
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.system.import_string import nearest
from puffer_mlx.vec.gym.agents import VectorInstance
from puffer_mlx.vec.gym.installed import missing_package, suppress_warnings
from puffer_mlx.vec.gym.make import GymFactory
from puffer_mlx.vec.gym.wrapping import changed_keys
from puffer_mlx.vec.instances import Buffers

_RESERVED = {  # arguments of envpool.make, and the keys that set them
    "batch_size": "vec.num_buffers",
    "env_type": "",
    "max_num_players": "",
    "num_envs": "vec.total_agents",
    "num_threads": "vec.num_threads",
    "seed": "vec.seed",
    "task_id": "",
}
_BOOKKEEPING = frozenset(
    ("elapsed_step", "env_id", "lives", "players", "ram", "reward", "terminated")
)
_DRAWING = """
import sys, envpool
env = envpool.make(sys.argv[1], env_type="gymnasium", num_envs=1, render_mode="rgb_array")
env.reset()
env.render()
"""
_DRAWING_SECONDS = 60.0


def import_envpool() -> Any:
    """Import EnvPool and return its module.

    Raises:
        UserError: EnvPool isn't installed.
    """
    if package := missing_package(ENVPOOL_PREFIX):
        raise UserError("EnvPool isn't installed", f"pip install '{package}'")
    with suppress_warnings():
        return importlib.import_module("envpool")


@functools.cache
def find_envpool(task: str) -> Callable[..., Any]:
    """Return the constructor of ``envpool:ID``, the same object for each ID.

    Args:
        task: ID, such as ``Ant-v5``.

    Raises:
        UserError: EnvPool isn't installed, or has no such environment.
    """
    package = import_envpool()
    known = package.list_all_envs()
    if task not in known:
        near = nearest(task, known, ENVPOOL_PREFIX) or f"`{program.COMMAND} list envpool` shows all"
        raise UserError(f"{ENVPOOL_PREFIX}{task}: EnvPool has no such environment", near)

    def make(num_envs: int, **keywords: Any) -> Any:
        with suppress_warnings():
            return package.make(task, env_type="gymnasium", num_envs=num_envs, **keywords)

    make.__name__ = make.__qualname__ = "EnvPool"
    make.metadata = {"render_modes": ["rgb_array"]}  # type: ignore
    return make


@dataclass
class EnvPoolFactory(GymFactory):
    """Factory of EnvPool's pools, which step many environments in threads.

    Arguments and attributes that aren't listed here are those of ``GymFactory``.

    Args:
        threads: Maximum number of threads of a pool.
    """

    threads: int = 1
    by_environment: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in self.keywords.keys() & _RESERVED.keys():
            hint = f"use {_RESERVED[key]}" if _RESERVED[key] else "leave it out"
            raise UserError(f"{self.name}: env.{key} can't be set", hint)
        if keys := changed_keys(self.wrap):
            raise UserError(
                f"{self.name}: wrap.{keys[0]} is for Gymnasium's environments",
                f"EnvPool has arguments instead: {', '.join(self.argument_names())}",
            )

    def probe(self, backend: str = "vector", seed: int = 0, measure: bool = False) -> None:
        """Probe an EnvPool environment: make a pool of one to find its observations and actions.

        Raises:
            UserError: The backend is ``sync`` or ``async``, or for the reasons of
                ``EnvFactory.probe``.
        """
        if backend not in ("auto", "vector"):
            raise UserError(
                f"{self.name}: vec.backend is {backend}, but EnvPool steps in threads of its pool",
                "leave vec.backend at auto",
            )
        super().probe("vector", seed, measure)

    def open(self, seed: int, count: int | None, number: int) -> Any:
        """Return a new pool of ``count`` environments, made by EnvPool.

        Raises:
            UserError: The pool can't be made, or ``render`` is set and it can't be rendered.
        """
        if self.render:
            _try_to_draw(self.name)
        n = count or 1
        threads = max(1, min(self.threads, n))
        with self.reporting_failures(number, seed - number):
            try:
                return self.constructor(
                    num_envs=n, num_threads=threads, seed=seed, **self.arguments()
                )
            except ImportError as error:  # a library of the system is missing
                raise UserError(f"{self.name}: {error}", "install it") from None

    def spaces_of(self, env: Any) -> tuple[Any, Any]:
        """Return one agent's observation space and action space in a pool of EnvPool."""
        with suppress_warnings():  # each pool would warn of bounds beyond float32
            return super().spaces_of(env)

    def first_reset(self, env: Any, seed: int) -> Any:
        """Reset a new pool of EnvPool, whose seed is set already. Returns the pool's result."""
        return env.reset()

    def as_instance(self, env: Any, buffers: Buffers) -> VectorInstance:
        """Wrap a pool of EnvPool as an instance that writes its agents' rows into buffers."""
        return _PoolInstance(self, env, buffers)

    def argument_names(self) -> list[str]:
        """Return the names of an EnvPool environment's arguments that a user can set."""
        task = self.name.removeprefix(ENVPOOL_PREFIX)
        keys = import_envpool().make_spec(task)._config_keys
        return [key for key in keys if key not in (*_RESERVED, "base_path", "env_seed")]


class _PoolInstance(VectorInstance):
    """Instance that steps a pool of EnvPool and writes its agents' observations into buffers."""

    def __init__(self, factory: EnvPoolFactory, env: Any, buffers: Buffers) -> None:
        super().__init__(factory.name, env, buffers, factory.layout, factory.final_observations)
        self._factory = factory
        self._seed = int(env.config["seed"])

    def reset(self, seed: int | None = None) -> None:
        """Start new episodes in a pool of EnvPool; a different seed replaces it by a new pool."""
        if seed is not None and seed != self._seed:
            self._env.close()
            self._env = self._factory.open(seed, self.num_agents, 0)
            self._seed = seed
        super().reset()

    def episode_metrics(self, info: dict[str, Any]) -> dict[str, float]:
        """Return the metrics of an episode in a pool of EnvPool, without its bookkeeping."""
        episode_info = {key: value for key, value in info.items() if key not in _BOOKKEEPING}
        return super().episode_metrics(episode_info)


@functools.cache
def _try_to_draw(name: str) -> None:
    """Test in another process, which EnvPool may end, whether an environment can be drawn.

    Raises:
        UserError: It can't be drawn.
    """
    done = subprocess.run(
        program.python_command("-W", "ignore", "-c", _DRAWING, name.removeprefix(ENVPOOL_PREFIX)),
        capture_output=True,
        text=True,
        timeout=_DRAWING_SECONDS,
        check=False,
    )
    if done.returncode:
        lines = f"{done.stdout}\n{done.stderr}".split("\n")
        reasons = [line for line in lines if line.strip()] or [f"exit code {done.returncode}"]
        hint = (
            "install OpenGL with EGL (libegl1)" if "GL" in reasons[-1] else "is a package missing?"
        )
        raise UserError(f"{name} can't be drawn: {reasons[-1]}", hint)
