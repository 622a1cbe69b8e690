"""What looks on at training does so through what it shows: nothing outside touches private parts.

Names, not types, are compared: a private name that the trainer, its learner or its collector has is
nobody else's to read, set or patch.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAINING = ROOT / "puffer_mlx" / "training"
WATCHED = ("Trainer", "Learner", "Update", "RolloutQueue")
WATCHED += ("Collector", "HostCollector", "DeviceCollector")
WATCHED += ("Reader", "EpochResults", "Health", "EpochLogs")
OUTSIDE = ("puffer_mlx", "tests", "benchmarks", "scripts", "examples")
SHARED = {"_replace", "_asdict", "_fields", "_make"}  # a NamedTuple's, which are public


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in SHARED


def private_names() -> set[str]:
    """Attributes and methods of the watched classes that begin with one underscore."""
    trees = [ast.parse(path.read_text()) for path in TRAINING.glob("*.py")]
    classes = [n for tree in trees for n in tree.body if isinstance(n, ast.ClassDef)]
    assert {c.name for c in classes} >= set(WATCHED)
    nodes = [n for c in classes if c.name in WATCHED for n in ast.walk(c)]
    methods = {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
    attributes = {
        n.attr for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "self"
    }
    return {name for name in methods | attributes if is_private(name)}


PRIVATE = private_names()
IN_TEXT = re.compile(rf"(?<!self)\.({'|'.join(sorted(PRIVATE))})\b")  # programs that tests run


def pokes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of every use of a private name on something other than the object itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr in PRIVATE and ast.unparse(node.value) not in ("self", "cls"):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call):  # monkeypatch.setattr(Trainer, "_train", ...)
            for argument in node.args[:2]:
                if isinstance(argument, ast.Constant) and argument.value in PRIVATE:
                    yield node.lineno, str(argument.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((node.lineno, name) for name in IN_TEXT.findall(node.value))


def test_nothing_outside_touches_private_parts_of_training():
    assert {"_load_fields", "_collect", "_fill"} <= PRIVATE
    files = [path for folder in OUTSIDE for path in (ROOT / folder).rglob("*.py")]
    outside = [path for path in files if TRAINING not in path.parents and path != Path(__file__)]
    assert len(outside) > 150
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in outside
        for line, name in pokes(ast.parse(path.read_text()))
    ]
    assert not found, f"use what training shows: {found}"


def test_planted_pokes_are_found():
    for text in (
        "trainer._began",
        "made.collector._future = None",
        "patch.setattr(Trainer, '_prepare', broken)",
        "SCRIPT = 't._record()'",
    ):
        assert [name for _, name in pokes(ast.parse(text))], text
    for text in ("self._key", "trainer.learner.functions", "Steps._fields", "steps._replace(a=b)"):
        assert not list(pokes(ast.parse(text))), text
