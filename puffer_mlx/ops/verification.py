"""Verify GPU implementations where they run: each must compile, launch and agree with plain MLX.

``verified(function, ...)`` wraps a function that uses implementations. Its first call on a GPU is
computed twice from the arguments of that call: by plain MLX, and by our kernels. If a kernel
doesn't compile or launch, or a result differs by more than rounding, the implementations that
cause it are refused, and plain MLX computes their operations instead. An operation that is called
outside such a function is verified in the same way (``verify_operation``). The result is stored in
the cache folder by GPU, system, MLX, kernel texts and the arguments' shapes. Ranks that train
together refuse what any of them refused (``agreeing``).
"""

import contextlib
import functools
import json
import platform
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from puffer_mlx.ops import implementation
from puffer_mlx.system import verbosity
from puffer_mlx.system.backend import backend, kernel_substitute
from puffer_mlx.system.devices import building, for_cpu, has_gpu
from puffer_mlx.system.files import publish
from puffer_mlx.system.prebuilt import text_hash
from puffer_mlx.system.private_folders import cache_directory

UNIT = {"fp32": 2.0**-11, "bf16": 2.0**-8, "fp16": 2.0**-11}  # fp32 products may be of TF32
SOURCES = {".h", ".py"}
FEW = 0.02  # share of numbers that may differ if draws do: rounding can change a draw
View = Callable[[tuple, Any], Any]
_agree: ContextVar[Callable[[], Any] | None] = ContextVar("agree", default=None)


class Agreement(NamedTuple):
    """Why results aren't accepted, and the implementations that were chosen."""

    fault: str  # empty: they agree
    chosen: set[str]


def applies() -> bool:
    """Return True if kernels run on a GPU of this machine."""
    return backend() != "cpu" and kernel_substitute() is None and has_gpu()


@contextlib.contextmanager
def agreeing(agree: Callable[[], Any]) -> Iterator[None]:
    """Call ``agree`` after each verification of this thread within the block.

    Args:
        agree: refuses what any rank refused. All ranks must run the same functions in the block.
    """
    token = _agree.set(agree)
    try:
        yield
    finally:
        _agree.reset(token)


class Verified:
    """A function that verifies the implementations it uses before its first call on a GPU.

    Args:
        raw: the function without ``mx.compile``; takes and returns trees of arrays.
        run: the function that a call runs, for example ``raw`` compiled; None for ``raw``.
        context: text that identifies the operations of the function, part of the cache key.
        kind: the precision of products: ``fp32``, ``bf16`` or ``fp16``.
        view: maps the arguments and the result to the tree that is compared.
        draws: True if results depend on draws, so that a few may differ. Implied by results that
            are integers.
        indexes: True to compute plain MLX's results on the CPU, for functions that gather and
            scatter: on CUDA, MLX compiles each such kernel when it is first used, for 3 s.
        example: maps the arguments of the call to those that the results are compared for.
    """

    def __init__(
        self,
        raw: Callable[..., Any],
        run: Callable[..., Any] | None = None,
        *,
        context: str = "",
        kind: str = "fp32",
        view: View = lambda arguments, result: result,
        draws: bool = False,
        indexes: bool = False,
        example: Callable[[tuple], tuple] = lambda arguments: arguments,
    ) -> None:
        self._raw = raw
        self._run = run or raw
        self._view = view
        self._draws = draws
        self._indexes = indexes
        self._example = example
        self._context = context
        self._bound = UNIT[kind] ** 0.5
        self._seen: set[tuple[bool, ...]] = set()  # which arguments were None in earlier calls

    def __call__(self, *arguments: Any) -> Any:
        """Run the function. Verifies it before its first run on a GPU."""
        if applies():
            given = tuple(each is None for each in arguments)
            if given not in self._seen and _is_concrete(arguments):
                self._seen.add(given)
                self.verify(arguments)
        return self._run(*arguments)

    def verify(self, arguments: tuple) -> None:
        """Refuse the implementations that don't compute what plain MLX does."""
        self._verify(arguments)
        if agree := _agree.get():
            agree()

    def _verify(self, arguments: tuple) -> None:
        path = cache_directory() / "verified" / f"{self._signature(arguments)}.json"
        with contextlib.suppress(OSError, ValueError):
            stored = json.loads(path.read_text())
            refuse(stored["refused"])
            implementation.agreed.update(stored["agreed"])
            return
        with building:
            before = set(implementation.refused)
            arguments = self._example(arguments)
            expected = self._plain(arguments)
            while (compared := self._compare(arguments, expected, None)).fault and compared.chosen:
                culprits = [
                    each
                    for each in sorted(compared.chosen)
                    if self._compare(arguments, expected, {each}).fault
                ]
                refuse(culprits or compared.chosen, compared.fault)
            implementation.agreed.update(compared.chosen)
        with contextlib.suppress(Exception), publish(path) as file:  # the next start verifies again
            stored = {"refused": implementation.refused - before, "agreed": compared.chosen}
            file.write_text(json.dumps({key: sorted(names) for key, names in stored.items()}))

    def _plain(self, arguments: tuple) -> list:
        """Compute the function with no implementation allowed, by MLX's own kernels."""
        device = mx.cpu if self._indexes else mx.default_device()
        if self._indexes:
            arguments = _for_cpu(arguments)
        with implementation.allowing(set()), mx.stream(device):
            return _evaluated(self._view(arguments, self._raw(*arguments)))

    def _compare(self, arguments: tuple, expected: Any, allowed: set[str] | None) -> Agreement:
        """Compute the function with all allowed implementations, and compare the results."""
        with implementation.allowing(allowed) as chosen:
            try:
                found = _evaluated(self._view(arguments, self._raw(*arguments)))
            except Exception as error:  # MLX, NVRTC and Metal raise several kinds
                lines = str(error).strip().splitlines()
                return Agreement(lines[0] if lines else type(error).__name__, chosen)
        return Agreement(difference(found, expected, self._bound, self._draws), chosen)

    def _signature(self, arguments: tuple) -> str:
        found = [leaf for _, leaf in tree_flatten(list(arguments))]
        shapes = [(a.shape, str(a.dtype)) if isinstance(a, mx.array) else a for a in found]
        return text_hash(machine(), self._context, str(shapes))


def verified(
    raw: Callable[..., Any], run: Callable[..., Any] | None = None, **options: Any
) -> Callable[..., Any]:
    """Return ``Verified(raw, run, **options)``; on a machine without a GPU ``run`` itself."""
    if not has_gpu() and kernel_substitute() is None:
        return run or raw
    return Verified(raw, run, **options)


def verify_operation(operation: implementation.Implementation, arguments: tuple) -> None:
    """Verify an operation that is called directly, if its arguments can be evaluated."""
    if applies() and _is_concrete(arguments):
        implementation.agreed.add(operation.name)
        Verified(operation, context=operation.name)._verify(arguments)


implementation.before_first_call = verify_operation


def refuse(names: Iterable[str], reason: str = "", gpu: str = "this GPU") -> None:
    """Stop using implementations on GPUs, and print one line for each."""
    for name in sorted({*names} - implementation.refused):
        implementation.refused.add(name)
        because = f" ({reason})" if reason else ""
        verbosity.note(
            f"puffer_mlx: {name} fails on {gpu}{because}, so plain MLX runs, slower; hint:"
            " puffer-mlx check-gpu --report",
            error=True,
        )


@functools.cache
def machine() -> str:
    """Return a text that identifies GPU, system, MLX and the sources of all kernels."""
    gpu = mx.device_info(mx.gpu)
    name = gpu.get("device_name"), gpu.get("architecture")
    rooms = [implementation.PACKAGE / room for room in ("ops", "policy", "ppo")]
    paths = sorted(path for room in rooms for path in room.rglob("*") if path.suffix in SOURCES)
    sources = text_hash(*(path.read_bytes() for path in paths))
    return f"{name} {platform.platform()} {version('mlx')} {sources}"


def difference(found: list, expected: list, bound: float, draws: bool = False) -> str:
    """Return how results differ from the expected ones by more than a bound, or an empty text.

    A kernel may return more results than plain MLX: that of targets adds their moments.
    """
    if len(found) < len(expected):
        return f"{len(found)} results, expected {len(expected)}"
    pairs = [(a, b) for a, b in zip(found, expected, strict=False) if not (a is None or b is None)]
    draws = draws or any(
        mx.issubdtype(each.dtype, mx.integer) and each.size > 1 for _, each in pairs
    )
    with mx.stream(mx.cpu):
        faults = (_difference(ours, theirs, bound, draws) for ours, theirs in pairs)
        return next(filter(None, faults), "")


def _difference(ours: mx.array, theirs: mx.array, bound: float, draws: bool) -> str:
    if ours.shape != theirs.shape:
        return f"a result of shape {ours.shape}, expected {theirs.shape}"
    ours, theirs = (array.astype(mx.float32).reshape(-1) for array in (ours, theirs))
    finite = mx.isfinite(theirs)
    if wrong := _number(mx.sum(mx.isfinite(ours) != finite)):
        return f"{wrong:.0f} of {ours.size} numbers are finite in one result alone"
    ours, theirs = (mx.where(finite, array, 0) for array in (ours, theirs))
    apart = mx.abs(ours - theirs)
    largest = max(_number(mx.max(mx.abs(theirs))), 1e-6)
    norm = _norm(theirs / largest)  # of quotients, whose squares can't overflow
    off = _norm(apart / largest) / max(norm, 1e-6)
    few = draws and _number(mx.mean(apart > bound * largest)) <= FEW
    if off <= bound or few:
        return ""
    return f"a result is off by {off:.1%} of its norm, expected {bound:.1%} at most"


def _number(scalar: mx.array) -> float:
    return float(scalar.item())  # type: ignore


def _norm(array: mx.array) -> float:
    return _number(mx.sqrt(mx.sum(mx.square(array))))


def _evaluated(tree: Any) -> list[mx.array | None]:
    """Evaluate a tree's leaves for reading on the CPU. Leaves that aren't arrays become None."""
    leaves = [leaf if isinstance(leaf, mx.array) else None for _, leaf in tree_flatten([tree])]
    mx.eval([leaf for leaf in leaves if leaf is not None])
    return _for_cpu(leaves)


def _for_cpu(tree: Any) -> Any:
    """Return a tree of arrays for the CPU to read; the emulation's are the CPU's already."""
    return for_cpu(tree) if kernel_substitute() is None else tree


def _is_concrete(tree: Any) -> bool:
    """Return True if a tree's arrays can be evaluated: no function is being traced."""
    try:
        mx.eval([leaf for _, leaf in tree_flatten([tree]) if isinstance(leaf, mx.array)])
    except (ValueError, RuntimeError):
        return False
    return True
