"""Check the files of each tracker's real package, without a network.

Packages that aren't installed are skipped: ``pip install 'puffer-mlx[track]'``.
"""

import base64
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_tracked_run import FAULTY, record

from puffer_mlx import config as c
from puffer_mlx.config.components import trackers as names
from puffer_mlx.evaluation.frames import Frame, gif_bytes
from puffer_mlx.tracking.tracked_run import RunContext, Trackers
from puffer_mlx.tracking.trackers import find_tracker

READ_BACK = Path(__file__).with_name("read_back.py")
PLACES = {"tensorboard": "logs/squared/7", "wandb": "logs/wandb", "trackio": "trackio"}
NAMES = {
    "tensorboard": "old, and blue | MLX",
    "wandb": "7 fish new old, and blue | model",
    "trackio": "fish squared-7 new",
}
WORDS = "--wandb-project", "fish", "--wandb-group", "new", "--tag", "old, and blue"


def needs(name: str) -> None:
    if importlib.util.find_spec(find_tracker(name).package) is None:
        pytest.skip(f"{name} isn't installed: pip install 'puffer-mlx[track]'")


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Change to an empty working directory, and hide this machine's logins and folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", FAULTY)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for variable in ("WANDB_API_KEY", "WANDB_DIR", "WANDB_MODE", "NETRC", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def run() -> RunContext:
    return RunContext(c.load("squared", WORDS), "7", Path("logs/squared/7.jsonl"), overlap=False)


def tracked(name: str) -> None:
    with Trackers(run(), [name]) as trackers:
        for number in 1, 2, 3:
            trackers.log(record(number))


def epoch(number: int) -> dict[str, float]:
    return record(number, **{"loss/total": math.nan if number == 2 else 1.0})


def video(step: int) -> Path:
    path = Path(f"{step:03}.gif")
    pixels = np.full((6, 8, 3), step, np.uint8)
    path.write_bytes(gif_bytes([Frame(pixels, 0, 0, 0.0, 0.0, False)], 10))
    return path


def read_back(name: str) -> dict:
    words = [sys.executable, str(READ_BACK), name, PLACES[name]]
    return json.loads(subprocess.run(words, check=True, capture_output=True, timeout=120).stdout)


@pytest.mark.parametrize("name", names())
def test_a_tracker_stores_each_epoch_once_and_the_videos_and_the_result(alone, capsys, name):
    """The run fails after epoch 4, is resumed from epoch 2's checkpoint, and ends with epoch 6."""
    needs(name)
    videos = [video(64), video(192)]
    with pytest.raises(ZeroDivisionError), Trackers(run(), [name]) as trackers:
        trackers.log(epoch(1), videos[0])
        trackers.log(epoch(2))
        trackers.log(epoch(3), videos[1])
        trackers.log(epoch(4))
        raise ZeroDivisionError
    Path("weights.safetensors").write_bytes(b"weights")
    with Trackers(run(), [name], 128) as trackers:
        trackers.log(epoch(3), videos[1])
        trackers.log(epoch(4), Path("gone.gif"))
        trackers.log(epoch(5))
        trackers.log(epoch(6))
        trackers.done, trackers.weights = True, Path("weights.safetensors")
        trackers.set_evaluation_scores({"agent_steps": 64 * 99, "env/score": 0.75, "env/n": 3.0})
    printed = capsys.readouterr().out
    assert "dropped" not in printed and printed.count(f"track  {name}: ") == 2
    back = read_back(name)
    points = back["points"]
    steps = [64 * epoch for epoch in range(1, 7)]
    assert points["env/score"] == [[step, pytest.approx(step / 640)] for step in steps]
    assert [step for step, _ in points["loss/total"]] == [64, *steps[2:]]  # epoch 2: not finite
    without_cards = {"epoch", "agent_steps"} if name == "tensorboard" else set()
    assert {"epoch", "agent_steps"} - points.keys() == without_cards
    contents = [base64.b64encode(path.read_bytes()).decode() for path in videos]
    assert sorted(back["videos"]) == sorted(contents)
    assert (back["status"], back["score"]) == (["failed", "finished"], 0.75)
    assert back["config"]["train"]["gamma"] == 0.99
    missing = [word for word in NAMES[name].split(" | ") if word not in back["names"]]
    assert not missing, back["names"]


# ---- faults --------------------------------------------------------------------------------------


def dropped(printed: str, name: str) -> str:
    """Return the reason in the only printed line about a dropped tracker."""
    (line,) = [line for line in printed.splitlines() if "dropped" in line]
    before, _, why = line.partition(f"track  {name} is dropped, the run goes on: ")
    assert before == "" and why
    return why


FAULTS = {
    "tensorboard": "tensorboard.summary.writer.record_writer:RecordWriter.write=raise",
    "wandb": "wandb.sdk.wandb_run:Run.log=raise",
    "trackio": "trackio.sqlite_storage:SQLiteStorage.bulk_log=raise",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_tracker_that_cannot_write_is_dropped(alone, monkeypatch, capsys, name):
    """Each package reports it in another way: by an exception, from a thread, as a warning."""
    needs(name)
    monkeypatch.setenv("TRACKER_FAULT", FAULTS[name])
    tracked(name)
    assert "No space left on device" in dropped(capsys.readouterr().out, name)


def test_wandb_without_a_network_stores_the_run_offline(alone, monkeypatch, capsys):
    """With a login, and a server that doesn't answer."""
    needs("wandb")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "0.5")
    tracked("wandb")
    assert "track  wandb: offline (" in capsys.readouterr().out
    assert [step for step, _ in read_back("wandb")["points"]["env/score"]] == [64, 128, 192]
