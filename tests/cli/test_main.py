"""The command puffer-mlx: what it runs, what it says of a wrong word, and its pages of help."""

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
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.main import main
from puffer_mlx.config.schema import DECLARED
from puffer_mlx.system import program, voice
from puffer_mlx.system.early_signals import is_command

LINES, COLUMNS = 60, 80


def said(*words: str) -> tuple[int, str, str]:
    """The exit code, standard output and standard error of a command line, run here."""
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
    """It fits a terminal of 80 x 60."""
    lines = text.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS


# ---- which command -------------------------------------------------------------------------------


def test_scripts_and_commands_are_the_same():
    scripts = {path.stem.replace("_", "-") for path in (ROOT / "scripts").glob("*.py")}
    assert scripts - {"checkout"} == set(COMMANDS) - {"list", "completion"}  # train.py --list


@pytest.fixture
def checkout(tmp_path):
    """A checkout with the scripts, and a package whose command says where it was found."""
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
    """A Python with nothing installed, in a virtual environment."""
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


def train_script(python: object, checkout: Path, *options: str) -> subprocess.CompletedProcess:
    words = [python, *options, checkout / "scripts" / "train.py", "squared", "--seed", "1"]
    return subprocess.run(words, cwd=checkout.parent, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("options", [[], ["-P"]])
def test_a_script_finds_the_package_beside_it(checkout, options):
    """Also where another one is installed, and for its child processes."""
    done = train_script(sys.executable, checkout, *options)
    package = checkout / "puffer_mlx"
    assert done.stdout == f"{package}/cli/train.py squared --seed 1\n{package}/__init__.py\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_without_dependencies_says_how_to_install_them(checkout):
    python = bare_python(checkout.parent / "bare")
    done = train_script(python, checkout)
    install = f"{python} -m pip install -e '{checkout}'"
    message = f"error: mlx isn't installed in {python}\n  hint: {install}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_a_script_without_dependencies_continues_in_the_checkouts_environment(checkout):
    (checkout / ".venv" / "bin").mkdir(parents=True)
    python = checkout / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho ".venv: $*"\n')
    python.chmod(0o755)
    done = train_script(bare_python(checkout.parent / "bare"), checkout, "-u")
    words = f"-u {checkout}/scripts/train.py squared --seed 1"
    assert (done.returncode, done.stdout, done.stderr) == (0, f".venv: {words}\n", "")


def test_the_checkouts_environment_may_lack_them_too(checkout):
    """It is asked once, not for ever."""
    bare_python(checkout / ".venv")
    done = train_script(bare_python(checkout.parent / "bare"), checkout)
    python = checkout / ".venv" / "bin" / "python"
    assert f"hint: '{python}' -m pip install -e '{checkout}'" in done.stderr
    assert done.returncode == 2


def test_scripts_look_for_what_the_package_depends_on(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"\W", line)[0] for line in project["dependencies"]}
    needed = importlib.import_module("checkout")
    assert set(needed.NEEDED) == names
    assert project["requires-python"] == f">={'.'.join(map(str, needed.OLDEST))}"


def test_its_own_page_names_every_command():
    code, out, err = said("--help")
    assert (code, err) == (0, "") and said("help") == said("-h") == (code, out, err)
    assert_page(out)
    for name, command in COMMANDS.items():
        assert f"\n  {name}" in out and command.about in out
    assert said() == (2, "", out)


def test_pufferlibs_word_for_evaluate(here):
    for words in "{} --help", "help {}", "{} squared nowhere", "-q {} squared":
        assert said(*words.format("eval").split()) == said(*words.format("evaluate").split())


def test_python_m_puffer_mlx(tmp_path):
    words = [sys.executable, "-m", "puffer_mlx", "trian"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "did you mean python -m puffer_mlx train?" in done.stderr


MODULES = [  # how Python may be told of a module, and whether it is our command
    ("-m puffer_mlx train", True),
    ("-um puffer_mlx train -m", True),
    ("-mpuffer_mlx", True),
    ("-X dev -Wignore -uBmpuffer_mlx.cli train", True),
    ("-um mine", False),
    ("-umine", False),
    ("-u -m mine puffer_mlx", False),
    ("-m puffer_mlx_tools", False),
]


@pytest.mark.parametrize(("line", "ours"), MODULES)
def test_python_m_is_understood_however_it_is_written(monkeypatch, line, ours):
    words = line.split()
    module = next(n for n, word in enumerate(words) if re.match(r"-\w*m", word))
    arguments = words[module + 1 + words[module].endswith("m") :]
    monkeypatch.setattr(sys, "argv", ["-m", *arguments])  # while Python looks for the module
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *words])
    assert is_command() == ours


def test_a_package_that_imports_ours_starts_with_joined_options(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import puffer_mlx\n")
    (tmp_path / "mine" / "__main__.py").write_text("print('begun')\n")
    words = [sys.executable, "-um", "mine"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n", "")


def test_messages_name_the_command_that_the_person_used(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    installed, module = "puffer-mlx", "python -m puffer_mlx"
    for started, check, listing, again in (
        ("/a/bin/puffer-mlx", f"{installed} check-env", f"{installed} list", installed),
        # there is no scripts/list.py
        *(
            [
                *("scripts/bench.py", "python scripts/check_env.py"),
                *(f"{installed} list", "python scripts/bench.py"),
            ],
        ),
        ("a/puffer_mlx/__main__.py", f"{module} check-env", f"{module} list", module),
        ("mine.py", f"{installed} check-env", f"{installed} list", "python mine.py"),
    ):
        monkeypatch.setattr(sys, "argv", [started, "a", "b c"])
        assert (program.command("check-env"), program.command("list")) == (check, listing)
        assert program.typed() == f"{again} a 'b c'"
    for name in "train.py", "check_env.py":  # somebody else's are no doors
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    assert program.command("check-env") == "puffer-mlx check-env"


# ---- pages ---------------------------------------------------------------------------------------


def test_help_is_a_page():
    for name, command in COMMANDS.items():
        code, out, err = said(name, "--help")
        assert (code, err) == (0, "")
        assert_page(out)
        assert out.startswith(f"usage: puffer-mlx {name} ") and command.about in out
        assert said("help", name) == (code, out, err)
    for env in "breakout", "g2048", "gym:CartPole-v1", "gym:HalfCheetah-v5":
        assert_page(said("train", env, "--help")[1])
    text = " ".join(said("train", "breakout", "--help")[1].split())
    for words in (
        "--train.total-timesteps INT steps of the run, of all agents (94_000_000)",
        *("--train.gamma FLOAT discount of a step (0.9721)", "--env.paddle-width 62,"),
    ):
        assert words in text


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


def test_the_page_shows_what_is_common_and_help_all_the_rest():
    page, whole = said("train", "--help")[1], said("train", "--help", "all")[1]
    assert said("train", "--help", "squared")[1] == page
    common = [name for name, declared in DECLARED.items() if declared.brief]
    assert 20 < len(common) < 30
    for name in common:
        assert f"--{name.removeprefix('base.').replace('_', '-')} " in page
    for option in ("--resume", "--load-model-path", "--quiet", "--verbose", "--stop-at"):
        assert option in page and option in whole
    for option in ("--train.vtrace", "--profile-epochs", "--allow-code"):
        assert option not in page and option in whole
    assert "base.cudagraphs" in whole and "base.cudagraphs" not in page
    assert "cartpole" not in page + whole  # puffer-mlx list has them


def test_pages_with_everything_fit_a_terminal():
    pages = {name: said(name, "--help", "all")[1] for name in COMMANDS}
    everything = "".join(pages.values())
    assert max(map(len, everything.splitlines())) <= COLUMNS
    runs_code = {name for name, text in pages.items() if "--allow-code" in text}
    assert runs_code == {*COMMANDS} - {"check-gpu", "list", "completion"}


# ---- how much is said ----------------------------------------------------------------------------


def test_quiet_says_what_was_saved_and_nothing_else(script, here):
    code, out, err = said("train", *TINY, "--quiet")
    assert (code, err) == (0, "")
    last = max(here.glob("checkpoints/squared/*/0*"))
    assert out == f"saved {last.relative_to(here)}\n"
    code, out, err = said("-q", "export", "latest", "--to", "safetensors", "--out", "w.safetensors")
    assert (code, out, err) == (0, "w.safetensors\n", "")
    code, out, err = said("import", "w.safetensors", "squared", "--env.size", "3", "-q")
    assert (code, err, out.count("\n")) == (0, "", 1) and out.startswith("checkpoints/squared/")
    code, out, err = said("evaluate", "squared", "latest", "--episodes", "8", "-q", "--seed", "1")
    assert (code, err) == (0, "") and out.startswith("squared: ")
    code, out, err = said("train", "sqared", "-q")
    assert (code, out) == (2, "") and "unknown environment 'sqared'" in err
    assert voice._level == voice.USUAL


def test_verbose_says_what_was_chosen_and_which_file_says_so(script, here):
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


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 3.7 GiB"),
        RuntimeError("[malloc] Unable to allocate 4000000000 bytes."),
        RuntimeError("[metal::malloc] Attempting to allocate 4000000000 bytes"),
    ],
)
def test_an_allocation_that_fails_is_one_message(error, capsys):
    @reported
    def allocate(argv: list[str]) -> None:
        raise error

    assert allocate([]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: out of memory: {error}\n")
    assert "fewer --vec.total-agents" in said


def test_another_runtime_error_keeps_its_traceback():
    @reported
    def fail(argv: list[str]) -> None:
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        fail([])
