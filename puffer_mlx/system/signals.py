"""Signals that end a program: the first one gently, the second one for certain.

Python runs a signal's handler in the main thread, between two bytecode instructions. While the main
thread is in C code of an environment or MLX, the handler runs late or never. So signals are also
written to a pipe (``signal.set_wakeup_fd``) that a watching thread reads. Either of the two handles
them, whichever is first.

| signal | inside ``stop_gracefully`` (train.py) | elsewhere |
| --- | --- | --- |
| the first | the work is asked to stop | KeyboardInterrupt |
| the second | KeyboardInterrupt; ``INTERRUPT_TIMEOUT`` seconds later rescue and exit | exit |

Inside ``stop_gracefully`` this applies to Ctrl-C, SIGTERM and SIGHUP (a closed terminal; not under
nohup), elsewhere to Ctrl-C. SIGHUP never counts as the second signal, because shells send it again.
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

LOCK_TIMEOUT = 0.1  # seconds that the handler waits for the watching thread
TOGETHER = 0.05  # seconds in which signals count as one: ``timeout`` sends two
AGAIN = 1.0  # seconds in which a signal sent again counts as the same
RESPONSE_TIMEOUT = 0.5  # seconds without an answer until the main thread counts as in C code
INTERRUPT_TIMEOUT = 2.0  # seconds for the main thread to end after a second signal
RESCUE_TIMEOUT = 20.0  # seconds to save afterwards
PRINT_TIMEOUT = 5.0  # seconds to print the result of saving; the reader may be slow
PARENT_POLL = 0.5  # seconds between two checks for the parent
ORPHAN_TIMEOUT = 30.0  # seconds for a command to end after its parent
ENDS_WITH = "PUFFER_MLX_ENDS_WITH"  # ID of the process that a command ends with
ASKING = "stopping after this epoch; again to stop at once"

_CALM, _ASKED, _INTERRUPTED = range(3)


class Watch:
    """Handles signals; ``watch_signals`` returns the process's instance.

    Attributes:
        number: Number of the last signal that counted, or 0.
    """

    def __init__(self) -> None:
        self.number = 0
        self.handled: list[int] = []  # handled signals (the pipe gets others, too)
        self._state = _CALM
        self._ask: Callable[[], str | None] | None = None
        self._asking = ASKING
        self._rescue: Callable[[], str] | None = None
        self._together = 0.0  # until when signals count as the same one
        self._say_by: float | None = None  # when the thread prints for a blocked main thread
        self._deadline: float | None = None  # when the thread ends the process
        self._raise = self._late = self._closed = False
        self._lock = threading.RLock()  # the handler may interrupt itself
        self._reader = self._writer = -1
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)

    @property
    def status(self) -> int:
        """Exit status of a program that a signal ended."""
        return 128 + (self.number or signal.SIGINT)

    @property
    def forced(self) -> bool:
        """True if the process will be ended soon, even if it hangs."""
        return self._deadline is not None

    def open(self) -> None:
        """Start watching."""
        self._reader, self._writer = os.pipe()
        self._pipe = os.fstat(self._reader)
        for end in self._reader, self._writer:
            os.set_blocking(end, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        """Return True if other code has closed the pipe, for example by closing all descriptors."""
        try:
            return not os.path.samestat(os.fstat(self._reader), self._pipe)
        except OSError:
            return True

    def close(self) -> None:
        """End the thread and stop handling signals."""
        signal.set_wakeup_fd(self._before)
        self._closed = True
        if self.is_broken:  # other files may have these descriptors now
            return
        self._nudge()
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def gently(
        self, ask: Callable[[], str | None] | None, rescue: Callable[[], str] | None
    ) -> None:
        """Set the functions of the module's ``stop_gracefully``, or None, None at its end."""
        with self._lock:
            self._ask, self._rescue = ask, rescue

    def came(self) -> bool:
        """Return True if a signal has arrived, handled or not."""
        self._take()
        return self.number != 0

    def handle(self, *_: object) -> None:
        """Handle a signal in the main thread, maybe in the middle of a line that it prints.

        The watching thread may hold the lock while it waits to print a line. So this waits only
        briefly for the lock; if that fails, the thread sends the signal again.
        """
        self._late = not self._take(LOCK_TIMEOUT)
        self._nudge()
        if self._say_by:
            self._announce(lambda line: print(line, file=sys.stderr, flush=True))
        if self._raise:
            self._raise = False
            raise KeyboardInterrupt

    def _take(self, timeout: float = -1.0) -> bool:
        if not self._lock.acquire(timeout=timeout):
            return False
        try:
            for number in self._arrived():
                if number in self.handled:  # not SIGWINCH, for example
                    self._count(number)
        finally:
            self._lock.release()
        return True

    def _arrived(self) -> bytes:
        try:
            return os.read(self._reader, 4096)
        except OSError:  # already read
            return b""

    def _count(self, number: int) -> None:
        now = time.monotonic()
        if now < self._together:
            return
        if self._state == _CALM and self._ask:
            self._state, self.number, self._say_by = _ASKED, number, now + RESPONSE_TIMEOUT
            self._asking = self._ask() or ASKING
        elif number == signal.SIGHUP:
            return
        elif self._state != _INTERRUPTED:
            self._state, self.number, self._raise = _INTERRUPTED, number, True
            self._deadline = now + INTERRUPT_TIMEOUT if self._ask else None
        else:
            self._deadline = now
        self._together = now + TOGETHER

    def _announce(self, show: Callable[[str], object]) -> None:
        """Print that the work was asked to stop. After that, another signal is the second."""
        if not self._lock.acquire(timeout=LOCK_TIMEOUT):
            return  # its holder checks again
        mine, self._say_by = self._say_by is not None, None
        self._lock.release()
        if mine:
            time.sleep(max(0.0, self._together - time.monotonic()))
            show(f"\n{self._asking}")

    def _nudge(self) -> None:
        """Wake the thread to check signals that the main thread has taken."""
        with suppress(OSError):  # full or closed
            os.write(self._writer, b"\0")

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            while not self._closed:
                times = [t for t in (self._say_by, self._deadline) if t is not None]
                selector.select(max(0.0, min(times) - time.monotonic()) if times else None)
                self._take()
                if self._late and self._raise:
                    self._late, self._together = False, time.monotonic() + AGAIN
                    signal.pthread_kill(threading.main_thread().ident or 0, self.number)
                now = time.monotonic()
                if self._say_by is not None and now >= self._say_by:
                    self._announce(write_error)
                if self._deadline is not None and now >= self._deadline:
                    self._exit()

    def _exit(self) -> None:
        """End the process from this thread, since the main thread doesn't."""
        done = threading.Event()

        def save() -> None:
            rescue, line = self._rescue, ""
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
    """Return True in the thread that runs signal handlers."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def handled_by(handler: Any, *numbers: int) -> Iterator[None]:
    """Handle signals with ``handler`` instead of ``watch_signals`` during a block.

    Outside the main thread this does nothing.
    """
    before = {each: signal.signal(each, handler) for each in numbers if in_main_thread()}
    watched_numbers = _active.handled if _active else []
    taken_over = [each for each in before if each in watched_numbers]
    for number in taken_over:
        watched_numbers.remove(number)
    try:
        yield
    finally:
        watched_numbers += taken_over
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def ends_with_this() -> dict[str, str]:
    """Return the variables for a command that must end when this process does, even by SIGKILL."""
    return {ENDS_WITH: str(os.getpid())}


def end_with_parent() -> None:
    """End this command when its parent ends, if it was started with ``ends_with_this``."""
    if parent := os.environ.pop(ENDS_WITH, None):  # not inherited by children
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: str) -> None:
    while str(os.getppid()) == parent:
        time.sleep(PARENT_POLL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_TIMEOUT)
    os.kill(os.getpid(), signal.SIGKILL)


class Interrupts:
    """Turns the first signal into a KeyboardInterrupt, which a block can hold back; counts signals.

    Attributes:
        count: Number of signals; those that arrive together count as one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._is_held = self._is_due = False
        self._together = 0.0  # until when signals count as the same one

    def signal(self, number: int, *_: object) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if now < self._together or (number == signal.SIGHUP and self.count):
            return
        self._together = now + TOGETHER
        self.count += 1
        self._is_due = self._is_due or self.count == 1
        if not self._is_held:
            self.check()

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, once."""
        if self._is_due:
            self._is_due = False
            raise KeyboardInterrupt

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Hold back the KeyboardInterrupt until ``check``, or the end of the block."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        self.check()


@contextmanager
def interrupting(*numbers: int) -> Iterator[Interrupts]:
    """Handle signals with ``Interrupts`` during a block, except ignored ones."""
    interrupts = Interrupts()
    handled = [each for each in numbers if signal.getsignal(each) != signal.SIG_IGN]
    with handled_by(interrupts.signal, *handled):
        yield interrupts


_active: Watch | None = None


@contextmanager
def watch_signals() -> Iterator[Watch]:
    """Watch for Ctrl-C, as in the module's table. Nested blocks and other threads share one Watch.

    After a second signal inside ``stop_gracefully``, the process is ended even after this block.
    """
    global _active
    if _active is not None or not in_main_thread():
        yield _active or Watch()
        return
    watch = _active = Watch()
    watch.open()
    try:
        with _handled(watch, signal.SIGINT, override=False):
            yield watch
    finally:
        _active = None
        if not watch.forced:
            watch.close()


@contextmanager
def stop_gracefully(ask: Callable[[], str | None], rescue: Callable[[], str]) -> Iterator[Watch]:
    """Ask for an end at the first signal, and interrupt at the second.

    Args:
        ask: Called once, in any thread, to end the work soon. May return a message to print instead
            of ``ASKING``.
        rescue: Called in another thread if the main thread doesn't end after a second signal. Saves
            what can be saved, and returns a line about it.
    """
    with watch_signals() as watch:
        if not in_main_thread():
            yield watch
            return
        watch.gently(ask, rescue)
        try:
            with ExitStack() as stack:
                for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
                    # Background jobs of a shell ignore signals, so override them, except nohup's
                    # SIGHUP.
                    override = number != signal.SIGHUP
                    stack.enter_context(_handled(watch, number, override))
                yield watch
        finally:
            watch.gently(None, None)


@contextmanager
def _handled(watch: Watch, number: int, override: bool) -> Iterator[None]:
    before = signal.getsignal(number)
    if before == signal.SIG_IGN and not override:
        yield
        return
    signal.signal(number, watch.handle)
    watch.handled.append(number)
    try:
        yield
    finally:
        watch.handled.remove(number)
        if not watch.forced:
            signal.signal(number, signal.SIG_DFL if before is None else before)
