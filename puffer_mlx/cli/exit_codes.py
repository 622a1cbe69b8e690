"""The entry point of all commands: ``-q`` and ``-v``, exit codes, messages without a traceback."""

import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise

from puffer_mlx.errors import UserError
from puffer_mlx.system import output, program, signals, verbosity
from puffer_mlx.system.output import only_result
from puffer_mlx.system.private_folders import refuse_full_disk

WORDS = {
    "-q": verbosity.QUIET,
    "--quiet": verbosity.QUIET,
    "-v": verbosity.VERBOSE,
    "--verbose": verbosity.VERBOSE,
}
_ALLOCATING = r"malloc\]|[Oo]ut of memory"  # MLX and arrays
CLOSED = "files that this process had opened were closed by code that it ran"
CLOSED_HINT = "an environment must not close all descriptors (os.closerange, code for daemons)"
_COMPILING = "Failed to (compile|load)|Could not load|filesystem error"  # MLX and kernels


def reported(main: Callable[[list[str]], int | None]) -> Callable[[Sequence[str]], int]:
    """Make a script's ``main(argv)`` return its exit code instead of raising.

    ``-q`` and ``-v`` are removed from the words and set the verbosity.

    Exit codes: the result of ``main``, or 0; 2 after a UserError, which is printed as one message,
    or if standard output can't be written; 130 after Ctrl-C; 141 if the reader of standard output
    has closed it.
    """

    @functools.wraps(main)
    def run(argv: Sequence[str]) -> int:
        signals.end_with_parent()
        with signals.watch_signals() as watch:
            try:
                with output.guard_streams(), program.running_command():
                    return _run(main, argv, watch)
            except output.OutputLost as lost:
                if lost.unread:
                    return output.PIPE_STATUS
                print(f"error: can't write standard output: {lost.error.strerror}", file=sys.stderr)
                return 2

    return run


def _run(main: Callable[[list[str]], int | None], argv: Sequence[str], watch: signals.Watch) -> int:
    try:
        try:
            level, words = pop_verbosity(list(argv))
            if not program.asks_for_help(words):
                refuse_removed_directory()
            with (
                verbosity.set_for_block(level),
                only_result() if json_is_output(words) else nullcontext(),
            ):
                return main(words) or 0
        except UserError as error:
            return _refused(error)
        except MemoryError as error:
            return _refused(_out_of_memory(error))
        except OSError as error:
            if error.errno != errno.EBADF or not watch.is_broken:
                raise
            return _refused(UserError(CLOSED, CLOSED_HINT))
        except RuntimeError as error:
            if re.search(_ALLOCATING, str(error)):
                return _refused(_out_of_memory(error))
            if not re.search(_COMPILING, str(error)):
                raise
            if watch.has_signal():
                raise KeyboardInterrupt from None  # Ctrl-C also reaches the compiler
            try:
                refuse_full_disk()
            except UserError as refused:
                return _refused(refused)
            raise
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return watch.status


def _out_of_memory(error: Exception) -> UserError:
    """Return the error for a failed allocation that the memory estimate didn't predict."""
    return UserError(
        f"out of memory: {error}",
        "choose fewer --vec.total-agents, a shorter --train.horizon, a smaller"
        " --train.minibatch-size or --policy.hidden-size, or end other programs",
    )


def _refused(error: UserError) -> int:
    """Print an error once for all ranks of this machine. Returns the exit code."""
    from puffer_mlx.distributed.launching import is_first_report

    if is_first_report(str(error)):
        print(f"error: {error}", file=sys.stderr)
    return 2


def refuse_removed_directory() -> None:
    """Refuse to run in a working directory that was removed.

    Raises:
        UserError: It was removed.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the working directory was removed", "cd to one that exists") from None


def json_is_output(words: Sequence[str]) -> bool:
    """Return True if ``--json -`` reserves standard output for JSON."""
    return "--json=-" in words or ("--json", "-") in pairwise(words)


def pop_verbosity(argv: list[str]) -> tuple[int, list[str]]:
    """Remove -q and -v from words. Returns the verbosity and the other words.

    Raises:
        UserError: Both are given.
    """
    levels = {WORDS[word] for word in argv if word in WORDS}
    if len(levels) > 1:
        raise UserError("--quiet and --verbose are given", "one of them")
    return levels.pop() if levels else verbosity.NORMAL, [
        word for word in argv if word not in WORDS
    ]
