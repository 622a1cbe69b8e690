"""List and hash the source files of a C environment, and find the libraries that they need.

An environment of PufferLib is in ``REPOSITORY/ocean/NAME``. It may include files of the
repository's ``src`` and ``vendor``.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.releases import folder_release, main_source
from puffer_mlx.system.compiler import source_files
from puffer_mlx.system.files import shipped_folder

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_RAYLIB = {"raylib.h", "raymath.h", "rlgl.h"}
_RANDOM = re.compile(rb"\b(?:s?rand|GetRandomValue|LoadRandomSequence|SetRandomSeed)[ \t]*\(")
# Backslash at the end of a line, which continues in the next one.
_SPLICE = re.compile(rb"\\[ \t]*\n")
_LITERAL = rb'"(?:\\.|[^"\\\n])*"|' + rb"'(?:\\.|[^'\\\n])*'"
_LITERAL_OR_COMMENT = re.compile(_LITERAL + rb"|//[^\n]*|/\*.*?\*/", re.DOTALL)
# Start of a preprocessor directive. A #define includes the macro's name, and the bracket that
# follows without a space if the macro has arguments.
_DIRECTIVE = re.compile(rb"\s*#\s*(define\s+[\w$]+\(?)?")
_NUMBER = rb"\.?[0-9](?:[eEpP][+-]|[\w.])*"
_OPERATOR = rb"\.\.\.|<<=|>>=|->|\+\+|--|<<|>>|&&|\|\||##|::|[-+*/%&|^<>=!]="
_TOKEN = re.compile(rb"%b|%b|[\w$\x80-\xff]+|%b|\S" % (_LITERAL, _NUMBER, _OPERATOR))
# Code that uses action_mask, other than to set it to NULL.
_MASKS = re.compile(rb"\baction_mask\b(?!\s*=\s*(?:NULL|0)\s*;)")
# OpenMP that protects data: #pragma omp critical or atomic, or a lock.
_PROTECTS = re.compile(
    rb"^[ \t]*#[ \t]*pragma[ \t]+omp[ \t]+(?:critical|atomic)|\bomp_\w*lock\b", re.MULTILINE
)

# Digest of a shipped environment's code -> digests of earlier versions whose saved states it can
# resume, bit for bit.
RESUMABLE_DIGESTS = {
    # breakout
    "d3bb6d55d3d2d1c84cf27404": ("6465bad7beea387f7953f58e", "865790bed67e1ea4481d61e8"),
    # cartpole
    "9ce334cb13d0a34f284a0c6f": ("fdb69073b38ef51be8da014a", "24379440d2e35f7348730b81"),
    # cartpole_continuous
    "d0184ed9f5aaaaadd5467f61": ("643ec2f361d5206d2e399e0d", "90bc7c3c746744fe6cbc55ef"),
    # catch
    "815160f2d2a6cbd5be5fea2e": ("6d5f7a5901b62f28fd9b07db", "daf6e32aacdd9230060b6799"),
    # connect4
    "e7af50300c99327eecb5ac52": ("4827d2d431d57fd48dfc63a2", "953704d220c4ea09a6836f48"),
    # connect4_two
    "19e09e0979e453d61427e3b4": ("763c890e3c460c34382073b5", "918b2ea10503371b1d1c20f5"),
    # craftax_classic
    "7d9a2184deac78530fc6bd4a": ("7a9aa875ac63aa87afe84f6b", "60652d8968d8aeff44ea4f9a"),
    # g2048
    "47a0e8428a89006494eff3b0": ("40da30132bd14365ca5eabef", "38e1cd587063571cae6bc699"),
    # memory
    "682097a97c868fd1e7330f5e": ("72694126af2bb8cd96f420d6", "9046d3e43d0da8fd8dcc18c1"),
    # rock_paper_scissors
    "cc1a79616a9b8d3d185c6063": ("b5a5fbc39b6704d80896a274", "0c860fcf76c175235e4b18bb"),
    # soccer
    "7b0691f79465e0f50941c14d": ("e86d9e52720277f7ab434ff4", "cdd26c8f40a043671eda1689"),
    # squared
    "49caf721e21194378bd688c3": ("1f1f9f47eb42b6323c3948e2", "40d07b5bb2c50a6d3bfd8100"),
    # target
    "61b443f6f4ccf6e993cd601f": ("0b090e0280e7ba861778bc40",),
}


class Requirements(NamedTuple):
    """Features that a C environment uses, such as raylib, which decide the compiler's flags."""

    raylib: bool  # one of raylib's headers
    random: bool  # the random generator of the C library or of raylib
    openmp: bool  # OpenMP, to protect data that environments share
    masks: bool = False  # action_mask (5.0)


def environments_folder() -> Path:
    """Return the folder of the C environments that puffer_mlx ships."""
    return shipped_folder("envs")


def repository_folder(folder: Path) -> Path | None:
    """Return the PufferLib repository in which a C environment's folder lies, or None."""
    folder = folder.resolve()
    parents = list(folder.parents)[:4]
    return next((path.parent for path in parents if path.name == "ocean"), None)


def our_header_folders(folder: Path) -> list[Path]:
    """Return the include folders that puffer_mlx ships for the release of a C environment."""
    include = environments_folder() / "include"
    return [include / "release_5", include] if folder_release(folder) == "5.0" else [include]


def include_folders(folder: Path) -> list[Path]:
    """Return an environment's include folders: its folder, and folders of its repository."""
    folder = folder.resolve()
    root = repository_folder(folder)
    inside = [] if root is None else [root, root / "src", root / "vendor"]
    return [folder, *(path for path in inside if path.is_dir())]


def _included_files(sources: Iterable[Path], folder: Path) -> set[Path]:
    """Return C files and all files that they include, without headers that puffer_mlx ships."""
    our_folders = [path.resolve() for path in our_header_folders(folder)]
    files = {path.resolve() for path in sources}
    remaining = sorted(files)
    search_path = include_folders(folder)
    while remaining:
        file = remaining.pop()
        for name in map(os.fsdecode, _INCLUDE.findall(file.read_bytes())):
            headers = ((each, (each / name).resolve()) for each in our_folders)
            if any(path.is_file() and path.is_relative_to(each) for each, path in headers):
                continue
            candidates = ((each / name).resolve() for each in (file.parent, *search_path))
            path = next(filter(Path.is_file, candidates), None)
            if path and path not in files:
                files.add(path)
                remaining.append(path)
    return files


def environment_files(folder: Path | str) -> list[Path]:
    """Return a C environment's sources and headers, sorted by paths relative to its folder.

    Contains all sources in the folder and their direct and indirect includes, also from other
    folders, but not the headers and sources that puffer_mlx adds.
    """
    folder = Path(folder).resolve()
    files = _included_files(source_files(folder), folder)
    return sorted(files, key=lambda path: os.path.relpath(path, folder))


def sources_digest(folder: Path | str) -> str:
    """Return a hash of a C environment's code, independent of comments and of its location."""
    return resumable_digests(folder)[0]


def resumable_digests(folder: Path | str) -> tuple[str, ...]:
    """Return hashes of a C environment's code, of this and older versions with usable states.

    The first is the environment's current digest. The second hashes all bytes of the files,
    comments included, as older saved states did. Digests of earlier versions of shipped
    environments follow.
    """
    folder = Path(folder).resolve()
    code = hashlib.sha256()
    all_bytes = hashlib.sha256()
    for path in environment_files(folder):
        content = path.read_bytes()
        name = Path(os.path.relpath(path, folder)).as_posix()
        for digest, text in (code, code_of(content)), (all_bytes, content):
            header = f"{name} {len(text)}\0"
            digest.update(header.encode(errors="surrogateescape") + text)
    current = code.hexdigest()[:24]
    return current, all_bytes.hexdigest()[:24], *RESUMABLE_DIGESTS.get(current, ())


def without_comments(text: bytes) -> bytes:
    """Replace each comment in C code by a space, and join continued lines."""
    text = _SPLICE.sub(b"", text.replace(b"\r\n", b"\n"))
    return _LITERAL_OR_COMMENT.sub(lambda match: b" " if match[0][:1] == b"/" else match[0], text)


def code_of(text: bytes) -> bytes:
    """Return C code as tokens separated by spaces, without comments.

    Texts that differ only in comments and white space give the same result. Literals are unchanged.
    A preprocessor directive ends with its line.
    """
    tokens: list[bytes] = []
    for line in without_comments(text).split(b"\n"):
        if directive := _DIRECTIVE.match(line):
            name = b" ".join((directive[1] or b"").split())
            tokens += [b"\n#" + name, *_TOKEN.findall(line, directive.end()), b"\n"]
        else:
            tokens += _TOKEN.findall(line)
    return b" ".join(tokens)


def find_requirements(folder: Path | str) -> Requirements:
    """Find the libraries and macros that a C environment's sources need.

    Raises:
        UserError: The folder isn't an environment.
    """
    folder = Path(folder).resolve()
    release = folder_release(folder)
    main = main_source(folder)
    texts = [path.read_bytes() for path in _included_files([main] if main else [], folder)]
    included = {os.fsdecode(name) for text in texts for name in _INCLUDE.findall(text)}
    return Requirements(
        raylib=release == "5.0" or bool(included & _RAYLIB),  # pufferenv.h includes it
        random=any(_RANDOM.search(text) for text in texts),
        openmp=any(_PROTECTS.search(text) for text in texts),
        masks=release == "5.0" and any(_MASKS.search(without_comments(text)) for text in texts),
    )
