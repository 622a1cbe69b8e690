"""docs/writing_envs.md: its code is docs/examples', its commands run, and its examples learn."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from emulated_run import emulated_gpu, rolling_out_there
from running import ROOT, only, records, run

from puffer_mlx import vec
from puffer_mlx.check.env import on_gpu
from puffer_mlx.check.env.environment import EnvUnderTest
from puffer_mlx.check.env.items import ITEMS
from puffer_mlx.check.items import FAIL, WARN, run_item, worst
from puffer_mlx.config import load
from puffer_mlx.training import trainer

DOC = ROOT / "docs" / "writing_envs.md"
TEXT = DOC.read_text()
EXAMPLES = ROOT / "docs" / "examples"
LIGHTHOUSE, REGATTA = "docs/examples/lighthouse", "docs/examples/regatta.py:Regatta"
CASTAWAY = "docs/examples/castaway"
IN_C, IN_PYTHON = "In C: the lighthouse keeper", "In Python: the regatta"
WORLD = "A world with a map, mobs and an inventory"
QUICK = {  # what makes a run of an example shorter, and its scores before and after
    LIGHTHOUSE: ("--train.total-timesteps 1_500_000", 4.5, 7.0),
    REGATTA: ("--train.total-timesteps 100_000", -1.0, 1.5),
    CASTAWAY: ("--train.total-timesteps 1_000_000", 2.3, 2.7),
}
NOTHING = {  # what makes a run of an example as short as can be
    CASTAWAY: "--vec.total-agents 64 --train.minibatch-size 512 --train.total-timesteps 8192",
    LIGHTHOUSE: "--vec.total-agents 64 --train.minibatch-size 512 --train.total-timesteps 8192",
    REGATTA: "--train.total-timesteps 2048",
}
FIRST_WORD = re.compile(r"^(?:\$ )?(puffer-mlx ([a-z-]+) .*?) *(?:#.*)?$", re.MULTILINE)
COMMANDS = [
    (script.replace("-", "_"), shlex.split(line)[2:])
    for line, script in FIRST_WORD.findall(TEXT)
    if line.split()[2].startswith("docs/")
]


def blocks(language: str, title: str) -> list[str]:
    """A section's."""
    section = TEXT.partition(f"\n## {title}")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def castaway() -> dict[str, str]:
    """The files of the world that the page walks through, made of its blocks."""
    *header, binding = blocks("cpp", WORLD)
    (settings,) = blocks("ini", WORLD)
    return {"castaway.h": "".join(header), "binding.c": binding, "castaway.ini": settings}


@pytest.fixture
def followed(here: Path) -> Path:
    """A folder in which somebody followed the page."""
    folder = here / CASTAWAY
    folder.mkdir(parents=True)
    for name, text in castaway().items():
        (folder / name).write_text(text)
    return here


@pytest.fixture
def root(here: Path) -> Path:
    """A working directory that has docs/, as the root of a checkout."""
    (here / "docs").symlink_to(ROOT / "docs")
    return here


def test_the_code_is_that_of_the_examples():
    files = ["lighthouse/lighthouse.h", "lighthouse/binding.c"]
    assert blocks("c", IN_C) == [(EXAMPLES / name).read_text() for name in files]
    assert blocks("ini", IN_C) == [(EXAMPLES / "lighthouse" / "lighthouse.ini").read_text()]
    assert blocks("python", IN_PYTHON) == [(EXAMPLES / "regatta.py").read_text()]
    assert castaway() == {name: (ROOT / CASTAWAY / name).read_text() for name in castaway()}


def test_they_are_short():
    for code, most in (("".join(blocks("c", IN_C)), 80), (castaway()["castaway.h"], 160)):
        assert sum(bool(line.strip()) for line in code.splitlines()) <= most
    task, _, drawing = blocks("python", IN_PYTHON)[0].partition("    def render")
    assert sum(bool(line.strip()) for line in task.splitlines()) <= 32
    assert len(drawing.splitlines()) <= 10


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    assert len(links) > 5
    assert [link for link in links if not (DOC.parent / link.split("#")[0]).exists()] == []


def test_keys_and_options_exist():
    options = load("squared")
    for section, key in re.findall(r"--(vec|train)\.([a-z-]+)", TEXT):
        assert hasattr(getattr(options, section), key.replace("-", "_")), key
    assert options.train.reward_clip == 1 and load("module:x").train.bootstrap_truncated


def test_there_are_commands_for_both():
    assert {words[0] for _, words in COMMANDS} == {LIGHTHOUSE, REGATTA, CASTAWAY}
    assert {script for script, _ in COMMANDS} == {"check_env", "train", "evaluate"}


@pytest.mark.parametrize("name", [LIGHTHOUSE, REGATTA])
def test_its_commands_run(root, name):
    """In the document's order; shorter, and without a terminal there is nothing to watch."""
    if name == REGATTA:
        pytest.importorskip("gymnasium")
    own = [(script, words) for script, words in COMMANDS if words[0] == name]
    for script, words in own:
        if script == "check_env":
            continue  # below
        if "--terminal" in words:
            done = run(script, *words, "--device", "cpu", cwd=root)
            assert done.returncode == 2 and "not a terminal" in done.stderr
            continue
        if "--gif" in words:
            words = [*words[: words.index("--seconds")], "--steps", "3"]
        shorter = {"train": NOTHING[name], "evaluate": "--episodes 8"}[script].split()
        more = [] if "--gif" in words else shorter
        done = run(script, *words, *more, "--device", "cpu", cwd=root)
        assert (done.returncode, done.stderr) == (0, "")
    assert only(root, "*.gif").read_bytes().startswith(b"GIF89a")


def test_the_walk_through_works(followed):
    """Its commands in a folder that has nothing but the page's blocks."""
    shorter = {
        "check_env": "--seconds 0.2 --only loads steps seeds gpu",
        "train": NOTHING[CASTAWAY],
    }
    own = [(script, words) for script, words in COMMANDS if words[0] == CASTAWAY]
    assert [script for script, _ in own] == [*shorter]
    for script, words in own:
        more = shorter[script].split()
        done = run(script, *words, *more, "--device", "cpu", cwd=followed)
        assert done.returncode == 0, done.stdout + done.stderr
    assert any("env/raft" in record for record in records(followed))


def test_a_gpu_plays_the_walk_through(root, monkeypatch):
    """To the bit, and trains in it; its kernel runs as C++."""
    monkeypatch.setattr(on_gpu, "ROLLOUTS", 4)
    monkeypatch.setattr(trainer, "place", rolling_out_there)
    config = load(CASTAWAY, f"--device cpu {NOTHING[CASTAWAY]}".split())
    with emulated_gpu(root / CASTAWAY) as gpu:
        (found,) = on_gpu.check_gpu_rules(EnvUnderTest(load(CASTAWAY), 0.2, 1))
        assert found.verdict == "ok" and "to the bit: 64 agents for 256 steps" in found.text
        gpu.names.clear()
        with vec.make(config, 1) as environments:
            logs = [*trainer.Trainer(config, environments)]
    assert "rollout_mingru_castaway" in gpu.names and logs[-1]["env/n"] > 0


@pytest.mark.parametrize("name", [LIGHTHOUSE, REGATTA, CASTAWAY])
def test_nothing_is_wrong_with_them(root, name):
    if name == REGATTA:
        pytest.importorskip("gymnasium")
    env, broken = EnvUnderTest(load(name), 0.3, 2), set()
    items = [item for item in ITEMS if item.name not in ("speed", "training")]
    found = {item.name: run_item(item, broken, env) for item in items}
    assert {n: f for n, f in found.items() if worst(f) in (WARN, FAIL)} == {}


@pytest.mark.parametrize("name", QUICK)
def test_they_learn(root, name):
    if name == REGATTA:
        pytest.importorskip("gymnasium")
    options, before, after = QUICK[name]
    done = run("train", name, *options.split(), "--device", "cpu", cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
    scores = [record["env/score"] for record in records(root) if "env/score" in record]
    assert scores[0] < before and np.mean(scores[-5:]) > after
