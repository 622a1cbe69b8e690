"""docs/architecture.md and the other pages speak of what is there."""

import ast
import functools
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from running import module_of
from test_rooms import ARROWS, FLOORS, PACKAGE

ROOT = PACKAGE.parent
TEXT = (ROOT / "docs" / "architecture.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "RESULTS.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
NOT_OURS = {"path", "checkpoints", "logs", "config", "learning"}  # of a run, or of PufferLib
LINK = re.compile(r"\[`?([^]`]+)`?\]\(([^)#\s]+)\)")


@pytest.fixture(scope="module")
def drawing():
    return module_of(ROOT / "docs" / "draw_architecture.py")


def test_drawing_and_rooms_are_those_of_the_sources(drawing):
    for path, text in drawing.made().items():
        assert path.read_text() == text, "run python docs/draw_architecture.py"


def test_a_room_that_says_something_else_is_drawn_anew(drawing, tmp_path):
    for name in " ".join(FLOORS).split():
        path = Path(name) / "__init__.py" if (PACKAGE / name).is_dir() else Path(f"{name}.py")
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(PACKAGE / path, tmp_path / path)
    graph = {"training": {"rollout", "ppo"}, "rollout": {"policy"}, "ppo": {"policy"}}
    before = drawing.draw(tmp_path, FLOORS, graph), drawing.table(tmp_path, FLOORS)
    assert before == (drawing.draw(PACKAGE, FLOORS, graph), drawing.table(PACKAGE, FLOORS))
    (tmp_path / "vec" / "__init__.py").write_text('"""Worlds: many.\n\nMore of it."""\n')
    assert ">Worlds</text>" in drawing.draw(tmp_path, FLOORS, graph)
    assert "| Worlds: many. |" in drawing.table(tmp_path, FLOORS)


def test_the_drawing_is_readable(drawing):
    """In light and in dark; words stay in their boxes, also in a wide font; few arrows."""
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}}
    assert drawing.fewest(graph) == {"a": {"b"}, "b": {"c"}, "c": {"d"}}
    svg = ElementTree.fromstring(drawing.DRAWING.read_text())
    name = "{http://www.w3.org/2000/svg}"
    style = svg.findtext(f"{name}style") or ""
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    coloured = [set(re.findall(r"\.(\w+)[^{}]*\{[^}]*#", part)) for part in (light, dark)]
    assert coloured[0] == coloured[1] and len(coloured[0]) > 7
    boxes = [
        [float(box.get(key, "")) for key in ("x", "y", "width", "height")]
        for box in svg.iter(f"{name}rect")
        if box.get("class") == "box"
    ]
    assert len(boxes) == len(" ".join(FLOORS).split())
    for text in svg.iter(f"{name}text"):
        if text.get("class") in ("name", "words"):
            x, y = float(text.get("x", "")), float(text.get("y", ""))
            wide = 7.5 if text.get("class") == "words" else 10.5
            assert any(
                left < x and x + wide * len(text.text or "") < left + width + 8 and y < top + height
                for left, top, width, height in boxes
                if top < y
            ), text.text


def test_the_way_has_the_numbers_of_the_drawing(drawing):
    rows = re.findall(r"^\| (\d+) \| .*\|.*\|.*\|$", TEXT.partition("## The rooms")[0], re.M)
    assert [int(row) for row in rows] == list(range(1, len(drawing.WAY) + 1))


def defined(path: Path) -> set[str]:
    """Functions, classes and methods of a file."""
    tree = ast.parse(path.read_text())
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inside = (item for item in node.body if isinstance(item, ast.FunctionDef))
            names |= {f"{node.name}.{item.name}" for item in inside}
    return names


def test_what_architecture_names_is_where_it_says():
    named = [(name, path) for name, path in LINK.findall(TEXT) if path.endswith(".py")]
    named = [(name, path) for name, path in named if "/" not in name and not name.endswith(".py")]
    assert len(named) > 12
    for name, path in named:
        assert name in defined(ROOT / "docs" / path), f"{path} has no {name}"


def test_files_that_pages_name_exist():
    for page in PAGES:
        whole = page.read_text()
        text = re.sub(r"```.*?```", "", whole, flags=re.DOTALL)
        for _, target in LINK.findall(text):
            assert "://" in target or (page.parent / target).exists(), (page, target)
        for path in re.findall(r"`([\w.-]+(?:/[\w.-]+)+\.[a-z]{1,5})`", text):
            places = (ROOT / path, PACKAGE / path, page.parent / path)
            a_runs = path.split("/")[0] in NOT_OURS or "NAME" in path
            assert a_runs or any(place.exists() for place in places), (page, path)
        for path in re.findall(r"tests/[\w/]+\.py", whole):
            assert (ROOT / path).exists(), (page, path)


# ---- how to add something ------------------------------------------------------------------------

# Rooms whose parts are found by listing a folder, and the files that may know a part by name all
# the same: its default, and what was written before there was a choice.
LISTED = {
    "policy/networks": {"config/schema/policy.py"},
    "ppo/optimizers": {"config/schema/train.py", "ppo/optimizers/__init__.py"},
}


def parts(folder: Path) -> list[str]:
    """A room's parts: a folder each, or a file, with a name that docs can say."""
    found = [path for path in folder.iterdir() if (path / "__init__.py").is_file()]
    return sorted(path.name for path in found)


@functools.cache
def words(text: str) -> set[str]:
    """Names and texts of a file's code, in small letters; docstrings aren't code."""
    found: set[str] = set()
    for node in ast.walk(tree := ast.parse(text)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found |= {*node.name.split(".")}
        elif isinstance(node, ast.ImportFrom):
            found |= {*(node.module or "").split(".")}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return {word.lower() for word in found if ast.get_docstring(tree, clean=False) != word}


def knowing(package: Path, room: str, part: str) -> set[str]:
    """The files outside a part's folder that know it by name."""
    mine = package / room / part
    others = (path for path in package.rglob("*.py") if mine not in path.parents)
    found = {path for path in others if part in words(path.read_text())}
    return {str(path.relative_to(package)) for path in found}


def test_a_part_is_known_in_its_own_folder_alone():
    for room in LISTED:
        found = parts(PACKAGE / room)
        assert len(found) > 1
        for part in found:
            allowed = LISTED[room] | {f"export/{Path(room).name}/{part}.py"}
            assert knowing(PACKAGE, room, part) <= allowed, part


def test_a_file_that_knows_a_part_is_found(tmp_path):
    texts = {
        "a/lstm/network.py": "class LSTM: ...",
        "a/other.py": 'TABLE = {"LSTM": 1}',
        "b.py": "def f(x):\n    return type(x) is LSTM",
        "c.py": "from package.a.lstm import network",
        "d.py": "from package.a import lstm as other",
        "e.py": '"""No LSTM here."""',
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert knowing(tmp_path, "a", "lstm") == {"a/other.py", "b.py", "c.py", "d.py"}


def comparisons(package: Path) -> set[str]:
    """Files outside ``ppo/algorithms`` that compare something with an algorithm's name."""
    folder, found = package / "ppo" / "algorithms", set()
    names = {path.stem for path in folder.glob("*.py")}
    for path in package.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text())) if folder not in path.parents else ()
        compared = (side for n in nodes if isinstance(n, ast.Compare) for side in ast.walk(n))
        if any(isinstance(side, ast.Constant) and side.value in names for side in compared):
            found.add(str(path.relative_to(package)))
    return found


def test_nothing_is_compared_with_an_algorithm_s_name(tmp_path):
    assert not comparisons(PACKAGE)
    (tmp_path / "ppo" / "algorithms").mkdir(parents=True)
    (tmp_path / "ppo" / "algorithms" / "a2c.py").write_text("x == 'a2c'")
    (tmp_path / "here.py").write_text("if train.algorithm in ('a2c', 'other'): ...")
    (tmp_path / "there.py").write_text("name = 'a2c'")
    assert comparisons(tmp_path) == {"here.py"}


def test_nobody_imports_a_format_by_name():
    formats = {module for module in ARROWS if module.startswith("export.formats.")}
    assert len(formats) > 3
    for module, others in ARROWS.items():
        assert not others & formats or module.startswith("export.formats"), module


def test_no_deadline_is_by_the_clock_on_the_wall():
    """It jumps when a laptop wakes up; the others stand still while it sleeps."""
    paths = PACKAGE.rglob("*.py")
    asks = {
        path.relative_to(PACKAGE).as_posix() for path in paths if "time.time()" in path.read_text()
    }
    assert asks == {
        "sweep/engine/driver.py",  # when another process began a run
        "tracking/trackers/tensorboard.py",  # for its readers
    }
