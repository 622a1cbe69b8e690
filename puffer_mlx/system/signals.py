"""Handle Ctrl-C and other signals: the first stops the work gracefully, the second at once.

Python runs a signal's handler in the main thread, between two bytecode instructions. While the main
thread runs C code of an environment or MLX, the handler runs late or never. So signals are also
written to a pipe (``signal.set_wakeup_fd``) that a separate thread, the watcher, reads. The handler
or the watcher handles a signal, whichever is first.

| signal | inside ``stop_gracefully`` (train.py) | elsewhere |
| --- | --- | --- |
| first | the work is asked to stop | KeyboardInterrupt |
| second | KeyboardInterrupt; if that has no effect: save and exit | exit |

Inside ``stop_gracefully`` this applies to Ctrl-C, SIGTERM and SIGHUP (a closed terminal; not under
nohup), elsewhere to Ctrl-C only. SIGHUP never counts as the second signal, because shells repeat
it.
"""

import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

# All in seconds.
LOCK_TIMEOUT = 0.1  # for the handler to get the watcher's lock
BURST_SECONDS = 0.05  # signals within this time count as one; ``timeout`` sends two
RESEND_SECONDS = 1.0  # a signal that the watcher sends again counts as the same for this time
RESPONSE_TIMEOUT = 0.5  # for the main thread to print the message; then the watcher prints it
INTERRUPT_TIMEOUT = 2.0  # for the main thread to end after the second signal
RESCUE_TIMEOUT = 20.0  # for saving after that
PRINT_TIMEOUT = 5.0  # for printing after saving; the reader of a pipe may be slow
PARENT_POLL = 0.5  # between two checks of whether the parent process still exists
ORPHAN_TIMEOUT = 30.0  # for a command to end after its parent has ended

PARENT_VARIABLE = "PUFFER_MLX_ENDS_WITH"  # environment variable with the parent's process ID
STOPPING_MESSAGE = "stopping after this epoch; again to stop at once"

_RUNNING, _STOPPING, _INTERRUPTED = range(3)


class Watch:
    """Handler of signals such as Ctrl-C: stops the work, interrupts it, then ends the process.

    Signals are handled in the main thread and in the watcher, a thread. Use ``watch_signals``.

    Attributes:
        signum: Number of the last signal that was counted, or 0.
    """

    def __init__(self) -> None:
        self.signum = 0
        self.handled: list[int] = []  # signal numbers; the pipe also gets other signals
        self._state = _RUNNING
        self._ask: Callable[[], str | None] | None = None  # asks the work to stop
        self._message = STOPPING_MESSAGE
        self._rescue: Callable[[], str] | None = None  # saves before the process is ended
        # Times of time.monotonic().
        self._burst_end = 0.0  # until then, signals count as the previous one
        self._announce_at: float | None = None  # then the watcher prints for a blocked main thread
        self._deadline: float | None = None  # then the watcher ends the process
        self._must_raise = False  # the main thread must raise a KeyboardInterrupt
        self._missed_lock = False  # the handler didn't get the lock
        self._closed = False
        self._lock = threading.RLock()  # the handler may interrupt itself
        self._reader = self._writer = -1
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)

    @property
    def status(self) -> int:
        """Exit status of a program that the last signal ended, for example 130 after Ctrl-C."""
        return 128 + (self.signum or signal.SIGINT)

    @property
    def forced(self) -> bool:
        """True if the watcher thread will end this process soon, even if the process hangs."""
        return self._deadline is not None

    def open(self) -> None:
        """Start the watcher, a thread that handles signals while the main thread runs C code."""
        self._reader, self._writer = os.pipe()
        self._pipe = os.fstat(self._reader)
        for end in self._reader, self._writer:
            os.set_blocking(end, False)
        self._previous_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        """True if other code has closed the pipe through which the watcher thread gets signals."""
        try:
            return not os.path.samestat(os.fstat(self._reader), self._pipe)
        except OSError:
            return True

    def close(self) -> None:
        """Stop the watcher thread and restore Python's signal handling."""
        signal.set_wakeup_fd(self._previous_fd)
        self._closed = True
        if self.is_broken:  # other files may have these descriptors now
            return
        self._wake_watcher()
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def set_callbacks(
        self, ask: Callable[[], str | None] | None, rescue: Callable[[], str] | None
    ) -> None:
        """Set the functions that signals call to stop the work and to save it; None removes them.

        Args:
            ask: Called at the first signal to stop the work.
            rescue: Called to save what can be saved before the process is ended.
        """
        with self._lock:
            self._ask = ask
            self._rescue = rescue

    def has_signal(self) -> bool:
        """Return True if a signal has arrived, even if its handler hasn't run yet."""
        self._read_signals()
        return self.signum != 0

    def handle(self, *_: object) -> None:
        """Handle a signal in the main thread, which may be in the middle of printing a line.

        The watcher may hold the lock while it waits to print. So this waits only briefly for the
        lock. If it doesn't get the lock, the watcher sends the signal again.
        """
        self._missed_lock = not self._read_signals(LOCK_TIMEOUT)
        self._wake_watcher()
        if self._announce_at:
            self._announce(lambda line: print(line, file=sys.stderr, flush=True))
        if self._must_raise:
            self._must_raise = False
            raise KeyboardInterrupt

    def _read_signals(self, timeout: float = -1.0) -> bool:
        """Read the signals that have arrived through the pipe, and count them.

        Args:
            timeout: Seconds to wait for the lock; -1 waits forever.

        Returns:
            False if another thread kept the lock.
        """
        if not self._lock.acquire(timeout=timeout):
            return False
        try:
            for signum in self._read_pipe():
                if signum in self.handled:  # not SIGWINCH, for example
                    self._count_signal(signum)
        finally:
            self._lock.release()
        return True

    def _read_pipe(self) -> bytes:
        """Read the numbers of all signals that have arrived from the pipe, a byte each."""
        try:
            return os.read(self._reader, 4096)
        except OSError:  # already read
            return b""

    def _count_signal(self, signum: int) -> None:
        """Count a signal, and do or schedule what it causes.

        In ``stop_gracefully``, the first signal asks the work to stop. The next one interrupts it,
        and a further one ends the process (the table at the top).
        """
        now = time.monotonic()
        if now < self._burst_end:
            return
        if self._state == _RUNNING and self._ask:
            self._state = _STOPPING
            self.signum = signum
            self._announce_at = now + RESPONSE_TIMEOUT
            self._message = self._ask() or STOPPING_MESSAGE
        elif signum == signal.SIGHUP:
            return
        elif self._state != _INTERRUPTED:
            self._state = _INTERRUPTED
            self.signum = signum
            self._must_raise = True
            self._deadline = now + INTERRUPT_TIMEOUT if self._ask else None
        else:
            self._deadline = now
        self._burst_end = now + BURST_SECONDS

    def _announce(self, show: Callable[[str], object]) -> None:
        """Print once that a signal has asked the work to stop, after the signal's repetitions.

        Args:
            show: Prints a line.
        """
        if not self._lock.acquire(timeout=LOCK_TIMEOUT):
            return  # the lock's holder prints instead
        is_due = self._announce_at is not None
        self._announce_at = None
        self._lock.release()
        if is_due:
            time.sleep(max(0.0, self._burst_end - time.monotonic()))
            show(f"\n{self._message}")

    def _wake_watcher(self) -> None:
        """Wake the watcher thread, because the time at which it must act may have changed."""
        with suppress(OSError):  # pipe full or closed
            os.write(self._writer, b"\0")

    def _watch(self) -> None:
        """Run the watcher thread: count signals, print, and end the process when it is time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            while not self._closed:
                times = [t for t in (self._announce_at, self._deadline) if t is not None]
                selector.select(max(0.0, min(times) - time.monotonic()) if times else None)
                self._read_signals()
                if self._missed_lock and self._must_raise:
                    # Make Python call the main thread's handler again.
                    self._missed_lock = False
                    self._burst_end = time.monotonic() + RESEND_SECONDS
                    signal.pthread_kill(threading.main_thread().ident or 0, self.signum)
                now = time.monotonic()
                if self._announce_at is not None and now >= self._announce_at:
                    self._announce(write_error)
                if self._deadline is not None and now >= self._deadline:
                    self._exit()

    def _exit(self) -> None:
        """Save the interrupted work if possible, and end this process from the watcher's thread."""
        done = threading.Event()

        def save() -> None:
            rescue = self._rescue
            line = ""
            try:
                line = rescue() if rescue else ""
            finally:
                done.set()
            print(line, end="\n" if line else "", flush=True)  # may block forever

        helper = threading.Thread(target=save, daemon=True)
        helper.start()
        if done.wait(RESCUE_TIMEOUT):
            helper.join(PRINT_TIMEOUT)
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")  # show the cursor, hidden by the dashboard
        write_error("stopped")
        os._exit(self.status)


def write_error(line: str) -> None:
    """Write a line to standard error, even if the main thread holds the stream's lock."""
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())


def in_main_thread() -> bool:
    """Return True if called in the main thread, which runs signal handlers."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def handle_signals_with(handler: Any, *signums: int) -> Iterator[None]:
    """Use another handler for some signals during a block. No effect outside the main thread.

    Args:
        handler: Handler, as for ``signal.signal``.
        signums: Numbers of the signals.
    """
    previous = {each: signal.signal(each, handler) for each in signums if in_main_thread()}
    active_handled = _active.handled if _active else []
    taken_over = [each for each in previous if each in active_handled]
    for signum in taken_over:
        active_handled.remove(signum)
    try:
        yield
    finally:
        active_handled += taken_over
        for signum, old in previous.items():
            signal.signal(signum, signal.SIG_DFL if old is None else old)


def parent_variables() -> dict[str, str]:
    """Return environment variables that make a child command end with this process, even killed."""
    return {PARENT_VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """End this command when its parent ends, if it was started with ``parent_variables``."""
    if parent := os.environ.pop(PARENT_VARIABLE, None):  # children must not inherit it
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: str) -> None:
    """Wait until this process's parent has ended, then end this process.

    Args:
        parent: Process ID of the parent.
    """
    while str(os.getppid()) == parent:
        time.sleep(PARENT_POLL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_TIMEOUT)
    os.kill(os.getpid(), signal.SIGKILL)


class Interrupts:
    """Handler that counts signals and raises a KeyboardInterrupt at the first, maybe delayed.

    Attributes:
        count: Number of signals; signals that arrive together count as one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._is_held = False  # in a block of ``hold_back``
        self._is_due = False  # the KeyboardInterrupt hasn't been raised yet
        self._burst_end = 0.0  # until then, signals count as the previous one

    def signal(self, signum: int, *_: object) -> None:
        """Count a signal, and raise a KeyboardInterrupt at the first one unless that is delayed."""
        now = time.monotonic()
        if now < self._burst_end or (signum == signal.SIGHUP and self.count):
            return
        self._burst_end = now + BURST_SECONDS
        self.count += 1
        self._is_due = self._is_due or self.count == 1
        if not self._is_held:
            self.raise_if_due()

    def raise_if_due(self) -> None:
        """Raise the KeyboardInterrupt that ``hold_back`` has delayed, if there is one."""
        if self._is_due:
            self._is_due = False
            raise KeyboardInterrupt

    @contextmanager
    def hold_back(self) -> Iterator[None]:
        """Delay a signal's KeyboardInterrupt until ``raise_if_due`` or the end of the block."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        self.raise_if_due()


@contextmanager
def catch_interrupts(*signums: int) -> Iterator[Interrupts]:
    """Yield a new ``Interrupts`` that handles the given signals during a block.

    Signals that this process ignores stay ignored.
    """
    interrupts = Interrupts()
    handled = [each for each in signums if signal.getsignal(each) != signal.SIG_IGN]
    with handle_signals_with(interrupts.signal, *handled):
        yield interrupts


_active: Watch | None = None


@contextmanager
def watch_signals() -> Iterator[Watch]:
    """Handle Ctrl-C during a block: KeyboardInterrupt at the first, exit at the second.

    Nested blocks share one Watch. After a second signal inside ``stop_gracefully``, the process is
    ended even if this block has ended.
    """
    global _active
    if _active is not None or not in_main_thread():
        yield _active or Watch()
        return
    watch = _active = Watch()
    watch.open()
    try:
        with _handle_signal(watch, signal.SIGINT, override=False):
            yield watch
    finally:
        _active = None
        if not watch.forced:
            watch.close()


@contextmanager
def stop_gracefully(ask: Callable[[], str | None], rescue: Callable[[], str]) -> Iterator[Watch]:
    """During a block, let the first signal stop the work gracefully, and the second interrupt it.

    Args:
        ask: Called once, in any thread, to stop the work soon. May return a message to print
            instead of ``STOPPING_MESSAGE``.
        rescue: Called in another thread if the main thread doesn't end after the second signal.
            Saves what can be saved, and returns a line that says so.
    """
    with watch_signals() as watch:
        if not in_main_thread():
            yield watch
            return
        watch.set_callbacks(ask, rescue)
        try:
            with ExitStack() as stack:
                for signum in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
                    # A shell's background jobs ignore signals: handle them here, except SIGHUP,
                    # which nohup ignores.
                    override = signum != signal.SIGHUP
                    stack.enter_context(_handle_signal(watch, signum, override))
                yield watch
        finally:
            watch.set_callbacks(None, None)


@contextmanager
def _handle_signal(watch: Watch, signum: int, override: bool) -> Iterator[None]:
    """Handle a signal with a Watch during a block.

    Args:
        watch: The Watch.
        signum: Number of the signal.
        override: True to handle the signal even if this process ignores it.
    """
    previous = signal.getsignal(signum)
    if previous == signal.SIG_IGN and not override:
        yield
        return
    signal.signal(signum, watch.handle)
    watch.handled.append(signum)
    try:
        yield
    finally:
        watch.handled.remove(signum)
        if not watch.forced:
            signal.signal(signum, signal.SIG_DFL if previous is None else previous)
