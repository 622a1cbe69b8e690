"""A trace's file, as a reader of Chrome's format sees it."""

import errno
import json
import os
import threading
import time
from pathlib import Path

import pytest
from running import files

from puffer_mlx.errors import UserError
from puffer_mlx.profiling.phases import Profiler
from puffer_mlx.profiling.timeline import ENVIRONMENTS, ROLLOUT, TRAIN, Trace

KEYS = {  # of an event, by its kind
    "M": {"ph", "pid", "tid", "name", "args"},
    "X": {"ph", "pid", "tid", "name", "ts", "dur", "args"},
    "i": {"ph", "pid", "tid", "name", "ts", "s"},
}


def read(path: Path) -> tuple[dict[str, list[dict]], list[dict], dict]:
    """Spans by row in the rows' order, marks, and facts; checks the format."""
    document = json.loads(path.read_text())
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    rows: dict[int, str] = {}
    order: dict[int, int] = {}
    spans: dict[int, list[dict]] = {}
    marks = []
    for event in document["traceEvents"]:
        assert set(event) == KEYS[event["ph"]], event
        assert isinstance(event["name"], str) and event["pid"] == 1
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and event["tid"] in rows
            spans.setdefault(event["tid"], []).append(event)
        elif event["ph"] == "i":
            marks.append(event)
        elif event["name"] == "thread_name":
            rows[event["tid"]] = event["args"]["name"]
        elif event["name"] == "thread_sort_index":
            order[event["tid"]] = event["args"]["sort_index"]
    assert set(order) == set(rows) == set(spans)
    tids = sorted(rows, key=order.__getitem__)
    for tid in tids:
        begins = [span["ts"] for span in spans[tid]]
        assert begins == sorted(begins)
    return {rows[tid]: spans[tid] for tid in tids}, marks, document["otherData"]


def test_a_run_of_two_threads(tmp_path):
    """Spans of a thread's row follow each other; what is on streams may lie anywhere."""
    times = Profiler()
    times.trace = trace = Trace(tmp_path / "deep" / "run.json", first=2, epochs=3)
    stop = threading.Event()

    def collect() -> None:
        times.rollout.start()
        while not stop.is_set():
            for phase in ("eval_act", "eval_env"):
                began = time.perf_counter()
                time.sleep(0.0002)
                trace.span(ENVIRONMENTS, "group 0", began, time.perf_counter(), group=0)
                times.rollout.lap(phase, "acting stream 1" if phase == "eval_act" else "")

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        for epoch in range(6):
            times.begin(epoch)
            times.train.start()
            time.sleep(0.004)
            times.train.lap("train_forward", "learning stream")
            times.train.lap("train_misc")
    finally:
        stop.set()
        thread.join()
    rows, marks, facts = read(trace.path)
    assert list(rows) == [ROLLOUT, TRAIN, "acting stream 1", "learning stream", ENVIRONMENTS]
    for row in (ROLLOUT, TRAIN):
        for before, after in zip(rows[row], rows[row][1:], strict=False):
            assert before["ts"] + before["dur"] <= after["ts"] + 0.0021  # times have 3 digits
    assert [span["name"] for span in rows[TRAIN]] == ["train_forward", "train_misc"] * 3
    assert {span["name"] for span in rows[ROLLOUT]} == {"eval_act", "eval_env"}
    assert {span["name"] for span in rows["acting stream 1"]} == {"eval_act"}
    assert rows[ENVIRONMENTS][0]["args"] == {"group": 0}
    assert [mark["name"] for mark in marks] == ["epoch 2", "epoch 3", "epoch 4"]
    assert sum(span["dur"] for span in rows["learning stream"]) >= 3 * 4000  # microseconds
    assert facts["epochs"] == 3 and facts["spans left out"] == 0 and "note" not in facts
    assert files(tmp_path) == {"deep/run.json"}


def test_spans_are_cut_where_the_recording_begins(tmp_path):
    clock = iter([10.0, 10.0]).__next__
    trace = Trace(tmp_path / "t.json", 0, 1, clock=clock)
    trace.span(ROLLOUT, "before", 1.0, 2.0)  # isn't recorded
    trace.begin(0)
    trace.span(ROLLOUT, "eval_env", 9.0, 12.5)
    trace.close()
    trace.span(ROLLOUT, "after", 13.0, 14.0)
    ((row, (span,)),) = read(trace.path)[0].items()
    assert (row, span["name"], span["ts"], span["dur"]) == (ROLLOUT, "eval_env", 0, 2_500_000)


def test_a_run_that_goes_on_is_recorded_from_its_first_epochs(tmp_path):
    trace = Trace(tmp_path / "t.json", first=2, epochs=2)
    for epoch in range(500, 504):
        trace.begin(epoch)
    assert [mark["name"] for mark in read(trace.path)[1]] == ["epoch 500", "epoch 501"]


def test_streams_stand_in_their_order_and_unknown_rows_below(tmp_path):
    trace = Trace(tmp_path / "t.json", 0, 1)
    trace.begin(0)
    for row in ("extra", "acting stream 1", ENVIRONMENTS, TRAIN, "acting stream 0"):
        trace.span(row, "x", 1.0, 2.0)
    trace.close()
    expected = [TRAIN, "acting stream 0", "acting stream 1", ENVIRONMENTS, "extra"]
    assert list(read(trace.path)[0]) == expected


def test_memory_is_bounded_and_the_file_says_so(tmp_path, capsys):
    trace = Trace(tmp_path / "t.json", 0, 1, limit=5)
    trace.begin(0)
    for i in range(12):
        trace.span(ROLLOUT, "eval_act", float(i), i + 0.5)
    assert len(trace._spans) == 5
    trace.close()
    trace.close()
    rows, _, facts = read(trace.path)
    assert len(rows[ROLLOUT]) == facts["spans"] == 5 and facts["spans left out"] == 7
    said = capsys.readouterr().err
    assert said == f"puffer_mlx: {trace.path}: {facts['note']}\n"
    assert "first 5 spans; 7 later ones were left out" in said


def test_a_file_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    """At the end, that doesn't end the run; before, it is refused."""

    def fails(number):
        def fail(*_, **__):
            raise OSError(number, os.strerror(number))

        return fail

    trace = Trace(tmp_path / "t.json", 0, 1)
    trace.begin(0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fails(errno.ENOSPC))
        trace.begin(1)
    assert "no trace: can't write" in capsys.readouterr().err and files(tmp_path) == set()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match=r"can't write .*Permission denied"):
        Trace(tmp_path / "new" / "t.json", 0, 1)
    assert not (tmp_path / "new").exists()


def test_a_path_that_will_not_do_is_refused_before_the_run(tmp_path):
    for name, expected in [
        ("", "it is a folder, not a regular file"),
        ("taken/t.json", "can't write "),
        ("new/../taken/t.json", "can't write "),
    ]:
        (tmp_path / "taken").write_text("mine")
        with pytest.raises(UserError, match=expected) as error:
            Trace(tmp_path / name, 0, 1)
        assert error.value.hint and files(tmp_path) == {"taken"}
