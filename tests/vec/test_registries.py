"""Registered environments in processes, and environments that start processes."""

import importlib
import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import zoo_relay
from gymnasium.envs.registration import registry
from stepping import gym_vec, played, started, step, zoo_vec

from puffer_mlx.errors import UserError
from puffer_mlx.vec import backend_choice, registries
from puffer_mlx.vec.gym.make import GymFactory
from puffer_mlx.vec.zoo import find_parallel


@pytest.fixture(autouse=True)
def registered():
    """Restore Gymnasium's registry after each test.

    Packages register their environments when they are imported, only once. So a package that the
    lookup of an unknown id imports is imported before the registry is copied.
    """
    if importlib.util.find_spec("ale_py"):
        importlib.import_module("ale_py")
    before = dict(registry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's, that an id is registered anew
        yield
    registry.clear()
    registry.update(before)


def slope_env() -> Any:
    """Return a local class of environments that show their steps times a slope."""

    class Slope(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-99, 99, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, slope=1.0, render_mode=None):
            self.slope = slope

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.steps += 1
            shown = np.full(1, self.slope * self.steps, np.float32)
            return shown, 1.0, self.steps == 50, False, {}

    return Slope


def shown(make: Any, backend: str, steps: int = 3) -> list[float]:
    """Return the observations of the first of two environments."""
    with gym_vec(make, name="it", total_agents=2, backend=backend) as vec:
        return [float(rows.observations[0, 0]) for rows in played(vec, steps)]


def register(name: str, slope: Any, entry_point: Any = None) -> None:
    entry_point = entry_point or slope_env()
    gymnasium.register(name, entry_point=entry_point, kwargs={"slope": slope})


@pytest.mark.parametrize(
    ("slopes", "constructor", "slope"),
    [
        ({"Mine-v0": 3}, "Mine-v0", 3),
        ({"Mine-v1": 1, "Mine-v2": 2}, "Mine", 2),
        ({"CartPole-v1": 5}, "CartPole-v1", 5),
        ({"Mine-v0": 3}, lambda: gymnasium.make("Mine-v0"), 3),
        ({"Other-v0": threading.Lock(), "Mine-v0": 3}, "Mine-v0", 3),  # which can't be pickled
    ],
)
def test_registered_environment_is_stepped_in_processes(slopes: dict, constructor, slope: int):
    for name, registered_slope in slopes.items():
        register(name, registered_slope)
    assert shown(constructor, "async") == [0, slope, 2 * slope, 3 * slope]


def test_registered_class_of_the_script_is_stepped_in_processes(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "Sloping", slope_env(), raising=False)
    register("Mine-v0", 4, "__main__:Sloping")
    assert shown("Mine-v0", "async") == [0, 4, 8, 12]


def test_registered_time_limit_counts():
    entry = gymnasium.spec("CartPole-v1").entry_point
    gymnasium.register("CartPole-v1", entry_point=entry, max_episode_steps=4)
    with gym_vec("CartPole-v1", name="it", total_agents=2, backend="async") as vec:
        played(vec, 12)
        assert {record["episode_length"] for record in vec.episodes()} == {4}


def test_registered_environment_of_pettingzoo_is_stepped(monkeypatch):
    pettingzoo = pytest.importorskip("pettingzoo")
    if not hasattr(pettingzoo, "register"):
        pytest.skip("this PettingZoo has no registry")
    specification = pettingzoo.EnvSpec(id="mine/relay-v0", entry_point=zoo_relay.Relay)
    # PettingZoo caches which dictionary is the registry: change that dictionary.
    monkeypatch.setitem(pettingzoo.parallel_registry, "mine/relay-v0", specification)
    made = find_parallel("mine/relay-v0")
    with zoo_vec(made, name="relay", total_agents=6, backend="async") as vec:
        assert [rows.observations[2, 0] for rows in played(vec, 2)] == [0, 1, 2]


def held_lock() -> Any:
    """Return a function that can't be pickled."""
    lock, Slope = threading.Lock(), slope_env()

    def make(render_mode=None):
        with lock:
            return Slope()

    return make


def test_constructor_that_can_not_be_pickled_is_refused_or_stepped_here(monkeypatch):
    make = held_lock()
    with pytest.raises(UserError, match=r"can't be sent to another process: .*lock.*\n.*sync"):
        shown(make, "async")
    monkeypatch.setattr(backend_choice, "step_time", lambda *_: 1.0)
    monkeypatch.setattr(backend_choice, "cores", lambda: 2)
    chosen = backend_choice.choose_backend(GymFactory("it", make), 2, 1, "auto", 2, 0)
    assert chosen.form == "sync" and chosen.workers == 0
    said = "sync: a step takes 1 s, but what makes it can't be sent to another process: "
    assert chosen.description.startswith(said) and "\n" not in chosen.description


def test_module_of_another_file_in_a_process_is_refused(monkeypatch):
    later = registries.Later(GymFactory)
    assert later.load() is GymFactory
    monkeypatch.setattr(sys.modules[GymFactory.__module__], "__file__", "/elsewhere/make.py")
    with pytest.raises(UserError, match=r"GymFactory is in .*make\.py, but a process imports /"):
        later.load()


# ---- Environments that start processes -----------------------------------------------------------


def simulate(pipe) -> None:
    while (steps := pipe.recv()) is not None:
        pipe.send(steps + 1)


class Simulated(gymnasium.Env):
    """Steps in a forked process; in a worker, ``close`` may leave that process running."""

    observation_space = gymnasium.spaces.Box(-99, 99, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, closes=True, daemon=True, thread=False, render_mode=None):
        self.pipe, end = multiprocessing.Pipe()
        context: Any = multiprocessing.get_context("fork")
        self.process = context.Process(target=simulate, args=(end,), daemon=daemon)
        with ThreadPoolExecutor(1) as other:
            other.submit(self.process.start).result() if thread else self.process.start()
        self.closes = closes or multiprocessing.parent_process() is None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.pipe.send(self.steps)
        self.steps = self.pipe.recv()
        return np.full(1, self.steps, np.float32), 1.0, self.steps == 9, False, {"pid": os.getpid()}

    def close(self):
        if self.closes:
            self.pipe.send(None)
            self.process.join()


def simulators(workers: list[Any]) -> list[psutil.Process]:
    return [child for each in workers for child in psutil.Process(each.pid).children()]


@pytest.mark.parametrize("env", [{}, {"closes": False, "daemon": False}])
def test_close_ends_processes_of_environments(env):
    with gym_vec(Simulated, name="it", total_agents=2, env=env, backend="async") as vec:
        assert step(vec, started(vec)).observations[0, 0] == 1
        forked = simulators(vec._envs[0].processes)  # type: ignore
        assert len(forked) == 2
    gone, left = psutil.wait_procs(forked, timeout=60)
    assert len(gone) == 2 and not left


@pytest.mark.parametrize("thread", [False, True])
def test_dead_worker_is_noticed_while_its_child_lives(thread):
    """A child that a thread forked would end with the thread."""
    env = {"thread": thread, "closes": False}
    with gym_vec(Simulated, name="it", total_agents=2, env=env, backend="async") as vec:
        rows = started(vec)
        worker = vec._envs[0].processes[0]  # type: ignore
        forked = simulators([worker])
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(UserError, match=r"died.*killed by SIGKILL"):
            step(vec, rows)
        for process in forked if thread else ():
            process.kill()
        assert not psutil.wait_procs(forked, timeout=60)[1]
