"""Environments, the batch stepper and its threads under the compiler's sanitizers.

tests/c/driver.c calls them as vec/native/vec.py does. Planted bugs show that the sanitizers work.
"""

import pytest
from kept import edit, kept_copy
from native_envs import NAMES, UPSTREAM, UPSTREAM_5, folder_of, parameters
from sanitizers import environment_driver, run_environment, run_upstream

from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.sources import environments_folder

# Environments in which threads could race: instances share memory, or the code is large.
THREADED = ["relay", "metro", "locks", "craftax_classic"]
CASES = [(name, "memory") for name in (*NAMES, "convoy", "metro", "peloton")]
CASES += [(name, "threads") for name in THREADED]


@pytest.mark.parametrize(("name", "sanitizer"), CASES)
def test_environment_has_no_memory_error_and_no_race(
    name: str, sanitizer: str, monkeypatch: pytest.MonkeyPatch
):
    if name in UPSTREAM + UPSTREAM_5:
        printed = run_upstream(name, sanitizer, monkeypatch)
        assert "missing" in printed and "[env]" in printed
        return
    driver = environment_driver(folder_of(name), sanitizer)
    steps = 300 if name == "craftax_classic" else 2000  # its steps are slow
    done = run_environment(driver, name, steps)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    # The driver first creates the environment without keys, which fails if any key is required.
    requires_keys = bool(parameters(name)) and name != "connect4_two"  # its only key is optional
    assert ("missing keys in [env]" in done.stdout) == requires_keys
    assert "episodes 0" not in done.stdout


HOLD_ALL = "hold_all(self);\n    const int64_t"
CLAIM = "atomic_fetch_sub(&leader->rest, chunk)"
TWICE = "leader->rest; atomic_store(&leader->rest, end - chunk)"
OVERFLOW, RACE = "heap-buffer-overflow", "data race"
BUGS = {  # sanitizer, file, text, its replacement, what the report says
    "copies too much": ("memory", "glue.h", "(size_t)(agents[e + 1] - agents[e])", "2", OVERFLOW),
    "forgets the rows of a state": (
        *("memory", "state.c", "reader.load && arrays[i].bytes > 0", "false"),
        "the restored state is another",
    ),
    "saves during steps": ("threads", "vec.c", HOLD_ALL, "const int64_t", RACE),
    "claims a chunk twice": ("threads", "pool.c", CLAIM, TWICE, RACE),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_reported(bug: str):
    sanitizer, file, old, new, report = BUGS[bug]
    root = kept_copy(
        environments_folder(),
        lambda copy: edit(copy / "src" / file, old, new),
        only=("include", "src"),
    )
    driver = environment_driver(find_environment("squared"), sanitizer, root)
    races = sanitizer == "threads"  # on a busy machine a race occurs in one of three runs
    for _ in range(12 if races else 1):
        done = run_environment(driver, "squared", 40000 if races else 2000)
        if done.returncode:
            break
    assert done.returncode != 0 and report in done.stderr, done.stdout + done.stderr
