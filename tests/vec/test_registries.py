"""Registered environments in processes, and environments that start processes."""

import importlib
import importlib.util
import multiprocessing
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import zoo_relay
from gymnasium.envs.registration import registry
from stepping import gym_vec, played, started, step, zoo_vec

from puffer_mlx.errors import UserError
from puffer_mlx.vec import backend_choice, pool, registries
from puffer_mlx.vec.gym.make import GymFactory
from puffer_mlx.vec.zoo import find_parallel


@pytest.fixture(autouse=True)
def restored_registry():
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
    """Return a local environment class whose observation is the step times a slope."""

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


def shown(make: Any, backend: str = "async") -> list[float]:
    """Play three steps; return the observations of the first of two environments."""
    with gym_vec(make, name="it", total_agents=2, backend=backend) as vec:
        return [float(rows.observations[0, 0]) for rows in played(vec, 3)]


def register(name: str, slope: Any) -> None:
    gymnasium.register(name, entry_point=slope_env(), kwargs={"slope": slope})


@pytest.mark.parametrize(
    ("slopes", "constructor", "slope"),
    [
        ({"Mine-v1": 1, "Mine-v2": 2}, "Mine", 2),
        ({"CartPole-v1": 5}, "CartPole-v1", 5),
        ({"Mine-v0": 3}, lambda: gymnasium.make("Mine-v0"), 3),
        ({"Other-v0": threading.Lock(), "Mine-v0": 3}, "Mine-v0", 3),  # which can't be pickled
    ],
)
def test_registered_environment_is_stepped_in_processes(slopes: dict, constructor, slope: int):
    for name, registered_slope in slopes.items():
        register(name, registered_slope)
    assert shown(constructor) == [0, slope, 2 * slope, 3 * slope]


def test_registered_class_of_the_script_is_stepped_with_its_time_limit(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "Sloping", slope_env(), raising=False)
    gymnasium.register("CartPole-v1", entry_point="__main__:Sloping", max_episode_steps=4)
    with gym_vec("CartPole-v1", name="it", total_agents=2, backend="async") as vec:
        assert [rows.observations[0, 0] for rows in played(vec, 3)] == [0, 1, 2, 3]
        step(vec, started(vec))
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


def test_constructor_that_can_not_be_pickled_is_refused_or_stepped_here(monkeypatch):
    lock = threading.Lock()

    def make(render_mode=None):
        with lock:
            return slope_env()()

    with pytest.raises(UserError, match=r"can't be sent to another process: .*lock.*\n.*sync"):
        shown(make)
    monkeypatch.setattr(backend_choice, "step_time", lambda *_: 1.0)
    monkeypatch.setattr(backend_choice, "cores", lambda: 2)
    chosen = backend_choice.choose_backend(GymFactory("it", make), 2, 1, "auto", 2, 0)
    said = "sync: a step takes 1 s, but its constructor can't be sent to another process: "
    assert chosen.description.startswith(said) and "\n" not in chosen.description


def test_module_of_another_file_in_a_process_is_refused(monkeypatch):
    later = registries.LazyConstructor(GymFactory)
    assert later.load() is GymFactory
    monkeypatch.setattr(sys.modules[GymFactory.__module__], "__file__", "/elsewhere/make.py")
    with pytest.raises(UserError, match=r"GymFactory is in .*make\.py, but a process imports /"):
        later.load()


# ---- Environments that start processes -----------------------------------------------------------


class Simulated(slope_env()):
    """Environment with a forked process, which its ``close`` leaves running."""

    def __init__(self, daemon=True, thread=False, render_mode=None):
        super().__init__()
        context: Any = multiprocessing.get_context("fork")
        self.process = context.Process(target=time.sleep, args=(600,), daemon=daemon)
        with ThreadPoolExecutor(1) as other:
            other.submit(self.process.start).result() if thread else self.process.start()
        if multiprocessing.parent_process() is None:  # the probe
            self.process.kill()


@pytest.mark.parametrize(("killed", "thread"), [(False, False), (True, False), (True, True)])
def test_processes_of_environments_end_with_their_worker(killed, thread, monkeypatch):
    """A child that a thread forked would end with the thread."""
    monkeypatch.setattr(pool, "_CLOSE_TIMEOUT", 0.5)
    env = {"thread": thread, "daemon": killed}
    with gym_vec(Simulated, name="it", total_agents=2, env=env, backend="async") as vec:
        rows = started(vec)
        assert step(vec, rows).observations[0, 0] == 1
        workers = [psutil.Process(each.pid) for each in vec._envs[0].processes]  # type: ignore
        forked = [child for each in workers for child in each.children()]
        assert len(forked) == 2
        if killed:
            workers[0].kill()
            with pytest.raises(UserError, match=r"died.*killed by SIGKILL"):
                step(vec, rows)
            for process in forked if thread else ():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
    assert not psutil.wait_procs(forked, timeout=60)[1]
