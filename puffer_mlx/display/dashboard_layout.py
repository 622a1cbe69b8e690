"""The dashboard's picture: lines that fit a terminal of any size.

What matters most is there first, whole: the score, the steps and the speed, and of a run with
self-play its ratings. Then as much as there
is room for: what an episode's other numbers are, why it is slow, facts of the run, where the time
goes, the losses, and a curve of the score.
"""

from collections.abc import Iterable

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.text import Text

from puffer_mlx.display.run_view import View, abbreviate

FRAME_COLUMNS, FRAME_LINES = 4, 2  # of the border
GAP = 3  # columns between two things side by side
NARROWEST, LOWEST, HIGHEST = 40, 7, 20  # columns and lines of a curve
BARS = " ▁▂▃▄▅▆▇█"  # eighths of a line
PHASES = 12  # lines of phases, before blank lines are worth more

ENVIRONMENT = "Environment, per episode"
SELF_PLAY = "Self-play"

Pairs = Iterable[tuple[str, str]]


class Picture:
    """The picture of a run, for rich.

    Args:
        view: The run, with at least one record.
        why: Hint on the slowest part, or "".
        spare: Lines of the terminal that stay free.
        in_progress: Line about the current epoch, or "".
    """

    def __init__(self, view: View, why: str = "", spare: int = 0, in_progress: str = "") -> None:
        self._view, self._why, self._spare, self._in_progress = view, why, spare, in_progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - FRAME_COLUMNS)
        height = (options.height or console.height) - FRAME_LINES - self._spare
        lines = self.lines(width, max(1, height))
        yield Panel(Group(*lines), title="[bold]puffer_mlx[/]", border_style="cyan")

    def lines(self, width: int, height: int) -> list[Text]:
        """All of it, ``height`` lines at most, each of ``width`` columns at most."""
        view = self._view
        head = _flow(view.headline().items(), width, "bold")
        if play := view.self_play():
            head += _flow([(SELF_PLAY, ""), *play.items()], width)
        head += [Text(self._in_progress, "yellow")] if self._in_progress else []
        head = head[:height]
        room = height - len(head)
        columns = [self._phases(PHASES), self._losses(PHASES), self._column()]
        beside = _fit(columns, width) and len(columns[2]) <= PHASES < height
        statistics = [] if beside else self._statistics(width)[:room]
        room -= len(statistics)
        why = list(Text.assemble(("Why slow? ", "bold"), self._why).wrap(_PLAIN, width))
        why = why if self._why and len(why) <= room else []
        room -= len(why)
        facts = _flow(view.details().items(), width)[:room]
        room -= len(facts)
        above, below = [Text()] * (room > PHASES + 1), [Text()] * (room > PHASES + 2)
        middle = self._middle(width, room - len(above) - len(below), beside)
        room -= len(middle) + len(above) + len(below)
        chart = [*self._curve(width, min(room - 1, HIGHEST)), Text()]
        if len(chart) == 1:
            middle, chart = self._beside(middle, width), []
        lines = [*head, *facts, *above, *middle, *below, *chart, *why, *statistics]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
        return lines

    def _middle(self, width: int, room: int, beside: bool) -> list[Text]:
        """Phases and losses side by side, or one of them; statistics too if ``beside``."""
        if room < 3:
            return []
        columns = [self._phases(room - 1), self._losses(room - 1)]
        columns += [self._column()[:room]] if beside else []
        columns = [column for column in columns if column]
        while len(columns) > 1 and not _fit(columns, width):
            columns.pop()
        return _side_by_side(columns, width)

    def _beside(self, middle: list[Text], width: int) -> list[Text]:
        """Return the lines with the curve on their right, if it fits."""
        left = max((line.cell_len for line in middle), default=0)
        chart = self._curve(width - left - 3 * GAP, len(middle))
        middle = [line.copy() for line in middle]
        for line in middle:
            line.pad_right(left - line.cell_len)
        return _side_by_side([middle, chart], width) if chart else middle

    def _curve(self, width: int, height: int) -> list[Text]:
        """The score's or the rating's; empty where there is too little room."""
        if width < NARROWEST or height < LOWEST:
            return []
        view = self._view
        points, what = view.score_curve(), "Training score"
        if view.plays:
            points, what = view.rating_curve(), "Elo"
        title = f"{what} over {abbreviate(view.total_steps)} steps"
        return curve(title, points, view.total_steps, width, height)

    def _phases(self, most: int) -> list[Text]:
        phases = self._view.phases(most)
        if len(phases) > most:  # not even their rests: then only the wholes
            phases = [phase for phase in phases if not phase.parent][:most]
        names = [f"  {phase.label}" if phase.parent else phase.label for phase in phases]
        times = [f"{1000 * phase.seconds:5.0f} ms {100 * phase.share:3.0f} %" for phase in phases]
        return _titled("Time of an epoch", zip(names, times, strict=True))

    def _losses(self, most: int) -> list[Text]:
        return _titled("Losses", list(self._view.losses().items())[:most])

    def _column(self) -> list[Text]:
        """The environment's numbers, one below the other."""
        return _titled(ENVIRONMENT, self._view.statistics().items())

    def _statistics(self, width: int) -> list[Text]:
        """The environment's numbers in rows, as many beside each other as fit."""
        pairs = list(self._view.statistics().items())
        if not pairs:
            return []
        cells = _aligned(pairs)
        each = max(1, (width + GAP) // (cells[0].cell_len + GAP))
        rows = [
            Text(" " * GAP).join(cells[first : first + each])
            for first in range(0, len(cells), each)
        ]
        return [Text(ENVIRONMENT, "italic"), *rows]


_PLAIN = Console(width=80, color_system=None)  # to break lines, which needs no terminal


def _flow(pairs: Pairs, width: int, style: str = "") -> list[Text]:
    """Names and values one after the other, a new line where one has no room."""
    lines: list[Text] = []
    for name, value in pairs:
        item = Text.assemble((name, "cyan"), " " if name and value else "", (value, style))
        if lines and lines[-1].cell_len + GAP + item.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], " " * GAP, item)
        else:
            lines.append(item)
    return lines


def _aligned(pairs: Pairs) -> list[Text]:
    """Names to the left and values to the right, all lines of the same length."""
    pairs = list(pairs)
    left = max((len(name) for name, _ in pairs), default=0)
    right = max((len(value) for _, value in pairs), default=0)
    return [Text.assemble((f"{n:{left}}", "cyan"), f"  {v:>{right}}") for n, v in pairs]


def _titled(title: str, pairs: Pairs) -> list[Text]:
    """A column; nothing without pairs. Its first line is its widest."""
    lines = _aligned(pairs)
    width = max((line.cell_len for line in lines), default=0)
    return [Text(f"{title:{width}}", "italic"), *lines] if lines else []


def _fit(columns: list[list[Text]], width: int) -> bool:
    """Return True if the columns fit side by side."""
    return sum(column[0].cell_len + GAP for column in columns if column) - GAP <= width


def _side_by_side(columns: list[list[Text]], width: int) -> list[Text]:
    """Return the lines of columns side by side, with part of the free width between them."""
    free = width - sum(column[0].cell_len for column in columns)
    gap = max(GAP, min(3 * GAP, free // max(1, len(columns) - 1)))
    lines = []
    for row in range(max(map(len, columns), default=0)):
        line = Text()
        for column in columns:
            cell = column[row].copy() if row < len(column) else Text()
            cell.pad_right(column[0].cell_len - cell.cell_len + gap)
            line.append_text(cell)
        line.rstrip()
        lines.append(line)
    return lines


def curve(
    title: str, points: tuple[list[float], list[float]], end: float, width: int, height: int
) -> list[Text]:
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
