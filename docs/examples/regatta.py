"""Regatta: sail to a buoy that lies upwind. No boat sails into the wind, so it has to tack."""

import math

import gymnasium
import numpy as np


class Regatta(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-4, 4, (5,))
    action_space = gymnasium.spaces.Discrete(3)  # port, straight on, starboard
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # makes self.np_random, the only source of chance
        self.x = self.y = self.speed = self.steps = 0
        self.heading, self.buoy = self.np_random.uniform((-math.pi, -0.5), (math.pi, 0.5))
        return self.see(), {}

    def step(self, action):
        before = self.distance()
        self.heading += 0.2 * (int(action) - 1)
        power = max(0.0, 0.8 - math.cos(self.heading))  # none within 37 degrees of the wind
        self.speed += 0.15 * (power - self.speed)
        self.x += 0.04 * self.speed * math.cos(self.heading)
        self.y += 0.04 * self.speed * math.sin(self.heading)
        self.steps += 1
        arrived, lost = self.distance() < 0.1, self.distance() > 2
        reward = arrived - lost if arrived or lost else before - self.distance()
        return self.see(), reward, arrived or lost, self.steps >= 300, {}

    def distance(self):
        return math.hypot(1 - self.x, self.buoy - self.y)

    def see(self):  # the wind blows from heading 0: where the bow points, how fast, where to go
        bow = math.cos(self.heading), math.sin(self.heading)
        return np.array([*bow, self.speed, 1 - self.x, self.buoy - self.y], np.float32)

    def render(self):  # only for pictures: white boat, its bow, red buoy; the wind comes from above
        picture = np.full((120, 120, 3), (20, 70, 120), np.uint8)
        bow = self.x + 0.1 * math.cos(self.heading), self.y + 0.1 * math.sin(self.heading)
        boat, white, red = (self.x, self.y), (240, 240, 230), (230, 60, 50)
        for (up, right), colour in ((boat, white), (bow, white), ((1, self.buoy), red)):
            row, column = int(80 - 40 * up), int(60 + 40 * right)
            picture[max(0, row - 2) : row + 2, max(0, column - 2) : column + 2] = colour
        return picture
