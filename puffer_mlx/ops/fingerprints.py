"""Fused forms know which plain functions they compute, and give way where one was changed.

A fused form has a ``Reference``: the functions in plain MLX that it computes. ``fingerprints.json``
holds a fingerprint of each of them, and of what they use of ``ops/``, ``ppo/`` and ``policy/``:
hashes of their source without comments, docstrings and annotations. Where a source isn't what it
was when the fused form was last compared with it, or a function was replaced in the running program
or given by the user, the plain form runs, and a line says so.

``make fingerprints`` compares and writes the file (``CONTRIBUTING.md``). Where the package has no
sources, nothing can have been edited. Each source is read once, at the first choice of a form that
computes it; later choices look whether functions are still the same objects.
"""

import ast
import functools
import hashlib
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.system import voice

FILE = Path(__file__).with_name("fingerprints.json")
PACKAGE, NAME = Path(__file__).parents[1], __name__.partition(".")[0]
ROOMS = "ops", "policy", "ppo"  # the package's mathematics
# What chooses and launches fused forms, by a module's last name, or a function that begins with
# ``launch_``: it isn't part of any equation.
LAUNCHING = "gpu", "launch", "choice", "cpu_extension", "fingerprints", "catalog", "forms"
COMPARING = "PUFFER_MLX_COMPARING"  # in the environment while `make fingerprints` compares
CACHED = type(functools.cache(len))
LEFT_OUT = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx"}  # of a node


@dataclass(frozen=True, eq=False)
class Reference:
    """What a fused form computes, in plain MLX.

    Args:
        form: the fused form, for whoever reads that it isn't used.
        functions: each ``room.module:function`` or ``room.module:Class.method``.
        test: the file of tests that compares the form with them.
        cost: what the plain form costs, a clause.
    """

    form: str
    functions: tuple[str, ...]
    test: str
    cost: str

    def __post_init__(self) -> None:
        REFERENCES.append(self)

    def holds(self, *further: Any, tell: bool = True) -> bool:
        """Whether the plain functions are those that the fused form was compared with.

        If they aren't, says so in a line, once.

        Args:
            *further: functions or bound methods that the form computes in this case.
            tell: False: says nothing; the form may not be wanted here.
        """
        if COMPARING in os.environ:
            return True
        foreign = [name_of(each) for each in further if not _is_ours(each)]
        functions = self.functions + tuple(map(name_of, further))
        kept = _KEPT.get((self, functions))
        if kept and not foreign and all(space.get(key) is value for space, key, value in kept):
            return True
        changed = foreign or _changed(functions)
        if not changed:
            _KEPT[self, functions] = _bindings(functions)
            return True
        names = ", ".join(sorted({name.replace(":", ".") for name in changed}))
        if tell:
            verb = "is given" if foreign else "changed"
            _tell(f"{names} {verb}: {self.form} isn't used, {self.cost}")
        return False


class Binding(NamedTuple):
    """A function's place in the running program, and what was there."""

    space: Mapping[str, Any]
    key: str
    value: Any


REFERENCES: list[Reference] = []  # of all modules that were imported
_KEPT: dict[Any, list[Binding]] = {}  # of references that hold


@functools.cache
def _tell(line: str) -> None:
    voice.note(f"puffer_mlx: {line}", error=True)


def name_of(function: Any) -> str:
    """A function's name as in ``Reference.functions``; of what isn't the package's, a plain one."""
    function = getattr(function, "__func__", function)
    module = getattr(function, "__module__", None) or type(function).__module__
    path = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}:{path}".removeprefix(f"{NAME}.")


def _is_ours(function: Any) -> bool:
    """Whether a function that was given is one of the package's mathematics."""
    module, _, path = name_of(function).partition(":")
    return module.partition(".")[0] in ROOMS and _is_own(function, module, path)


def fingerprints(functions: tuple[str, ...]) -> dict[str, str]:
    """Of functions and of what they use: the fingerprint of each; none where there is no source."""
    return {name: _fingerprint(name) for name in _used(functions)}


@functools.cache
def stored() -> dict[str, str]:
    """``fingerprints.json``."""
    return json.loads(FILE.read_text())


def _changed(functions: tuple[str, ...]) -> list[str]:
    """What was edited or replaced of functions and of what they use."""
    # What has no fingerprint is of a part that was added; or what uses it was changed, too.
    present = fingerprints(functions)
    known = stored() if present else {}
    changed = [name for name, now in present.items() if known.get(name, now) != now]
    for name in _used(functions) or functions:
        module, _, path = name.partition(":")
        value = functools.reduce(_attribute, path.split("."), import_module(f"{NAME}.{module}"))
        if not _is_own(value, module, path):
            changed.append(name)
    for name, alias in _imports(functions):
        if _value(alias) is not _value(name):
            changed.append(alias)
    return changed


def _bindings(functions: tuple[str, ...]) -> list[Binding]:
    """Where functions, and what they use, are looked up while the program runs."""
    places = {*(_used(functions) or functions), *(alias for _, alias in _imports(functions))}
    return [Binding(*_place(name), _value(name)) for name in places]


def _place(name: str) -> tuple[Mapping[str, Any], str]:
    module, _, path = name.partition(":")
    *classes, key = path.split(".")
    return vars(functools.reduce(_attribute, classes, import_module(f"{NAME}.{module}"))), key


def _value(name: str) -> Any:
    space, key = _place(name)
    return space.get(key)


def _attribute(holder: Any, key: str) -> Any:
    return vars(holder).get(key)


def _is_own(value: Any, module: str, path: str) -> bool:
    """Whether an object is what the package's source makes under that name.

    What isn't a function of Python is told by its type only: a number, or a function of MLX's.
    """
    source = _module(module)
    node = source.defined.get(path, [None])[0] if source else None
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return _is_constant(value, node.value)
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    while hasattr(value, "__wrapped__") and (isinstance(value, CACHED) or _from_package(value)):
        value = value.__wrapped__  # by our own decorators, or functools.cache
    if inspect.isfunction(value):
        here = value.__globals__["__name__"] == f"{NAME}.{module}"
        return here and value.__code__.co_qualname == path
    if isinstance(value, type):
        return (value.__module__, value.__qualname__) == (f"{NAME}.{module}", path)
    return isinstance(value, mx.custom_function)


def _is_constant(value: Any, expression: ast.expr | None) -> bool:
    """Whether an object may be what an expression of the source gives."""
    try:
        return value == ast.literal_eval(expression)  # type: ignore
    except ValueError:  # it is computed
        return not inspect.isfunction(value) or _from_package(value)


def _from_package(function: Any) -> bool:
    return inspect.isfunction(function) and function.__globals__["__name__"].startswith(f"{NAME}.")


# ---- sources -------------------------------------------------------------------------------------


class Source(NamedTuple):
    """A module, read from its file."""

    defined: dict[str, list[ast.stmt]]
    """Functions, methods (``Class.method``), classes and constants, and what belongs to each."""
    imported: dict[str, str]
    """What it imports of the package by name: ``module:name``, where the name may be a module."""


@functools.cache
def _module(name: str) -> Source | None:
    """A module of the package's mathematics; None where there is no source."""
    path = _path(name)
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body if path else []
    except OSError:
        return None
    defined: dict[str, list[ast.stmt]] = {}
    imported: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            defined[node.name] = [node]
            for each in node.decorator_list:  # a vjp belongs to its function
                if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
                    defined.get(each.value.id, []).append(node)
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            fields = [each for each in node.body if each not in methods]
            rest = ast.ClassDef(node.name, node.bases, node.keywords, fields, node.decorator_list)
            defined[node.name] = [rest]
            defined |= {f"{node.name}.{each.name}": [each] for each in methods}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            defined[node.targets[0].id] = [node]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined[node.target.id] = [node]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(NAME):
            source = (node.module or "").partition(".")[2]
            for each in node.names:
                imported[each.asname or each.name] = f"{source}:{each.name}"
    return Source(defined, imported) if path else None


@functools.cache
def _path(module: str) -> Path | None:
    base = PACKAGE.joinpath(*module.split("."))
    return next(filter(Path.is_file, (base.with_suffix(".py"), base / "__init__.py")), None)


def _find(name: str) -> str | None:
    """Where ``module:path`` is defined, through re-exports; None if not in the mathematics."""
    module, _, path = name.partition(":")
    if module.split(".")[0] not in ROOMS or module.split(".")[-1] in LAUNCHING:
        return None
    source = _module(module)
    if source is None or path in source.defined:
        return name if source and not _launches(source, path) else None
    further = source.imported.get(path)
    return _find(further) if further and further != name else None  # or it is a module


def _launches(source: Source, path: str) -> bool:
    """Whether this is what launches a fused form, or a constant of one."""
    if path.startswith("launch_"):
        return True
    value = getattr(source.defined[path][0], "value", None)
    called = value.func if isinstance(value, ast.Call) else None
    target = source.imported.get(called.id, "") if isinstance(called, ast.Name) else ""
    return target.partition(":")[2] in ("FusedOperation", "Reference")


@functools.cache
def _uses(name: str) -> dict[str, str]:
    """What a function uses: where each is defined, and where its module looks it up."""
    module, _, path = name.partition(":")
    source, uses = _module(module), {}
    assert source is not None
    nodes = [n for each in source.defined[path] for n in _walk(each)]
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    for node in nodes:
        alias = target = None
        if isinstance(node, ast.Name) and node.id not in bound - {path}:
            alias, target = f"{module}:{node.id}", f"{module}:{node.id}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            holder = node.value.id
            if holder in ("self", "cls") and "." in path:
                target = f"{module}:{path.split('.')[0]}.{node.attr}"
            elif holder in source.imported and holder not in bound:
                of = source.imported[holder].replace(":", ".").removeprefix(".")
                target = f"{of}:{node.attr}"
        where = target and _find(target)
        if where and where != name:
            uses[where] = alias or target
    return uses


@functools.cache
def _used(functions: tuple[str, ...]) -> tuple[str, ...]:
    """Functions and all that they use; nothing of what has no source."""
    used: dict[str, None] = {}
    waiting = list(functions)
    while waiting:
        name = waiting.pop()
        if name in used or _module(name.partition(":")[0]) is None:
            continue
        if (where := _find(name)) is None:
            raise LookupError(f"{name} isn't in the package: correct the fused form's Reference")
        used[where] = None
        waiting += _uses(where)
    return tuple(sorted(used))


@functools.cache
def _imports(functions: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """Of what functions use: its name, and where it is looked up under an import's."""
    pairs = (pair for name in _used(functions) for pair in _uses(name).items())
    return frozenset(pair for pair in pairs if pair[0] != pair[1])


@functools.cache
def _fingerprint(name: str) -> str:
    module, _, path = name.partition(":")
    source = _module(module)
    assert source is not None
    text = repr([_normal(node) for node in source.defined[path]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it that its fingerprint is of."""
    yield node
    for key, value in ast.iter_fields(node):
        if key not in LEFT_OUT:
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    yield from _walk(each)


def _normal(node: Any) -> Any:
    """A node as nested tuples that are alike in all versions of Python.

    Docstrings, annotations and messages (f-strings) are left out.
    """
    if isinstance(node, list):
        return [_normal(each) for each in node if not _is_text(each)]
    if isinstance(node, ast.JoinedStr) or not isinstance(node, ast.AST):
        return "text" if isinstance(node, ast.JoinedStr) else node
    fields = ((key, _normal(value)) for key, value in ast.iter_fields(node) if key not in LEFT_OUT)
    return type(node).__name__, [field for field in fields if field[1] not in (None, [])]


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
