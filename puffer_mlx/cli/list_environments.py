"""The command ``list``: list all environments, without compiling any."""

import re
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.options import print_next_commands
from puffer_mlx.config import load
from puffer_mlx.config.command_line import Parser
from puffer_mlx.config.finding import all_env_names, find_config, variants
from puffer_mlx.config.ini_files import relative_path
from puffer_mlx.config.releases import main_source
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.vec import puffer, zoo
from puffer_mlx.vec.gym.installed import missing_package
from puffer_mlx.vec.native.sources import environments_folder

OTHER_NAMES = (  # kinds of names of other environments
    ("gym:ID", "a Gymnasium environment, also from a package that registers some"),
    ("envpool:ID", "one of EnvPool's in C++: Gymnasium's MuJoCo, Atari, Procgen, dm_control, ..."),
    ("pettingzoo:NAME", "a parallel PettingZoo environment, also from a package like mpe2"),
    ("pufferlib:puffer_NAME", "a PufferLib 3 environment, if PufferLib is installed"),
    ("module:factory", "a class or function that makes a Gymnasium, PettingZoo or PufferLib 3 one"),
    ("path/file.py:factory", "a class or function in a file"),
    ("path/ocean/NAME", "a folder in the layout of PufferLib 4.0 or 5.0"),
    ("path/NAME.ini", "a configuration whose [base] env_name is one of these"),
)
FOOTNOTES = (
    "A variant is an environment with other settings: puffer-mlx train breakout-cpu",
    "Files are in configs/ of puffer_mlx; other names are also searched in ./configs.",
)
MIN_FILE_COLUMN_WIDTH = 110  # terminal columns to show the files of Python environments
MAX_IDS = 14  # ids shown per group
STRUCTURED_COMMENT = re.compile(r"^; (description|observation|action): (.+)$", re.MULTILINE)


class NativeEntry(NamedTuple):
    """Description of a C environment from comments in its .ini file; "?" if missing."""

    name: str
    description: str
    observation: str
    action: str


def native_environments() -> list[NativeEntry]:
    """Return the C environments that have a configuration file, for the list, sorted by name."""
    entries = []
    for name in all_env_names():
        if main_source(environments_folder() / name):
            file_comments = comments(find_config(name))
            texts = (
                file_comments.get(key, "?") for key in ("description", "observation", "action")
            )
            entries.append(NativeEntry(name, *texts))
    return entries


def comments(path: Path) -> dict[str, str]:
    """Return the structured comments of an .ini file as a dict: ``; description: one paddle``."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return {match[1]: match[2].strip() for match in STRUCTURED_COMMENT.finditer(text)}


def gymnasium_environments() -> dict[str, list[str]]:
    """Return the ids of Gymnasium's environments, newest versions only, grouped by folder.

    The dictionary is empty if Gymnasium isn't installed.
    """
    try:
        from gymnasium.envs.registration import registry
    except ImportError:
        return {}
    newest: dict[tuple[str | None, str], tuple[int, str, str]] = {}
    for spec in registry.values():
        if not isinstance(spec.entry_point, str):
            continue  # wrappers of old environments
        modules = spec.entry_point.partition(":")[0].split(".")
        group = modules[2] if modules[:2] == ["gymnasium", "envs"] else modules[0]
        entry = (spec.version or 0, spec.id, group)
        key = spec.namespace, spec.name
        newest[key] = max(entry, newest.get(key, entry))
    groups: dict[str, list[str]] = {}
    for _, name, group in sorted(newest.values(), key=lambda entry: entry[1]):
        groups.setdefault(group, []).append(name)
    return groups


class ListedConfig(NamedTuple):
    """Configuration of an environment as listed for the user, or the error from loading it."""

    name: str
    agents: str
    trainer: str
    file: str
    error: str = ""


def load_listed(name: str) -> ListedConfig:
    """Return an environment's configuration as listed for the user; errors are returned, too."""
    try:
        config = load(name.replace("*", "X"), training=False)
    except UserError as error:
        return ListedConfig(name, "?", "?", "", error.message.splitlines()[0])
    file = relative_path(Path(config.files[-1].removeprefix("configs/")))
    return ListedConfig(name, f"{config.vec.total_agents:,}", config.train.algorithm, file)


def installed_cell(package: str) -> Text:
    """Return the table cell that says "installed", or how to install a missing package with pip."""
    return Text(f"pip install '{package}'", "yellow") if package else Text("installed", "green")


def empty_table(*columns: str) -> Table:
    """Return a table with column headings but no rows; no header row if all headings are empty."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    grid.show_header = any(columns)
    for column in columns:
        narrow = not column.startswith("what")
        justify = "right" if column == "agents" else "left"
        grid.add_column(column, no_wrap=narrow and any(columns), justify=justify)
    return grid


def name_and_file(row: ListedConfig) -> Text:
    """Return the table cell with an environment's name above its file or an error message."""
    return Text.assemble(row.name, "\n", (row.file or row.error, "dim"))


def native_table() -> Table:
    """Return the table of all C environments: agents, observations, actions and description."""
    grid = empty_table("in C (file)", "agents", "sees, does", "what it is")
    for entry in native_environments():
        row = load_listed(entry.name)
        spaces_text = f"{entry.observation}\n{entry.action}"
        grid.add_row(name_and_file(row), row.agents, spaces_text, Text(entry.description))
    return grid


def variants_table() -> Table:
    """Return the table of all variants, which are environments with other settings."""
    grid = empty_table("variant (file)", "agents", "trainer", "what it is")
    for name, path in sorted(variants().items()):
        row = load_listed(name)
        grid.add_row(
            name_and_file(row),
            row.agents,
            row.trainer,
            Text(comments(path).get("description", "?")),
        )
    return grid


def python_table(with_file: bool) -> Table:
    """Return the table of the Python environments that have a configuration file in puffer_mlx."""
    file_header = ["file"] if with_file else []
    grid = empty_table("in Python", "agents", "package", *file_header)
    for name in (name for name in all_env_names() if ":" in name):
        row = load_listed(name)
        file = Text(row.file or row.error, "dim")
        package = installed_cell(missing_package(name))
        file_cell = [file] if with_file else []
        grid.add_row(name, row.agents, package, *file_cell)
    return grid


def print_catalog(console: Console | None = None) -> None:
    """Print the tables of all environments that can be trained.

    Args:
        console: Console, which sets the width; None for the terminal.
    """
    console = console or Console()
    groups = gymnasium_environments()
    tables = [
        native_table(),
        variants_table(),
        python_table(console.width >= MIN_FILE_COLUMN_WIDTH),
    ]
    ids = empty_table("", "")
    for group, names in groups.items():
        ids.add_row(
            Text(f"gym: {group}", "bold"), shorten_ids(names, missing_package(f"gym:{names[0]}"))
        )
    packages = packages_table()
    other_names = empty_table("", "")
    for name, meaning in OTHER_NAMES:
        other_names.add_row(Text(name, "bold"), Text(meaning))
    for each in (*tables, *([ids] if groups else []), packages, other_names):
        if each.row_count:
            console.print(each)
            console.print()
    for line in FOOTNOTES:
        console.print(line, markup=False)


def packages_table() -> Table:
    """Return the table of the environments in installed packages (PettingZoo, PufferLib).

    The packages aren't imported.
    """
    grid = empty_table("", "")
    for group, names in zoo.parallel_names().items():
        grid.add_row(
            Text(f"pettingzoo: {group}", "bold"),
            shorten_ids(names, zoo.missing_group_package(group)),
        )
    if names := puffer.ocean_names():
        grid.add_row(Text("pufferlib:", "bold"), Text(", ".join(names)))
    return grid


def shorten_ids(ids: list[str], package: str) -> Text:
    """Return a table cell with the first ids of environments, and how to install their package."""
    more = f", … {len(ids) - MAX_IDS} more" if len(ids) > MAX_IDS else ""
    text = Text(", ".join(ids[:MAX_IDS]) + more)
    return text.append("\n").append_text(installed_cell(package)) if package else text


def option_parser() -> Parser:
    parser = Parser()
    add_common_options(parser, "list")
    return parser


@with_exit_code
def main(argv: list[str]) -> None:
    option_parser().parse(argv)
    print_catalog()
    print_next_commands(
        (f"{program.command('train')} breakout-cpu", "a variant for CPUs"),
        (f"{program.command('train')} gym:CartPole-v1", "a Gymnasium environment"),
        (f"{program.command('check-env')} module:Class", "your environment"),
    )
