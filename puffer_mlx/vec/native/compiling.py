"""Compile a C environment's folder to a shared library, and explain the compiler's errors."""

import json
import re
from pathlib import Path

from puffer_mlx.config.releases import folder_release
from puffer_mlx.errors import UserError
from puffer_mlx.system.compiler import OBJECT, compile_shared, source_files
from puffer_mlx.vec.native.raylib import INSTALL_HINT, find_raylib
from puffer_mlx.vec.native.sources import (
    Requirements,
    environment_files,
    environments_folder,
    find_requirements,
    include_folders,
    our_header_folders,
    repository_folder,
)

_FLAGS = [
    "-O3",
    "-std=gnu11",
    "-ffp-contract=off",  # fused multiply-add would change trajectories
    "-fvisibility=hidden",
    "-pthread",
    "-Werror=implicit-function-declaration",  # report a missing c_step now, not when loading
    "-Drand_r=puffer_rand_r",  # use glibc's generator on every platform
    *(f"-D{name}=puffer_{name}" for name in ("rand", "srand", "exit", "abort", "fopen")),
    *(f"-D{name}=puffer_exit" for name in ("_exit", "_Exit")),  # all flags: src/host.h
    "-lm",
]
_COMPILE_FLAGS = [flag for flag in _FLAGS if flag != "-lm"]
# Sources in envs/src that depend on an environment's flags.
_FLAG_DEPENDENT_SOURCES = ("host.c", "vec.c")
_KNOWN_ERRORS = (  # (compiler's message, explanation, hint)
    (
        r"pufferenv\.h",
        "this header belongs to PufferLib 5.0, where an environment is NAME.h without binding.c",
        "remove binding.c if NAME.h has puf_init and puf_step, else include vecenv.h instead",
    ),
    (
        r"env_binding\.h|Python\.h|\bPyObject\b",
        "it is written for PufferLib 3.0, whose C environments are Python extensions",
        "install pufferlib 3, which builds them, and use its class: module:factory",
    ),
    (
        r"\bcuda\w*\.h|\bnvcc\b|\bcublas|\bcudnn",
        "it includes CUDA code, but environments in C are compiled without CUDA",
        "environments step on the CPU: remove CUDA code from the files that binding.c includes",
    ),
    (
        r"case label does not reduce|initializer element is not constant",
        "PufferLib compiles with clang, which accepts more constant expressions than gcc",
        "install clang and set CC=clang",
    ),
)
# Names in raylib's style: CamelCase, and the constants of its enumerations. Other words in capitals
# are macros of an environment.
_CONSTANT_PREFIXES = (
    "BLEND BONE CAMERA CUBEMAP FLAG FONT GAMEPAD GESTURE KEY LOG MATERIAL_MAP MOUSE NPATCH"
    " PIXELFORMAT RL SHADER TEXTURE"
)
_QUOTED_NAME = rf"'((?:rl)?[A-Z]\w*[a-z]\w*|(?:{_CONSTANT_PREFIXES.replace(' ', '|')})_\w+)'"
_HEADER = r"(?:^|[\s'\"/])((?:ray|rl|rcamera|reasings|rres)\w*\.h)'?"
_PRE_RELEASE_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+OBS_TYPE\b", re.MULTILINE)
_MISSING_FILE = re.compile(r"error: (\S+): No such file|error: '([^']+)' file not found")
_UNKNOWN_NAME = re.compile(
    rf"(?:implicit declaration of function|undeclared function|unknown type name|undeclared"
    rf" identifier) {_QUOTED_NAME}|{_QUOTED_NAME} undeclared"
    rf"|{_HEADER}(?:: No such file| file not found)",
    re.MULTILINE,
)


def compile_environment(folder: Path | str, again: bool = False) -> Path:
    """Compile a C environment, unless the cache has its library. Returns the library's path.

    Args:
        folder: Folder in the form of PufferLib 4.0 or 5.0 (``puffer_mlx.config.releases``). Only
            ``binding.c`` or NAME.h and the files it includes are compiled. Raylib is linked if it
            is installed (``puffer_mlx.vec.native.raylib``).
        again: Compile even if the cache has the library.

    Raises:
        UserError: The folder isn't an environment, no compiler is installed, or compilation fails.
    """
    folder = Path(folder)
    unit = compiled_unit(folder)
    root = environments_folder()
    stepper = [*source_files(root / "include"), *source_files(root / "src")]
    headers = [*environment_files(folder), *stepper]
    requirements = find_requirements(folder)
    objects = [  # shared by all environments
        compile_shared(
            f"stepper_{source.stem}", [source], _COMPILE_FLAGS, depends=stepper, kind=OBJECT
        )
        for source in sorted((root / "src").glob("*.c"))
        if source.name not in _FLAG_DEPENDENT_SOURCES
    ]
    try:
        return compile_shared(
            folder.resolve().name,
            [unit, *(root / "src" / name for name in _FLAG_DEPENDENT_SOURCES)],
            [*environment_flags(folder, requirements), *map(str, objects)],
            depends=[path for path in headers if path != unit],
            again=again,
        )
    except UserError as error:
        raise _pre_release_error(folder) or _explained_error(error, requirements, folder) from None


def compiled_unit(folder: Path | str) -> Path:
    """Return the C file to compile for an environment, in addition to the files in envs/src.

    Raises:
        UserError: The folder isn't an environment.
    """
    if folder_release(folder) == "5.0":
        return environments_folder() / "src" / "release_5" / "binding.c"
    return Path(folder).resolve() / "binding.c"


def environment_flags(folder: Path | str, requirements: Requirements | None = None) -> list[str]:
    """Return the compiler and linker flags for a C environment and the files in envs/src.

    Args:
        folder: Folder of the environment.
        requirements: Result of ``find_requirements(folder)``, or None to compute it.
    """
    folder = Path(folder).resolve()
    requirements = requirements or find_requirements(folder)
    include = environments_folder() / "include"
    flags = [*_FLAGS, _text_macro("PUFFER_FOLDER", folder)]
    if folder_release(folder) == "5.0":  # keeps assertions
        flags.append(_text_macro("PUFFER_HEADER", folder / f"{folder.name}.h"))
    else:
        flags.append("-DNDEBUG")
    flags += [f"-I{path}" for path in our_header_folders(folder)]
    flags += ["-DPUFFER_MASKS"] if requirements.masks else []
    flags += ["-DPUFFER_RAND"] if requirements.random else []
    flags += ["-fopenmp"] if requirements.openmp else [f"-I{include / 'compat'}"]
    if requirements.raylib:
        root = repository_folder(folder)
        if raylib := find_raylib([] if root is None else [root, root / "vendor"]):
            flags += ["-DPUFFER_WINDOW", f"-I{include / 'raylib_window'}", *raylib.flags()]
        else:
            flags.append(f"-I{include / 'raylib'}")
    return [*flags, *(f"-I{path}" for path in include_folders(folder))]


def _text_macro(name: str, path: Path) -> str:
    return f"-D{name}={json.dumps(str(path), ensure_ascii=False)}"


def _pre_release_error(folder: Path) -> UserError | None:
    """Return the error if a C environment is written for PufferLib before 4.0, else None."""
    binding = folder / "binding.c"
    text = binding.read_text(errors="replace") if binding.is_file() else ""
    if not _PRE_RELEASE_MACRO.search(text) or "OBS_TENSOR_T" in text:
        return None
    return UserError(
        f"{folder.resolve().name}: its binding.c is from before PufferLib 4.0's release, with"
        " OBS_TYPE and ACT_TYPE",
        "replace them by #define OBS_TENSOR_T FloatTensor or ByteTensor, and env_binding.h by"
        ' #include "vecenv.h"; actions, rewards and terminals are float*',
    )


def _missing_file_error(error: UserError, folder: Path) -> UserError | None:
    """Return the error if a file that a C environment includes is missing, else None."""
    match = _MISSING_FILE.search(error.message)
    if match is None:
        return None
    path = next(filter(None, match.groups()))
    folders = ", ".join(map(str, include_folders(folder)))
    return UserError(
        f"{folder.resolve().name}: its sources include {path}, which is missing",
        f"copy the file from the environment's original repository, or install its library;"
        f" include folders: {folders}",
    )


def _explained_error(error: UserError, requirements: Requirements, folder: Path) -> UserError:
    """Return the compiler's error for a C environment, with cause and hint if they are known."""
    message = error.message.replace("\u2018", "'").replace("\u2019", "'")
    for pattern, meaning, hint in _KNOWN_ERRORS:
        if re.search(pattern, message):
            return UserError(f"{error.message}\n  {meaning}", hint)
    if requirements.openmp and re.search(r"openmp|\bomp|gomp", message):
        hint = "install OpenMP for the compiler (macOS: CC=gcc-14 of brew install gcc)"
        return UserError(f"{error.message}\n  the environment uses OpenMP", hint)
    unknown = _UNKNOWN_NAME.search(message)
    if requirements.raylib and unknown:
        name = next(filter(None, unknown.groups()))
        return UserError(
            f"{error.message}\n  if {name} belongs to raylib: the raylib used here lacks it",
            INSTALL_HINT,
        )
    return _missing_file_error(error, folder) or error
