"""g2048 against an oracle that goes cell by cell."""

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_envs import Stepper, rand_r

from puffer_mlx.config import load
from puffer_mlx.system.compiler import compile_shared
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.sources import environments_folder
from puffer_mlx.vec.native.vec import NativeVec

UP, DOWN, LEFT, RIGHT = range(4)
FOLDER = find_environment("g2048")
LOG = ["perf", "score", "merge_score", "episode_return", "episode_length", "lifetime_max_tile"]
LOG += [f"reached_{2**k}" for k in (14, 15, 16, 17)]
BONUS = [0, 1.0, 2.83, 5.20, 8.0, 11.18, 14.70, 18.52, 22.63, 27.0, 31.62, 36.48]
f32 = np.float32


def make(agents: int, ratio: float = 0.0, **keywords: Any) -> NativeVec:
    env = {"scaffolding_ratio": ratio}
    return NativeVec(FOLDER, total_agents=agents, env=env, **keywords)


# ---- The oracle ---------------------------------------------------------------------------------


def slide(line: list[int]) -> tuple[list[int], list[int]]:
    """Slide a line of 2048's board to its beginning.

    Returns the line, and the exponents of merged tiles in order.
    """
    cells = [cell for cell in line if cell]
    made = []
    for i in range(3):
        if i + 1 < len(cells) and cells[i] == cells[i + 1]:
            cells[i : i + 2] = [cells[i] + 1]
            made.append(cells[i])
    return cells + [0] * (4 - len(cells)), made


def move(board: list[int], action: int) -> tuple[list[int], list[int]]:
    """Return 2048's board after a move, and the exponents of merged tiles."""
    after, made = list(board), []
    for n in range(4):
        line = range(n, 16, 4) if action in (UP, DOWN) else range(4 * n, 4 * n + 4)
        line = line if action in (UP, LEFT) else line[::-1]
        cells, new = slide([board[cell] for cell in line])
        made += new
        for cell, value in zip(line, cells, strict=True):
            after[cell] = value
    return after, made


def is_over(board: list[int]) -> bool:
    return 0 not in board and all(move(board, action)[0] == board for action in range(4))


@dataclass
class Game:
    """Simulates the environment g2048 in Python."""

    rng: int
    ratio: float = 0.0
    board: list[int] = field(default_factory=list)
    lifetime_max: int = 0
    tick: int = 0
    max_ticks: int = 1000
    score: int = 0
    max_tile: int = 0
    scaffold: bool = False
    episode_return: np.float32 = f32(0)  # noqa: RUF009
    logs: list[list[float]] = field(default_factory=list)

    def draw(self) -> int:
        self.rng, number = rand_r(self.rng)
        return number

    def spawn(self, exponent: int) -> None:
        empty = [cell for cell, value in enumerate(self.board) if not value]
        self.board[empty[self.draw() % len(empty)]] = exponent

    def new_tile(self) -> int:
        return 2 if self.draw() % 10 == 0 else 1

    def reset(self) -> None:
        self.board = [0] * 16
        self.tick = self.score = self.max_tile = 0
        self.max_ticks = 1000
        self.episode_return = f32(0)
        self.scaffold = bool(f32(self.draw()) / f32(2**31 - 1) < f32(self.ratio))
        if not self.scaffold:
            tiles = [None, None]
        elif self.lifetime_max < 14:
            tiles = [max(12 + self.draw() % 5, self.lifetime_max)]
        else:
            base = 15 if self.lifetime_max >= 16 else 14
            choices = [base], [base + 1], [base, base - 1], [base + 1, base]
            tiles = choices[self.draw() % 4]
        for tile in tiles:
            self.spawn(tile or self.new_tile())

    def step(self, action: int) -> tuple[np.float32, bool]:
        """Step the simulated 2048 game. Returns reward and terminal."""
        self.tick += 1
        board, made = move(self.board, action)
        reward = f32(0)
        if board != self.board:
            for m in made:
                reward += f32(0.05) + (f32(BONUS[m - 6]) * f32(0.03) if m >= 7 else f32(0))
            self.board = board
            self.max_tile = max(board)
            self.score += sum(2**m for m in made)
            self.spawn(self.new_tile())
            self.max_ticks = max(1000 * max(1, self.lifetime_max - 8), self.score // 4)
        else:
            reward = f32(-0.05)
        over = is_over(self.board)
        reward += f32(-1 if over else 0)
        self.episode_return += reward
        terminal = over or self.tick >= self.max_ticks
        if terminal:
            if not self.scaffold:
                self.log()
            self.reset()
        return reward, terminal

    def log(self) -> None:
        self.lifetime_max = max(self.lifetime_max, self.max_tile)
        tile = 2**self.max_tile
        self.logs.append(
            [
                min(1.0, 0.8 * tile / 65536),
                *(tile, self.score, float(self.episode_return), self.tick, 2**self.lifetime_max),
                *(float(self.max_tile >= k) for k in (14, 15, 16, 17)),
            ]
        )


# ---- Play ---------------------------------------------------------------------------------------


def test_play_equals_the_oracle():
    """Some agents repeat one action until the time limit."""
    n, steps, ratio = 24, 1500, 0.5
    games = [Game(rng=i, ratio=ratio) for i in range(n)]
    rng = np.random.default_rng(0)
    ends = 0
    with make(n, ratio, num_buffers=2, num_threads=2) as vec:
        stepper = Stepper(vec)
        for game in games:
            game.reset()
        for _ in range(steps):
            boards = [game.board for game in games]
            np.testing.assert_array_equal(stepper.rows.observations, boards)
            actions = rng.integers(0, 4, n)
            actions[:4] = range(4)
            rows = stepper.step(actions)
            both = [game.step(int(a)) for game, a in zip(games, actions, strict=True)]
            rewards, terminals = zip(*both, strict=True)
            np.testing.assert_array_equal(rows.rewards, np.array(rewards))
            np.testing.assert_array_equal(rows.terminals, terminals)
            ends += sum(terminals)
        log = vec.log()
    logs = np.array([row for game in games for row in game.logs])
    assert list(log) == [*LOG, "n"]
    assert log["n"] == len(logs) and 50 < len(logs) < ends  # without scaffolding
    np.testing.assert_allclose([log[key] for key in LOG], logs.mean(0), rtol=2e-5)
    assert (logs[:, 4] == 1000).any() and (logs[:, 4] < 300).any()  # both ways to end


# ---- States that play hardly reaches ------------------------------------------------------------

PROBE = """
#include "g2048.h"
typedef struct {
    unsigned char board[16];
    int lifetime_max, tick, max_ticks, score, max_tile, scaffold;
    unsigned int rng;
    float ratio, episode_return, action, reward, terminal;
    Log log;
} Probe;
void probe(Probe* p) {
    G2048 env = {
        .observations = p->board, .actions = &p->action, .rewards = &p->reward,
        .terminals = &p->terminal, .rng = p->rng, .scaffolding_ratio = p->ratio,
        .lifetime_max = p->lifetime_max, .scaffold = p->scaffold, .tick = p->tick,
        .max_ticks = p->max_ticks, .score = p->score, .max_tile = p->max_tile,
        .episode_return = p->episode_return,
    };
    for (int cell = 0; cell < 16; cell++) {
        env.rows[cell / 4] |= (uint32_t)p->board[cell] << 8 * (cell % 4);
        env.largest = p->board[cell] > env.largest ? p->board[cell] : env.largest;
    }
    c_step(&env);
    p->lifetime_max = env.lifetime_max, p->tick = env.tick, p->max_ticks = env.max_ticks;
    p->score = env.score, p->max_tile = env.max_tile, p->scaffold = env.scaffold;
    p->rng = env.rng, p->episode_return = env.episode_return, p->log = env.log;
}
"""
STATE = "lifetime_max", "tick", "max_ticks", "score", "max_tile", "scaffold", "rng"


class Probe(ctypes.Structure):
    """Struct of the C environment g2048 as the test sees it, so that it can set any state."""

    _fields_ = (
        ("board", ctypes.c_ubyte * 16),
        *((name, ctypes.c_int) for name in STATE[:-1]),
        ("rng", ctypes.c_uint),
        *((name, ctypes.c_float) for name in ("ratio", "episode_return")),
        *((name, ctypes.c_float) for name in ("action", "reward", "terminal")),
        ("log", ctypes.c_float * (len(LOG) + 1)),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = tmp_path_factory.mktemp("probe") / "probe.c"
    source.write_text(PROBE)
    stepper = environments_folder() / "src"
    flags = ["-O2", "-std=gnu11", "-ffp-contract=off", "-Drand_r=puffer_rand_r", f"-I{FOLDER}"]
    sources = [source, stepper / "rand_r.c"]
    return ctypes.CDLL(str(compile_shared("probe", sources, flags, depends=[FOLDER / "g2048.h"])))


def check(library: ctypes.CDLL, game: Game, action: int) -> Probe:
    """Step a 2048 state in C and in the Python simulation, and compare all fields."""
    probe = Probe(
        board=(ctypes.c_ubyte * 16)(*game.board),
        ratio=game.ratio,
        episode_return=game.episode_return,
        action=action,
        **{name: getattr(game, name) for name in STATE},
    )
    context = f"{game.board} {action}"
    library.probe(ctypes.byref(probe))
    reward, terminal = game.step(action)
    assert list(probe.board) == game.board, context
    assert (probe.reward, probe.terminal) == (reward, terminal), context
    for name in (*STATE, "episode_return"):
        assert getattr(probe, name) == getattr(game, name), f"{name}: {context}"
    logs = game.logs or [[0.0] * len(LOG)]
    np.testing.assert_allclose(list(probe.log), [*logs[0], len(game.logs)], rtol=1e-6)
    return probe


def random_game(rng: np.random.Generator) -> Game:
    """Return a random 2048 state in which the game isn't over."""
    while True:
        least = rng.integers(1, 16)
        board = rng.integers(least, min(least + rng.choice([1, 2, 4, 15]), 16) + 1, 16)
        board = np.where(rng.random(16) < rng.choice([0, 0, 0.05, 0.3, 0.8]), 0, board).tolist()
        if any(board) and not is_over(board):
            break
    tick = int(rng.choice([0, 500, 998, 999, 1000, 5000]))
    return Game(
        rng=int(rng.integers(2**32)),
        ratio=float(rng.choice([0, 0.5, 1])),
        board=board,
        lifetime_max=int(rng.integers(0, 18)),
        tick=tick,
        max_ticks=max(1000, tick + 1),
        score=int(rng.choice([0, 3996, 4004, 40_000])),
        max_tile=max(board),
        scaffold=bool(rng.random() < 0.3),
        episode_return=f32(rng.normal()),
    )


def test_step_of_any_state_equals_the_oracle(library: ctypes.CDLL):
    rng = np.random.default_rng(0)
    overs = times = largest = 0
    for _ in range(6000):
        game = random_game(rng)
        tick = game.tick
        probe = check(library, game, int(rng.integers(4)))
        overs += probe.terminal == 1 and probe.reward <= -0.9
        times += probe.terminal == 1 and tick > 900
        largest += probe.reward > 1.1
    assert min(overs, times, largest) > 20, (overs, times, largest)


# ---- Parameters and pictures --------------------------------------------------------------------


def test_configuration_equals_upstreams():
    ours = load("g2048")
    upstreams = load(str(Path(__file__).parents[1] / "data" / "upstream_g2048.ini"))
    del upstreams.sweep["sweep.env.scaffolding_ratio"]["mean"]  # upstream does not read it
    upstreams.vec.seed = 0  # nor this
    for name in "beta2", "eps":  # nor these with Muon
        setattr(upstreams.train, name, getattr(ours.train, name))
    for section in "vec", "env", "policy", "train", "sweep":
        assert getattr(ours, section) == getattr(upstreams, section)
