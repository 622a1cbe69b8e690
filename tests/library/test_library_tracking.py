"""Trackers of a program's runs, with a planted one that records its calls."""

import gc
from pathlib import Path

import pytest
from test_library_trainer import SQUARED

import puffer_mlx
from puffer_mlx.errors import UserError
from puffer_mlx.library import trainer
from puffer_mlx.tracking import tracked_run
from puffer_mlx.training import run

SHORT = {**SQUARED, "total_timesteps": 512}  # two epochs


@pytest.fixture
def tracked_records(tracked_records, monkeypatch):
    """Let the planted tracker replace tensorboard; return a function that reads its records."""
    real = tracked_run.tracker_names
    monkeypatch.setattr(trainer, "check_trackers_installed", lambda config: None)
    monkeypatch.setattr(run, "tracker_names", lambda config: ["planted" for _ in real(config)])
    return tracked_records


def ends(lines) -> list[str]:
    return [line["finish"]["status"] for line in lines if "finish" in line]


def test_a_tracker_gets_the_start_every_epoch_and_the_end(tracked_records, capsys):
    about = {"wandb_project": "fish", "log_dir": "here"}
    made = puffer_mlx.train("squared", track=["tensorboard"], **about, **SHORT)
    begun, *epochs, end = tracked_records()  # though it isn't closed
    assert begun["start"]["project"] == "fish"
    assert begun["start"]["log_dir"] == str(Path("here").absolute())
    assert begun["start"]["config"]["train"]["horizon"] == 32
    assert [epoch["step"] for epoch in epochs] == [256, 512]
    assert epochs[-1]["metrics"]["epoch"] == 2 and end["finish"]["status"] == "finished"
    assert "track  planted: in a file" in capsys.readouterr().out
    name = begun["start"]["run_id"]
    assert [str(path) for path in Path().rglob("*.json")] == [f"here/squared/{name}.planted.json"]
    made.close()
    assert len(ends(tracked_records())) == 1


def test_a_tracker_gets_the_end_when_the_trainer_is_closed(tracked_records):
    with puffer_mlx.Trainer(SHORT, "squared", track="tensorboard") as made:
        made.step()
        assert ends(tracked_records()) == []
    assert ends(tracked_records()) == ["stopped"]
    with (
        pytest.raises(ZeroDivisionError),
        puffer_mlx.Trainer(SHORT, "squared", track="tensorboard") as made,
    ):
        raise ZeroDivisionError
    assert ends(tracked_records())[1:] == ["failed"]
    del made
    puffer_mlx.Trainer(SHORT, "squared", track="tensorboard").step()
    gc.collect()
    assert ends(tracked_records())[2:] == ["stopped"]


def test_a_loaded_run_has_no_trackers_without_those_given(tracked_records):
    """A stranger's file sends nothing anywhere."""
    made = puffer_mlx.train("squared", track=["tensorboard"], **SHORT)
    made.save("saved")
    with puffer_mlx.Trainer.load("saved", total_timesteps=768) as again:
        list(again)
    assert len(ends(tracked_records())) == 1
    with puffer_mlx.Trainer.load("saved", total_timesteps=768, track=["tensorboard"]) as again:
        list(again)
    assert ends(tracked_records())[1:] == ["finished"] and tracked_records()[-2]["step"] == 768


def test_a_missing_tracker_is_an_error(monkeypatch):
    monkeypatch.setattr(tracked_run, "_is_installed", lambda package: False)
    with pytest.raises(UserError, match="wandb isn't installed\n  hint: pip install"):
        puffer_mlx.Trainer(SHORT, "squared", track=["wandb"])
