"""The first signal asks for an end, a second one ends the process wherever its main thread is."""

import os
import signal
import sys
import threading

import pytest
import running
from running import started

from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.system import signals
from puffer_mlx.system.signals import STOPPING_MESSAGE

SCRIPT = f"""
import ctypes, os, sys, threading, time
sys.path.insert(0, {str(running.ROOT)!r})
from puffer_mlx.system import signals
from puffer_mlx.cli.exit_codes import with_exit_code

def hang():
    "Locks a mutex twice: no signal ends that."
    c, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    c.pthread_mutex_init(mutex, None)
    c.pthread_mutex_lock(mutex)
    sys.setswitchinterval(1000)  # the other thread prints when this one is in C, not before
    threading.Timer(0.01, print, ["hangs"], {{"flush": True}}).start()
    c.pthread_mutex_lock(mutex)

def asked():
    print("asked", flush=True)

def rescued():
    return "rescued"

def lost():
    time.sleep(1000)

@with_exit_code
def main(argv):
    if argv[0] == "plainly":
        hang()
    signals.RESPONSE_TIMEOUT = signals.INTERRUPT_TIMEOUT = 0.1
    signals.RESCUE_TIMEOUT = 0.1 if argv[0] == "lost" else signals.RESCUE_TIMEOUT
    with signals.stop_gracefully(asked, globals()[argv[0]]):
        hang()

sys.exit(main(sys.argv[1:]))
"""
WORDS = [sys.executable, "-c", SCRIPT]


def test_second_ctrl_c_ends_a_script_that_hangs_in_c(tmp_path):
    with started([*WORDS, "plainly"], tmp_path) as process:
        process.wait_for("hangs")
        while process.popen.poll() is None:  # signals that come together are one
            process.popen.send_signal(signal.SIGINT)
            threading.Event().wait(0.2)
        assert process.end() == (130, "", "stopped\n")


def test_signals_that_others_mind_ask_for_nothing():
    """SIGWINCH, which the dashboard handles, ended a run."""
    asked, handled = [], []
    before = signal.signal(signal.SIGWINCH, lambda *_: handled.append(1))
    try:
        with signals.stop_gracefully(lambda: asked.append(1), str) as watch:
            signal.raise_signal(signal.SIGWINCH)
            assert not watch.has_signal() and handled == [1] and not asked
            signal.raise_signal(signal.SIGINT)
            assert watch.has_signal() and asked == [1]
    finally:
        signal.signal(signal.SIGWINCH, before)


def test_signal_with_another_handler_is_not_watched():
    """Else the second one would end a launcher, and not its ranks."""
    handled = []
    with signals.watch_signals() as watch:
        with signals.handle_signals_with(lambda *_: handled.append(1), signal.SIGINT):
            signal.raise_signal(signal.SIGINT)
            assert handled == [1] and not watch.has_signal()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_interrupt_that_is_held_back_is_raised_at_a_check(monkeypatch):
    monkeypatch.setattr(signals, "BURST_SECONDS", -1.0)
    interrupts = signals.Interrupts()
    with interrupts.hold_back():
        interrupts.signal(signal.SIGTERM)
        interrupts.signal(signal.SIGHUP)  # a shell sends it again
        assert interrupts.count == 1
        interrupts.signal(signal.SIGINT)
        assert interrupts.count == 2
        with pytest.raises(KeyboardInterrupt):
            interrupts.raise_if_due()
        interrupts.raise_if_due()


def test_first_interrupt_is_raised_at_once_or_when_it_is_no_longer_held_back():
    interrupts = signals.Interrupts()
    with pytest.raises(KeyboardInterrupt):
        interrupts.signal(signal.SIGINT)
    interrupts = signals.Interrupts()
    with pytest.raises(KeyboardInterrupt), interrupts.hold_back():
        interrupts.signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_hanging_run_is_asked_then_rescued_and_ended(tmp_path, number):
    with started([*WORDS, "rescued"], tmp_path) as process:
        process.wait_for("hangs")
        process.popen.send_signal(number)
        process.wait_for("asked")
        process.wait_for_error(STOPPING_MESSAGE)  # said by another thread than the one that hangs
        process.popen.send_signal(number)
        assert process.end() == (128 + number, "rescued\n", "stopped\n")


def test_rescue_that_hangs_does_not_delay_the_end(tmp_path):
    with started([*WORDS, "lost"], tmp_path) as process:
        process.wait_for("hangs")
        process.popen.send_signal(signal.SIGINT)
        process.wait_for_error(STOPPING_MESSAGE)
        process.popen.send_signal(signal.SIGINT)
        code, out, err = process.end()
    assert (code, out) == (130, "asked\n") and err.endswith("stopped\n")


def test_signals_that_come_together_are_one(monkeypatch):
    """GNU's timeout sends each twice."""
    called = []
    watch = signals.Watch()
    watch.set_callbacks(lambda: called.append(1), str)
    monkeypatch.setattr(signals, "BURST_SECONDS", 600.0)
    for _ in range(3):
        watch._count_signal(signal.SIGTERM)
    assert (called, watch.status, watch.forced) == ([1], 143, False)


def test_second_one_is_a_keyboard_interrupt(capsys):
    called = []
    watch = signals.Watch()
    watch.set_callbacks(lambda: called.append(1), str)
    watch._count_signal(signal.SIGTERM)
    watch._burst_end = 0.0
    watch._count_signal(signal.SIGHUP)  # closing a terminal is no second request
    assert (called, watch.signum, watch.forced, watch._must_raise) == (
        [1],
        signal.SIGTERM,
        False,
        False,
    )
    watch._count_signal(signal.SIGINT)
    assert (called, watch.status, watch.forced) == ([1], 130, True)
    with pytest.raises(KeyboardInterrupt):
        watch.handle()
    assert capsys.readouterr().err == f"\n{STOPPING_MESSAGE}\n"
    watch.handle()  # saving isn't interrupted again


@pytest.mark.parametrize("hangup", [signal.SIG_DFL, signal.SIG_IGN])
def test_handlers_are_restored_and_an_ignored_sighup_stays_ignored(hangup):
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    outside = signal.signal(signal.SIGHUP, hangup)
    try:
        before = [signal.getsignal(number) for number in numbers]
        with signals.stop_gracefully(lambda: None, str):
            own = [signal.getsignal(number) not in before for number in numbers]
        assert own == [True, True, hangup == signal.SIG_DFL]
        assert [signal.getsignal(number) for number in numbers] == before
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGHUP, outside)


def test_other_threads_change_no_handlers():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with signals.stop_gracefully(lambda: None, str):
            seen.append(signal.getsignal(signal.SIGINT))
        seen.append(with_exit_code(lambda _: None)([]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, 0]


def test_one_ctrl_c_stops_a_script(capsys):
    @with_exit_code
    def main(argv: list[str]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(60)

    assert main([]) == 130
    assert capsys.readouterr().err == "stopped\n"
    assert main([]) == 130  # a later one isn't the second


def test_compiler_that_got_the_ctrl_c_is_no_traceback(capsys):
    @with_exit_code
    def main(argv: list[str]) -> None:
        with signals.stop_gracefully(lambda: None, str):
            if argv:
                os.kill(os.getpid(), signal.SIGINT)
            raise RuntimeError("Failed to compile function f: no")

    assert main(["interrupted"]) == 130
    assert capsys.readouterr().err == f"\n{STOPPING_MESSAGE}\nstopped\n"
    with pytest.raises(RuntimeError, match="Failed to compile"):
        main([])


def test_signal_that_the_watching_thread_counts_late_interrupts(monkeypatch):
    """On a busy machine, when the handler no longer waits for that thread."""
    monkeypatch.setattr(signals, "LOCK_TIMEOUT", 0.01)
    with signals.watch_signals() as watch:
        arrived, taken, handled = watch._read_pipe, threading.Event(), threading.Event()

        def stalled() -> bytes:
            found = arrived()
            taken.set()
            handled.wait(30)  # with the lock
            return found

        def handle(*_: object) -> None:
            taken.wait(30)
            try:
                watch.handle()
            finally:
                handled.set()

        watch._read_pipe = stalled
        signal.signal(signal.SIGINT, handle)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            threading.Event().wait(5)
        assert watch.signum == signal.SIGINT
        signal.signal(signal.SIGINT, watch.handle)
