"""Run a command: handle ``-q`` and ``-v``, print errors without traceback, return an exit code."""

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
from puffer_mlx.system.output import print_only_result
from puffer_mlx.system.private_folders import refuse_full_disk

VERBOSITY_OPTIONS = {
    "-q": verbosity.QUIET,
    "--quiet": verbosity.QUIET,
    "-v": verbosity.VERBOSE,
    "--verbose": verbosity.VERBOSE,
}
_MEMORY_ERROR = r"malloc\]|[Oo]ut of memory"  # in errors of MLX and of NumPy
CLOSED_FILES = "code in this process closed open files"
CLOSED_FILES_HINT = (
    "an environment must not close all file descriptors (os.closerange, code for daemons)"
)
_COMPILER_ERROR = "Failed to (compile|load)|Could not load|filesystem error"  # in errors of MLX


def with_exit_code(main: Callable[[list[str]], int | None]) -> Callable[[Sequence[str]], int]:
    """Decorate a command's ``main(argv)`` to print errors and return an exit code.

    ``-q`` and ``-v`` are removed from the command line and set the verbosity.

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
                    return _run_main(main, argv, watch)
            except output.OutputLost as lost:
                if lost.is_pipe_closed:
                    return output.PIPE_STATUS
                print(f"error: can't write standard output: {lost.error.strerror}", file=sys.stderr)
                return 2

    return run


def _run_main(
    main: Callable[[list[str]], int | None], argv: Sequence[str], watch: signals.Watch
) -> int:
    try:
        try:
            level, words = pop_verbosity(list(argv))
            if not program.asks_for_help(words):
                refuse_removed_directory()
            with (
                verbosity.set_for_block(level),
                print_only_result() if json_is_output(words) else nullcontext(),
            ):
                return main(words) or 0
        except UserError as error:
            return _print_error(error)
        except MemoryError as error:
            return _print_error(_out_of_memory(error))
        except OSError as error:
            if error.errno != errno.EBADF or not watch.is_broken:
                raise
            return _print_error(UserError(CLOSED_FILES, CLOSED_FILES_HINT))
        except RuntimeError as error:
            if re.search(_MEMORY_ERROR, str(error)):
                return _print_error(_out_of_memory(error))
            if not re.search(_COMPILER_ERROR, str(error)):
                raise
            if watch.has_signal():
                raise KeyboardInterrupt from None  # Ctrl-C also reaches the compiler
            try:
                refuse_full_disk()
            except UserError as full_error:
                return _print_error(full_error)
            raise
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return watch.status


def _out_of_memory(error: Exception) -> UserError:
    """Return a UserError, with advice, for an exception about a failed allocation of memory."""
    return UserError(
        f"out of memory: {error}",
        "choose fewer --vec.total-agents, a shorter --train.horizon, a smaller"
        " --train.minibatch-size or --policy.hidden-size, or end other programs",
    )


def _print_error(error: UserError) -> int:
    """Print an error message, only once for all processes of a run on this machine.

    Returns the exit code.
    """
    from puffer_mlx.distributed.launching import is_first_report

    if is_first_report(str(error)):
        print(f"error: {error}", file=sys.stderr)
    return 2


def refuse_removed_directory() -> None:
    """Raise a UserError if the current working directory doesn't exist any more."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError(
            "the working directory was removed", "change to an existing directory"
        ) from None


def json_is_output(words: Sequence[str]) -> bool:
    """Return True if a command line has ``--json -``, so that only JSON goes to standard output."""
    return "--json=-" in words or ("--json", "-") in pairwise(words)


def pop_verbosity(argv: list[str]) -> tuple[int, list[str]]:
    """Remove -q and -v from a command line. Returns the amount of output and the remaining words.

    Raises:
        UserError: If both are set.
    """
    levels = {VERBOSITY_OPTIONS[word] for word in argv if word in VERBOSITY_OPTIONS}
    if len(levels) > 1:
        raise UserError("--quiet and --verbose exclude each other", "use one of them")
    return levels.pop() if levels else verbosity.NORMAL, [
        word for word in argv if word not in VERBOSITY_OPTIONS
    ]
