"""Signals that end a program: the first politely, a second for certain.

Python runs a signal's handler in the main thread between two of its own instructions. A main thread
that is inside an environment's C code, or MLX's, comes to that late or never. So signals are also
written to a pipe (``signal.set_wakeup_fd``) that a thread of its own reads; whichever of the two is
there first takes them.

| signal | below ``gently`` (train.py) | else |
| --- | --- | --- |
| the first | the work is asked to stop | KeyboardInterrupt |
| the second | KeyboardInterrupt; ``GRACE`` seconds later rescue and exit | exit |

Below ``gently`` that holds for Ctrl-C, SIGTERM and SIGHUP (a closed terminal; not under nohup),
else for Ctrl-C. SIGHUP is never the second: shells send it again, and nobody is there to insist.
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

BRIEFLY = 0.1  # seconds that the handler waits for the watching thread
TOGETHER = 0.05  # seconds in which signals are one: ``timeout`` and others send theirs twice
AGAIN = 1.0  # seconds in which one is the same that the handler came too early for
PATIENCE = 0.5  # seconds until a main thread that hasn't answered is taken to be in C code
GRACE = 2.0  # seconds that the main thread has to end after a second signal
RESCUE = 20.0  # seconds that saving may take after that
SAYING = 5.0  # seconds to say what was saved, to whoever reads that
LOOKS = 0.5  # seconds between two looks at whether the parent is still there
ORPHANED = 30.0  # seconds that a command has to end after its parent
ENDS_WITH = "PUFFER_MLX_ENDS_WITH"  # the number of the process that a command ends with
ASKING = "stopping after this epoch; again to stop at once"

_CALM, _ASKED, _INTERRUPTED = range(3)


class Watch:
    """Takes signals; ``watched`` gives the process's.

    Attributes:
        number: of the signal that counted last; 0: none came.
    """

    def __init__(self) -> None:
        self.number = 0
        self.minded: list[int] = []  # signals that it handles; others come through the pipe, too
        self._state = _CALM
        self._ask: Callable[[], str | None] | None = None
        self._asking = ASKING
        self._rescue: Callable[[], str] | None = None
        self._together = 0.0  # until when further signals are the same one
        self._say_by: float | None = None  # when the thread says what the main thread hasn't
        self._deadline: float | None = None  # when the thread ends the process
        self._raise = self._late = self._closed = False
        self._lock = threading.RLock()  # the handler may interrupt itself
        self._reader = self._writer = -1
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)

    @property
    def status(self) -> int:
        """What a program ends with that a signal ended."""
        return 128 + (self.number or signal.SIGINT)

    @property
    def forced(self) -> bool:
        """Whether the process is to end soon, however that goes."""
        return self._deadline is not None

    def open(self) -> None:
        """Begin."""
        self._reader, self._writer = os.pipe()
        self._pipe = os.fstat(self._reader)
        for end in self._reader, self._writer:
            os.set_blocking(end, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        """Whether other code has closed its pipe, as what closes all descriptors does."""
        try:
            return not os.path.samestat(os.fstat(self._reader), self._pipe)
        except OSError:
            return True

    def close(self) -> None:
        """End the thread, and leave signals to others."""
        signal.set_wakeup_fd(self._before)
        self._closed = True
        if self.is_broken:  # The thread is never woken, and the numbers may be other files' now.
            return
        self._nudge()
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def gently(
        self, ask: Callable[[], str | None] | None, rescue: Callable[[], str] | None
    ) -> None:
        """See the module's ``gently``; None, None: no more."""
        with self._lock:
            self._ask, self._rescue = ask, rescue

    def came(self) -> bool:
        """Whether a signal has come, handled or not."""
        self._take()
        return self.number != 0

    def handle(self, *_: object) -> None:
        """The handler, in the main thread; maybe in the middle of a line that it prints.

        The watching thread may hold the lock and wait for that line's end, to print one of its own:
        so this doesn't wait for the lock for long; then that thread has the signal come again.
        """
        self._late = not self._take(BRIEFLY)
        self._nudge()
        if self._say_by:
            self._announce(lambda line: print(line, file=sys.stderr, flush=True))
        if self._raise:
            self._raise = False
            raise KeyboardInterrupt

    def _take(self, patience: float = -1.0) -> bool:
        if not self._lock.acquire(timeout=patience):
            return False
        try:
            for number in self._arrived():
                if number in self.minded:  # not a window's new size, say
                    self._count(number)
        finally:
            self._lock.release()
        return True

    def _arrived(self) -> bytes:
        try:
            return os.read(self._reader, 4096)
        except OSError:  # somebody else has taken them
            return b""

    def _count(self, number: int) -> None:
        now = time.monotonic()
        if now < self._together:
            return
        if self._state == _CALM and self._ask:
            self._state, self.number, self._say_by = _ASKED, number, now + PATIENCE
            self._asking = self._ask() or ASKING
        elif number == signal.SIGHUP:
            return
        elif self._state != _INTERRUPTED:
            self._state, self.number, self._raise = _INTERRUPTED, number, True
            self._deadline = now + GRACE if self._ask else None
        else:
            self._deadline = now
        self._together = now + TOGETHER

    def _announce(self, show: Callable[[str], object]) -> None:
        """Say that the work was asked to stop: from then on another signal is the second."""
        if not self._lock.acquire(timeout=BRIEFLY):
            return  # whoever has it looks again
        mine, self._say_by = self._say_by is not None, None
        self._lock.release()
        if mine:
            time.sleep(max(0.0, self._together - time.monotonic()))
            show(f"\n{self._asking}")

    def _nudge(self) -> None:
        """Have the thread look at what the main thread has taken."""
        with suppress(OSError):  # it is full, or closed
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
                    self._announce(_write)
                if self._deadline is not None and now >= self._deadline:
                    self._exit()

    def _exit(self) -> None:
        """End the process from this thread: the main one doesn't."""
        done = threading.Event()

        def save() -> None:
            rescue, line = self._rescue, ""
            try:
                line = rescue() if rescue else ""
            finally:
                done.set()
            print(line, end="\n" if line else "", flush=True)  # may wait for a reader without end

        helper = threading.Thread(target=save, daemon=True)
        helper.start()
        if done.wait(RESCUE):
            helper.join(SAYING)
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")  # show the cursor, which a dashboard hides
        _write("stopped")
        os._exit(self.status)


def _write(line: str) -> None:
    """A line on standard error, whatever the main thread holds."""
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())


def in_main_thread() -> bool:
    """Whether this thread is the one in which handlers of signals run."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def handled_by(handler: Any, *numbers: int) -> Iterator[None]:
    """Have a handler get signals during a block, instead of ``watched``.

    Outside the main thread this does nothing.
    """
    before = {each: signal.signal(each, handler) for each in numbers if in_main_thread()}
    watched_numbers = _active.minded if _active else []
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
    """Return the variables of a command that is to end when this process does, even by SIGKILL."""
    return {ENDS_WITH: str(os.getpid())}


def end_with_parent() -> None:
    """Have this command end when its parent does, if that started it with ``ends_with_this``."""
    if parent := os.environ.pop(ENDS_WITH, None):  # not for what this process starts
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: str) -> None:
    while str(os.getppid()) == parent:
        time.sleep(LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHANED)
    os.kill(os.getpid(), signal.SIGKILL)


class Interrupts:
    """Turns the first signal into a KeyboardInterrupt, which a block can hold back; counts others.

    Attributes:
        count: signals so far; those that come together are one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._is_held = self._is_due = False
        self._together = 0.0  # time until which further signals are the same one

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
    """Have ``Interrupts`` handle signals during a block, except those that are ignored."""
    interrupts = Interrupts()
    minded = [each for each in numbers if signal.getsignal(each) != signal.SIG_IGN]
    with handled_by(interrupts.signal, *minded):
        yield interrupts


_active: Watch | None = None


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch for Ctrl-C: the module's table. Below another ``watched``, and in another thread: that.

    The process is still ended for certain after this, if a second signal came below ``gently``.
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
def gently(ask: Callable[[], str | None], rescue: Callable[[], str]) -> Iterator[Watch]:
    """Let the first signal ask for an end, and the second one interrupt.

    Args:
        ask: called once, in any thread: the work is to end soon. It may return what is said of that
            instead of ``ASKING``.
        rescue: called in another thread after a second signal, if the main thread doesn't end: save
            what can be saved; returns a line that says so.
    """
    with watched() as watch:
        if not in_main_thread():
            yield watch
            return
        watch.gently(ask, rescue)
        try:
            with ExitStack() as stack:
                for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
                    # Of what a shell has its background jobs ignore, but not nohup's.
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
    watch.minded.append(number)
    try:
        yield
    finally:
        watch.minded.remove(number)
        if not watch.forced:
            signal.signal(number, signal.SIG_DFL if before is None else before)
