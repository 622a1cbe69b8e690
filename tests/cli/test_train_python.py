"""Environments that step in Python, as their users meet them: train, go on, evaluate, export."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from running import command, errors, only, records, run, started

from puffer_mlx import checkpoint

pytest.importorskip("gymnasium")

N, T = 4, 16
TINY = f"""
    --device cpu --vec.total-agents {N} --vec.num-buffers 1 --train.horizon {T} --eval-episodes 0
    --train.minibatch-size {N * T} --train.replay-ratio 1 --policy.hidden-size 8
    --policy.num-layers 1 --train.total-timesteps {8 * N * T}
    --vec.normalize-observations 1 --vec.normalize-rewards 1
""".split()
CARTPOLE = ["gym:CartPole-v1", *TINY]
OWN = '''
import gymnasium
import numpy as np


class Line(gymnasium.Env):
    """Walk to the right end of a line, within twenty steps."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=4, fault="", render_mode=None):
        self.length, self.fault, self.render_mode = length, fault, render_mode

    def _see(self):
        return np.array([self.place / self.length], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(2)), 0
        self.total = getattr(self, "total", 0)
        return self._see(), {}

    def step(self, action):
        self.place, self.steps = max(0, self.place + (1 if action else -1)), self.steps + 1
        self.total += 1
        if self.total == 60 and self.fault == "raise":
            raise RuntimeError("the line is broken")
        if self.total == 60 and self.fault == "no number":
            return np.full(1, np.nan, np.float32), 0.0, False, False, {}
        won = self.place >= self.length
        return self._see(), float(won), won, self.steps >= 20, {"won": won}

    def render(self):
        picture = np.zeros((8, 8 * (self.length + 1), 3), np.uint8)
        picture[:, 8 * self.place : 8 * self.place + 8] = 255
        return picture
'''


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder and the output of a run."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run("train", *CARTPOLE, cwd=folder)


ELSEWHERE = OWN.replace("        super().reset", "        os.chdir(DATA)\n        super().reset")
ELSEWHERE = ELSEWHERE.replace(
    "        self.length, ", "        os.chdir(DATA)\n        self.length, "
)
ELSEWHERE = f'import os\n\nDATA = os.path.join(os.path.dirname(__file__), "data")\n{ELSEWHERE}'


def test_an_environment_may_change_the_working_directory(here, scripts, capsys):
    """All paths are those of where the command was started."""
    (here / "data").mkdir()
    (here / "elsewhere.py").write_text(ELSEWHERE)
    (here / "net.py").write_text("from mlx import nn\n\n\nclass Net(nn.Linear):\n    pass\n")
    word = "elsewhere.py:Line", "--vec.backend", "sync"
    trained = [*TINY, "--eval-interval", "200", "--eval-episodes", "4"]
    stop = str(4 * N * T)
    net = "--torch.encoder", "net.py:Net"

    def called(name: str, *words: str) -> str:
        os.chdir(here)
        assert scripts(name).main([*words]) == 0
        assert Path.cwd() == here / "data" or name == "check_env"
        return capsys.readouterr().out

    out = called("train", *word, *trained, *net, "--profile", "profile.json", "--stop-at", stop)
    for path in re.findall(r"^(?:wrote|saved|log) +(\S+)", out, re.M):
        assert (here / path).exists(), path
    called("train", *word, *trained, *net, "--resume", "latest")
    only(here, "logs/elsewhere.py-Line/*.jsonl")
    only(here, "checkpoints/elsewhere.py-Line/*/best")
    play = "--load-model-path", "latest", "--episodes", "2", "--json", "scores.json"
    called("evaluate", *word, *net, *play)
    assert json.loads((here / "scores.json").read_text())["episodes"]
    called("check_env", *word, "--only", "loads", "--json", "report.json")
    assert not [*(here / "data").iterdir()] and (here / "profile.json").is_file()
    assert (here / "report.json").is_file()


def test_an_id_of_a_package_in_the_working_directory(own, scripts):
    """As ``module:Class`` is found there; also by the processes of environments."""
    (own / "walks").mkdir()
    register = "import gymnasium\nfrom line import Line\n"
    register += 'gymnasium.register("Walk-v0", entry_point=Line)\n'
    (own / "walks" / "__init__.py").write_text(register)
    words = ["gym:walks:Walk-v0", *TINY, "--vec.backend", "async"]
    done = run("train", *words, cwd=own)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def own(here):
    (here / "line.py").write_text(OWN)
    return here


def test_a_run(whole):
    folder, done = whole
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search("^vector: .*; observations and rewards normalised$", done.stdout, re.M)
    run_folder = only(folder, "checkpoints/gym-CartPole-v1/*")
    made = run_folder / f"{8 * N * T:016d}"
    contents = {path.name for path in made.iterdir()}
    assert contents >= {"weights.safetensors", "state.safetensors", "normalization.safetensors"}
    assert float(checkpoint.read_statistics(made)["observations.count"]) == N * (8 * T + 1)
    log = [record for record in records(folder) if "epoch" in record]
    assert len(log) == 8 and sum("env/episode_return" in record for record in log) > 3
    assert all(
        record["env/score"] == record["env/episode_length"] for record in log if "env/n" in record
    )


@pytest.fixture
def there(whole, scripts, monkeypatch, capsys):
    """Runs a command in this process where the run is; what it printed."""
    monkeypatch.chdir(whole[0])

    def called(name: str, *words: object) -> str:
        assert scripts(name).main([str(word) for word in words]) == 0
        out, err = capsys.readouterr()
        assert errors(err) == ""
        return out

    return called


def test_going_on(whole, there):
    folder, _ = whole
    out = there("train", CARTPOLE[0], "--resume", "latest", "--train.total-timesteps", 12 * N * T)
    assert "environments restarted: those of Python can't save their state" in out
    assert "counts from here" not in out  # the last episodes' scores are in the checkpoint
    log = [record for record in records(folder) if "epoch" in record]
    assert [record["epoch"] for record in log] == list(range(1, 13))
    made = only(folder, f"checkpoints/gym-CartPole-v1/*/{12 * N * T:016d}")
    # what was learned of observations goes on; a restart's first rows come in addition
    count = float(checkpoint.read_statistics(made)["observations.count"])
    assert count == N * (12 * T + 2)


def test_evaluating_and_exporting(whole, there):
    there("evaluate", CARTPOLE[0], "latest", "--episodes", 6, "--json", "scores.json")
    scores = json.loads((whole[0] / "scores.json").read_text())
    assert len(scores["episodes"]) == 6  # the same number from each of three
    assert all(8 <= record["episode_return"] <= 500 for record in scores["episodes"])
    assert {record["env"] for record in scores["episodes"]} == {0, 1, 2}
    out = there("export", "latest", "--to", "torch", "--env", "gym-CartPole-v1")
    assert "observations are normalised inside" in out
    torch = pytest.importorskip("torch")
    tensors = torch.load(only(whole[0], "*.pt"), weights_only=True)
    assert tensors["normalization.observations.mean"].shape == (4,)


def test_an_environment_of_ones_own(own):
    options = """--device cpu --vec.backend sync --train.horizon 16 --train.minibatch-size 128
        --train.replay-ratio 4 --policy.hidden-size 16 --train.total-timesteps 20_000
        --train.learning-rate 0.001 --env.length 3 --eval-episodes 0"""
    done = run("train", "line:Line", *options.split(), cwd=own)
    assert (done.returncode, done.stderr) == (0, "")
    last = [record for record in records(own) if "env/won" in record][-20:]
    assert np.mean([record["env/won"] for record in last]) > 0.9
    assert np.mean([record["env/episode_length"] for record in last]) < 4
    pictures = "--load-model-path", "latest", "--gif", "line.gif", "--steps", 5
    done = run("evaluate", "line.py:Line", *pictures, cwd=own)
    assert done.returncode == 2 and "there is no checkpoint" in done.stderr  # another name
    done = run("evaluate", "line:Line", *pictures, cwd=own)
    assert (done.returncode, done.stderr) == (0, "")
    image = pytest.importorskip("PIL.Image")
    with image.open(own / "line.gif") as film:
        assert film.size == (32, 8) and film.n_frames > 1


def shared_memory() -> set[str]:
    """Names of the machine's shared memory that no process uses."""
    if not Path("/dev/shm").is_dir():
        return set()
    names, used = os.listdir("/dev/shm"), ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            used += maps.read_text()
    return {name for name in names if f"/dev/shm/{name}\n" not in used}


@pytest.mark.parametrize(
    ("backend", "fault", "said"),
    [
        ("async", "raise", "the line is broken"),
        ("sync", "no number", "returned observations of nan"),
    ],
)
def test_a_fault_ends_the_run_with_its_checkpoint(own, backend, fault, said):
    before = shared_memory()
    options = [*TINY, "--vec.backend", backend, "--env.fault", fault, "--vec.seed", 30]
    done = run("train", "line:Line", *options, cwd=own)
    assert done.returncode == 2
    assert said in done.stderr and re.search(r"environment (\d) \(seed 3\1\)", done.stderr)
    assert "Traceback" not in done.stderr and done.stderr.count("\n") < 12
    made = sorted(own.glob("checkpoints/*/*/[0-9]*"))[-1]
    assert int(made.name) == 3 * N * T  # the 60th step is in the fourth epoch
    assert (made / "weights.safetensors").is_file()
    deadline = time.monotonic() + 10
    while (left := shared_memory() - before) and time.monotonic() < deadline:
        time.sleep(0.1)  # what other programs make there has a name for an instant
    assert not left


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_ctrl_c(own, backend):
    options = [*TINY, "--vec.backend", backend, "--train.total-timesteps", 10_000_000]
    words = command("train", "line:Line", *options)
    with started(words, own, start_new_session=True) as process:
        process.wait_for(" steps | ")
        os.killpg(process.popen.pid, signal.SIGINT)  # as a terminal does: all processes get it
        code, out, err = process.end()
        group = process.popen.pid
    assert code == 0 and "saved" in out
    assert err == "\nstopping after this epoch; again to stop at once\n"
    deadline = time.monotonic() + 60
    with pytest.raises(ProcessLookupError):  # nobody is left
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)


def test_mistakes_are_one_message(own, script, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(own))
    for line, said in {
        "gym:CartPol-v1": "CartPole",
        "gym:CartPole-v1 --env.gravty 9": "gravty",
        "line:Lin": "line has no Lin",
        "nothing:Line": "No module named 'nothing'",
        "gone.py:Line": "there is no file gone.py",
        "line:Line --vec.backend vector": "vec.backend is vector",
        "line:Line --vec.total-agents 3 --vec.num-buffers 2": "not a multiple",
    }.items():
        env, *words = line.split()
        assert script.main([env, *TINY, *words]) == 2
        error = capsys.readouterr().err
        assert error.count("error: ") == 1 and said in error and "hint: " in error, line
    sys.modules.pop("line", None)
