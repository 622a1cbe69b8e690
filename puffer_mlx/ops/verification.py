"""Verify GPU kernels on the user's machine: each must compile, launch and agree with plain MLX.

``verified(function, ...)`` wraps a function that calls kernels. Before its first call on a GPU, its
result is computed twice from the same arguments: by plain MLX and by the kernels. If a kernel
doesn't compile or launch, or a result differs by more than rounding, the kernels that cause it are
refused, and plain MLX computes their operations from then on. An operation that is called outside
such a function is verified in the same way (``verify_operation``).

The outcome is cached on disk by GPU, system, MLX, kernel sources and the arguments' shapes. Ranks
that train together refuse every kernel that any of them refused (``sharing_refusals``).
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

ROUNDING = {"fp32": 2.0**-11, "bf16": 2.0**-8, "fp16": 2.0**-11}  # fp32 products may use TF32
SOURCE_SUFFIXES = {".h", ".py"}
# Fraction of numbers that may differ if results are sampled: rounding can change a sample.
MAX_SAMPLED_FRACTION = 0.02
View = Callable[[tuple, Any], Any]
_agree: ContextVar[Callable[[], Any] | None] = ContextVar("agree", default=None)


class KernelComparison(NamedTuple):
    """Outcome of comparing the results of kernels with those of plain MLX."""

    reason: str  # why the results aren't accepted; "" if they agree
    chosen: set[str]  # names of the implementations that were used


def uses_gpu_kernels() -> bool:
    """Return True if operations run as kernels on a GPU of this machine."""
    return backend() != "cpu" and kernel_substitute() is None and has_gpu()


@contextlib.contextmanager
def sharing_refusals(agree: Callable[[], Any]) -> Iterator[None]:
    """Share refused kernels between ranks after each verification in a ``with`` block.

    Args:
        agree: called after each verification in this thread; refuses the kernels that any rank
            refused. All ranks must run the same functions in the block.
    """
    token = _agree.set(agree)
    try:
        yield
    finally:
        _agree.reset(token)


class Verified:
    """Wrap a function so that the kernels it uses are verified before its first call on a GPU.

    Args:
        raw: the function without ``mx.compile``; takes and returns trees of arrays.
        run: the function that a call runs, for example ``raw`` compiled; None for ``raw``.
        context: text that identifies the function's operations, for the cache key.
        kind: precision of matrix products: ``fp32``, ``bf16`` or ``fp16``.
        view: maps the arguments and the result to the tree of arrays to compare.
        draws: True if results depend on random draws, so that a few numbers may differ. Integer
            results imply it.
        indexes: True to compute plain MLX's results on the CPU, for functions that gather and
            scatter: on CUDA, MLX takes 3 s to compile each such kernel at its first use.
        example: maps a call's arguments to the arguments that are used for the comparison.
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
        self._bound = ROUNDING[kind] ** 0.5
        # For each argument whether it was None, in the calls verified so far.
        self._verified_patterns: set[tuple[bool, ...]] = set()

    def __call__(self, *arguments: Any) -> Any:
        """Run the wrapped function. Verifies its kernels before its first run on a GPU."""
        if uses_gpu_kernels():
            pattern = tuple(each is None for each in arguments)
            if pattern not in self._verified_patterns and _is_concrete(arguments):
                self._verified_patterns.add(pattern)
                self.verify(arguments)
        return self._run(*arguments)

    def verify(self, arguments: tuple) -> None:
        """Verify the function's kernels: refuse those whose results differ from plain MLX's."""
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
            refused_before = set(implementation.refused)
            arguments = self._example(arguments)
            expected = self._plain(arguments)
            while (outcome := self._compare(arguments, expected, None)).reason and outcome.chosen:
                culprits = [
                    each
                    for each in sorted(outcome.chosen)
                    if self._compare(arguments, expected, {each}).reason
                ]
                refuse(culprits or outcome.chosen, outcome.reason)
            implementation.agreed.update(outcome.chosen)
        with contextlib.suppress(Exception), publish(path) as file:  # the next start verifies again
            newly_refused = implementation.refused - refused_before
            stored = {"refused": newly_refused, "agreed": outcome.chosen}
            file.write_text(json.dumps({key: sorted(names) for key, names in stored.items()}))

    def _plain(self, arguments: tuple) -> list:
        """Compute the verified function in plain MLX, without kernels."""
        device = mx.cpu if self._indexes else mx.default_device()
        if self._indexes:
            arguments = _for_cpu(arguments)
        with implementation.allowing(set()), mx.stream(device):
            return _evaluated(self._view(arguments, self._raw(*arguments)))

    def _compare(
        self, arguments: tuple, expected: Any, allowed: set[str] | None
    ) -> KernelComparison:
        """Compare the function's results with expected ones, using only the allowed kernels."""
        with implementation.allowing(allowed) as chosen:
            try:
                results = _evaluated(self._view(arguments, self._raw(*arguments)))
            except Exception as error:  # MLX, NVRTC and Metal raise various exceptions
                lines = str(error).strip().splitlines()
                return KernelComparison(lines[0] if lines else type(error).__name__, chosen)
        reason = describe_difference(results, expected, self._bound, self._draws)
        return KernelComparison(reason, chosen)

    def _signature(self, arguments: tuple) -> str:
        leaves = [leaf for _, leaf in tree_flatten(list(arguments))]
        shapes = [(a.shape, str(a.dtype)) if isinstance(a, mx.array) else a for a in leaves]
        return text_hash(describe_gpu_setup(), self._context, str(shapes))


def verified(
    raw: Callable[..., Any], run: Callable[..., Any] | None = None, **options: Any
) -> Callable[..., Any]:
    """Wrap a function that calls kernels in ``Verified``; without a GPU, don't wrap it."""
    if not has_gpu() and kernel_substitute() is None:
        return run or raw
    return Verified(raw, run, **options)


def verify_operation(operation: implementation.Implementation, arguments: tuple) -> None:
    """Verify the kernel of an operation that is called directly, unless it is being traced."""
    if uses_gpu_kernels() and _is_concrete(arguments):
        implementation.agreed.add(operation.name)
        Verified(operation, context=operation.name)._verify(arguments)


implementation.verify_before_first_call = verify_operation


def refuse(names: Iterable[str], reason: str = "", gpu: str = "this GPU") -> None:
    """Stop using GPU kernels from now on, and print one line for each.

    Args:
        names: names of the kernels' implementations.
        reason: cause of the failure, for the message; "" if unknown.
        gpu: GPU on which they fail, for the message.
    """
    for name in sorted({*names} - implementation.refused):
        implementation.refused.add(name)
        because = f" ({reason})" if reason else ""
        verbosity.note(
            f"puffer_mlx: {name} fails on {gpu}{because}, so plain MLX runs, slower; hint:"
            " puffer-mlx check-gpu --report",
            error=True,
        )


@functools.cache
def describe_gpu_setup() -> str:
    """Return a text that identifies this machine's GPU and system, MLX and all kernel sources."""
    gpu = mx.device_info(mx.gpu)
    name = gpu.get("device_name"), gpu.get("architecture")
    folders = [implementation.PACKAGE / folder for folder in ("ops", "policy", "ppo")]
    paths = sorted(
        path for folder in folders for path in folder.rglob("*") if path.suffix in SOURCE_SUFFIXES
    )
    sources = text_hash(*(path.read_bytes() for path in paths))
    return f"{name} {platform.platform()} {version('mlx')} {sources}"


def describe_difference(results: list, expected: list, bound: float, draws: bool = False) -> str:
    """Describe how results differ from expected results.

    Args:
        results: arrays or None. May have more items than ``expected``: the kernel that gathers
            targets also returns their moments.
        expected: arrays or None.
        bound: largest accepted error, relative to the norm of an expected array.
        draws: True if a few numbers may differ because of random draws.

    Returns:
        The description of the first difference, or "" if all results agree.
    """
    if len(results) < len(expected):
        return f"{len(results)} results, expected {len(expected)}"
    pairs = [
        (a, b) for a, b in zip(results, expected, strict=False) if not (a is None or b is None)
    ]
    draws = draws or any(
        mx.issubdtype(each.dtype, mx.integer) and each.size > 1 for _, each in pairs
    )
    with mx.stream(mx.cpu):
        reasons = (_difference(result, reference, bound, draws) for result, reference in pairs)
        return next(filter(None, reasons), "")


def _difference(result: mx.array, expected: mx.array, bound: float, draws: bool) -> str:
    if result.shape != expected.shape:
        return f"a result of shape {result.shape}, expected {expected.shape}"
    result, expected = (array.astype(mx.float32).reshape(-1) for array in (result, expected))
    finite = mx.isfinite(expected)
    if wrong := _to_float(mx.sum(mx.isfinite(result) != finite)):
        return f"{wrong:.0f} of {result.size} numbers are finite in one result alone"
    result, expected = (mx.where(finite, array, 0) for array in (result, expected))
    error = mx.abs(result - expected)
    largest = max(_to_float(mx.max(mx.abs(expected))), 1e-6)
    norm = _norm(expected / largest)  # squares of these quotients can't overflow
    relative_error = _norm(error / largest) / max(norm, 1e-6)
    fraction = _to_float(mx.mean(error > bound * largest))
    if relative_error <= bound or (draws and fraction <= MAX_SAMPLED_FRACTION):
        return ""
    return f"a result is off by {relative_error:.1%} of its norm, expected {bound:.1%} at most"


def _to_float(scalar: mx.array) -> float:
    return float(scalar.item())  # type: ignore


def _norm(array: mx.array) -> float:
    return _to_float(mx.sqrt(mx.sum(mx.square(array))))


def _evaluated(tree: Any) -> list[mx.array | None]:
    """Evaluate a tree's arrays for reading on the CPU. Leaves that aren't arrays become None."""
    leaves = [leaf if isinstance(leaf, mx.array) else None for _, leaf in tree_flatten([tree])]
    mx.eval([leaf for leaf in leaves if leaf is not None])
    return _for_cpu(leaves)


def _for_cpu(tree: Any) -> Any:
    """Make a tree's arrays readable on the CPU. Emulated GPUs of tests use the CPU's memory."""
    return for_cpu(tree) if kernel_substitute() is None else tree


def _is_concrete(tree: Any) -> bool:
    """Return True if a tree's arrays can be evaluated, False while MLX traces a function."""
    try:
        mx.eval([leaf for _, leaf in tree_flatten([tree]) if isinstance(leaf, mx.array)])
    except (ValueError, RuntimeError):
        return False
    return True
