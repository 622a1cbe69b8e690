"""Which form of an operation the default device has, at the time when a function is traced.

On a CPU it is the extension's (``cpu_extension.py``), on a GPU a kernel (``gpu/``); without either
it is plain MLX, the reference. The device is asked for in one place, ``system/backend.py``.

Activations and weights may be float32, bfloat16 or float16: a result has the dtype of what it was
made of, and a gradient that of what it is a gradient by. Sums are taken in float32 everywhere; on a
CPU, so is the rest, between casts (``low_precision.py``). Recurrent states are float32, or many
small steps would be rounded away.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.fingerprints import Reference, name_of
from puffer_mlx.ops.low_precision import in_float32
from puffer_mlx.system.backend import backend


def kernel_on_gpu(launch: Callable[..., Any], reference: Reference, *functions: Any) -> Any:
    """What launches a kernel where the default device is a GPU, else None.

    Args:
        launch: launches it.
        reference: the plain functions that it computes; if one was changed, there is no kernel.
        *functions: further ones, see ``Reference.holds``.
    """
    return launch if backend() != "cpu" and reference.holds(*functions) else None


def fused(
    form: str,
    *,
    test: str,
    cost: str,
    on_gpu: Callable[..., Any] | None = None,
    on_cpu: str | Callable[..., Any] = "",
) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a plain function that fused forms compute, too, with the same arguments.

    The function then has ``form``, which returns the default device's fused form, or None.

    Args:
        form: what they are, as ``test`` and ``cost`` for the function's ``Reference``.
        test: see there.
        cost: see there.
        on_gpu: launches a kernel.
        on_cpu: the name of the extension's function, or a function that calls the extension.
    """

    def decorate(plain: Callable[..., Any]) -> Any:
        reference = Reference(form, (name_of(plain),), test, cost)

        def chosen() -> Any:
            extension = cpu_extension.load() if on_cpu and backend() == "cpu" else None
            if backend() != "cpu":
                launch = on_gpu
            elif extension is None:
                launch = None
            else:
                launch = getattr(extension, on_cpu) if isinstance(on_cpu, str) else on_cpu
            return launch if launch and reference.holds() else None

        @functools.wraps(plain)
        def call(*arguments: Any, **settings: Any) -> Any:
            return (chosen() or plain)(*arguments, **settings)

        call.form = chosen  # type: ignore
        return call

    return decorate


def extension_on_cpu(reference: Reference | None = None) -> Any:
    """The C++ extension where the default device is a CPU that has it, else None.

    Args:
        reference: the plain functions that its function computes; if one was changed, None is
            returned. None: it was asked before, by what is differentiated.
    """
    extension = cpu_extension.load() if backend() == "cpu" else None
    return extension if reference is None or extension is None or reference.holds() else None


def extension_with_products(reference: Reference | None = None) -> Any:
    """The same where the extension multiplies matrices, else None.

    It does where a BLAS would wait busily, or is a Mac's own.
    """
    extension = extension_on_cpu()
    if extension is None or not extension.has_gemm():
        return None
    return extension if reference is None or reference.holds() else None


@dataclass(frozen=True)
class FusedOperation:
    """An operation that the extension and a GPU's kernel have in common.

    Args:
        name: of the extension's function, which knows float32 alone.
        on_gpu: the function that launches the kernel, with the same arguments.
        reference: the plain functions that it computes.
        float32: places of the results that are float32 whatever the arguments are: states, and
            gradients by states.
    """

    name: str
    on_gpu: Callable[..., Any]
    reference: Reference
    float32: tuple[int, ...] = ()

    def form(self) -> Any:
        """The default device's; None where there is plain MLX alone, or that was changed."""
        if not self.reference.holds():
            return None
        if backend() != "cpu":
            return self.on_gpu
        extension = extension_on_cpu()
        return extension and self.on_cpu(extension)

    def on_cpu(self, extension: Any) -> Callable[..., Any]:
        """The extension's, of any dtype."""
        return _of_any_dtype(getattr(extension, self.name), self.float32)


@functools.cache
def _of_any_dtype(function: Callable[..., Any], float32: tuple[int, ...]) -> Callable[..., Any]:
    return in_float32(function, float32)
