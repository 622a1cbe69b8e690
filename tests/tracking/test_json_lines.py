"""`tracking/json_lines.py`: whole lines of JSON, whatever a disk, a kill or an environment does."""

import json
import math
import os
import shutil

import pytest

from puffer_mlx.tracking import json_lines
from puffer_mlx.tracking.json_lines import JsonLines

RECORDS = [{"epoch": 1, "env/score": 0.5}, {"epoch": 2, "env/score": 1.5}, {"epoch": 3}]


def strict(text):
    """As JSON readers other than Python's read it: NaN is an error."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


@pytest.fixture
def path(tmp_path):
    """Of a log with three records."""
    log = JsonLines(tmp_path / "logs" / "1.jsonl")
    for record in RECORDS:
        log.write(record)
    log.close()
    return log.path


def go_on(path, position):
    """Open a log again and write one more record; what was said, and what the log is then."""
    log = JsonLines(path, position)
    log.write({"epoch": 9})
    log.close()
    return log.note, strict(path.read_text())


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null(tmp_path, wrong):
    log = JsonLines(tmp_path / "1.jsonl")
    log.write({"epoch": 1, "env/score": wrong, "loss/total": 2.5})
    log.close()
    assert strict(log.path.read_text()) == [{"epoch": 1, "env/score": None, "loss/total": 2.5}]


def test_going_on_cuts_what_comes_again(path):
    position = len(path.read_text().splitlines(keepends=True)[0])
    assert go_on(path, position) == ("", [RECORDS[0], {"epoch": 9}])


def test_a_log_that_is_removed_under_way_begins_anew(path, capsys):
    log = JsonLines(path, path.stat().st_size)
    shutil.rmtree(path.parent)
    for epoch in 4, 5:
        log.write({"epoch": epoch})
    log.close()
    assert strict(path.read_text()) == [{"epoch": 4}, {"epoch": 5}]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.endswith("was removed; it begins anew here\n")


def test_a_sign_of_life_is_the_file_s_time_alone(path, monkeypatch):
    log, seconds = JsonLines(path, path.stat().st_size), [100.0]
    monkeypatch.setattr(json_lines.time, "monotonic", lambda: seconds[0])
    seen = []
    for seconds[0] in (100.0, 100.9, 101.1):
        os.utime(path, (1, 1))
        log.touch()
        seen.append(path.stat().st_mtime > 1)
    log.close()
    assert seen == [True, False, True] and strict(path.read_text()) == RECORDS


@pytest.mark.parametrize("lost", [1, 5])
def test_a_torn_record_is_removed_and_said(path, lost):
    """Torn before the position, by a crash of the machine: the run saved it whole."""
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    note, records = go_on(path, len(whole))
    assert records == [*RECORDS[:2], {"epoch": 9}]
    assert note == f"the last record of {path} was torn; it was removed"


def test_a_torn_record_after_the_position(path):
    """By a kill after the checkpoint."""
    size = path.stat().st_size
    with open(path, "a") as file:
        file.write('{"epoch": 4, "env/sc')
    note, records = go_on(path, size)
    assert records == [*RECORDS, {"epoch": 9}] and "was torn" in note


def test_one_torn_record_alone(path):
    path.write_text('{"epoch": 1, "env')
    note, records = go_on(path, 17)
    assert records == [{"epoch": 9}] and "was torn" in note


def test_long_records(path):
    path.write_text(json.dumps({"env/" + "x" * 200_000: 1}) + "\n" + '{"env/' + "x" * 200_000)
    note, records = go_on(path, 10**6)
    assert len(records) == 2 and len(next(iter(records[0]))) == 200_004 and "was torn" in note


def test_records_that_are_missing_are_said(path):
    size = path.stat().st_size
    note, records = go_on(path, size + 100)
    assert records == [*RECORDS, {"epoch": 9}]
    assert note == f"{path} is shorter than when the run was saved; it lacks records"


def test_a_position_within_a_record(path):
    """Of another log than the one that is there."""
    _, records = go_on(path, path.stat().st_size - 3)
    assert records == [*RECORDS[:2], {"epoch": 9}]
