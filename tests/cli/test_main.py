"""The command puffer-mlx: its commands, its scripts, its pages of help, and how much it prints."""

import contextlib
import importlib
import io
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from running import ROOT, TINY, only

from puffer_mlx.cli.commands import COMMANDS
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.main import main
from puffer_mlx.config.schema import DECLARED
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.early_signals import started_as_command

LINES, COLUMNS = 60, 80


def said(*words: str) -> tuple[int, str, str]:
    """Run a command line in this process. Returns exit code, standard output and error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def assert_page(text: str) -> None:
    lines = text.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS


# ---- which command -------------------------------------------------------------------------------


def test_scripts_and_commands_are_the_same():
    scripts = {path.stem.replace("_", "-") for path in (ROOT / "scripts").glob("*.py")}
    assert scripts - {"checkout"} == set(COMMANDS) - {"list", "completion", "runs", "plot"}


@pytest.fixture
def checkout(tmp_path):
    """Return the folder of an imitated checkout whose package prints its own location."""
    copy = tmp_path / "a checkout"
    shutil.copytree(ROOT / "scripts", copy / "scripts")
    (copy / "puffer_mlx" / "cli").mkdir(parents=True)
    (copy / "puffer_mlx" / "__init__.py").touch()
    (copy / "puffer_mlx" / "cli" / "train.py").write_text(TELL)
    return copy


TELL = """
import subprocess, sys

def main(argv):
    print(__file__, *argv, flush=True)
    child = "import puffer_mlx; print(puffer_mlx.__file__)"
    subprocess.run([sys.executable, "-P", "-c", child], check=True)
"""


def bare_python(folder: Path) -> Path:
    """Create a virtual environment without packages, and return its Python."""
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


def train_script(python: object, checkout: Path, *options: str) -> subprocess.CompletedProcess:
    words = [python, *options, checkout / "scripts" / "train.py", "squared", "--seed", "1"]
    return subprocess.run(words, cwd=checkout.parent, capture_output=True, text=True, timeout=120)


def test_a_script_and_its_children_use_the_package_beside_it(checkout):
    done = train_script(sys.executable, checkout, "-P")
    package = checkout / "puffer_mlx"
    assert done.stdout == f"{package}/cli/train.py squared --seed 1\n{package}/__init__.py\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_without_dependencies_continues_in_the_checkouts_environment(checkout):
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho ".venv: $*"\n')
    python.chmod(0o755)
    done = train_script(bare_python(checkout.parent / "bare"), checkout, "-u")
    words = f"-u {checkout}/scripts/train.py squared --seed 1"
    assert (done.returncode, done.stdout, done.stderr) == (0, f".venv: {words}\n", "")
    shutil.rmtree(checkout / ".venv")
    bare_python(checkout / ".venv")  # which may lack them, too
    done = train_script(checkout.parent / "bare" / "bin" / "python", checkout)
    assert f"hint: '{python}' -m pip install -e '{checkout}'" in done.stderr
    assert done.returncode == 2


def test_scripts_check_all_dependencies_of_the_package(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"\W", line)[0] for line in project["dependencies"]}
    needed = importlib.import_module("checkout")
    assert set(needed.REQUIRED_PACKAGES) == names
    assert project["requires-python"] == f">={'.'.join(map(str, needed.OLDEST_PYTHON))}"


def test_help_names_every_command():
    code, out, err = said("--help")
    assert (code, err) == (0, "") and said("help") == said("-h") == (code, out, err)
    assert_page(out)
    for name, command in COMMANDS.items():
        assert f"\n  {name}" in out and command.summary in out
    assert said() == (2, "", out)


def test_eval_is_evaluate(here):
    assert said("eval", "--help") == said("evaluate", "--help")
    assert said("-q", "eval", "squared") == said("-q", "evaluate", "squared")


def test_python_m_puffer_mlx_runs_commands(tmp_path):
    words = [sys.executable, "-m", "puffer_mlx", "trian"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "did you mean python -m puffer_mlx train?" in done.stderr


MODULES = [  # words after python, and whether they run our command
    ("-um puffer_mlx train -m", True),
    ("-u -m mine puffer_mlx", False),
]


@pytest.mark.parametrize(("line", "ours"), MODULES)
def test_python_m_is_recognized_with_any_options(monkeypatch, line, ours):
    words = line.split()
    module = next(n for n, word in enumerate(words) if re.match(r"-\w*m", word))
    arguments = words[module + 1 + words[module].endswith("m") :]
    monkeypatch.setattr(sys, "argv", ["-m", *arguments])  # while Python looks for the module
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *words])
    assert started_as_command() == ours


@pytest.mark.parametrize(
    ("started", "check", "again"),
    [
        ("scripts/bench.py", "python scripts/check_env.py", "python scripts/bench.py"),
        ("mine.py", "puffer-mlx check-env", "python mine.py"),
    ],
)
def test_messages_name_commands_as_the_user_started_them(monkeypatch, started, check, again):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [started, "a", "b c"])
    assert program.command("check-env") == check
    assert program.full_command_line() == f"{again} a 'b c'"


def test_messages_name_no_scripts_of_other_projects(monkeypatch, tmp_path):
    for name in "train.py", "check_env.py":
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    assert program.command("check-env") == "puffer-mlx check-env"


# ---- pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train", "check-gpu"])
def test_help_of_a_command_is_a_page(name):
    code, out, err = said(name, "--help")
    assert (code, err) == (0, "")
    assert_page(out)
    assert out.startswith(f"usage: puffer-mlx {name} ") and COMMANDS[name].summary in out


def test_help_of_an_environment_has_its_values():
    code, out, _ = said("train", "breakout", "--help")
    assert code == 0
    assert_page(out)
    text = " ".join(out.split())
    assert "--train.total-timesteps INT steps, summed over agents (94_000_000)" in text
    assert "--env.paddle-width 62," in text


PAGES = """
import contextlib, sys
from puffer_mlx.cli.main import main
for words in ["--help"], *([name, "breakout", "--help"] for name in sys.argv[1:]):
    with contextlib.suppress(SystemExit):
        main(words)
    print({"mlx", "numpy", "rich"} & sys.modules.keys())
"""


def test_pages_come_before_the_trainer_is_imported(tmp_path):
    words = [sys.executable, "-c", PAGES, "train", "evaluate", "match", "bench"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines().count("set()") == 5, done.stderr


def test_help_shows_common_options_and_help_all_shows_every_option():
    page, whole = said("train", "--help")[1], said("train", "--help", "all")[1]
    assert said("train", "--help", "squared")[1] == page
    common = [name for name, declared in DECLARED.items() if declared.brief]
    assert 20 < len(common) < 30
    for name in common:
        assert f"--{name.removeprefix('base.').replace('_', '-')} " in page
    assert "--resume" in page and "--stop-at" in whole
    for option in ("--train.vtrace", "--profile-epochs", "--allow-code", "base.cudagraphs"):
        assert option not in page and option in whole
    assert "cartpole" not in page + whole  # puffer-mlx list has them


def test_help_all_fits_a_terminals_width():
    pages = {name: said(name, "--help", "all")[1] for name in COMMANDS}
    everything = "".join(pages.values())
    assert max(map(len, everything.splitlines())) <= COLUMNS
    runs_code = {name for name, text in pages.items() if "--allow-code" in text}
    assert runs_code == {*COMMANDS} - {"check-gpu", "list", "completion", "runs", "plot"}


# ---- how much is said ----------------------------------------------------------------------------


def test_quiet_prints_only_results(script, here):
    code, out, err = said("train", *TINY, "--quiet")
    assert (code, err) == (0, "")
    last = max(here.glob("checkpoints/squared/*/0*"))
    score, saved = out.splitlines()
    assert score.startswith("score ") and saved == f"saved {last.relative_to(here)}"
    code, out, err = said("-q", "export", "latest", "--to", "safetensors", "--out", "w.safetensors")
    assert (code, out, err) == (0, "w.safetensors\n", "")
    code, out, err = said("import", "w.safetensors", "squared", "--env.size", "3", "-q")
    assert (code, err, out.count("\n")) == (0, "", 1) and out.startswith("checkpoints/squared/")
    code, out, err = said("evaluate", "squared", "latest", "--episodes", "8", "-q", "--seed", "1")
    assert (code, err) == (0, "") and out.startswith("squared: ")
    code, out, err = said("train", "sqared", "-q")
    assert (code, out) == (2, "") and "unknown environment 'sqared'" in err
    assert verbosity._level == verbosity.NORMAL


def test_verbose_prints_settings_with_their_sources(script, here):
    code, out, err = said("train", *TINY, "-v")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["policy.hidden_size", "8", "command", "line"] in rows
    (gamma,) = (row for row in rows if row[0] == "train.gamma")
    assert gamma[2].startswith("configs/squared.ini:")
    assert ["env.size", "3.0"] in rows
    run = only(here, "checkpoints/squared/*")
    assert ["checkpoints", str(run.relative_to(here))] in rows
    assert "checkpoints " not in said("train", *TINY)[1].replace("checkpoints/", "")


# ---- when memory runs out ------------------------------------------------------------------------


def test_a_failed_allocation_is_one_message(capsys):
    error = RuntimeError("[metal::malloc] Attempting to allocate 4000000000 bytes")

    @with_exit_code
    def allocate(argv: list[str]) -> None:
        raise error

    assert allocate([]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: out of memory: {error}\n")
    assert "fewer --vec.total-agents" in said


def test_another_runtime_error_keeps_its_traceback():
    @with_exit_code
    def fail(argv: list[str]) -> None:
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        fail([])
