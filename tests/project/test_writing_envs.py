"""docs/writing_envs.md and gymnasium.md: their code is docs/examples', their commands run."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulated_run import emulated_gpu
from running import ROOT, only, records, run

from puffer_mlx.check.env import on_gpu
from puffer_mlx.check.env.environment import EnvUnderTest
from puffer_mlx.check.env.items import ITEMS
from puffer_mlx.check.items import FAIL, WARN, run_item, worst_verdict
from puffer_mlx.config import load

GUIDE = (ROOT / "docs" / "gymnasium.md").read_text()
TEXT = (ROOT / "docs" / "writing_envs.md").read_text() + GUIDE
EXAMPLES = ROOT / "docs" / "examples"
LIGHTHOUSE, REGATTA = "docs/examples/lighthouse", "docs/examples/regatta.py:Regatta"
CASTAWAY, TUG = "docs/examples/castaway", "docs/examples/tug"
IN_C, IN_PYTHON = "In C: the lighthouse keeper", "An environment in Python"
RELEASE_5 = "A folder from PufferLib 5.0"
QUICK = {  # options of a shorter run, and its scores before and after
    LIGHTHOUSE: ("--train.total-timesteps 1_500_000", 4.5, 7.0),
    REGATTA: ("--train.total-timesteps 100_000", -1.0, 1.5),
    CASTAWAY: ("--train.total-timesteps 1_000_000", 2.3, 2.7),
}
EVALUATE = ["--episodes", "8", "--device", "cpu"]
COMMAND = re.compile(r"^(?:\$ )?(puffer-mlx ([a-z-]+) .*?) *(?:#.*)?$", re.MULTILINE)
COMMANDS = [
    (script.replace("-", "_"), shlex.split(line)[2:])
    for line, script in COMMAND.findall(TEXT)
    if line.split()[2].startswith("docs/")
]
SHORT = [
    "--device",
    "cpu",
    "--vec.total-agents",
    "64",
    "--train.minibatch-size",
    "512",
    "--train.total-timesteps",
    "20_000",
]


def commands_of(name: str) -> list[tuple[str, list[str]]]:
    return [(script, words) for script, words in COMMANDS if words[0] == name]


def blocks(language: str, title: str) -> list[str]:
    """Return the code blocks of a language in a section of docs/writing_envs.md."""
    section = TEXT.partition(f"\n## {title}")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def root(here: Path) -> Path:
    """Return a working directory that contains docs/, like the root of a checkout."""
    (here / "docs").symlink_to(ROOT / "docs")
    return here


def test_code_of_the_page_is_that_of_the_examples():
    files = ["lighthouse/lighthouse.h", "lighthouse/binding.c"]
    assert blocks("c", IN_C) == [(EXAMPLES / name).read_text() for name in files]
    assert blocks("ini", IN_C) == [(EXAMPLES / "lighthouse" / "lighthouse.ini").read_text()]
    assert blocks("python", IN_PYTHON) == [(EXAMPLES / "regatta.py").read_text()]
    (init,) = blocks("cpp", RELEASE_5)
    assert init in (ROOT / TUG / "tug.h").read_text()


def test_commands_for_the_lighthouse_run(root):
    """In the page's order. There is no terminal; check_env: its items are run below."""
    for script, words in commands_of(LIGHTHOUSE):
        if "--terminal" in words or script == "check_env":
            continue
        more = {"train": SHORT, "evaluate": EVALUATE}[script]
        if "--gif" in words:
            words = [*words[: words.index("--seconds")], "--steps", "3"]
            more = ["--device", "cpu"]
        done = run(script, *words, *more, cwd=root)
        assert (done.returncode, done.stderr) == (0, "")
    assert only(root, "*.gif").read_bytes().startswith(b"GIF89a")


def test_guide_leads_from_an_empty_file_to_an_exported_policy(here):
    for package in ("gymnasium", "onnxruntime", "tensorboard", "PIL"):
        pytest.importorskip(package)
    guide = GUIDE.partition("\n## Settings")[0]
    code, *programs = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (here / "regatta.py").write_text(code)
    shorter = (
        ("check-env", "--seconds 0.1 --only steps"),
        ("train", "--total-timesteps 8_192 --eval-episodes 8"),
        ("evaluate", "--steps 3"),
        ("train", "--total-timesteps 12_288"),
        ("export", ""),
    )
    for (line, script), (expected, more) in zip(COMMAND.findall(guide), shorter, strict=True):
        assert script == expected
        words = shlex.split(line.replace("--seconds 10", ""))[2:]
        done = run(script.replace("-", "_"), *words, *more.split(), cwd=here)
        assert done.returncode == 0, done.stdout + done.stderr
    assert only(here, "*.gif").exists() and [*here.glob("logs/regatta-Regatta/*/events*")]
    folder = only(here, "checkpoints/regatta-Regatta/*").name
    predict, onnx = programs
    for program in (predict.replace("RUN", folder), onnx):
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


def test_commands_of_the_walk_through_run(root):
    shorter = {
        "check_env": ["--device", "cpu", "--seconds", "0.2", "--only", "steps", "gpu"],
        "train": SHORT,
    }
    assert [script for script, _ in commands_of(CASTAWAY)] == [*shorter]
    for script, words in commands_of(CASTAWAY):
        done = run(script, *words, *shorter[script], cwd=root)
        assert done.returncode == 0, done.stdout + done.stderr
    assert any("env/raft" in record for record in records(root))


def test_gpu_rules_of_the_walk_through_are_the_hosts(root, monkeypatch):
    """Its kernel runs as C++."""
    monkeypatch.setattr(on_gpu, "COMPARED_ROLLOUTS", 4)
    with emulated_gpu(root / CASTAWAY):
        (found,) = on_gpu.check_gpu_rules(EnvUnderTest(load(CASTAWAY), 0.2, 1))
    assert found.verdict == "ok" and "to the bit: 64 agents for 256 steps" in found.text


@pytest.mark.parametrize("name", [LIGHTHOUSE, REGATTA, CASTAWAY, TUG])
def test_check_env_finds_nothing_wrong(root, name):
    if name == REGATTA:
        pytest.importorskip("gymnasium")
    env, broken = EnvUnderTest(load(name), 0.3, 2), set()
    items = [item for item in ITEMS if item.name not in ("speed", "training")]
    found = {item.name: run_item(item, broken, env) for item in items}
    assert {n: f for n, f in found.items() if worst_verdict(f) in (WARN, FAIL)} == {}


@pytest.mark.parametrize("name", QUICK)
def test_examples_learn(root, name):
    if name == REGATTA:
        pytest.importorskip("gymnasium")
    options, before, after = QUICK[name]
    done = run("train", name, *options.split(), "--device", "cpu", cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
    scores = [record["env/score"] for record in records(root) if "env/score" in record]
    assert scores[0] < before and np.mean(scores[-5:]) > after


def test_two_players_learn_to_beat_random_play_against_two_opponents(root):
    commands = dict(commands_of(TUG))
    assert [*commands] == ["train", "evaluate"]
    shorter = {"train": "--train.total-timesteps 800_000", "evaluate": "--json scores.json"}
    for script, words in commands.items():
        done = run(script, *words, *shorter[script].split(), "--device", "cpu", cwd=root)
        assert (done.returncode, done.stderr) == (0, "")
    last = records(root)[-2]
    assert last["pool/num_banks"] == 2 and last["env/with_opponent"] > 0.1
    (result,) = json.loads((root / "scores.json").read_text())["pairs"]
    assert result["score"] > 0.75
