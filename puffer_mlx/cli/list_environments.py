"""What environments there are: ``puffer-mlx list``. Nothing is compiled for it, or grid."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.config import load
from puffer_mlx.config.command_line import Parser
from puffer_mlx.config.dialects import main_source
from puffer_mlx.config.ini_files import relative_path
from puffer_mlx.config.resolve import find_config, known_envs, variants
from puffer_mlx.errors import UserError
from puffer_mlx.vec.native.sources import environments_folder
from puffer_mlx.vec.puffer import ocean
from puffer_mlx.vec.zoo import names as zoo

OTHERS = (  # how to name what isn't in the list
    ("gym:ID", "one of Gymnasium's, or of a package that registers its own"),
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
MOST = 14  # ids of a group that are named
NEEDED = (  # names in Python, modules, and the package that brings them; the first line that fits
    (r"gym:ALE/", ("ale_py", "cv2", "gymnasium"), "puffer-mlx[atari]"),
    (r"gym:(minigrid:)?MiniGrid-", ("minigrid", "gymnasium"), "minigrid"),
    (r"gym:(BipedalWalker|CarRacing|LunarLander)", ("Box2D", "gymnasium"), "gymnasium[box2d]"),
    (
        r"gym:(Ant|HalfCheetah|Hopper|Humanoid|Inverted|Pusher|Reacher|Swimmer|Walker2d)",
        ("mujoco", "gymnasium"),
        "gymnasium[mujoco]",
    ),
    (r"gym:(phys2d|tabular)/", ("jax", "gymnasium"), "gymnasium[jax]"),
    (r"gym:", ("gymnasium",), "puffer-mlx[gym]"),
    (r"pettingzoo:mpe2\.", ("mpe2", "pettingzoo"), "mpe2"),
    (r"pettingzoo:", ("pettingzoo",), "puffer-mlx[pettingzoo]"),
)
STRUCTURED = re.compile(r"^; (description|observation|action): (.+)$", re.MULTILINE)


class Entry(NamedTuple):
    """One environment, with the texts of its file's structured comments ("?" without one)."""

    name: str
    description: str
    observation: str
    action: str


def native_environments() -> list[Entry]:
    """Return the environments that have a configuration and C sources, in order of their names."""
    entries = []
    for name in known_envs():
        if main_source(environments_folder() / name):
            known = comments(find_config(name))
            texts = (known.get(key, "?") for key in ("description", "observation", "action"))
            entries.append(Entry(name, *texts))
    return entries


def comments(path: Path) -> dict[str, str]:
    """Return a configuration's structured comments by name: ``; description: one paddle``."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return {match[1]: match[2].strip() for match in STRUCTURED.finditer(text)}


def gymnasium_environments() -> dict[str, list[str]]:
    """Ids in their newest versions by group, the package's folder; empty without Gymnasium."""
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
    """A name that has a file, and what that says; ``fault`` instead, if it can't be read."""

    name: str
    agents: str
    trainer: str
    file: str
    fault: str = ""


def configured(name: str) -> Configured:
    """What the files of a name say."""
    try:
        config = load(name.replace("*", "X"), training=False)
    except UserError as error:
        return Configured(name, "?", "?", "", error.message.splitlines()[0])
    file = relative_path(Path(config.files[-1].removeprefix("configs/")))
    return Configured(name, f"{config.vec.total_agents:,}", config.train.algorithm, file)


def missing(name: str) -> str:
    """What is to be installed for an environment in Python; empty if it is there."""
    for pattern, modules, package in NEEDED:
        if re.match(pattern, name):
            return "" if all(map(find_spec, modules)) else package
    return ""


def installed(package: str) -> Text:
    """The cell that says whether what is needed is there."""
    return Text(f"pip install '{package}'", "yellow") if package else Text("installed", "green")


def table(*columns: str) -> Table:
    """A table with these headings, none if they are empty."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    grid.show_header = any(columns)
    for column in columns:
        grid.add_column(column, overflow="fold", justify="right" if column == "agents" else "left")
    return grid


def name_and_file(row: Configured) -> Text:
    """Two lines of a cell."""
    return Text.assemble(row.name, "\n", (row.file or row.fault, "dim"))


def native_table() -> Table:
    """Those in C."""
    grid = table("in C (file)", "agents", "sees, does", "what it is")
    for entry in native_environments():
        row = configured(entry.name)
        spaces_text = f"{entry.observation}\n{entry.action}"
        grid.add_row(name_and_file(row), row.agents, spaces_text, Text(entry.description))
    return grid


def variants_table() -> Table:
    """Other files about them."""
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


def python_table() -> Table:
    """Gymnasium's and PettingZoo's that have a file."""
    grid = table("in Python", "agents", "file", "package")
    for name in (name for name in known_envs() if ":" in name):
        row = configured(name)
        file = Text(row.file or row.fault, "dim")
        grid.add_row(name, row.agents, file, installed(missing(name)))
    return grid


def print_catalog(console: Console | None = None) -> None:
    """All of it, as wide as the console is; by default the terminal."""
    console = console or Console()
    groups = gymnasium_environments()
    tables = [native_table(), variants_table(), python_table()]
    ids = table("", "")
    for group, names in groups.items():
        ids.add_row(Text(f"gym: {group}", "bold"), some(names, missing(f"gym:{names[0]}")))
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
    """PettingZoo's by group and PufferLib's, where they are installed; neither is imported."""
    grid = table("", "")
    for group, names in zoo.parallel_names().items():
        grid.add_row(Text(f"pettingzoo: {group}", "bold"), some(names, zoo.needs(group)))
    if names := ocean.names():
        grid.add_row(Text("pufferlib:", "bold"), Text(", ".join(names)))
    return grid


def some(ids: list[str], package: str) -> Text:
    """Ids, the first of many, and what must be installed for them, if that isn't there."""
    more = f", … {len(ids) - MOST} more" if len(ids) > MOST else ""
    text = Text(", ".join(ids[:MOST]) + more)
    return text.append("  ").append_text(installed(package)) if package else text


def option_parser() -> Parser:
    parser = Parser()
    introduce(parser, "list")
    return parser


@reported
def main(argv: list[str]) -> None:
    option_parser().parse(argv)
    print_catalog()
