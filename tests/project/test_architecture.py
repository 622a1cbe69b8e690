"""The documentation names what exists, and a part is known only in its own folder."""

import ast
import functools
import re
from pathlib import Path

import pytest
from running import module_of
from test_rooms import PACKAGE

ROOT = PACKAGE.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "RESULTS.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
NOT_OURS = {"path", "checkpoints", "logs", "config", "learning"}  # of a run, or of PufferLib
LINK = re.compile(r"\[`?([^]`]+)`?\]\(([^)#\s]+)\)")


def test_drawing_and_table_of_rooms_are_written_from_the_sources():
    drawing = module_of(ROOT / "docs" / "draw_architecture.py")
    old = [path.name for path, text in drawing.made().items() if path.read_text() != text]
    assert old == [], "run python docs/draw_architecture.py"


def missing(page: Path) -> list[str]:
    """Return the paths that a documentation page names and that don't exist."""
    whole = page.read_text()
    text = re.sub(r"```.*?```", "", whole, flags=re.DOTALL)
    targets = [target for _, target in LINK.findall(text) if "://" not in target]
    lost = [target for target in targets if not (page.parent / target).exists()]
    for path in re.findall(r"`([\w.-]+(?:/[\w.-]+)+\.[a-z]{1,5})`", text):
        places = (ROOT / path, PACKAGE / path, page.parent / path)
        of_a_run = path.split("/")[0] in NOT_OURS or "NAME" in path
        if not of_a_run and not any(place.exists() for place in places):
            lost.append(path)
    tests = re.findall(r"tests/[\w/]+\.py", whole)
    return lost + [path for path in tests if not (ROOT / path).exists()]


def test_files_that_pages_name_exist():
    lost = {page.name: missing(page) for page in PAGES}
    assert {name: paths for name, paths in lost.items() if paths} == {}


# ---- parts that are found by listing a folder ----------------------------------------------------

# The files that may name a part: its default, and formats older than the choice.
LISTED = {
    "policy/networks": {"config/schema/policy.py"},
    "ppo/optimizers": {"config/schema/train.py", "ppo/optimizers/__init__.py"},
}


FIELDS = ("id", "attr", "name", "module", "value")  # of names, attributes, imports and strings


@functools.cache
def words(path: Path) -> set[str]:
    """Return the names and strings in a Python file's code, in lower case."""
    nodes = ast.walk(ast.parse(path.read_text()))
    texts = (str(getattr(node, field, "")) for node in nodes for field in FIELDS)
    return {word for text in texts for word in text.lower().split(".")}


@pytest.mark.parametrize("room", LISTED)
def test_part_is_named_only_in_its_own_folder(room):
    parts = [path.parent for path in (PACKAGE / room).glob("*/__init__.py")]
    assert len(parts) > 1
    for part in parts:
        naming = {
            path.relative_to(PACKAGE).as_posix()
            for path in PACKAGE.rglob("*.py")
            if part not in path.parents and part.name in words(path)
        }
        assert naming <= LISTED[room] | {f"export/{Path(room).name}/{part.name}.py"}


def test_no_code_compares_with_an_algorithm_name():
    folder = PACKAGE / "ppo" / "algorithms"
    names = {path.stem for path in folder.glob("*.py")}
    comparing = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if folder not in path.parents
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        for side in ast.walk(node)
        if isinstance(side, ast.Constant) and side.value in names
    }
    assert comparing == set()


def test_no_deadline_uses_the_wall_clock():
    """It jumps when a laptop wakes up."""
    paths = [path for path in PACKAGE.rglob("*.py") if "time.time()" in path.read_text()]
    assert {path.name for path in paths} == {
        "driver.py",  # when another process began a run
        "runs.py",  # the age of a run
        "tensorboard.py",  # for its readers
    }
