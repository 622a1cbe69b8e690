"""Plant faults in kernels, mathematics and the training loop: ``python tests/faults [NAME …]``.

``tests/faults/NAME.toml`` lists ``[[fault]]`` tables with ``file``, ``old`` (a text that occurs
once in the file), ``new`` and ``tests`` (arguments for pytest). Each fault is planted alone, in a
copy of the repository. The exit status is 1 if tests pass with a fault, or fail without any.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def faults(names: list[str]) -> list[dict[str, str]]:
    """Return the recorded faults (code edits) of some TOML files, or of all.

    ``name``: the file's name and a number.
    """
    names = names or sorted(path.stem for path in HERE.glob("*.toml"))
    return [
        {"name": f"{name}-{index}", **fault}
        for name in names
        for index, fault in enumerate(tomllib.loads((HERE / f"{name}.toml").read_text())["fault"])
    ]


def copy_to(folder: Path) -> None:
    """Copy all files that git tracks, as they are now, into a folder."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def fails(folder: Path, words: str) -> bool:
    """Run pytest in a folder: True if a test fails or can't be collected. No test is an error."""
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    how = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([*pytest, *shlex.split(words)], **how, check=False)
    if done.returncode in (4, 5):  # no such file, no test selected
        raise SystemExit(f"pytest {words}: {done.stdout.strip().splitlines()[-1]}")
    return done.returncode != 0


def caught(folder: Path, fault: dict[str, str]) -> bool:
    """Plant a fault in a copy of the package; return True if the tests catch it.

    The fault is removed afterwards.
    """
    path = folder / fault["file"]
    text = path.read_text()
    count = text.count(fault["old"])
    if count != 1:
        raise SystemExit(f"{fault['name']}: {fault['file']} has {count} times:\n{fault['old']}")
    path.write_text(text.replace(fault["old"], fault["new"]))
    try:
        return fails(folder, fault["tests"])
    finally:
        path.write_text(text)


def main() -> int:
    """Plant each recorded fault, and print whether tests catch it. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    results = {}
    sound = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_to(folder)
        for fault in faults(arguments.names):
            words = fault["tests"]
            if words not in sound:
                sound[words] = not fails(folder, words)
            results[fault["name"]] = sound[words] and caught(folder, fault)
            verdict = "caught" if results[fault["name"]] else "NOT CAUGHT"
            verdict = verdict if sound[words] else "fails without"
            print(f"{fault['name']:16}{verdict:14}{fault['file']}", flush=True)
    print(f"{sum(results.values())} of {len(results)} caught")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
