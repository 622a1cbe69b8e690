"""Commands in .github exist, with their options."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
import yaml
from running import ROOT

from puffer_mlx.cli import evaluate
from puffer_mlx.cli.commands import COMMANDS
from puffer_mlx.cli.train import configured

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PARSERS = {"train": lambda words: configured(words, None), "evaluate": evaluate.parse}


def commands(script: str) -> Iterator[list[str]]:
    """Return the words of each command of a shell script, without redirections."""
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
    """Check a target of the Makefile, or a command of puffer-mlx and its options."""
    program = os.path.basename(command[0])
    words = command[1:]
    if program == "make":
        # VENV: under that of an outer make (MAKEFLAGS, environment), .venv/.test has no rule
        make = ["make", "--dry-run", "VENV=.venv", *words]
        subprocess.run(make, cwd=ROOT, check=True, capture_output=True)
    elif program == "puffer-mlx" and words != ["--version"]:
        name, *rest = words
        parse = PARSERS.get(name) or COMMANDS[name].load().option_parser().parse
        parse(rest)


@pytest.mark.parametrize("path", [*WORKFLOWS, *FORMS], ids=lambda path: path.stem)
def test_commands_of_workflows_and_issue_forms_exist(path):
    text = path.read_text()
    jobs = yaml.safe_load(text).get("jobs", {}).values()
    scripts = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    every = [command for script in scripts for command in commands(script)]
    every += [shlex.split(words) for words in re.findall("`(puffer-mlx [^`]+)`", text)]
    assert {os.path.basename(command[0]) for command in every} & {"make", "puffer-mlx"}
    for command in every:
        assert_exists(command)
