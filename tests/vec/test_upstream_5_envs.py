"""Environments as PufferLib 5.0's repository has them: compiled, stepped and learned unchanged.

Folders in its layout lie in envs/upstream_5. The agents of peloton change places, and with them
their rows; it draws from the C library's generator and has scripted opponents. locks makes
environments around one table from resources/, keeps its agents elsewhere, rewrites masks of two
heads, and takes a text and a list. glider has continuous actions and observations of bfloat16.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from kept import edit
from native_envs import (
    UPSTREAM_5_ROOT,
    Stepper,
    edited,
    folder_of,
    legal_actions,
    make,
    parameters,
)
from stepping import copied

from puffer_mlx.config import load
from puffer_mlx.errors import UserError
from puffer_mlx.vec.native.compiling import compile_environment, environment_flags
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.sources import environment_files, find_requirements
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import random_actions


def play(stepper: Stepper, steps: int, seed: int = 0) -> list[bytes]:
    """Play random legal actions; return the bytes of all rows of each step."""
    rng = np.random.default_rng(seed)
    every = (stepper.step(legal_actions(stepper, rng)) for _ in range(steps))
    return [b"".join(a.tobytes() for a in rows if a is not None) for rows in every]


# ---- Rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["locks", "peloton"])
def test_restored_state_continues_in_other_groups(name: str):
    """Agents of peloton have changed places since they were made."""
    with make(name, total_agents=24) as vec:
        stepper = Stepper(vec)
        play(stepper, 30)
        state, rows = vec.state(), copied(stepper.rows)
        expected = play(stepper, 30, 1)
    assert state is not None
    with make(name, total_agents=24, num_buffers=2, num_threads=2) as vec:
        other = Stepper(vec)
        play(other, 7, 5)
        vec.restore(state)
        other.rows = rows
        assert play(other, 30, 1) == expected
        vec.restore(state)
        np.testing.assert_array_equal(vec.state(), state)


def test_bfloat16_observations_are_exact():
    with make("glider", total_agents=64) as vec:
        stepper = Stepper(vec)
        play(stepper, 20)
        numbers = stepper.rows.observations
        assert not (numbers.view(np.uint32) & 0xFFFF).any()  # cut off
        assert len(np.unique(numbers[:, :6])) > 200
        np.testing.assert_allclose(numbers[:, 6], 20 / 36, rtol=2**-7)


def test_agents_that_change_places_keep_their_rows():
    """The row of a rider contains its place: each of 0, 1 and 2 once."""
    with make("peloton", total_agents=96) as vec:
        stepper, places = Stepper(vec), []
        for step in range(10):
            play(stepper, 1, seed=step)
            places += stepper.rows.observations[:, 6].reshape(-1, 3).tolist()
        assert {tuple(sorted(order)) for order in places} == {(0, 1, 2)}
        assert len({tuple(order) for order in places}) == 6


def test_masks_are_ones_until_written_and_then_stay():
    old = "        agent->action_mask[DIALS + 2] = env->rested[i] >= REST;\n"
    folder = edited("locks", (old, "        agent->action_mask[0] = env->tick < 3;\n"))
    with NativeVec(folder, total_agents=8, env=parameters("locks")) as vec:
        stepper = Stepper(vec)
        for step in range(6):
            masks = np.array(stepper.rows.masks)
            assert (masks[:, 4:] == 1).all() and (masks[:, 0] == (step < 3)).all()
            stepper.step(random_actions(vec, 8, np.random.default_rng(step)))


@pytest.mark.parametrize(("use", "masks"), [("= 0", False), ("[1] = 0", True)])
def test_masks_exist_only_if_the_code_uses_them(use: str, masks: bool):
    text = f"void clear(Env* env) {{ env->agents[0].action_mask{use}; }}\nstatic void fall_back("
    assert find_requirements(edited("peloton", ("static void fall_back(", text))).masks == masks


def test_environment_i_draws_with_seed_i():
    folder = edited(
        "glider",
        ('dict_get(kwargs, "thrust");', 'dict_get(kwargs, "thrust");\n    env->total = env->rng;'),
        ("env->there = env->total = 0.0f;", "env->there = 0.0f;"),
        ("        env->at.x, env->at.y,", "        env->total, env->at.y,"),
    )
    with NativeVec(folder, total_agents=64, env=parameters("glider"), seed=2) as vec:
        np.testing.assert_array_equal(Stepper(vec).rows.observations[:, 0], np.arange(2, 66))


def test_scripted_opponent_ignores_its_action():
    with make("peloton", total_agents=3) as vec, make("peloton", total_agents=3) as twin:
        one, other = Stepper(vec), Stepper(twin)
        vec.set_bot_policy(1)
        rng = np.random.default_rng(0)
        for _ in range(20):
            actions = random_actions(vec, 3, rng)
            holds = actions.copy()
            holds[2] = 1  # the number and the row of the rider
            for mine, its in zip(one.step(actions), other.step(holds), strict=True):
                np.testing.assert_array_equal(mine, its)
    with make("locks", total_agents=2) as vec, pytest.raises(UserError, match="no scripted"):
        vec.set_bot_policy(1)


# ---- Parameters ---------------------------------------------------------------------------------


def test_parameters_may_be_texts_lists_and_hexadecimal():
    given = parameters("locks")
    assert given["table"] == "resources/locks/spins.txt" and given["targets"] == "3, 5, 7, 9"
    assert parameters("peloton")["max_steps"] == 32  # hexadecimal
    ways = []
    for targets in given["targets"], [4, 5, 7.9, 0]:
        with make("locks", total_agents=40, env={**given, "targets": targets}) as vec:
            ways.append(np.rint(10 * Stepper(vec).rows.observations[:, :4]).astype(int))
    assert ((ways[1] - ways[0]) % 10 == [1, 0, 0, 1]).all()
    with pytest.raises(UserError, match="targets must be four numbers"):
        make("locks", total_agents=4, env={**given, "targets": "3, 5, seven, 9"})
    typed = load(str(folder_of("locks")), ["--env.table", "resources/none.txt"])
    with pytest.raises(UserError, match=r"exit\(1\) while it was created"):
        make("locks", total_agents=4, env=typed.env)


def test_unknown_keys_are_reported_except_defaults_of_5_0():
    given = {**parameters("glider"), "num_agents": 3.0, "map": "a"}
    assert given["dr"] == given["num_bots"] == 0
    with make("glider", total_agents=4, env=given) as vec:
        assert vec.unused == ["num_agents", "map"]


# ---- What goes wrong ----------------------------------------------------------------------------


def test_failed_assertion_names_line_and_environment():
    """No environment steps afterwards, and the log can be read."""
    line = "    env->tick += 1;\n"
    folder = edited(
        "glider",
        ("agents[0].policy = 0;", "agents[0].policy = (int)env->rng;  // the seed"),
        (line, f"{line}    assert(env->tick < 5 || env->agents[0].policy != 73);\n"),
    )
    said = (
        r"environment 3 \(of seed 73\) failed an assertion while it was stepped: glider.h:\d+: "
        r"env->tick < 5 \|\| env->agents\[0\].policy != 73\n.*5\.0"
    )
    with NativeVec(folder, total_agents=8, env=parameters("glider"), seed=70) as vec:
        stepper = Stepper(vec)
        play(stepper, 4)
        for _ in range(2):
            with pytest.raises(UserError, match=said):
                play(stepper, 1)
        assert vec.log() == {} and vec.state() is None


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("glider", "num_agents = 1", "num_agents = 2", "is 2, but agents has room for 1"),
        ("glider", "typedef uint16_t", "#define PUF_BACKEND 1\ntypedef uint16_t", "a GPU"),
        ("glider", "#define OBS_SIZE 7\n", "", "must define OBS_SIZE"),
        ("glider", '"thrust"', '"nothing"', r"(?s)missing key \[env\] nothing.*puf_init; add"),
        ("locks", '"table"', '"none"', r"(?s)missing string \[env\] none.*puf_init; add it"),
    ],
)
def test_wrong_code_is_reported(name: str, old: str, new: str, message: str):
    with pytest.raises(UserError, match=message):
        NativeVec(edited(name, (old, new)), total_agents=12, env=parameters(name))


# ---- Files --------------------------------------------------------------------------------------


def test_only_header_and_its_includes_are_compiled(tmp_path: Path):
    shutil.copytree(UPSTREAM_5_ROOT, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "ocean" / "glider"
    for file in "glider.cu", "glider.c", "../../src/pufferenv.h", "../../src/ini.h":
        (tmp_path / "src").mkdir(exist_ok=True)
        (folder / file).write_text("#error not of the library\n")
    (tmp_path / "src" / "lake.h").write_text("#define LAKE 1\n")
    edit(folder / "glider.h", '#include "pufferenv.h"', '#include "lake.h"\n#include "pufferenv.h"')
    names = {path.relative_to(tmp_path).as_posix() for path in environment_files(folder)}
    assert names == {"ocean/glider/glider.h", "ocean/glider/glider.c", "src/lake.h"}
    compile_environment(folder)
    assert "-DNDEBUG" not in environment_flags(folder)  # assertions are checked
    assert "-DNDEBUG" in environment_flags(find_environment("squared"))  # and in 4.0 aren't
