"""Run checks in a worker process and report what they find, including a crash or a hang."""

import faulthandler
import json
import os
import queue
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from puffer_mlx.errors import UserError
from puffer_mlx.system.signals import parent_variables

OK, WARN, FAIL, SKIP = "ok", "WARN", "FAIL", "-"
SEVERITY_ORDER = (OK, SKIP, WARN, FAIL)  # from harmless to serious
NOT_CHECKED = "not checked"
EXIT = "end"  # name of the result that reports how the worker process ended
EXIT_TIMEOUT = 20.0  # seconds to wait for a worker process after its last item


class Finding(NamedTuple):
    """One result of a check: a verdict, the reason for it, and advice.

    Args:
        verdict: OK; WARN for a possible mistake; FAIL for an error; SKIP if the check doesn't
            apply or couldn't run.
        text: Reason for the verdict.
        hint: Advice for the user.
        details: Traceback of an unexpected exception.
    """

    verdict: str
    text: str
    hint: str = ""
    details: str = ""


Findings: TypeAlias = list[Finding]


class Item(NamedTuple):
    """A check with a name, a title and the names of checks that must pass before it runs.

    Args:
        name: Name without spaces.
        check: Function that returns findings, or a text if the check passes.
        title: Property that holds if the check passes.
        needs: Names of items that must pass first.
    """

    name: str
    check: Callable[..., Findings | str]
    title: str = ""
    needs: tuple[str, ...] = ()


class Result(NamedTuple):
    """Findings of one check that a worker process ran, with its duration.

    Args:
        name: Name of the item.
        findings: Findings of the item.
        seconds: Duration of the item.
        exit_reason: Why the worker process ended. Empty while it runs.
    """

    name: str
    findings: Findings
    seconds: float
    exit_reason: str = ""


class Skipped(Exception):
    """Exception that skips a check which doesn't apply to this machine or run.

    Its text is the reason.
    """


class Failed(Exception):
    """Exception that makes a check fail. Its text contains the result and the expected value."""


def ok(text: str) -> Finding:
    """Return a finding, the result of a check, with the verdict OK."""
    return Finding(OK, text)


def warn(text: str, hint: str) -> Finding:
    """Return a finding of a check with the verdict WARN: a possible mistake, and advice."""
    return Finding(WARN, text, hint)


def fail(text: str, hint: str = "", details: str = "") -> Finding:
    """Return a finding of a check with the verdict FAIL: an error, and advice or a traceback."""
    return Finding(FAIL, text, hint, details)


def skip(text: str) -> Finding:
    """Return a finding with the verdict SKIP, and the reason why the check wasn't made."""
    return Finding(SKIP, text)


def worst_verdict(findings: Findings) -> str:
    """Return the most serious verdict among a check's findings, or OK for an empty list."""
    return max((finding.verdict for finding in findings), key=SEVERITY_ORDER.index, default=OK)


def format_number(value: float) -> str:
    """Format a number with up to four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_percent(fraction: float) -> str:
    """Format a fraction as a percentage: 0.12 -> 12 %."""
    return f"{100 * fraction:.2g} %" if fraction < 0.1 else f"{100 * fraction:.0f} %"


def format_indices(indices: list[int], max_ranges: int = 6) -> str:
    """Format indices of observation elements: [0, 1, 2, 3, 7] -> observation[0-3, 7].

    Args:
        indices: Increasing indices.
        max_ranges: Number of ranges to write out; further indices are only counted.
    """
    runs = [
        [index for _, index in run]  # consecutive indices
        for _, run in groupby(enumerate(indices), lambda pair: pair[1] - pair[0])
    ]
    ranges = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:max_ranges]]
    omitted = sum(map(len, runs[max_ranges:]))
    more = f" and {omitted} more" if omitted else ""
    return f"observation[{', '.join(ranges)}]{more}"


def run_item(item: Item, failed: set[str], *arguments: Any) -> Findings:
    """Run one check. Returns its findings; an exception becomes a finding.

    Args:
        item: Check to run.
        failed: Names of failed items. The item's name is added if it fails.
        arguments: Arguments of the check function.
    """
    if missing := [name for name in item.needs if name in failed]:
        return [skip(f"{NOT_CHECKED}: {missing[0]} failed")]
    try:
        result = item.check(*arguments)
        findings = [ok(result)] if isinstance(result, str) else result
    except Skipped as reason:
        findings = [skip(str(reason))]
    except Failed as reason:
        findings = [fail(str(reason))]
    except UserError as error:
        findings = [fail(error.message, error.hint, traceback.format_exc())]
    except Exception as error:
        details = traceback.format_exc()
        raising_lines = details.splitlines()[-3:-1]  # file and code line that raised the error
        location = "; ".join(line.strip() for line in raising_lines)
        findings = [fail(f"{type(error).__name__}: {error}", location, details)]
    if worst_verdict(findings) == FAIL:
        failed.add(item.name)
    return findings


def select_items(items: Sequence[Item], names: list[str] | None) -> list[Item]:
    """Return the checks with the given names, in their original order; all if ``names`` is empty.

    Raises:
        UserError: If no item has one of the names.
    """
    if not names:
        return list(items)
    existing = [item.name for item in items]
    if unknown := [name for name in names if name not in existing]:
        raise UserError(f"there is no item {unknown[0]!r}", f"items: {', '.join(existing)}")
    return [item for item in items if item.name in names]


def serve_items(items: Sequence[Item], failed: set[str], timeout: float, *arguments: Any) -> None:
    """Run checks in a worker process and write each one's findings as a line of JSON to stdout.

    This runs in the process that ``run_in_worker`` starts. Everything that the checks print goes to
    standard error. If a check nearly exceeds its timeout, its traceback is printed there, too.
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as lines:
        os.dup2(2, 1)
        for item in items:
            faulthandler.dump_traceback_later(0.9 * timeout)
            lines.write(json.dumps(run_item(item, failed, *arguments)) + "\n")
        faulthandler.cancel_dump_traceback_later()


def run_in_worker(
    names: Sequence[str], command: Callable[[list[str]], list[str]], timeout: float
) -> Iterator[Result]:
    """Run checks in a worker process and yield the result of each.

    A check that crashes or exceeds the timeout fails, and a new process runs the remaining ones.
    If the last process fails after its checks, a result named ``EXIT`` with the reason follows.

    Args:
        names: Names of the items.
        command: Maps the remaining names to a command line that calls ``serve_items`` with them.
        timeout: Longest time for an item, in seconds. Slower items are stopped.
    """
    remaining = list(names)
    while remaining:
        variables = {**os.environ, **parent_variables()}
        arguments = command(remaining)
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, text=True, env=variables
        ) as process:
            lines: queue.SimpleQueue[str] = queue.SimpleQueue()
            threading.Thread(target=_read_lines, args=(process, lines), daemon=True).start()
            try:
                exit_reason = ""
                while remaining and not exit_reason:
                    began = time.perf_counter()
                    findings, exit_reason = _next_findings(process, lines, timeout)
                    yield Result(
                        remaining.pop(0), findings, time.perf_counter() - began, exit_reason
                    )
                if not exit_reason and (exit_reason := _wait_for_exit(process)):
                    yield Result(EXIT, [fail(exit_reason)], 0.0, exit_reason)
            finally:
                process.kill()  # no effect after the process has ended


def _read_lines(process: "subprocess.Popen[str]", lines: "queue.SimpleQueue[str]") -> None:
    """Put each output line of a process into a queue, and an empty line at the end.

    This function runs in a thread.
    """
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def _next_findings(
    process: "subprocess.Popen[str]", lines: "queue.SimpleQueue[str]", timeout: float
) -> tuple[Findings, str]:
    """Wait until a worker process reports a check's findings, ends, or exceeds the timeout.

    Returns:
        The findings of an item, and the reason why the process ended: empty if it still runs.
    """
    try:
        line = lines.get(timeout=timeout)
    except queue.Empty:
        exit_reason = f"no answer after {timeout:g} seconds; stopped"
        return [fail(exit_reason)], exit_reason
    if line:
        return [Finding(*finding) for finding in json.loads(line)], ""
    exit_reason = _describe_exit(process.wait())
    return [fail(exit_reason)], exit_reason


def _wait_for_exit(process: "subprocess.Popen[str]") -> str:
    """Wait for a worker process to exit. Returns the reason if it failed, else ""."""
    try:
        code = process.wait(EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"the process did not exit within {EXIT_TIMEOUT:g} seconds"
    return _describe_exit(code) if code else ""


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    return f"the process exited with code {code}"
