"""Each tracker with its real package, without network: what it wrote is read back.

Whatever of them isn't installed is skipped: ``pip install 'puffer-mlx[track]'``.
"""

import base64
import importlib.util
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_tracked_run import FAULTY, record

from puffer_mlx import config as c
from puffer_mlx.config.parts import trackers as names
from puffer_mlx.evaluation.frames import Frame, gif_bytes
from puffer_mlx.tracking.tracked_run import RunLog, Trackers
from puffer_mlx.tracking.trackers import find

READ_BACK = Path(__file__).with_name("read_back.py")
PLACES = {"tensorboard": "logs/squared/7", "wandb": "logs/wandb", "trackio": "trackio"}
FULL = "No space left on device"
WORDS = "--wandb-project", "fish", "--wandb-group", "new", "--tag", "old, and blue"


def needs(name: str) -> None:
    if importlib.util.find_spec(find(name).package) is None:
        pytest.skip(f"{name} isn't installed: pip install 'puffer-mlx[track]'")


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """An empty working directory; trackers know neither a login nor this machine's folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", FAULTY)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for variable in ("WANDB_API_KEY", "WANDB_DIR", "WANDB_MODE", "NETRC", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def run() -> RunLog:
    return RunLog(c.load("squared", WORDS), "7", Path("logs/squared/7.jsonl"), overlap=False)


def tracked(name: str, epochs: range, step: int | None = None, score: float = 0.0) -> None:
    """A start of the run: these epochs, and an evaluation if there is a score."""
    with Trackers(run(), [name], step) as trackers:
        for epoch in epochs:
            trackers.log(record(epoch, **{"loss/total": math.nan if epoch == 2 else 1.0}))
        if score:
            trackers.done, trackers.weights = True, Path("weights.safetensors")
            trackers.evaluated({"agent_steps": 64 * 99, "env/score": score, "env/n": 3.0})


def picture(value: int) -> Frame:
    return Frame(np.full((6, 8, 3), value, np.uint8), 0, 0, 0.0, 0.0, False)


def read_back(name: str) -> dict:
    words = [sys.executable, str(READ_BACK), name, PLACES[name]]
    return json.loads(subprocess.run(words, check=True, capture_output=True, timeout=120).stdout)


@pytest.mark.parametrize("name", names())
def test_what_it_wrote(alone, capsys, name):
    """A run that is stopped after epoch 4, goes on from epoch 2's checkpoint, and ends with 6."""
    needs(name)
    Path("weights.safetensors").write_bytes(b"weights")
    tracked(name, range(1, 5))
    tracked(name, range(3, 7), step=128, score=0.75)
    said = capsys.readouterr().out
    assert "dropped" not in said and said.count(f"track  {name}: ") == 2

    back = read_back(name)
    points, config, texts = back["points"], back["config"], back["texts"]
    steps = [64 * epoch for epoch in range(1, 7)]
    assert points["env/score"] == [[step, pytest.approx(step / 640)] for step in steps]  # once each
    assert [step for step, _ in points["loss/total"]] == [64, *steps[2:]]  # not that of epoch 2
    assert {"epoch", "agent_steps"} <= points.keys()

    if name == "wandb":
        assert texts["runs"] == [["7", "fish", "new", "old, and blue"]] * 2
        assert (texts["final/score"], texts["status"], texts["exit"]) == (0.75, "finished", 0)
        assert texts["artifacts"] == [["7", "model"]]
        assert config["train"]["gamma"] == 0.99 and config["base"]["run_id"] == "7"
        assert config["command"] == shlex.join(sys.argv) and config["machine"]["puffer_mlx"]
        return
    scores = [[256, pytest.approx(0.4)], [384, 0.75]]
    assert points["final/score"] == scores[-len(points["final/score"]) :]
    assert points["final/n"] == [[384, 3.0]]
    assert config["train.gamma"] == 0.99 and config["base.run_id"] == "7"
    if name == "trackio":
        assert (texts["project"], texts["run"]) == ("fish", "squared-7")
        assert texts["status"] == ["stopped", "finished"] and config["_Group"] == "new"
        assert config["machine.MLX"] and config["machine.command"] == shlex.join(sys.argv)
    else:
        assert texts["status"][-1] == "finished" and texts["session"] == [1]
        assert "MLX" in texts["run"][0] and "old, and blue" in texts["run"][0]
        told = texts["configuration"][0].removeprefix("```json").removesuffix("```")
        assert json.loads(told)["train"]["gamma"] == 0.99


@pytest.mark.parametrize("name", names())
def test_videos_and_an_error(alone, capsys, name):
    """The second one comes again when the run goes on; a file that isn't there costs no epoch."""
    needs(name)
    films = [Path(f"{step:03}.gif") for step in (64, 128, 192)]
    for value, film in enumerate(films):
        film.write_bytes(gif_bytes([picture(value)], 10))
    for epochs, step in ((1, 2), None), ((2, 3, 4), 64):
        with pytest.raises(ZeroDivisionError), Trackers(run(), [name], step) as trackers:
            for epoch in epochs:
                trackers.log(record(epoch), [*films, Path("gone.gif")][epoch - 1])
            raise ZeroDivisionError
    said = capsys.readouterr().out
    assert "dropped" not in said and said.count(f"track  {name} gets no further videos: ") == 1
    back = read_back(name)
    assert [step for step, _ in back["points"]["env/score"]] == [64, 128, 192, 256]
    contents = [base64.b64encode(film.read_bytes()).decode() for film in films]
    assert sorted(back["videos"]) == sorted(contents)
    texts = back["texts"]
    assert texts["status"] == ("failed" if name == "wandb" else ["failed", "failed"])
    assert texts.get("exit", 1) == 1 and texts.get("session", [2]) == [2]


# ---- faults --------------------------------------------------------------------------------------


def dropped(said: str, name: str) -> str:
    """The one line that says why."""
    (line,) = [line for line in said.splitlines() if "dropped" in line]
    before, _, why = line.partition(f"track  {name} is dropped, the run goes on: ")
    assert before == "" and why
    return why


@pytest.mark.parametrize(
    ("name", "fault", "why"),
    [
        ("tensorboard", "tensorboard.summary.writer.record_writer:RecordWriter.write=raise", FULL),
        ("wandb", "wandb.sdk.wandb_run:Run.log=raise", FULL),
        ("wandb", "os:access=deny", "PermissionError: logs can't be written to"),  # not elsewhere
        ("trackio", "trackio.sqlite_storage:SQLiteStorage.bulk_log=raise", FULL),
    ],
)
def test_what_can_not_be_written_drops_it(alone, monkeypatch, capsys, name, fault, why):
    """Each tracker says it in another way: by an exception, from a thread, as a warning."""
    needs(name)
    monkeypatch.setenv("TRACKER_FAULT", fault)
    tracked(name, range(1, 4))
    assert why in dropped(capsys.readouterr().out, name)


@pytest.mark.parametrize("name", names())
def test_a_file_in_the_way_of_its_folder_drops_it(alone, monkeypatch, capsys, name):
    needs(name)
    path = Path(PLACES[name])
    monkeypatch.setenv("WANDB_DIR", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("in the way")
    tracked(name, range(1, 4))
    assert dropped(capsys.readouterr().out, name)
    assert path.read_text() == "in the way"


def test_without_network_wandb_goes_on_offline(alone, monkeypatch, capsys):
    """With a login, and where nobody answers; nothing of the run is lost."""
    needs("wandb")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "0.5")
    tracked("wandb", range(1, 4))
    assert "track  wandb: offline (" in capsys.readouterr().out
    assert [step for step, _ in read_back("wandb")["points"]["env/score"]] == [64, 128, 192]
