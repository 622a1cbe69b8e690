"""What environments there are: ``train.py --list``. Nothing is compiled for it, or made."""

import ast
import importlib.util
import operator
import re
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from puffer_mlx.config.finding import find_config, known_envs, variants
from puffer_mlx.config.folders import main_source
from puffer_mlx.vec.native.sources import environment_files, environments_folder, needs

OTHERS = (  # how to name what isn't in the list
    ("gym:ID", "one of Gymnasium's, or of a package that registers its own"),
    ("module:factory", "Python: what makes a Gymnasium or PufferLib 3 environment"),
    ("path/file.py:factory", "the same from a file"),
    ("path/ocean/NAME", "a folder in the form of PufferLib 4.0 or 5.0"),
    ("path/NAME.ini", "a configuration, whose [base] env_name is one of these"),
)
MOST = 14  # ids of a group that are named
EXTRAS = {  # Gymnasium's groups that need more: the module, the extra that has it
    "box2d": ("Box2D", "box2d"),
    "mujoco": ("mujoco", "mujoco"),
    "phys2d": ("jax", "jax"),
    "tabular": ("jax", "jax"),
}
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


def configured() -> list[str]:
    """Names of Python environments that have a file of their own."""
    return [name for name in known_envs() if ":" in name]


def print_catalog(console: Console) -> None:
    """All of it, as wide as the console is."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("environment", "sees", "does", "what it is"):
        table.add_column(column, overflow="fold")
    for entry in native_environments():
        table.add_row(entry.name, entry.sees, entry.does, entry.about)
    console.print(table)
    console.print()
    other = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for word, meaning in OTHERS:
        other.add_row(Text(word, "bold"), Text(meaning))
    console.print(other)
    console.print()
    groups = gymnasium_environments()
    ids = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for word, names in ("configured", configured()), ("variants", sorted(variants())):
        if names:
            ids.add_row(Text(word, "bold"), Text(", ".join(names)))
    for group, names in groups.items():
        ids.add_row(Text(f"gym: {group}", "bold"), members(group, names))
    console.print(ids)
    if not groups:
        console.print("Gymnasium isn't installed: pip install 'puffer-mlx[gym]'", markup=False)


def members(group: str, ids: list[str]) -> Text:
    """A group's ids, the first of many, and what must be installed for them."""
    more = f", … {len(ids) - MOST} more" if len(ids) > MOST else ""
    text = Text(", ".join(ids[:MOST]) + more)
    module, extra = EXTRAS.get(group, ("gymnasium", ""))
    if importlib.util.find_spec(module) is None:
        text.append(f"  pip install 'gymnasium[{extra}]'", "yellow")
    return text
