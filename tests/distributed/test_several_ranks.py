"""Distributed training: the results of one process, resuming, lost ranks, signals and messages."""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import psutil
import pytest
import running

from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.config import load
from puffer_mlx.distributed import joining, launching
from puffer_mlx.distributed.launching import free_ports
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.vec.native.sources import environments_folder

EPOCHS, T, N = 10, 8, 24
SMALL = f"""
    train squared --device cpu --env.size 3 --policy.hidden-size 8 --vec.total-agents {N}
    --train.horizon {T} --train.minibatch-size {6 * T} --train.replay-ratio 1.5
    --train.total-timesteps {EPOCHS * T * N} --train.learning-rate 0.005 --checkpoint-interval 5
    --vec.num-threads 1 --vec.num-buffers 1
""".split()
# One minibatch is the entire rollout, so each rank trains on its own rollout.
WHOLE = "--train.minibatch-size", str(T * N), "--train.replay-ratio", "2"
FIVE = "--train.algorithm", "puffer5", "--reset-state", "0"
WAITS = 300  # seconds
LINE = re.compile(r"[\d,]+ of [\d,]+ steps")
SERVING = [sys.executable, str(Path(__file__).with_name("serving_ranks.py"))]

LONG = ["--train.total-timesteps", str(10**12), "--train.rank-timeout", "5"]
LONG += ["--checkpoint-interval", "0"]


@contextlib.contextmanager
def started(
    commands: list[list[str]], folder: Path, **how: Any
) -> Iterator[list[subprocess.Popen]]:
    """Start a process for each rank's command, with free ports; kill them afterwards.

    Standard error is the file ``out0`` etc., and so is standard output except with ``how``.
    """
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(len(commands))]))
    with contextlib.ExitStack() as stack:
        processes = []
        for rank, words in enumerate(commands):
            env = {**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)}
            out = stack.enter_context(open(folder / f"out{rank}", "w"))
            streams = {"stdout": out, "stderr": out, **how}
            process = subprocess.Popen(words, cwd=folder, env=env, **streams)
            stack.enter_context(process)  # waits for its end, and closes its pipes
            stack.callback(process.kill)
            processes.append(process)
        yield processes


class Serving:
    """Processes of ranks that stay and train repeatedly (``serving_ranks.py``)."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count, self._folder, self._stack = count, folder, contextlib.ExitStack()
        self._processes: list[subprocess.Popen] = []

    def run(self, folder: Path, words: list[str], fault: str = "", of: dict | None = None):
        """Train once on all ranks. Returns their exit codes.

        ``of``: additional words of some ranks.
        """
        for _ in range(3):  # another program may take a port
            codes = self._run(folder, words, fault, of or {})
            if any(codes):  # ranks end when they have lost others
                self.close()
            if not any("can't join" in text(folder, rank) for rank in range(self.count)):
                break
        return codes

    def _run(self, folder: Path, words: list[str], fault: str, of: dict) -> list[int]:
        if not self._processes:
            pipes: dict = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            ranks = started([SERVING] * self.count, self._folder, **pipes)
            self._processes = self._stack.enter_context(ranks)
        for rank, process in enumerate(self._processes):
            job = {"words": [*SMALL[1:], *words, *of.get(rank, [])], "folder": str(folder)}
            print(json.dumps({**job, "fault": fault}), file=process.stdin, flush=True)
        codes = []
        for rank, process in enumerate(self._processes):
            assert process.stdout and select.select([process.stdout], [], [], WAITS)[0]
            line = process.stdout.readline()
            assert line, text(self._folder, rank) + text(folder, rank)
            codes.append(int(line))
        return codes

    def close(self) -> None:
        self._processes = []
        self._stack.close()


def text(folder: Path, rank: int = 0) -> str:
    path = folder / f"out{rank}"
    return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    with contextlib.closing(Serving(2, tmp_path_factory.mktemp("two"))) as two:
        yield two


@pytest.fixture
def train(serving):
    """Return a function that trains on several ranks and returns the first rank's output."""

    def run(folder: Path, *words: str, fault: str = "", count: int = 2) -> str:
        with contextlib.ExitStack() as stack:
            ranks = serving
            if count != 2:
                ranks = stack.enter_context(contextlib.closing(Serving(count, folder)))
            codes = ranks.run(folder, [*words], fault)
        assert codes == [0] * count, [text(folder, rank) for rank in range(count)]
        return text(folder)

    return run


@pytest.fixture
def train_alone(script, monkeypatch):
    """Return a function that trains in this process, without other ranks."""

    def run(folder: Path, *words: str) -> None:
        monkeypatch.chdir(folder)
        assert script.main([*SMALL[1:], *words]) == 0

    return run


def wait_for_epochs(folder: Path, process: subprocess.Popen) -> None:
    """Wait until the output of a distributed run reports two epochs."""
    until = time.monotonic() + WAITS
    while len(LINE.findall(text(folder))) < 2:
        assert time.monotonic() < until and process.poll() is None, text(folder)
        time.sleep(0.1)


def newest(folder: Path) -> Path:
    return sorted(folder.glob("checkpoints/squared/*/0*"))[-1]


def arrays(folder: Path, name: str = "weights") -> dict[str, mx.array]:
    return mx.load(str(newest(folder) / f"{name}.safetensors"))  # type: ignore


def records(folder: Path) -> list[dict]:
    (path,) = folder.glob("logs/squared/*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def differ(a: Path, b: Path) -> float:
    one, other = arrays(a), arrays(b)
    assert one.keys() == other.keys()
    return max(mx.abs(one[name] - other[name]).max().item() for name in one)  # type: ignore


@pytest.fixture
def two_folders(tmp_path):
    folders = tmp_path / "alone", tmp_path / "ranks"
    for folder in folders:
        folder.mkdir()
    return folders


CASES = {
    "puffer5": [*FIVE],
    # The last step of a rollout isn't trained on.
    "ppo, samples": [
        *("--train.algorithm", "ppo", "--torch.network", "MLP"),
        *("--train.minibatch-size", str((T - 1) * N)),
    ],
    "ppo, segments, three ranks": ["--train.algorithm", "ppo", "--reset-state", "0"],
}


@pytest.mark.parametrize("case", CASES)
def test_ranks_train_what_one_process_trains(case, two_folders, train, train_alone):
    alone, several = two_folders
    words = *WHOLE, *CASES[case]
    train_alone(alone, *words)
    train(several, *words, count=3 if "three" in case else 2)
    assert differ(alone, several) < 2e-6
    pairs = list(zip(records(alone), records(several), strict=True))
    assert len(pairs) >= EPOCHS
    for one, other in pairs:
        same = [name for name in one if name.startswith(("env/", "loss/", "agent_steps"))]
        assert same
        np.testing.assert_allclose(
            [one[name] for name in same], [other[name] for name in same], rtol=1e-4, atol=1e-5
        )


def test_each_rank_draws_its_own_minibatches(two_folders, train, train_alone):
    """The ranks act as one process does, and learn something else, as PufferLib's do."""
    alone, several = two_folders
    train_alone(alone)
    said = train(several)
    assert differ(alone, several) > 1e-4
    assert len(LINE.findall(said)) >= 1 and not text(several, 1)
    one, other = (records(folder)[0] for folder in two_folders)
    assert one["env/score"] == pytest.approx(other["env/score"])


def test_a_resumed_run_is_the_whole_one(two_folders, train):
    whole, stopped = two_folders
    train(whole, "--vec.normalize-observations", "1")
    half = ["--vec.normalize-observations", "1", "--stop-at", str(5 * T * N)]
    train(stopped, *half)
    assert records(stopped)[-1]["epoch"] == 5
    train(stopped, "--resume", "latest")
    assert differ(whole, stopped) == 0
    assert "ranks.1" in arrays(stopped, "state")


def test_the_command_starts_ranks_and_refuses_to_resume_with_another_number(
    tmp_path, train_alone, script, capsys
):
    train_alone(tmp_path, "--train.gpus", "2")
    assert "gpus = 2" in (newest(tmp_path) / "config.ini").read_text()
    assert "ranks.1" in arrays(tmp_path, "state")
    capsys.readouterr()
    assert script.main([*SMALL[1:], "--resume", "latest", "--train.gpus", "1"]) == 2
    said = capsys.readouterr().err
    assert "error: the checkpoint has the state of 2 ranks, but this run has one process" in said
    assert "hint: resume with --train.gpus 2" in said


def test_an_error_of_all_ranks_is_reported_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(launching.REPORTED_FOLDER, str(tmp_path))

    def fails(_):
        raise UserError("broken", "mend it")

    assert [with_exit_code(fails)([]) for _ in range(2)] == [2, 2]
    assert capsys.readouterr().err.count("error: broken") == 1


WAITING = """
import os, pathlib, signal, sys, time
ready = pathlib.Path("ready")
if os.environ["MLX_RANK"] == "1":
    while not ready.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path("asked").write_text("")))
ready.touch()
time.sleep(60)
"""


def test_the_launcher_ends_the_others_and_names_the_rank_that_died(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launching, "TERMINATE_TIMEOUT", 0.5)
    words = [sys.executable, "-c", WAITING]
    assert launching.launch_ranks(2, words, on_gpus=False) == 128 + signal.SIGKILL
    assert (tmp_path / "asked").exists()
    assert capfd.readouterr().err == "rank 1 was killed by SIGKILL\n"


COUNTING = """
import os, pathlib, signal, time
came, parent = [], os.getppid()
for name in "SIGINT", "SIGTERM", "SIGHUP":
    signal.signal(getattr(signal, name), lambda number, _: came.append(number))
mine = pathlib.Path("rank" + os.environ["MLX_RANK"])
while signal.SIGTERM not in came and os.getppid() == parent:
    mine.write_text(f"{came} ")
    time.sleep(0.02)
mine.write_text(f"{came} ")
"""
LAUNCHING = f"""
import sys
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.distributed.launching import launch_ranks
words = [sys.executable, "-c", {COUNTING!r}]
sys.exit(with_exit_code(lambda _: launch_ranks(2, words, on_gpus=False))([]))
"""


@pytest.mark.parametrize("to", [os.kill, os.killpg], ids=["the launcher", "all processes"])
def test_each_rank_gets_each_signal_once(to, tmp_path):
    """A second signal would end a rank before it has saved."""
    numbers = [signal.SIGINT, signal.SIGHUP, signal.SIGINT, signal.SIGTERM]
    ranks = [tmp_path / "rank0", tmp_path / "rank1"]

    def came(expected: list[signal.Signals]) -> bool:
        texts = [path.read_text() if path.exists() else "" for path in ranks]
        return texts == [f"{[int(number) for number in expected]} "] * 2

    words = [sys.executable, "-c", LAUNCHING]
    with running.started(words, tmp_path, start_new_session=True) as process:
        for sent in range(len(numbers) + 1):
            running.wait_until(lambda sent=sent: came(numbers[:sent]))
            if sent < len(numbers):
                to(process.popen.pid, numbers[sent])
        assert process.end() == (0, "", "")


def test_ctrl_z_stops_ranks_until_they_are_continued(tmp_path):
    words = [sys.executable, "-c", LAUNCHING]
    with running.started(words, tmp_path, start_new_session=True) as process:
        running.wait_until(lambda: len([*tmp_path.glob("rank?")]) == 2)
        ranks = psutil.Process(process.popen.pid).children()

        def are_stopped() -> set[bool]:
            return {rank.status() == psutil.STATUS_STOPPED for rank in ranks}

        process.popen.send_signal(signal.SIGTSTP)
        running.wait_until(lambda: are_stopped() == {True})
        process.popen.send_signal(signal.SIGCONT)
        running.wait_until(lambda: are_stopped() == {False})
        process.popen.send_signal(signal.SIGTERM)
        assert process.end() == (0, "", "")


@pytest.mark.parametrize("ended_by", ["kill -9", "closed terminal"])
def test_ranks_save_and_end_when_their_launcher_ends(ended_by, tmp_path):
    words = program.package_command(*SMALL, *LONG, "--train.gpus", "2")
    with open(tmp_path / "out0", "w") as out:
        parent = subprocess.Popen(
            words, cwd=tmp_path, stdout=out, stderr=out, start_new_session=True
        )
    left = []
    try:
        wait_for_epochs(tmp_path, parent)
        left = psutil.Process(parent.pid).children(recursive=True)
        if ended_by == "kill -9":
            parent.kill()
        else:
            os.killpg(parent.pid, signal.SIGHUP)
        parent.wait(WAITS)
        assert len(left) >= 2 and not psutil.wait_procs(left, WAITS)[1]
    finally:
        for process in (parent, *left):
            with contextlib.suppress(psutil.Error):
                process.kill()
        parent.wait()
    assert (newest(tmp_path) / "state.safetensors").exists()
    said = text(tmp_path)
    if ended_by == "kill -9":
        assert said.count("the process that started the ranks has ended") == 1
    else:
        assert parent.returncode == 128 + signal.SIGHUP
    assert re.search(r"saved \S+$", said, re.MULTILINE)


def test_ranks_whose_gpus_roll_out_train_and_resume_as_one_process(two_folders, train, train_alone):
    alone, several = two_folders
    words = [*FIVE, *WHOLE, "--train.total-timesteps", str(4 * T * N)]
    train_alone(alone, *words)
    train(several, *words, "--stop-at", str(2 * T * N), fault="on_gpu")
    train(several, *words, "--resume", "latest", fault="on_gpu")
    assert differ(alone, several) < 3e-4
    for one, other in zip(records(alone), records(several), strict=True):
        for name in (name for name in one if name.startswith("env/")):
            assert one[name] == pytest.approx(other[name], rel=1e-5), name


def test_a_kernel_that_fails_on_one_rank_is_refused_on_all(two_folders, train, train_alone):
    alone, several = two_folders
    words = [*FIVE, *WHOLE, "--train.total-timesteps", str(2 * T * N)]
    train_alone(alone, *words)
    said = train(several, *words, fault="one_without_muon")
    assert "puffer_mlx: Muon in one call fails on another rank's GPU, so" in said
    assert differ(alone, several) < 3e-4


@pytest.mark.parametrize(
    ("lost", "number", "said"),
    [
        (1, signal.SIGSTOP, r"rank 1 (hangs: the others have waited|hasn't answered for)"),
        (0, signal.SIGKILL, "rank 0 has died"),
    ],
)
def test_a_rank_that_is_lost_is_named(lost, number, said, tmp_path):
    left = 1 - lost
    with started([program.package_command(*SMALL, *LONG)] * 2, tmp_path) as processes:
        wait_for_epochs(tmp_path, processes[0])
        processes[lost].send_signal(number)
        assert processes[left].wait(WAITS) == 2
    assert re.search(f"error: {said}", text(tmp_path, left))
    if left == 0:
        assert re.search(r"saved \S+ \(weights only", text(tmp_path))
        assert (newest(tmp_path) / "weights.safetensors").exists()


def test_ranks_with_different_options_are_refused(tmp_path, serving):
    assert serving.run(tmp_path, [], of={1: ["--train.gamma", "0.9"]}) == [2, 2]
    for rank in range(2):
        said = text(tmp_path, rank)
        assert "error: rank 0 has train.gamma 0.99, but rank 1 has 0.9" in said


def test_different_sources_of_an_environment_are_found(tmp_path):
    copy = tmp_path / "squared"
    shutil.copytree(environments_folder() / "squared", copy)
    same = joining._facts(replace(load("squared"), source=str(copy)))
    header = copy / "squared.h"
    header.write_text(header.read_text() + "enum { ANOTHER_ONE };\n")
    changed = joining._facts(replace(load("squared"), source=str(copy)))
    assert joining._first_difference(same, same) is None
    assert joining._first_difference(same, changed) == (
        "environment sources",
        *(facts["environment sources"] for facts in (same, changed)),
    )


def test_waiting_for_other_ranks_has_a_timeout(tmp_path):
    code = "import puffer_mlx\nfrom puffer_mlx.config import load\n"
    code += "from puffer_mlx.distributed.joining import init_distributed\n"
    code += "init_distributed(load('squared'), timeout=0.5)"
    words = [sys.executable, "-P", "-c", code]
    with started([words, ["true"]], tmp_path) as processes:
        assert processes[0].wait(WAITS) == -signal.SIGKILL
    assert text(tmp_path).startswith(
        "error: rank 0 has waited 0.5 s for the others (ring)\n  hint:"
    )


@pytest.mark.parametrize(
    ("rank", "hosts", "message"),
    [
        ("x", "[]", "MLX_RANK is 'x', not a rank's number: 0, 1, ..."),
        ("3", '{"0": "127.0.0.1:5000"}', "hosts.json is no list of each rank's addresses"),
        ("3", '[["127.0.0.1:1"]]', "MLX_HOSTFILE hosts.json has no rank 3: it lists 1"),
    ],
)
def test_a_wrong_rank_or_hostfile_is_an_error(
    here, script, monkeypatch, capsys, rank, hosts, message
):
    monkeypatch.setenv("MLX_RANK", rank)
    monkeypatch.setenv("MLX_HOSTFILE", "hosts.json")
    (here / "hosts.json").write_text(hosts)
    assert script.main(SMALL[1:]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("error") == 1


def test_a_minibatch_must_be_a_multiple_of_ranks(here, script, capsys):
    words = [*SMALL[1:], "--train.gpus", "2", "--train.minibatch-size", str(3 * T)]
    assert script.main(words) == 2
    expected = "train.minibatch_size 24 is not a multiple of 2 ranks x train.horizon 8"
    assert expected in capsys.readouterr().err


def test_weights_that_differ_between_ranks_are_an_error(tmp_path, serving):
    assert serving.run(tmp_path, [], "other_weights") == [2, 2]
    for rank in range(2):
        said = text(tmp_path, rank)
        assert f"error: after epoch {EPOCHS} the weights of ranks [1] differ from those of" in said
        assert said.count("error: ") == 1
