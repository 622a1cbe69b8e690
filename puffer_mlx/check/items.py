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
ORDER = (OK, SKIP, WARN, FAIL)  # from harmless to serious
NOT_LOOKED_AT = "not looked at"
EXIT = "end"  # name of the result that reports how the worker process ended
EXIT_TIMEOUT = 20.0  # seconds


class Finding(NamedTuple):
    """Result of a check.

    Args:
        verdict: OK; WARN for a possible mistake; FAIL for an error; SKIP if the check doesn't
            apply or couldn't run.
        text: Reason for the verdict.
        hint: Advice.
        details: Traceback of an unexpected exception.
    """

    verdict: str
    text: str
    hint: str = ""
    details: str = ""


Findings: TypeAlias = list[Finding]


class Item(NamedTuple):
    """A check.

    Args:
        name: Name without spaces.
        check: Returns findings, or the text of an OK.
        title: Property that holds if the item passes.
        needs: Names of items that must pass first.
    """

    name: str
    check: Callable[..., Findings | str]
    title: str = ""
    needs: tuple[str, ...] = ()


class Result(NamedTuple):
    """Findings of an item, its duration in seconds, and why its process ended, "" if it runs."""

    name: str
    findings: Findings
    seconds: float
    death: str = ""


class Skipped(Exception):
    """Raised if an item doesn't apply to this machine or run. The text is the reason."""


class Failed(Exception):
    """Raised if an item fails. The text contains the result and the expected value."""


def ok(text: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(OK, text)


def warn(text: str, hint: str) -> Finding:
    """Return a finding about a possible mistake."""
    return Finding(WARN, text, hint)


def fail(text: str, hint: str = "", details: str = "") -> Finding:
    """Return a finding about an error."""
    return Finding(FAIL, text, hint, details)


def skip(text: str) -> Finding:
    """Return a finding about a check that wasn't made."""
    return Finding(SKIP, text)


def worst(findings: Findings) -> str:
    """Return the worst verdict of findings, OK without findings."""
    return max((finding.verdict for finding in findings), key=ORDER.index, default=OK)


def number(value: float) -> str:
    """Format a number with up to four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """Format a fraction as a percentage: 12 %, 0.003 %."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def numbers(indices: list[int], most: int = 6) -> str:
    """Format indices of an observation: observation[3]; observation[0-3, 7] and 12 more."""
    runs = [
        [index for _, index in run]  # consecutive indices
        for _, run in groupby(enumerate(indices), lambda pair: pair[1] - pair[0])
    ]
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:most]]
    left = sum(map(len, runs[most:]))
    more = f" and {left} more" if left else ""
    return f"observation[{', '.join(shown)}]{more}"


def run_item(item: Item, broken: set[str], *arguments: Any) -> Findings:
    """Run an item, turning exceptions into findings.

    Args:
        item: Item to run.
        broken: Names of failed items, extended by this one if it fails.
        arguments: Arguments of the check.
    """
    if missing := [name for name in item.needs if name in broken]:
        return [skip(f"{NOT_LOOKED_AT}: {missing[0]} failed")]
    try:
        found = item.check(*arguments)
        findings = [ok(found)] if isinstance(found, str) else found
    except Skipped as reason:
        findings = [skip(str(reason))]
    except Failed as reason:
        findings = [fail(str(reason))]
    except UserError as error:
        findings = [fail(error.message, error.hint, traceback.format_exc())]
    except Exception as error:
        details = traceback.format_exc()
        where = "; ".join(line.strip() for line in details.splitlines()[-3:-1])
        findings = [fail(f"{type(error).__name__}: {error}", where, details)]
    if worst(findings) == FAIL:
        broken.add(item.name)
    return findings


def select_items(items: Sequence[Item], names: list[str] | None) -> list[Item]:
    """Return the named items in their original order, or all items without names.

    Raises:
        UserError: If a name is unknown.
    """
    if not names:
        return list(items)
    known = [item.name for item in items]
    if wrong := [name for name in names if name not in known]:
        raise UserError(f"there is no item {wrong[0]!r}", f"there are {', '.join(known)}")
    return [item for item in items if item.name in names]


def serve_items(items: Sequence[Item], broken: set[str], timeout: float, *arguments: Any) -> None:
    """Run items and write the findings of each as a line of JSON to standard output.

    This runs in the process that ``run_in_worker`` starts. Output of the items goes to standard
    error, and the traceback of an item shortly before its timeout.
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as lines:
        os.dup2(2, 1)
        for item in items:
            faulthandler.dump_traceback_later(0.9 * timeout)
            lines.write(json.dumps(run_item(item, broken, *arguments)) + "\n")
        faulthandler.cancel_dump_traceback_later()


def run_in_worker(
    names: Sequence[str], command: Callable[[list[str]], list[str]], timeout: float
) -> Iterator[Result]:
    """Yield the result of each item, starting a new process after a crash or timeout.

    If the last process fails after its items, one more result, named ``EXIT``, has the reason.

    Args:
        names: Names of the items.
        command: Maps the remaining names to a command line that calls ``serve_items`` with them.
        timeout: Longest time for an item, in seconds. Slower items are stopped.
    """
    left = list(names)
    while left:
        variables = {**os.environ, **parent_variables()}
        words = command(left)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=variables) as process:
            lines: queue.SimpleQueue[str] = queue.SimpleQueue()
            threading.Thread(target=_read_lines, args=(process, lines), daemon=True).start()
            try:
                death = ""
                while left and not death:
                    began = time.perf_counter()
                    findings, death = _next_findings(process, lines, timeout)
                    yield Result(left.pop(0), findings, time.perf_counter() - began, death)
                if not death and (death := _exit_fault(process)):
                    yield Result(EXIT, [fail(death)], 0.0, death)
            finally:
                process.kill()  # no effect after the process has ended


def _read_lines(process: "subprocess.Popen[str]", lines: "queue.SimpleQueue[str]") -> None:
    """Queue the lines of the process and then an empty one. Runs in a thread."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def _next_findings(
    process: "subprocess.Popen[str]", lines: "queue.SimpleQueue[str]", timeout: float
) -> tuple[Findings, str]:
    """Return an item's findings and an empty string, or the reason why the process ended."""
    try:
        line = lines.get(timeout=timeout)
    except queue.Empty:
        death = f"no answer after {timeout:g} seconds; ended"
        return [fail(death)], death
    if line:
        return [Finding(*finding) for finding in json.loads(line)], ""
    death = _exit_cause(process.wait())
    return [fail(death)], death


def _exit_fault(process: "subprocess.Popen[str]") -> str:
    """Wait for a process to exit. Returns the reason for a failed exit, or an empty string."""
    try:
        code = process.wait(EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"the process was still there after {EXIT_TIMEOUT:g} seconds"
    return _exit_cause(code) if code else ""


def _exit_cause(code: int) -> str:
    if code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    return f"the process ended itself, with exit code {code}"
