"""The command ``puffer-mlx sweep``: its lines and files, how it resumes, and what it refuses."""

import importlib.util
import json
import signal
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("optuna", reason="pip install 'puffer-mlx[sweep]'")

import optuna
from optuna.trial import FrozenTrial, TrialState
from running import Process, command, files, learned, only, run, started, wait_until

from puffer_mlx import config
from puffer_mlx.cli import sweep
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.engine.storage import open_storage
from puffer_mlx.sweep.training_process import ProcessIdentity

TINY = """
[base]
env_name = squared
device = cpu
eval_episodes = 20
[vec]
total_agents = 8
num_buffers = 1
[env]
size = 3
[policy]
hidden_size = 8
num_layers = 1
[train]
horizon = 8
minibatch_size = 32
total_timesteps = 640
[sweep]
sweep_only = total_timesteps, learning_rate, gamma
max_runs = 2
downsample = 3
confirm = 0
[sweep.train.total_timesteps]
distribution = log_normal
min = 128
max = 1280
scale = auto
"""


def records(path: Path) -> list[dict[str, float]]:
    return [learned(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.fixture
def tiny(here):
    (here / "tiny.ini").write_text(TINY)
    return here


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder and the finished process of a sweep of two runs."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.ini").write_text(TINY)
    return folder, run("sweep", "tiny.ini", "--name", "one", cwd=folder)


def test_sweep_prints_its_runs_and_writes_the_best_as_a_file_that_trains_it_again(whole):
    folder, done = whole
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1].startswith("searching 3 keys: train.total_timesteps 128 to 1280, train.gamma ")
    assert lines[3].startswith("sweep one of squared: Protein over 3 keys")
    assert lines[4].startswith("run 1: score ") and "the configured values" in lines[4]
    assert " | total_timesteps 1" in lines[5] and lines[5].endswith("| 2 of 2")
    assert lines[6].startswith("best: run ")
    best = folder / "sweeps/squared/one/best.ini"
    (line,) = [x for x in lines if "best.ini" in x]
    assert "train" in line and line.endswith(" sweeps/squared/one/best.ini")
    number = int(best.read_text().split()[1].removeprefix("runs/"))
    assert run("train", best, cwd=folder).returncode == 0
    again = records(only(folder, "logs/squared/*.jsonl"))
    before = f"sweeps/squared/one/runs/{number:04d}/logs/squared/*.jsonl"
    assert len(again) > 2 and again == records(only(folder, before))


def test_run_has_the_values_of_its_trial(whole):
    folder = whole[0] / "sweeps/squared/one"
    (second,) = [path for path in folder.glob("runs/*") if path.name != "0000"]
    ran = config.load_saved(only(second, "checkpoints/squared/*/config.ini"))
    opened = open_storage(str(folder / "journal.log"))
    trial = optuna.load_study(study_name="squared-one", storage=opened).trials[int(second.name)]
    keys = "total_timesteps", "learning_rate", "gamma"
    assert trial.params == {f"train.{key}": getattr(ran.train, key) for key in keys}


def test_seeds_held_out_seeds_and_start_configurations_are_trained(tiny):
    (tiny / "other.ini").write_text(TINY.replace("= 640", "= 384\ngamma = 0.9"))
    words = ["--sweep.seeds", "2", "--sweep.max-runs", "3", "--start-from", "other.ini"]
    done = run("sweep", "tiny.ini", "--name", "one", *words, "--sweep.confirm", "1", cwd=tiny)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    first, second = [x for x in lines if x.startswith("run ")][:2]
    assert ", seeds " in first and first.endswith("| 2 of 3")
    assert second.startswith("run 2: ") and "the values of other.ini" in second
    folder = tiny / "sweeps/squared/one"
    one, two, other, held_out = (
        config.load_saved(only(folder, f"runs/{name}/checkpoints/squared/*/config.ini"))
        for name in ("0000", "0000-2", "0001", "0000-1001")
    )
    seeds = [(each.base.seed, each.vec.seed) for each in (one, two, held_out)]
    assert seeds == [(73, 0), (74, 1000), (1073, 1_000_000)]
    assert (one.train.gamma, one.policy) == (two.train.gamma, two.policy)
    assert (other.train.gamma, other.train.total_timesteps) == (0.9, 384)
    assert any(line.startswith("run 1, held-out seeds: median ") for line in lines)
    assert "\n# With held-out seeds: median " in (folder / "best.ini").read_text()


LONG = "--train.total-timesteps", "100_000_000", "--name", "two"


def log_of_first_run(folder: Path, process: Process) -> Path:
    """Wait for the log of a sweep's first run; return its path."""
    while not (logs := list(folder.glob("sweeps/squared/two/runs/0000/logs/*/*.jsonl"))):
        assert process.popen.poll() is None
        time.sleep(0.05)
    return logs[0]


def first_run(folder: Path) -> FrozenTrial:
    opened = open_storage(str(folder / "sweeps/squared/two/journal.log"))
    return optuna.load_study(study_name="squared-two", storage=opened).trials[0]


def test_killed_or_interrupted_sweep_can_be_resumed_and_leaves_no_process(tiny):
    with started(command("sweep", "tiny.ini", *LONG), tiny) as process:
        log = log_of_first_run(tiny, process)
        process.popen.kill()
    orphan = ProcessIdentity(*first_run(tiny).user_attrs["process"])
    wait_until(lambda: not orphan.find_process())
    with started(command("sweep", "tiny.ini", "--resume"), tiny) as process:
        while log.exists():
            assert process.popen.poll() is None
            time.sleep(0.05)
        log_of_first_run(tiny, process)
        process.popen.send_signal(signal.SIGTERM)
        code, _, err = process.end()
    assert code == 130 and err.endswith(" tiny.ini --resume two\nstopped\n")
    run = first_run(tiny)
    assert run.state == TrialState.WAITING and run.user_attrs["default"]
    again = ProcessIdentity(*run.user_attrs["process"])
    assert again != orphan and not again.find_process() and not orphan.find_process()


# ---- what is refused -----------------------------------------------------------------------------


def refused(capsys, *words: str) -> str:
    assert sweep.main(["tiny.ini", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("error: ") == 1 and "hint: " in err
    return err


BAD = {
    "--resume": "there is no sweep in sweeps/squared",
    "--resume --name x": "--name and --resume exclude each other",
    "--name a/b": "'a/b' isn't a valid name of a sweep",
    "--start-from none.ini": "none.ini",
    "--storage folder": "folder is a folder",
    "--storage nothing://x": "the storage nothing://x can't be used",
    "--storage redis://localhost:1": "pip install redis",
    "--log-dir x": "--log-dir has no effect on a sweep",
    "--parallel 999": "--parallel 999 runs don't fit",
    "--sweep.method TP": "'TP' is not among Protein, ParetoGenetic, Random, TPE",
    "--sweep.max-rns 3": "did you mean --sweep.max-runs?",
    "--sweep.nothing-like-it 3": "use a key from a [sweep] section",
}


def test_bad_input_is_one_message(tiny, capsys):
    (tiny / "folder").mkdir()
    found = {words: refused(capsys, *words.split()) for words in BAD}
    assert {found[words]: said for words, said in BAD.items() if said not in found[words]} == {}
    assert not [name for name in files(tiny) if "runs" in name]


RESUME, SHARED = ["--resume", "one"], ["--name", "one", "--storage", "s.log"]


@pytest.mark.parametrize(
    ("again", "words", "said"),
    [
        (RESUME, ["--env.source", "evil", "--allow-code"], "C sources that would be compiled and"),
        (RESUME, ["--torch.network", "evil:Net"], "Python code that would be imported: evil:Net,"),
        (SHARED, ["--profile", "mine.json"], "would write the file mine.json"),
    ],
)
def test_words_of_a_study_are_untrusted(tiny, capsys, monkeypatch, again, words, said):
    (tiny / "evil").mkdir()
    (tiny / "evil" / "binding.c").write_text("")
    (tiny / "evil.py").write_text('open("ran", "w").close()\n')
    storage = again[2:]
    monkeypatch.setattr(sweep, "run_trainings", lambda *_: 0)
    assert sweep.main(["tiny.ini", "--name", "one", *words, *storage]) == 0  # by another user
    message = refused(capsys, *again)
    assert "error: the sweep squared-one in " in message and said.format(here=tiny) in message
    assert not (tiny / "ran").exists()
    assert sweep.main(["tiny.ini", *again, *words]) == 0
    allowed = sweep.main(["tiny.ini", *again, "--allow-code"])
    assert (allowed == 0) == (words[0] != "--profile")
    assert sweep.main(["tiny.ini", *again]) == 2


def test_only_words_of_the_configuration_are_stored():
    words = ["--env.size=3", "--resume", "x", "--allow_code", "--start_from=a.ini", "--seed", "1"]
    assert sweep.resumed_words(words) == ["--env.size=3", "--seed", "1"]


def test_locked_database_full_disk_and_missing_optuna_are_reported(tiny, capsys, monkeypatch):
    with sqlite3.connect("trials.db") as holder:
        holder.execute("begin exclusive")
        said = refused(capsys, "--storage", "sqlite:///trials.db?timeout=0.1")
    assert "another program has locked it; end that program, or use" in said
    with monkeypatch.context() as patch:
        patch.setenv("TMPDIR", str(tiny))
        (tiny / "mlx").write_text("")
        assert "MLX can't write compiled kernels" in refused(capsys, "--name", "full")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'puffer-mlx[sweep]'" in refused(capsys)


def test_sweep_with_other_ranges_or_settings_is_not_resumed(whole, capsys, monkeypatch):
    folder, _ = whole
    monkeypatch.chdir(folder)
    said = refused(capsys, "--resume", "one", "--sweep.train.gamma.min", "0.5")
    assert "the range of train.gamma was logit_normal 0.8 to 0.9999" in said
    said = refused(capsys, "--name", "one", "--train.clip-coef", "0.3")
    assert "train.clip_coef was 0.2, now 0.3" in said
    assert sweep.main(["tiny.ini", "--resume"]) == 0  # nothing is left to do
    assert "best: run " in capsys.readouterr().out


def test_sweep_without_a_result_is_an_error():
    study = SimpleNamespace(best=lambda: None, runs=lambda *states: [])
    stored = sweep.StoredSweep("one", Path("one"), "one/journal.log", resumed=False)
    with pytest.raises(UserError, match="no run finished\n  hint: their output is in one/runs"):
        sweep.print_sweep_result(study, stored, "env/score")
