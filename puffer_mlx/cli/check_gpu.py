"""Check a machine: puffer-mlx check-gpu [--quick] [--report FILE] [--help].

Runs what only a machine itself can tell: kernels against plain MLX, short runs on the GPU against
the CPU, a resumed run, learning, speed. A verdict for each item with the number behind it: PASS,
FAIL, or SKIP and why. The exit code is 1 if any item fails. --report writes all of it to a text
file that you can attach to an issue; it is written anew after each item.

Some minutes with a GPU, whose kernels are compiled at the first start; fewer with --quick.
Items run in a process of their own: one that dies (a GPU's error may end a process) or doesn't
answer is a FAIL, and those after it run all the same.
"""

import argparse
import faulthandler
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from puffer_mlx.check.gpu.items import FAIL, ITEMS, PASS, SKIP, Item, Verdict, judge
from puffer_mlx.check.item_processes import END, answer_each, answers, known
from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import add_table
from puffer_mlx.config.command_line import Parser
from puffer_mlx.system import program, voice
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import publish
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text

STYLE = {PASS: "green", FAIL: "bold red", SKIP: "yellow"}
WORKER = "--worker"  # option that starts the process which runs the items


def unchecked(_: bool) -> str:
    raise AssertionError("judged from outside")


ENDS = Item(END, "their process ends cleanly", unchecked)


class Result(NamedTuple):
    """An item's verdict and duration in seconds."""

    item: Item
    verdict: Verdict
    seconds: float


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


# ---- the process that runs items -----------------------------------------------------------------


def work(items: list[Item], options: argparse.Namespace) -> None:
    """Run items and print one line of JSON per result to standard output."""

    def judged(item: Item) -> Verdict:
        faulthandler.dump_traceback_later(0.9 * options.timeout)  # shows where it hangs
        return judge(item, options.quick)

    faulthandler.enable()  # shows where a signal ended the process
    select_device(options.device)
    answer_each(items, judged)


def results(
    items: list[Item], options: argparse.Namespace, program_words: tuple[str, ...]
) -> Iterator[Result]:
    """Yield the result of each item, then how the last item's process ended."""
    words = [*program_words, "--device", options.device, "--timeout", str(options.timeout)]
    words += ["--quick"] if options.quick else []

    def command(left: list[str], _: list[str]) -> list[str]:
        return program.python(*words, WORKER, "--only", *left)

    table = {item.name: item for item in [*items, ENDS]}
    last = None
    for last in answers([item.name for item in items], command, options.timeout):
        verdict = Verdict(FAIL, last.death) if last.death else Verdict(*last.value)
        yield Result(table[last.name], verdict, last.seconds)
    if last and not last.death:
        yield Result(ENDS, Verdict(PASS, "exit code 0"), 0.0)


# ---- what is shown -------------------------------------------------------------------------------


def lines(result: Result) -> list[Text]:
    item, verdict, seconds = result
    line = Text.assemble(
        (f"{verdict.verdict}  ", STYLE[verdict.verdict]),
        (item.title, "bold"),
        (f"  {item.name}, {seconds:.1f} s", "dim"),
    )
    return [line, *(Text(f"      {part}") for part in verdict.text.splitlines())]


def show(console: Console, result: Result) -> None:
    if voice.is_quiet() and result.verdict.verdict != FAIL:
        return
    for line in lines(result):
        console.print(line, soft_wrap=True)
    if result.verdict.details:
        print(result.verdict.details, file=sys.stderr)


def summary(results: list[Result], seconds: float) -> Text:
    counts = {name: sum(r.verdict.verdict == name for r in results) for name in STYLE}
    words = {PASS: "passed", FAIL: "failed", SKIP: "skipped"}
    text = Text()
    for name, count in counts.items():
        text.append(f"{count} {words[name]}", STYLE[name] if count else "dim")
        text.append(", " if name != SKIP else f", in {seconds:.0f} s")
    return text


# ---- what is written -----------------------------------------------------------------------------


def record(results: list[Result], seconds: float) -> dict[str, Any]:
    rows = {r.item.name: {**r.verdict._asdict(), "seconds": r.seconds} for r in results}
    versions = version_text().splitlines()
    command = shlex.split(program.typed())
    return {"command": command, "versions": versions, "seconds": seconds, "items": rows}


def report_text(results: list[Result], seconds: float, items: int) -> str:
    parts = [f"{program.typed()}\n{version_text()}\n"]
    for result in results:
        parts += [line.plain for line in lines(result)]
        parts += [result.verdict.details] if result.verdict.details else []
    done = sum(result.item is not ENDS for result in results)
    so_far = "" if done == items else f"not all: {done} of {items} items, "
    return "\n".join([*parts, "", so_far + summary(results, seconds).plain, ""])


def write(options: argparse.Namespace, results: list[Result], seconds: float, items: int) -> None:
    """Write the requested files with the results so far."""
    if options.json:
        write_json(record(results, seconds), options.json)
    if options.report:
        with publish(options.report, named=True) as path:
            path.write_text(report_text(results, seconds, items), encoding="utf-8")


def check(argv: list[str], every: Sequence[Item], *program_words: str) -> int:
    """Run items, print and write their results. Returns the exit code.

    Args:
        argv: Words of the command line.
        every: Items to choose from.
        program_words: Words after ``python`` that start the calling program as a worker process.
    """
    options = option_parser().parse(argv)
    items = known(every, options.only)
    if options.list:
        for item in items:
            print(f"{item.name:18} {item.title}")
        return 0
    if options.worker:
        work(items, options)
        return 0
    select_device(options.device)
    console, began, done, seconds = Console(highlight=False), time.perf_counter(), [], 0.0
    write(options, done, seconds, len(items))  # an error now, not after the minutes of checking
    for result in results(items, options, program_words):
        show(console, result)
        done.append(result)
        seconds = time.perf_counter() - began
        write(options, done, seconds, len(items))
    console.print(summary(done, seconds))
    return 1 if any(result.verdict.verdict == FAIL for result in done) else 0


@reported
def main(argv: list[str]) -> int:
    return check(argv, ITEMS, "-m", __spec__.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
