"""Messages by what a person wrote, in ``messages.txt``: ``python tests/golden.py`` rewrites it.

An entry is a command line (``$``), the words for a configuration (``:``) or a Python expression
(``>>>``). Lines ``| TEXT`` are the content of toy.ini, and ``% PATH TEXT`` is another file with
``\\n`` in its text. The lines below are the message. Entries are separated by blank lines.
Read the difference after a rewrite: users will see it.
"""

import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
FILE = TESTS / "messages.txt"
TESTED_BY = {
    ":": "config/test_settings",  # first: it imports puffer_mlx before mlx
    "$": "cli/test_refused",
    ">": "library/test_library_refused",
}


def entries(kind: str) -> dict[str, str]:
    """Read the recorded messages of a kind: "$", ":", ">" or "" (all).

    Returns each message by the input that causes it.
    """
    found = {}
    for entry in FILE.read_text().strip().split("\n\n"):
        if entry.startswith(kind):
            given, *rest = entry.splitlines()
            files = [line for line in rest if line[0] in "|%"]
            found["\n".join([given, *files])] = "\n".join(rest[len(files) :])
    return found


def written(given: str) -> str:
    """Return the command line or expression of a recorded message's input, without its mark."""
    return given.partition("\n")[0].partition(" ")[2]


def write_toy(given: str) -> None:
    """Write the files of a recorded message's input here; remove those of earlier ones."""
    for name in "ocean", "config", "configs", "mine":
        shutil.rmtree(name, ignore_errors=True)
    lines = given.splitlines()[1:]
    Path("toy.ini").write_text("\n".join(line[2:] for line in lines if line[0] == "|"))
    for line in lines:
        if line[0] == "%":
            name, _, text = line[2:].partition(" ")
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text.replace("\\n", "\n"))


def placed(text: str) -> str:
    """Replace this machine's paths in a text by HERE and ROOT."""
    return text.replace(os.getcwd(), "HERE").replace(str(TESTS.parent), "ROOT")


def messages(kind: str, module: Any) -> dict[str, str]:
    """Compute the recorded messages of a kind anew, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        module.prepare()
        found = {given: module.outcome(given) for given in entries(kind)}
        os.chdir(TESTS)
    return found


if __name__ == "__main__":
    now = entries("")
    for kind, name in TESTED_BY.items():
        sys.path.insert(0, str(TESTS / Path(name).parent))
        now |= messages(kind, importlib.import_module(Path(name).name))
    FILE.write_text("\n\n".join(f"{given}\n{said}" for given, said in now.items()) + "\n")
