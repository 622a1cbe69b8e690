"""A run's trackers, whatever they do: a planted one that obeys, and ones that fail."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from running import wait_until

from puffer_mlx import config as c
from puffer_mlx.errors import UserError
from puffer_mlx.tracking import tracked_run
from puffer_mlx.tracking.tracked_run import (
    RunLog,
    Trackers,
    last_step,
    refuse_missing,
    tracker_names,
)
from puffer_mlx.tracking.tracker_process import last_logged_step, serve
from puffer_mlx.tracking.trackers import RunResult, TrackedRun, find, flat

FAULTY = str(Path(__file__).parent / "faulty")
PLANTED = "puffer_mlx.tracking.trackers.planted:Planted"
KEPT = Path("logs/squared/7.planted.json")


def kinds(lines) -> list[str]:
    return [next(iter(line)) for line in lines]


def run(*words: str) -> RunLog:
    return RunLog(c.load("squared", words), "7", Path("logs/squared/7.jsonl"), overlap=False)


def record(epoch: int, **more: float) -> dict[str, float]:
    return {"agent_steps": 64 * epoch, "epoch": epoch, "env/score": epoch / 10, **more}


def gone(trackers: Trackers) -> bool:
    """Whether no process is left."""
    return all(link.process and link.process.poll() is not None for link in trackers._processes)


# ---- what a tracker is told ----------------------------------------------------------------------


def test_it_is_told_of_all(told, capsys):
    words = "--wandb-project", "fish", "--wandb-group", "new", "--tag", "a b"
    with Trackers(run("--train.gamma", "0.5", *words), ["planted"]) as trackers:
        for epoch in 1, 2, 3:
            trackers.log(record(epoch, **{"loss/kl": float("nan"), "env/n": 2.0}))
        trackers.evaluated({"agent_steps": 999, "env/score": 0.75})
        trackers.done, trackers.weights = True, Path("w.safetensors")
    begun, *epochs, end = told()
    start, config = begun["start"], begun["start"]["config"]
    assert (start["run_id"], start["environment"], start["log_dir"]) == ("7", "squared", "logs")
    assert (start["project"], start["group"], start["tag"]) == ("fish", "new", "a b")
    assert config["train"]["gamma"] == 0.5 and config["env"] == {"size": 11.0}
    assert config["train"]["overlap"] is False  # not auto
    assert {"puffer_mlx", "MLX", "device", "cores", "host"} <= start["machine"].keys()
    assert start["command"] == shlex.join(sys.argv)
    assert (start["step"], start["known_to"]) == (None, None)
    known = [record(epoch, **{"env/n": 2.0}) for epoch in (1, 2, 3)]
    assert epochs == [{"step": each["agent_steps"], "metrics": each} for each in known]
    scores = {"final/score": 0.75}
    assert end["finish"] == {"status": "finished", "scores": scores, "weights": "w.safetensors"}
    assert gone(trackers)
    assert capsys.readouterr().out == "track  planted: in a file\n"
    assert json.loads(KEPT.read_text()) == {"where": "in a file", "step": 192}


def test_the_last_scores_count_without_an_evaluation(told):
    """Of an epoch's own evaluation, if it had one."""
    for more, scores in (
        ({}, {"final/score": 0.2}),
        ({"eval/score": 0.9, "eval/n": 100.0}, {"final/score": 0.9, "final/n": 100.0}),
    ):
        with Trackers(run(), ["planted"]) as trackers:
            trackers.log(record(1))
            trackers.log(record(2, **more))
            trackers.log({"agent_steps": 192, "epoch": 3})
        assert told()[-1]["finish"] == {"status": "stopped", "scores": scores, "weights": ""}


def test_videos_are_shown_after_their_epoch(told, monkeypatch, capsys):
    """An error is told, and not hidden; a tracker that fails to show one keeps the run."""
    with pytest.raises(ZeroDivisionError), Trackers(run(), ["planted"]) as trackers:
        trackers.log(record(1))
        trackers.log(record(2), Path("videos/128.gif"))
        raise ZeroDivisionError
    _, _, epoch, video, end = told()
    assert end["finish"]["status"] == "failed"
    assert epoch["step"] == 128 and epoch["metrics"].keys() == record(2).keys()
    assert video == {"step": 128, "path": str(Path.cwd() / "videos" / "128.gif")}
    monkeypatch.setenv("TRACKER_FAULT", f"{PLANTED}.show=raise")
    capsys.readouterr()
    with Trackers(run(), ["planted"]) as trackers:
        for epoch in 1, 2:
            trackers.log(record(epoch), Path("video.gif"))
    assert kinds(told()[5:]) == ["start", "step", "step", "finish"]
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == [f"track  planted gets no further videos: {FULL}"]


def test_one_that_shows_no_videos_is_not_asked(tmp_path):
    class Plain:
        def start(self, run):
            return "here"

        def log(self, step, metrics):
            pass

        def finish(self, result):
            pass

    about = TrackedRun("7", "x", ".", "p", "g", "none", {}, {}, "")._asdict()
    start = {"start": about, "keep": str(tmp_path / "kept")}
    lines = [start, {"step": 1, "metrics": {}, "video": "x.gif"}]
    answers, finishing = [], []
    serve(Plain(), map(json.dumps, lines), answers.append, lambda: finishing.append(1))
    assert finishing == [1]
    # what ends a tracker's process must not run in this one
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
    assert [json.loads(line) for line in answers] == [{"started": "here"}, {"finished": True}]


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_tracked_run import Trackers, record, run
trackers = Trackers(run(), ["planted"])
trackers.log(record(1))
trackers._processes[0]._lines.write(b'{"step": 128, "metr')
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_trainer_s_tracker_ends_by_itself(told):
    here = Path(__file__).parent
    paths = FAULTY, tracked_run.PACKAGES, str(here.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-c", KILLED, str(here)]
    assert subprocess.run(words, env=environment, check=False).returncode == -signal.SIGKILL
    wait_until(lambda: any("finish" in line for line in told()))
    assert kinds(told()) == ["start", "step", "finish"]
    assert told()[-1]["finish"]["status"] == "killed"
    wait_until(lambda: "step" in json.loads(KEPT.read_text()))
    assert json.loads(KEPT.read_text())["step"] == 64


def test_a_run_that_goes_on_says_what_is_known(told):
    def again(*epochs: int, step: int | None = 64):
        with Trackers(run(), ["planted"], step=step, logged=500) as trackers:
            for epoch in epochs:
                trackers.log(record(epoch))
        start = next(line["start"] for line in told()[::-1] if "start" in line)
        return start["step"], start["known_to"]

    assert again(1, 2, step=None) == (None, None)
    assert again() == (64, 128)  # what it had been told, whatever the log has
    assert again(1) == (64, 128)
    assert again() == (64, 128)  # it was stopped before it was as far again
    KEPT.write_text('{"where": "in a file"}')
    assert again() == (64, 500)  # the tracker was killed, too
    KEPT.write_text('{"wh')
    assert again() == (64, None)  # it is new to this tracker


def test_the_last_step_of_a_log(tmp_path):
    log = tmp_path / "log.jsonl"
    assert last_step(log) is None
    log.write_text('{"agent_steps": 64, "epoch": 1}\n{"agent_steps": 128, "epoch": 2}\n')
    with log.open("a") as file:
        file.write('{"agent_steps": 900, "env/score": 1.0}\n{"agent_steps": 192, "ep')
    assert last_step(log) == 128


@pytest.mark.parametrize(
    "line", ["[]", "7", "null", '{"epoch": 1}', '{"epoch": 1, "agent_steps": "x"}', "[" * 10**5]
)
def test_the_last_step_of_a_damaged_log(tmp_path, line):
    log = tmp_path / "log.jsonl"
    log.write_text(f'{{"agent_steps": 64, "epoch": 1}}\n{line}\n')
    assert last_step(log) == 64


@pytest.mark.parametrize("text", ["[]", '{"step": "x"}', '{"step": [1]}', "[" * 10**5, "\0"])
def test_a_damaged_note_of_what_a_tracker_knows(tmp_path, text):
    (tmp_path / "kept.json").write_text(text)
    assert last_logged_step(tmp_path / "kept.json", 64) is None


# ---- faults --------------------------------------------------------------------------------------

FULL = "OSError: [Errno 28] No space left on device"
FAULTS = {
    f"{PLANTED}.start=raise": FULL,
    f"{PLANTED}.log=raise": FULL,
    f"{PLANTED}.log=exit": "SystemExit: 3",
    f"{PLANTED}.log=die": "its process has ended",
    f"{PLANTED}.finish=die": "its process has ended",
    "puffer_mlx.tracking.trackers:find=raise": "its process has ended",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_line(told, monkeypatch, capsys, fault):
    monkeypatch.setenv("TRACKER_FAULT", fault)
    said = []
    with Trackers(run(), ["planted"]) as trackers:
        for epoch in range(1, 4):
            said += trackers.log(record(epoch))
        if ".finish=" not in fault:
            wait_until(lambda: said.extend(trackers.log(record(4))) or trackers._processes[0].fault)
    said += capsys.readouterr().out.splitlines()
    line = f"track  planted is dropped, the run goes on: {FAULTS[fault]}"
    assert [x for x in said if x != "track  planted: in a file"] == [line]
    assert gone(trackers)


def test_others_go_on(told, capsys):
    """Each has a process of its own; one that can't keep what it knows has no fault by that."""
    Path("logs").write_text("in the way")
    with Trackers(run(), ["nothing_of_that_name", "planted"]) as trackers:
        trackers.log(record(1))
    said = capsys.readouterr().out
    assert "nothing_of_that_name is dropped" in said and said.count("dropped") == 1
    assert kinds(told()) == ["start", "step", "finish"]


@pytest.mark.parametrize("method", ["start", "finish"])
def test_one_that_hangs_is_not_waited_for_long(told, monkeypatch, capsys, method):
    monkeypatch.setenv("TRACKER_FAULT", f"{PLANTED}.{method}=hang")
    monkeypatch.setattr(tracked_run, "FINISH_TIMEOUT", 1.5)
    monkeypatch.setattr(tracked_run, "QUIET_WAIT", 0.1)
    with Trackers(run(), ["planted"]) as trackers:
        trackers.log(record(1))
    out = capsys.readouterr().out
    assert "track  waiting for planted, 1.5 seconds at most\n" in out
    assert "planted didn't finish within 1.5 seconds; what it has on disk stays there" in out
    assert "dropped" not in out and gone(trackers)


def test_ctrl_c_ends_the_waiting(told, monkeypatch, capsys):
    monkeypatch.setenv("TRACKER_FAULT", f"{PLANTED}.finish=hang")

    def interrupted(link, deadline):
        if deadline:
            raise KeyboardInterrupt
        return False

    with Trackers(run(), ["planted"]) as trackers:
        monkeypatch.setattr(tracked_run.TrackerProcess, "ends_by", interrupted)
    assert "planted wasn't waited for" in capsys.readouterr().out and gone(trackers)


def test_no_process_can_be_started(told, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with Trackers(run(), ["planted"]) as trackers:
        (line,) = trackers.log(record(1))
        assert trackers.log(record(2)) == []
    assert line.startswith("track  planted is dropped, the run goes on: its process can't be st")
    with Trackers(run(), []) as trackers:  # none is asked for
        assert trackers.log(record(1)) == []
    assert not list(tmp_path.iterdir()) and capsys.readouterr().out == ""


# ---- which trackers ------------------------------------------------------------------------------


def test_names_and_switches():
    for words, names in (
        ([], []),
        (["--wandb"], ["wandb"]),
        (["--track", "trackio, wandb,trackio", "--wandb"], ["trackio", "wandb"]),
        (["--track", "none", "--wandb", "0"], []),
    ):
        assert tracker_names(c.load("squared", words)) == names
    with pytest.raises(UserError, match=r"base\.track neptune does not exist here") as error:
        c.load("squared", ["--track", "wandb,neptune"])
    assert "tensorboard or trackio or wandb" in error.value.hint
    base = c.load("squared").base
    assert (base.wandb, base.wandb_project, base.wandb_group) == (False, "puffer_mlx", "none")


def test_a_package_that_is_not_there(monkeypatch):
    """Also where a folder of its name is: wandb makes one in the working directory."""

    class Folder:
        origin = None

    refuse_missing(c.load("squared"))
    for spec in None, Folder:
        monkeypatch.setattr(tracked_run.importlib.util, "find_spec", lambda _, spec=spec: spec)
        for words in "wandb", "wandb,trackio":
            message = f"base.track names {words.replace(',', ', ')}"
            with pytest.raises(UserError, match=message) as error:
                refuse_missing(c.load("squared", ["--track", words]))
            assert error.value.hint.startswith(f"pip install 'puffer-mlx[{words}]'")


def test_each_tracker_is_one_file():
    for name in ("tensorboard", "trackio", "wandb"):
        assert find(name).package == name
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a.b": 1, "a.c.d": 2, "e": 3}
    well = {status: RunResult(status, {}).ok for status in ("finished", "stopped", "failed")}
    assert well == {"finished": True, "stopped": True, "failed": False}
