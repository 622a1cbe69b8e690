"""Trajectories on a GPU, which is emulated, beside the host's; and what the checks say of them."""

from typing import Any

import mlx.core as mx
import pytest
from emulated_run import emulated_gpu
from kept import kept_copy

from puffer_mlx import config, vec
from puffer_mlx.check import trajectories
from puffer_mlx.check.env import on_gpu
from puffer_mlx.check.env.subject import Subject
from puffer_mlx.check.gpu import whole
from puffer_mlx.check.gpu.tools import Failed
from puffer_mlx.policy.rollout_on_gpu import RolloutOnGPU
from puffer_mlx.vec.native.sources import environments_folder

ENVS = environments_folder()


def make(name: str = "squared") -> Any:
    sizes = ["--vec.total-agents", "16", "--vec.num-buffers", "1"]
    return vec.make(config.load(name, [*sizes, "--train.minibatch-size", "1024"]), 1)


def compare(name: str = "squared") -> trajectories.Compared:
    with emulated_gpu():
        found = trajectories.compare(lambda: make(name), 1)
    assert found is not None
    return found


def subject(name: str = "squared") -> Subject:
    return Subject(config.load(name), 1, 1)


@pytest.fixture
def wrong(monkeypatch):
    """A list whose function says what becomes of rewards (T + 1, N) on the GPU."""
    real, said = RolloutOnGPU.launch, []

    def launch(self, *given):
        found = real(self, *given)
        return found._replace(rewards=said[0](found.rewards))

    monkeypatch.setattr(RolloutOnGPU, "launch", launch)
    return said


def test_the_same():
    found = compare()
    assert (found.equal, found.agents, found.steps, found.first) == (16, 16, 64, None)
    assert found.difference == 0 and found.ends > 0 and found.seconds > 0


def test_another_reward_is_found(wrong):
    wrong.append(lambda rewards: rewards + mx.where(mx.arange(16) == 3, 0.5, 0.0))
    found = compare()
    assert (found.equal, found.first, found.difference) == (15, 0, 0.5)


@pytest.mark.parametrize(
    ("more", "verdict", "words"),
    [
        (0.0, "ok", "to the bit"),
        (1e-5, "ok", "but for rounding (1e-05), from which 64 agents went other ways"),
        (0.5, "FAIL", "something else happens, first at step 0"),
        (float("nan"), "FAIL", "inf apart"),
    ],
)
def test_what_check_env_says(monkeypatch, wrong, more, verdict, words):
    wrong.append(lambda rewards: rewards + more)
    monkeypatch.setattr(on_gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(on_gpu, "LAUNCHES", 1)
    with emulated_gpu():
        (found,) = on_gpu.on_gpu(subject())
    assert found.verdict == verdict and words in found.text


def test_rows_that_do_not_fit(monkeypatch):
    monkeypatch.setattr(on_gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(trajectories, "rollouts_in_one_launch", lambda *_: None)
    (found,) = on_gpu.on_gpu(subject())
    assert found.verdict == "WARN" and "more memory" in found.text


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(on_gpu, "has_gpu", lambda: False)
    (found,) = on_gpu.on_gpu(subject())
    assert found.verdict == "ok" and "none here" in found.text
    (found,) = on_gpu.on_gpu(subject("target"))
    assert found.verdict == "-" and "doesn't define MY_GPU; it has 8 agents" in found.text


@pytest.mark.parametrize("name", ["squared", "breakout", "connect4", "g2048", "memory", "catch"])
def test_nothing_keeps_ours(name):
    assert [*on_gpu.obstacles(ENVS / name)] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("RULE double half(double x) { return x / 2; }", "numbers in double"),
        ("static int shared;", "static variables"),
        ("RULE void f(int OWN* a) { memset(a, 0, 4); }", "functions of the C library (memcpy …)"),
        ("RULE int OWN* make(void) { return malloc(4); }", "memory of its own (malloc)"),
        ("RULE int f(void) {\n    static const int T[2] = {1, 2};\n    return T[0];\n}", "tables"),
        ("RULE void f(Log OWN* log) { *log = (Log){0}; }", "compound literals"),
        ("// a double", ""),
    ],
)
def test_obstacles(line, said):
    def edit(copy):
        header = copy / "squared.h"
        header.write_text(header.read_text() + line + "\n")

    found = [*on_gpu.obstacles(kept_copy(ENVS / "squared", edit))]
    assert len(found) == bool(said) and all(said in each for each in found)


def test_what_check_gpu_says(monkeypatch, wrong):
    wrong.append(lambda rewards: rewards)
    monkeypatch.setattr(whole, "AGENTS", 16)
    monkeypatch.setattr(whole, "LAUNCHES", 1)
    with emulated_gpu():
        assert "squared" in whole._compared("squared")
        wrong[0] = lambda rewards: rewards + 1e-6
        with pytest.raises(Failed, match="squared: other rows from step 0 on"):
            whole._compared("squared")
        assert "breakout" in whole._compared("breakout")
        wrong[0] = lambda rewards: rewards + 0.01
        with pytest.raises(Failed, match=r"breakout: rows 0.01 apart"):
            whole._compared("breakout")
