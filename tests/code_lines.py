"""Code lines of each room, without blanks, comments, docstrings: ``python tests/code_lines.py``."""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEFINING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
C = {".c", ".cpp", ".cu", ".h", ".metal"}
BLANK = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def of_python(text: str) -> int:
    """Count the lines of Python code in a text, without comments and docstrings."""
    strings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DEFINING) and ast.get_docstring(node, clean=False) is not None:
            strings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - strings)


def of_c(text: str) -> int:
    """Count the lines of C code in a text, without comments."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    return sum(bool(re.sub(r"//.*", "", line).strip()) for line in text.splitlines())


def rooms(folder: Path) -> dict[str, list[int]]:
    """Count files and code lines of Python and C in each subfolder of a folder.

    The key "" counts files in the folder itself.
    """
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for path in sorted(folder.rglob("*")):
        python = path.suffix == ".py"
        if "__pycache__" in path.parts or not (python or path.suffix in C):
            continue
        parts = path.relative_to(folder).parts
        row = counts[parts[0] if len(parts) > 1 else ""]
        row[0 if python else 2] += 1
        row[1 if python else 3] += (of_python if python else of_c)(path.read_text())
    return counts


if __name__ == "__main__":
    for name in sys.argv[1:] or ("puffer_mlx", "tests"):
        counts = rooms(ROOT / name)
        counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
        print(f"{name:20}{'Python: files':>16}{'lines':>8}{'C: files':>12}{'lines':>8}")
        for room, row in sorted(counts.items()):
            print("{:20}{:16,}{:8,}{:12,}{:8,}".format(f"  {room}", *row))
