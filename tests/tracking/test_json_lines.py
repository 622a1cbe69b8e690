"""`tracking/json_lines.py`: whole lines of JSON, whatever a disk, a kill or an environment does."""

import json
import math
import os
import shutil

import pytest

from puffer_mlx.tracking import json_lines
from puffer_mlx.tracking.json_lines import JsonLines

RECORDS = [{"epoch": 1, "env/score": 0.5}, {"epoch": 2, "env/score": 1.5}, {"epoch": 3}]
LINES = [json.dumps(record) + "\n" for record in RECORDS]
LONG = json.dumps({"env/" + "x" * 200_000: 1})


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
    assert strict(log.path.read_text()) == RECORDS
    return log.path


def test_what_is_no_number_is_null(tmp_path):
    log = JsonLines(tmp_path / "1.jsonl")
    log.write({"a": math.nan, "b": math.inf, "c": -math.inf, "loss/total": 2.5})
    log.close()
    (record,) = strict(log.path.read_text())
    assert record == {"a": None, "b": None, "c": None, "loss/total": 2.5}


WHOLE = "".join(LINES)
TORN, SHORT = "the last record of {} was torn; it was removed", "it lacks records"
GOING_ON = {  # what the file has, where the run was saved; what stays of it, and what is said
    "what comes again is cut off": (WHOLE, len(LINES[0]), LINES[:1], ""),
    "torn before the position": (WHOLE[:-1], len(WHOLE), LINES[:2], TORN),
    "torn in the middle": (WHOLE[:-5], len(WHOLE), LINES[:2], TORN),
    "torn after the position": (WHOLE + '{"epoch": 4, "env/sc', len(WHOLE), LINES, TORN),
    "one torn record alone": ('{"epoch": 1, "env', 17, [], TORN),
    "long records": (f"{LONG}\n{LONG[:-9]}", 10**6, [LONG], TORN),
    "records that are missing": (WHOLE, len(WHOLE) + 100, LINES, SHORT),
    "another log's position": (WHOLE, len(WHOLE) - 3, LINES[:2], SHORT),
}


@pytest.mark.parametrize("case", GOING_ON)
def test_a_log_goes_on_behind_whole_records(tmp_path, case):
    text, position, kept, note = GOING_ON[case]
    path = tmp_path / "1.jsonl"
    path.write_text(text)
    log = JsonLines(path, position)
    log.write({"epoch": 9})
    log.close()
    assert strict(path.read_text()) == [*map(json.loads, kept), {"epoch": 9}]
    assert note.format(path) in log.note and bool(note) == bool(log.note)


def test_a_log_that_is_removed_under_way_begins_anew(path, capsys):
    log = JsonLines(path, path.stat().st_size)
    shutil.rmtree(path.parent)
    for epoch in 4, 5:
        log.write({"epoch": epoch})
    log.close()
    assert strict(path.read_text()) == [{"epoch": 4}, {"epoch": 5}]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.endswith("was removed; starting a new file\n")


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
