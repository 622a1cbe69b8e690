"""A resumed run is the uninterrupted one, bit for bit, however it was interrupted."""

import json
import subprocess
from pathlib import Path

import pytest
from native_envs import folder_of
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
from puffer_mlx.errors import UserError
from puffer_mlx.policy.networks.catalog import NETWORKS
from puffer_mlx.training.trainer import Trainer

AGENTS, T = 16, 8
SMALL = f"""
    --device cpu --policy.hidden-size 8 --policy.num-layers 2 --vec.total-agents {AGENTS}
    --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size 64 --train.replay-ratio 1
    --train.anneal-ent-coef True --vec.seed 5
""".split()
LONG = 60  # epochs of a run that takes seconds
E, STOP = 6, 3  # epochs of a whole run, and after which it is interrupted
# Each network resumes in another environment. tests/vec restores every environment.
ENVIRONMENTS = "squared", "breakout", "connect4", "cartpole_continuous", "target"
SEPARATE = "--policy.separate-value 1 --torch.network LSTM"
PPO = "--train.algorithm ppo --train.optimizer adam"
NOISY = "--train.learning-rate 0.001 --train.rpo-alpha 0.5"
CASES = {  # environment, options
    **{
        f"{name}, {env}": (env, f"--torch.network {name}")
        for name, env in zip(NETWORKS, ENVIRONMENTS, strict=False)
    },
    "puffer3's layout": ("squared", "--policy.dialect puffer3 --torch.network GRU"),
    "resets": ("squared", "--policy.reset-on-terminal True --torch.network LSTM"),
    "many groups": ("squared", "--vec.num-buffers 16"),  # more than ten states
    "images": ("catch", "--torch.encoder NatureEncoder --train.minibatch-size 32"),
    "adaptive schedule": ("squared", "--train.lr-schedule adaptive --train.overlap 1"),
    "Adam, fp16": (
        "squared",
        "--train.optimizer adam --train.precision fp16 --train.lr-schedule linear",
    ),
    "overlapped, bf16": ("squared", "--train.overlap 1 --train.precision bf16"),
    "overlapped, LSTM": ("breakout", f"--train.overlap 1 --reset-state False {SEPARATE}"),
    "puffer5, noise": ("cartpole_continuous", f"--train.algorithm puffer5 {NOISY}"),
    "ppo of segments": ("cartpole", f"{PPO} --torch.network GRU --train.target-kl 1e-4"),
    "ppo at once, noise": ("cartpole_continuous", f"{PPO} --torch.network MLP {NOISY}"),
    "ppo at once, adaptive": ("squared", f"{PPO} --torch.network MLP --train.lr-schedule adaptive"),
}


def configure(name, *more):
    given = [*SMALL, "--train.total-timesteps", str(E * AGENTS * T), *more]
    return config.load(name, given)


def outcome(trainer, logs):
    """Return what must be equal after a resumed run: all arrays as bytes, and records."""
    return everything(trainer), [learned(record) for record in logs]


def assert_resumes(settings, folder):
    """Assert that a run resumed from a checkpoint on disk ends as an uninterrupted one."""
    with vec.make(settings, 2) as environments:
        trainer = Trainer(settings, environments)
        whole, logs = outcome(trainer, list(trainer))
    assert "environments" in whole
    assert len(logs) == E and len({record["loss/total"] for record in logs}) == E
    with vec.make(settings, 1) as environments:  # another number of threads
        trainer = Trainer(settings, environments)
        first_logs = [trainer.step() for _ in range(STOP)]
        keeper = checkpoint.CheckpointManager(folder, settings)
        made = keeper.save(1, environments.spec, trainer.policy, trainer.weights, trainer.state())
    del trainer
    with vec.make(settings, 2) as environments:
        trainer = Trainer(settings, environments)
        found = checkpoint.load(made)
        assert trainer.restore(found.weights, checkpoint.load_state(made))
        assert trainer.epoch == STOP
        resumed, resumed_logs = outcome(trainer, [*first_logs, *trainer])
    assert resumed_logs == logs
    assert resumed.keys() == whole.keys()
    assert [name for name in whole if whole[name] != resumed[name]] == []


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_whole_one(uncompiled, tmp_path, case):
    """Weights, optimizer, keys, recurrent states, environments and each epoch's metrics."""
    name, options = CASES[case]
    settings = configure(name, "--torch.encoder", "DefaultEncoder", *options.split())
    assert_resumes(settings, tmp_path)
    saved = checkpoint.load_state(only(tmp_path, "0*"))
    acting = any(array.startswith("acting.") for array in saved.arrays)
    assert acting == (settings.train.overlap is True)


def test_a_resumed_run_of_a_folder_of_5_0_is_the_whole_one(uncompiled, tmp_path):
    """Agents of peloton change places."""
    sizes = ["--vec.total-agents", "12", "--train.minibatch-size", "48"]
    steps = ["--train.total-timesteps", str(E * 12 * T)]
    settings = configure(str(folder_of("peloton")), *sizes, *steps)
    assert settings.train.algorithm == "puffer5"
    assert_resumes(settings, tmp_path)


@pytest.mark.parametrize(("name", "another"), [("muon", "adam"), ("adam", "muon")])
def test_a_state_of_another_optimizer_is_refused(uncompiled, name, another):
    """States of older versions name no optimizer; theirs is Muon's."""
    settings = configure("squared", "--env.size", "3", "--train.optimizer", name)
    with vec.make(settings, 1) as environments:
        trainer = Trainer(settings, environments)
        trainer.step()
        state = trainer.state()
        if name == "muon":
            del state.values["optimizer"]
        Trainer(settings, environments).restore(trainer.weights, state)
        settings.train.optimizer = another
        refused = Trainer(settings, environments)
        with pytest.raises(UserError) as caught:
            refused.restore(trainer.weights, state)
    assert (
        caught.value.message == f"train.optimizer is {another}, but the run was saved with {name}"
    )
    assert f"resume with --train.optimizer {name}, or start a new run" in caught.value.hint
    assert refused.epoch == 0


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of an uninterrupted training run with all its checkpoints."""
    folder = tmp_path_factory.mktemp("whole")
    done = run("train", *TINY, "--checkpoint-interval", 1, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def final(folder: Path, epochs: int = EPOCHS) -> dict[str, bytes]:
    return timeless(only(folder, f"checkpoints/squared/*/{epochs * BATCH:016d}"))


def test_resume_latest_appends_to_the_log_and_ends_with_the_same_checkpoint(whole, tmp_path):
    first = run("train", *TINY, "--checkpoint-interval", 1, "--stop-at", 3 * BATCH, cwd=tmp_path)
    assert first.returncode == 0
    run_folder = only(tmp_path, "checkpoints/squared/*")
    done = run("train", "squared", "--resume", "latest", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    shown = f"resuming checkpoints/squared/{run_folder.name}/{3 * BATCH:016d} after 3 epochs"
    assert shown in done.stdout and "restarted" not in done.stdout
    assert list(map(learned, records(tmp_path))) == list(map(learned, records(whole)))
    assert final(tmp_path) == final(whole)
    uptimes = [record["uptime"] for record in records(tmp_path) if "uptime" in record]
    assert uptimes == sorted(uptimes)


EVALUATED = "--eval-interval", 5 * BATCH, "--eval-episodes", 32, "--train.learning-rate", 0.1


def test_a_run_that_is_killed_at_random_moments_writes_the_same_files(tmp_path):
    more = ["--checkpoint-interval", 1, "--train.total-timesteps", LONG * BATCH]
    more += ["--train.overlap", 1, *EVALUATED]
    for name in "killed", "whole":
        (tmp_path / name).mkdir()
    assert run("train", *TINY, *more, cwd=tmp_path / "whole").returncode == 0
    folder = tmp_path / "killed"
    kills = killed_and_resumed([*TINY, *more], "squared", folder, kills=3)
    assert kills >= 2
    found = [list(map(learned, records(tmp_path / name))) for name in ("killed", "whole")]
    assert found[0] == found[1] and len(found[0]) == LONG + 1
    assert final(tmp_path / "killed", LONG) == final(tmp_path / "whole", LONG)
    best = [only(tmp_path / name, "checkpoints/*/*/best") for name in ("killed", "whole")]
    assert best[0].readlink() == best[1].readlink()
    left = [path.name for path in (folder / "checkpoints" / "squared").glob("*/.*")]
    assert len(left) <= kills  # at most one unfinished folder for each kill


def copied(whole, folder, *names):
    """Copy a run's folder, with new file times. Returns the copy's checkpoint folder."""
    for name in names or ("checkpoints", "logs"):
        subprocess.run(["cp", "-r", whole / name, folder], check=True)
    return only(folder, "checkpoints/squared/*")


def test_latest_is_the_newest_checkpoint_of_the_branch_that_was_resumed_last(
    whole, script, here, capsys
):
    run_folder = copied(whole, here)
    kept = [path.name for path in sorted(run_folder.glob("0*"))]
    assert script.main(["squared", "--resume", str(run_folder / kept[0]), "--stop-at", "1"]) == 0
    log = records(here)  # later records are cut off
    assert log[-1]["epoch"] == int(kept[0]) // BATCH + 1
    assert list(map(learned, log)) == list(map(learned, records(whole)))[: len(log)]
    made = sorted(path.name for path in run_folder.glob("0*"))
    assert kept[-1] in made  # abandoned
    for path in run_folder.glob(f"{kept[-1]}/*"):
        path.touch()
    assert script.main(["squared", "--resume", "latest"]) == 0
    latest = f"resuming checkpoints/squared/{run_folder.name}/{made[1]} after"
    assert latest in capsys.readouterr().out
    assert list(map(learned, records(here))) == list(map(learned, records(whole)))
    assert final(here) == final(whole)


def test_a_checkpoint_of_a_program_without_a_log_is_resumed(whole, script, here):
    settings = config.load("squared", [*TINY[1:], "--checkpoint-interval", "1"])
    with vec.make(settings, 2) as environments:
        trainer = Trainer(settings, environments)
        for _ in range(STOP):
            trainer.step()
        made = checkpoint.prepare_run_folder(settings, "mine")
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
    assert epochs == [EPOCHS + 1, EPOCHS + 2]  # a new log, because the old one was deleted


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("squared --resume=", "name of the checkpoint is empty", "or latest"),
        ("breakout --resume RUN", "was trained on squared, not breakout", ""),
        ("squared --resume latest --load-model-path latest", "exclude each other", "use one of"),
        (
            "squared --resume latest --vec.total-agents 16",
            "state is of another configuration: recurrent.0.0: (4, 8), expected (8, 8)",
            "vec.total_agents",
        ),
    ],
)
def test_what_can_not_be_resumed_is_an_error(
    whole, script, monkeypatch, capsys, words, message, hint
):
    monkeypatch.chdir(whole)
    made = str(only(whole, "checkpoints/squared/*"))
    assert script.main(words.replace("RUN", made).split()) == 2
    error = capsys.readouterr().err
    assert message in error and hint in error


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epoch", 10**9, "epoch is 1000000000 after 384 steps"),
        ("uptime", float("nan"), "uptime is nan, expected a number from 0"),
        ("log_position", True, "log_position is True, expected a whole number from 0"),
    ],
)
def test_impossible_counters_are_refused_before_the_run_is_changed(
    whole, script, here, capsys, name, value, message
):
    copied(whole, here)
    state = only(here, f"checkpoints/squared/*/{EPOCHS * BATCH:016d}") / checkpoint.STATE
    arrays, metadata = tensor_files.read_tensors(state)
    numbers = {**json.loads(metadata["numbers"]), name: value}
    tensor_files.write_tensors(state, arrays, {**metadata, "numbers": json.dumps(numbers)})

    def contents():
        return {p: (here / p).read_bytes() for p in files(here) if not p.endswith(".lock")}

    before = contents()
    assert script.main(["squared", "--resume", "latest"]) == 2
    said = capsys.readouterr().err
    assert f"error: the run's state is invalid: {message}\n  hint: " in said
    assert contents() == before
