"""soccer against its rules, written again in Python."""

import numpy as np
from native_envs import Stepper, assert_match_log, bot_of, make, rand_r

from puffer_mlx.vec.rows import random_actions

ROWS, COLUMNS, LIMIT = 5, 9, 60
STAY, FORWARD, BACK, LEFT, RIGHT, PASS = range(6)
MOVES = {FORWARD: (0, 1), BACK: (0, -1), LEFT: (-1, 0), RIGHT: (1, 0)}  # rows, columns of team 0


class Game:
    """Simulates one soccer game in Python."""

    def __init__(self, seed: int) -> None:
        self.rng = seed
        self.results: list[tuple[int, int]] = []  # result of team 0, steps
        self.changes = self.passes = self.early = 0
        self.begin()

    def draw(self, n: int) -> int:
        self.rng, number = rand_r(self.rng)
        return number % n

    def begin(self) -> None:
        self.places: list[tuple[int, int]] = []
        for seat in range(4):
            while True:
                depth, row = self.draw(4), self.draw(ROWS)
                place = row, depth if seat < 2 else 8 - depth
                if place not in self.places:
                    break
            self.places.append(place)
        self.holder, self.tick = self.draw(4), 0

    def order(self) -> list[int]:
        seats = [0, 1, 2, 3]
        for i in range(3):
            j = i + self.draw(4 - i)
            seats[i], seats[j] = seats[j], seats[i]
        return seats

    def step(self, actions: np.ndarray) -> tuple[int, bool]:
        """Step the simulated soccer game with actions (4,).

        Returns the reward of team 0 and whether the game is over.
        """
        self.tick += 1
        for turn, seat in enumerate(self.order()):
            if self.act(seat, int(actions[seat])):
                self.early += turn < 3
                return self.end(1 if seat < 2 else -1)
        return self.end(0) if self.tick == LIMIT else (0, False)

    def end(self, result: int) -> tuple[int, bool]:
        self.results.append((result, self.tick))
        self.begin()
        return result, True

    def act(self, seat: int, action: int) -> bool:
        (row, column), mate = self.places[seat], seat ^ 1
        if action == PASS and self.holder == seat:
            away = np.abs(np.subtract(self.places[seat], self.places[mate]))
            if away.max() <= 3:
                self.holder = mate
                self.passes += 1
        if action not in MOVES:
            return False
        down, on = np.multiply(MOVES[action], 1 if seat < 2 else -1)
        to = int(row + down), int(column + on)
        if to[1] == (COLUMNS if seat < 2 else -1):
            return self.holder == seat and row in (1, 2, 3)
        if to in self.places:
            other = self.places.index(to)
            if other != mate and self.holder in (seat, other):
                self.holder = other if self.holder == seat else seat
                self.changes += 1
        elif 0 <= to[0] < ROWS and 0 <= to[1] < COLUMNS:
            self.places[seat] = to
        return False

    def seen(self, seat: int) -> np.ndarray:
        """Return the observation (186,) of an agent in the simulated soccer game."""
        planes = np.zeros((4, ROWS, COLUMNS), np.uint8)
        for other, place in enumerate(self.places):
            plane = 0 if other == seat else 1 if other == seat ^ 1 else 2
            planes[(plane, *place)] = 1
        planes[(3, *self.places[self.holder])] = 1
        if seat >= 2:
            planes = planes[:, ::-1, ::-1]
        clock = np.arange(6) == self.tick // 10
        return np.concatenate([planes.ravel(), clock])


def eager(vec, rng: np.random.Generator) -> np.ndarray:
    """Return random soccer actions, 30 % of them forward, so that teams score."""
    actions = random_actions(vec, vec.num_agents, rng)
    return np.where(rng.random(actions.shape) < 0.3, np.float32(FORWARD), actions)


def test_games_follow_the_rules():
    """Environment i begins with seed i."""
    E, rng = 12, np.random.default_rng(0)
    games = [Game(seed) for seed in range(E)]
    with make("soccer", total_agents=4 * E) as vec:
        stepper = Stepper(vec)
        for _ in range(400):
            expected = np.array([[game.seen(seat) for seat in range(4)] for game in games])
            np.testing.assert_array_equal(stepper.rows.observations.reshape(E, 4, -1), expected)
            actions = eager(vec, rng)
            rows = stepper.step(actions)
            ends = [game.step(own) for game, own in zip(games, actions.reshape(E, 4), strict=True)]
            results, overs = np.array(ends).T
            np.testing.assert_array_equal(
                rows.rewards.reshape(E, 4), np.outer(results, [1, 1, -1, -1])
            )
            np.testing.assert_array_equal(rows.terminals.reshape(E, 4).T, [overs] * 4)
        log = vec.log()
    results, lengths = np.array([end for game in games for end in game.results]).T
    assert min((results == result).sum() for result in (-1, 0, 1)) > 5
    assert min(sum(getattr(game, n) for game in games) for n in ("changes", "passes", "early")) > 10
    assert_match_log(log, results, lengths)


def test_scripted_player_scores_on_either_side():
    """Two scripted players against two random ones."""
    bot = bot_of("soccer")
    for team in 0, 1:
        rng = np.random.default_rng(2)
        with make("soccer", total_agents=4 * 100) as vec:
            stepper = Stepper(vec)
            ours = np.arange(400) // 2 % 2 == team
            for _ in range(200):
                actions = random_actions(vec, 400, rng)
                actions[ours] = bot(stepper.rows.observations[ours], None, 1.0, rng)
                stepper.step(actions)
            assert vec.log()[f"slot_{team}_score"] > 0.9
            seen = np.repeat(stepper.rows.observations, 10, axis=0)
    found = bot(seen, None, 0.0, np.random.default_rng(3))  # without skill: any
    assert np.bincount(found[:, 0], minlength=6).min() > 550
