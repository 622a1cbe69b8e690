"""How to install what puffer_mlx compiles with: the words for this machine, in one place."""

import sys
from pathlib import Path

_RELEASE = Path("/etc/os-release")
_COMMANDS = {  # by ID, or a word of ID_LIKE: the command, packages for C, further ones for C++
    "debian": ("apt install", "gcc libc6-dev", "g++ python3-dev"),
    "fedora": ("dnf install", "gcc", "gcc-c++ python3-devel"),
    "suse": ("zypper install", "gcc", "gcc-c++ python3-devel"),
    "arch": ("pacman -S", "gcc", ""),
    "alpine": ("apk add", "gcc musl-dev", "g++ python3-dev"),
}


def compiler_hint(cpp: bool = False) -> str:
    """How to get a C compiler: ``xcode-select --install``, or ``apt install gcc libc6-dev``.

    Args:
        cpp: a C++20 compiler and Python's headers instead.
    """
    what = "a C++20 compiler and Python's headers" if cpp else "a C compiler"
    if sys.platform == "darwin":
        return f"install {what}: xcode-select --install"
    known = next((word for word in _distribution() if word in _COMMANDS), "")
    command, c, more = _COMMANDS[known or "debian"]
    words = f"{command} {(more or c) if cpp else c}"
    if known:
        return f"install {what}: {words}"
    return f"install {what} with your system's package manager (Debian: {words})"


def _distribution() -> list[str]:
    """ID and ID_LIKE of the system's description; empty if it has none."""
    try:
        lines = _RELEASE.read_text(errors="replace").splitlines()
    except OSError:
        return []
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition("=")
        fields[key] = value.strip().strip("\"'")
    words = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".split()
    return [part for word in words for part in (word, word.partition("-")[0])]
