"""Find, compile and load an environment in C, read its spec, and create environments."""

import ctypes
import difflib
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.config.fit import Misfit
from puffer_mlx.config.releases import ReleaseName, folder_release, main_source
from puffer_mlx.errors import UserError
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.system.compiler import load_compiled
from puffer_mlx.vec.native.c_functions import ABI, TEXT_BYTES, keywords, load_library
from puffer_mlx.vec.native.compiling import compile_environment
from puffer_mlx.vec.native.sources import environments_folder

_MAX_COUNTS = 1 << 20  # maximum environments whose agents are counted to suggest sizes that fit


def find_environment(name: str) -> Path:
    """Return the folder of an environment in C that is included in puffer_mlx.

    Raises:
        UserError: No environment has this name. The message lists the names.
    """
    root = environments_folder()
    names = sorted(path.name for path in root.iterdir() if main_source(path))
    if name in names:
        return root / name
    close = difflib.get_close_matches(name, names, 1, 0.5)
    folders = f"[base] env_name of an .ini names a folder in {root}"
    raise UserError(
        f"there is no native environment {name!r}; there are: {', '.join(names) or 'none'}",
        f"did you mean {close[0]!r}?" if close else folders,
    )


def open_environment(folder: Path | str) -> ctypes.CDLL:
    """Compile and load an environment in C; compile again if the cached library can't be loaded.

    Raises:
        UserError: The environment can't be compiled or loaded.
    """
    return load_compiled(functools.partial(compile_environment, folder), load_library)


def read_spec(folder: Path | str, library: ctypes.CDLL) -> EnvSpec:
    """Read one agent's observations and actions (``EnvSpec``) from an environment's library."""
    name = Path(folder).resolve().name
    source = f"{name}.h" if folder_release(folder) == "5.0" else "binding.c"
    count = library.puffer_spec(None, 0)
    out = (ctypes.c_int * count)()
    library.puffer_spec(out, count)
    abi, size, is_float, heads, mask_size, *rest = out
    shape, sizes = tuple(rest[:3]), rest[3:]
    assert abi == ABI and len(sizes) == heads, (abi, heads, sizes)
    try:
        action = ActionSpec(tuple(sizes))
    except ValueError as error:
        raise UserError(
            f"{name}: ACT_SIZES in {source}: {error}",
            "if all sizes are 1, actions are continuous; a discrete space has no head of size 1",
        ) from None
    if mask_size not in (0, action.logits):
        raise UserError(
            f"{name}: MY_ACTION_MASK in {source} is {mask_size}, expected {action.logits}",
            "a mask has one byte for every choice of every head: the sum of ACT_SIZES",
        )
    dtype = np.dtype(np.float32 if is_float else np.uint8)
    try:
        return EnvSpec(name, size, dtype, action, mask_size, shape if any(shape) else ())
    except ValueError as error:
        raise UserError(
            f"{name}: MY_OBS_SHAPE in {source}: {error}",
            "set it to {height, width, channels} of the observation; the product is OBS_SIZE",
        ) from None


def create(
    library: ctypes.CDLL,
    name: str,
    *,
    agents: int,
    groups: int,
    threads: int,
    seed: int,
    vec: Mapping[str, Any],
    env: Mapping[str, Any],
    version: ReleaseName,
    file: str,
) -> tuple[int, set[str]]:
    """Create the C environments of a loaded library.

    Args:
        library: Library from ``open_environment``.
        name: Name of the environment, for messages.
        agents: Number of agents N.
        groups: Number of groups Q.
        threads: Number of threads that step environments.
        seed: Seed of environment 0, 32 bits.
        vec: Parameters for environments that create themselves.
        env: Parameters of the environment.
        version: PufferLib's release. Environments of 4.0 get only numbers as parameters.
        file: File with the parameters, for messages.

    Returns:
        The address of the environments, the first argument of the library's functions, and the keys
        of ``env`` that no environment read.

    Raises:
        UserError: Keys are missing, or the environment rejects their values.
        Misfit: The environments don't fill the groups exactly.
    """
    text = ctypes.create_string_buffer(TEXT_BYTES)
    counts = (ctypes.c_int * max(1, min(agents, _MAX_COUNTS)))()
    handle = library.puffer_create(
        agents,
        groups,
        threads,
        seed,
        keywords(vec),
        keywords(env, texts=version == "5.0"),
        counts,
        len(counts),
        text,
        len(text),
    )
    answer = text.value.decode(errors="replace")
    if handle:
        return handle, set(answer.split(","))
    message, _, hint = answer.partition("\n")
    if message.startswith("missing keys"):
        hint = f"the environment {name} reads them in my_init; add them to [env] of {file}"
        hint += ", each a number"
    elif message.startswith(("missing key", "missing string")):
        hint = f"the environment {name} reads it in puf_init; add it to [env] of {file}"
    if each := [count for count in counts if count]:
        raise Misfit(f"{name}: {message}", hint, each)
    raise UserError(f"{name}: {message}", hint)
