"""The batch stepper, its threads and the environments under the compiler's sanitizers.

tests/c/driver.c does what vec/native/vec.py does, in a program of its own. One test plants bugs, to
show that the others would see them.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from native_envs import GROUP, NAMES, folder_of, parameters
from running import sanitized

from puffer_mlx.vec.native.vec import environments_folder, find_environment

# Both for every environment, about 1.2 s each, most of it compilation: environments can race too,
# by a static variable that all of them share.
SANITIZERS = {"memory": "address,undefined", "threads": "thread"}


def compile_driver(folder: Path, sanitizer: str, out: Path, stepper: Path | None = None) -> None:
    root = stepper or environments_folder()
    command = [
        *(os.environ.get("CC") or "cc").split(),
        *("-O1", "-g", "-std=gnu11", "-ffp-contract=off", "-pthread", "-Drand_r=puffer_rand_r"),
        f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all",
        f"-I{root / 'include'}",
        f"-I{root / 'src'}",
        str(Path(__file__).parents[1] / "c" / "driver.c"),
        str(folder / "binding.c"),
        *map(str, sorted((root / "src").glob("*.c"))),
        *("-o", str(out), "-lm"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if "cannot find" in done.stderr and "san" in done.stderr:
        pytest.skip(f"the compiler has no -fsanitize={sanitizer}")
    assert done.returncode == 0, done.stderr


def run_driver(program: Path, name: str, steps: int) -> subprocess.CompletedProcess:
    keys = [f"{key}={float(value)!r}" for key, value in parameters(name).items()]
    return sanitized([str(program), str(4 * GROUP), "4", "3", str(steps), *keys])


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("name", NAMES)
def test_clean(name: str, sanitizer: str, tmp_path: Path):
    compile_driver(folder_of(name), SANITIZERS[sanitizer], tmp_path / "driver")
    done = run_driver(tmp_path / "driver", name, 2000)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    # The creation that fails; target has no keys that it could miss.
    assert ("missing keys in [env]" in done.stdout) == bool(parameters(name))
    assert "episodes 0" not in done.stdout


HOLD = "puffer_pool_hold(self->pool, g);\n        puffer_ops.take_log"
HOLD_ALL = "hold_all(self);\n    const int64_t"
CLAIM = "atomic_fetch_add(&group->next, chunk)"
BUGS = {  # sanitizer, file, text, its replacement, what the report says
    "copies too much": (
        "memory",
        "src/glue.h",
        "(size_t)(agents[e + 1] - agents[e])",
        "2",
        "heap-buffer-overflow",
    ),
    "leaks": ("memory", "src/vec.c", "    free(self->agents);\n", "", "LeakSanitizer"),
    "reads beyond the end of a state": (
        "memory",
        "src/state.c",
        "bytes > reader->left || fill_up(bytes) > reader->left",
        "false",
        "heap-buffer-overflow",
    ),
    "forgets the rows of a state": (
        "memory",
        "src/state.c",
        "reader.load && arrays[i].bytes > 0",
        "false",
        "the restored state is another",
    ),
    "reads logs of steps under way": (
        "threads",
        "src/vec.c",
        HOLD,
        "puffer_ops.take_log",
        "data race",
    ),
    "saves steps under way": (
        "threads",
        "src/vec.c",
        HOLD_ALL,
        "const int64_t",
        "data race",
    ),
    "claims a chunk twice": (
        "threads",
        "src/pool.c",
        CLAIM,
        "group->next; atomic_store(&group->next, first + chunk)",
        "data race",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_seen(bug: str, tmp_path: Path):
    sanitizer, file, old, new, report = BUGS[bug]
    for folder in "include", "src":
        shutil.copytree(environments_folder() / folder, tmp_path / folder)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    folder = find_environment("squared")
    compile_driver(folder, SANITIZERS[sanitizer], tmp_path / "driver", tmp_path)
    steps = 2000 if sanitizer == "memory" else 40000  # a race may take a while to be met
    done = run_driver(tmp_path / "driver", "squared", steps)
    assert done.returncode != 0 and report in done.stderr, done.stdout + done.stderr
