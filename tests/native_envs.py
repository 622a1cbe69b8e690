"""Native environments for tests: folders, parameters and recordings."""

import platform
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept import edit, kept_copy

from puffer_mlx.config import load
from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.sources import environments_folder
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import allocate_rows, random_actions

OURS = Path(__file__).parent / "envs"  # environments that only tests use
RELAY = OURS / "relay"
DRIFT = {"native": str(OURS / "drift"), "python": f"{OURS / 'python' / 'drift.py'}:Drift"}
OWN = {"relay": {"length": 7, "sleep_ms": 0}}  # their [env]; they have no configs/NAME.ini
SHIPPED = sorted(path.parent.name for path in environments_folder().glob("*/binding.c"))
NAMES = [*SHIPPED, *OWN]
UPSTREAM = ("convoy", "metro", "orbit")  # folders as PufferLib's repository has them
UPSTREAM_ROOT = OURS / "upstream"
UPSTREAM_5 = ("glider", "locks", "peloton")  # the same in 5.0's form
UPSTREAM_5_ROOT = OURS / "upstream_5"
AGENTS_OF = {"connect4_two": 2, "rock_paper_scissors": 2, "soccer": 4, "target": 8}  # others 1
GROUP = 24  # agents, which environments of 1, of AGENTS_OF and of 1, 2, 3, 1, 2, ... (relay) fill
# True if sinf and cosf are the same as in the recordings.
SAME_LIBM = sys.platform == "linux" and platform.machine() == "x86_64"


def folder_of(name: str) -> Path:
    """Return the folder of a C environment by name, of the tests or of the package."""
    if name in UPSTREAM:
        return UPSTREAM_ROOT / "ocean" / name
    if name in UPSTREAM_5:
        return UPSTREAM_5_ROOT / "ocean" / name
    return OURS / name if name in OWN else find_environment(name)


def edited(name: str, *edits: tuple[str, str]) -> Path:
    """Return a read-only copy of a PufferLib 5.0 environment's folder with an edited header."""

    def change(root: Path) -> None:
        for old, new in edits:
            edit(root / "ocean" / name / f"{name}.h", old, new)

    return kept_copy(UPSTREAM_5_ROOT, change) / "ocean" / name


def parameters(name: str) -> dict[str, Any]:
    """Return a copy of section [env] of a C environment, from its file or OWN."""
    if name in UPSTREAM + UPSTREAM_5:
        return dict(load(str(folder_of(name))).env)
    return dict(OWN[name] if name in OWN else load(name).env)


BREAKOUT = parameters("breakout")


def make(name: str, **keywords: Any) -> NativeVec:
    """Make vectorized C environments by name, of the tests or of the package."""
    return NativeVec(folder_of(name), **{"env": parameters(name), **keywords})


def assert_match_log(log: dict[str, float], results: np.ndarray, lengths: np.ndarray) -> None:
    """Assert that a two-player environment's log fits its game results.

    Results are positive if the first player won.
    """
    won = np.sign(results)
    assert log["n"] == len(results)
    assert log["score"] == log["episode_return"] == pytest.approx(results.mean())
    assert log["slot_0_score"] == log["perf"] == pytest.approx((1 + won.mean()) / 2)
    assert log["slot_1_score"] == pytest.approx((1 - won.mean()) / 2)
    assert log["draw_rate"] == pytest.approx((results == 0).mean())
    assert log["episode_length"] == pytest.approx(lengths.mean())


def part(rows: Rows, first: int, end: int) -> Rows:
    """Return the rows ``first`` to ``end`` - 1 of each array."""
    masks = None if rows.masks is None else rows.masks[first:end]
    return Rows(
        rows.observations[first:end], rows.rewards[first:end], rows.terminals[first:end], masks
    )


class Stepper:
    """Steps all groups of C environments together, with one set of rows for all agents."""

    def __init__(self, vec: NativeVec, reset: bool = True) -> None:
        """Allocate the rows of all agents, and reset the environments unless told otherwise."""
        self.vec = vec
        self.n = vec.num_agents // vec.num_groups
        self.rows = allocate_rows(vec, vec.num_agents)
        if reset:
            vec.reset(self.rows)

    def group(self, group: int) -> Rows:
        """Return the rows of a group's agents."""
        return part(self.rows, group * self.n, (group + 1) * self.n)

    def step(self, actions: Any) -> Rows:
        """Step all environments with actions (N, heads), (N,) or one number for all."""
        actions = np.asarray(actions, np.float32)
        if actions.ndim < 2:
            shape = self.vec.num_agents, self.vec.spec.action.heads
            actions = np.ascontiguousarray(np.broadcast_to(actions.reshape(-1, 1), shape))
        for group in range(self.vec.num_groups):
            mine = actions[group * self.n : (group + 1) * self.n]
            self.vec.send(group, mine, self.group(group))
        for group in range(self.vec.num_groups):
            self.vec.wait(group)
        return self.rows


def rand_r(state: int) -> tuple[int, int]:
    """Return the next state of POSIX's random generator ``rand_r``, and its random number."""
    value = 0
    for bits in 11, 10, 10:
        state = (state * 1103515245 + 12345) % 2**32
        value = value << bits | (state >> 16) % 2**bits
    return state, value


def legal_actions(stepper: Stepper, rng: np.random.Generator) -> np.ndarray:
    """Return random actions for all agents that their masks allow."""
    vec, masks = stepper.vec, stepper.rows.masks
    actions = random_actions(vec, vec.num_agents, rng)
    if masks is not None:
        ends = np.cumsum(vec.spec.action.sizes)
        for head, mask in enumerate(np.split(masks != 0, ends[:-1], axis=1)):
            actions[:, head] = np.where(mask, rng.random(mask.shape), -1).argmax(1)
    return actions


DRAWS = {  # what draws the target: upstream's own, the C library's, raylib's
    "rand_r(&env->rng)": "",
    "rand()": "",
    "GetRandomValue(0, 120)": '#include "raylib.h"\n',
}


def squared(folder: Path, draw: str = "rand_r(&env->rng)") -> Path:
    """Copy the environment squared into a folder, with another random number generator."""
    shutil.copytree(find_environment("squared"), folder)
    edit(folder / "squared.h", "rand_r(&env->rng)", draw)
    edit(folder / "squared.h", "#include <stdbool.h>", DRAWS.get(draw, "") + "#include <stdbool.h>")
    for word in "DOWN", "UP", "LEFT", "RIGHT", "STAY":
        text = (folder / "squared.h").read_text()
        (folder / "squared.h").write_text(re.sub(rf"\b{word}\b", f"GO_{word}", text))
    return folder


def bot_of(name: str, word: str = "choose") -> Any:
    """Return a function or a value from an environment's scripted player, bot.py."""
    return runpy.run_path(str(folder_of(name) / "bot.py"))[word]


def draw_of(name: str) -> Any:
    """Return the function of an environment's draw.py that draws an observation."""
    return runpy.run_path(str(folder_of(name) / "draw.py"))["draw"]


def plays_the_recording(path: Path, name: str, tolerance: float = 0.0) -> None:
    """Assert that a C environment repeats upstream's recording exactly.

    Compares observations, rewards, terminals and the log.

    Args:
        path: Path of the recording.
        name: Name of the environment.
        tolerance: Tolerance for observations.
    """
    recorded = np.load(path, allow_pickle=False)
    env = dict(zip(recorded["env_kwargs_keys"], recorded["env_kwargs_vals"], strict=True))
    with make(name, total_agents=16, num_buffers=2, num_threads=2, env=env) as vec:
        stepper = Stepper(vec)
        np.testing.assert_array_equal(stepper.rows.observations, recorded["obs"][0])
        for step, actions in enumerate(recorded["actions"]):
            rows, expected = stepper.step(actions), recorded["obs"][step + 1]
            np.testing.assert_allclose(rows.observations, expected, rtol=0, atol=tolerance)
            np.testing.assert_array_equal(rows.rewards, recorded["rewards"][step])
            np.testing.assert_array_equal(rows.terminals, recorded["terminals"][step])
        log = vec.log()
    assert list(log) == recorded["log_keys"].tolist()
    np.testing.assert_array_equal(list(log.values()), recorded["log_vals"])  # means as float32
