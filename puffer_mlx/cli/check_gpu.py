"""The command ``check-gpu``: check that a machine's GPU computes correctly.

Checks that need a real machine: kernels against plain MLX, short runs on the GPU against the CPU, a
resumed run, learning, and speed. Each check prints a verdict (PASS, FAIL or SKIP) with the measured
value or the reason. The exit code is 1 if any check fails. --report writes everything to a text
file to attach to an issue, and updates it after each check.

With a GPU it takes some minutes, longest at the first start, which compiles kernels. --quick takes
less.
Checks run in a separate process. If that process dies (a GPU error may end it) or hangs, the
check is a FAIL, and the remaining checks still run.
"""

import argparse
import faulthandler
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from puffer_mlx.check.gpu.items import ITEMS
from puffer_mlx.check.items import (
    EXIT,
    FAIL,
    OK,
    SKIP,
    Item,
    Result,
    ok,
    run_in_worker,
    select_items,
    serve_items,
)
from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.options import add_option_table
from puffer_mlx.config.command_line import Parser
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import publish
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text

RESULT_STYLES = {OK: "green", FAIL: "bold red", SKIP: "yellow"}
VERDICT_NAMES = {OK: "PASS", FAIL: "FAIL", SKIP: "SKIP"}  # verdict -> text in the output
WORKER_SWITCH = "--worker"  # option of the process that runs the checks


OPTIONS = """
--quick  run shorter checks, and none that takes a minute
--only ITEM...  run only these checks
--list  list the checks and exit
--timeout SECONDS  longest time for one check; after that it is stopped (default 300)
--json FILE  write the record to a file; - is stdout
--report FILE  write a text file to attach to an issue
"""


def option_parser() -> Parser:
    parser = Parser(description=(__doc__ or "").partition("\n\n")[2])
    add_common_options(parser, "check-gpu")
    group = add_option_table(parser, "this check", OPTIONS)
    devices = ("auto", "cpu", "gpu")
    group.add_argument("--device", choices=devices, default="auto", help="device to check")
    parser.add_argument(WORKER_SWITCH, action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(timeout=300.0)
    return parser


def run_items(
    items: list[Item], options: argparse.Namespace, worker: tuple[str, ...]
) -> Iterator[Result]:
    """Run checks of the GPU in a worker process, and yield the result of each one.

    The last result, named ``EXIT``, is about the end of the worker process.

    Args:
        items: Checks to run.
        options: Parsed options of ``check-gpu``.
        worker: Arguments of ``python`` that start the worker process, before its options.
    """
    words = [*worker, "--device", options.device, "--timeout", str(options.timeout)]
    words += ["--quick"] if options.quick else []

    def command(remaining: list[str]) -> list[str]:
        return program.python_command(*words, WORKER_SWITCH, "--only", *remaining)

    exit_reason = ""
    for result in run_in_worker([item.name for item in items], command, options.timeout):
        exit_reason = result.exit_reason
        yield result
    if not exit_reason:  # otherwise the last result is about the exit, or a crash
        yield Result(EXIT, [ok("exit code 0")], 0.0)


# ---- output --------------------------------------------------------------------------------------


def result_lines(result: Result, titles: dict[str, str]) -> list[Text]:
    """Return the lines to print about one GPU check: verdict and title, then text and hint."""
    (finding,) = result.findings  # a check of the GPU has exactly one
    line = Text.assemble(
        (f"{VERDICT_NAMES[finding.verdict]}  ", RESULT_STYLES[finding.verdict]),
        (titles[result.name], "bold"),
        (f"  {result.name}, {result.seconds:.1f} s", "dim"),
    )
    text = f"{finding.text}\n{finding.hint}".rstrip()
    return [line, *(Text(f"      {row}") for row in text.splitlines())]


def result_counts(results: list[Result], seconds: float) -> Text:
    """Return a line that counts the passed, failed and skipped checks, with the total duration."""
    verdicts = [result.findings[0].verdict for result in results]
    texts: list[Text] = []
    for verdict, word in {OK: "passed", FAIL: "failed", SKIP: "skipped"}.items():
        count = verdicts.count(verdict)
        texts.append(Text(f"{count} {word}", RESULT_STYLES[verdict] if count else "dim"))
    return Text(", ").join([*texts, Text(f"in {seconds:.0f} s")])


def results_record(results: list[Result], seconds: float) -> dict[str, Any]:
    """Return the results of the GPU checks, with command, versions and duration, for JSON."""
    rows: dict[str, dict[str, Any]] = {}
    for result in results:
        (finding,) = result.findings
        verdict = VERDICT_NAMES[finding.verdict]
        rows[result.name] = {**finding._asdict(), "verdict": verdict, "seconds": result.seconds}
    versions = version_text().splitlines()
    command = shlex.split(program.full_command_line())
    return {"command": command, "versions": versions, "seconds": seconds, "items": rows}


def report_file_text(results: list[Result], seconds: float, titles: dict[str, str]) -> str:
    """Return the results of all GPU checks as the text of the report file (``--report``)."""
    lines = [f"{program.full_command_line()}\n{version_text()}\n"]
    for result in results:
        lines += [line.plain for line in result_lines(result, titles)]
        lines += [result.findings[0].details] if result.findings[0].details else []
    done = sum(result.name != EXIT for result in results)
    items = len(titles) - 1  # without EXIT
    so_far = "" if done == items else f"incomplete: {done} of {items} checks, "
    return "\n".join([*lines, "", so_far + result_counts(results, seconds).plain, ""])


def write_results(
    options: argparse.Namespace, results: list[Result], seconds: float, titles: dict[str, str]
) -> None:
    """Write the results of the GPU checks so far to the ``--json`` and ``--report`` files."""
    if options.json:
        write_json(results_record(results, seconds), options.json)
    if options.report:
        with publish(options.report, user_named=True) as path:
            path.write_text(report_file_text(results, seconds, titles), encoding="utf-8")


def check_machine(argv: list[str], available: Sequence[Item], *worker: str) -> int:
    """Run selected checks of this machine, print and write their results. Returns the exit code.

    Args:
        argv: Command line.
        available: Checks to choose from.
        worker: Arguments of ``python`` that start this command as a worker process, such as
            ``-m MODULE``.
    """
    options = option_parser().parse(argv)
    items = select_items(available, options.only)
    titles = {item.name: item.title for item in items}
    if options.list:
        for name, title in titles.items():
            print(f"{name:18} {title}")
        return 0
    select_device(options.device)
    if options.worker:
        faulthandler.enable()  # prints the stack if a signal ends the process
        serve_items(items, set(), options.timeout, options.quick)
        return 0
    titles[EXIT] = "the worker process ends cleanly"
    console = Console(highlight=False)
    began, seconds = time.perf_counter(), 0.0
    done: list[Result] = []
    write_results(options, done, seconds, titles)  # fail now if they can't be written
    for result in run_items(items, options, worker):
        (finding,) = result.findings
        if finding.verdict == FAIL or not verbosity.is_quiet():
            console.print(*result_lines(result, titles), sep="\n", soft_wrap=True)
        if finding.details:
            print(finding.details, file=sys.stderr)
        done.append(result)
        seconds = time.perf_counter() - began
        write_results(options, done, seconds, titles)
    console.print(result_counts(done, seconds))  # also the last line of --report
    return 1 if any(result.findings[0].verdict == FAIL for result in done) else 0


@with_exit_code
def main(argv: list[str]) -> int:
    return check_machine(argv, ITEMS, "-m", __spec__.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
