"""Choose how an operation is computed: in plain MLX, in C++ on a CPU, or by a kernel on a GPU.

``Implementation(plain, name, cpu=..., gpu=...)`` declares the implementations of an operation.
The plain implementation defines the result: users may edit it, replace it at run time, or pass a
custom function. The fused implementations (C++ and kernels) compute only the released definition.
They aren't used, and one line of output reports this, if

- a file of plain functions was edited: its code differs from the hash in ``plain_files.txt``;
- a name in such a file was replaced while the program runs;
- a function was passed that isn't one of the package's plain functions.

Each file of plain functions ends with ``record(__name__)``, which stores the objects bound to the
file's names. An implementation depends on the files of its plain functions and on all recorded
files that these import. ``make fingerprints`` writes the hashes.
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
PACKAGE_NAME = PACKAGE.name
HASHES = Path(__file__).with_name("plain_files.txt")
COMPARING_VARIABLE = (
    "PUFFER_MLX_COMPARING"  # set in the environment while `make fingerprints` runs tests
)
IGNORED_FIELDS = {
    "annotation",
    "returns",
    "type_comment",
    "type_params",
    "kind",
    "ctx",
}  # syntax-tree fields that don't change results


def _short(module: str) -> str:
    return module.removeprefix(f"{PACKAGE_NAME}.")


refused: set[str] = set()  # names of implementations that failed on this machine's GPU
agreed: set[str] = set()  # names of implementations that this process has verified
_allowed: set[str] | None = None  # names of allowed implementations; None allows all
_chosen: set[str] | None = None  # names of the implementations chosen in ``allowing``


@contextlib.contextmanager
def allowing(names: set[str] | None) -> Iterator[set[str]]:
    """Allow only the named fused implementations in a ``with`` block.

    Yields:
        The set of names of the implementations that are chosen in the block; it grows.
    """
    global _allowed, _chosen
    previous = _allowed, _chosen
    chosen: set[str] = set()
    _allowed, _chosen = names, chosen
    try:
        yield chosen
    finally:
        _allowed, _chosen = previous


def verify_before_first_call(operation: "Implementation", arguments: tuple) -> None:
    """Verify a GPU implementation before its first call. ``verification.py`` replaces this stub."""


# ---- choosing ------------------------------------------------------------------------------------


class Implementation:
    """An operation with several implementations. A call runs the one chosen for the device.

    Args:
        plain: the function in plain MLX, or names of modules of plain functions ("ppo.loss").
        name: name of the fused implementations in messages ("the kernel of advantages").
        cpu: name of the extension's function, or a function that calls the extension.
        gpu: function that launches a kernel.
        float32: indices of results that stay float32, for a function of the extension that supports
            only float32: arguments and other results are cast. None if no casts are needed.
        gemm: True if the extension's function needs a BLAS.
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
            self._modules = tuple(f"{PACKAGE_NAME}.{module}" for module in plain)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the operation on the default device. Verifies a kernel before its first call."""
        chosen = self.choose()
        if chosen and chosen is self.gpu and _chosen is None and self.name not in agreed:
            verify_before_first_call(self, arguments)
            chosen = self.choose()
        return (chosen or self._plain)(*arguments, **keywords)

    def choose(self, *passed: Callable[..., Any]) -> Any:
        """Choose the fused implementation of the operation for the default device.

        Returns:
            The C++ function or the function that launches a kernel; None to use plain MLX.

        Args:
            passed: functions or bound methods that the operation calls; may be custom ones.
        """
        if _allowed is not None and self.name not in _allowed:  # see ``verification.py``
            return None
        if backend() == "cpu":
            extension: Any = self.cpu and cpu_extension.load_extension()
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
        """True if the GPU implementation failed on this machine (``verification.py``)."""
        return self.name in refused

    def unchanged(self, *passed: Callable[..., Any], report: bool = True) -> bool:
        """Return True if the operation's plain functions are as released, not edited or replaced.

        Args:
            passed: functions or bound methods that the operation calls; may be custom ones.
            report: True prints one line, once, about changed functions.
        """
        if COMPARING_VARIABLE in os.environ:
            return True
        modules = self._modules
        if passed:
            custom = [qualified_name(each) for each in passed if not _is_recorded(each)]
            if custom:
                return self._refuse(custom, "is given", report)
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
    """Return the function that computes an operation with the C++ extension."""
    if callable(operation.cpu):
        return operation.cpu
    function = getattr(extension, operation.cpu)
    if operation.float32 is None:
        return function
    return low_precision.in_float32(function, operation.float32)


@functools.cache
def _report(line: str) -> None:
    verbosity.note(f"puffer_mlx: {line}", error=True)


# ---- dependencies --------------------------------------------------------------------------------


@functools.cache
def _dependencies(modules: tuple[str, ...]) -> tuple[list[Names], list[str]]:
    """Find the plain functions and files on which an implementation depends.

    Returns:
        The names recorded in the modules and in their imports, and the paths of edited files.
    """
    records: dict[str, Recorded] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in recorded:
            import_module(module)
        if module not in records and module in recorded:
            records[module] = recorded[module]
            waiting += records[module].imports & {*recorded}
    edited = [path for module in records if (path := _edited(module))]
    return [names for each in records.values() for names in each.names], edited


def _replaced(names: Sequence[Names]) -> list[str]:
    pairs = ((each, key, value) for each in names for key, value in each.recorded)
    return [f"{n.owner}.{key}" for n, key, value in pairs if n.current.get(key) is not value]


def _function(passed: Any) -> Any:
    return getattr(passed, "__func__", passed)


def qualified_name(passed: Any) -> str:
    """Return a function's name as ``module:function``, without a leading ``puffer_mlx.``."""
    function = _function(passed)
    path = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{_short(module)}:{path}"


def _is_recorded(passed: Any) -> bool:
    """Return True if a function or method is one of the package's plain functions."""
    module, _, path = qualified_name(passed).partition(":")
    owner, _, key = f"{module}.{path}".rpartition(".")
    record = recorded.get(f"{PACKAGE_NAME}.{module}", Recorded([], set()))
    names = [each for each in record.names if each.owner == owner]
    return any((key, _function(passed)) in each.recorded for each in names)


# ---- files ---------------------------------------------------------------------------------------


class Hashes(NamedTuple):
    """Hashes that show if a Python file was edited.

    Args:
        source: Hash of the file's text.
        code: Hash of its code: the text may differ in comments, docstrings, annotations and
            f-strings (``code_hash``).
    """

    source: str
    code: str


@functools.cache
def released_hashes() -> dict[str, Hashes]:
    """Return the released hashes of the files of plain functions, by path (``plain_files.txt``)."""
    lines = HASHES.read_text().splitlines() if HASHES.exists() else []
    return {path: Hashes(*hashes) for path, *hashes in map(str.split, lines)}


@functools.cache
def _edited(module: str) -> str:
    """Return the path of a module's file if its code differs from the release, else ""."""
    file = Path(str(sys.modules[module].__file__))
    path = file.relative_to(PACKAGE).as_posix()
    hashes = released_hashes().get(path)
    if hashes is None or file.suffix != ".py" or not file.exists():
        return ""
    source = file.read_bytes()
    same = text_hash(source) == hashes.source or code_hash(source) == hashes.code
    return "" if same else path


def code_hash(source: bytes) -> str:
    """Return a hash of Python code without comments, docstrings, annotations and f-strings."""
    return text_hash(repr(_computed(ast.parse(source).body)))


def _computed(node: Any) -> Any:
    """Convert a node of a syntax tree to nested tuples that are the same in all Python versions."""
    if isinstance(node, list):
        return [_computed(each) for each in node if not _is_text(each)]
    if isinstance(node, ast.JoinedStr) or not isinstance(node, ast.AST):
        return "text" if isinstance(node, ast.JoinedStr) else node
    items = ((key, _computed(v)) for key, v in ast.iter_fields(node) if key not in IGNORED_FIELDS)
    return type(node).__name__, [item for item in items if item[1] not in (None, [])]


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
