"""Fixtures of the commands that play."""

import pytest

from puffer_mlx.cli import evaluate, match_run


@pytest.fixture
def against(monkeypatch, here, capsys):
    """Runs evaluate with a command line: the exit code, what was printed, and errors."""
    monkeypatch.setattr(match_run, "threads", lambda: 1)

    def run(*words: str) -> tuple[int, str, str]:
        code = evaluate.main([*words])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run
