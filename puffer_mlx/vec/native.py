"""Native environments: PufferLib 4.0 folders of C, compiled on first use, stepped by a thread pool.

The C side is ``envs/include/vecenv.h`` (the contract) and ``envs/src`` (``vec.h`` lists the
functions called here). ctypes releases the interpreter lock during every call, so waiting never
stops other Python threads.
"""

import ctypes
import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.build import compile_shared, source_files
from puffer_mlx.errors import UserError
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.vec.base import Rows

_ABI = 1  # PUFFER_ABI in envs/src/vec.h
_FLOAT32 = np.dtype(np.float32)
_UINT8 = np.dtype(np.uint8)
_MAX_LOG_KEYS = 256
_FLAGS = [
    "-O3",
    "-DNDEBUG",
    "-std=gnu11",
    "-ffp-contract=off",  # fused multiply-add would change trajectories
    "-fvisibility=hidden",
    "-pthread",
    "-Werror=implicit-function-declaration",  # a missing c_step is an error here, not when loading
    "-Drand_r=puffer_rand_r",  # glibc's generator on every platform
    "-lm",
]


def environments_folder() -> Path:
    """The folder ``envs``: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "envs"
    return inside if (inside / "include").is_dir() else package.parent / "envs"


def find_environment(name: str) -> Path:
    """The folder of a native environment that comes with puffer_mlx.

    Raises:
        UserError: there is none of this name; the message lists those there are.
    """
    root = environments_folder()
    names = sorted(path.parent.name for path in root.glob("*/binding.c"))
    if name in names:
        return root / name
    close = difflib.get_close_matches(name, names, 1, 0.5)
    raise UserError(
        f"there is no native environment {name!r}; there are: {', '.join(names) or 'none'}",
        f"did you mean {close[0]!r}?" if close else f"environments are folders in {root}",
    )


def compile_environment(folder: Path | str) -> Path:
    """Compile an environment's folder, if that wasn't done before, and return the shared library.

    Args:
        folder: holds ``binding.c`` and what it includes, in PufferLib 4.0's form.

    Raises:
        UserError: the folder or its ``binding.c`` is missing, there is no compiler, or it fails.
    """
    folder = Path(folder)
    binding = folder / "binding.c"
    if not binding.is_file():
        what = "has no binding.c" if folder.is_dir() else "doesn't exist"
        raise UserError(
            f"the environment folder {folder} {what}",
            "an environment is a folder with NAME.h and binding.c; copy envs/squared to begin one",
        )
    root = environments_folder()
    stepper = source_files(root / "src")
    headers = [*source_files(folder), *source_files(root / "include"), *stepper]
    return compile_shared(
        folder.resolve().name,
        [binding, *(path for path in stepper if path.suffix == ".c")],
        [*_FLAGS, f"-I{root / 'include'}", f"-I{folder}"],
        depends=[path for path in headers if path != binding],
    )


class NativeVec:
    """N agents of a native environment in Q groups; implements ``VecEnv``.

    Args:
        folder: the environment's folder, as for ``compile_environment``.
        total_agents: N, a multiple of Q and of the agents per environment.
        num_buffers: Q.
        num_threads: threads that step environments, at least 1; the caller's thread never does.
        env: the environment's parameters, section [env] of the configuration. As upstream, what
            can't be converted to a float is not passed on.
        seed: environment i draws from a generator seeded with ``seed + i``; upstream's is 0.
        vec: further parameters from section [vec], for environments that create themselves.

    Attributes:
        num_threads: threads there are: not more than environments.
        unread: keys of ``env`` that no environment asked for, in the order given.

    Raises:
        UserError: compilation failed (see ``compile_environment``), keys are missing or have
            values the environment refuses, or counts don't add up.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        total_agents: int,
        num_buffers: int = 1,
        num_threads: int = 1,
        env: Mapping[str, Any],
        seed: int = 0,
        vec: Mapping[str, Any] | None = None,
    ) -> None:
        self._handle: int | None = None
        self._library = _load(compile_environment(folder))
        name = Path(folder).resolve().name
        self.spec = _read_spec(name, self._library)
        self.num_agents = total_agents
        self.num_groups = num_buffers

        text = ctypes.create_string_buffer(4096)
        self._handle = self._library.puffer_create(
            total_agents,
            num_buffers,
            num_threads,
            seed & 0xFFFFFFFF,
            *_keywords(vec or {}),
            *_keywords(env),
            text,
            len(text),
        )
        found = text.value.decode(errors="replace")
        if not self._handle:
            message, _, hint = found.partition("\n")
            if message.startswith("missing keys"):
                hint = (
                    f"the environment {name} reads them in my_init; add them to the configuration"
                )
            raise UserError(f"{name}: {message}", hint)
        read = set(_numbers(env)) - set(found.split(","))
        self.unread = [key for key in env if key not in read]
        self.num_threads = int(self._library.puffer_threads(self._handle))

        n = total_agents // num_buffers
        self._action_shape = (n, self.spec.action.heads)
        self._step_shapes = _shapes(n, self.spec)
        self._reset_shapes = _shapes(total_agents, self.spec)
        self._held: list[Rows | None] = [None] * num_buffers  # rows a step is writing stay alive
        self._send = self._library.puffer_send
        self._wait = self._library.puffer_wait

    def reset(self, out: Rows) -> None:
        """Start new episodes for all N agents and write their first rows (rewards and terminals 0).

        Environments are reset in order, on the calling thread, after steps under way are done.
        """
        self._library.puffer_reset(self._open(), *self._addresses(out, self._reset_shapes))

    def send(self, group: int, actions: np.ndarray, out: Rows) -> None:
        """Begin one step of a group and return at once.

        Args:
            group: 0 ≤ group < Q; it must not be stepping already.
            actions: (n, heads) float32, C-contiguous. Not modified, copied before the return.
            out: rows of the group's n agents; kept alive until the group's next step.

        Raises:
            IndexError: there is no such group.
            ValueError: an array has another shape or dtype, or isn't C-contiguous.
            RuntimeError: the group is stepping already, or the environments are closed.
        """
        handle = self._handle or self._open()
        if not 0 <= group < self.num_groups:
            raise IndexError(f"group {group}, expected 0 to {self.num_groups - 1}")
        actions_at = _address(actions, self._action_shape, _FLOAT32, "actions", written=False)
        rows_at = self._addresses(out, self._step_shapes)
        if self._send(handle, group, actions_at, *rows_at):
            raise RuntimeError(f"group {group} is stepping already; wait({group}) first")
        self._held[group] = out

    def wait(self, group: int) -> None:
        """Block until the group's step is done and its rows are written."""
        handle = self._handle or self._open()
        if not 0 <= group < self.num_groups:
            raise IndexError(f"group {group}, expected 0 to {self.num_groups - 1}")
        self._wait(handle, group)

    def log(self) -> dict[str, float]:
        """Means over the episodes that ended since the last call, with ``n`` their number.

        Empty if no episode ended. May be called from any thread at any time: each group is read
        between two of its steps.

        Raises:
            UserError: the environment's my_log sets more than 256 keys.
        """
        keys = (ctypes.c_char_p * _MAX_LOG_KEYS)()
        values = (ctypes.c_double * _MAX_LOG_KEYS)()
        size = self._library.puffer_log(self._open(), keys, values, _MAX_LOG_KEYS)
        if size < 0:
            raise UserError(f"{self.spec.name}: my_log sets more than {_MAX_LOG_KEYS} keys")
        return {
            (key or b"").decode(): value
            for key, value in zip(keys[:size], values[:size], strict=True)
        }

    def busy_seconds(self) -> float:
        """Thread-seconds spent inside environment steps since creation."""
        return float(self._library.puffer_busy_seconds(self._open()))

    def close(self) -> None:
        """Finish steps under way and free everything. Calling it twice is harmless."""
        handle, self._handle = self._handle, None
        if handle:
            self._library.puffer_close(handle)
            self._held = []

    def __enter__(self) -> "NativeVec":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _open(self) -> int:
        if not self._handle:
            raise RuntimeError(f"{self.spec.name}: the environments are closed")
        return self._handle

    def _addresses(self, out: Rows, shapes: tuple[tuple[int, ...], ...]) -> tuple[int | None, ...]:
        """Addresses of the arrays of ``out``, checked against ``_shapes``."""
        observations, vector, masks = shapes
        masks_at = None
        if self.spec.mask_size:
            masks_at = _address(out.masks, masks, _UINT8, "masks")
        return (
            _address(out.observations, observations, self.spec.observation_dtype, "observations"),
            _address(out.rewards, vector, _FLOAT32, "rewards"),
            _address(out.terminals, vector, _FLOAT32, "terminals"),
            masks_at,
        )


def _shapes(n: int, spec: EnvSpec) -> tuple[tuple[int, ...], ...]:
    """Shapes of observations, of rewards and terminals, and of masks, for n agents."""
    return (n, spec.observation_size), (n,), (n, spec.mask_size)


def _address(
    array: Any,
    shape: tuple[int, ...],
    dtype: np.dtype,
    what: str,
    written: bool = True,
) -> int:
    """Address of a NumPy array (or None: an error). Faster than ``array.ctypes.data``."""
    if array is not None and array.shape == shape and array.dtype == dtype:
        try:
            return ctypes.addressof(ctypes.c_char.from_buffer(array))
        except (TypeError, ValueError, BufferError):  # read-only, or not contiguous
            if array.flags.c_contiguous and not written:
                return array.ctypes.data
    found = "None"
    if array is not None:
        found = f"{array.dtype} {array.shape}"
        found += "" if array.flags.c_contiguous else ", not C-contiguous"
        found += "" if array.flags.writeable else ", read-only"
    wanted = "writable and C-contiguous" if written else "C-contiguous"
    raise ValueError(f"{what}: expected {dtype} {shape}, {wanted}; found {found}")


def _numbers(given: Mapping[str, Any]) -> dict[str, float]:
    """The entries that can be converted to a float."""
    numbers = {}
    for key, value in given.items():
        try:
            numbers[key] = float(value)
        except (TypeError, ValueError):
            continue
    return numbers


def _keywords(given: Mapping[str, Any]) -> tuple[int, Any, Any]:
    """Count, keys and values as C arrays."""
    numbers = _numbers(given)
    keys = (ctypes.c_char_p * len(numbers))(*(key.encode() for key in numbers))
    return len(numbers), keys, (ctypes.c_double * len(numbers))(*numbers.values())


def _load(path: Path) -> ctypes.CDLL:
    """Load a compiled environment and declare the functions of ``envs/src/vec.h``."""
    try:
        library = ctypes.CDLL(os.fspath(path))
        library.puffer_spec.argtypes = [ctypes.POINTER(ctypes.c_int), ctypes.c_int]
    except (OSError, AttributeError) as error:
        raise UserError(
            f"the compiled environment can't be loaded: {error}",
            f"define every function that vecenv.h asks for; if they are all there, delete {path}",
        ) from None
    pointer, number = ctypes.c_void_p, ctypes.c_int
    strings, doubles = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_double)
    rows = [pointer] * 4
    keywords = [number, strings, doubles]
    for name, result, arguments in (
        (
            "create",
            pointer,
            [number] * 3 + [ctypes.c_uint] + keywords * 2 + [pointer, ctypes.c_size_t],
        ),
        ("threads", number, [pointer]),
        ("reset", None, [pointer, *rows]),
        ("send", number, [pointer, number, pointer, *rows]),
        ("wait", None, [pointer, number]),
        ("log", number, [pointer, strings, doubles, number]),
        ("busy_seconds", ctypes.c_double, [pointer]),
        ("close", None, [pointer]),
        ("rand_r", number, [ctypes.POINTER(ctypes.c_uint)]),
    ):
        function = getattr(library, f"puffer_{name}")
        function.restype = result
        function.argtypes = arguments
    return library


def _read_spec(name: str, library: ctypes.CDLL) -> EnvSpec:
    """What one agent sees and does, according to the library."""
    count = library.puffer_spec(None, 0)
    numbers = (ctypes.c_int * count)()
    library.puffer_spec(numbers, count)
    abi, size, is_float, heads, mask_size, *sizes = numbers
    assert abi == _ABI and len(sizes) == heads, (abi, heads, sizes)
    try:
        action = ActionSpec(tuple(sizes))
    except ValueError as error:
        raise UserError(
            f"{name}: ACT_SIZES in binding.c: {error}",
            "all sizes 1 is a continuous space; a discrete one has no head of size 1",
        ) from None
    if mask_size not in (0, action.logits):
        raise UserError(
            f"{name}: MY_ACTION_MASK in binding.c is {mask_size}, expected {action.logits}",
            "a mask has one byte for every choice of every head: the sum of ACT_SIZES",
        )
    return EnvSpec(name, size, _FLOAT32 if is_float else _UINT8, action, mask_size)
