"""The commands in .github exist, with their options: a push isn't needed to find out."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator

import yaml
from running import ROOT

from puffer_mlx.cli import evaluate
from puffer_mlx.cli.commands import COMMANDS
from puffer_mlx.cli.train import configured

WORKFLOWS = {path.stem: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PARSERS = {"train": lambda words: configured(words, None), "evaluate": evaluate.parse}


def commands(script: str) -> Iterator[list[str]]:
    """The words of each command of a shell script, redirections left out."""
    for line in script.replace("\\\n", " ").splitlines():
        command: list[str] = []
        words = shlex.shlex(line.replace(" 2>&1", ""), posix=True, punctuation_chars=True)
        words.whitespace_split = True
        for word in [*words, ";"]:
            if word in ("|", "&&", ";"):
                yield command
                command = []
            else:
                command.append(word)


def assert_exists(command: list[str]) -> None:
    """A Makefile's target, or a command of puffer-mlx with options that it has."""
    program, *words = [os.path.basename(command[0]), *command[1:]]
    if program == "make":
        # VENV: under that of an outer make (MAKEFLAGS, environment), .venv/.test has no rule
        make = ["make", "--dry-run", "VENV=.venv", *words]
        subprocess.run(make, cwd=ROOT, check=True, capture_output=True)
    elif program == "puffer-mlx" and words != ["--version"]:
        name, *rest = words
        parse = PARSERS.get(name) or COMMANDS[name].load().option_parser().parse
        parse(rest)


def test_commands_exist():
    for path in WORKFLOWS.values():
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        scripts = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
        every = [command for script in scripts for command in commands(script)]
        assert {os.path.basename(command[0]) for command in every} & {"make", "puffer-mlx"}
        for command in every:
            assert_exists(command)


def test_macs():
    """Steps end after ten minutes, or twenty for all checks of the GPU; wheels are for macOS 14."""
    release = WORKFLOWS["release"].read_text()
    wheels = re.findall(r"runner: (macos-\d+), tag: (\S+) ", release)
    assert wheels == [("macos-15", "macosx_14_0_arm64")]
    assert 'MACOSX_DEPLOYMENT_TARGET: "14.0"' in release
    (job,) = yaml.safe_load(WORKFLOWS["mac"].read_text())["jobs"].values()
    assert (job["runs-on"], job["env"]) == ("macos-15", {"MLX_ENABLE_TF32": "0"})
    assert {step.get("timeout-minutes") for step in job["steps"] if "run" in step} == {10, 20}


def test_a_new_issue_asks_for_a_report():
    assert FORMS
    for path in FORMS:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= form.keys()
        assert all(part["attributes"]["label"] for part in form["body"])
        text = path.read_text()
        asked = [shlex.split(each) for each in re.findall("`(puffer-mlx [^`]+)`", text)]
        assert ["puffer-mlx", "check-gpu", "--report", "report.txt"] in asked
        for command in asked:
            assert_exists(command)
