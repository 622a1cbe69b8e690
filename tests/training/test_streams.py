"""The rollout thread, and streams whose operations use a part of the cores."""

import functools
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import named, same
from running import ROOT, errors
from small_policies import policy_of

from puffer_mlx.ops import cpu_extension
from puffer_mlx.training import streams
from puffer_mlx.training.streams import (
    Worker,
    acting_streams,
    configure_learner_stream,
    rollout_worker,
    set_width,
)

CPU = mx.Device(mx.cpu)


@pytest.fixture(autouse=True)
def reset_streams():
    """Reset the stream limits of the main thread after a test."""
    yield
    module = cpu_extension.load_extension()
    for stream in getattr(streams._local, "streams", []):
        set_width(stream, 0)
    set_width(mx.default_stream(mx.cpu), 0)
    if module:
        module.set_depth(mx.default_stream(mx.cpu), 0)


@pytest.fixture
def in_thread():
    """Return a function that runs another function in a second thread."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()
        pool.submit(mx.clear_streams).result()


# ---- streams -------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=40)
def test_each_group_has_a_stream_while_there_are_cores(cores, groups):
    if (module := cpu_extension.load_extension()) is None:
        pytest.skip("the extension can't be built here")
    made = acting_streams(CPU, cores, groups)
    widths = {module.width(stream) for stream in made}
    assert len(set(map(str, made))) == len(made) == min(cores, groups)
    assert widths == {cores // len(made)}


def test_each_thread_keeps_its_streams(in_thread):
    four = acting_streams(CPU, 4, 4)
    assert acting_streams(CPU, 2, 2) == four[:2]
    assert acting_streams(CPU, 9, 6)[:4] == four
    theirs = in_thread(acting_streams, CPU, 4, 4)
    assert in_thread(acting_streams, CPU, 4, 4) == theirs
    assert not set(map(str, four)) & set(map(str, theirs))
    assert str(mx.default_stream(mx.cpu)) not in set(map(str, four))

    def add():
        with mx.stream(acting_streams(CPU, 4, 4)[-1]):
            return (mx.ones(3) + 1).tolist()

    assert add() == in_thread(add) == [2, 2, 2]


def test_a_width_belongs_to_one_stream(extension, in_thread):
    mine = mx.default_stream(mx.cpu)
    theirs = in_thread(mx.default_stream, mx.cpu)
    assert extension.width(mine) == cpu_extension.count_cores()
    configure_learner_stream(3)
    set_width(theirs, 5)
    assert (extension.width(mine), extension.width(theirs)) == (3, 5)
    extension.set_threads(7)
    assert (extension.width(mine), extension.width(theirs)) == (3, 5)
    configure_learner_stream(0)
    set_width(theirs, 0)
    assert (extension.width(mine), extension.width(theirs)) == (7, 7)
    assert extension.depth(mine) > 0 and extension.depth(theirs) == 0
    with pytest.raises(ValueError, match=r"or 0 for"):
        set_width(mine, -1)
    with pytest.raises(ValueError, match=r"or 0 for"):
        extension.set_depth(mine, -1)


def test_without_the_extension_widths_do_nothing(monkeypatch):
    monkeypatch.setattr(cpu_extension, "load_extension", lambda: None)
    made = acting_streams(CPU, 4, 2)
    configure_learner_stream(1)
    set_width(made[0], 3)
    with mx.stream(made[1]):
        assert (mx.ones(2) * 2).tolist() == [2, 2]


def test_two_threads_load_the_extension_once(monkeypatch):
    loaded = []

    @functools.cache
    def load():
        loaded.append(threading.get_ident())
        time.sleep(0.05)  # the other thread calls it, too

    monkeypatch.setattr(cpu_extension, "_load", load)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: cpu_extension.load_extension.__wrapped__(), range(2)))
    assert len(loaded) == 1


@pytest.mark.parametrize("network", ["MinGRU", "LSTM", "GRU"])
def test_two_threads_at_once_compute_the_bits_of_one(extension, network):
    """Policies and their gradients, in both threads, while widths and the depth change."""
    T, S = 3, 900
    policy = policy_of(network, H=24, reset=True)
    weights = policy.init(mx.random.key(0))

    def loss(weights, observations):
        not_done = policy.not_done((observations[..., 0] > 1).astype(mx.float32))
        product, state = policy.product(weights, observations, policy.initial_state(S), not_done)
        return mx.mean(mx.square(product)) + sum(mx.mean(a) for _, a in named(state))

    def arrays(stream, seed):
        with mx.stream(stream):
            observations = mx.random.normal((T, S, 5), key=mx.random.key(seed))
            loss_and_gradients = mx.value_and_grad(loss)(weights, observations)
            found = dict(enumerate(loss_and_gradients))
            mx.eval(found)
        return found

    extension.set_threads(1)
    default = mx.default_stream(mx.cpu)
    expected = [arrays(default, seed) for seed in (0, 1)]
    extension.set_threads(3)

    def check(seed):
        stream = acting_streams(CPU, 3, 1)[0] if seed else default
        for k in range(12):
            set_width(stream, k % 4)
            if not seed:
                extension.set_depth(stream, k % 3)
            assert same(arrays(stream, seed), expected[seed])

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(check, 1)
        check(0)
        other.result()
        pool.submit(mx.clear_streams).result()


# ---- the rollout thread --------------------------------------------------------------------------


@pytest.fixture
def thread():
    made = Worker("test")
    yield made
    made.close()


def test_one_thread_does_all_submitted_jobs_in_order(thread):
    done: list[tuple[int, int]] = []
    jobs = [thread.submit(lambda i=i: done.append((i, threading.get_ident()))) for i in range(50)]
    thread.close()
    assert [job.result(10) for job in jobs] == [None] * 50
    numbers, idents = zip(*done, strict=True)
    assert numbers == tuple(range(50))
    assert len(set(idents)) == 1 and threading.get_ident() not in idents
    assert not thread._thread.is_alive()


def test_a_jobs_error_does_not_end_the_thread(thread):
    def fails():
        raise SystemExit("not the process's")

    with pytest.raises(SystemExit, match="not the process's"):
        thread.submit(fails).result(10)
    assert thread.submit(lambda: 17).result(10) == 17


def test_a_process_has_one_rollout_thread():
    assert rollout_worker() is rollout_worker()
    assert [each.name for each in threading.enumerate()].count("collector") == 1


# ---- processes -----------------------------------------------------------------------------------

SCRIPT = """
import sys, threading, time
sys.path.insert(0, "tests")
from watching import acting
from puffer_mlx import config, vec
from puffer_mlx.training.trainer import Trainer
import mlx.core as mx
mx.disable_compile()

options = '''--device cpu --env.size 3 --policy.hidden-size 8 --vec.total-agents 8
    --train.horizon 4 --train.minibatch-size 16 --train.overlap 1
    --train.total-timesteps 1e9'''.split()
settings = config.load("squared", options)
t = Trainer(settings, vec.make(settings, 2))
"""
ENDINGS = {  # code, the exit code, and the end of standard error
    "the end of the program": (
        """
begun = threading.Event()
def slow(real, *arguments):
    begun.set()
    time.sleep(0.3)
    return real(*arguments)
acting(t, slow)
t.queue.start_next(t.weights)
begun.wait()
sys.exit(3)
""",
        3,
        "",
    ),
    "Ctrl-C": (
        """
import os, signal
t.step()
threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
for logs in t:
    pass
""",
        -signal.SIGINT,
        "KeyboardInterrupt\n",
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_ends_cleanly_while_a_rollout_is_in_progress(ending):
    text, code, end = ENDINGS[ending]
    words = [sys.executable, "-X", "faulthandler", "-c", SCRIPT + text]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=ROOT)
    stderr = errors(done.stderr)
    assert (done.returncode, done.stdout) == (code, "")
    assert stderr.endswith(end) if end else not stderr
    assert "Fatal" not in stderr and stderr.count("Traceback") <= 1
