#!/usr/bin/env python
"""Compare our Craftax-Classic with the original: python benchmarks/craftax_original.py [--help].

Needs a Python with the package `craftax` (1.6) and JAX on a CPU, but not puffer_mlx. The original
plays, and each of its random choices is recorded. Then envs/craftax_classic takes the same step
from the same state with the same choices. After each step the complete state, the reward, the
observation and the terminal are compared. Worlds are also generated from the same choices and
compared, and from separate random choices, where the frequencies of blocks are compared.

Half of the episodes begin as in the original. The others begin at a random position, in a world
with random blocks, and with a random inventory, hour, health, mobs, arrows and plants, so that
random play reaches all achievements and the edges of the world.

Prints the results as JSON. The exit code is 1 if a step differs. --record FILE writes some steps
for tests/environments/test_craftax_classic.py, which replays them without JAX.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

RULES = Path(__file__).resolve().parents[1] / "envs" / "craftax_classic"
SIDE = 64  # cells along an edge of the world
NUMBERS = 1345  # size of an observation
ACHIEVEMENTS = 22
ZOMBIES, COWS, SKELETONS, ARROWS, PLANTS = 3, 3, 2, 3, 10  # maximum numbers
LIGHT = NUMBERS - 2  # index of the light in an observation
LIGHT_BOUND = 1e-6
RESTART_INTERVAL = 50  # steps after which an episode with a random start is restarted
ITEMS = (
    *("wood", "stone", "coal", "iron", "diamond", "sapling", "wood_pickaxe", "stone_pickaxe"),
    *("iron_pickaxe", "wood_sword", "stone_sword", "iron_sword"),
)
BLOCKS = (
    *("invalid", "out of bounds", "grass", "water", "stone", "tree", "wood", "path", "coal"),
    *("iron", "diamond", "table", "furnace", "sand", "lava", "plant", "ripe plant"),
)

INT, FLOAT = np.int32, np.float32
_MOB = np.dtype([(name, INT) for name in ("row", "column", "health", "cooldown", "alive")])
_ARROW = np.dtype([(name, INT) for name in ("row", "column", "down", "right", "alive")])
_PLANT = np.dtype([(name, INT) for name in ("row", "column", "age", "grows")])
_COMPARED = [  # fields that the original's state also has
    *(("tick", INT), ("light", FLOAT), ("episode_return", FLOAT), ("unlocked", np.uint32)),
    *((name, INT) for name in ("row", "column", "facing", "health", "food", "drink", "energy")),
    *(("sleeping", INT), ("recovery", FLOAT), ("hunger", FLOAT), ("thirst", FLOAT)),
    *(("fatigue", FLOAT), ("inventory", INT, 12)),
    *(("zombies", _MOB, ZOMBIES), ("cows", _MOB, COWS), ("skeletons", _MOB, SKELETONS)),
    *(("arrows", _ARROW, ARROWS), ("plants", _PLANT, PLANTS), ("cells", np.uint8, SIDE * SIDE)),
]
STATE = np.dtype(  # CraftaxClassic of craftax_classic.h
    [("log", FLOAT, 5 + ACHIEVEMENTS + 1), ("rows", np.uint64, 4), ("agents", INT, 2), *_COMPARED],
    align=True,
)

_PROGRAM = """
static const int* current;
#define DRAW(env, choice) current[choice]
#include "craftax_classic.h"
const int sizes[] = {sizeof(CraftaxClassic), STEP_CHOICES, WORLD_CHOICES};
void play_all(CraftaxClassic* envs, int n, const int* choices, const int* actions, float* rewards,
              unsigned char* over, float* observations) {
    for (int i = 0; i < n; i++) {
        current = choices + (size_t)i * STEP_CHOICES;
        envs[i].observations = observations + (size_t)i * NUMBERS;
        rewards[i] = play(&envs[i], actions[i]);
        over[i] = is_over(&envs[i]);
        write_observations(&envs[i]);
        envs[i].observations = 0;
    }
}
void begin_all(CraftaxClassic* envs, int n, const int* choices) {
    float observation[NUMBERS];
    for (int i = 0; i < n; i++) {
        current = choices + (size_t)i * WORLD_CHOICES;
        envs[i].observations = observation;
        begin_episode(&envs[i]);
        envs[i].observations = 0;
    }
}
"""


class Rules:
    """The rules of envs/craftax_classic in C, with each random choice as an argument.

    Args:
        folder: Folder for the compiled library.
    """

    def __init__(self, folder: Path) -> None:
        source, library = folder / "rules.c", folder / "rules.so"
        source.write_text(_PROGRAM)
        flags = ["-O2", "-std=gnu11", "-shared", "-fPIC", f"-I{RULES}"]
        subprocess.run(["cc", *flags, str(source), "-o", str(library), "-lm"], check=True)
        self._library = ctypes.CDLL(str(library))
        sizes = (ctypes.c_int * 3).in_dll(self._library, "sizes")
        size, self.step_choices, self.world_choices = sizes
        if size != STATE.itemsize:
            raise ValueError(f"the struct has {size} bytes, STATE {STATE.itemsize}")

    def play(
        self, states: np.ndarray, choices: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take one step in n environments of craftax_classic. The states are changed in place.

        Args:
            states: States of the environments, (n,) STATE. Ended episodes aren't reset.
            choices: Random choices, (n, step_choices) int32.
            actions: Actions, (n,) int32.

        Returns:
            Rewards (n,) float32, ended episodes (n,) bool, and observations (n, 1345) float32.
        """
        n = len(states)
        rewards, over = np.empty(n, FLOAT), np.empty(n, bool)
        observations = np.empty((n, NUMBERS), FLOAT)
        _require(choices, (n, self.step_choices))
        _require(actions, (n,))
        arrays = (choices, actions, rewards, over, observations)
        self._library.play_all(_at(states), n, *(_at(array) for array in arrays))
        return rewards, over, observations

    def begin(self, choices: np.ndarray) -> np.ndarray:
        """Begin n episodes of craftax_classic. Returns their first states, (n,) STATE.

        Args:
            choices: Random choices, (n, world_choices) int32.
        """
        _require(choices, (len(choices), self.world_choices))
        states = np.zeros(len(choices), STATE)
        self._library.begin_all(_at(states), len(states), _at(choices))
        return states


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _require(array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype != INT or not array.flags.c_contiguous:
        raise ValueError(f"{array.dtype} {array.shape}, expected contiguous int32 {shape}")


def differences(ours: np.ndarray, theirs: np.ndarray) -> dict[str, np.ndarray]:
    """Compare n states of our craftax_classic with n states of the original, field by field.

    Returns:
        For each field of STATE, the states in which it differs, (n,) bool. The light may differ by
        LIGHT_BOUND.
    """
    different = {}
    for name, *_ in _COMPARED:
        a, b = ours[name], theirs[name]
        if name == "light":
            different[name] = np.abs(a - b) > LIGHT_BOUND
        elif name != "episode_return":
            different[name] = (a != b).reshape(len(ours), -1).any(1)
    return different


def digest(state: np.ndarray) -> int:
    """Return a checksum of one state of craftax_classic, without the light and the return.

    The light is a cosine, whose last bits depend on the library.
    """
    fields_as_bytes = (
        np.ascontiguousarray(state[name]).tobytes()
        for name, *_ in _COMPARED
        if name not in ("light", "episode_return")
    )
    return zlib.crc32(b"".join(fields_as_bytes))


# ---- The original --------------------------------------------------------------------------------


class RecordedChoices:
    """Record the random choices of a traced function of the original, in order.

    A uniform number is recorded as 31 random bits, a choice among n as its index.
    """

    def __init__(self, random: Any, jnp: Any) -> None:
        self.values: list[Any] = []
        self._uniform, self._choice, self._jnp = random.uniform, random.choice, jnp

    def uniform(self, key: Any, shape: tuple[int, ...] = (), **keywords: Any) -> Any:
        value = self._uniform(key, shape, **keywords)
        bits = (value * 2.0**31).astype(INT)  # a multiple of 2 ** -23
        self.values.append(bits.reshape(-1))
        return value

    def choice(
        self, key: Any, a: Any, shape: tuple[int, ...] = (), p: Any = None, **keywords: Any
    ) -> Any:
        jnp = self._jnp
        value = self._choice(key, a, shape, p=p, **keywords)
        if p is None:  # a direction: the index of its first row
            number = jnp.argmax((a == value).all(-1))
        elif len(a) == 2:
            number = value
        else:  # a cell: its index among the possible cells
            number = jnp.cumsum(p > 0)[value.reshape(())] - 1
        self.values.append(number.astype(INT).reshape(1))
        return value


@contextmanager
def _recording(jax: Any) -> Iterator[RecordedChoices]:
    """Record the random choices of functions that JAX traces in a ``with`` block.

    Scans are replaced by loops, so that choices inside of them can be recorded.
    """

    def loop(function: Callable, carry: Any, xs: Any) -> tuple[Any, Any]:
        outputs = []
        for i in range(len(jax.tree.leaves(xs)[0])):
            carry, output = function(carry, jax.tree.map(lambda leaf, i=i: leaf[i], xs))
            outputs.append(output)
        return carry, jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *outputs)

    recorded = RecordedChoices(jax.random, jax.numpy)
    with (
        mock.patch.object(jax.random, "uniform", recorded.uniform),
        mock.patch.object(jax.random, "choice", recorded.choice),
        mock.patch.object(jax.lax, "scan", loop),
    ):
        yield recorded


def _step_order() -> list[int]:
    """Return the order in which craftax draws the random choices of a step.

    For each of these choices, the list has its index in the enum of our C header.
    """
    zombie, cow, skeleton = 1, 1 + 3 * ZOMBIES, 1 + 3 * ZOMBIES + COWS
    order = [0]
    for i in range(ZOMBIES):
        order += [zombie + i, zombie + ZOMBIES + i, zombie + 2 * ZOMBIES + i]
    order += [cow + i for i in range(COWS)]
    for i in range(SKELETONS):
        order += [skeleton + i, skeleton + SKELETONS + i, skeleton + 2 * SKELETONS + i]
    return order + [len(order) + i for i in range(6)]


class Original:
    """The original environment of the package craftax, which also returns its random choices."""

    def __init__(self) -> None:
        import jax  # type: ignore
        import jax.numpy as jnp  # type: ignore
        from craftax.craftax_classic import game_logic, world_gen  # type: ignore
        from craftax.craftax_classic.envs.craftax_state import (  # type: ignore
            EnvParams,
            StaticEnvParams,
        )
        from craftax.craftax_classic.renderer import render_craftax_symbolic  # type: ignore

        self.jax, self._logic = jax, game_logic
        params, static = EnvParams(), StaticEnvParams()
        self._light = jax.jit(lambda ticks: game_logic.calculate_light_level(ticks, params))
        order = np.argsort(_step_order())

        def step(key: Any, state: Any, action: Any) -> Any:
            with _recording(jax) as recorded:
                after, reward = game_logic.craftax_step(key, state, action, params, static)
            choices = jnp.concatenate(recorded.values)[order]
            over = game_logic.is_game_over(after, params)
            return after, reward, over, render_craftax_symbolic(after), choices

        def begin(key: Any) -> Any:
            with _recording(jax) as recorded:
                state = world_gen.generate_world(key, params, static)
            water, mountain, path, coal, iron, diamond, tree, trees, cell = recorded.values
            choices = [water, mountain, path, tree, coal, iron, diamond, trees, cell]
            return state, jnp.concatenate(choices)

        self.step = jax.jit(jax.vmap(step))
        self._begin = jax.jit(begin)

    def begin(self, keys: Any) -> Any:
        """Begin n episodes of the original, one by one. Returns their states and random choices.

        Not with vmap: JAX 0.10.2 then generates different worlds from the ninth on.

        Args:
            keys: Random keys, (n, 2).
        """
        worlds = [self._begin(key) for key in keys]
        return self.jax.tree.map(lambda *leaves: self.jax.numpy.stack(leaves), *worlds)

    def keys(self, rng: np.random.Generator, n: int) -> Any:
        """Return n random keys, (n, 2), for ``step`` and ``begin``."""
        return self.jax.numpy.asarray(rng.integers(0, 2**32, (n, 2), dtype=np.uint32))

    def anywhere(self, states: Any, rng: np.random.Generator) -> Any:
        """Return n craftax states with random blocks, positions, inventories and mobs.

        Plants and times are random, too.

        Args:
            states: States (n, ...) from which the worlds are made.
            rng: Random number generator.
        """
        n, jnp = len(states.timestep), self.jax.numpy

        def integers(low: int, high: int, *shape: int) -> np.ndarray:
            return rng.integers(low, high, (n, *shape), dtype=INT)

        cells = np.array(states.map)
        strewn = rng.random(cells.shape) < rng.choice([0.02, 0.1, 0.3], (n, 1, 1))
        cells[strewn] = rng.integers(2, 17, strewn.sum())
        at = integers(0, SIDE, 2)
        edge = rng.random((n, 2)) < 0.1
        at[edge] = rng.choice([0, SIDE - 1], edge.sum())
        for i in range(n):
            cells[i, at[i, 0], at[i, 1]] = rng.choice([2, 7, 13])
            if rng.random() < 0.5:  # a workshop: table and furnace
                row = min(at[i, 0] + 1, SIDE - 1) if at[i, 0] == 0 else at[i, 0] - 1
                cells[i, row, max(at[i, 1] - 1, 0)] = 11
                cells[i, row, min(at[i, 1] + 1, SIDE - 1)] = 12
        mobs_at = np.zeros(cells.shape, bool)

        def mobs(count: int, template: Any, marked: bool = True) -> Any:
            near = np.clip(at[:, None] + integers(-8, 9, count, 2), 0, SIDE - 1)
            alive = (rng.random((n, count)) < 0.6) & (near != at[:, None]).any(-1)
            for i, j in zip(*np.nonzero(alive & marked), strict=True):
                mobs_at[i, near[i, j, 0], near[i, j, 1]] = True
            health = np.where(alive, integers(1, 6, count), integers(0, 3, count)).astype(INT)
            cooldown = integers(-2, 6, count)
            return template.replace(
                position=near.astype(INT), mask=alive, health=health, attack_cooldown=cooldown
            )

        grows = rng.random((n, PLANTS)) < 0.3
        plants = np.clip(at[:, None] + integers(-3, 4, PLANTS, 2), 0, SIDE - 1) * grows[..., None]
        age = np.where(grows, integers(560, 640, PLANTS), 0).astype(INT)
        for i, j in zip(*np.nonzero(grows), strict=True):
            if (plants[i, j] != at[i]).any():
                cells[i, plants[i, j, 0], plants[i, j, 1]] = 16 if age[i, j] >= 600 else 15
            else:
                grows[i, j] = False
        held = states.inventory.replace(
            **{name: (integers(0, 10) * (rng.random(n) < 0.5)).astype(INT) for name in ITEMS}
        )
        ticks = integers(0, 9999)
        directions = np.array([[0, -1], [0, 1], [-1, 0], [1, 0]], INT)
        halves = {  # counters, in halves
            name: (integers(2 * low, 2 * high + 1) / 2).astype(FLOAT)
            for name, low, high in (
                *(("player_recover", -15, 25), ("player_hunger", 0, 25)),
                *(("player_thirst", 0, 20), ("player_fatigue", -10, 30)),
            )
        }
        new_states = states.replace(
            map=cells,
            player_position=at,
            player_direction=integers(1, 5),
            player_health=integers(3, 10),
            **{f"player_{name}": integers(0, 10) for name in ("food", "drink", "energy")},
            **halves,
            is_sleeping=rng.random(n) < 0.2,
            inventory=held,
            zombies=mobs(ZOMBIES, states.zombies),
            cows=mobs(COWS, states.cows),
            skeletons=mobs(SKELETONS, states.skeletons),
            arrows=mobs(ARROWS, states.arrows, marked=False).replace(
                health=states.arrows.health, attack_cooldown=states.arrows.attack_cooldown
            ),
            arrow_directions=directions[integers(0, 4, ARROWS)],
            growing_plants_positions=plants.astype(INT),
            growing_plants_age=age * grows,
            growing_plants_mask=grows,
            mob_map=mobs_at,
            timestep=ticks,
            light_level=self._light(ticks),
        )
        return self.jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), new_states, states)

    def numpy(self, states: Any) -> np.ndarray:
        """Convert states of the original craftax, (n, ...), to states of our C code, (n,) STATE."""
        theirs = self.jax.tree.map(np.asarray, states)
        ours = np.zeros(len(theirs.timestep), STATE)
        ours["tick"], ours["light"] = theirs.timestep, theirs.light_level
        bits = theirs.achievements.astype(np.uint32) << np.arange(ACHIEVEMENTS, dtype=np.uint32)
        ours["unlocked"] = bits.sum(1)
        ours["row"], ours["column"] = theirs.player_position.T
        for name in ("health", "food", "drink", "energy", "hunger", "thirst", "fatigue"):
            ours[name] = getattr(theirs, f"player_{name}")
        ours["recovery"], ours["facing"] = theirs.player_recover, theirs.player_direction
        ours["sleeping"] = theirs.is_sleeping
        for i, name in enumerate(ITEMS):
            ours["inventory"][:, i] = getattr(theirs.inventory, name)
        for name in ("zombies", "cows", "skeletons", "arrows"):
            mobs, field = getattr(theirs, name), ours[name]
            field["row"], field["column"] = np.moveaxis(mobs.position, -1, 0)
            field["alive"] = mobs.mask
            if name == "arrows":
                field["down"], field["right"] = np.moveaxis(theirs.arrow_directions, -1, 0)
            else:
                field["health"], field["cooldown"] = mobs.health, mobs.attack_cooldown
        plants = ours["plants"]
        plants["row"], plants["column"] = np.moveaxis(theirs.growing_plants_positions, -1, 0)
        plants["age"], plants["grows"] = theirs.growing_plants_age, theirs.growing_plants_mask
        cells = theirs.map.astype(np.uint8) | theirs.mob_map.astype(np.uint8) << 7
        ours["cells"] = cells.reshape(len(ours), -1)
        return ours


# ---- Comparisons ---------------------------------------------------------------------------------


def mixed(original: Original, worlds: Any, rng: np.random.Generator, n: int) -> Any:
    """Return n craftax states to start from: random worlds alternate with random states."""
    which = rng.integers(0, len(worlds.timestep), n)
    plain = original.jax.tree.map(lambda leaf: leaf[which], worlds)
    return replaced(original, plain, original.anywhere(plain, rng), np.arange(n) % 2 == 1)


def replaced(original: Original, states: Any, replacements: Any, which: np.ndarray) -> Any:
    """Return a tree of states (n, ...) with those states replaced where `which` (n,) is true."""

    def pick(a: Any, b: Any) -> Any:
        return original.jax.numpy.where(which.reshape((-1,) + (1,) * (a.ndim - 1)), b, a)

    return original.jax.tree.map(pick, states, replacements)


def draw_actions(rng: np.random.Generator, previous: np.ndarray) -> np.ndarray:
    """Return random actions for craftax: a third are DO, and some repeat the last action.

    Such actions make more progress than uniformly random ones.
    """
    n = len(previous)
    actions = np.where(rng.random(n) < 0.33, 5, rng.integers(0, 17, n))
    return np.where(rng.random(n) < 0.3, previous, actions).astype(INT)


def compare_steps(
    original: Original, rules: Rules, n: int, steps: int, seed: int, record: list | None
) -> dict[str, Any]:
    """Compare steps of our craftax_classic with steps of the original in the same states.

    Plays n episodes at a time. Returns the numbers of differences and other statistics.
    """
    rng = np.random.default_rng(seed)
    worlds, _ = original.begin(original.keys(rng, 4 * n))
    theirs = mixed(original, worlds, rng, n)
    ours = original.numpy(theirs)
    counts: dict[str, int] = {}
    unlocked, endings, total = np.zeros(ACHIEVEMENTS, int), 0, 0
    light, reward_bits = 0.0, 0
    actions = np.zeros(n, INT)
    first = ours.copy()
    for step in range(steps):
        actions = draw_actions(rng, actions)
        unlocked_before = ours["unlocked"].copy()
        theirs, reward, over, observation, choices = original.step(
            original.keys(rng, n), theirs, actions
        )
        expected, choices = original.numpy(theirs), np.array(choices)
        reward, over, observation = (np.array(x) for x in (reward, over, observation))
        rewards, ended, observations = rules.play(ours, choices, actions)
        different: dict[str, Any] = dict(differences(ours, expected))
        different["reward"] = np.abs(rewards - reward) > 1e-6
        reward_bits += int((rewards != reward).sum())
        different["terminal"] = np.not_equal(ended, over)
        observation_difference = np.abs(observations - observation)
        light = max(light, float(observation_difference[:, LIGHT].max()))
        observation_difference[:, LIGHT] = 0
        different["observation"] = (observation_difference > 0).any(1)
        for name, which in different.items():
            counts[name] = counts.get(name, 0) + int(which.sum())
        gained = ours["unlocked"] & ~unlocked_before
        bits = gained[:, None] >> np.arange(ACHIEVEMENTS, dtype=np.uint32) & 1
        unlocked += bits.sum(0).astype(int)
        total, endings = total + n, endings + int(over.sum())
        if record is not None:
            sums = [digest(state) for state in expected]
            observation_sums = [zlib.crc32(np.delete(row, LIGHT).tobytes()) for row in observation]
            record.append((choices, actions, reward, over.copy(), sums, observation_sums))
        any_difference = np.logical_or.reduce(list(different.values()))
        ours[any_difference] = expected[any_difference]
        over |= (np.arange(n) % 2 == 1) & (step % RESTART_INTERVAL == RESTART_INTERVAL - 1)
        if over.any():
            theirs = replaced(original, theirs, mixed(original, worlds, rng, n), over)
            ours[over] = original.numpy(theirs)[over]
            if record is not None:
                record.append((step, np.nonzero(over)[0], ours[over].copy()))
    return {
        "transitions": total,
        "episodes that ended": endings,
        "transitions that differ, by field": {k: v for k, v in counts.items() if v},
        "rewards whose last bit differs": reward_bits,
        "largest difference of the light": light,
        "achievements unlocked": unlocked.tolist(),
        "first": first,
    }


def compare_worlds(original: Original, rules: Rules, n: int, seed: int) -> dict[str, Any]:
    """Compare n worlds that our craftax_classic and the original craftax generate.

    One set of our worlds uses the original's random choices, the other one our own choices.
    """
    rng = np.random.default_rng(seed)
    states, choices = original.begin(original.keys(rng, n))
    theirs, ours = original.numpy(states), rules.begin(np.array(choices))
    own_choices = rng.integers(0, 2**31, (n, rules.world_choices)).astype(INT)
    own_worlds = rules.begin(own_choices)
    cells = int((theirs["cells"] != ours["cells"]).sum())
    rest = {name: which for name, which in differences(ours, theirs).items() if name != "cells"}
    shares = {}
    for block, name in enumerate(BLOCKS):
        per_world = [(s["cells"] == block).mean(1) for s in (theirs, own_worlds)]
        if max(fraction.max() for fraction in per_world) > 0:
            a, b = (float(fraction.mean()) for fraction in per_world)
            error = float(np.sqrt(sum(fraction.var() / n for fraction in per_world)))
            shares[name] = {"original": a, "ours": b, "standard errors apart": (b - a) / error}
    return {
        "worlds": n,
        "cells that differ, from the same choices": cells,
        "share of all cells": cells / (n * SIDE * SIDE),
        "other fields that differ": {k: int(v.sum()) for k, v in rest.items() if v.any()},
        "share of cells, from separate random choices": shares,
    }


def write_record(path: Path, original: Original, first: np.ndarray, record: list) -> None:
    """Write the data for a test of craftax_classic: choices, actions, checksums and a world."""
    world, world_choices = original.begin(original.keys(np.random.default_rng(0), 1))
    steps = [item for item in record if len(item) == 6]
    restarts = [item for item in record if len(item) == 3]
    restarted = np.concatenate([np.zeros(0, STATE), *(item[2] for item in restarts)])
    stacked = [np.array(column) for column in zip(*steps, strict=True)]
    names = ("choices", "actions", "rewards", "terminals", "states", "observations")
    arrays = dict(zip(names, stacked, strict=True))
    arrays |= {name: arrays[name].astype(np.uint32) for name in ("states", "observations")}
    np.savez_compressed(
        path,
        world=original.numpy(world).view(np.uint8),
        world_choices=np.array(world_choices),
        first=first.view(np.uint8),
        begun=restarted.view(np.uint8),
        begun_step=np.array([step for step, which, _ in restarts for _ in which], INT),
        begun_slot=np.array([slot for _, which, _ in restarts for slot in which], INT),
        **arrays,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transitions", type=int, default=100_000)
    parser.add_argument("--episodes", type=int, default=64, help="episodes played in parallel")
    parser.add_argument("--worlds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, help="write the steps for the test")
    parser.add_argument("--json", type=Path, help="write the results to a file")
    options = parser.parse_args(argv)
    n = options.episodes
    with tempfile.TemporaryDirectory() as folder:
        rules, original = Rules(Path(folder)), Original()
        record: list | None = [] if options.record else None
        began = time.perf_counter()
        steps = compare_steps(
            original, rules, n, -(-options.transitions // n), options.seed, record
        )
        first = steps.pop("first")
        if record is not None:
            write_record(options.record, original, first, record)
        results = {"steps": steps | {"seconds": round(time.perf_counter() - began, 1)}}
        if options.worlds:
            results["worlds"] = compare_worlds(original, rules, options.worlds, options.seed)
    text = json.dumps(results, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 1 if steps["transitions that differ, by field"] else 0


if __name__ == "__main__":
    sys.exit(main())
