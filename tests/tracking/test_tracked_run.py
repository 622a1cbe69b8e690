"""A run's trackers: what each is sent, and that none of them can fail or delay the run."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from running import wait_until

from puffer_mlx import config as c
from puffer_mlx.errors import UserError
from puffer_mlx.tracking import tracked_run
from puffer_mlx.tracking.tracked_run import (
    RunContext,
    Trackers,
    check_trackers_installed,
    last_step_in_log,
    tracker_names,
)
from puffer_mlx.tracking.tracker_process import read_last_tracked_step

FAULTY = str(Path(__file__).parent / "faulty")
PLANTED = "puffer_mlx.tracking.trackers.planted:Planted"
KEPT = Path("logs/squared/7.planted.json")
FULL = "OSError: [Errno 28] No space left on device"


def kinds(lines) -> list[str]:
    return [next(iter(line)) for line in lines]


def run(*words: str) -> RunContext:
    return RunContext(c.load("squared", words), "7", Path("logs/squared/7.jsonl"), overlap=False)


def record(epoch: int, **more: float) -> dict[str, float]:
    return {"agent_steps": 64 * epoch, "epoch": epoch, "env/score": epoch / 10, **more}


def gone(trackers: Trackers) -> bool:
    """Return True if all processes of the trackers have ended."""
    return all(link.process and link.process.poll() is not None for link in trackers._processes)


# ---- what a tracker is sent ----------------------------------------------------------------------


def test_a_tracker_gets_the_run_its_epochs_and_its_result(tracked_records, capsys):
    words = "--wandb-project", "fish", "--wandb-group", "new", "--tag", "a b"
    with Trackers(run("--train.gamma", "0.5", *words), ["planted"]) as trackers:
        for epoch in 1, 2, 3:
            trackers.log(record(epoch, **{"loss/kl": float("nan"), "env/n": 2.0}))
        trackers.set_evaluation_scores({"agent_steps": 999, "env/score": 0.75})
        trackers.done, trackers.weights = True, Path("w.safetensors")
    begun, *epochs, end = tracked_records()
    start, config = begun["start"], begun["start"]["config"]
    assert (start["run_id"], start["environment"], start["log_dir"]) == ("7", "squared", "logs")
    assert (start["project"], start["group"], start["tag"]) == ("fish", "new", "a b")
    assert config["train"]["gamma"] == 0.5 and config["env"] == {"size": 11.0}
    assert config["train"]["overlap"] is False  # not auto
    assert {"puffer_mlx", "MLX", "device", "cores", "host"} <= start["machine"].keys()
    assert start["command"] == shlex.join(sys.argv)
    assert (start["resumed_step"], start["last_tracked_step"]) == (None, None)
    finite = [record(epoch, **{"env/n": 2.0}) for epoch in (1, 2, 3)]
    assert epochs == [{"step": each["agent_steps"], "metrics": each} for each in finite]
    scores = {"final/score": 0.75}
    assert end["finish"] == {"status": "finished", "scores": scores, "weights": "w.safetensors"}
    assert gone(trackers)
    assert capsys.readouterr().out == "track  planted: in a file\n"
    assert json.loads(KEPT.read_text()) == {"where": "in a file", "step": 192}


@pytest.mark.parametrize(
    ("more", "scores"),
    [({}, {"final/score": 0.2}), ({"eval/score": 0.9}, {"final/score": 0.9})],
)
def test_final_scores_are_the_last_ones_of_an_epoch_or_its_evaluation(
    tracked_records, more, scores
):
    with Trackers(run(), ["planted"]) as trackers:
        trackers.log(record(1))
        trackers.log(record(2, **more))
        trackers.log({"agent_steps": 192, "epoch": 3})
    assert tracked_records()[-1]["finish"] == {"status": "stopped", "scores": scores, "weights": ""}


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_tracked_run import Trackers, record, run
trackers = Trackers(run(), ["planted"])
trackers.log(record(1))
trackers._processes[0]._lines.write(b'{"step": 128, "metr')
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_trainers_tracker_ends_with_status_killed(tracked_records):
    here = Path(__file__).parent
    paths = FAULTY, tracked_run.PACKAGE_PARENT, str(here.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-c", KILLED, str(here)]
    assert subprocess.run(words, env=environment, check=False).returncode == -signal.SIGKILL
    wait_until(lambda: any("finish" in line for line in tracked_records()))
    assert kinds(tracked_records()) == ["start", "step", "finish"]
    assert tracked_records()[-1]["finish"]["status"] == "killed"
    wait_until(lambda: "step" in json.loads(KEPT.read_text()))
    assert json.loads(KEPT.read_text())["step"] == 64


def test_a_resumed_run_names_the_last_step_that_the_tracker_has(tracked_records):
    def again(*epochs: int, step: int | None = 64):
        with Trackers(run(), ["planted"], resumed_step=step, last_logged_step=500) as trackers:
            for epoch in epochs:
                trackers.log(record(epoch))
        start = next(line["start"] for line in tracked_records()[::-1] if "start" in line)
        return start["resumed_step"], start["last_tracked_step"]

    assert again(1, 2, step=None) == (None, None)
    assert again(1) == (64, 128)  # from its note, not from the log
    assert again() == (64, 128)  # it was stopped before it was as far again
    KEPT.write_text('{"where": "in a file"}')
    assert again() == (64, 500)  # the tracker was killed, too


# ---- damaged logs and notes ----------------------------------------------------------------------

EPOCHS = [json.dumps({"agent_steps": 64 * epoch, "epoch": epoch}) for epoch in (1, 2, 3)]
LOG = "\n".join([*EPOCHS, '{"agent_steps": 900, "env/score": 1.0}', ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
DAMAGE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n")) | VALUES.map(json.dumps)
FEW = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FEW
@given(st.integers(0, len(LOG)), DAMAGE)
@example(len(LOG), "")
@example(len(EPOCHS[0]) + 1, '{"epoch": 1}')
@example(len(EPOCHS[0]) + 1, '{"epoch": 1, "agent_steps": "x"}')
@example(len(EPOCHS[0]) + 1, "[" * 10**5)
def test_last_step_is_the_last_complete_epochs_of_a_cut_or_damaged_log(tmp_path, size, damage):
    log = tmp_path / "log.jsonl"
    assert last_step_in_log(tmp_path / "no.jsonl") is None
    log.write_text(f"{LOG[:size]}\n{damage}", encoding="utf-8")
    complete = sum(LOG[:size].count(line) for line in EPOCHS)
    assert last_step_in_log(log) == (64 * complete or None)


@FEW
@given(DAMAGE.filter(lambda text: not text.startswith("{")))
@example('{"step": "x"}')
@example('{"step": [1]}')
@example('{"wh')
@example("[" * 10**5)
def test_a_damaged_note_means_that_the_tracker_has_no_step(tmp_path, text):
    (tmp_path / "kept.json").write_text(text, encoding="utf-8")
    assert read_last_tracked_step(tmp_path / "kept.json", 64) is None


# ---- faults --------------------------------------------------------------------------------------

FAULTS = {
    f"{PLANTED}.start=raise": FULL,
    f"{PLANTED}.finish=die": "its process has ended",
    "puffer_mlx.tracking.trackers:find_tracker=raise": "its process has ended",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_tracker_is_dropped_with_one_line(tracked_records, monkeypatch, capsys, fault):
    monkeypatch.setenv("TRACKER_FAULT", fault)
    said = []
    with Trackers(run(), ["planted"]) as trackers:
        for epoch in range(1, 4):
            said += trackers.log(record(epoch))
        if ".finish=" not in fault:
            wait_until(lambda: said.extend(trackers.log(record(4))) or trackers._processes[0].error)
    said += capsys.readouterr().out.splitlines()
    line = f"track  planted is dropped, the run goes on: {FAULTS[fault]}"
    assert [x for x in said if x != "track  planted: in a file"] == [line]
    assert gone(trackers)


def test_a_dropped_tracker_does_not_affect_another(tracked_records, capsys):
    Path("logs").write_text("in the way")  # a note that can't be written is no fault
    with Trackers(run(), ["nothing_of_that_name", "planted"]) as trackers:
        lines = trackers.log(record(1))  # with messages that have come already
    printed = "\n".join(lines) + capsys.readouterr().out
    assert "nothing_of_that_name is dropped" in printed and printed.count("dropped") == 1
    assert kinds(tracked_records()) == ["start", "step", "finish"]


def test_a_hanging_tracker_is_killed_after_the_timeout(tracked_records, monkeypatch, capsys):
    monkeypatch.setenv("TRACKER_FAULT", f"{PLANTED}.finish=hang")
    monkeypatch.setattr(tracked_run, "FINISH_TIMEOUT", 1.5)
    monkeypatch.setattr(tracked_run, "QUIET_WAIT", 0.1)
    with Trackers(run(), ["planted"]) as trackers:
        trackers.log(record(1))
    out = capsys.readouterr().out
    assert "track  waiting for planted, 1.5 seconds at most\n" in out
    assert "planted didn't finish within 1.5 seconds; what it has on disk stays there" in out
    assert "dropped" not in out and gone(trackers)


def test_ctrl_c_ends_the_wait_for_a_tracker(tracked_records, monkeypatch, capsys):
    monkeypatch.setenv("TRACKER_FAULT", f"{PLANTED}.finish=hang")

    def interrupted(link, deadline):
        if deadline:
            raise KeyboardInterrupt
        return False

    with Trackers(run(), ["planted"]) as trackers:
        monkeypatch.setattr(tracked_run.TrackerProcess, "ends_by", interrupted)
    assert "planted wasn't waited for" in capsys.readouterr().out and gone(trackers)


def test_a_tracker_whose_process_cannot_start_is_dropped(
    tracked_records, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with Trackers(run(), ["planted"]) as trackers:
        (line,) = trackers.log(record(1))
        assert trackers.log(record(2)) == []
    assert line.startswith("track  planted is dropped, the run goes on: its process can't be st")
    with Trackers(run(), []) as trackers:  # no tracker is selected
        assert trackers.log(record(1)) == []
    assert not list(tmp_path.iterdir()) and capsys.readouterr().out == ""


# ---- which trackers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "names"),
    [("--track trackio,wandb,trackio --wandb", ["trackio", "wandb"]), ("--track none", [])],
)
def test_track_and_wandb_select_each_tracker_once(words, names):
    assert tracker_names(c.load("squared", words.split())) == names


def test_an_unknown_tracker_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"base\.track neptune does not exist here") as error:
        c.load("squared", ["--track", "wandb,neptune"])
    assert "tensorboard or trackio or wandb" in error.value.hint


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch):
    class Folder:  # wandb makes a folder ./wandb
        origin = None

    check_trackers_installed(c.load("squared"))
    monkeypatch.setattr(tracked_run.importlib.util, "find_spec", lambda _: Folder)
    with pytest.raises(UserError, match=r"base\.track names wandb, trackio") as error:
        check_trackers_installed(c.load("squared", ["--track", "wandb,trackio"]))
    assert error.value.hint.startswith("pip install 'puffer-mlx[wandb,trackio]'")
