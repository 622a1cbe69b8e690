"""Trajectories on an emulated GPU are compared with the host's, and the rules are compiled."""

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from emulated_run import emulated_gpu

from puffer_mlx import config, vec
from puffer_mlx.check import trajectories
from puffer_mlx.check.env import on_gpu
from puffer_mlx.check.env.environment import EnvUnderTest
from puffer_mlx.check.gpu import runs
from puffer_mlx.check.items import Failed
from puffer_mlx.policy.rollout_on_gpu import RolloutOnGPU
from puffer_mlx.vec.native.gpu_rules import GPURules, gpu_rules
from puffer_mlx.vec.native.make import open_environment, read_spec
from puffer_mlx.vec.native.sources import environments_folder

ENVS = environments_folder()


def make(name: str = "squared") -> Any:
    sizes = ["--vec.total-agents", "16", "--vec.num-buffers", "1"]
    return vec.make(config.load(name, [*sizes, "--train.minibatch-size", "1024"]), 1)


def compare(name: str = "squared", in_steps: bool = False) -> trajectories.TrajectoryComparison:
    with emulated_gpu():
        found = trajectories.compare_trajectories(lambda: make(name), 1, in_steps)
    assert found is not None
    return found


def subject(name: str = "squared") -> EnvUnderTest:
    return EnvUnderTest(config.load(name), 1, 1)


@pytest.fixture
def wrong(monkeypatch):
    """Return a list; the function that a test adds to it changes rewards (T + 1, N) on the GPU."""
    real, said = RolloutOnGPU.launch, []

    def launch(self, *given):
        found = real(self, *given)
        return found._replace(rewards=said[0](found.rewards))

    monkeypatch.setattr(RolloutOnGPU, "launch", launch)
    return said


@pytest.mark.parametrize(
    ("in_steps", "form"), [(False, "in one launch"), (True, "in a few launches a step")]
)
def test_trajectories_are_equal(in_steps, form):
    found = compare(in_steps=in_steps)
    assert found.description == form
    assert (found.equal, found.agents, found.steps, found.first_difference) == (16, 16, 64, None)
    assert found.difference == 0 and found.ends > 0 and found.seconds > 0


def test_another_reward_is_found(wrong):
    wrong.append(lambda rewards: rewards + mx.where(mx.arange(16) == 3, 0.5, 0.0))
    found = compare()
    assert (found.equal, found.first_difference, found.difference) == (15, 0, 0.5)


@pytest.mark.parametrize(
    ("more", "verdict", "words"),
    [
        (1e-5, "ok", "except for rounding (1e-05), after which 64 agents played differently"),
        (0.5, "FAIL", "results differ from step 0 on"),
        (float("nan"), "FAIL", "by up to inf"),
    ],
)
def test_check_env_reports_the_difference(monkeypatch, wrong, more, verdict, words):
    wrong.append(lambda rewards: rewards + more)
    monkeypatch.setattr(on_gpu, "COMPARED_ROLLOUTS", 1)
    with emulated_gpu():
        (found,) = on_gpu.check_gpu_rules(subject())
    assert found.verdict == verdict and words in found.text


def test_trajectories_of_a_world_are_equal(monkeypatch):
    monkeypatch.setattr(on_gpu, "COMPARED_ROLLOUTS", 2)
    with emulated_gpu():
        (found,) = on_gpu.check_gpu_rules(subject("craftax_classic"))
    ends = re.search("to the bit: 64 agents for 128 steps, ([0-9]+) episodes ended", found.text)
    assert found.verdict == "ok" and ends and int(ends[1]) > 10


def test_too_few_environments_are_a_warning(monkeypatch):
    monkeypatch.setattr(on_gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(trajectories, "rollouts_on_gpu", lambda *_: None)
    (found,) = on_gpu.check_gpu_rules(subject())
    assert found.verdict == "WARN" and "too few environments" in found.text


def test_rules_are_only_compiled_without_a_gpu(monkeypatch):
    monkeypatch.setattr(on_gpu, "has_gpu", lambda: False)
    (found,) = on_gpu.check_gpu_rules(subject())
    assert found.verdict == "ok" and "compile without headers, double" in found.text
    assert "this machine has no GPU" in found.text
    (found,) = on_gpu.check_gpu_rules(subject("target"))
    assert found.verdict == "-" and "doesn't define MY_GPU" in found.text


def rules(folder: Path) -> GPURules:
    library = open_environment(folder)
    found = gpu_rules(folder, library, read_spec(folder, library))
    assert found is not None
    return found


def test_rules_of_our_environments_compile():
    assert on_gpu.compile_rules(rules(ENVS / "g2048")).verdict == "ok"


REFUSED = [
    ("ENV_FN double half(double x) { return x / 2; }", "FAIL", "poisoned"),
    ('#include "missing.h"', "FAIL", "missing.h, which doesn't exist"),
    ("ENV_FN void f(int ENV_PTR* a) { memcpy(a, a + 1, 4); }", "FAIL", "memcpy"),
    ("ENV_FN int f(void) { static int calls; return ++calls; }", "FAIL", "poisoned"),
    ("int shared;\nRULE void f(void) { shared++; }", "FAIL", "variables outside of functions"),
    ("ENV_FN void f(Log ENV_PTR* log) { *log = (Log){0}; }", "WARN", "compound"),
    ("TABLE int T[2] = {1, 2};\nRULE int f(int i) { return T[i]; }", "ok", ""),
    (
        '// a double, #include <string.h>, memcpy(\nRULE int f(void) { return sizeof "static"; }',
        "ok",
        "",
    ),
]


def compiled(line: str, folder: Path) -> tuple[str, str]:
    """Compile the GPU rules of the environment squared with a line added to its header.

    Returns the verdict and its text.
    """
    of_squared = rules(ENVS / "squared")
    header = folder / "squared.h"
    header.write_text(of_squared.header.read_text() + line + "\n")
    found = on_gpu.compile_rules(of_squared._replace(header=header))
    return found.verdict, found.text.replace("\u2018", "'")


def test_rules_that_no_gpu_takes_are_found(tmp_path):
    found = {line: compiled(line, tmp_path) for line, *_ in REFUSED}
    assert {line: found[line][0] for line, *_ in REFUSED} == {
        line: verdict for line, verdict, _ in REFUSED
    }
    assert {line: found[line] for line, _, said in REFUSED if said not in found[line][1]} == {}
    number = (ENVS / "squared" / "squared.h").read_text().count("\n") + 1
    assert f"squared.h:{number}:" in found[REFUSED[0][0]][1]


def test_rules_are_skipped_without_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = on_gpu.compile_rules(rules(ENVS / "squared"))
    assert found.verdict == "-" and "'no-such-compiler' can't be run" in found.text


def test_check_gpu_tolerates_rounding_of_breakout_alone(monkeypatch, wrong):
    wrong.append(lambda rewards: rewards)
    monkeypatch.setattr(runs, "AGENTS", 16)
    monkeypatch.setattr(runs, "ROLLOUTS", 1)
    with emulated_gpu():
        assert "squared" in runs._check_environment("squared")
        wrong[0] = lambda rewards: rewards + 1e-6
        with pytest.raises(Failed, match="squared: rows differ from step 0 on"):
            runs._check_environment("squared")
        assert "breakout" in runs._check_environment("breakout")
        wrong[0] = lambda rewards: rewards + 0.01
        with pytest.raises(Failed, match=r"breakout: rows differ by 0.01"):
            runs._check_environment("breakout")
