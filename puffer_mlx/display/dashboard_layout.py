"""Lay out the dashboard: lines that fit a terminal of any size.

Score, steps, speed and self-play ratings come first and are never cut. Then, as space permits: a
curve of the score, the environment's other numbers, the bottleneck, facts, phases and losses.
"""

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.text import Text

from puffer_mlx.display.run_view import Curve, Pairs, RunState, abbreviate

FRAME_COLUMNS, FRAME_LINES = 4, 2  # of the border
GAP = 3  # columns between two things side by side
NARROWEST, LOWEST, HIGHEST = 40, 7, 20  # columns and lines of a curve
BARS = " ▁▂▃▄▅▆▇█"  # eighths of a line
PHASES = 12  # lines of phases, before blank lines are worth more

ENVIRONMENT = "Environment, per episode"
SELF_PLAY = "Self-play"
NONE_ENDED = "no episode has ended yet"


class Picture:
    """The picture of a run, for rich.

    Args:
        run: The run, with at least one record.
        hint: Hint on the bottleneck, or "".
        spare: Lines of the terminal that stay free.
        in_progress: Line about the current epoch, or "".
    """

    def __init__(self, run: RunState, hint: str, spare: int, in_progress: str) -> None:
        self._run = run
        self._hint = hint
        self._spare = spare
        self._in_progress = in_progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - FRAME_COLUMNS)
        height = (options.height or console.height) - FRAME_LINES - self._spare
        lines = self.lines(width, max(1, height))
        yield Panel(Group(*lines), title="[bold]puffer_mlx[/]", border_style="cyan")

    def lines(self, width: int, height: int) -> list[Text]:
        """Return at most ``height`` lines, each of at most ``width`` columns."""
        run = self._run
        scores = run.scores() or {"": NONE_ENDED}
        head = _flow([*scores.items(), *run.progress().items()], width, "bold")
        if play := run.self_play():
            head += _flow([(SELF_PLAY, ""), *play.items()], width)
        head += [Text(self._in_progress, "yellow")] if self._in_progress else []
        head = head[:height]
        room = height - len(head)
        for_curve = LOWEST + 1 if self._curve(width, min(room, LOWEST)) else 0
        statistics = self._statistics(width)[: max(0, room - for_curve)]
        statistics = statistics if len(statistics) > 1 else []  # not the title alone
        room -= len(statistics)
        hint = list(Text.assemble(("Why slow? ", "bold"), self._hint).wrap(_PLAIN, width))
        hint = hint if self._hint and len(hint) <= room - for_curve else []
        room -= len(hint)
        facts = _flow([*run.facts().items()], width)[: max(0, room - for_curve)]
        room -= len(facts)
        above = [Text()] * (room > LOWEST + PHASES + 1)
        below = [Text()] * (room > LOWEST + PHASES + 2)
        room -= len(above) + len(below)
        for_curve = max(for_curve, min(HIGHEST, room // 2) + 1) if for_curve else 0
        columns = []
        if room - for_curve >= 3:
            most = room - for_curve - 1
            losses = run.losses()[:most]
            columns = [_titled("Time of an epoch", run.times(most)), _titled("Losses", losses)]
        middle = _side_by_side(columns, width)
        chart = [*self._curve(width, min(room - len(middle) - 1, HIGHEST)), Text()]
        chart = chart if len(chart) > 1 else []
        lines = [*head, *facts, *above, *chart, *middle, *below, *hint, *statistics]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
        return lines

    def _curve(self, width: int, height: int) -> list[Text]:
        """Return the lines of the score's curve, or the rating's; [] without enough space."""
        if width < NARROWEST or height < LOWEST:
            return []
        run = self._run
        points = run.score_curve()
        what = "Training score"
        if run.has_opponents:
            points = run.rating_curve()
            what = "Elo"
        title = f"{what} over {abbreviate(run.total_steps)} steps"
        return draw_curve(title, points, run.total_steps, width, height)

    def _statistics(self, width: int) -> list[Text]:
        """Return the environment's numbers in rows, as many side by side as fit."""
        cells = _aligned(self._run.statistics())
        if not cells:
            return []
        each = max(1, (width + GAP) // (cells[0].cell_len + GAP))
        firsts = range(0, len(cells), each)
        rows = [Text(" " * GAP).join(cells[first : first + each]) for first in firsts]
        return [Text(ENVIRONMENT, "italic"), *rows]


_PLAIN = Console(width=80, color_system=None)  # to break lines, which needs no terminal


def _flow(pairs: Pairs, width: int, style: str = "") -> list[Text]:
    """Return names and values one after the other, with line breaks between pairs."""
    lines: list[Text] = []
    for name, value in pairs:
        item = Text.assemble((name, "cyan"), " " if name and value else "", (value, style))
        if lines and lines[-1].cell_len + GAP + item.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], " " * GAP, item)
        else:
            lines.append(item)
    return lines


def _aligned(pairs: Pairs) -> list[Text]:
    """Return a line per pair: names on the left and values on the right, of equal lengths."""
    left = max((len(name) for name, _ in pairs), default=0)
    right = max((len(value) for _, value in pairs), default=0)
    return [Text.assemble((f"{n:{left}}", "cyan"), f"  {v:>{right}}") for n, v in pairs]


def _titled(title: str, pairs: Pairs) -> list[Text]:
    """Return a column with a title, its widest line; [] without pairs."""
    lines = _aligned(pairs)
    return [Text(f"{title:{lines[0].cell_len}}", "italic"), *lines] if lines else []


def _side_by_side(columns: list[list[Text]], width: int) -> list[Text]:
    """Return the lines of the columns that fit side by side, the first one in any case."""
    columns = [column for column in columns if column]
    lines = columns[0] if columns else []
    for column in columns[1:]:
        left = max(line.cell_len for line in lines)
        free = width - left - column[0].cell_len
        if free < GAP:
            break
        for row, cell in enumerate(column):
            if row == len(lines):
                lines.append(Text())
            lines[row].pad_right(left - lines[row].cell_len + min(3 * GAP, free))
            lines[row].append_text(cell)
    return lines


def draw_curve(title: str, points: Curve, end: float, width: int, height: int) -> list[Text]:
    """Return the lines of a curve with a bar in each column; [] without points.

    Args:
        title: First line.
        points: Steps in increasing order, and values, interpolated linearly.
        end: Steps at the right edge; the left edge is 0.
        width: Number of columns, labels included.
        height: Number of lines, at least 3.
    """
    steps, values = points
    if not steps:
        return []
    bottom, top = min(0.0, *values), max(values)
    top += bottom == top
    names = [_short(top), *[""] * (height - 3), _short(bottom)]
    left = max(map(len, names))
    edges = np.arange(1, width - left) * (end / (width - left - 1))  # right, of each column
    known = int(np.searchsorted(edges, steps[-1])) + 1
    heights = (np.interp(edges[:known], steps, values) - bottom) / (top - bottom)
    eighths = np.maximum(1, np.rint(8 * (height - 1) * heights)).astype(int)
    lines = [Text(f"{title:{width}}"[:width], "italic")]
    for row, name in enumerate(names):
        full = eighths - 8 * (height - 2 - row)
        bars = "".join(BARS[min(8, max(0, part))] for part in full.tolist())
        bars = f"{bars:{width - left - 1}}"
        lines.append(Text.assemble((f"{name:>{left}}", "cyan"), " ", (bars, "green")))
    return lines


def _short(value: float) -> str:
    return abbreviate(value) if abs(value) >= 1000 else f"{value:.3g}"
