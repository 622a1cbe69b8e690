"""`tracking/json_lines.py`: a log contains complete lines of JSON after any interruption."""

import json
import math
import os
import shutil

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from puffer_mlx.tracking.json_lines import LogFile

RECORDS = [{"epoch": 1, "env/score": 0.5}, {"epoch": 2, "env/score": 1.5}, {"epoch": 3}]
LINES = [json.dumps(record) + "\n" for record in RECORDS]
TEXT = "".join(LINES)
LONG = json.dumps({"env/" + "x" * 200_000: 1})


def strict(text):
    """Parse JSON lines strictly: NaN is an error."""

    def refuse(word):
        raise AssertionError(f"{word} isn't JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_numbers_that_are_not_finite_become_null(tmp_path):
    log = LogFile(tmp_path / "logs" / "1.jsonl")
    log.write({"a": math.nan, "b": math.inf, "c": -math.inf, "loss/total": 2.5})
    log.close()
    (record,) = strict(log.path.read_text())
    assert record == {"a": None, "b": None, "c": None, "loss/total": 2.5}


@settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    text=st.integers(0, len(TEXT)).map(lambda size: TEXT[:size]),
    position=st.integers(0, len(TEXT) + 50),
)
@example(TEXT, len(LINES[0]))
@example(TEXT[:-1], len(TEXT))
@example(f"{LONG}\n{LONG[:-9]}", 10**6)
def test_a_resumed_log_keeps_the_complete_records_before_its_position(tmp_path, text, position):
    path = tmp_path / "1.jsonl"
    path.write_text(text)
    log = LogFile(path, position)
    log.write({"epoch": 9})
    log.close()
    complete = text[: text.rfind("\n") + 1]
    kept = text[: text.rfind("\n", 0, position) + 1]
    assert path.read_text() == kept + '{"epoch": 9}\n'
    if complete != text:
        assert log.note == f"the last record of {path} was incomplete and was removed"
    else:
        assert ("lacks records" in log.note) == (len(kept) < position)


@pytest.mark.parametrize("removed", ["logs", "logs/1.jsonl"])
def test_a_log_removed_during_the_run_is_created_again(tmp_path, capsys, removed):
    log = LogFile(tmp_path / "logs" / "1.jsonl")
    path = tmp_path / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    for epoch in 4, 5:
        log.write({"epoch": epoch})
    log.close()
    assert strict(log.path.read_text()) == [{"epoch": 4}, {"epoch": 5}]
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.endswith("was removed; starting a new file\n")


def test_a_heartbeat_sets_the_files_time_and_changes_nothing_else(tmp_path):
    path = tmp_path / "1.jsonl"
    path.write_text(TEXT)
    log = LogFile(path, len(TEXT))
    os.utime(path, (1, 1))
    log.touch()
    log.close()
    assert path.stat().st_mtime > 1
    assert path.read_text() == TEXT
