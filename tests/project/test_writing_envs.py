"""docs/writing_envs.md: its code is docs/examples', its commands run, and its examples learn."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from running import ROOT, only, records, run

from puffer_mlx.check.env.findings import FAIL, WARN, worst
from puffer_mlx.check.env.items import ITEMS, judge
from puffer_mlx.check.env.subject import Subject
from puffer_mlx.config import load

DOC = ROOT / "docs" / "writing_envs.md"
TEXT = DOC.read_text()
EXAMPLES = ROOT / "docs" / "examples"
LIGHTHOUSE, REGATTA = "docs/examples/lighthouse", "docs/examples/regatta.py:Regatta"
QUICK = {  # what makes a run of an example shorter, and its scores before and after
    LIGHTHOUSE: ("--train.total-timesteps 1_500_000", 4.5, 7.0),
    REGATTA: ("--train.total-timesteps 100_000", -1.0, 1.5),
}
NOTHING = {  # what makes a run of an example as short as can be
    LIGHTHOUSE: "--vec.total-agents 64 --train.minibatch-size 512 --train.total-timesteps 8192",
    REGATTA: "--train.total-timesteps 2048",
}
FIRST_WORD = re.compile(r"^(?:\$ )?(puffer-mlx ([a-z-]+) .*?) *(?:#.*)?$", re.MULTILINE)
COMMANDS = [
    (script.replace("-", "_"), shlex.split(line)[2:])
    for line, script in FIRST_WORD.findall(TEXT)
    if line.split()[2].startswith("docs/")
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def root(here: Path) -> Path:
    """A working directory that has docs/, as the root of a checkout."""
    (here / "docs").symlink_to(ROOT / "docs")
    return here


def test_the_code_is_that_of_the_examples():
    files = ["lighthouse/lighthouse.h", "lighthouse/binding.c"]
    assert blocks("c") == [(EXAMPLES / name).read_text() for name in files]
    assert blocks("ini") == [(EXAMPLES / "lighthouse" / "lighthouse.ini").read_text()]
    assert blocks("python") == [(EXAMPLES / "regatta.py").read_text()]


def test_the_world_is_craftax_classic():
    _, _, section = TEXT.partition("## A world with a map")
    parts = re.findall(r"```cpp\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    header = (ROOT / "envs" / "craftax_classic" / "craftax_classic.h").read_text()
    assert len(parts) == 4 and [part for part in parts if part not in header] == []


def test_they_are_short():
    code = "".join(blocks("c"))
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 80
    task, _, drawing = blocks("python")[0].partition("    def render")
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
    assert {words[0] for _, words in COMMANDS} == {LIGHTHOUSE, REGATTA}
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


@pytest.mark.parametrize("name", [LIGHTHOUSE, REGATTA])
def test_nothing_is_wrong_with_them(root, name):
    if name == REGATTA:
        pytest.importorskip("gymnasium")
    subject, broken = Subject(load(name), 0.3, 2), set()
    items = [item for item in ITEMS if item.name not in ("speed", "training")]
    found = {item.name: judge(item, subject, broken) for item in items}
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
