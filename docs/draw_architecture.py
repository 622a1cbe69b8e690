#!/usr/bin/env python
"""Draw docs/images/architecture.svg, and write the rooms of docs/architecture.md, from the sources.

    python docs/draw_architecture.py

Rooms stand on the floors of ``tests/project/test_rooms.py``. In the drawing they say the first
words of their docstrings, in the table the first paragraph. A grey line is an import; one
that others imply is left out. The numbered arrows are an observation's way, which the page
describes. A test compares both files with what this writes.
"""

import ast
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DRAWING = ROOT / "docs" / "images" / "architecture.svg"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: written by docs/draw_architecture.py from the docstrings -->", "<!-- end"

# From one room to another, an observation's way; the numbers are docs/architecture.md's.
WAY = (
    ("vec", "rollout"),
    ("rollout", "policy"),
    ("policy", "rollout"),
    ("rollout", "training"),
    ("training", "ppo"),
    ("ppo", "training"),
)

WIDTH, MARGIN, SPACE = 1000, 14, 22
SLANT = 0.2  # of the observation's arrows, whose heads stay apart
LANES = 50  # at the left, for arrows that pass a floor
HEIGHT, STOREY = 66, 118  # of a box, and from one floor to the next
STYLE = """
  .paper { fill: #ffffff } .floor { fill: #f3f4f6 } .box { fill: #ffffff; stroke: #8b949e }
  .name { fill: #1f2328; font: bold 17px ui-monospace, Menlo, Consolas, monospace }
  .words { fill: #4b535d; font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif }
  .import { stroke: #9aa4ae; fill: none } .way { stroke: #c2410c; fill: none; stroke-width: 2.5 }
  .head, .badge { fill: #c2410c } .number { fill: #ffffff; font: bold 12px sans-serif }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } .floor { fill: #161b22 } .box { fill: #0d1117; stroke: #6e7681 }
    .name { fill: #f0f6fc } .words { fill: #b1bac4 } .import { stroke: #6e7681 }
    .way { stroke: #fb923c } .head, .badge { fill: #fb923c } .number { fill: #0d1117 }
  }
"""

Graph = dict[str, set[str]]


def sentence(package: Path, room: str) -> str:
    """Return the first paragraph of a room's docstring."""
    path = package / room / "__init__.py"
    path = path if path.is_file() else package / f"{room}.py"
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def gist(sentence: str) -> str:
    """Return the first words of a room's description, for its box in the drawing."""
    return re.sub(r" \([^)]*\)", "", sentence.partition(":")[0]).rstrip(".")


def fewest(graph: Graph) -> Graph:
    """Return the imports between rooms that no chain of other imports implies."""

    def reached(room: str) -> set[str]:
        return {room}.union(*(reached(other) for other in graph.get(room, ())))

    return {
        room: {b for b in others if not any(b in reached(c) for c in others - {b})}
        for room, others in graph.items()
    }


class Places:
    """Return the position of each room's box."""

    def __init__(self, floors: tuple[str, ...]) -> None:
        self.boxes: dict[str, tuple[float, float, float]] = {}  # left, top, width
        for storey, rooms in enumerate(floor.split() for floor in floors):
            whole = WIDTH - 2 * MARGIN - LANES
            width = min(300, (whole - len(rooms) * SPACE) / len(rooms))
            gap = (whole - len(rooms) * width) / (len(rooms) + 1)
            for i, room in enumerate(rooms):
                left = MARGIN + LANES + gap + i * (width + gap)
                self.boxes[room] = left, MARGIN + 10 + storey * STOREY, width
        self.height = 2 * MARGIN + len(floors) * STOREY

    def ends(
        self, a: str, b: str, shift: float = 0, slant: float = 0.32
    ) -> tuple[float, float, float, float]:
        """Return x and y of both ends of a line from one box to another.

        Args:
            a, b: rooms.
            shift: moves both ends to the right.
            slant: how far the ends move towards the other box, per distance of the boxes.
        """
        (ax, ay, aw), (bx, by, bw) = self.boxes[a], self.boxes[b]
        if ay == by:
            right = bx > ax
            return (
                (ax + aw if right else ax),
                ay + HEIGHT / 2,
                (bx if right else bx + bw),
                by + HEIGHT / 2,
            )
        lean = slant * ((bx + bw / 2) - (ax + aw / 2))
        down = by > ay
        x1 = ax + aw / 2 + max(-0.4 * aw, min(0.4 * aw, lean)) + shift
        x2 = bx + bw / 2 - max(-0.4 * bw, min(0.4 * bw, lean)) + shift
        return x1, (ay + HEIGHT if down else ay), x2, (by if down else by + HEIGHT)

    def line(self, a: str, b: str, shift: float = 0, slant: float = 0.32) -> str:
        """Return the path of the line that `ends` describes."""
        x1, y1, x2, y2 = self.ends(a, b, shift, slant)
        middle = (y1 + y2) / 2
        return f"M{x1:.0f},{y1:.0f} C{x1:.0f},{middle:.0f} {x2:.0f},{middle:.0f} {x2:.0f},{y2:.0f}"

    def arrow(self, a: str, b: str, back: bool) -> tuple[str, float, float]:
        """Return the path of an arrow of the numbered way, and the position of its number.

        Args:
            a: Room at the beginning.
            b: Room at the end.
            back: True if there is also an arrow from b to a, which is drawn beside this one.
        """
        (ax, ay, _), (bx, by, _) = self.boxes[a], self.boxes[b]
        if abs(ay - by) == STOREY:
            shift = 26.0 * back * (1 if ay > by else -1)
            x1, y1, x2, y2 = self.ends(a, b, shift, SLANT)
            return self.line(a, b, shift, SLANT), (x1 + x2) / 2, (y1 + y2) / 2
        x = MARGIN + (42 if by > ay else 16)
        begin, end = ay + HEIGHT - 20, by + 24
        bend = 30 if by > ay else -30
        path = f"M{ax:.0f},{begin} Q{x},{begin} {x},{begin + bend} L{x},{end - bend}"
        return f"{path} Q{x},{end} {bx:.0f},{end}", x, (begin + end) / 2


def draw(package: Path, floors: tuple[str, ...], graph: Graph) -> str:
    """Return the drawing of the rooms as the text of an SVG file.

    Args:
        package: Folder of the sources.
        floors: Names of the rooms on each floor, from the top to the bottom.
        graph: Rooms that each room imports from.
    """
    places = Places(floors)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {places.height}"'
        ' role="img" aria-label="The rooms of puffer_mlx on their floors">',
        f"<style>{STYLE}</style>",
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5"'
        ' orient="auto"><path class="head" d="M0,0 L8,4 L0,8 z"/></marker>',
        f'<rect class="paper" width="{WIDTH}" height="{places.height}"/>',
    ]
    for storey in range(len(floors)):
        top = MARGIN + storey * STOREY
        size = f'width="{WIDTH - 2 * MARGIN}" height="{HEIGHT + 20}"'
        out.append(f'<rect class="floor" x="{MARGIN}" y="{top}" {size} rx="8"/>')
    for room, others in sorted(fewest(graph).items()):
        out += [f'<path class="import" d="{places.line(room, b)}"/>' for b in sorted(others)]
    for room, (left, top, width) in places.boxes.items():
        box = f'x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{HEIGHT}"'
        out.append(f'<rect class="box" {box} rx="6"/>')
        x = f"{left + 12:.0f}"
        out.append(f'<text class="name" x="{x}" y="{top + 23:.0f}">{room}</text>')
        words = textwrap.wrap(gist(sentence(package, room)), int(width / 7.5))
        for i, line in enumerate(words):
            out.append(f'<text class="words" x="{x}" y="{top + 42 + 16 * i:.0f}">{line}</text>')
    for number, (a, b) in enumerate(WAY, 1):
        path, x, y = places.arrow(a, b, back=(b, a) in WAY)
        out.append(f'<path class="way" marker-end="url(#head)" d="{path}"/>')
        out.append(f'<circle class="badge" cx="{x:.0f}" cy="{y:.0f}" r="9"/>')
        text = f'<text class="number" x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">'
        out.append(f"{text}{number}</text>")
    return "\n".join([*out, "</svg>"]) + "\n"


def table(package: Path, floors: tuple[str, ...]) -> str:
    """Return the rooms by floor, from the top to the bottom, as Markdown."""
    lines = ["| floor | room | |", "| --- | --- | --- |"]
    for storey, rooms in zip(range(len(floors) - 1, -1, -1), floors, strict=True):
        for room in rooms.split():
            path = room if (package / room).is_dir() else f"{room}.py"
            link = f"[`{path}`](../puffer_mlx/{path})"
            lines.append(f"| {storey} | {link} | {sentence(package, room).replace('``', '`')} |")
    return "\n".join(lines) + "\n"


def made() -> dict[Path, str]:
    """Return the drawing and the page for the present sources."""
    sys.path.insert(0, str(ROOT / "tests" / "project"))
    from test_rooms import ARROWS, FLOORS, PACKAGE, room

    graph: Graph = {}
    for module, others in ARROWS.items():
        graph.setdefault(room(module), set()).update({room(other) for other in others})
    graph = {name: others - {name} for name, others in graph.items()}
    before, rest = PAGE.read_text().split(BEGIN)
    page = before + BEGIN + "\n\n" + table(PACKAGE, FLOORS) + "\n" + END + rest.partition(END)[2]
    return {DRAWING: draw(PACKAGE, FLOORS, graph), PAGE: page}


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text)
        print(path)
