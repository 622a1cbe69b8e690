"""scripts/check_env.py: a sound environment passes, a planted fault fails its item and no other."""

import functools
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from kept import edit, kept_copy
from running import command, run, started, wait_until
from stepping import gym_vec

from puffer_mlx.check.env.environment import EnvUnderTest, play
from puffer_mlx.check.env.gymnasium_check import check_bounds, run_gymnasium_checker
from puffer_mlx.check.env.inputs_outputs import check_observations, check_spaces
from puffer_mlx.check.env.items import ITEMS
from puffer_mlx.check.items import (
    FAIL,
    OK,
    SKIP,
    WARN,
    number,
    numbers,
    percent,
    run_item,
    select_items,
    worst,
)
from puffer_mlx.config import load
from puffer_mlx.errors import UserError
from puffer_mlx.spec import ActionSpec, EnvSpec, ImagePart
from puffer_mlx.vec.native.compiling import compile_environment

HERE = Path(__file__).parents[1] / "envs"
FAULTY, PYTHON = HERE / "faulty", HERE / "python" / "faulty.py"
NAMES = re.findall(r"^    ([A-Z_]+),", (FAULTY / "faulty.h").read_text(), re.MULTILINE)
LONG = ("speed", "training", "pictures")  # pictures: faulty has none


def look(name: object, *options: str, without=LONG, seconds: float = 0.25) -> dict[str, list]:
    """What the items find, in this process."""
    env = EnvUnderTest(load(str(name), options), seconds, 2)
    broken: set[str] = set()
    return {i.name: run_item(i, broken, env) for i in ITEMS if i.name not in without}


def test_a_clock_that_float32_rounds_is_seen_to_change():
    class Clock(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 4e9, (1,), np.float64)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.t = 0
            return np.array([1.7e9]), {}

        def step(self, action):
            self.t += 1
            return np.array([1.7e9 + self.t]), 0.0, False, self.t == 9, {}

    with gym_vec(Clock, name="clock", total_agents=1, backend="sync") as vec:
        observed = play(vec, 0.01)
    assert (observed.low - 1.7e9, observed.high - 1.7e9) == (0, 8)


def one_walk(render_mode=None):
    return gymnasium.make("CartPole-v1", render_mode=render_mode)


def many_walks(num_envs):
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")


def some_walks(num_envs=2):
    return many_walks(num_envs)


@pytest.mark.parametrize(
    ("make", "verdict", "text"),
    [
        (one_walk, OK, "check_env found nothing"),
        (many_walks, SKIP, "this is SyncVectorEnv"),
        (some_walks, SKIP, "this is SyncVectorEnv"),
    ],
)
def test_gymnasiums_check_is_of_single_environments(make, verdict, text, monkeypatch):
    """Vector environments have none."""
    module = SimpleNamespace(make=make)
    monkeypatch.setitem(sys.modules, "walks", module)  # type: ignore
    words = ["--vec.total-agents", "2", "--vec.num-buffers", "1", "--vec.backend", "sync"]
    words = words if make is one_walk else words[:-2]
    (finding,) = run_gymnasium_checker(EnvUnderTest(load("walks:make", words), 0.1, 1))
    assert finding.verdict == verdict and text in finding.text


def verdicts(found: dict[str, list]) -> dict[str, str]:
    """The items that aren't as they should be."""
    return {n: worst(f) for n, f in found.items() if worst(f) in (WARN, FAIL)}


def said(found: dict[str, list]) -> str:
    return "\n".join(f"{name}: {f.text}: {f.hint}" for name, all in found.items() for f in all)


# ---- C -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled():
    """The faulty environment, compiled with these macros."""

    @functools.cache
    def make(*macros: str) -> Path:
        text = "".join(f"#define {macro}\n" for macro in macros)
        binding = text + (FAULTY / "binding.c").read_text()
        return kept_copy(FAULTY, lambda copy: (copy / "binding.c").write_text(binding))

    return make


def fault(name: str) -> tuple[str, str]:
    return "--env.fault", str(NAMES.index(name))


@pytest.mark.parametrize("macros", [(), ("MASKED",)], ids=["plain", "masked"])
def test_a_sound_environment(compiled, macros):
    found = look(compiled(*macros), without=("pictures",))
    assert verdicts(found) == {}, said(found)
    text = said(found)
    assert "an agent sees 4 numbers (float32) and chooses one of 3 actions" in text
    assert ("a mask says which are legal" in text) == bool(macros)
    assert "one thread and 4, one group and two agree to the bit" in text
    assert "steps go on with the same bits" in text and "score 0." in text


C_FAULTS = {  # what is planted -> the items that notice it, and words of theirs
    "NAN_OBSERVATION": ({"observations": FAIL}, "number 2 of agent 0's observation is not finite"),
    "CONSTANT_OBSERVATION": ({"observations": FAIL}, "every agent sees the same in all"),
    "INFINITE_REWARD": ({"rewards": FAIL}, "is not finite (NaN or infinite) after"),
    "DEAF": (
        {"actions": FAIL, "observations": WARN, "rewards": WARN},
        "two agents that acted differently always saw and got the same",
    ),
    "RANDOM": ({"seeds": FAIL}, "one seed gives two different runs"),
    "PER_THREAD": ({"seeds": FAIL}, "with 4 threads a seed gives another run"),
    "LAZY_RESET": ({"resets": FAIL}, "still belongs to the episode that ended"),
    "LATE_RESET": ({"resets": FAIL}, "number 2 is 0.1 to 0.19 after a reset, but 10 to 10 after"),
    "NO_LOG": ({"log": FAIL}, "episodes ended, but nothing was reported"),
    "NAN_LOG": ({"log": FAIL}, "score: not finite"),
    "OWN_MEMORY": ({"state": FAIL}, "MY_STATE_PLAIN is for structs without pointers"),
    "NO_REWARD": ({"rewards": WARN}, "always 0 in"),
    "LARGE_REWARD": ({"rewards": WARN}, "--train.reward-clip 50"),
    "TINY_REWARD": ({"rewards": WARN}, "none is larger than 1e-05"),
    "LARGE_OBSERVATION": ({"observations": WARN}, "numbers 0-1 of 4 went beyond ±10"),
    "ENDLESS": ({"episodes": WARN}, "none ended in"),
    "ONE_STEP": ({"episodes": WARN, "observations": WARN}, "of them are one step long"),
    "NO_CHANCE": ({"seeds": WARN, "observations": WARN}, "nothing is left to chance"),
    "FORGOTTEN_EPISODES": ({"log": WARN}, "log.n += 1 where an episode ends"),
    "EXIT_IN_STEP": ({"steps": FAIL}, "called exit(3) while it was stepped"),
    "ABORT_IN_STEP": ({"steps": FAIL}, "called abort() while it was stepped"),
    "EXIT_IN_RESET": ({"steps": FAIL}, "called exit(4) while it was reset"),
}
DEADLY = {"CRASH_IN_INIT", "CRASH_IN_STEP", "CRASH_IN_CLOSE", "HANG_IN_STEP"}
ELSEWHERE = {"SOUND", "NOTHING_LEGAL", "ALL_LEGAL", "HUGE_OBSERVATION"}
ELSEWHERE |= {"NO_TERMINAL", "EXIT_IN_CLOSE", "DEEP_STACK"}
ELSEWHERE |= {"ENDLESS_RECURSION", "RECURSION_IN_RESET"}  # as the former two: test_native_ends.py


def test_every_fault_is_looked_for():
    assert set(NAMES) == set(C_FAULTS) | DEADLY | ELSEWHERE


@pytest.mark.parametrize("name", C_FAULTS)
def test_faults_in_c(compiled, name):
    expected, words = C_FAULTS[name]
    found = look(compiled(), *fault(name))
    assert (verdicts(found), words in said(found)) == (expected, True), said(found)


def test_groups_that_change_a_run(compiled, monkeypatch):
    real = EnvUnderTest.small_config

    def small_config(self, count=0, **options):
        return real(self, count, **{**options, **({"seed": 5} if "groups" in options else {})})

    monkeypatch.setattr(EnvUnderTest, "small_config", small_config)
    found = look(compiled())
    assert verdicts(found) == {"seeds": FAIL}
    assert "with two groups a seed gives another run: after the reset, agent" in said(found)


VARYING = {  # VARIES in binding.c -> what is said of seeds, and of states
    1: ("one group and two: the agents are shared by other numbers", "with the same bits"),
    2: ("nothing can be compared: the agents are shared by other", "fits only those it is of"),
}


@pytest.mark.parametrize("what", VARYING)
def test_how_many_environments_there_are_may_vary(compiled, what):
    found = look(compiled(f"VARIES {what}"), without=(*LONG, "log", "observations", "resets"))
    seeds, state = VARYING[what]
    assert all(finding.verdict != FAIL for item in found.values() for finding in item), said(found)
    assert seeds in said({"seeds": found["seeds"]}), said(found)
    assert state in said({"state": found["state"]}), said(found)


def test_environments_without_terminals(compiled):
    found = look(compiled(), *fault("NO_TERMINAL"))
    assert verdicts(found) == {"episodes": WARN}, said(found)
    assert re.search(r"episodes: [\d,]+ were reported, but no terminal came in ", said(found))


def test_few_agents_are_played_where_they_need_much_memory(monkeypatch):
    for size, each, agents in [
        (4, 1, 64),
        (100_000, 1024, 4 * 1024),  # what threads and groups can share
        (4, 2.3, 148),  # so that two groups can share them
    ]:
        env = EnvUnderTest(load("squared"), 1.0, 2)
        spec = EnvSpec("crowd", size, np.dtype(np.uint8), ActionSpec((5,)))
        full = SimpleNamespace(spec=spec, num_agents=10 * each, num_environments=10, description="")
        env.__dict__["full"] = full
        monkeypatch.setattr(EnvUnderTest, "native", True)
        assert env.small_config().vec.total_agents == agents


def env_that_saw(spec: EnvSpec, low: np.ndarray, high: np.ndarray, name: str) -> Any:
    """An environment with these extreme observations."""
    config = load(name)
    observed = SimpleNamespace(not_finite=None, low=low, high=high, steps=9)
    full = SimpleNamespace(spec=spec)
    return SimpleNamespace(
        config=config, given=config, full=full, observed=observed, agents_each=1.0
    )


def test_pixels_among_other_numbers():
    """They are bytes, and may stay the same; the others are looked at as ever."""
    spec = EnvSpec("e", 14, np.dtype(np.float32), ActionSpec((5,)))
    spec = replace(spec, image_parts=(ImagePart(1, (2, 2, 3), False),))
    low, high = np.zeros(14), np.array([0.0, *[255.0] * 11, 0.0, 99.0])
    env = env_that_saw(spec, low, high, "squared")
    told = [finding.text for finding in check_observations(env)]
    assert told[1:] == ["number 0 of 14 never changed", "number 13 of 14 went beyond ±10"]
    (seen,) = check_spaces(env)
    assert "sees 14 numbers, an image of 2 x 2 x 3 among them (float32)" in seen.text


@pytest.mark.parametrize(("name", "said"), [("breakout-a", "7"), ("breakout", "7-9")])
def test_observations_that_a_key_leaves_at_0_may_stay_so(name, said):
    spec = EnvSpec("breakout", 118, np.dtype(np.float32), ActionSpec((3,)))
    low, high = np.zeros(118), np.ones(118)
    high[7:10] = 0
    _, found = check_observations(env_that_saw(spec, low, high, name))
    assert re.fullmatch(rf"numbers? {said} of 118 never changed", found.text)


def test_shared_things_are_named(compiled):
    text = said(look(compiled(), *fault("RANDOM")))
    lines = (FAULTY / "faulty.h").read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "(int)random()" in text)
    assert f"faulty.h:{line} (random())" in text
    assert "(a static variable)" in text and "seeds failed" in text


MASKS = {"NOTHING_LEGAL": (FAIL, "allows no choice of head 0"), "ALL_LEGAL": (WARN, "never forbid")}


def test_faults_of_masks(compiled):
    for name, (verdict, words) in MASKS.items():
        found = look(compiled("MASKED"), *fault(name))
        assert verdicts(found) == {"actions": verdict} and words in said(found), said(found)


def test_losses_that_are_not_finite(compiled):
    found = look(compiled(), *fault("HUGE_OBSERVATION"), without=("speed", "pictures"))
    assert verdicts(found) == {"training": FAIL, "observations": WARN}, said(found)
    assert "losses are not finite" in said(found)


def test_what_is_missing(compiled):
    found = look(compiled("STATELESS", "SCORELESS"), without=("speed", "training"))
    assert verdicts(found) == dict.fromkeys(("state", "log", "pictures"), WARN)
    text = said(found)
    assert "define MY_STATE_PLAIN" in text and "there is no score" in text and "no draw.py" in text


def test_a_key_that_nobody_reads(compiled):
    old, new = "fault = 0", "fault = 0\nwind = 3"
    found = look(kept_copy(compiled(), lambda copy: edit(copy / "faulty.ini", old, new)))
    assert verdicts(found) == {"loads": WARN} and "nobody reads env.wind" in said(found)


DRAWINGS = {
    "def draw(observation): return observation": (FAIL, "draw returned float32 (4,)"),
    "def draw(observation): return np.zeros((3, 3, 3), np.uint8)": (WARN, "all the same"),
    "def draw(observation): return np.zeros((next(count), 3, 3), np.uint8)": (FAIL, "size changes"),
}


def test_pictures(compiled):
    for code, (verdict, words) in DRAWINGS.items():
        text = f"import itertools\nimport numpy as np\ncount = itertools.count(1)\n{code}\n"
        folder = kept_copy(compiled(), lambda copy, text=text: (copy / "draw.py").write_text(text))
        found = look(folder, without=("speed", "training"))
        assert verdicts(found) == {"pictures": verdict} and words in said(found), said(found)


# ---- Python --------------------------------------------------------------------------------------


def python(name: str) -> str:
    pytest.importorskip("gymnasium")
    return f"{PYTHON}:{name}"


def test_a_sound_environment_in_python():
    found = look(python("Sound"), without=())
    assert verdicts(found) == {}, said(found)
    text = said(found)
    assert "check_env found nothing" in text and "truncated by a time limit" in text
    assert "pictures: 9 x 4 pixels" in text


PYTHON_FAULTS = {
    "FailsToBegin": ({"loads": FAIL}, "no sea to sail on"),
    "Raises": ({"loads": FAIL}, "a plank is missing"),
    "NotANumber": ({"steps": FAIL, "gymnasium": FAIL}, "returned observations of nan"),
    "OutOfItsSpace": ({"gymnasium": FAIL}, "number 2 of the observation is 0.5"),
    "SeesNothing": ({"observations": FAIL}, "every agent sees the same"),
    "Deaf": ({"actions": FAIL}, "change nothing"),
    "SharedChance": ({"seeds": FAIL, "gymnasium": FAIL}, "draw from self.np_random alone"),
    "BeginsElsewhere": ({"resets": FAIL}, "reset must set everything"),
    "NoInfo": ({"loads": FAIL}, "failed in reset"),
    "Growing": ({"pictures": FAIL}, "size changes"),
    "Undrawn": ({"pictures": WARN}, "no pencil"),
    "OldPosition": ({"resets": WARN}, "number 0 of most first observations after a terminal"),
    "Overdue": ({"endings": WARN}, "after 30 steps, and as terminated"),
    "Endless": ({"episodes": WARN}, "none ended in"),
    "Rescaled": ({"gymnasium": WARN}, "RescaleAction(env, -1, 1)"),
}


@pytest.mark.parametrize("name", PYTHON_FAULTS)
def test_faults_in_python(name):
    expected, words = PYTHON_FAULTS[name]
    one = ("--vec.backend", "sync") if name == "SharedChance" else ()  # each process counts anew
    found = look(python(name), *one, without=("speed", "training"))
    assert (verdicts(found), words in said(found)) == (expected, True), said(found)


def test_bounds_of_actions():
    """N(0, 1) is within 0.5 of 0 with 38 %."""
    for limit, words in [
        (0.5, "62% of what a policy tries at first is beyond, and clipped"),
        (1.0, ""),
        (100.0, "a policy tries about -2 to 2 at first, and reaches the rest late"),
        (np.inf, ""),
    ]:
        spaces = pytest.importorskip("gymnasium.spaces")
        found = [f.text for f in check_bounds(spaces.Box(-limit, limit, (2,)))]
        assert found == ([f"actions are {-limit:g} to {limit:g}: {words}"] if words else [])


# ---- the script ----------------------------------------------------------------------------------

QUICK = ("--seconds", 0.2, "--device", "cpu")


def report(folder: Path) -> dict[str, list[dict[str, str]]]:
    return json.loads((folder / "report.json").read_text())["items"]


def test_a_report(compiled, tmp_path):
    done = run("check_env", compiled(), *QUICK, "--json", "report.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    items = report(tmp_path)
    assert list(items) == [item.name for item in ITEMS]
    record = json.loads((tmp_path / "report.json").read_text())
    assert (record["verdict"], record["environment"]) == (WARN, "faulty")
    for findings in items.values():
        for finding in findings:
            assert finding["text"] in done.stdout and finding["hint"] in done.stdout
    assert done.stdout.splitlines()[-1].startswith("0 FAIL, 1 WARN, ")


CRASHES = {"CRASH_IN_INIT": "loads", "CRASH_IN_STEP": "steps", "CRASH_IN_CLOSE": "loads"}


@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_is_reported(compiled, tmp_path, name):
    words = (compiled(), *QUICK, *fault(name), "--json", "report.json")
    done = run("check_env", *words, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    items = report(tmp_path)
    first = next(item for item, findings in items.items() if findings[0]["verdict"] == FAIL)
    assert first == CRASHES[name]
    signal = "SIGABRT" if name == "CRASH_IN_CLOSE" else "SIGSEGV"
    assert items[first][0]["text"] == f"the process died of {signal}"
    after = list(items)[list(items).index(first) + 1 :]
    assert after and all(items[name][0]["verdict"] == SKIP for name in after)
    assert "1 FAIL" in done.stdout and "not looked at: " in done.stdout


def test_a_crash_hides_no_other_item(compiled, tmp_path):
    """One that others don't need: they go on in a process of their own."""
    code = "import os\ndef draw(observation): os.abort()\n"
    folder = kept_copy(compiled(), lambda copy: (copy / "draw.py").write_text(code))
    only = ("--only", "loads", "steps", "pictures", "speed")
    done = run("check_env", folder, *QUICK, *only, "--json", "-", cwd=tmp_path)
    items = json.loads(done.stdout)["items"]
    found = {name: findings[0]["verdict"] for name, findings in items.items()}
    assert found == {"loads": OK, "steps": OK, "pictures": FAIL, "speed": OK}
    assert done.returncode == 1 and "SIGABRT" in done.stderr


def test_a_process_that_hangs_or_ends_itself(compiled, tmp_path):
    words = ("--only", "loads", "steps", "rewards")
    compile_environment(compiled())  # which is no part of the limit
    hang = (compiled(), *QUICK, *fault("HANG_IN_STEP"), "--timeout", 15)
    done = run("check_env", *hang, *words, cwd=tmp_path)
    assert done.returncode == 1 and "steps         no answer after 15 seconds" in done.stdout
    done = run("check_env", python("EndsItsProcess"), *QUICK, *words, cwd=tmp_path)
    assert done.returncode == 1
    assert "loads         the process ended itself, with exit code 3" in done.stdout


def test_what_does_not_compile(compiled, tmp_path):
    folder = tmp_path / "faulty"
    shutil.copytree(compiled(), folder)
    with (folder / "faulty.h").open("a") as file:
        file.write("int c_stop(Faulty* env) { return env->sails; }\n")
    done = run("check_env", folder, *QUICK, cwd=tmp_path)
    assert done.returncode == 1 and "FAIL  loads" in done.stdout and "sails" in done.stdout


def test_an_item_that_is_none():
    with pytest.raises(UserError, match="there is no item 'nonsense'\n  hint: there are loads, "):
        select_items(ITEMS, ["nonsense"])


def test_numbers_in_words():
    assert numbers([3]) == "number 3"
    assert numbers([0, 1, 2, 5, 7, 8]) == "numbers 0-2, 5, 7-8"
    assert numbers(list(range(0, 20, 2)), most=2) == "numbers 0, 2 and 8 more"
    assert [number(x) for x in (0.123456, 1234567.0, -2.0)] == ["0.1235", "1,234,567", "-2"]
    assert [percent(x) for x in (1.0, 0.012, 0.000003)] == ["100 %", "1.2 %", "0.0003 %"]


def test_its_processes_end_when_it_is_killed(tmp_path):
    """Also while an environment hangs, with its own process."""
    (tmp_path / "hanging.py").write_text(
        "import gymnasium, os, time\n"
        "class Hangs(gymnasium.Env):\n"
        "    def __init__(self):\n"
        "        open('pid', 'w').write(f'{os.getpid()} ')\n"
        "        time.sleep(600)\n"
    )
    with started(command("check_env", "hanging:Hangs"), tmp_path) as process:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        child = psutil.Process(int((tmp_path / "pid").read_text()))
        assert child.pid != process.popen.pid
        process.popen.kill()
        wait_until(lambda: not child.is_running())
