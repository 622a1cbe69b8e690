"""What environments there are: ``puffer-mlx list``. Nothing is compiled for it, or made."""

import ast
import operator
import re
import sys
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
from puffer_mlx.config.folders import main_source
from puffer_mlx.config.help_page import add_help
from puffer_mlx.config.known_files import find_config, known_envs, variants
from puffer_mlx.errors import UserError
from puffer_mlx.vec.native.sources import environment_files, environments_folder, needs
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
    "Files are in configs/ of puffer_mlx, or of the working folder.",
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
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.+?)[ \t]*(?://.*|/\*.*)?$", re.M)
OF_BYTES = re.compile(
    r"^[ \t]*typedef[ \t]+(?:unsigned[ \t]+char|uint8_t)[ \t]+obs_t\b", re.M
)  # 5.0
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


class Entry(NamedTuple):
    """One environment: its name, what it is, what an agent sees and does, in words."""

    name: str
    about: str
    sees: str
    does: str


def native_environments() -> list[Entry]:
    """Those that have a configuration and, beside the package, C sources; by name."""
    found = []
    for name in known_envs():
        folder = environments_folder() / name
        if main_source(folder):
            found.append(Entry(name, about(find_config(name), name), *spaces(folder)))
    return found


def about(path: Path, name: str) -> str:
    """The first sentence of a configuration's first comment, without the name that begins it."""
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    text = " ".join(lines).partition(". ")[0].removesuffix(".")
    first, colon, rest = text.partition(": ")
    return rest if colon and first.lower().replace(" ", "_") in (name, name[1:]) else text


def spaces(folder: Path) -> tuple[str, str]:
    """What an agent sees and does, as the sources of an environment say; ``?`` if they don't."""
    macros: dict[str, str] = {}
    main = main_source(folder)
    files = [*([main] if main else []), *environment_files(folder)]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    for text in texts:  # the first definition counts: a binding may be lines around another one
        for name, value in DEFINE.findall(text):
            macros.setdefault(name, value)
    of_bytes = any(map(OF_BYTES.search, texts)) or macros.get("OBS_TENSOR_T") == "ByteTensor"
    kind = "bytes" if of_bytes else "floats"
    shape = numbers(macros.get("MY_OBS_SHAPE", ""), macros)
    size = shape or numbers(macros.get("OBS_SIZE", ""), macros)
    sees = f"{' x '.join(map(str, size))} {kind.removesuffix('s' * (size == [1]))}" if size else "?"
    sizes = numbers(macros.get("ACT_SIZES", ""), macros)
    if not sizes:
        return sees, "?"
    if max(sizes) == 1:
        does = f"{len(sizes)} continuous"
    else:
        does = "one of " + " and of ".join(map(str, sizes))
    masked = "MY_ACTION_MASK" in macros or (main is not None and needs(folder).masks)
    return sees, does + (", masked" if masked and max(sizes) > 1 else "")


def numbers(text: str, macros: dict[str, str]) -> list[int]:
    """The whole numbers of ``4``, ``{4, 5}`` or ``SIZE * SIZE``; none if it is anything else."""
    parts = text.strip().removeprefix("{").removesuffix("}").split(",")
    found = [_number(part, macros, 8) for part in parts]
    return [] if None in found else [value for value in found if value is not None]


def _number(text: str, macros: dict[str, str], depth: int) -> int | None:
    """A sum or product of numbers and macros; ``depth``: of macros within macros."""

    def value(node: ast.AST) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](value(left), value(right))
            case ast.Name(id=name) if depth and name in macros:
                found = _number(macros[name], macros, depth - 1)
                if found is not None:
                    return found
        raise ValueError

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return None


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
        found = (spec.version or 0, spec.id, group)
        key = spec.namespace, spec.name
        newest[key] = max(found, newest.get(key, found))
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
    file = config.files[-1].removeprefix("configs/")
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
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    made.show_header = any(columns)
    for column in columns:
        made.add_column(column, overflow="fold", justify="right" if column == "agents" else "left")
    return made


def name_and_file(found: Configured) -> Text:
    """Two lines of a cell."""
    return Text.assemble(found.name, "\n", (found.file or found.fault, "dim"))


def native_table() -> Table:
    """Those in C."""
    made = table("in C (file)", "agents", "sees, does", "what it is")
    for entry in native_environments():
        found = configured(entry.name)
        spaces_text = f"{entry.sees}\n{entry.does}"
        made.add_row(name_and_file(found), found.agents, spaces_text, Text(entry.about))
    return made


def variants_table() -> Table:
    """Other files about them."""
    made = table("variant (file)", "agents", "trainer", "what it is")
    for name, path in sorted(variants().items()):
        found = configured(name)
        made.add_row(name_and_file(found), found.agents, found.trainer, Text(about(path, name)))
    return made


def python_table() -> Table:
    """Gymnasium's and PettingZoo's that have a file."""
    made = table("in Python", "agents", "file", "package")
    for name in (name for name in known_envs() if ":" in name):
        found = configured(name)
        file = Text(found.file or found.fault, "dim")
        made.add_row(name, found.agents, file, installed(missing(name)))
    return made


def print_catalog(console: Console) -> None:
    """All of it, as wide as the console is."""
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
    made = table("", "")
    for group, found in zoo.parallel_names().items():
        made.add_row(Text(f"pettingzoo: {group}", "bold"), some(found, zoo.needs(group)))
    if found := ocean.names():
        made.add_row(Text("pufferlib:", "bold"), Text(", ".join(found)))
    return made


def some(ids: list[str], package: str) -> Text:
    """Ids, the first of many, and what must be installed for them, if that isn't there."""
    more = f", … {len(ids) - MOST} more" if len(ids) > MOST else ""
    text = Text(", ".join(ids[:MOST]) + more)
    return text.append("  ").append_text(installed(package)) if package else text


def option_parser() -> Parser:
    parser = Parser()
    add_help(parser, {})
    introduce(parser, "list")
    return parser


@reported
def main(argv: list[str]) -> None:
    option_parser().parse(argv)
    print_catalog(Console())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
