"""The collector's thread: what it does with jobs, and how a process with one ends."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path

import pytest
from running import ROOT, errors

from puffer_mlx.training.streams import Worker, worker


@pytest.fixture
def own():
    thread = Worker("test")
    yield thread
    thread.close()


def test_jobs_are_done_in_order_by_one_thread(own):
    done: list[tuple[int, int]] = []
    jobs = [own.submit(lambda i=i: done.append((i, threading.get_ident()))) for i in range(50)]
    assert [job.result(10) for job in jobs] == [None] * 50
    numbers, idents = zip(*done, strict=True)
    assert numbers == tuple(range(50))
    assert len(set(idents)) == 1 and threading.get_ident() not in idents


def test_an_error_is_the_jobs_and_not_the_threads(own):
    def fails():
        raise SystemExit("not of the process")

    with pytest.raises(SystemExit, match="not of the process"):
        own.submit(fails).result(10)
    assert own.submit(lambda: 17).result(10) == 17


def test_nothing_of_a_job_is_kept(own):
    """A rollout's weights, say, until the next rollout comes."""

    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    job: Future | None = own.submit(lambda thing=thing: thing)
    assert job is not None and job.result(10) is thing
    del thing, job
    deadline = time.perf_counter() + 10
    while gone() is not None and time.perf_counter() < deadline:
        gc.collect()
        time.sleep(0.001)
    assert gone() is None


def test_closing_finishes_what_was_submitted(own):
    done = []

    def slow(i):
        time.sleep(0.01)
        done.append(i)

    for i in range(5):
        own.submit(lambda i=i: slow(i))
    own.close()
    assert done == list(range(5)) and not own._thread.is_alive()


def test_there_is_one_for_the_process():
    assert worker() is worker()
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("collector") == 1


# ---- processes -----------------------------------------------------------------------------------

SCRIPT = """
import sys, threading, time
sys.path.insert(0, "tests")
import oracles
from watching import acting
from puffer_mlx import config, vec
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.training.streams import worker
import mlx.core as mx
mx.disable_compile()

options = '''--device cpu --env.size 3 --policy.hidden-size 8 --vec.total-agents 8
    --train.horizon 4 --train.minibatch-size 16 --train.overlap 1
    --train.total-timesteps 128'''.split()
settings = config.load("squared", options)

def trainer():
    return Trainer(settings, vec.make(settings, 2))
"""
ENDINGS = {  # what the process does -> its exit code, and the end of its standard error
    "after training": ("assert len(list(trainer())) == 4", 0, ""),
    "many trainers": (
        """
idents = set()
for _ in range(6):
    t = trainer()
    def collect(real, *arguments):
        idents.add((threading.get_ident(), threading.current_thread().name))
        return real(*arguments)
    acting(t, collect)
    list(t)
((ident, name),) = idents
assert name == "collector" and ident != threading.get_ident()
assert [thread.name for thread in threading.enumerate()].count("collector") == 1
""",
        0,
        "",
    ),
    "after an error in training": (
        """
t = trainer()
def fails(*arguments):
    raise ValueError("broken")
t.step()
t.learner.functions.gradients = fails
t.step()
""",
        1,
        "ValueError: broken\n",
    ),
    "with a job under way": (
        """
t = trainer()
begun = threading.Event()
def slow(real, *arguments):
    begun.set()
    time.sleep(0.3)
    return real(*arguments)
acting(t, slow)
t.queue.start_next(t.weights)
begun.wait()
""",
        0,
        "",
    ),
    "with sys.exit in the middle of one": (
        """
settings.train.horizon = 512
t = Trainer(settings, oracles.SmallVec(8, 2, (5,)))
t.queue.start_next(t.weights)
while t.vec.steps[0] < 50:
    time.sleep(0.001)
sys.exit(3)
""",
        3,
        "",
    ),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_process_ends_cleanly(how):
    text, code, end = ENDINGS[how]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", SCRIPT + text],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    stderr = errors(done.stderr)
    assert (done.returncode, done.stdout) == (code, "")
    assert stderr.endswith(end) if end else not stderr
    assert "Fatal" not in stderr and stderr.count("Traceback") <= 1


def test_ctrl_c_at_any_moment_ends_a_process(tmp_path: Path):
    """Of Python's own handler: a KeyboardInterrupt anywhere in an overlapped run."""
    text = SCRIPT.replace("128", "1e9") + (
        "t = trainer()\nfor logs in t:\n    if t.epoch == 2: print('going', flush=True)\n"
    )
    rng = [0.0, 0.013, 0.05, 0.11]
    processes = [
        subprocess.Popen([sys.executable, "-c", text], stdout=-1, stderr=-1, text=True, cwd=ROOT)
        for _ in rng
    ]
    try:
        for process, seconds in zip(processes, rng, strict=True):
            assert process.stdout is not None
            assert process.stdout.readline() == "going\n"
            time.sleep(seconds)
            os.kill(process.pid, signal.SIGINT)
            _, stderr = process.communicate(timeout=30)
            assert process.returncode == -signal.SIGINT
            assert errors(stderr).endswith("KeyboardInterrupt\n") and "Fatal" not in stderr
    finally:
        for process in processes:
            process.kill()
            process.communicate()
