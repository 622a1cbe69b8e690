"""Check identifiers and docstrings for wording: python tests/wording.py [PATH...].

``make lint`` runs it. It prints an error for each

- identifier that uses a retired word: the table names the word to use instead;
- public function or class that two modules of the package define;
- docstring whose first sentence opens with a clause ("What …", "Whether …", "Of …") instead of a
  verb or a noun.

Ordinary words in sentences are left alone.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "puffer_mlx"
FOLDERS = [PACKAGE, "benchmarks", "docs", "envs", "examples", "scripts", "tests"]

# Words that no identifier contains, and what to use instead.
RETIRED_WORDS = {
    "attendance": "heartbeat",
    "attended": "heartbeat",
    "crew": "block",
    "crews": "blocks",
    "finals": "final_observations",
    "grace": "timeout",
    "judge": "check",
    "patience": "timeout",
    "rung": "level",
    "told": "the noun: message, metrics, ...",
    "voice": "verbosity",
    "whoever": "caller, user",
}
# Words that are no identifier of the package by themselves.
RETIRED_NAMES = {
    **dict.fromkeys(("asked", "given", "kept", "made", "drawn", "own"), "a noun"),
    "away": "a noun",
    "compared": "targets",
    "fault": "reason",
    "faults": "reasons",
    "following": "next_rollout",
    "foreign": "untrusted",
    "health": "check",
    "idle": "unused",
    "seat": "agent",
    "seats": "policy_assignment",
    "strip": "segment",
    "form": "implementation, layout",
    "forms": "implementations, layouts",
    "like": "template",
    "nothing": "placeholder",
    "numbers": "what they are: coefficients, metrics, ...",
    "part": "what it is: fraction, shard, half, ...",
    "parts": "what they are",
    "room": "space",
    "share": "fraction, shard",
    "until": "deadline",
    "watched": "wrapped",
    "way": "what it is",
    # adjectives and amounts without a noun
    **dict.fromkeys(("enough", "few", "fewest", "large", "longest", "most", "small"), "a noun"),
    **dict.fromkeys(
        ("about", "elsewhere", "others", "ours", "rare", "shown", "together"), "a noun"
    ),
}
# Names with several definitions, whose module says what they mean.
SHARED_NAMES = {
    *("main", "option_parser", "add_options"),  # commands
    *("make", "init"),  # encoders, algorithms, optimizers
    *("modules", "onnx", "scan", "step", "torch_keys"),  # exports of networks
    *("Policy", "Trainer"),  # the library's wraps the class of that name; [policy] is a section
    "load",  # a configuration, a checkpoint
}
OPENING = re.compile(
    r"(What|Whether|Whose|Whom|Who|How|Where|Which|Of|Those|That|The same|Likewise|All that|None:|"
    r"In words|From now on|As (?:it|they|many|few|much|far)|If it|So that|Within[,.]|At most|"
    r"Nothing (?:is|was|of)|Nobody|Somebody|Whoever)\b"
)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each definition in Python code: functions, arguments, variables."""
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def retired(name: str, in_package: bool) -> str | None:
    """Return what to use instead of an identifier if it is retired, else None."""
    bare = name.strip("_").lower()
    if in_package and bare in RETIRED_NAMES:
        return RETIRED_NAMES[bare]
    words = (word.lower() for word in WORD.findall(name))
    return next((RETIRED_WORDS[word] for word in words if word in RETIRED_WORDS), None)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring in Python code, also those of attributes."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield child.lineno, text


def errors_in(path: Path, tree: ast.AST) -> Iterator[str]:
    """Yield the wording errors of a Python file: retired names and docstrings' openings."""
    for line, name in identifiers(tree):
        if instead := retired(name, path.parts[0] == PACKAGE):
            yield f"{path}:{line}: {name} is a retired name; instead: {instead}"
    for line, text in docstrings(tree):
        if opening := OPENING.match(text.lstrip()):
            yield f"{path}:{line}: a docstring opens with {opening[0]!r}; use a verb or a noun"


def duplicates(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield an error for each public name that several modules define."""
    lines = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                lines[node.name].append(f"{path}:{node.lineno}")
    for name, found in sorted(lines.items()):
        if len(found) > 1 and name not in SHARED_NAMES:
            yield f"{', '.join(found)}: {name} has several definitions; give each its own name"


def main(words: list[str]) -> int:
    paths = [Path(word) for word in words or FOLDERS]
    found = ([path] if path.is_file() else path.rglob("*.py") for path in paths)
    files = sorted(file for files in found for file in files)
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    errors = [error for file, tree in trees.items() for error in errors_in(file, tree)]
    package = {file: tree for file, tree in trees.items() if file.parts[0] == PACKAGE}
    errors += duplicates(package)
    print("\n".join([*errors, f"{len(errors)} errors in {len(files)} files"]))
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
