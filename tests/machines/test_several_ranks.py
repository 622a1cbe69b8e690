"""Ranks that train together: equal to one process, and to themselves after a restart."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from puffer_mlx.machines.starting import command, free_ports

EPOCHS, T, N = 10, 8, 24
SMALL = f"""
    train squared --device cpu --env.size 3 --policy.hidden-size 8 --vec.total-agents {N}
    --train.horizon {T} --train.minibatch-size {6 * T} --train.replay-ratio 1.5
    --train.total-timesteps {EPOCHS * T * N} --train.learning-rate 0.005 --checkpoint-interval 5
    --vec.num-threads 1 --vec.num-buffers 1
""".split()
TOGETHER = "--train.draw-from", "all"
WAITS = 300  # seconds for a run of a few, on a machine that does other things, too
LINE = re.compile(r"[\d,]+ of [\d,]+ steps")


@contextlib.contextmanager
def ranks(
    count: int, folder: Path, *words: str, of: dict[int, list[str]] | None = None
) -> Iterator[list[subprocess.Popen]]:
    """Processes of one command on ports that the system picks; gone afterwards.

    ``of`` has further words of some ranks. Standard output and error are files, ``out0`` say.
    """
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(count)]))
    processes = []
    for rank in range(count):
        own = command([*SMALL, *words, *(of or {}).get(rank, [])])
        said = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)}
        with open(folder / f"out{rank}", "w") as out:
            how = {"stdout": out, "stderr": out, "cwd": folder, "env": {**os.environ, **said}}
            processes.append(subprocess.Popen(own, **how))
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def text(folder: Path, rank: int = 0) -> str:
    return (folder / f"out{rank}").read_text()


def train(count: int, folder: Path, *words: str, of: dict | None = None) -> str:
    """Train to the end; what the first rank said. Another's port is taken now and then: again."""
    for _ in range(3):
        with ranks(count, folder, *words, of=of) as processes:
            codes = [process.wait(WAITS) for process in processes]
        said = "".join(text(folder, rank) for rank in range(count))
        if codes == [0] * count:
            return text(folder)
        assert "can't join" in said, said
    raise AssertionError(said)


def train_alone(folder: Path, *words: str) -> str:
    done = subprocess.run(
        command([*SMALL, *words]), cwd=folder, capture_output=True, text=True, timeout=WAITS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def newest(folder: Path) -> Path:
    return sorted(folder.glob("checkpoints/squared/*/0*"))[-1]


def weights(folder: Path) -> dict[str, np.ndarray]:
    found = mx.load(str(newest(folder) / "weights.safetensors"))
    return {name: np.array(array) for name, array in found.items()}  # type: ignore


def state(folder: Path) -> list[str]:
    found: dict = mx.load(str(newest(folder) / "state.safetensors"))  # type: ignore
    return [*found]


def records(folder: Path) -> list[dict]:
    (path,) = folder.glob("logs/squared/*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def differ(a: Path, b: Path) -> float:
    one, other = weights(a), weights(b)
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.fixture
def two_folders(tmp_path):
    folders = tmp_path / "alone", tmp_path / "ranks"
    for folder in folders:
        folder.mkdir()
    return folders


CASES = {
    "puffer4": ["--torch.network", "MinGRU"],
    "puffer5": ["--train.algorithm", "puffer5", "--reset-state", "0"],
    "ppo, samples": ["--train.algorithm", "ppo", "--torch.network", "MLP"],
    "ppo, segments, three ranks": ["--train.algorithm", "ppo", "--reset-state", "0"],
}


@pytest.mark.parametrize("case", CASES)
def test_ranks_train_what_one_process_trains(case, two_folders):
    alone, several = two_folders
    train_alone(alone, *CASES[case])
    train(3 if "three" in case else 2, several, *CASES[case], *TOGETHER)
    assert differ(alone, several) < 2e-6
    pairs = list(zip(records(alone), records(several), strict=True))
    assert len(pairs) >= EPOCHS
    for one, other in pairs:
        same = [name for name in one if name.startswith(("env/", "loss/", "agent_steps"))]
        assert same
        np.testing.assert_allclose(
            [one[name] for name in same], [other[name] for name in same], rtol=1e-4, atol=1e-5
        )


def test_each_ranks_own_minibatches_learn_something_else(two_folders):
    """As PufferLib's: the same agents act, but others are drawn."""
    alone, several = two_folders
    train_alone(alone)
    said = train(2, several)
    assert differ(alone, several) > 1e-4
    assert len(LINE.findall(said)) >= 1 and not text(several, 1)
    one, other = (records(folder)[0] for folder in two_folders)
    assert one["env/score"] == pytest.approx(other["env/score"])  # they act by the same weights


def test_a_run_that_goes_on_is_the_run(two_folders):
    whole, stopped = two_folders
    train(2, whole, "--vec.normalize-observations", "1")
    half = ["--vec.normalize-observations", "1", "--stop-at", str(5 * T * N)]
    train(2, stopped, *half)
    assert records(stopped)[-1]["epoch"] == 5
    train(2, stopped, "--resume", "latest")
    assert differ(whole, stopped) == 0
    assert "ranks.1" in state(stopped)


def test_another_number_of_ranks_does_not_go_on(tmp_path):
    train(2, tmp_path, "--stop-at", str(T * N))
    words = command([*SMALL, "--resume", "latest"])
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=WAITS)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the run's state is of 2 ranks, and this is one process")


def test_ranks_are_started_here(tmp_path):
    train_alone(tmp_path, *TOGETHER, "--train.gpus", "2")
    assert "gpus = 2" in (newest(tmp_path) / "config.ini").read_text()
    assert "ranks.1" in state(tmp_path)


LONG = (
    "--train.total-timesteps",
    str(10**12),
    "--train.rank-timeout",
    "5",
    "--checkpoint-interval",
    "0",
)


@pytest.mark.parametrize(
    ("lost", "number", "said"),
    [
        (1, signal.SIGKILL, "rank 1 has died"),
        (1, signal.SIGSTOP, r"rank 1 (hangs: the others have waited|hasn't answered for)"),
        (0, signal.SIGKILL, "rank 0 has died"),
    ],
)
def test_a_rank_that_is_lost_is_named(lost, number, said, tmp_path):
    left = 1 - lost
    with ranks(2, tmp_path, *LONG) as processes:
        until = time.monotonic() + WAITS
        while len(LINE.findall(text(tmp_path))) < 2:
            assert time.monotonic() < until and processes[0].poll() is None, text(tmp_path)
            time.sleep(0.1)
        processes[lost].send_signal(number)
        assert processes[left].wait(WAITS) == 2
    assert re.search(f"error: {said}", text(tmp_path, left))
    assert re.search(r"saved \S+ \(weights only", text(tmp_path, left))
    assert (newest(tmp_path) / "weights.safetensors").exists()


BAD = {
    "options": (["--train.gamma", "0.9"], "rank 0 has train.gamma 0.99, and rank 1 has 0.9"),
    "agents": (["--vec.total-agents", "48"], "rank 0 has vec.total_agents 24, and rank 1 has 48"),
}


@pytest.mark.parametrize("case", BAD)
def test_ranks_that_were_started_otherwise(case, tmp_path):
    words, message = BAD[case]
    with ranks(2, tmp_path, of={1: words}) as processes:
        assert [process.wait(WAITS) for process in processes] == [2, 2]
    for rank in range(2):
        assert f"error: {message}" in text(tmp_path, rank)


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (None, "MLX_HOSTFILE 'hosts.json' is no file"),
        ("no list", "MLX_HOSTFILE hosts.json is no list of each rank's addresses"),
        ('[["127.0.0.1:5000"]]', "[ring]"),
    ],
)
def test_a_wrong_host_file_is_one_message(hosts, said, tmp_path):
    if hosts is not None:
        (tmp_path / "hosts.json").write_text(hosts)
    settings = {**os.environ, "MLX_RANK": "3", "MLX_HOSTFILE": "hosts.json"}
    done = subprocess.run(
        command(SMALL), cwd=tmp_path, capture_output=True, text=True, env=settings, timeout=WAITS
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: rank 3 can't join: {said}")
    assert "Traceback" not in done.stderr


def test_what_cannot_be_divided_is_one_message(tmp_path):
    words = command([*SMALL, "--train.gpus", "2", "--train.minibatch-size", str(3 * T)])
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=WAITS)
    assert done.returncode == 2
    message = "error: train.minibatch_size 24 is not a multiple of 2 ranks x train.horizon 8"
    assert done.stderr.startswith(message) and done.stderr.count("error") == 1


def test_the_first_process_asks_for_no_machine_of_others():
    """Without a launcher nothing of it is made."""
    code = "from puffer_mlx.machines.joining import join; import sys\n"
    code += "from puffer_mlx.machines.ranks import ALONE\nsys.exit(join(None) is not ALONE)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
