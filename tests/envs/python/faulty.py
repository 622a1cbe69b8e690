"""Walking along a line in Gymnasium's way, with one fault in each class: what must be found."""

import itertools
import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Sound(gymnasium.Env):
    """Environment without a fault: walk left or right, until the good end or 30 steps."""

    observation_space = spaces.Box(-2, 2, (3,))
    action_space = spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.speed = 0.2

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.steps = self.np_random.uniform(-0.1, 0.1), 0
        self.goal = self.np_random.choice([-1.0, 1.0])
        return self.see(), {}

    def see(self):
        return np.array([self.position, self.goal, self.steps / 30], np.float32)

    def step(self, action):
        self.steps += 1
        self.position += self.speed * (float(np.squeeze(action)) - 1)
        over = abs(self.position) >= 1
        return self.see(), float(over and self.position * self.goal > 0), over, self.late(), {}

    def late(self):
        return self.steps >= 30

    def render(self):
        picture = np.zeros((4, 9, 3), np.uint8)
        picture[:, int(np.clip(4 + 4 * self.position, 0, 8))] = 255
        return picture


# ---- wrong ---------------------------------------------------------------------------------------


class EndsItsProcess(Sound):
    def __init__(self, render_mode=None):
        os._exit(3)


class Raises(Sound):
    def step(self, action):
        if self.steps == 5:
            raise IndexError("a plank is missing")
        return super().step(action)


class Hangs(Sound):
    def step(self, action):
        if self.steps == 5:
            time.sleep(600)
        return super().step(action)


class OutOfItsSpace(Sound):
    observation_space = spaces.Box(*np.array([[-2, -1, 0], [2, 1, 0.5]], np.float32))


class SeesNothing(Sound):
    def see(self):
        return np.ones(3, np.float32)


DRAWN = itertools.count()  # no two numbers of it are alike, as two of random's now and then are


class SharedChance(Sound):
    def see(self):
        return super().see() + np.float32(next(DRAWN) * 0.618034 % 1 / 10)


class Growing(Sound):
    def render(self):
        return np.zeros((4, 9 + self.steps, 3), np.uint8)


# ---- worth a word --------------------------------------------------------------------------------


class Undrawn(Sound):
    def render(self):
        raise NotImplementedError("no pencil")


class OldPosition(Sound):
    """Faulty environment: an episode begins near where the last one ended."""

    def reset(self, *, seed=None, options=None):
        before = getattr(self, "position", 0)
        super().reset(seed=seed)
        if seed is None:
            self.position = 0.9 * before
        return self.see(), {}


class Overdue(Sound):
    """Faulty environment: it calls the end by its time limit a termination."""

    def step(self, action):
        observation, _, _, _, info = super().step(2 * (self.steps % 2))
        return observation, float(action), self.late(), False, info


class Rescaled(Sound):
    """Environment without a fault whose actions have the bounds 0 and 100."""

    action_space = spaces.Box(0, 100, (1,))

    def step(self, action):
        return super().step(action / 50)


class Slow(Sound):
    def step(self, action):
        time.sleep(0.01)
        return super().step(action)
