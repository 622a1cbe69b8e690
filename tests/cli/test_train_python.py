"""Environments that step in Python: train, resume, evaluate and export by commands."""

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from films import gif_pages
from running import ROOT, command, errors, only, records, run, started

from puffer_mlx import checkpoint

pytest.importorskip("gymnasium")

N, T = 4, 16
SIZES = f"""
    --device cpu --vec.total-agents {N} --vec.num-buffers 1 --train.horizon {T} --eval-episodes 0
    --train.minibatch-size {N * T} --train.replay-ratio 1 --policy.hidden-size 8
    --policy.num-layers 1 --train.total-timesteps {8 * N * T}
    --vec.normalize-observations 1 --vec.normalize-rewards 1
""".split()
CARTPOLE = ["gym:CartPole-v1", *SIZES]
PYTHON = ROOT / "tests" / "envs" / "python"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder and the finished process of a training run of CartPole."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run("train", *CARTPOLE, cwd=folder)


@pytest.fixture
def called(whole, scripts, monkeypatch, capsys):
    """Return a function that runs a command here in the trained run's folder.

    It returns the command's output.
    """
    monkeypatch.chdir(whole[0])

    def call(name: str, *words: object) -> str:
        assert scripts(name).main([str(word) for word in words]) == 0
        out, err = capsys.readouterr()
        assert errors(err) == ""
        return out

    return call


def test_a_run_saves_its_normalization_and_logs_scores(whole):
    folder, done = whole
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search("^vector: .*; observations and rewards normalised$", done.stdout, re.M)
    made = only(folder, f"checkpoints/gym-CartPole-v1/*/{8 * N * T:016d}")
    contents = {path.name for path in made.iterdir()}
    assert contents >= {"weights.safetensors", "state.safetensors", "normalization.safetensors"}
    assert float(checkpoint.read_statistics(made)["observations.count"]) == N * (8 * T + 1)
    log = [record for record in records(folder) if "epoch" in record]
    played = [record for record in log if "env/n" in record]
    assert len(log) == 8 and len(played) > 3
    assert all(record["env/score"] == record["env/episode_length"] for record in played)


def test_a_run_is_evaluated_and_exported_with_its_normalization(whole, called):
    called("evaluate", CARTPOLE[0], "latest", "--episodes", 6, "--json", "scores.json")
    scores = json.loads((whole[0] / "scores.json").read_text())
    assert len(scores["episodes"]) == 6  # the same number in each of three
    assert all(8 <= record["episode_return"] <= 500 for record in scores["episodes"])
    assert {record["env"] for record in scores["episodes"]} == {0, 1, 2}
    out = called("export", "latest", "--to", "torch", "--env", "gym-CartPole-v1")
    assert "the file normalizes observations" in out
    torch = pytest.importorskip("torch")
    tensors = torch.load(only(whole[0], "*.pt"), weights_only=True)
    assert tensors["normalization.observations.mean"].shape == (4,)


@pytest.mark.parametrize(("options", "milliseconds"), [([], 20), (["--fps", 10], 100)])
def test_a_gif_has_the_speed_that_the_environment_declares(whole, called, options, milliseconds):
    """CartPole's metadata says 50 steps a second."""
    called("evaluate", CARTPOLE[0], "latest", "--gif", "x.gif", "--steps", 5, *options)
    pages = gif_pages((whole[0] / "x.gif").read_bytes())
    assert sum(delay for _, delay in pages) == 5 * milliseconds


def test_a_resumed_run_restarts_its_environments_and_keeps_its_normalization(whole, called):
    folder, _ = whole
    out = called("train", CARTPOLE[0], "--resume", "latest", "--train.total-timesteps", 12 * N * T)
    assert "environments restarted: Python environments can't save their state" in out
    assert " restarts: the checkpoint" not in out  # the last episodes' scores are in the checkpoint
    log = [record for record in records(folder) if "epoch" in record]
    assert [record["epoch"] for record in log] == list(range(1, 13))
    made = only(folder, f"checkpoints/gym-CartPole-v1/*/{12 * N * T:016d}")
    count = float(checkpoint.read_statistics(made)["observations.count"])
    assert count == N * (12 * T + 2)  # with the first observations of both starts


MOVING = f"""
import os, sys
sys.path.append({str(PYTHON)!r})
from gym_walk import Walk

DATA = os.path.join(os.path.dirname(__file__), "data")

class Moving(Walk):
    def reset(self, **how):
        os.chdir(DATA)
        return super().reset(**how)
"""


def test_paths_are_those_of_where_a_command_was_started(here, scripts, capsys):
    """The environment changes the working directory."""
    (here / "data").mkdir()
    (here / "moving.py").write_text(MOVING)
    (here / "net.py").write_text("from mlx import nn\n\n\nclass Net(nn.Linear):\n    pass\n")
    word = "moving.py:Moving", "--vec.backend", "sync"
    net = "--torch.encoder", "net.py:Net"

    def called(name: str, *words: str) -> str:
        os.chdir(here)
        assert scripts(name).main([*words]) == 0
        assert Path.cwd() == here / "data" or name == "check_env"
        return capsys.readouterr().out

    train = ["--eval-interval", "200", "--profile", "profile.json", "--stop-at", str(4 * N * T)]
    out = called("train", *word, *SIZES, *net, *train, "--eval-episodes", "4")
    for path in re.findall(r"^(?:wrote|saved|log) +(\S+)", out, re.M):
        assert (here / path).exists(), path
    called("train", *word, *net, "--resume", "latest")
    only(here, "logs/moving.py-Moving/*.jsonl")
    only(here, "checkpoints/moving.py-Moving/*/best")
    called("check_env", *word, "--only", "loads", "--json", "report.json")
    assert not [*(here / "data").iterdir()]
    assert (here / "profile.json").is_file() and (here / "report.json").is_file()


def shared_memory() -> set[str]:
    """Return the names of files in /dev/shm that no process uses."""
    if not Path("/dev/shm").is_dir():
        return set()
    names, used = os.listdir("/dev/shm"), ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # the process ended meanwhile
            used += maps.read_text()
    return {name for name in names if f"/dev/shm/{name}\n" not in used}


def test_a_fault_of_an_environment_ends_the_run_with_its_checkpoint(here):
    before = shared_memory()
    fault = "--env.fault raises --env.size 100 --env.limit 100 --env.at 60 --vec.seed 2"
    words = [f"{PYTHON}/gym_faults.py:Faulty", *SIZES, "--vec.backend", "async", *fault.split()]
    done = run("train", *words, cwd=here)
    assert done.returncode == 2
    assert "tripped over a stone" in done.stderr and "environment 0 (seed 2)" in done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") < 12
    made = sorted(here.glob("checkpoints/*/*/[0-9]*"))[-1]
    assert int(made.name) == 3 * N * T  # the 60th step is in the fourth epoch
    assert (made / "weights.safetensors").is_file()
    deadline = time.monotonic() + 10
    while (left := shared_memory() - before) and time.monotonic() < deadline:
        time.sleep(0.1)  # other programs' names exist for an instant
    assert not left


def test_ctrl_c_ends_the_processes_of_environments(here):
    words = [f"{PYTHON}/gym_walk.py:Walk", *SIZES, "--vec.backend", "async"]
    words = command("train", *words, "--train.total-timesteps", 10_000_000)
    with started(words, here, start_new_session=True) as process:
        process.wait_for(" steps | ")
        os.killpg(process.popen.pid, signal.SIGINT)  # as a terminal: to all processes
        code, out, err = process.end()
        group = process.popen.pid
    assert code == 0 and "saved" in out
    assert err == "\nstopping after this epoch; again to stop at once\n"
    deadline = time.monotonic() + 60
    with pytest.raises(ProcessLookupError):  # no process is left
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)


def test_the_next_commands_film_an_environment_that_draws_and_show_its_tracker(here):
    words = ["gym:CartPole-v1", "--train.total-timesteps", "2048", "--track", "tensorboard"]
    out = run("train", *words, cwd=here).stdout
    assert " gym:CartPole-v1 latest --gif play.gif\n" in out
    assert "  curves         tensorboard --logdir logs\n" in out
    assert " module:Class  # docs/gymnasium.md; in C: docs/writing_envs.md\n" in out
