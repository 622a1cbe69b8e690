"""Resuming: the continued run is the uninterrupted one, bit for bit, whatever ended it."""

import json
import subprocess
from itertools import cycle, repeat
from pathlib import Path

import numpy as np
import pytest
from native_envs import UPSTREAM_5, folder_of
from oracles import named
from running import (
    BATCH,
    EPOCHS,
    TINY,
    files,
    killed_and_resumed,
    learned,
    only,
    records,
    run,
    timeless,
)
from watching import everything

from puffer_mlx import checkpoint, config, vec
from puffer_mlx.checkpoint import tensor_files
from puffer_mlx.checkpoint.folder import lock_run
from puffer_mlx.config.finding import known_envs
from puffer_mlx.errors import UserError
from puffer_mlx.policy.networks.catalog import NETWORKS
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.native.sources import environments_folder

NATIVE = sorted(path.parent.name for path in environments_folder().glob("*/binding.c"))
AGENTS, T = 16, 8
SMALL = f"""
    --device cpu --policy.hidden-size 8 --policy.num-layers 2 --vec.total-agents {AGENTS}
    --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size 64 --train.replay-ratio 1
    --train.anneal-ent-coef True --vec.seed 5
""".split()
LONG = 200  # epochs of a run that takes seconds
E, STOP = 6, 3  # epochs of a whole run, and after which it is interrupted


def configure(name, *more):
    given = [*SMALL, "--train.total-timesteps", str(E * AGENTS * T), *more]
    return config.load(name, given)


def outcome(trainer, logs):
    """All that must be the same, as bytes."""
    return everything(trainer), [learned(record) for record in logs]


def whole_and_continued(settings, folder):
    """A whole run, and one that goes on from a checkpoint on the disk in another trainer."""
    with vec.make(settings, 2) as environments:
        trainer = Trainer(settings, environments)
        whole = outcome(trainer, list(trainer))
    with vec.make(settings, 1) as environments:  # and another number of threads
        trainer = Trainer(settings, environments)
        logs = [trainer.step() for _ in range(STOP)]
        keeper = checkpoint.CheckpointManager(folder, settings)
        made = keeper.save(1, environments.spec, trainer.policy, trainer.weights, trainer.state())
    del trainer
    with vec.make(settings, 2) as environments:
        trainer = Trainer(settings, environments)
        found = checkpoint.load(made)
        assert trainer.restore(found.weights, checkpoint.load_state(made))
        assert trainer.epoch == STOP
        return whole, outcome(trainer, [*logs, *trainer])


def check_same(whole, continued):
    assert whole[1] == continued[1]
    assert whole[0].keys() == continued[0].keys()
    assert [name for name in whole[0] if whole[0][name] != continued[0][name]] == []


@pytest.mark.parametrize(
    ("name", "network"), [*zip(NATIVE, cycle(NETWORKS)), *zip(repeat("squared"), NETWORKS)]
)
def test_a_continued_run_is_the_whole_one(uncompiled, tmp_path, name, network):
    """Weights, optimizer, keys, recurrent states, environments and records of every epoch."""
    assert name in known_envs()
    settings = configure(name, "--torch.network", network, "--torch.encoder", "DefaultEncoder")
    whole, continued = whole_and_continued(settings, tmp_path)
    check_same(whole, continued)
    assert "environments" in whole[0]
    assert len(whole[1]) == E and len({record["loss/total"] for record in whole[1]}) == E


@pytest.mark.parametrize("name", UPSTREAM_5)
def test_a_folder_of_5_0_goes_on_too(uncompiled, tmp_path, name):
    """With 5.0's trainer; peloton's agents have changed places by then."""
    sizes = ["--vec.total-agents", "12", "--train.minibatch-size", "48"]
    steps = ["--train.total-timesteps", str(E * 12 * T)]
    settings = configure(str(folder_of(name)), *sizes, *steps)
    assert settings.train.algorithm == "puffer5"
    whole, continued = whole_and_continued(settings, tmp_path)
    check_same(whole, continued)
    assert "environments" in whole[0] and len(whole[1]) == E


@pytest.mark.parametrize(
    "more",
    [
        ["--policy.reset-on-terminal", "True", "--torch.network", "LSTM"],
        ["--policy.dialect", "puffer3", "--torch.network", "GRU"],
        ["--policy.dialect", "sb3", "--torch.network", "MLP", "--policy.separate-value", "1"],
        ["--reset-state", "False", "--torch.network", "LSTM", "--policy.separate-value", "1"],
        ["--vec.num-buffers", "16"],  # more than ten states
        ["--train.overlap", "1", "--reset-state", "False", "--torch.network", "LSTM"],
        ["--train.overlap", "1", "--train.precision", "bf16", "--policy.dialect", "torch"],
        ["--train.weight-decay", "0.1", "--train.lr-schedule", "linear"],
        ["--train.optimizer", "adam", "--train.overlap", "1", "--train.weight-decay", "0.1"],
        ["--train.optimizer", "adam", "--train.precision", "fp16"],
    ],
    ids=" ".join,
)
def test_with_other_settings(uncompiled, tmp_path, more):
    check_same(*whole_and_continued(configure("squared", "--env.size", "3", *more), tmp_path))


@pytest.mark.parametrize(("name", "network"), [("breakout", "MinGRU"), ("target", "GRU")])
def test_an_overlapped_run(uncompiled, tmp_path, name, network):
    """The rollout that was collected beside the last epoch comes again, by the same weights."""
    more = ["--train.overlap", "1", "--torch.network", network]
    whole, continued = whole_and_continued(configure(name, *more), tmp_path)
    check_same(whole, continued)
    saved = checkpoint.load_state(only(tmp_path, "0*"))
    assert any(array.startswith("acting.") for array in saved.arrays)


OTHERS = {"muon": set(), "adam": {"optimizer.step", "optimizer.second_moment."}}


@pytest.mark.parametrize("name", OTHERS)
def test_an_optimizer_goes_on_with_its_own_state_only(uncompiled, name):
    """Runs from before there was a choice are Muon's, whose one state is called momentum."""
    settings = configure("squared", "--env.size", "3", "--train.optimizer", name)
    with vec.make(settings, 1) as environments:
        trainer = Trainer(settings, environments)
        trainer.step()
        state = trainer.state()
        weights = {name for name, _ in named(trainer.weights)}
        names = {f"momentum.{name}" for name in weights}
        for other in OTHERS[name]:
            names |= {f"{other}{name}" for name in weights} if other.endswith(".") else {other}
        assert {n for n in state.arrays if n.startswith(("momentum", "optimizer"))} == names
        if name == "muon":
            del state.numbers["optimizer"]
        Trainer(settings, environments).restore(trainer.weights, state)
        (another,) = OTHERS.keys() - {name}
        settings.train.optimizer = another
        refused = Trainer(settings, environments)
        with pytest.raises(UserError) as caught:
            refused.restore(trainer.weights, state)
    assert caught.value.message == f"train.optimizer is {another}, but the saved state is of {name}"
    assert caught.value.hint == (
        f"resume with --train.optimizer {name}, or start a new run from its weights:"
        " --load-model-path"
    )
    assert refused.epoch == 0


def test_images(uncompiled, tmp_path):
    settings = configure("catch", "--torch.encoder", "NatureEncoder", "--vec.total-agents", "8")
    check_same(*whole_and_continued(settings, tmp_path))


def test_compiled(tmp_path):
    settings = configure("squared", "--env.size", "3")
    check_same(*whole_and_continued(settings, tmp_path))


def test_environments_that_can_not_be_saved_start_again(uncompiled, tmp_path, monkeypatch):
    settings = configure("squared", "--env.size", "3")
    with vec.make(settings, 2) as environments:
        monkeypatch.setattr(type(environments), "state", lambda _: None)
        trainer = Trainer(settings, environments)
        for _ in range(STOP):
            trainer.step()
        state = trainer.state()
        assert "environments" not in state.arrays
        other = Trainer(settings, environments)
        carry = {name: np.array(row) for name, row in other.collector.buffer.carry().items()}
        assert not other.restore(trainer.weights, state)
        assert other.epoch == STOP and other.global_step == trainer.global_step
        for name, row in other.collector.buffer.carry().items():  # as they started
            np.testing.assert_array_equal(np.array(row), carry[name])
        assert len(list(other)) == E - STOP


# ---- the script ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    done = run("train", *TINY, "--checkpoint-interval", 1, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def final(folder: Path, epochs: int = EPOCHS) -> dict[str, bytes]:
    return timeless(only(folder, f"checkpoints/squared/*/{epochs * BATCH:016d}"))


def test_resume_latest(whole, tmp_path):
    """The same log, one log, the same checkpoints; the uptime goes on."""
    first = run("train", *TINY, "--checkpoint-interval", 1, "--stop-at", 3 * BATCH, cwd=tmp_path)
    assert first.returncode == 0
    run_folder = only(tmp_path, "checkpoints/squared/*")
    done = run("train", "squared", "--resume", "latest", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    shown = f"going on with checkpoints/squared/{run_folder.name}/{3 * BATCH:016d} after 3 epochs"
    assert shown in done.stdout and "restarted" not in done.stdout
    assert list(map(learned, records(tmp_path))) == list(map(learned, records(whole)))
    assert final(tmp_path) == final(whole)
    uptimes = [record["uptime"] for record in records(tmp_path) if "uptime" in record]
    assert uptimes == sorted(uptimes)


EVALUATED = "--eval-interval", 5 * BATCH, "--eval-episodes", 32, "--train.learning-rate", 0.1


def test_kill_9_at_any_moment(tmp_path):
    """Killed and resumed until it ends: the same files as the run nobody killed."""
    more = ["--checkpoint-interval", 1, "--train.total-timesteps", LONG * BATCH]
    more += ["--train.overlap", 1, *EVALUATED]
    for name in "killed", "whole":
        (tmp_path / name).mkdir()
    assert run("train", *TINY, *more, cwd=tmp_path / "whole").returncode == 0
    folder = tmp_path / "killed"
    kills = killed_and_resumed([*TINY, *more], "squared", folder, kills=5)
    assert kills >= 3
    found = [list(map(learned, records(tmp_path / name))) for name in ("killed", "whole")]
    assert found[0] == found[1] and len(found[0]) == LONG + 1
    assert final(tmp_path / "killed", LONG) == final(tmp_path / "whole", LONG)
    best = [only(tmp_path / name, "checkpoints/*/*/best") for name in ("killed", "whole")]
    assert best[0].readlink() == best[1].readlink()
    left = [path.name for path in (folder / "checkpoints" / "squared").glob("*/.*")]
    assert len(left) <= kills  # at most one unfinished folder for each kill


def copied(whole, folder, *names):
    """A run of one's own, with other times than the files had; its folder."""
    for name in names or ("checkpoints", "logs"):
        subprocess.run(["cp", "-r", whole / name, folder], check=True)
    return only(folder, "checkpoints/squared/*")


def test_going_on_from_an_earlier_checkpoint_cuts_the_log(whole, script, here):
    """A checkpoint by its path; records after it come again."""
    kept = sorted(copied(whole, here).glob("0*"))
    assert script.main(["squared", "--resume", str(kept[-2]), "--stop-at", "1"]) == 0
    log = records(here)
    assert list(map(learned, log)) == list(map(learned, records(whole)))[: len(log)]
    assert log[-1]["epoch"] == int(kept[-2].name) // BATCH + 1


def test_latest_is_of_the_branch_that_is_trained(whole, script, here, capsys):
    """After going on from an older checkpoint, its successors aren't gone on with."""
    run_folder = copied(whole, here)
    kept = [path.name for path in sorted(run_folder.glob("0*"))]
    assert script.main(["squared", "--resume", str(run_folder / kept[0]), "--stop-at", "1"]) == 0
    made = sorted(path.name for path in run_folder.glob("0*"))
    assert kept[-1] in made  # still there, and abandoned
    for path in run_folder.glob(f"{kept[-1]}/*"):
        path.touch()  # as copying does
    assert script.main(["squared", "--resume", "latest"]) == 0
    latest = f"going on with checkpoints/squared/{run_folder.name}/{made[1]} after"
    assert latest in capsys.readouterr().out
    assert list(map(learned, records(here))) == list(map(learned, records(whole)))
    assert final(here) == final(whole)
    assert not list(run_folder.glob(".*"))


def test_a_run_is_gone_on_with_by_one_process_only(whole, script, here, capsys):
    run_folder = copied(whole, here)
    before = files(here)
    with lock_run(run_folder):
        assert script.main(["squared", "--resume", "latest"]) == 2
        error = capsys.readouterr().err
        assert "is in use by another process" in error and "hint: wait" in error
        assert script.main([*TINY, "--stop-at", "1"]) == 0  # a new run is another one
    assert len(list(here.glob("checkpoints/squared/*"))) == 2 and before <= files(here)


def test_what_a_kill_left_is_cleared_away(whole, script, here, capsys):
    run_folder = copied(whole, here)
    (run_folder / f".{64:016d}-abcd1234").mkdir()
    (run_folder / f".{64:016d}-abcd1234" / "weights.safetensors").write_bytes(b"half")
    log = only(here, "logs/squared/*")
    log.write_text(log.read_text() + '{"SPS": 12')
    kept = sorted(run_folder.glob("0*"))
    assert script.main(["squared", "--resume", str(kept[-2]), "--stop-at", "1"]) == 0
    assert "the last record of logs/squared/" in capsys.readouterr().out
    assert not list(run_folder.glob(".*")) and records(here)


def test_a_renamed_checkpoint_is_gone_on_from(whole, script, here, capsys):
    run_folder = copied(whole, here)
    made = sorted(run_folder.glob("0*"))[0]
    other = made.rename(run_folder / "before the crash")
    assert script.main(["squared", "--resume", str(other)]) == 0
    assert final(here) == final(whole) and other.is_dir()


def test_a_checkpoint_from_python_goes_on_too(whole, script, here):
    """Written without a log, as the quickstart does."""
    settings = config.load("squared", [*TINY[1:], "--checkpoint-interval", "1"])
    with vec.make(settings, 2) as environments:
        trainer = Trainer(settings, environments)
        for _ in range(STOP):
            trainer.step()
        made = checkpoint.prepare(settings, "mine")
        args = settings, environments.spec, trainer.policy, trainer.weights, trainer.state()
        checkpoint.write_checkpoint(made, trainer.global_step, *args)
    assert script.main(["squared", "--resume", "mine"]) == 0
    expected = [learned(record) for record in records(whole)]
    assert [learned(record) for record in records(here)] == expected[STOP:]


def test_options_change_a_resumed_run(whole, script, here):
    run_id = copied(whole, here, "checkpoints").name
    more = ["--train.total-timesteps", str((EPOCHS + 2) * BATCH), "--eval-episodes", "0"]
    assert script.main(["squared", "--resume", run_id, *more]) == 0
    epochs = [record["epoch"] for record in records(here) if "epoch" in record]
    assert epochs == [EPOCHS + 1, EPOCHS + 2]  # its log was gone: a new one begins


NOT_RESUMED = [
    (["squared", "--resume", "17"], "no checkpoint in 17", "runs there are: "),
    (["squared", "--resume"], "argument --resume: expected one argument", "--help"),
    (["squared", "--resume", ""], "the text is empty", "or latest"),
    (["squared", "--load-model-path", ""], "--load-model-path is empty", "leave it out"),
    (["squared", "--gpu-capture", " "], "--gpu-capture is empty", "leave it out"),
    (["squared", "--resume", "x" * 5000], "File name too long", "check the path"),
    (["--resume", "latest"], "the first word must be an environment", "puffer-mlx list"),
    (["breakout", "--resume", "latest"], "no checkpoint in checkpoints/breakout", "train"),
    (["breakout", "--resume", "checkpoints/squared"], "no checkpoint in", "train first"),
    (["breakout", "--resume", "*"], "is a run of squared, not of breakout", ""),
    (["squared", "--resume", "latest", "--load-model-path", "latest"], "are given", "one of"),
    (
        ["squared", "--resume", "latest", "--vec.total-agents", "16"],
        "state is of another configuration: recurrent.0.0: (4, 8), expected (8, 8)",
        "vec.total_agents",
    ),
    (
        ["squared", "--resume", "latest", "--policy.hidden-size", "16"],
        "state is of another configuration",
        "policy",
    ),
]


def test_what_can_not_be_resumed(whole, script, monkeypatch, capsys):
    monkeypatch.chdir(whole)
    made = str(only(whole, "checkpoints/squared/*"))
    for words, message, hint in NOT_RESUMED:
        assert script.main([made if word == "*" else word for word in words]) == 2
        error = capsys.readouterr().err
        assert message in error and hint in error


SENSELESS = [
    ("epoch", 10**9, "epoch is 1000000000 after 384 steps"),
    ("epoch", -1, "epoch is -1, expected a whole number from 0"),
    ("global_step", 1.5, "global_step is 1.5, expected a whole number from 0"),
    ("uptime", float("nan"), "uptime is nan, expected a number from 0"),
    ("uptime", None, "uptime is None, expected a number from 0"),
    ("learning_rate", float("inf"), "learning_rate is inf, expected a number from 0"),
    ("log_position", True, "log_position is True, expected a whole number from 0"),
]


def test_counters_that_make_no_sense(whole, script, here, capsys):
    """Whatever the checksum says: nothing of the run is changed by them."""
    copied(whole, here)
    state = only(here, f"checkpoints/squared/*/{EPOCHS * BATCH:016d}") / checkpoint.STATE
    arrays, metadata = tensor_files.read(state)
    for name, value, said in SENSELESS:
        numbers = {**json.loads(metadata["numbers"]), name: value}
        tensor_files.write(state, arrays, {**metadata, "numbers": json.dumps(numbers)})
        kept = [path for path in files(here) if not path.endswith(".lock")]
        before = {path: (here / path).read_bytes() for path in kept}
        assert script.main(["squared", "--resume", "latest"]) == 2
        assert f"error: the run's state makes no sense: {said}\n  hint: " in capsys.readouterr().err
        after = [path for path in files(here) if not path.endswith(".lock")]
        assert {path: (here / path).read_bytes() for path in after} == before
