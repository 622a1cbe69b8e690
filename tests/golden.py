"""Files of what is given and what comes of it: ``python tests/golden.py`` writes them anew.

An entry's first line is ``$ WORDS``, a command line; lines ``| TEXT`` are its file toy.ini, and a
line ``% PATH TEXT`` is another file, with ``\\n`` in its text. All lines below are what comes of
it, in the words of the program. Entries have a blank line between.
Read the difference of what was written: it is what a user will see.
"""

import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parent
FILES = {
    "config/settings.txt": "config/test_settings",
    "cli/refused.txt": "cli/test_refused",
    "library/refused.txt": "library/test_library_refused",
}


def entries(name: str) -> list[tuple[list[str], str]]:
    """What is given, a line each, and what comes of it."""
    read = []
    for entry in (TESTS / name).read_text().strip().split("\n\n"):
        lines = entry.splitlines()
        given = [line for line in lines if line[0] in "$|%"]
        read.append((given, "\n".join(lines[len(given) :])))
    return read


def write_toy(given: list[str]) -> None:
    """Write an entry's files into the working directory, where others of before are gone."""
    for name in "ocean", "config", "configs", "mine":
        shutil.rmtree(name, ignore_errors=True)
    Path("toy.ini").write_text("\n".join(line[2:] for line in given if line[0] == "|"))
    for line in (line for line in given if line[0] == "%"):
        name, _, text = line[2:].partition(" ")
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text.replace("\\n", "\n"))


def placed(text: str) -> str:
    """A text without this machine's paths."""
    return text.replace(os.getcwd(), "HERE").replace(str(TESTS.parent), "ROOT")


def write(name: str, outcome: Callable[[list[str]], str], prepare: Callable[[], object]) -> None:
    """Write what comes of each entry now, in an empty folder; ``prepare`` fills that."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare()
        now = ["\n".join([*given, outcome(given)]) for given, _ in entries(name)]
        os.chdir(TESTS)
    (TESTS / name).write_text("\n\n".join(now) + "\n")


if __name__ == "__main__":
    for name, module in FILES.items():
        sys.path.insert(0, str(TESTS / Path(module).parent))
        test = importlib.import_module(Path(module).name)
        write(name, test.outcome, test.prepare)
