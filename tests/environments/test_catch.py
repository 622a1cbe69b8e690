"""catch against a second version of its rules, pixel by pixel."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from native_envs import Stepper, make, rand_r

from puffer_mlx.config import load

SIZE, BALL, PADDLE_TOP = 36, 3, 34
LEFT, STAY, RIGHT = range(3)
SHIPPED = {key: int(value) for key, value in load("catch").env.items()}


@dataclass
class Game:
    """Simulates the environment catch in Python, with ``rng`` as the C library's rand_r."""

    rng: int
    env: dict[str, int]
    ended: list[tuple[int, int]] = field(default_factory=list)  # balls caught, steps
    bounces: int = 0

    def draw(self, count: int) -> int:
        self.rng, number = rand_r(self.rng)
        return number % count

    def reset(self) -> None:
        self.paddle = (SIZE - self.env["paddle_width"]) // 2
        self.caught = self.dropped = self.tick = 0
        self.launch()

    def launch(self) -> None:
        self.x, self.y = self.draw(SIZE - BALL + 1), 0
        self.drift = self.draw(2 * self.env["max_drift"] + 1) - self.env["max_drift"]

    def step(self, action: int) -> tuple[float, float]:
        """Step the simulated catch. Returns reward and terminal."""
        self.tick += 1
        width = self.env["paddle_width"]
        move = {LEFT: -1, RIGHT: 1}.get(action, 0) * self.env["paddle_speed"]
        self.paddle = min(max(self.paddle + move, 0), SIZE - width)
        self.y += self.env["ball_speed"]
        for _ in range(abs(self.drift)):  # one pixel after the other
            ahead = self.x + np.sign(self.drift)
            if not 0 <= ahead <= SIZE - BALL:
                self.drift = -self.drift
                self.bounces += 1
            self.x += int(np.sign(self.drift))
        if self.y + BALL <= PADDLE_TOP:
            return 0, 0
        ball, paddle = range(self.x, self.x + BALL), range(self.paddle, self.paddle + width)
        caught = bool(set(ball) & set(paddle))
        self.caught += caught
        self.dropped += 1
        over = self.dropped == self.env["balls"]
        if over:
            self.ended.append((self.caught, self.tick))
            self.reset()
        else:
            self.launch()
        return (1 if caught else -1), int(over)

    def picture(self) -> np.ndarray:
        image = np.zeros((SIZE, SIZE), np.uint8)
        image[self.y : self.y + BALL, self.x : self.x + BALL] = 255
        image[PADDLE_TOP:, self.paddle : self.paddle + self.env["paddle_width"]] = 128
        return image.ravel()


def check_log(log: dict[str, float], games: list[Game], balls: int) -> None:
    ended = np.array([episode for game in games for episode in game.ended])
    assert len(ended) > 0
    caught, steps = ended.mean(axis=0)
    assert list(log) == ["perf", "score", "episode_return", "episode_length", "n"]
    expected = [caught / balls, caught, 2 * caught - balls, steps, len(ended)]
    np.testing.assert_allclose(list(log.values()), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"balls": 3, "paddle_width": 1, "paddle_speed": 1, "ball_speed": 1, "max_drift": 33},
        {"balls": 1, "paddle_width": 36, "ball_speed": 32, "max_drift": 5},
    ],
)
def test_pixels_rewards_and_ends_are_those_of_the_rules(changed):
    """Random actions, more likely repeated than not, so that the paddle gets around."""
    env = {**SHIPPED, **changed}
    rng = np.random.default_rng(0)
    with make("catch", total_agents=8, env=env, seed=5) as vec:
        assert vec.spec.observation_shape == (SIZE, SIZE, 1)
        stepper = Stepper(vec)
        games = [Game(5 + i, env) for i in range(8)]
        for game in games:
            game.reset()
        actions = np.zeros(8, np.float32)
        for _ in range(400):
            for game, found in zip(games, stepper.rows.observations, strict=True):
                np.testing.assert_array_equal(found, game.picture())
            actions = np.where(rng.random(8) < 0.2, rng.integers(0, 3, 8), actions)
            rows = stepper.step(actions)
            expected = [game.step(int(action)) for game, action in zip(games, actions, strict=True)]
            np.testing.assert_array_equal(rows.rewards, [reward for reward, _ in expected])
            np.testing.assert_array_equal(rows.terminals, [over for _, over in expected])
        check_log(vec.log(), games, env["balls"])
    assert sum(game.bounces for game in games) > 0
