"""Choose how an operation is computed: in plain MLX, in C++ on a CPU, or by a kernel on a GPU.

``Implementation(plain, name, cpu=..., gpu=...)`` declares the implementations of an operation.
The plain one is the definition: users may edit it, replace it at run time, or pass a custom
function. The others compute only the released definition, so they aren't used if

- a file of plain functions was edited: its code differs from the hash in ``plain_files.txt``;
- a name in such a file was replaced while the program runs;
- a function was passed that isn't one of the package's plain functions.

One line of output reports this. Each file of plain functions ends with ``record(__name__)``, which
stores the objects bound to its names. An implementation depends on the files of its plain functions
and on all recorded files that these import. ``make fingerprints`` writes the hashes.
"""

import ast
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from puffer_mlx.ops import cpu_extension, low_precision
from puffer_mlx.system import verbosity
from puffer_mlx.system.backend import backend
from puffer_mlx.system.plain_functions import Names, Recorded, recorded
from puffer_mlx.system.prebuilt import text_hash

PACKAGE = Path(__file__).parents[1]
NAME = PACKAGE.name
HASHES = Path(__file__).with_name("plain_files.txt")
COMPARING = "PUFFER_MLX_COMPARING"  # set in the environment while `make fingerprints` runs tests
NOT_COMPUTED = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx"}  # of a node


def _short(module: str) -> str:
    return module.removeprefix(f"{NAME}.")


refused: set[str] = set()  # names of implementations that failed on this machine's GPU
agreed: set[str] = set()  # names of implementations that this process has verified
_allowed: set[str] | None = None  # names of allowed implementations; None: all
_chosen: set[str] | None = None  # names of chosen implementations; None outside ``allowing``


@contextlib.contextmanager
def allowing(names: set[str] | None) -> Iterator[set[str]]:
    """Allow only some implementations. Yields the set of implementations chosen in the context."""
    global _allowed, _chosen
    before = _allowed, _chosen
    chosen: set[str] = set()
    _allowed, _chosen = names, chosen
    try:
        yield chosen
    finally:
        _allowed, _chosen = before


def before_first_call(operation: "Implementation", arguments: tuple) -> None:
    """Verify a GPU's implementation; ``verification.py`` replaces this function."""


# ---- choosing ------------------------------------------------------------------------------------


class Implementation:
    """The implementations of an operation. A call runs the chosen one.

    Args:
        plain: the function in plain MLX, or names of modules of plain functions ("ppo.loss").
        name: name of the fused implementations in messages ("the kernel of advantages").
        cpu: name of the extension's function, or a function that calls the extension.
        gpu: function that launches a kernel.
        float32: indices of results that stay float32. If given, the extension's function supports
            only float32, and arguments and other results are cast.
        gemm: True if the extension's function multiplies matrices.
    """

    def __init__(
        self,
        plain: Callable[..., Any] | Sequence[str],
        name: str,
        *,
        cpu: str | Callable[..., Any] | None = None,
        gpu: Callable[..., Any] | None = None,
        float32: tuple[int, ...] | None = None,
        gemm: bool = False,
    ) -> None:
        self.name = name
        self.gpu = gpu
        self._plain: Any = plain
        self.cpu: Any = cpu
        self.float32 = float32
        self.gemm = gemm
        if callable(plain):
            functools.update_wrapper(self, plain)
            self._modules = (plain.__module__,)
        else:
            self._modules = tuple(f"{NAME}.{module}" for module in plain)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the implementation for the default device. Verifies a GPU's before its first call."""
        chosen = self.choose()
        if chosen and chosen is self.gpu and _chosen is None and self.name not in agreed:
            before_first_call(self, arguments)
            chosen = self.choose()
        return (chosen or self._plain)(*arguments, **keywords)

    def choose(self, *passed: Callable[..., Any]) -> Any:
        """Return the C++ function or the GPU function for the default device; None: use plain MLX.

        Args:
            passed: functions or bound methods that the operation calls; may be custom ones.
        """
        if _allowed is not None and self.name not in _allowed:  # see ``verification.py``
            return None
        if backend() == "cpu":
            extension: Any = self.cpu and cpu_extension.load()
            usable = extension and (not self.gemm or extension.has_gemm())
            chosen = _of_extension(self, extension) if usable else None
        else:
            chosen = None if self.is_refused else self.gpu
        if not chosen or not self.unchanged(*passed):
            return None
        if _chosen is not None:
            _chosen.add(self.name)
        return chosen

    @property
    def is_refused(self) -> bool:
        """True if the GPU's implementation failed on this machine: see ``verification.py``."""
        return self.name in refused

    def unchanged(self, *passed: Callable[..., Any], report: bool = True) -> bool:
        """Return True if all plain functions are the released ones.

        Args:
            passed: functions or bound methods that the operation calls; may be custom ones.
            report: True to print one line, once, about changed functions.
        """
        if COMPARING in os.environ:
            return True
        modules = self._modules
        if passed:
            foreign = [name_of(each) for each in passed if not _is_recorded(each)]
            if foreign:
                return self._refuse(foreign, "is given", report)
            modules = (*modules, *(_function(each).__module__ for each in passed))
        names, edited = _dependencies(modules)
        if edited:
            return self._refuse(edited, "changed", report)
        for each in names:
            if not each.recorded <= each.current.items():
                return self._refuse(_replaced(names), "changed", report)
        return True

    def _refuse(self, names: Sequence[str], verb: str, report: bool) -> bool:
        if report:
            listed = ", ".join(sorted({name.replace(":", ".") for name in names}))
            _report(f"{listed} {verb}: {self.name} isn't used, slower")
        return False


@functools.cache
def _of_extension(operation: Implementation, extension: ModuleType) -> Any:
    """Return the function that computes an operation by the extension."""
    if callable(operation.cpu):
        return operation.cpu
    function = getattr(extension, operation.cpu)
    if operation.float32 is None:
        return function
    return low_precision.in_float32(function, operation.float32)


@functools.cache
def _report(line: str) -> None:
    verbosity.note(f"puffer_mlx: {line}", error=True)


# ---- what an implementation depends on -----------------------------------------------------------


@functools.cache
def _dependencies(modules: tuple[str, ...]) -> tuple[list[Names], list[str]]:
    """Return the names recorded in modules and their imports, and the paths of edited files."""
    found: dict[str, Recorded] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in recorded:
            import_module(module)
        if module not in found and module in recorded:
            found[module] = recorded[module]
            waiting += found[module].imports & {*recorded}
    edited = [path for module in found if (path := _edited(module))]
    return [names for each in found.values() for names in each.names], edited


def _replaced(names: Sequence[Names]) -> list[str]:
    pairs = ((each, key, value) for each in names for key, value in each.recorded)
    return [f"{n.owner}.{key}" for n, key, value in pairs if n.current.get(key) is not value]


def _function(passed: Any) -> Any:
    return getattr(passed, "__func__", passed)


def name_of(passed: Any) -> str:
    """Return a function's name as ``module:function``, the package's without ``puffer_mlx.``."""
    function = _function(passed)
    path = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{_short(module)}:{path}"


def _is_recorded(passed: Any) -> bool:
    """Return True for one of the package's plain functions or methods."""
    module, _, path = name_of(passed).partition(":")
    place, _, key = f"{module}.{path}".rpartition(".")
    known = recorded.get(f"{NAME}.{module}", Recorded([], set()))
    names = [each for each in known.names if each.owner == place]
    return any((key, _function(passed)) in each.recorded for each in names)


# ---- files ---------------------------------------------------------------------------------------


class Hashes(NamedTuple):
    """Hashes of a file: ``source`` of its text, ``code`` without comments and messages."""

    source: str
    code: str


@functools.cache
def released() -> dict[str, Hashes]:
    """Return the hashes in ``plain_files.txt``, by path."""
    lines = HASHES.read_text().splitlines() if HASHES.exists() else []
    return {path: Hashes(*hashes) for path, *hashes in map(str.split, lines)}


@functools.cache
def _edited(module: str) -> str:
    """Return the path of a module's file if its code was edited, else an empty string."""
    file = Path(str(sys.modules[module].__file__))
    path = file.relative_to(PACKAGE).as_posix()
    known = released().get(path)
    if known is None or file.suffix != ".py" or not file.exists():
        return ""
    source = file.read_bytes()
    same = text_hash(source) == known.source or code_hash(source) == known.code
    return "" if same else path


def code_hash(source: bytes) -> str:
    """Return a hash of Python code without comments, docstrings, annotations and f-strings."""
    return text_hash(repr(_computed(ast.parse(source).body)))


def _computed(node: Any) -> Any:
    """Return a node of a syntax tree as nested tuples, the same in all versions of Python."""
    if isinstance(node, list):
        return [_computed(each) for each in node if not _is_text(each)]
    if isinstance(node, ast.JoinedStr) or not isinstance(node, ast.AST):
        return "text" if isinstance(node, ast.JoinedStr) else node
    named = ((key, _computed(v)) for key, v in ast.iter_fields(node) if key not in NOT_COMPUTED)
    return type(node).__name__, [field for field in named if field[1] not in (None, [])]


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
