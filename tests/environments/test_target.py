"""target against an oracle in NumPy: eight agents and four goals in a world."""

from typing import Any

import numpy as np
import pytest
from native_envs import Stepper, rand_r

from puffer_mlx.config import load
from puffer_mlx.errors import UserError
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import random_actions

FOLDER = find_environment("target")
AGENTS, GOALS = 8, 4
SIZE = np.array([952, 592])
STILL = np.array([4, 2], np.float32)  # the actions that turn and accelerate nothing


def make(agents: int, **keywords: Any) -> NativeVec:
    return NativeVec(FOLDER, total_agents=agents, env=load("target").env, **keywords)


class World:
    """Simulates a world of the environment target in Python, in float64."""

    def __init__(self, seed: int) -> None:
        self.rng = seed
        self.place = np.zeros((AGENTS, 2))
        self.goals = np.zeros((GOALS, 2))
        self.heading, self.speed, self.waited = np.zeros((3, AGENTS))
        for spot in (*self.place, *self.goals):
            spot[:] = self.anywhere()
        self.rewards = np.zeros(AGENTS)
        self.waits: list[float] = []  # of every goal reached
        self.moved = self.twice = 0

    def draw(self) -> int:
        self.rng, number = rand_r(self.rng)
        return number

    def anywhere(self) -> list[int]:
        return [self.draw() % size for size in SIZE]

    def step(self, actions: np.ndarray) -> None:
        """Step the simulated target world with actions (8, 2)."""
        self.waited += 1
        self.heading = np.clip(self.heading + (actions[:, 0] - 4) / 12, 0, 2 * np.pi)
        self.speed = np.clip(self.speed + actions[:, 1] - 2, -20, 20)
        ahead = np.stack([np.cos(self.heading), np.sin(self.heading)], 1)
        self.place = np.clip(self.place + self.speed[:, None] * ahead, 0, SIZE)
        for a in np.flatnonzero(self.waited % 512 == 0):
            self.place[a] = self.anywhere()
            self.moved += 1
        self.rewards = np.zeros(AGENTS)
        for a in range(AGENTS):
            for goal in self.goals:
                distance = np.hypot(*(goal - self.place[a]))
                assert abs(distance - 64) > 1e-4  # none so close that rounding decides
                if distance < 64:
                    goal[:] = self.anywhere()
                    self.twice += self.rewards[a] == 1
                    self.rewards[a] = 1
                    self.waits.append(self.waited[a])
                    self.waited[a] = 0

    def chase(self) -> np.ndarray:
        """Return actions (8, 2) that drive the agents to their nearest goals; two stand still.

        These are the agents 6 and 7.
        """
        way = self.goals - self.place[:, None]
        x, y = way[np.arange(AGENTS), np.hypot(*way.T).T.argmin(1)].T
        turn = np.rint(12 * (np.arctan2(y, x) % (2 * np.pi) - self.heading)) + 4
        actions = np.stack([turn.clip(0, 8), np.where(self.speed < 8, 4, 2)], 1)
        actions[6:] = STILL
        return actions

    def seen(self) -> np.ndarray:
        """Return the observations (8, 28) of all agents in the simulated target world."""
        goals = (self.goals - self.place[:, None]) / SIZE
        others = (self.place - self.place[:, None]) / SIZE
        own = [self.heading / (2 * np.pi), self.rewards, *(self.place / SIZE).T]
        return np.hstack([goals.reshape(8, 8), others.reshape(8, 16), np.stack(own, 1)])


def test_play_equals_the_oracle():
    """Some agents chase goals, some act at random, and two wait to be moved after 512 steps."""
    worlds = [World(seed) for seed in range(4)]
    n = AGENTS * len(worlds)
    rng = np.random.default_rng(0)
    with make(n, num_buffers=2, num_threads=2) as vec:
        stepper = Stepper(vec)
        assert vec.spec.action.sizes == (9, 5)
        for _ in range(600):
            found = stepper.rows.observations.reshape(-1, AGENTS, 28)
            for row, world in zip(found, worlds, strict=True):
                np.testing.assert_allclose(row, world.seen(), rtol=0, atol=1e-5)
            actions = np.array([world.chase() for world in worlds], np.float32)
            actions[:, 4:6] = random_actions(vec, 2 * len(worlds), rng).reshape(-1, 2, 2)
            for world, action in zip(worlds, actions, strict=True):
                world.step(action)
            rows = stepper.step(actions.reshape(n, 2))
            np.testing.assert_array_equal(rows.rewards, [r for w in worlds for r in w.rewards])
            assert not rows.terminals.any()
        log = vec.log()
    waits = np.array([wait for world in worlds for wait in world.waits])
    assert sum(world.moved for world in worlds) > 3
    assert list(log) == ["perf", "score", "episode_return", "episode_length", "n"]
    assert log["n"] == len(waits) > 150
    assert (log["score"], log["episode_return"]) == (1, 1)
    assert log["episode_length"] == pytest.approx(waits.mean(), rel=1e-5)
    assert log["perf"] == pytest.approx(np.maximum(0, 1 - waits / 100).mean(), rel=1e-5)


def test_two_goals_at_once_are_one_reward():
    """They are two episodes in the log. Some agents of many worlds begin there."""
    worlds = [World(seed) for seed in range(400)]
    n = AGENTS * len(worlds)
    with make(n) as vec:
        rows = Stepper(vec).step(np.tile(STILL, (n, 1)))
        for world in worlds:
            world.step(np.tile(STILL, (AGENTS, 1)))
        np.testing.assert_array_equal(rows.rewards, [r for w in worlds for r in w.rewards])
        seen = np.concatenate([world.seen() for world in worlds])
        np.testing.assert_allclose(rows.observations, seen, rtol=0, atol=1e-6)
        log = vec.log()
    twice = sum(world.twice for world in worlds)
    assert log["n"] == rows.rewards.sum() + twice and twice > 3


def test_number_of_agents_must_be_a_multiple_of_8():
    with pytest.raises(UserError, match="8 agents, of which only 4 fit"):
        make(12)
    assert load("target").env == {}
