"""check-env: a sound environment passes, a planted fault fails its item and no other."""

import functools
import io
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
from rich.console import Console
from running import command, run, started, wait_until

from puffer_mlx.check.env.environment import EnvUnderTest, PlayStatistics
from puffer_mlx.check.env.episodes import check_episodes
from puffer_mlx.check.env.gymnasium_check import check_bounds, run_gymnasium_checker
from puffer_mlx.check.env.inputs_outputs import check_observations, check_spaces
from puffer_mlx.check.env.items import ITEMS
from puffer_mlx.check.items import (
    FAIL,
    OK,
    SKIP,
    WARN,
    format_indices,
    format_number,
    format_percent,
    ok,
    run_item,
    worst_verdict,
)
from puffer_mlx.cli.check_env import print_findings
from puffer_mlx.config import load
from puffer_mlx.spec import ActionSpec, EnvSpec, ImageSlice
from puffer_mlx.vec.native.compiling import compile_environment

HERE = Path(__file__).parents[1] / "envs"
FAULTY, PYTHON = HERE / "faulty", HERE / "python" / "faulty.py"
NAMES = re.findall(r"^    ([A-Z_]+),", (FAULTY / "faulty.h").read_text(), re.MULTILINE)
LONG = ("speed", "training", "pictures")  # pictures: faulty has none


def look(name: object, *options: str, without=LONG, seconds: float = 0.25) -> dict[str, list]:
    """Run all check-env items on an environment in this process; return findings by item."""
    env = EnvUnderTest(load(str(name), options), seconds, 2)
    broken: set[str] = set()
    return {i.name: run_item(i, broken, env) for i in ITEMS if i.name not in without}


def vector_env(num_envs):
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")


def test_gymnasiums_check_skips_vector_environments(monkeypatch):
    module = SimpleNamespace(make=vector_env)
    monkeypatch.setitem(sys.modules, "walks", module)  # type: ignore
    words = ["--vec.total-agents", "2", "--vec.num-buffers", "1"]
    (finding,) = run_gymnasium_checker(EnvUnderTest(load("walks:make", words), 0.1, 1))
    assert finding.verdict == SKIP and "this is SyncVectorEnv" in finding.text


def test_an_episode_that_ends_with_the_last_step_of_the_play_counts_everywhere():
    """Its terminal would have come with the next step."""
    rows = np.zeros((1, 1))
    observed = PlayStatistics(rows, rows, rows, rows, np.zeros(1, int), terminals=2, lengths=[5, 5])
    observed.observed_ends = [(5, False), (5, False), (5, True)]
    env: Any = SimpleNamespace(observed=observed, native=False, agents_each=1)
    assert check_episodes(env)[0].text.startswith("3 ended: 5 to 5 steps")


def verdicts(found: dict[str, list]) -> dict[str, str]:
    """Return the check-env items whose worst finding is a warning or a failure."""
    return {n: worst_verdict(f) for n, f in found.items() if worst_verdict(f) in (WARN, FAIL)}


def said(found: dict[str, list]) -> str:
    return "\n".join(f"{name}: {f.text}: {f.hint}" for name, all in found.items() for f in all)


# ---- C -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled():
    """Return a function that makes a faulty C environment, its faults chosen by macros."""

    @functools.cache
    def make(*macros: str) -> Path:
        text = "".join(f"#define {macro}\n" for macro in macros)
        binding = text + (FAULTY / "binding.c").read_text()
        return kept_copy(FAULTY, lambda copy: (copy / "binding.c").write_text(binding))

    return make


def fault(name: str) -> tuple[str, str]:
    return "--env.fault", str(NAMES.index(name))


@pytest.mark.parametrize("macros", [(), ("MASKED",)], ids=["plain", "masked"])
def test_sound_environment_passes(compiled, macros):
    found = look(compiled(*macros), without=("pictures",))
    assert verdicts(found) == {}, said(found)
    text = said(found)
    assert "an agent sees 4 numbers (float32) and chooses one of 3 actions" in text
    assert ("a mask says which are legal" in text) == bool(macros)
    assert "one thread and 4, one group and two agree to the bit" in text
    assert "steps are equal to the bit" in text and "score 0." in text


C_FAULTS = {  # a planted fault -> the items that find it, and their words
    "NAN_OBSERVATION": ({"observations": FAIL}, "observation[2] of agent 0 is not finite"),
    "INFINITE_REWARD": ({"rewards": FAIL}, "is not finite (NaN or infinite) after"),
    "DEAF": (
        {"actions": FAIL, "observations": WARN, "rewards": WARN},
        "agents that acted differently had the same observations",
    ),
    "PER_THREAD": ({"seeds": FAIL}, "with 4 threads a seed gives a different run"),
    "LAZY_RESET": ({"resets": FAIL}, "still belongs to the episode that ended"),
    "LATE_RESET": (
        {"resets": FAIL},
        "observation[2] is 0.1 to 0.19 after a reset, but 10 to 10 after",
    ),
    "NO_LOG": ({"log": FAIL}, "episodes ended, but nothing was reported"),
    "NAN_LOG": ({"log": FAIL}, "score: not finite"),
    "OWN_MEMORY": ({"state": FAIL}, "MY_STATE_PLAIN is for structs without pointers"),
    "NO_REWARD": ({"rewards": WARN}, "always 0 in"),
    "LARGE_REWARD": ({"rewards": WARN}, "--train.reward-clip 50"),
    "LARGE_OBSERVATION": (
        {"observations": WARN},
        "observation[0-1] went beyond ±10 (4 numbers in all)",
    ),
    "NO_TERMINAL": ({"episodes": WARN}, "were reported, but "),
    "ENDLESS": ({"episodes": WARN}, "none ended in"),
    "ONE_STEP": ({"episodes": WARN, "observations": WARN}, "of them are one step long"),
    "NO_CHANCE": ({"seeds": WARN, "observations": WARN}, "nothing is random"),
    "FORGOTTEN_EPISODES": ({"log": WARN}, "log.n += 1 where an episode ends"),
    "EXIT_IN_STEP": ({"steps": FAIL}, "called exit(3) while it was stepped"),
}


@pytest.mark.parametrize("name", C_FAULTS)
def test_planted_fault_in_c_is_found(compiled, name):
    expected, words = C_FAULTS[name]
    found = look(compiled(), *fault(name))
    assert (verdicts(found), words in said(found)) == (expected, True), said(found)


def test_groups_that_change_a_run_are_found(compiled, monkeypatch):
    real = EnvUnderTest.small_config

    def small_config(self, count=0, **options):
        return real(self, count, **{**options, **({"seed": 5} if "groups" in options else {})})

    monkeypatch.setattr(EnvUnderTest, "small_config", small_config)
    found = look(compiled())
    assert verdicts(found) == {"seeds": FAIL}
    assert "with two groups a seed gives a different run: after the reset, agent" in said(found)


@pytest.mark.parametrize(
    ("what", "seeds", "state"),
    [
        (
            1,
            "one group and two can't be compared: the number of environments",
            "are equal to the bit",
        ),
        (2, "runs can't be compared: the number of environments", "a saved state may not fit"),
    ],
)
def test_number_of_environments_may_vary(compiled, what, seeds, state):
    found = look(compiled(f"VARIES {what}"), without=(*LONG, "log", "observations", "resets"))
    assert all(worst_verdict(findings) != FAIL for findings in found.values()), said(found)
    assert seeds in said({"seeds": found["seeds"]}), said(found)
    assert state in said({"state": found["state"]}), said(found)


@pytest.mark.parametrize(
    ("size", "each", "agents"),
    [
        (100_000, 1024, 4 * 1024),  # what threads and groups can divide
        (4, 2.3, 148),  # so that two groups can divide them
    ],
)
def test_few_agents_are_played_if_they_need_much_memory(monkeypatch, size, each, agents):
    env = EnvUnderTest(load("squared"), 1.0, 2)
    spec = EnvSpec("crowd", size, np.dtype(np.uint8), ActionSpec((5,)))
    full = SimpleNamespace(spec=spec, num_agents=10 * each, num_environments=10, description="")
    env.__dict__["full"] = full
    monkeypatch.setattr(EnvUnderTest, "native", True)
    assert env.small_config().vec.total_agents == agents


def env_that_saw(spec: EnvSpec, low: np.ndarray, high: np.ndarray, name: str) -> Any:
    """Return a stand-in for an environment whose observations had these extremes."""
    config = load(name)
    observed = SimpleNamespace(not_finite=None, low=low, high=high, steps=9)
    full = SimpleNamespace(spec=spec)
    return SimpleNamespace(
        config=config, training_config=config, full=full, observed=observed, agents_each=1.0
    )


def test_pixels_among_other_numbers_may_stay_the_same():
    spec = EnvSpec("e", 14, np.dtype(np.float32), ActionSpec((5,)))
    spec = replace(spec, image_parts=(ImageSlice(1, (2, 2, 3), False),))
    low, high = np.zeros(14), np.array([0.0, *[255.0] * 11, 0.0, 99.0])
    env = env_that_saw(spec, low, high, "squared")
    texts = [finding.text for finding in check_observations(env)]
    assert texts[1:] == [
        "observation[0] never changed (14 numbers in all)",
        "observation[13] went beyond ±10 (14 numbers in all)",
    ]
    (seen,) = check_spaces(env)
    assert "sees 14 numbers, an image of 2 x 2 x 3 among them (float32)" in seen.text


def test_observations_that_a_key_disables_may_stay_0():
    spec = EnvSpec("breakout", 118, np.dtype(np.float32), ActionSpec((3,)))
    high = np.ones(118)
    high[7:10] = 0
    _, found = check_observations(env_that_saw(spec, np.zeros(118), high, "breakout-a"))
    assert found.text == "observation[7] never changed (118 numbers in all)"


def test_sources_of_randomness_are_named_with_their_lines(compiled):
    found = look(compiled(), *fault("RANDOM"))
    text = said(found)
    assert verdicts(found) == {"seeds": FAIL} and "one seed gives two different runs" in text
    lines = (FAULTY / "faulty.h").read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "(int)random()" in text)
    assert f"faulty.h:{line} (random())" in text
    assert "(a static variable)" in text and "seeds failed" in text


@pytest.mark.parametrize(
    ("name", "verdict", "words"),
    [("NOTHING_LEGAL", FAIL, "allows no choice of head 0"), ("ALL_LEGAL", WARN, "never forbid")],
)
def test_planted_fault_of_masks_is_found(compiled, name, verdict, words):
    found = look(compiled("MASKED"), *fault(name))
    assert verdicts(found) == {"actions": verdict} and words in said(found), said(found)


def test_losses_that_are_not_finite_are_found(compiled):
    found = look(compiled(), *fault("HUGE_OBSERVATION"), without=("speed", "pictures"))
    assert verdicts(found) == {"training": FAIL, "observations": WARN}, said(found)
    assert "losses are not finite" in said(found)


def test_missing_state_score_and_pictures_are_warnings(compiled):
    found = look(compiled("STATELESS", "SCORELESS"), without=("speed", "training"))
    assert verdicts(found) == dict.fromkeys(("state", "log", "pictures"), WARN)
    text = said(found)
    assert "define MY_STATE_PLAIN" in text and "there is no score" in text and "no draw.py" in text


def test_unused_key_is_a_warning(compiled):
    old, new = "fault = 0", "fault = 0\nwind = 3"
    found = look(kept_copy(compiled(), lambda copy: edit(copy / "faulty.ini", old, new)))
    assert verdicts(found) == {"loads": WARN} and "the environment doesn't read env.wind" in said(
        found
    )


@pytest.mark.parametrize(
    ("code", "verdict", "words"),
    [
        ("def draw(observation): return observation", FAIL, "draw returned float32 (4,)"),
        ("def draw(observation): return np.zeros((3, 3, 3), np.uint8)", WARN, "all the same"),
    ],
)
def test_invalid_pictures_are_found(compiled, code, verdict, words):
    text = f"import numpy as np\n{code}\n"
    folder = kept_copy(compiled(), lambda copy: (copy / "draw.py").write_text(text))
    found = look(folder, without=("speed", "training"))
    assert verdicts(found) == {"pictures": verdict} and words in said(found), said(found)


# ---- Python --------------------------------------------------------------------------------------


def python(name: str) -> str:
    pytest.importorskip("gymnasium")
    return f"{PYTHON}:{name}"


def test_sound_environment_in_python_passes():
    found = look(python("Sound"), without=())
    assert verdicts(found) == {}, said(found)
    text = said(found)
    assert "check_env reports no problem" in text and "truncated by a time limit" in text
    assert "pictures: 9 x 4 pixels" in text


PYTHON_FAULTS = {
    "Raises": ({"loads": FAIL}, "a plank is missing"),
    "OutOfItsSpace": ({"gymnasium": FAIL}, "observation[2] is 0.5"),
    "SeesNothing": ({"observations": FAIL}, "every agent sees the same"),
    "SharedChance": (
        {"seeds": FAIL, "gymnasium": FAIL},
        "take random numbers only from self.np_random",
    ),
    "Growing": ({"pictures": FAIL}, "size changes"),
    "Undrawn": ({"pictures": WARN}, "no pencil"),
    "OldPosition": ({"resets": WARN}, "observation[0] has other values after most terminals"),
    "Overdue": ({"endings": WARN}, "episodes terminated after 30 steps"),
    "Rescaled": ({"gymnasium": WARN}, "RescaleAction(env, -1, 1)"),
}


@pytest.mark.parametrize("name", PYTHON_FAULTS)
def test_planted_fault_in_python_is_found(name):
    expected, words = PYTHON_FAULTS[name]
    one = ("--vec.backend", "sync") if name == "SharedChance" else ()  # each process counts anew
    found = look(python(name), *one, without=("speed", "training"))
    assert (verdicts(found), words in said(found)) == (expected, True), said(found)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (100.0, "a new policy samples about -2 to 2, and reaches larger actions late"),
        (np.inf, ""),
    ],
)
def test_bounds_that_a_first_policy_misses_are_found(limit, words):
    found = [f.text for f in check_bounds(gymnasium.spaces.Box(-limit, limit, (2,)))]
    assert found == ([f"actions are {-limit:g} to {limit:g}: {words}"] if words else [])


# ---- the command ---------------------------------------------------------------------------------

QUICK = ("--seconds", 0.2, "--device", "cpu")


def report(folder: Path) -> dict[str, list[dict[str, str]]]:
    return json.loads((folder / "report.json").read_text())["items"]


def test_report_has_what_is_printed(compiled, tmp_path):
    done = run("check_env", compiled(), *QUICK, "--json", "report.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    items = report(tmp_path)
    assert list(items) == [item.name for item in ITEMS]
    record = json.loads((tmp_path / "report.json").read_text())
    assert (record["verdict"], record["environment"]) == (WARN, "faulty")
    for findings in items.values():
        for finding in findings:
            assert finding["text"] in done.stdout and finding["hint"] in done.stdout
    summary, following = done.stdout.splitlines()[-2:]
    assert summary.startswith("0 FAIL, 1 WARN, ") and following.startswith("next  ")
    assert following.endswith(f"train.py {compiled()}")


def test_crash_is_reported_and_later_items_are_skipped(compiled, tmp_path):
    words = (compiled(), *QUICK, *fault("CRASH_IN_STEP"), "--json", "report.json")
    done = run("check_env", *words, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    items = report(tmp_path)
    assert items["steps"][0]["text"] == "the process died of SIGSEGV"
    before = list(items)[: list(items).index("steps")]
    verdicts = {item: findings[0]["verdict"] for item, findings in items.items()}
    assert {verdicts.pop(item) for item in before} <= {OK}
    assert verdicts.pop("steps") == FAIL and {*verdicts.values()} == {SKIP}


def test_crash_in_pictures_hides_no_other_item(compiled, tmp_path):
    code = "import os\ndef draw(observation): os.abort()\n"
    folder = kept_copy(compiled(), lambda copy: (copy / "draw.py").write_text(code))
    only = ("--only", "loads", "steps", "pictures", "speed")
    done = run("check_env", folder, *QUICK, *only, "--json", "-", cwd=tmp_path)
    items = json.loads(done.stdout)["items"]
    found = {name: findings[0]["verdict"] for name, findings in items.items()}
    assert found == {"loads": OK, "steps": OK, "pictures": FAIL, "speed": OK}
    assert done.returncode == 1 and "SIGABRT" in done.stderr


def test_process_that_hangs_or_ends_itself_is_reported(compiled, tmp_path):
    words = ("--only", "loads", "steps", "rewards")
    compile_environment(compiled())  # not within the limit
    hang = (compiled(), *QUICK, *fault("HANG_IN_STEP"), "--timeout", 15)
    done = run("check_env", *hang, *words, cwd=tmp_path)
    assert done.returncode == 1 and "steps         no answer after 15 seconds" in done.stdout
    done = run("check_env", python("EndsItsProcess"), *QUICK, *words, cwd=tmp_path)
    assert done.returncode == 1
    assert "loads         the process exited with code 3" in done.stdout


def test_error_of_the_compiler_is_reported(compiled, tmp_path):
    folder = tmp_path / "faulty"
    shutil.copytree(compiled(), folder)
    with (folder / "faulty.h").open("a") as file:
        file.write("int c_stop(Faulty* env) { return env->sails; }\n")
    done = run("check_env", folder, *QUICK, cwd=tmp_path)
    assert done.returncode == 1 and "FAIL  loads" in done.stdout and "sails" in done.stdout


def test_lists_of_numbers_are_shortened():
    assert format_indices([3]) == "observation[3]"
    assert format_indices([0, 1, 2, 5, 7, 8]) == "observation[0-2, 5, 7-8]"
    assert format_indices(list(range(0, 20, 2)), max_ranges=2) == "observation[0, 2] and 8 more"
    assert [format_number(x) for x in (0.123456, 1234567.0, -2.0)] == ["0.1235", "1,234,567", "-2"]
    assert [format_percent(x) for x in (1.0, 0.012, 0.000003)] == ["100 %", "1.2 %", "0.0003 %"]


def test_process_of_a_hanging_environment_ends_with_the_command(tmp_path):
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


def test_a_terminal_wraps_findings_in_a_column_of_their_own():
    file = io.StringIO()
    console = Console(file=file, width=50, force_terminal=True, color_system=None)
    print_findings(console, "resets", [ok("every reset gives an observation of the space")])
    assert [line.rstrip() for line in file.getvalue().splitlines()] == [
        "ok    resets        every reset gives an",
        "                    observation of the space",
    ]
