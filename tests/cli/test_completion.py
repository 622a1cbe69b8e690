"""puffer-mlx completion: bash completes commands, environments, options and their values."""

import contextlib
import io
import shutil
import subprocess
import sys

import pytest

from puffer_mlx.cli import completion
from puffer_mlx.config.schema import KEYS


def printed(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert completion.main(list(words)) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def bash():
    """Return a function that returns bash's completions of a command line."""
    pytest.importorskip("shtab")
    if not shutil.which("bash"):
        pytest.skip("bash isn't there")
    script = printed("bash")

    def complete(line: str) -> list[str]:
        words = [*line.split(), *([""] if line.endswith(" ") else [])]
        code = f"""{script}
            COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
            function=$(complete -p puffer-mlx | sed -E 's/.*-F ([^ ]+).*/\\1/')
            "$function" puffer-mlx "${{COMP_WORDS[COMP_CWORD]}}"
            printf '%s\\n' "${{COMPREPLY[@]}}" """
        done = subprocess.run(
            ["bash", "-c", code, "bash", *words], capture_output=True, text=True, timeout=60
        )
        assert done.stderr == ""
        return done.stdout.split()

    return complete


COMPLETED = {
    "tr": {"train"},
    "check": {"check-env", "check-gpu"},
    "train squ": {"squared"},
    "evaluate gym:Pend": {"gym:Pendulum-v1"},
    "train squared --train.learn": {"--train.learning-rate"},
    "train squared --res": {"--resume", "--reset-state"},
    "train squared --train.algorithm ": set(KEYS["train"]["algorithm"].choices),
    "completion z": {"zsh"},
    "runs squ": {"squared"},
    "plot gym:Pend": {"gym:Pendulum-v1"},
    "train squared --load-model-path we": {"weights.bin"},
}


def test_bash_completes(bash, here):
    (here / "weights.bin").touch()
    assert {line: set(bash(f"puffer-mlx {line}")) for line in COMPLETED} == COMPLETED


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_have_the_names(shell):
    pytest.importorskip("shtab")
    text = printed(shell)
    for word in ("check-env", "breakout-fast", "gym", "train.algorithm", "puffer5"):
        assert word in text
    if path := shutil.which(shell):
        done = subprocess.run(
            [path, "-n", "/dev/stdin"], input=text, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_other_shells_and_a_missing_package_are_refused(monkeypatch, capsys):
    assert completion.main(["tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert completion.main(["bash"]) == 2
    assert "hint: pip install 'puffer-mlx[completion]'" in capsys.readouterr().err
