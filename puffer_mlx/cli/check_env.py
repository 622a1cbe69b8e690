"""Check an environment for errors: puffer-mlx check-env ENV [options]; --help."""

import argparse
import sys
import time

from rich.console import Console
from rich.text import Text

from puffer_mlx.check.env.findings import FAIL, OK, SKIP, WARN, Finding, skip, worst
from puffer_mlx.check.env.items import BASIC, ITEMS, NOT_LOOKED_AT, judge
from puffer_mlx.check.env.subject import Subject
from puffer_mlx.check.item_processes import Answer, answer_each, answers, known
from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import add_table, say_config
from puffer_mlx.config import parse_command_line
from puffer_mlx.config.command_line import build_parser, typed_options
from puffer_mlx.config.schema import KEYS
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.system import program, voice
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text

STYLE = {OK: "green", WARN: "yellow", FAIL: "bold red", SKIP: "dim"}
USED = (  # keys with an effect: the check trains for a few epochs and writes no files
    *("base.seed", "base.device", "base.family", "base.reset_state", "vec", "wrap"),
    *("policy", "torch"),
    *(f"train.{key}" for key in KEYS["train"] if key != "total_timesteps"),
)
WORKER = "--worker"  # option that starts the process which runs the items
DIED = "if it is C: an index outside of an array, or memory that was freed, is the usual reason"
HUNG = "look for a loop that doesn't end in reset or step"


OPTIONS = """
--seconds SECONDS  how long to play for each thing that needs playing (default 3)
--timeout SECONDS  what takes longer is ended, and a FAIL (default 120)
--only ITEM...  these items
--json FILE  write the report to a file; - is stdout
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    introduce(parser, "check-env")
    add_table(parser, "this check", OPTIONS)
    parser.add_argument(WORKER, help=argparse.SUPPRESS)
    parser.set_defaults(seconds=3.0, timeout=120.0)


def option_parser() -> argparse.ArgumentParser:
    return build_parser(extra=add_options, used=USED)


# ---- what is shown -------------------------------------------------------------------------------


def findings_of(answer: Answer) -> list[Finding]:
    """Return the findings of an item, or a failure if its process died."""
    if answer.death:
        return [Finding(FAIL, answer.death, HUNG if "no answer" in answer.death else DIED)]
    return [Finding(*finding) for finding in answer.value]


def show(console: Console, name: str, findings: list[Finding]) -> None:
    for verdict, text, hint in findings:
        if voice.is_quiet() and verdict not in (WARN, FAIL):
            continue
        line = Text.assemble((f"{verdict:5} ", STYLE[verdict]), (f"{name:13} ", "bold"), text)
        console.print(line, soft_wrap=True)
        if hint:
            console.print(Text(f"{'':20}{hint}", "dim"), soft_wrap=True)


def left_out(findings: list[Finding]) -> bool:
    """Return True if an item was skipped because another one failed."""
    return findings[0].text.startswith(NOT_LOOKED_AT)


def summary(findings: list[Finding], took: float) -> Text:
    verdicts = [finding.verdict for finding in findings]
    text = Text()
    for verdict in (FAIL, WARN, OK):
        count = verdicts.count(verdict)
        text.append(f"{count} {verdict}", STYLE[verdict] if count else "dim")
        text.append(", " if verdict != OK else f"; {took:.0f} s")
    return text


def worker_words(argv: list[str]) -> list[str]:
    """Return the words for a worker process, which gets its own items and writes no file."""
    env, *words = argv
    typed = (each for each in typed_options(words) if each.option not in ("--only", "--json"))
    return [env, *(word for each in typed for word in each.argv)]


@reported
def main(argv: list[str]) -> int:
    config, options = parse_command_line(argv, add_options, used=USED, training=False)
    items = known(ITEMS, options.only)
    select_device(config.base.device)
    if options.worker is not None:
        subject = Subject(config, options.seconds, threads())
        broken = set(filter(None, options.worker.split(",")))
        answer_each(items, lambda item: judge(item, subject, broken))
        return 0

    def command(left: list[str], deadly: list[str]) -> list[str]:
        broken = ",".join(failed | BASIC & set(deadly))
        words = "-m", __spec__.name, *plain, "--only", *left, f"{WORKER}={broken}"
        return program.python(*words)

    say_config(config)
    plain = worker_words(argv)
    console, began = Console(highlight=False), time.perf_counter()
    report: dict[str, list[Finding]] = {}
    failed: set[str] = set()
    for answer in answers([item.name for item in items], command, options.timeout):
        report[answer.name] = findings = findings_of(answer)
        if not left_out(findings):
            show(console, answer.name, findings)
        if answer.name in BASIC and worst(findings) == FAIL:
            failed.add(answer.name)
    if unseen := [name for name, findings in report.items() if left_out(findings)]:
        show(console, "", [skip(f"not looked at: {', '.join(unseen)}")])
    took = time.perf_counter() - began
    everything = [finding for findings in report.values() for finding in findings]
    console.print(summary(everything, took))
    if options.json:
        record = {
            "environment": config.env_name,
            "command": program.typed(),
            "versions": version_text().splitlines(),
            "seconds": took,
            "verdict": worst(everything),
            "items": {name: [f._asdict() for f in each] for name, each in report.items()},
        }
        write_json(record, options.json)
    return 1 if worst(everything) == FAIL else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
