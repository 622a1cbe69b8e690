"""Environments as PufferLib 4.0's repository has them: compiled, stepped and learned unchanged.

Folders in its layout lie in envs/upstream: orbit draws with raylib and moves with raymath, convoy
has three agents of two heads, metro creates environments of unequal size around one network that it
loads from resources/, and masks actions. ferry's rng is a pointer.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept import edit, kept_copy
from native_envs import (
    UPSTREAM_ROOT,
    Stepper,
    folder_of,
    make,
    parameters,
    squared,
)

from puffer_mlx.config import load
from puffer_mlx.errors import UserError
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.native.compiling import environment_flags
from puffer_mlx.vec.native.sources import environment_files, find_requirements
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import random_actions


@pytest.fixture
def ocean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder ``ocean`` in a copy of the PufferLib 4.0 test repository.

    The compiler cache is empty.
    """
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(UPSTREAM_ROOT, tmp_path / "repository")) / "ocean"


# ---- Learning -----------------------------------------------------------------------------------


def test_environment_of_pufferlib_is_learned_with_its_own_settings():
    """With config/locks.ini of the repository: masks of two heads, rewards at the end."""
    config = load(str(folder_of("locks")))
    assert config.train.algorithm == "puffer5"
    counts = {"total_agents": config.vec.total_agents, "num_buffers": config.vec.num_buffers}
    with make("locks", env=config.env, num_threads=2, **counts) as vec:
        logs = [record for record in Trainer(config, vec) if "env/score" in record]
    scores = [record["env/score"] for record in logs]
    assert scores[0] < 0.65 and sum(scores[-5:]) / 5 > 0.75, scores
    assert logs[-1].get("env/illegal", 0) == 0  # actions obey masks
    assert "env/locks/opened" in logs[-1]


# ---- Files --------------------------------------------------------------------------------------


def test_only_binding_and_its_includes_from_the_repository_are_compiled(ocean: Path):
    root, folder = ocean.parent, ocean / "other_name"  # not the header's
    (ocean / "orbit").rename(folder)
    (folder / "orbit.c").write_text("#error a program of its own\n")
    headers = "vendor/one.h", "src/two.h", "three.h", "ocean/metro/four.h"
    for header in headers:
        (root / header).parent.mkdir(exist_ok=True)
        (root / header).write_text(f"enum {{ VALUE_OF_{Path(header).stem} = 1 }};\n")
    for header in "vecenv.h", "tensor.h":
        (root / "src" / header).write_text("#error upstream's, for CUDA\n")
    included = "one.h", "two.h", "three.h", "../metro/four.h", "tensor.h", "orbit.h"
    lines = "".join(f'#include "{name}"\n' for name in included)
    edit(folder / "binding.c", '#include "orbit.h"', lines)
    names = {path.relative_to(root).as_posix() for path in environment_files(folder)}
    ours = {f"ocean/other_name/{file}" for file in ("binding.c", "orbit.c", "orbit.h")}
    assert names == {*headers, *ours}
    with NativeVec(folder, total_agents=1, env=parameters("orbit")) as vec:
        assert vec.spec.name == "other_name"


def test_missing_data_is_an_error(ocean: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    """Data is found from any directory; exit(1) doesn't end Python."""
    monkeypatch.chdir(ocean)
    NativeVec(ocean / "metro", total_agents=6, env=parameters("metro")).close()
    shutil.rmtree(ocean.parent / "resources")
    with pytest.raises(UserError, match=r"exit\(1\) while it was created\n.*above"):
        NativeVec(ocean / "metro", total_agents=6, env=parameters("metro"))
    errors = capfd.readouterr().err
    assert errors.count("resources/metro/lines.txt can't be opened: No such file") == 1


# ---- rand ---------------------------------------------------------------------------------------


def play(vec: NativeVec, steps: int, stepper: Stepper | None = None) -> np.ndarray:
    """Play random actions; return the observations of all steps."""
    stepper = stepper or Stepper(vec)
    rng = np.random.default_rng(1)
    seen = []
    for _ in range(steps):
        stepper.step(random_actions(vec, vec.num_agents, rng))
        seen.append(stepper.rows.observations.copy())
    return np.array(seen)


@pytest.mark.parametrize("draw", ["rand()", "GetRandomValue(0, 120)"])
def test_seed_decides_all_random_numbers_and_state_restores_them(tmp_path: Path, draw: str):
    folder = squared(tmp_path / "drawn", draw)

    def opened(seed: int = 0, threads: int = 1) -> NativeVec:
        counts: Any = {"total_agents": 48, "num_threads": threads, "seed": seed}
        return NativeVec(kept_copy(folder), env={"size": 5}, **counts)

    with opened() as vec, opened(threads=4) as twin, opened(seed=1) as moved:
        one, other, later = Stepper(vec), Stepper(twin), Stepper(moved)
        first = one.rows.observations.copy()
        np.testing.assert_array_equal(later.rows.observations[:-1], first[1:])  # seed + i
        assert len(np.unique(first, axis=0)) > 10
        np.testing.assert_array_equal(play(vec, 60, one), play(twin, 60, other))
        state = vec.state()
        expected = play(vec, 30, one)
        twin.restore(state)  # type: ignore
        np.testing.assert_array_equal(play(twin, 30, other), expected)


def test_seed_reaches_a_generator_behind_a_pointer():
    def seen(seed: int) -> np.ndarray:
        folder = UPSTREAM_ROOT / "ocean" / "ferry"
        with NativeVec(folder, total_agents=16, env={}, seed=seed) as vec:
            return play(vec, 30)[..., 0]

    np.testing.assert_array_equal(seen(0)[:, 1:], seen(1)[:, :-1])  # environment i: seed + i
    assert not np.array_equal(seen(0), seen(73))


# ---- What bindings may ask for ------------------------------------------------------------------

RANGE = """#define MY_VEC_STEP_RANGE squared_range
#define Env Squared
#include "vecenv.h"
void squared_range(StaticVec* vec, int env_start, int env_count, int num_workers) {
    #pragma omp parallel for schedule(static) num_threads(num_workers)
    for (int i = env_start; i < env_start + env_count; i++) {
        c_step(&((Env*)vec->envs)[i]);
        vec->rewards[i] += 8.0f;
    }
}
"""


def test_binding_may_step_a_range_of_environments(tmp_path: Path):
    folder = squared(tmp_path / "ranged")
    edit(folder / "binding.c", '#define Env Squared\n#include "vecenv.h"\n', RANGE)
    keywords = {"total_agents": 24, "num_threads": 2, "env": {"size": 5}}
    with NativeVec(kept_copy(folder), **keywords) as vec, make("squared", **keywords) as twin:
        one, other = Stepper(vec), Stepper(twin)
        np.testing.assert_array_equal(play(vec, 50, one), play(twin, 50, other))
        np.testing.assert_array_equal(one.rows.rewards, other.rows.rewards + 8)


def test_openmp_is_linked_only_if_it_protects_data(tmp_path: Path):
    folder = squared(tmp_path / "sharing")
    critical = "    #pragma omp critical\n    env->tick += 1;\n"
    edit(folder / "squared.h", "    env->tick += 1;\n", critical)
    assert find_requirements(folder).openmp and "-fopenmp" in environment_flags(folder)
    assert "-fopenmp" not in environment_flags(UPSTREAM_ROOT / "ocean" / "orbit")
    try:
        with NativeVec(folder, total_agents=24, num_threads=2, env={"size": 5}) as vec:
            play(vec, 20)
    except UserError as error:
        assert "the environment uses OpenMP" in error.message and "install" in error.hint


# ---- What can't work ----------------------------------------------------------------------------
VECENV = '#include "vecenv.h"'


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("binding.c", VECENV, '#include "pufferenv.h"', "without binding"),  # 5.0
        ("binding.c", VECENV, '#include "../env_binding.h"', "PufferLib 3.0"),
        ("binding.c", "#define Env", "#define MY_VEC_RESET x\n#define Env", "MY_VEC_RESET"),
        ("squared.h", "(float) actions", "(double) actions", "actions must be float"),
        (
            *("binding.c", "OBS_TENSOR_T ByteTensor", "OBS_TYPE FLOAT"),  # before 4.0's release
            "OBS_TYPE and ACT_TYPE\n.*#define OBS_TENSOR_T FloatTensor",
        ),
        (
            *("squared.h", "#ifndef ENV_FN", '#include "resources/levels.h"\n#ifndef ENV_FN'),
            r"foreign: its sources include resources/levels\.h, which is missing\n.*copy the file",
        ),
    ],
    ids=["5.0", "3.0", "reset", "double", "old", "data"],
)
def test_foreign_code_is_refused(tmp_path: Path, file: str, old: str, new: str, message: str):
    folder = squared(tmp_path / "foreign")
    edit(folder / file, old, new)
    with pytest.raises(UserError, match=message):
        NativeVec(folder, total_agents=1, env={"size": 5})


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("int wide[MAX_PASSENGERS];", False),
        ('#include "rlights.h"', True),
        ("int key = KEY_WARP_9;", True),
    ],
)
def test_raylib_is_named_only_if_its_names_are_missing(tmp_path, line, named, monkeypatch):
    monkeypatch.setenv("RAYLIB_PATH", "none")
    folder = squared(tmp_path / "foreign", "GetRandomValue(0, 120)")
    edit(folder / "squared.h", "ENV_FN void c_step(", f"{line}\nENV_FN void c_step(")
    with pytest.raises(UserError) as caught:
        NativeVec(folder, total_agents=1, env={"size": 5})
    assert ("belongs to raylib" in caught.value.message) == named, caught.value.message
    assert ("install raylib" in caught.value.hint) == named
