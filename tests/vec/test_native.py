"""The contract of vec/base.py over native environments, and errors of their code."""

import gc
import os
import shutil
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from kept import edit, kept_copy
from native_envs import (
    BREAKOUT,
    GROUP,
    Stepper,
    folder_of,
    make,
    parameters,
)
from stepping import address_of, alike, played, same, started, times_of, whole_rollout

from puffer_mlx.config import memory_needs
from puffer_mlx.errors import UserError
from puffer_mlx.vec import rollout_loop
from puffer_mlx.vec.native.compiling import compile_environment
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import random_actions

# ---- The contract -------------------------------------------------------------------------------


# The last one draws from the C library's generator.
@pytest.mark.parametrize("name", ["relay", "breakout", "craftax_classic", "soccer", "convoy"])
def test_threads_and_groups_do_not_change_rows(name: str):
    histories, logs = [], []
    for threads, groups in (1, 1), (3, 8), (64, 2):
        counts = {"num_threads": threads, "num_buffers": groups}
        with make(name, total_agents=8 * GROUP, **counts) as vec:
            histories.append(played(vec, 200))
            logs.append(vec.log())
            assert (vec.spec.name, vec.unused) == (name, [])
    assert alike(histories[0], histories[1]) and alike(histories[0], histories[2])
    assert logs[0] == logs[1] == logs[2] and logs[0]["n"] > 20


def test_whole_rollout_has_each_step_of_each_part_in_order():
    with make("relay", total_agents=8 * GROUP, num_buffers=2, num_threads=3) as vec:
        calls, collected = whole_rollout(vec, None, 30, seed=4)
    parts = {(first, count) for _, first, count in calls}
    for part in parts:
        assert [t for t, *of in calls if tuple(of) == part] == list(range(30))
    assert sum(count for _, count in parts) == 8 * GROUP and len(parts) >= 3
    assert {first for _, first, _, _ in collected.spans} == {first for first, _ in parts}
    assert all(begin < end for _, _, begin, end in collected.spans)


def test_rollout_of_the_loop_in_python_has_threads_that_act_for_parts():
    """The loop of environments in Python; of 160 agents, the last part is smaller than 64."""
    counts = {"total_agents": 320, "num_buffers": 2}
    with make("connect4", **counts) as vec, make("connect4", **counts) as twin:
        vec.collect = partial(rollout_loop.collect, vec, threads=3)  # type: ignore
        calls, _ = whole_rollout(vec, twin, 9, seed=4)
    parts = {(first, count) for _, first, count in calls}
    assert parts == {(start + k, min(64, 160 - k)) for start in (0, 160) for k in (0, 64, 128)}


def test_steps_and_rollouts_are_refused_while_a_group_steps():
    env = {"length": 7, "sleep_ms": 50}
    act = address_of(lambda *_: pytest.fail("acted"))
    with make("relay", total_agents=12, num_buffers=2, env=env) as vec:
        rows, actions = times_of(vec, 2), np.zeros((2, 12, 2), np.float32)
        stepper = Stepper(vec)
        both = vec.prepare(range(2), actions[0], stepper.rows)
        vec.send(1, actions[0, :6], stepper.group(1))
        with pytest.raises(RuntimeError, match="group 1 is stepping already"):
            vec.send(1, actions[0, :6], stepper.group(1))
        with pytest.raises(RuntimeError, match="stepping already"):
            vec.collect(2, act, actions, rows)
        with pytest.raises(RuntimeError, match=r"one of groups \[0, 1\] is stepping already"):
            both.send()
        vec.wait(1)
        stepper.step(actions[0])  # group 0 isn't left busy
        with pytest.raises(ValueError, match=r"actions: expected float32 \(2, 12, 2\)"):
            vec.collect(2, act, actions[:1], rows)


def test_prepared_step_of_several_groups_equals_their_single_steps():
    counts = {"total_agents": 2 * GROUP, "num_buffers": 2, "num_threads": 3}
    with make("relay", **counts) as one, make("relay", **counts) as other:
        rows, twin = started(one), Stepper(other)
        actions, rng = np.zeros((2 * GROUP, 2), np.float32), np.random.default_rng(0)
        both = one.prepare(range(2), actions, rows)
        for _ in range(5):
            np.copyto(actions, random_actions(one, 2 * GROUP, rng))
            both.send()
            both.wait()
            same(rows, twin.step(actions))


def test_observations_masks_and_rewards_are_those_of_the_environment():
    """By hand: 12 agents of relay are environments of 1, 2, 3, 1, 2 and 3 agents."""
    environments = [0, 1, 1, 2, 2, 2, 3, 4, 4, 5, 5, 5]
    agents = np.array([0, 0, 1, 0, 1, 2, 0, 0, 1, 0, 1, 2])
    actions = np.stack([np.arange(12) % 3, np.arange(12) % 2], 1).astype(np.float32)
    given = actions.copy()
    paid = given[:, 0] + 10 * given[:, 1] + 0.5
    with make("relay", total_agents=12, num_buffers=2, vec={"bonus": 0.5}) as vec:
        stepper = Stepper(vec)
        for tick in range(1, 15):
            rows = stepper.step(actions)
            seen = np.stack([environments, agents, np.full(12, tick % 7)], 1)
            np.testing.assert_array_equal(rows.observations[:, :3], seen)
            np.testing.assert_array_equal(rows.rewards, paid)
            np.testing.assert_array_equal(rows.terminals, float(tick % 7 == 0))
            masks = np.array(rows.masks)
            np.testing.assert_array_equal(masks[:, :3], np.eye(3)[(tick % 7 + agents) % 3])
            assert masks[:, 3:].all()
        np.testing.assert_array_equal(actions, given)  # relay writes -1 into its own copy
        # per environment 7 steps; rewards of all its agents are one sum
        assert vec.log() == {"length": 7.0, "receipts": 14 * paid.sum() / 12, "n": 12.0}


def test_garbage_collection_ends_threads():
    def threads() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    if sys.platform != "linux":
        pytest.skip("threads are listed by Linux")
    before = threads()  # some of them may end meanwhile
    vec = make("squared", total_agents=4, num_threads=3)
    Stepper(vec).step(0)
    assert threads() - before
    del vec
    gc.collect()
    deadline = time.monotonic() + 10  # the system lists a thread a little longer than it lives
    while (left := threads() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


@pytest.mark.parametrize(("name", "agents_of_3", "seed"), [("squared", 3, -3), ("target", 24, 3)])
def test_environment_i_of_seed_s_is_environment_i_plus_s_of_seed_0(
    name: str, agents_of_3: int, seed: int
):
    """A negative seed wraps around, as unsigned numbers do."""
    counts, rng = {"total_agents": 4 * GROUP}, np.random.default_rng(0)
    first, later = sorted((0, seed))
    with make(name, **counts, seed=first) as vec, make(name, **counts, seed=later) as moved:
        one, other = Stepper(vec), Stepper(moved)
        for _ in range(60):
            mine, its = one.rows.observations, other.rows.observations
            np.testing.assert_array_equal(mine[agents_of_3:], its[:-agents_of_3])
            action = random_actions(vec, 1, rng)  # the same for all
            one.step(np.repeat(action, 4 * GROUP, axis=0))
            other.step(np.repeat(action, 4 * GROUP, axis=0))
        assert not np.array_equal(mine, its)


def test_steps_run_in_parallel_without_the_interpreter():
    """Three environments of 1, 2 and 3 agents, 200 ms each, on three threads."""
    env = {"length": 1, "sleep_ms": 200}
    with make("relay", total_agents=6, num_buffers=2, num_threads=64, env=env) as vec:
        assert vec.num_threads == 3  # one for each environment
        stepper, actions = Stepper(vec), np.zeros((3, 2), np.float32)
        start = time.perf_counter()
        vec.send(0, actions, stepper.group(0))
        vec.send(1, actions, stepper.group(1))
        ticks = []
        counter = threading.Thread(target=lambda: ticks.extend(time.sleep(0.01) for _ in range(5)))
        counter.start()
        vec.wait(0)
        vec.wait(1)
        assert 0.2 <= time.perf_counter() - start < vec.busy_seconds()
        assert vec.busy_seconds() >= 0.6 and len(ticks) == 5
        counter.join()
        for wait in vec.log, lambda: vec.reset(stepper.rows) or vec.log():
            vec.log()
            vec.send(0, actions, stepper.group(0))
            assert wait()["n"] == 2


@pytest.mark.parametrize(
    ("field", "damage", "message"),
    [
        ("masks", lambda it: None, "found None"),
        ("observations", lambda it: np.repeat(it, 2, axis=-1)[..., ::2], "not C-contiguous"),
        ("terminals", lambda it: np.frombuffer(it.tobytes(), it.dtype), "read-only"),
    ],
)
def test_array_that_does_not_fit_is_refused(field: str, damage, message: str):
    with make("relay", total_agents=6, num_buffers=2) as vec:
        rows, actions = Stepper(vec).group(0), np.zeros((3, 2), np.float32)
        actions.flags.writeable = False  # as a view of an MLX array is
        vec.send(0, actions, rows)
        vec.wait(0)
        with pytest.raises(ValueError, match=f"{field}.*{message}"):
            vec.send(0, actions, rows._replace(**{field: damage(getattr(rows, field))}))


# ---- Configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "keywords", "message"),
    [
        ("breakout", {"env": {"width": 9}}, r"breakout: missing keys in \[env\]: frameskip, "),
        (
            "squared",
            {"env": {"size": 12}},
            r"env\.size is 12, expected a whole number from 2 to",
        ),
        ("relay", {"total_agents": 10, "num_buffers": 4}, "10 is not a .* 4\n.*hint: 8 or 12"),
        ("relay", {"total_agents": 0}, "vec.total_agents 0 and vec.num_buffers 1 must be at"),
        # environments of 1, 2, 3 agents: the third doesn't fit into 5
        ("relay", {"total_agents": 5}, r"is 5, but environment 2 has 3 agents, of which only 2"),
    ],
)
def test_parameters_and_counts_that_do_not_fit_are_refused(name, keywords, message):
    with pytest.raises(UserError, match=message):
        make(name, **{"total_agents": 12, **keywords})


def test_unknown_keys_are_reported_and_strings_and_booleans_are_numbers():
    env = {"backend": "Serial", "size": "11", "speed": 3, "flag": True}
    with make("squared", total_agents=4, env=env) as vec:
        assert vec.unused == ["backend", "speed", "flag"]
    with make("squared", total_agents=4) as vec:
        assert vec.unused == []
    env = {**BREAKOUT, "continuous": True, "num_agents": 1}
    with make("breakout", total_agents=1, env=env) as vec:
        assert vec.unused == ["num_agents"]
        stepper = Stepper(vec)
        x = stepper.step(np.array([[-0.5]], np.float32)).observations[0, 0] * 576
        assert x == pytest.approx(257 - 4 * 0.5 * 620 / 60, abs=1e-3)  # the launch frame moves too


# ---- Compilation --------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the environment squared's folder, with an empty compiler cache."""
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(find_environment("squared"), tmp_path / "copied"))


def test_environment_is_compiled_again_if_its_code_changes(copy: Path):
    library = compile_environment(copy)
    made = library.stat().st_mtime_ns
    (copy / "draw.py").write_text("# not C")
    assert compile_environment(copy) == library and library.stat().st_mtime_ns == made
    edit(copy / "squared.h", "3 * env->size", "4 * env->size")
    assert compile_environment(copy) != library


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("squared", "my_init", "my_innit(", r"status \d+:\n(.*\n)*.*binding\.c.*error"),
        ("squared", "ACT_SIZES {5}", "ACT_SIZES {5, 5}", "ACT_SIZES must have NUM_ATNS entries"),
        ("squared", "#define Env Squared", "", "binding.c must define NUM_ATNS"),
        ("squared", "num_agents = 1;", "num_agents = 3;", "is 1, but environment 0 has 3 agents"),
        ("relay", "MASK 5", "MASK 6", r"MY_ACTION_MASK in binding\.c is 6, expected 5"),
    ],
)
def test_error_in_sources_is_reported(name: str, old: str, new: str, message: str):
    folder = kept_copy(folder_of(name), lambda root: edit(root / "binding.c", old, new))
    with pytest.raises(UserError, match=message):
        NativeVec(folder, total_agents=1, env=parameters(name))


def test_folder_without_environment_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="nowhere doesn't exist"):
        compile_environment(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty has no binding\.c"):
        compile_environment(tmp_path / "empty")


def test_cache_that_can_not_be_written_is_reported(copy: Path, monkeypatch: pytest.MonkeyPatch):
    (copy.parent / "file").write_text("")
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(copy.parent / "file" / "cache"))
    with pytest.raises(UserError, match=r"can't write compiled libraries.*\n.*PUFFER_MLX_CACHE"):
        compile_environment(copy)


def test_observations_beyond_memory_are_refused(monkeypatch):
    monkeypatch.setattr(memory_needs, "machine_memory", lambda: 2 * 1000 * 121 - 1)
    with pytest.raises(UserError, match=r"squared: observations of 121 numbers .* for 1000 agents"):
        make("squared", total_agents=1000, num_buffers=1)
