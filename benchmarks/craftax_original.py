#!/usr/bin/env python
"""Craftax-Classic beside the original: python benchmarks/craftax_original.py [--help].

Needs a Python with the package `craftax` (1.6) and JAX on a CPU, and doesn't need puffer_mlx. The
original plays, and each of its random choices is recorded. Then envs/craftax_classic makes the same
step from the same state with the same choices. After each step the complete state, the reward, the
observation and the terminal are compared. Worlds are also made from the same choices, and from
separate random choices, whose blocks are counted.

Half of the episodes begin as the original's do. The others begin anywhere in a world strewn with
every block, with a random inventory, hour, health, mobs, arrows and plants, so that all
achievements and the world's edges come up in random play.

Prints a line for each comparison; ends with 1 if a step differs. --record FILE writes a part of it
for tests/environments/test_craftax_classic.py, which plays it without JAX.
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
SIDE, NUMBERS, ACHIEVEMENTS = 64, 1345, 22
ZOMBIES, COWS, SKELETONS, ARROWS, PLANTS = 3, 3, 2, 3, 10
LIGHT = NUMBERS - 2  # of an observation: a cosine, whose last bits differ between libraries
LIGHT_BOUND = 1e-6
ANEW = 50  # steps after which an episode that began anywhere begins anew
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
_COMPARED = [  # what the original's state holds, too
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
static const int* drawn;
#define DRAW(env, choice) drawn[choice]
#include "craftax_classic.h"
const int sizes[] = {sizeof(CraftaxClassic), STEP_CHOICES, WORLD_CHOICES};
void play_all(CraftaxClassic* envs, int n, const int* choices, const int* actions, float* rewards,
              unsigned char* over, float* observations) {
    for (int i = 0; i < n; i++) {
        drawn = choices + (size_t)i * STEP_CHOICES;
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
        drawn = choices + (size_t)i * WORLD_CHOICES;
        envs[i].observations = observation;
        begin_episode(&envs[i]);
        envs[i].observations = 0;
    }
}
"""


class Rules:
    """The rules of envs/craftax_classic, with each random choice as an argument.

    Args:
        folder: for what is compiled.
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
        """Step states (n,) of STATE in place.

        Args:
            states: they become the next ones, whether an episode ended or not.
            choices: (n, step_choices) int32.
            actions: (n,) int32.

        Returns:
            Rewards (n,) float32, which episodes are over (n,) bool, observations (n, 1345) float32.
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
        """First states (n,) from choices (n, world_choices) int32."""
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
    """Fields of STATE (n,) -> in which of n states it differs, (n,) bool. Light: LIGHT_BOUND."""
    different = {}
    for name, *_ in _COMPARED:
        a, b = ours[name], theirs[name]
        if name == "light":
            different[name] = np.abs(a - b) > LIGHT_BOUND
        elif name != "episode_return":
            different[name] = (a != b).reshape(len(ours), -1).any(1)
    return different


def digest(state: np.ndarray) -> int:
    """A checksum of what one state's next steps depend on, but for the light, which is a cosine."""
    parts = (
        np.ascontiguousarray(state[name]).tobytes()
        for name, *_ in _COMPARED
        if name not in ("light", "episode_return")
    )
    return zlib.crc32(b"".join(parts))


# ---- The original --------------------------------------------------------------------------------


class Drawn:
    """Draws of a traced function of the original, in order, as 31 random bits or a number."""

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
        if p is None:  # directions: which row, the first of equal ones
            number = jnp.argmax((a == value).all(-1))
        elif len(a) == 2:
            number = value
        else:  # cells: the how manieth possible one
            number = jnp.cumsum(p > 0)[value.reshape(())] - 1
        self.values.append(number.astype(INT).reshape(1))
        return value


@contextmanager
def _written_down(jax: Any) -> Iterator[Drawn]:
    """While something is traced: scans are loops, so that draws inside of them are outputs, too."""

    def loop(function: Callable, carry: Any, xs: Any) -> tuple[Any, Any]:
        outputs = []
        for i in range(len(jax.tree.leaves(xs)[0])):
            carry, output = function(carry, jax.tree.map(lambda leaf, i=i: leaf[i], xs))
            outputs.append(output)
        return carry, jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *outputs)

    drawn = Drawn(jax.random, jax.numpy)
    with (
        mock.patch.object(jax.random, "uniform", drawn.uniform),
        mock.patch.object(jax.random, "choice", drawn.choice),
        mock.patch.object(jax.lax, "scan", loop),
    ):
        yield drawn


def _step_order() -> list[int]:
    """Return our index of each draw of the original's step, in order: the enum of the header."""
    way, cow, skeleton = 1, 1 + 3 * ZOMBIES, 1 + 3 * ZOMBIES + COWS
    order = [0]
    for i in range(ZOMBIES):
        order += [way + i, way + ZOMBIES + i, way + 2 * ZOMBIES + i]
    order += [cow + i for i in range(COWS)]
    for i in range(SKELETONS):
        order += [skeleton + i, skeleton + SKELETONS + i, skeleton + 2 * SKELETONS + i]
    return order + [len(order) + i for i in range(6)]


class Original:
    """The package's environment, n at a time, with what it draws."""

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
            with _written_down(jax) as drawn:
                after, reward = game_logic.craftax_step(key, state, action, params, static)
            choices = jnp.concatenate(drawn.values)[order]
            over = game_logic.is_game_over(after, params)
            return after, reward, over, render_craftax_symbolic(after), choices

        def begin(key: Any) -> Any:
            with _written_down(jax) as drawn:
                state = world_gen.generate_world(key, params, static)
            water, mountain, path, coal, iron, diamond, tree, trees, cell = drawn.values
            parts = [water, mountain, path, tree, coal, iron, diamond, trees, cell]
            return state, jnp.concatenate(parts)

        self.step = jax.jit(jax.vmap(step))
        self._begin = jax.jit(begin)

    def begin(self, keys: Any) -> Any:
        """First states of keys (n, 2), with what was drawn for them, one after the other.

        Under vmap JAX 0.10.2 makes other worlds from the ninth on than alone and without jit.
        """
        worlds = [self._begin(key) for key in keys]
        return self.jax.tree.map(lambda *leaves: self.jax.numpy.stack(leaves), *worlds)

    def keys(self, rng: np.random.Generator, n: int) -> Any:
        """Keys (n, 2) for step and begin."""
        return self.jax.numpy.asarray(rng.integers(0, 2**32, (n, 2), dtype=np.uint32))

    def anywhere(self, states: Any, rng: np.random.Generator) -> Any:
        """States (n, ...) like these in a world strewn with everything, somewhere, sometime."""
        n, jnp = len(states.timestep), self.jax.numpy

        def numbers(low: int, high: int, *shape: int) -> np.ndarray:
            return rng.integers(low, high, (n, *shape), dtype=INT)

        cells = np.array(states.map)
        strewn = rng.random(cells.shape) < rng.choice([0.02, 0.1, 0.3], (n, 1, 1))
        cells[strewn] = rng.integers(2, 17, strewn.sum())
        at = numbers(0, SIDE, 2)
        edge = rng.random((n, 2)) < 0.1
        at[edge] = rng.choice([0, SIDE - 1], edge.sum())
        for i in range(n):
            cells[i, at[i, 0], at[i, 1]] = rng.choice([2, 7, 13])
            if rng.random() < 0.5:  # a workshop: table and furnace
                row = min(at[i, 0] + 1, SIDE - 1) if at[i, 0] == 0 else at[i, 0] - 1
                cells[i, row, max(at[i, 1] - 1, 0)] = 11
                cells[i, row, min(at[i, 1] + 1, SIDE - 1)] = 12
        mobs_at = np.zeros(cells.shape, bool)

        def mobs(count: int, like: Any, marked: bool = True) -> Any:
            near = np.clip(at[:, None] + numbers(-8, 9, count, 2), 0, SIDE - 1)
            alive = (rng.random((n, count)) < 0.6) & (near != at[:, None]).any(-1)
            for i, j in zip(*np.nonzero(alive & marked), strict=True):
                mobs_at[i, near[i, j, 0], near[i, j, 1]] = True
            health = np.where(alive, numbers(1, 6, count), numbers(0, 3, count)).astype(INT)
            cooldown = numbers(-2, 6, count)
            return like.replace(
                position=near.astype(INT), mask=alive, health=health, attack_cooldown=cooldown
            )

        grows = rng.random((n, PLANTS)) < 0.3
        plants = np.clip(at[:, None] + numbers(-3, 4, PLANTS, 2), 0, SIDE - 1) * grows[..., None]
        age = np.where(grows, numbers(560, 640, PLANTS), 0).astype(INT)
        for i, j in zip(*np.nonzero(grows), strict=True):
            if (plants[i, j] != at[i]).any():
                cells[i, plants[i, j, 0], plants[i, j, 1]] = 16 if age[i, j] >= 600 else 15
            else:
                grows[i, j] = False
        held = states.inventory.replace(
            **{name: (numbers(0, 10) * (rng.random(n) < 0.5)).astype(INT) for name in ITEMS}
        )
        ticks = numbers(0, 9999)
        ways = np.array([[0, -1], [0, 1], [-1, 0], [1, 0]], INT)
        halves = {  # counters, in halves
            name: (numbers(2 * low, 2 * high + 1) / 2).astype(FLOAT)
            for name, low, high in (
                *(("player_recover", -15, 25), ("player_hunger", 0, 25)),
                *(("player_thirst", 0, 20), ("player_fatigue", -10, 30)),
            )
        }
        changed = states.replace(
            map=cells,
            player_position=at,
            player_direction=numbers(1, 5),
            player_health=numbers(3, 10),
            **{f"player_{name}": numbers(0, 10) for name in ("food", "drink", "energy")},
            **halves,
            is_sleeping=rng.random(n) < 0.2,
            inventory=held,
            zombies=mobs(ZOMBIES, states.zombies),
            cows=mobs(COWS, states.cows),
            skeletons=mobs(SKELETONS, states.skeletons),
            arrows=mobs(ARROWS, states.arrows, marked=False).replace(
                health=states.arrows.health, attack_cooldown=states.arrows.attack_cooldown
            ),
            arrow_directions=ways[numbers(0, 4, ARROWS)],
            growing_plants_positions=plants.astype(INT),
            growing_plants_age=age * grows,
            growing_plants_mask=grows,
            mob_map=mobs_at,
            timestep=ticks,
            light_level=self._light(ticks),
        )
        return self.jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), changed, states)

    def numpy(self, states: Any) -> np.ndarray:
        """Its states (n, ...) as (n,) of STATE."""
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
    """First states (n, ...): even ones are some of `worlds`, odd ones anywhere in them."""
    which = rng.integers(0, len(worlds.timestep), n)
    plain = original.jax.tree.map(lambda leaf: leaf[which], worlds)
    return replaced(original, plain, original.anywhere(plain, rng), np.arange(n) % 2 == 1)


def replaced(original: Original, states: Any, others: Any, which: np.ndarray) -> Any:
    """States (n, ...), but others where `which` (n,) is true."""

    def pick(a: Any, b: Any) -> Any:
        return original.jax.numpy.where(which.reshape((-1,) + (1,) * (a.ndim - 1)), b, a)

    return original.jax.tree.map(pick, states, others)


def draw_actions(rng: np.random.Generator, before: np.ndarray) -> np.ndarray:
    """Random ones, a third of them DO, some the last again, so that things get done."""
    n = len(before)
    drawn = np.where(rng.random(n) < 0.33, 5, rng.integers(0, 17, n))
    return np.where(rng.random(n) < 0.3, before, drawn).astype(INT)


def compare_steps(
    original: Original, rules: Rules, n: int, steps: int, seed: int, record: list | None
) -> dict[str, Any]:
    """Play n episodes at a time for a number of steps, and count the differences."""
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
        before = ours["unlocked"].copy()
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
        apart = np.abs(observations - observation)
        light = max(light, float(apart[:, LIGHT].max()))
        apart[:, LIGHT] = 0
        different["observation"] = (apart > 0).any(1)
        for name, which in different.items():
            counts[name] = counts.get(name, 0) + int(which.sum())
        gained = ours["unlocked"] & ~before
        bits = gained[:, None] >> np.arange(ACHIEVEMENTS, dtype=np.uint32) & 1
        unlocked += bits.sum(0).astype(int)
        total, endings = total + n, endings + int(over.sum())
        if record is not None:
            sums = [digest(state) for state in expected]
            seen = [zlib.crc32(np.delete(row, LIGHT).tobytes()) for row in observation]
            record.append((choices, actions, reward, over.copy(), sums, seen))
        wrong = np.logical_or.reduce(list(different.values()))
        ours[wrong] = expected[wrong]
        over |= (np.arange(n) % 2 == 1) & (step % ANEW == ANEW - 1)
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
    """Worlds from the original's choices, and as many from ours."""
    rng = np.random.default_rng(seed)
    states, choices = original.begin(original.keys(rng, n))
    theirs, ours = original.numpy(states), rules.begin(np.array(choices))
    own = rng.integers(0, 2**31, (n, rules.world_choices)).astype(INT)
    drawn = rules.begin(own)
    cells = int((theirs["cells"] != ours["cells"]).sum())
    rest = {name: which for name, which in differences(ours, theirs).items() if name != "cells"}
    shares = {}
    for block, name in enumerate(BLOCKS):
        per_world = [(s["cells"] == block).mean(1) for s in (theirs, drawn)]
        if max(part.max() for part in per_world) > 0:
            a, b = (float(part.mean()) for part in per_world)
            error = float(np.sqrt(sum(part.var() / n for part in per_world)))
            shares[name] = {"original": a, "ours": b, "standard errors apart": (b - a) / error}
    return {
        "worlds": n,
        "cells that differ, of the same choices": cells,
        "share of all cells": cells / (n * SIDE * SIDE),
        "other fields that differ": {k: int(v.sum()) for k, v in rest.items() if v.any()},
        "share of cells, of choices of each one's own": shares,
    }


def write_record(path: Path, original: Original, first: np.ndarray, record: list) -> None:
    """Write the test's record: choices, actions, checksums of the results, and a world."""
    world, world_choices = original.begin(original.keys(np.random.default_rng(0), 1))
    steps = [item for item in record if len(item) == 6]
    begun = [item for item in record if len(item) == 3]
    stacked = [np.array(part) for part in zip(*steps, strict=True)]
    names = ("choices", "actions", "rewards", "terminals", "states", "observations")
    arrays = dict(zip(names, stacked, strict=True))
    arrays |= {name: arrays[name].astype(np.uint32) for name in ("states", "observations")}
    np.savez_compressed(
        path,
        world=original.numpy(world).view(np.uint8),
        world_choices=np.array(world_choices),
        first=first.view(np.uint8),
        begun=np.concatenate([np.zeros(0, STATE), *(item[2] for item in begun)]).view(np.uint8),
        begun_step=np.array([step for step, which, _ in begun for _ in which], INT),
        begun_slot=np.array([slot for _, which, _ in begun for slot in which], INT),
        **arrays,
    )


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transitions", type=int, default=100_000)
    parser.add_argument("--episodes", type=int, default=64, help="played at the same time")
    parser.add_argument("--worlds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, help="write what is played for the test")
    parser.add_argument("--json", type=Path, help="write the numbers")
    options = parser.parse_args(words)
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
