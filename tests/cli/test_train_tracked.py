"""``train --track``: trackers don't change the training."""

import importlib.util
import json
import os
from pathlib import Path

import pytest
from running import BATCH, EPOCHS, TINY, command, learned, loaded, only, records, started

from puffer_mlx.tracking import tracked_run

FAULTY = str(Path(__file__).parents[1] / "tracking" / "faulty")
TRACKED = "tensorboard,wandb,trackio"


@pytest.fixture
def pretended(monkeypatch):
    """Treat missing tracker packages as installed; importing one still fails."""
    monkeypatch.setattr(tracked_run, "_is_installed", lambda package: True)
    for variable in ("WANDB_API_KEY", "WANDB_DIR", "WANDB_MODE", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def weights(folder: Path):
    return loaded(only(folder, f"checkpoints/squared/*/{EPOCHS * BATCH:016d}/weights.safetensors"))


def test_dying_trackers_change_no_weight(script, pretended, tmp_path, monkeypatch, capsys):
    """To the bit."""
    found = {}
    for words in (), ("--track", TRACKED), ("--wandb", "--wandb-project", "fish"):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
        monkeypatch.setenv("TRACKER_FAULT", "puffer_mlx.tracking.trackers:find_tracker=die")
        monkeypatch.setenv("PYTHONPATH", FAULTY)
        assert script.main([*TINY, *words]) == 0
        arrays, _ = weights(folder)
        found[words] = {name: bytes(memoryview(array)) for name, array in arrays.items()}
        found[words]["log"] = [learned(each) for each in records(folder)]
    plain, *others = found.values()
    assert all(other == plain for other in others) and len(plain) > 3
    assert capsys.readouterr().out.count("is dropped, the run goes on") >= 4


def test_a_resumed_run_keeps_its_trackers(script, here, monkeypatch, capsys):
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("tensorboard isn't installed: pip install 'puffer-mlx[track]'")
    script.main([*TINY, "--track", "tensorboard", "--stop-at", str(2 * BATCH)])
    log = only(here, "logs/squared/*.jsonl")
    assert script.main(["squared", "--resume", "latest"]) == 0
    known = json.loads(log.with_suffix(".tensorboard.json").read_text())
    place = f"logs/squared/{log.stem}"
    assert known == {"where": place, "step": EPOCHS * BATCH}
    assert len(list(Path(place).iterdir())) == 2
    assert capsys.readouterr().out.count(f"track  tensorboard: {place}\n") == 2


def test_ctrl_c_reaches_the_trainer_alone(here):
    words = ["--train.total-timesteps", "100_000_000", "--track", "tensorboard"]
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("tensorboard isn't installed: pip install 'puffer-mlx[track]'")
    with started(command("train", *TINY, *words), here, start_new_session=True) as process:
        process.wait_for("track  tensorboard: ")
        os.killpg(process.popen.pid, 2)
        code, out, err = process.end()
    assert code == 0 and "dropped" not in out, err
    known = json.loads(only(here, "logs/squared/*.tensorboard.json").read_text())
    assert known["step"] == records(here)[-1]["agent_steps"]
