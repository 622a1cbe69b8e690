"""Check a machine: puffer-mlx check-gpu [--quick] [--report FILE] [--help].

Runs what only a machine itself can tell: kernels against plain MLX, short runs on the GPU against
the CPU, a resumed run, learning, speed. A verdict for each item with the number behind it: PASS,
FAIL, or SKIP and why. The exit code is 1 if any item fails. --report writes all of it to a text
file that you can attach to an issue; it is written anew after each item.

Some minutes with a GPU, whose kernels are compiled at the first start; fewer with --quick.
Items run in a separate process: one that dies (a GPU's error may end a process) or doesn't
answer is a FAIL, and the items after it still run.
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
from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import add_table
from puffer_mlx.config.command_line import Parser
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import publish
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text

STYLE = {OK: "green", FAIL: "bold red", SKIP: "yellow"}
WORDS = {OK: "PASS", FAIL: "FAIL", SKIP: "SKIP"}  # of verdicts, in the output
WORKER = "--worker"  # option that starts the process which runs the items


OPTIONS = """
--quick  less of everything, and no item that takes a minute
--only ITEM...  these items
--list  show the items, and exit
--timeout SECONDS  an item that takes longer is ended (default 300)
--json FILE  write the record to a file; - is stdout
--report FILE  write a text file to attach to an issue
"""


def option_parser() -> Parser:
    parser = Parser(description=(__doc__ or "").partition("\n\n")[2])
    introduce(parser, "check-gpu")
    group = add_table(parser, "this check", OPTIONS)
    devices = ("auto", "cpu", "gpu")
    group.add_argument("--device", choices=devices, default="auto", help="where to train")
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(timeout=300.0)
    return parser


def run_items(
    items: list[Item], options: argparse.Namespace, program_words: tuple[str, ...]
) -> Iterator[Result]:
    """Yield the result of each item, then how the last item's process ended."""
    words = [*program_words, "--device", options.device, "--timeout", str(options.timeout)]
    words += ["--quick"] if options.quick else []

    def command(left: list[str]) -> list[str]:
        return program.python_command(*words, WORKER, "--only", *left)

    death = ""
    for result in run_in_worker([item.name for item in items], command, options.timeout):
        death = result.exit_reason
        yield result
    if not death:
        yield Result(EXIT, [ok("exit code 0")], 0.0)


# ---- output --------------------------------------------------------------------------------------


def result_lines(result: Result, titles: dict[str, str]) -> list[Text]:
    """Return the lines that show a result: verdict and title, then text and hint, indented."""
    (finding,) = result.findings
    line = Text.assemble(
        (f"{WORDS[finding.verdict]}  ", STYLE[finding.verdict]),
        (titles[result.name], "bold"),
        (f"  {result.name}, {result.seconds:.1f} s", "dim"),
    )
    text = f"{finding.text}\n{finding.hint}".rstrip()
    return [line, *(Text(f"      {part}") for part in text.splitlines())]


def summary(results: list[Result], seconds: float) -> Text:
    verdicts = [result.findings[0].verdict for result in results]
    words = {OK: "passed", FAIL: "failed", SKIP: "skipped"}
    counts = [(f"{verdicts.count(v)} {word}", v, verdicts.count(v)) for v, word in words.items()]
    parts = [(text, STYLE[verdict] if count else "dim") for text, verdict, count in counts]
    return Text(", ").join([*(Text(*part) for part in parts), Text(f"in {seconds:.0f} s")])


def record(results: list[Result], seconds: float) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {}
    for name, (finding,), seconds_each, _ in results:
        verdict = WORDS[finding.verdict]
        rows[name] = {**finding._asdict(), "verdict": verdict, "seconds": seconds_each}
    versions = version_text().splitlines()
    command = shlex.split(program.full_command_line())
    return {"command": command, "versions": versions, "seconds": seconds, "items": rows}


def report_text(results: list[Result], seconds: float, titles: dict[str, str]) -> str:
    parts = [f"{program.full_command_line()}\n{version_text()}\n"]
    for result in results:
        parts += [line.plain for line in result_lines(result, titles)]
        parts += [result.findings[0].details] if result.findings[0].details else []
    done = sum(result.name != EXIT for result in results)
    items = len(titles) - 1  # EXIT is none
    so_far = "" if done == items else f"not all: {done} of {items} items, "
    return "\n".join([*parts, "", so_far + summary(results, seconds).plain, ""])


def write(
    options: argparse.Namespace, results: list[Result], seconds: float, titles: dict[str, str]
) -> None:
    """Write the requested files with the results so far."""
    if options.json:
        write_json(record(results, seconds), options.json)
    if options.report:
        with publish(options.report, user_named=True) as path:
            path.write_text(report_text(results, seconds, titles), encoding="utf-8")


def check(argv: list[str], every: Sequence[Item], *program_words: str) -> int:
    """Run items, print and write their results. Returns the exit code.

    Args:
        argv: Words of the command line.
        every: Items to choose from.
        program_words: Words after ``python`` that start the calling program as a worker process.
    """
    options = option_parser().parse(argv)
    items = select_items(every, options.only)
    titles = {item.name: item.title for item in items}
    if options.list:
        for name, title in titles.items():
            print(f"{name:18} {title}")
        return 0
    select_device(options.device)
    if options.worker:
        faulthandler.enable()  # shows where a signal ended the process
        serve_items(items, set(), options.timeout, options.quick)
        return 0
    titles[EXIT] = "their process ends cleanly"
    console = Console(highlight=False)
    began, seconds = time.perf_counter(), 0.0
    done: list[Result] = []
    write(options, done, seconds, titles)  # an error now, not after the minutes of checking
    for result in run_items(items, options, program_words):
        (finding,) = result.findings
        if finding.verdict == FAIL or not verbosity.is_quiet():
            console.print(*result_lines(result, titles), sep="\n", soft_wrap=True)
        if finding.details:
            print(finding.details, file=sys.stderr)
        done.append(result)
        seconds = time.perf_counter() - began
        write(options, done, seconds, titles)
    console.print(summary(done, seconds))  # the report's last line
    return 1 if any(result.findings[0].verdict == FAIL for result in done) else 0


@reported
def main(argv: list[str]) -> int:
    return check(argv, ITEMS, "-m", __spec__.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
