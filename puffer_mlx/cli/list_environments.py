"""List all environments: ``puffer-mlx list``. Nothing is compiled."""

import re
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import say_next
from puffer_mlx.config import load
from puffer_mlx.config.command_line import Parser
from puffer_mlx.config.dialects import main_source
from puffer_mlx.config.finding import find_config, known_envs, variants
from puffer_mlx.config.ini_files import relative_path
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.vec import puffer, zoo
from puffer_mlx.vec.gym.installed import missing_package
from puffer_mlx.vec.native.sources import environments_folder

OTHERS = (  # how to name other environments
    ("gym:ID", "one of Gymnasium's, or of a package that registers its own"),
    ("envpool:ID", "one of EnvPool's in C++: Gymnasium's MuJoCo, Atari, Procgen, dm_control, ..."),
    ("pettingzoo:NAME", "a parallel environment of PettingZoo's, or of a package like mpe2"),
    ("pufferlib:puffer_NAME", "one of PufferLib 3's own, where it is installed"),
    ("module:factory", "Python: what makes one of Gymnasium's, PettingZoo's or PufferLib 3's"),
    ("path/file.py:factory", "the same from a file"),
    ("path/ocean/NAME", "a folder in the form of PufferLib 4.0 or 5.0"),
    ("path/NAME.ini", "a configuration, whose [base] env_name is one of these"),
)
NOTES = (
    "A variant is an environment with other settings: puffer-mlx train breakout-cpu",
    "Files are in configs/ of puffer_mlx; names that it lacks are looked for in ./configs, too.",
)
WIDE = 110  # columns for the files of environments in Python
MOST = 14  # maximum number of ids shown per group
STRUCTURED = re.compile(r"^; (description|observation|action): (.+)$", re.MULTILINE)


class Entry(NamedTuple):
    """One environment with the structured comments of its file ("?" for a missing one)."""

    name: str
    description: str
    observation: str
    action: str


def native_environments() -> list[Entry]:
    """Return the environments with a configuration and C sources, sorted by name."""
    entries = []
    for name in known_envs():
        if main_source(environments_folder() / name):
            known = comments(find_config(name))
            texts = (known.get(key, "?") for key in ("description", "observation", "action"))
            entries.append(Entry(name, *texts))
    return entries


def comments(path: Path) -> dict[str, str]:
    """Return a file's structured comments, such as ``; description: one paddle``, by name."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return {match[1]: match[2].strip() for match in STRUCTURED.finditer(text)}


def gymnasium_environments() -> dict[str, list[str]]:
    """Return Gymnasium's ids in their newest versions, grouped by folder of the package.

    Returns an empty dictionary if Gymnasium isn't installed.
    """
    try:
        from gymnasium.envs.registration import registry
    except ImportError:
        return {}
    newest: dict[tuple[str | None, str], tuple[int, str, str]] = {}
    for spec in registry.values():
        if not isinstance(spec.entry_point, str):
            continue  # converters of old environments
        parts = spec.entry_point.partition(":")[0].split(".")
        group = parts[2] if parts[:2] == ["gymnasium", "envs"] else parts[0]
        entry = (spec.version or 0, spec.id, group)
        key = spec.namespace, spec.name
        newest[key] = max(entry, newest.get(key, entry))
    groups: dict[str, list[str]] = {}
    for _, name, group in sorted(newest.values(), key=lambda entry: entry[1]):
        groups.setdefault(group, []).append(name)
    return groups


class Configured(NamedTuple):
    """Facts from an environment's configuration, or the error in ``fault``."""

    name: str
    agents: str
    trainer: str
    file: str
    fault: str = ""


def configured(name: str) -> Configured:
    """Load the configuration of an environment and return the facts to list."""
    try:
        config = load(name.replace("*", "X"), training=False)
    except UserError as error:
        return Configured(name, "?", "?", "", error.message.splitlines()[0])
    file = relative_path(Path(config.files[-1].removeprefix("configs/")))
    return Configured(name, f"{config.vec.total_agents:,}", config.train.algorithm, file)


def installed(package: str) -> Text:
    """Return a table cell: the pip command for a missing package, or "installed"."""
    return Text(f"pip install '{package}'", "yellow") if package else Text("installed", "green")


def table(*columns: str) -> Table:
    """Return an empty table with these column headings, without a header row if all are empty."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    grid.show_header = any(columns)
    for column in columns:
        narrow = not column.startswith("what")
        justify = "right" if column == "agents" else "left"
        grid.add_column(column, no_wrap=narrow and any(columns), justify=justify)
    return grid


def name_and_file(row: Configured) -> Text:
    """Return a cell with the name and, below it, the file or the error."""
    return Text.assemble(row.name, "\n", (row.file or row.fault, "dim"))


def native_table() -> Table:
    """Return the table of environments in C."""
    grid = table("in C (file)", "agents", "sees, does", "what it is")
    for entry in native_environments():
        row = configured(entry.name)
        spaces_text = f"{entry.observation}\n{entry.action}"
        grid.add_row(name_and_file(row), row.agents, spaces_text, Text(entry.description))
    return grid


def variants_table() -> Table:
    """Return the table of further configuration files of environments."""
    grid = table("variant (file)", "agents", "trainer", "what it is")
    for name, path in sorted(variants().items()):
        row = configured(name)
        grid.add_row(
            name_and_file(row),
            row.agents,
            row.trainer,
            Text(comments(path).get("description", "?")),
        )
    return grid


def python_table(with_file: bool) -> Table:
    """Return the table of Python environments that have a configuration file."""
    grid = table("in Python", "agents", "package", *["file"] * with_file)
    for name in (name for name in known_envs() if ":" in name):
        row = configured(name)
        file = Text(row.file or row.fault, "dim")
        package = installed(missing_package(name))
        grid.add_row(name, row.agents, package, *[file] * with_file)
    return grid


def print_catalog(console: Console | None = None) -> None:
    """Print all tables.

    Args:
        console: Console that sets the width; None for the terminal.
    """
    console = console or Console()
    groups = gymnasium_environments()
    tables = [native_table(), variants_table(), python_table(console.width >= WIDE)]
    ids = table("", "")
    for group, names in groups.items():
        ids.add_row(Text(f"gym: {group}", "bold"), some(names, missing_package(f"gym:{names[0]}")))
    packages = packages_table()
    others = table("", "")
    for word, meaning in OTHERS:
        others.add_row(Text(word, "bold"), Text(meaning))
    for each in (*tables, *([ids] if groups else []), packages, others):
        if each.row_count:
            console.print(each)
            console.print()
    for line in NOTES:
        console.print(line, markup=False)


def packages_table() -> Table:
    """Return the table of installed PettingZoo and PufferLib environments. Nothing is imported."""
    grid = table("", "")
    for group, names in zoo.parallel_names().items():
        grid.add_row(Text(f"pettingzoo: {group}", "bold"), some(names, zoo.missing_package(group)))
    if names := puffer.ocean_names():
        grid.add_row(Text("pufferlib:", "bold"), Text(", ".join(names)))
    return grid


def some(ids: list[str], package: str) -> Text:
    """Return up to ``MOST`` ids and, if their package is missing, its pip command."""
    more = f", … {len(ids) - MOST} more" if len(ids) > MOST else ""
    text = Text(", ".join(ids[:MOST]) + more)
    return text.append("\n").append_text(installed(package)) if package else text


def option_parser() -> Parser:
    parser = Parser()
    introduce(parser, "list")
    return parser


@reported
def main(argv: list[str]) -> None:
    option_parser().parse(argv)
    print_catalog()
    say_next(
        (f"{program.command('train')} breakout-cpu", "a variant, for CPUs"),
        (f"{program.command('train')} gym:CartPole-v1", "one of Gymnasium's"),
        (f"{program.command('check-env')} module:Class", "your own"),
    )
