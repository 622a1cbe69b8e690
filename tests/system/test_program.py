"""Processes of this package don't import modules from the working folder."""

import re
import subprocess
import sys

import pytest
from running import ROOT

from puffer_mlx.system import program

BEGUN = """
import multiprocessing
from puffer_mlx.vec.processes import starting_children

text = "from puffer_mlx.vec.processes import begin_child; begin_child(); "
text += "import os; os._exit(10 + ('PYTHONSAFEPATH' in os.environ))"
context = multiprocessing.get_context("{}")
process = context.Process(target=exec, args=(text,))
with starting_children([]):
    process.start()
process.join()
raise SystemExit(process.exitcode)
"""


@pytest.mark.parametrize(("context", "theirs"), [("forkserver", ""), ("spawn", "1")])
def test_environment_process_imports_no_module_of_the_working_folder(
    here, monkeypatch, context, theirs
):
    """And the variable that its own processes inherit is unchanged."""
    monkeypatch.setenv("PYTHONSAFEPATH", theirs)
    if not theirs:
        monkeypatch.delenv("PYTHONSAFEPATH")
    for name in ("random", "socket", "selectors", "tempfile"):
        (here / f"{name}.py").write_text('open("ran", "w").close()\nraise SystemExit(3)\n')
    (here / "bin").mkdir()
    (here / "bin" / "start").write_text(BEGUN.format(context))  # as an installed command is
    words = [sys.executable, "bin/start"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (10 + bool(theirs), "")
    assert not (here / "ran").exists()


def test_a_command_that_the_shell_does_not_find_is_named_by_its_path(here, monkeypatch):
    path = here / "bin" / "puffer-mlx"
    path.parent.mkdir()
    path.touch(0o755)
    monkeypatch.setattr(sys, "argv", ["bin/puffer-mlx"])
    monkeypatch.setenv("PATH", str(here))
    assert program.command("train") == "bin/puffer-mlx train"
    monkeypatch.setenv("PATH", str(path.parent))
    assert program.command("train") == "puffer-mlx train"


def test_only_one_module_starts_python():
    package = ROOT / "puffer_mlx"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"sys\.executable", path.read_text())
    }
    assert found == {"system/program.py"}
