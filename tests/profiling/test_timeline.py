"""A timeline's file, read as Chrome's format."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from running import files

from puffer_mlx.errors import UserError
from puffer_mlx.profiling.phases import Profiler
from puffer_mlx.profiling.timeline import ENVIRONMENTS, ROLLOUT, TRAIN, Timeline


def read(path: Path) -> tuple[dict[str, list[dict]], list[dict], dict]:
    """Read a timeline file and check its format.

    Returns spans by row in the rows' order, marks, and facts.
    """
    document = json.loads(path.read_text())
    rows: dict[int, str] = {}
    order: dict[int, int] = {}
    spans: dict[int, list[dict]] = {}
    marks = []
    for event in document["traceEvents"]:
        assert event["pid"] == 1
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            spans.setdefault(event["tid"], []).append(event)
        elif event["ph"] == "i":
            marks.append(event)
        elif event["name"] == "thread_name":
            rows[event["tid"]] = event["args"]["name"]
        elif event["name"] == "thread_sort_index":
            order[event["tid"]] = event["args"]["sort_index"]
    assert set(order) == set(rows) == set(spans)
    tids = sorted(rows, key=order.__getitem__)
    return {rows[tid]: spans[tid] for tid in tids}, marks, document["otherData"]


def test_a_file_has_rows_spans_and_marks_of_the_recorded_epochs(tmp_path):
    clock = SimpleNamespace(now=0.0)
    profiler = Profiler(clock=lambda: clock.now)
    path = tmp_path / "deep" / "run.json"
    profiler.timeline = timeline = Timeline(path, first=2, epochs=3, clock=lambda: clock.now)
    for epoch in range(6):
        profiler.begin_epoch(epoch)
        profiler.rollout.start()
        profiler.train.start()
        began = clock.now
        clock.now += 0.001
        timeline.span(ENVIRONMENTS, "group 0", began, clock.now, group=0)
        profiler.rollout.lap("eval_act", "acting stream 1")
        clock.now += 0.003
        profiler.train.lap("train_forward", "learning stream")
        profiler.train.lap("train_misc")
    rows, marks, facts = read(path)
    assert list(rows) == [ROLLOUT, TRAIN, "acting stream 1", "learning stream", ENVIRONMENTS]
    assert [span["name"] for span in rows[TRAIN]] == ["train_forward", "train_misc"] * 3
    assert [span["name"] for span in rows["acting stream 1"]] == ["eval_act"] * 3
    assert rows[ENVIRONMENTS][0]["args"] == {"group": 0}
    assert [mark["name"] for mark in marks] == ["epoch 2", "epoch 3", "epoch 4"]
    durations = [span["dur"] for span in rows["learning stream"]]
    assert durations == pytest.approx([4000] * 3, abs=0.1)  # microseconds
    assert facts["epochs"] == 3 and facts["spans left out"] == 0 and "note" not in facts
    assert files(tmp_path) == {"deep/run.json"}


def test_spans_are_cut_at_the_start_of_the_recording(tmp_path):
    clock = iter([10.0, 10.0]).__next__
    timeline = Timeline(tmp_path / "t.json", 0, 1, clock=clock)
    timeline.span(ROLLOUT, "before", 1.0, 2.0)  # not recorded
    timeline.begin_epoch(0)
    timeline.span(ROLLOUT, "eval_env", 9.0, 12.5)
    timeline.close()
    timeline.span(ROLLOUT, "after", 13.0, 14.0)
    ((row, (span,)),) = read(timeline.path)[0].items()
    assert (row, span["name"], span["ts"], span["dur"]) == (ROLLOUT, "eval_env", 0, 2_500_000)


def test_a_resumed_run_is_recorded_from_its_first_epochs(tmp_path):
    timeline = Timeline(tmp_path / "t.json", first=2, epochs=2)
    for epoch in range(500, 504):
        timeline.begin_epoch(epoch)
    assert [mark["name"] for mark in read(timeline.path)[1]] == ["epoch 500", "epoch 501"]


def test_rows_are_in_a_fixed_order_with_unknown_ones_last(tmp_path):
    timeline = Timeline(tmp_path / "t.json", 0, 1)
    timeline.begin_epoch(0)
    for row in ("extra", "acting stream 1", ENVIRONMENTS, TRAIN, "acting stream 0"):
        timeline.span(row, "x", 1.0, 2.0)
    timeline.close()
    expected = [TRAIN, "acting stream 0", "acting stream 1", ENVIRONMENTS, "extra"]
    assert list(read(timeline.path)[0]) == expected


def test_spans_beyond_the_limit_are_counted_and_reported(tmp_path, capsys):
    timeline = Timeline(tmp_path / "t.json", 0, 1, limit=5)
    timeline.begin_epoch(0)
    for i in range(12):
        timeline.span(ROLLOUT, "eval_act", float(i), i + 0.5)
    assert len(timeline._spans) == 5
    timeline.close()
    timeline.close()
    rows, _, facts = read(timeline.path)
    assert len(rows[ROLLOUT]) == facts["spans"] == 5 and facts["spans left out"] == 7
    said = capsys.readouterr().err
    assert said == f"puffer_mlx: {timeline.path}: {facts['note']}\n"
    assert "first 5 spans; 7 later ones were dropped" in said


def test_a_trace_that_can_not_be_written_does_not_end_the_run(tmp_path, capsys, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    timeline = Timeline(tmp_path / "t.json", 0, 1)
    timeline.begin_epoch(0)
    monkeypatch.setattr(Path, "write_text", fail)
    timeline.begin_epoch(1)
    assert (
        "timeline not written: can't write" in capsys.readouterr().err and files(tmp_path) == set()
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "it is a folder, not a regular file"), ("new/../taken/t.json", "can't write ")],
)
def test_an_unusable_path_is_refused_before_the_run(tmp_path, name, message):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UserError, match=message) as error:
        Timeline(tmp_path / name, 0, 1)
    assert error.value.hint and files(tmp_path) == {"taken"}
