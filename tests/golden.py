"""Files of inputs and the program's messages: ``python tests/golden.py`` rewrites them.

An entry's first line is ``$ WORDS``, a command line; lines ``| TEXT`` are its file toy.ini, and a
line ``% PATH TEXT`` is another file, with ``\\n`` in its text. All lines below are the program's
messages. Entries are separated by a blank line. Read the diff: users will see these messages.
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
    """Return the lines of input and the messages of each entry."""
    read = []
    for entry in (TESTS / name).read_text().strip().split("\n\n"):
        lines = entry.splitlines()
        given = [line for line in lines if line[0] in "$|%"]
        read.append((given, "\n".join(lines[len(given) :])))
    return read


def write_toy(given: list[str]) -> None:
    """Write an entry's files into the working directory, and remove earlier ones."""
    for name in "ocean", "config", "configs", "mine":
        shutil.rmtree(name, ignore_errors=True)
    Path("toy.ini").write_text("\n".join(line[2:] for line in given if line[0] == "|"))
    for line in (line for line in given if line[0] == "%"):
        name, _, text = line[2:].partition(" ")
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text.replace("\\n", "\n"))


def placed(text: str) -> str:
    """Return a text without this machine's paths."""
    return text.replace(os.getcwd(), "HERE").replace(str(TESTS.parent), "ROOT")


def write(name: str, outcome: Callable[[list[str]], str], prepare: Callable[[], object]) -> None:
    """Write the current messages of all entries. ``prepare`` fills the empty folder."""
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
