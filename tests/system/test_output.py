"""Lost standard output ends a script quietly, and a training continues without it."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, lose

from puffer_mlx.cli.commands import COMMANDS
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.options import print_next_commands
from puffer_mlx.errors import UserError
from puffer_mlx.system import output, verbosity
from puffer_mlx.system.json_text import STANDARD_OUTPUT


def test_reader_that_left_ends_a_script_quietly(monkeypatch, capsys):
    stream = lose(monkeypatch, errno.EPIPE, after=2)

    @with_exit_code
    def main(argv: list[str]) -> None:
        try:
            for i in range(100):
                print(f"line {i}")
        except Exception as error:  # of an environment, say
            raise UserError("failed in step") from error

    assert main([]) == 141
    assert capsys.readouterr().err == ""
    assert stream.getvalue() == "line 0\n" and sys.stdout is stream


SCRIPT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from puffer_mlx.cli.exit_codes import with_exit_code

@with_exit_code
def main(argv):
    print("buffered until the end")
    if argv:
        print("an error", file=sys.stderr)
    return 3

sys.exit(main(sys.argv[1:]))
"""
CLOSED = {  # a shell's redirection -> exit code, standard error
    ">&-": (3, ""),
    ">/dev/full": (2, "error: can't write standard output: No space left on device\n"),
    "2>/dev/full with >&-": (3, ""),
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's")
@pytest.mark.parametrize("how", CLOSED)
def test_stream_that_is_closed_from_the_start_causes_no_traceback(how, tmp_path):
    words = how.replace(" with", "")
    command = f'exec "{sys.executable}" -c "$SCRIPT" {"word" if "2>" in how else ""} {words}'
    environment = {**os.environ, "SCRIPT": SCRIPT}
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == CLOSED[how]


@pytest.mark.parametrize(("terminal", "between"), [(False, " "), (True, "\n  ")])
def test_note_is_broken_between_words_for_a_terminal(monkeypatch, terminal, between):
    line = "gym:CartPole-v1: a line that is longer than a terminal is wide"
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    verbosity.note(line)
    assert stream.getvalue() == f"{line[:38]}{between}{line[39:]}\n"


@pytest.mark.parametrize(
    ("encoding", "begin"),
    [("ascii", "with output.guard_streams():"), ("ascii:surrogateescape", "output.never_raise();")],
)
def test_character_that_a_terminals_encoding_lacks_is_a_question_mark(encoding, begin):
    text = f"from puffer_mlx.system import output\n{begin} print('4 ± 1')"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=environment
    )
    assert (done.stdout, done.stderr) == ("4 ? 1\n", "")


def test_process_of_environments_never_raises(monkeypatch):
    lose(monkeypatch, errno.EPIPE)
    lose(monkeypatch, errno.EPIPE, name="stderr")
    output.never_raise()
    print("of an environment")
    print("of an environment", file=sys.stderr)


def test_output_of_a_signal_handler_in_the_middle_of_a_line_comes_after_it():
    class Stream:
        """Output stream that calls a signal handler in the middle of a write."""

        def __init__(self) -> None:
            self.text, self.inside = "", False

        def write(self, text: str) -> None:
            if self.inside:
                raise RuntimeError("reentrant call")
            self.inside = True
            if text == "a line":
                handler()
            self.text += text
            self.inside = False

        def flush(self) -> None:
            self.write("|")

    def handler() -> None:
        out.write(", stopping")
        out.flush()

    stream = Stream()
    out = output.GuardedStream(stream, lambda error: pytest.fail(str(error)))
    out.write("a line")
    out.write(", another")
    assert stream.text == "a line, stopping|, another"


JSON = """
import os, subprocess, sys
from pathlib import Path
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.system.json_text import write_json

@with_exit_code
def main(argv):
    print("a table")
    os.write(1, b"C code\\n")
    subprocess.run(["echo", "a child"])
    write_json({"score": 1}, Path(argv[-1].removeprefix("--json=")))
    print("a summary")

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("words", [["--json", "-"], ["--json=-"]])
def test_json_is_all_of_standard_output(tmp_path, words):
    done = subprocess.run(
        [sys.executable, "-c", JSON, *words], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, '{\n "score": 1\n}\n')
    assert sorted(done.stderr.splitlines()) == ["C code", "a child", "a summary", "a table"]


def test_json_for_a_reader_that_left_keeps_other_output(monkeypatch, capsys):
    lose(monkeypatch, errno.EPIPE)

    @with_exit_code
    def main(argv: list[str]) -> None:
        print("a table")
        output.set_result("{}")

    assert main(["--json", "-"]) == 141
    assert capsys.readouterr().err == "a table\n"


def test_json_of_every_command_may_go_to_standard_output():
    parsers = {name: command.load().option_parser() for name, command in COMMANDS.items()}
    actions = {name: each._option_string_actions.get("--json") for name, each in parsers.items()}
    found = {name: action.type("-") for name, action in actions.items() if action}
    assert found and found == dict.fromkeys(found, STANDARD_OUTPUT)


def test_commands_to_copy_are_not_broken_in_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    line = "puffer-mlx evaluate gym:CartPole-v1 latest --terminal"
    print_next_commands((line, "watch it"))
    assert stream.getvalue().startswith(f"next  {line}")
