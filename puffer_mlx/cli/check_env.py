"""The command ``check-env``: check an environment for errors."""

import argparse
import sys
import time

from rich.console import Console
from rich.table import Table
from rich.text import Text

from puffer_mlx.check.env.environment import EnvUnderTest
from puffer_mlx.check.env.items import ITEMS
from puffer_mlx.check.items import (
    FAIL,
    NOT_CHECKED,
    OK,
    SKIP,
    WARN,
    Findings,
    fail,
    run_in_worker,
    select_items,
    serve_items,
    skip,
    worst_verdict,
)
from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.options import add_option_table, print_next_commands, print_notes
from puffer_mlx.config import parse_command_line
from puffer_mlx.config.command_line import build_parser, typed_options
from puffer_mlx.config.schema import KEYS
from puffer_mlx.ops.cpu_extension import count_cores
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text

VERDICT_STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red", SKIP: "dim"}
CHECK_KEYS = (  # keys with an effect: the check trains for a few epochs
    "base.seed",
    "base.device",
    "base.family",
    "base.reset_state",
    "vec",
    "wrap",
    "policy",
    "torch",
    *(f"train.{key}" for key in KEYS["train"] if key != "total_timesteps"),
)
WORKER_OPTION = "--worker"  # option of the process that runs the checks
CRASH_HINT = "in C, the usual reason is an index outside of an array, or freed memory"
HANG_HINT = "look for an endless loop in reset or step"


OPTIONS = """
--seconds SECONDS  time to play for each check that plays (default 3)
--timeout SECONDS  longest time for one check; after that it is stopped, a FAIL (default 120)
--only ITEM...  run only these checks
--json FILE  write the report to a file; - is stdout
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, "check-env")
    add_option_table(parser, "this check", OPTIONS)
    parser.add_argument(WORKER_OPTION, help=argparse.SUPPRESS)
    parser.set_defaults(seconds=3.0, timeout=120.0)


def option_parser() -> argparse.ArgumentParser:
    return build_parser(add_options, used=CHECK_KEYS)


# ---- output --------------------------------------------------------------------------------------


def print_findings(console: Console, name: str, findings: Findings) -> None:
    """Print what one check of an environment found: verdict, name, text and hint of each finding.

    In a terminal, long texts are wrapped in a column.
    """
    for verdict, text, hint, _ in findings:
        if verbosity.is_quiet() and verdict not in (WARN, FAIL):
            continue
        if console.is_terminal:
            grid = Table.grid(padding=(0, 1, 0, 0))
            grid.add_column(min_width=5)
            grid.add_column(min_width=13)
            grid.add_row(Text(verdict, VERDICT_STYLES[verdict]), Text(name, "bold"), Text(text))
            if hint:
                grid.add_row("", "", Text(hint, "dim"))
            console.print(grid)
            continue
        line = Text.assemble(
            (f"{verdict:5} ", VERDICT_STYLES[verdict]), (f"{name:13} ", "bold"), text
        )
        console.print(line, soft_wrap=True)
        if hint:
            console.print(Text(f"{'':20}{hint}", "dim"), soft_wrap=True)


def verdict_counts(findings: Findings, took: float) -> Text:
    verdicts = [finding.verdict for finding in findings]
    text = Text()
    for verdict in (FAIL, WARN, OK):
        count = verdicts.count(verdict)
        text.append(f"{count} {verdict}", VERDICT_STYLES[verdict] if count else "dim")
        text.append(", " if verdict != OK else f"; {took:.0f} s")
    return text


def worker_arguments(argv: list[str]) -> list[str]:
    """Return the command line for the worker process of a check: without --only and --json."""
    env, *words = argv
    typed = (each for each in typed_options(words) if each.option not in ("--only", "--json"))
    return [env, *(word for each in typed for word in each.argv)]


@with_exit_code
def main(argv: list[str]) -> int:
    config, options = parse_command_line(argv, add_options, used=CHECK_KEYS, training=False)
    items = select_items(ITEMS, options.only)
    select_device(config.base.device)
    failed: set[str] = set()
    if options.worker is not None:
        failed.update(options.worker.split(","))
        env = EnvUnderTest(config, options.seconds, count_cores())
        serve_items(items, failed, options.timeout, env)
        return 0
    print_notes(config)
    worker = "-m", __spec__.name, *worker_arguments(argv), "--only"

    def command(remaining: list[str]) -> list[str]:
        return program.python_command(*worker, *remaining, f"{WORKER_OPTION}={','.join(failed)}")

    console = Console(highlight=False)
    began = time.perf_counter()
    report: dict[str, Findings] = {}
    skipped: list[str] = []
    names = [item.name for item in items]
    for name, findings, _, death in run_in_worker(names, command, options.timeout):
        if death:
            findings = [fail(death, HANG_HINT if "no answer" in death else CRASH_HINT)]
        report[name] = findings
        if findings[0].text.startswith(NOT_CHECKED):
            skipped.append(name)
        else:
            print_findings(console, name, findings)
        if worst_verdict(findings) == FAIL:
            failed.add(name)
    if skipped:
        print_findings(console, "", [skip(f"{NOT_CHECKED}: {', '.join(skipped)}")])
    took = time.perf_counter() - began
    everything = [finding for findings in report.values() for finding in findings]
    console.print(verdict_counts(everything, took))
    if options.json:
        record = {
            "environment": config.env_name,
            "command": program.full_command_line(),
            "versions": version_text().splitlines(),
            "seconds": took,
            "verdict": worst_verdict(everything),
            "items": {
                name: [finding._asdict() for finding in findings]
                for name, findings in report.items()
            },
        }
        write_json(record, options.json)
    if worst_verdict(everything) == FAIL:
        only = [name for name in names if name in failed]
        again = f"{program.command('check-env')} {argv[0]} --only {' '.join(only)}"
        print_next_commands((again, "check again after a change"))
        return 1
    print_next_commands((f"{program.command('train')} {argv[0]}", "train on it"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
