"""Item: whether a GPU can step the environment itself, and does what the host does."""

import re
from collections.abc import Iterator
from pathlib import Path

from puffer_mlx import vec
from puffer_mlx.check.env.findings import Findings, fail, ok, skip, warn
from puffer_mlx.check.env.subject import Subject
from puffer_mlx.check.trajectories import compare
from puffer_mlx.system.devices import has_gpu
from puffer_mlx.vec.native.sources import environment_files
from puffer_mlx.vec.native.vec import NativeVec

LAUNCHES = 8
ROUNDING = 1e-3  # of a number, when rules are rounded in another way
GUIDE = "docs/writing_envs.md, “Rules that a GPU runs”, says how they are written"
OBSTACLES = {  # what a GPU's compiler doesn't take, in a header of rules
    r"\bdouble\b": "numbers in double",
    r"\b(?:malloc|calloc|realloc|free)\s*\(": "memory of its own (malloc)",
    r"\b(?:memcpy|memset|memmove|printf|fprintf)\s*\(": "functions of the C library (memcpy …)",
    r"^\s*static\s+(?!const|inline)[\w\s*]+\b\w+(\[[^\]]*\])*\s*(=[^;]*)?;": "static variables",
    r"^\s+static\s+const": "tables inside functions",
    r"(?:[=,(]|\breturn)\s*\(\w+\)\s*\{": "compound literals: (Name){…}",
    r"=\s*\{\s*\.\w": "designated initialisers: {.name = …}",
}
_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def on_gpu(subject: Subject) -> Findings:
    """Rules that compile for a GPU give the host's trajectories there."""
    if not subject.native:
        yield skip("environments in Python are stepped on the CPU")
        return
    with subject.make() as made:
        assert isinstance(made, NativeVec)
        side, each = made.gpu_side, made.num_agents // made.num_environments
    if side is None or each > 1:
        why = "; ".join(obstacles(vec.source_folder(subject.config), each))
        yield skip(f"stepped on the CPU alone: {why}. {GUIDE}")
        return
    if not has_gpu():
        yield ok("its rules are for a GPU, too; there is none here to compare them on")
        return
    yield from compared(subject)


def compared(subject: Subject) -> Findings:
    """What stepping it on the GPU gives."""
    found = compare(subject.make, LAUNCHES)
    if found is None:
        yield warn(
            "its rows need more memory than a GPU's threads share: it is stepped on the CPU",
            "fewer numbers of an observation",
        )
        return
    rate = found.agents / found.seconds
    told = f"{found.agents} agents for {found.steps} steps, {found.ends} episodes ended"
    if found.equal == found.agents:
        yield ok(f"on the GPU as on the CPU, to the bit: {told}; {rate:,.0f} steps/s")
    elif found.difference <= ROUNDING:
        apart = found.agents - found.equal
        yield ok(
            f"on the GPU as on the CPU but for rounding ({found.difference:.1g}), from which"
            f" {apart} agents went other ways: {told}; {rate:,.0f} steps/s"
        )
    else:
        yield fail(
            f"on the GPU something else happens, first at step {found.first}: numbers are"
            f" {found.difference:.3g} apart; {told}",
            "look for what C leaves open: order of evaluation, overflow, numbers that aren't set",
        )


def obstacles(folder: Path, each: int = 1) -> Iterator[str]:
    """What keeps a folder's environment from a GPU, in words."""
    files = [path for path in environment_files(folder) if path.suffix in (".c", ".h")]
    code = {path: _COMMENT.sub("", path.read_text(errors="replace")) for path in files}
    defined = {name for text in code.values() for name in _DEFINED.findall(text)}
    if "MY_GPU" not in defined:
        yield "binding.c doesn't define MY_GPU"
    if "MY_STATE_PLAIN" not in defined:
        yield "binding.c doesn't define MY_STATE_PLAIN, so its state may be more than its struct"
    if each > 1:
        yield f"it has {each} agents, and a GPU steps those with one"
    rules = [text for path, text in code.items() if path.suffix == ".h"]
    for pattern, what in OBSTACLES.items():
        if any(re.search(pattern, text, re.MULTILINE) for text in rules):
            yield f"it uses {what}"
