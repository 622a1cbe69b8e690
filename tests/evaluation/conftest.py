"""Fixtures of the commands that play."""

import pytest

from puffer_mlx.cli import evaluate
from puffer_mlx.library import evaluating


@pytest.fixture
def against(monkeypatch, here, capsys):
    """Return a function that runs the evaluate command.

    It returns exit code, standard output and standard error.
    """
    monkeypatch.setattr(evaluating, "count_cores", lambda: 1)

    def run(*words: str) -> tuple[int, str, str]:
        code = evaluate.main([*words])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run
