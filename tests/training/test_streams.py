"""Streams to act on and their shares of the cores: who has which, and that results don't change."""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import pytest

from puffer_mlx.ops import cpu_extension
from puffer_mlx.training import streams
from puffer_mlx.training.streams import acting_streams, learner_width, set_width

CPU = mx.Device(mx.cpu)


@pytest.fixture(autouse=True)
def as_before():
    """The main thread's streams, which last as long as the process."""
    yield
    module = cpu_extension.load()
    for stream in getattr(streams._of_thread, "streams", []):
        set_width(stream, 0)
    set_width(mx.default_stream(mx.cpu), 0)
    if module:
        module.set_depth(mx.default_stream(mx.cpu), 0)


@pytest.fixture
def thread():
    """Runs functions in another thread, one and the same."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()
        pool.submit(mx.clear_streams).result()


def test_a_stream_for_each_group_while_there_are_cores(extension):
    for cores, groups, widths in (
        *((1, 1, [1]), (1, 8, [1]), (2, 1, [2]), (2, 8, [1, 1]), (3, 2, [1, 1])),
        *((16, 1, [16]), (16, 8, [2] * 8), (16, 16, [1] * 16), (16, 32, [1] * 16)),
    ):
        made = acting_streams(CPU, cores, groups)
        assert [extension.width(stream) for stream in made] == widths
        assert len(set(map(str, made))) == len(made)


def test_made_once_for_each_thread(thread):
    four = acting_streams(CPU, 4, 4)
    assert acting_streams(CPU, 4, 4) == four
    assert acting_streams(CPU, 2, 2) == four[:2]
    assert acting_streams(CPU, 9, 6)[:4] == four
    theirs = thread(acting_streams, CPU, 4, 4)
    assert thread(acting_streams, CPU, 4, 4) == theirs
    assert not set(map(str, four)) & set(map(str, theirs))
    assert str(mx.default_stream(mx.cpu)) not in set(map(str, four))

    def add():
        with mx.stream(acting_streams(CPU, 4, 4)[-1]):
            return (mx.ones(3) + 1).tolist()

    assert add() == thread(add) == [2, 2, 2]


def test_a_gpu_has_its_default_stream(monkeypatch):
    monkeypatch.setattr(mx, "default_stream", lambda device: ("default", device))
    gpu = mx.Device(mx.gpu)
    assert acting_streams(gpu, 16, 8) == [("default", gpu)]


def test_a_share_is_its_streams_alone(extension, thread):
    default = extension.width(mx.default_stream(mx.cpu))
    mine, theirs = mx.default_stream(mx.cpu), thread(mx.default_stream, mx.cpu)
    assert default == cpu_extension.threads()
    learner_width(3)
    set_width(theirs, 5)  # from outside its thread
    assert (extension.width(mine), extension.width(theirs)) == (3, 5)
    assert extension.depth(mine) > 0 and extension.depth(theirs) == 0
    extension.set_threads(7)
    assert (extension.width(mine), extension.width(theirs)) == (3, 5)
    learner_width(0)
    set_width(theirs, 0)
    assert (extension.width(mine), extension.width(theirs)) == (7, 7)
    assert extension.depth(mine) > 0 and extension.depth(theirs) == 0


def test_negative_widths(extension):
    stream = mx.default_stream(mx.cpu)
    for call in (
        lambda: extension.set_width(stream, -1),
        lambda: extension.set_depth(stream, -1),
        lambda: learner_width(-1),
        lambda: set_width(stream, -1),
    ):
        with pytest.raises(ValueError, match=r"or 0 for"):
            call()


def test_without_the_extension(monkeypatch):
    monkeypatch.setattr(cpu_extension, "load", lambda: None)
    made = acting_streams(CPU, 4, 2)
    learner_width(1)
    set_width(made[0], 3)
    with mx.stream(made[1]):
        assert (mx.ones(2) * 2).tolist() == [2, 2]


LOAD_TWICE = """
    import sys
    import threading
    import puffer_mlx
    from puffer_mlx.ops import cpu_extension as cpu_ops

    sys.setswitchinterval(1e-6)
    found = []
    both = threading.Barrier(2)

    def load():
        both.wait()
        found.append(cpu_ops.load())

    other = threading.Thread(target=load)
    other.start()
    load()
    other.join()
    print(found[0] is found[1])
"""


def test_two_threads_get_one_extension(extension):
    code = textwrap.dedent(LOAD_TWICE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def values(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def every_operation(extension, seed):
    """A result of each of the extension's operations, on the current stream."""
    T, S, H = 3, 900, 24
    n = T * S

    def array(*shape):
        return mx.array(values(shape, seed + sum(shape)))

    keep = mx.array((values((T, S), seed) > -1).astype(np.float32))
    x, dy, first, h = array(n, H), array(n, H), array(S, H), array(T, S, H)
    rows = mx.array(np.random.default_rng(seed).integers(0, S, S).astype(np.int32))
    u, wide, three, four = array(T, S, 3 * H), array(T, S, 4 * H), array(3 * H, H), array(4 * H, H)
    out, states = extension.mingru_forward(u, h, first, keep)
    lstm = extension.lstm_forward(wide, four, first, first, keep)
    gru = extension.gru_forward(u, three, array(3 * H), first, keep)
    y, inverse = extension.add_rms_norm_forward(x, dy, array(H), 1e-6)
    found = [out, states, *lstm, *gru, y, inverse, extension.gelu_forward(x)]
    found += extension.mingru_backward(u, h, first, keep, states, h)
    found += extension.lstm_backward(lstm[2], four, first, first, keep, lstm[0], lstm[1], h)
    found += extension.gru_backward(gru[1], three, first, keep, gru[0], h)
    found += [extension.gelu_backward(x, dy), extension.take_rows(h, rows, T)]
    found += extension.add_rms_norm_backward(x, dy, array(H), inverse, dy)
    found += [extension.discount(x[1:], dy[1:]), extension.linear_bias_gradient(dy, False)]
    if extension.has_gemm():
        found += [
            extension.linear(x, array(5, H), False, array(5)),
            extension.linear(x, array(5, H), True),
            extension.linear_input_gradient(dy, array(H, 7), False, array(n, 7)),
            extension.linear_weight_gradient(dy, x, False),
            extension.recurrent_weight_gradient(wide, h, first, keep),
        ]
    return found


def test_two_threads_at_once_compute_what_one_does(extension, thread):
    """All operations of two threads at a time, widths and depth changing: the same bits."""

    def arrays(stream, seed):
        with mx.stream(stream):
            found = every_operation(extension, seed)
            mx.eval(found)
        return [np.array(array) for array in found]

    extension.set_threads(1)
    default = mx.default_stream(mx.cpu)
    expected = [arrays(default, seed) for seed in (0, 1)]
    extension.set_threads(3)

    def check(seed):
        stream = acting_streams(CPU, 3, 1)[0] if seed else mx.default_stream(mx.cpu)
        for k in range(12):
            set_width(stream, k % 4)
            if not seed:
                extension.set_depth(stream, k % 3)
            for one, two in zip(arrays(stream, seed), expected[seed], strict=True):
                np.testing.assert_array_equal(one, two)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(check, 1)
        check(0)
        other.result()
        pool.submit(mx.clear_streams).result()
