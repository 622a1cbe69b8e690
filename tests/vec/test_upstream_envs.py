"""Environments as PufferLib 4.0's repository has them: compiled, stepped and learned unchanged.

Folders in its layout lie in envs/upstream: orbit draws with raylib and moves with raymath, convoy
has three agents of two heads, metro creates environments of unequal size around one network that it
loads from resources/, and masks actions. ferry's rng is a pointer.
"""

import re
import shutil
from pathlib import Path

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
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.sources import Needs, environment_files, needs, repository
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import random_actions


@pytest.fixture
def ocean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder ``ocean`` of a copy of the repository, and an empty cache."""
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


def test_only_binding_and_its_includes_are_compiled(ocean: Path):
    (ocean / "orbit" / "orbit.c").write_text("#error a program of its own\n")
    with NativeVec(ocean / "orbit", total_agents=1, env=parameters("orbit")) as vec:
        assert vec.spec.name == "orbit"
    assert needs(ocean / "orbit") == Needs(True, False, False)
    assert needs(ocean / "convoy") == Needs(True, True, False)
    assert needs(ocean / "metro") == Needs(False, False, False)  # rand is in metro.c only


def test_includes_are_found_in_the_repository(ocean: Path):
    root = ocean.parent
    assert repository(ocean / "orbit") == root and repository(find_environment("squared")) is None
    for folder, name in ("vendor", "one"), ("src", "two"), (".", "three"), ("ocean/metro", "four"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / f"{name}.h").write_text(f"enum {{ VALUE_OF_{name} = 1 }};\n")
    (root / "src" / "vecenv.h").write_text("#error upstream's, for CUDA\n")
    (root / "src" / "tensor.h").write_text("#error upstream's, for CUDA\n")
    other = ocean / "other_name"  # not the header's
    (ocean / "orbit").rename(other)
    lines = '#include "one.h"\n#include "two.h"\n#include "three.h"\n#include "../metro/four.h"\n'
    lines += '#include "tensor.h"\n#include "orbit.h"'
    edit(other / "binding.c", '#include "orbit.h"', lines)
    names = [path.relative_to(root).as_posix() for path in environment_files(other)]
    assert set(names) == {
        *("vendor/one.h", "src/two.h", "three.h", "ocean/metro/four.h"),
        *(f"ocean/other_name/{file}" for file in ("binding.c", "orbit.c", "orbit.h")),
    }
    NativeVec(other, total_agents=1, env=parameters("orbit")).close()


def test_missing_data_is_an_error(ocean: Path, monkeypatch: pytest.MonkeyPatch, tmp_path, capfd):
    """Data is found from any directory; exit(1) doesn't end Python."""
    monkeypatch.chdir(tmp_path)
    NativeVec(ocean / "metro", total_agents=6, env=parameters("metro")).close()
    shutil.rmtree(ocean.parent / "resources")
    for _ in range(2):
        with pytest.raises(UserError, match=r"exit\(1\) while it was created") as caught:
            NativeVec(ocean / "metro", total_agents=6, env=parameters("metro"))
    assert "above" in caught.value.hint
    told = capfd.readouterr().err
    assert told.count("resources/metro/lines.txt can't be opened: No such file") == 1


# ---- rand ---------------------------------------------------------------------------------------


def play(vec: NativeVec, steps: int, stepper: Stepper | None = None) -> np.ndarray:
    """Return all observations of random steps."""
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

    def seen(seed: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
        with NativeVec(
            kept_copy(folder), total_agents=48, num_threads=threads, env={"size": 5}, seed=seed
        ) as vec:
            stepper = Stepper(vec)
            return stepper.rows.observations.copy(), play(vec, 60, stepper)

    first, others = seen(0, 1)
    np.testing.assert_array_equal(seen(0, 4)[1], others)
    np.testing.assert_array_equal(seen(1, 2)[0][:-1], first[1:])  # environment i: seed + i
    assert len(np.unique(first, axis=0)) > 10
    with NativeVec(kept_copy(folder), total_agents=8, env={"size": 5}) as vec:
        stepper = Stepper(vec)
        play(vec, 30, stepper)
        state = vec.state()
        assert state is not None
        expected = play(vec, 30, stepper)
        vec.restore(state)
        np.testing.assert_array_equal(play(vec, 30, stepper), expected)


def test_seed_reaches_a_generator_behind_a_pointer():
    folder = UPSTREAM_ROOT / "ocean" / "ferry"

    def seen(seed: int) -> np.ndarray:
        with NativeVec(kept_copy(folder), total_agents=16, env={}, seed=seed) as vec:
            return play(vec, 30)[..., 0]

    first = seen(0)
    np.testing.assert_array_equal(first, seen(0))
    np.testing.assert_array_equal(seen(73)[:, 1:], seen(74)[:, :-1])  # environment i: seed + i
    assert not np.array_equal(first, seen(73))


# ---- What bindings may ask for ------------------------------------------------------------------

RANGE = """
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
    edit(folder / "binding.c", '#include "vecenv.h"', f'#include "vecenv.h"\n{RANGE}')
    edit(
        folder / "binding.c", "#define Env", "#define MY_VEC_STEP_RANGE squared_range\n#define Env"
    )
    with (
        NativeVec(kept_copy(folder), total_agents=24, num_threads=2, env={"size": 5}) as vec,
        make("squared", total_agents=24, env={"size": 5}) as twin,
    ):
        one, other = Stepper(vec), Stepper(twin)
        np.testing.assert_array_equal(play(vec, 50, one), play(twin, 50, other))
        np.testing.assert_array_equal(one.rows.rewards, other.rows.rewards + 8)


def test_openmp_is_linked_only_if_it_protects_data(tmp_path: Path):
    folder = squared(tmp_path / "sharing")
    edit(folder / "squared.h", "ENV_FN void c_step(", "static int shared;\n\nENV_FN void c_step(")
    critical = "    #pragma omp critical\n    shared += 1;\n"
    edit(folder / "squared.h", "    env->tick += 1;\n", f"{critical}    env->tick += 1;\n")
    assert needs(folder).openmp and "-fopenmp" in environment_flags(folder)
    try:
        with NativeVec(folder, total_agents=24, num_threads=2, env={"size": 5}) as vec:
            play(vec, 20)
    except UserError as error:
        assert "protects shared data with OpenMP" in error.message and "install" in error.hint
    folder = squared(tmp_path / "alone")
    edit(folder / "squared.h", "#include <stdbool.h>", "#include <omp.h>\n#include <stdbool.h>")
    edit(folder / "squared.h", "log.score += reward", "log.score += omp_get_max_threads()")
    assert "-fopenmp" not in environment_flags(folder)
    NativeVec(kept_copy(folder), total_agents=4, env={"size": 3}).close()


# ---- What can't work ----------------------------------------------------------------------------

VECENV = '#include "vecenv.h"'
FOREIGN = {  # file, text, replacement, message
    "5.0": ("binding.c", VECENV, '#include "pufferenv.h"', "without a binding"),
    "3.0": ("binding.c", VECENV, '#include "../env_binding.h"', "PufferLib 3.0"),
    "reset": ("binding.c", "#define Env", "#define MY_VEC_RESET x\n#define Env", "MY_VEC_RESET"),
    "double": ("squared.h", "(float) actions", "(double) actions", "actions must be float"),
    # before 4.0's release, and data that isn't there: no compiler's lines, nor its advice
    "old": ("binding.c", "OBS_TENSOR_T ByteTensor", "OBS_TYPE FLOAT", "OBS_TYPE and ACT_TYPE$"),
    "data": (
        *("squared.h", "#ifndef ENV_FN", '#include "resources/levels.h"\n#ifndef ENV_FN'),
        r"foreign: resources/levels\.h is missing, which its sources include$",
    ),
}
HINTS = {"old": "#define OBS_TENSOR_T FloatTensor", "data": "copy it from where the environment is"}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_code_is_refused(tmp_path: Path, name: str):
    folder = squared(tmp_path / "foreign", "GetRandomValue(0, 120)")
    file, old, new, message = FOREIGN[name]
    edit(folder / file, old, new)
    with pytest.raises(UserError) as caught:
        NativeVec(folder, total_agents=1, env={"size": 5})
    assert re.search(message, caught.value.message), caught.value.message
    assert HINTS.get(name, "") in caught.value.hint


NOT_RAYLIBS = {  # text that is put before c_step -> what the compiler misses
    "a macro": "int wide[MAX_PASSENGERS];\n",
    "another's header": '#include "rules.h"\n',
}
RAYLIBS = {
    "a header": '#include "rlights.h"\n',
    "a constant": "int key = KEY_WARP_9;\n",
}


@pytest.mark.parametrize("what", [*NOT_RAYLIBS, *RAYLIBS])
def test_raylib_is_named_only_if_its_names_are_missing(tmp_path: Path, what: str, monkeypatch):
    monkeypatch.setenv("RAYLIB_PATH", "none")
    folder = squared(tmp_path / "foreign", "GetRandomValue(0, 120)")
    text = {**NOT_RAYLIBS, **RAYLIBS}[what]
    edit(folder / "squared.h", "ENV_FN void c_step(", f"{text}\nENV_FN void c_step(")
    with pytest.raises(UserError) as caught:
        NativeVec(folder, total_agents=1, env={"size": 5})
    assert ("belongs to raylib" in caught.value.message) == (what in RAYLIBS), caught.value.message
    assert ("install raylib" in caught.value.hint) == (what in RAYLIBS)
