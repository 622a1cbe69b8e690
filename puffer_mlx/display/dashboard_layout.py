"""Lay out the dashboard: lines of text that fit a terminal of any size.

Score, steps, speed and self-play ratings come first. Then, as space permits: a curve of the score,
the environment's statistics, the hint on speed, facts, phases and losses.
"""

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.text import Text

from puffer_mlx.display.run_view import Curve, Pairs, RunState, format_count

FRAME_COLUMNS, FRAME_LINES = 4, 2  # of the border
GAP = 3  # columns between neighbouring texts
MIN_CURVE_COLUMNS = 40
MIN_CURVE_LINES, MAX_CURVE_LINES = 7, 20
BARS = " ▁▂▃▄▅▆▇█"  # bars of 0 to 8 eighths of a line
MIN_COLUMN_LINES = 3  # for a column of phases or losses
PHASE_LINES = 12  # lines for phases that take precedence over blank lines

ENVIRONMENT_TITLE = "Environment, per episode"
SELF_PLAY_TITLE = "Self-play"
NO_EPISODE_TEXT = "no episode has ended yet"


class DashboardPicture:
    """The dashboard's picture of a run, which rich renders in any size.

    Args:
        run: State of the run, with at least one record.
        hint: Hint on the speed, or "".
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
        """Return the dashboard's picture in at most ``height`` lines of ``width`` columns."""
        run = self._run
        scores = run.scores() or {"": NO_EPISODE_TEXT}
        head = _flow([*scores.items(), *run.progress().items()], width, "bold")
        if play := run.self_play():
            head += _flow([(SELF_PLAY_TITLE, ""), *play.items()], width)
        if self._in_progress:
            head.append(Text(self._in_progress, "yellow"))
        head = head[:height]
        lines_left = height - len(head)
        # Lines reserved for the curve and the blank line below it.
        has_curve = bool(self._curve(width, min(lines_left, MIN_CURVE_LINES)))
        curve_lines = MIN_CURVE_LINES + 1 if has_curve else 0
        statistics = self._statistics(width)[: max(0, lines_left - curve_lines)]
        statistics = statistics if len(statistics) > 1 else []  # never only the title
        lines_left -= len(statistics)
        hint = list(Text.assemble(("Why slow? ", "bold"), self._hint).wrap(_PLAIN_CONSOLE, width))
        hint = hint if self._hint and len(hint) <= lines_left - curve_lines else []
        lines_left -= len(hint)
        facts = _flow([*run.facts().items()], width)[: max(0, lines_left - curve_lines)]
        lines_left -= len(facts)
        # Blank lines above the curve and below the phases, if there is space for both.
        above = [Text()] if lines_left > MIN_CURVE_LINES + PHASE_LINES + 1 else []
        below = [Text()] if lines_left > MIN_CURVE_LINES + PHASE_LINES + 2 else []
        lines_left -= len(above) + len(below)
        if curve_lines:  # it may take half of the lines that are left
            curve_lines = max(curve_lines, min(MAX_CURVE_LINES, lines_left // 2) + 1)
        columns = []
        if lines_left - curve_lines >= MIN_COLUMN_LINES:
            max_rows = lines_left - curve_lines - 1
            losses = run.losses()[:max_rows]
            columns = [
                _titled_column("Time of an epoch", run.times(max_rows)),
                _titled_column("Losses", losses),
            ]
        middle = _side_by_side(columns, width)
        chart = [*self._curve(width, min(lines_left - len(middle) - 1, MAX_CURVE_LINES)), Text()]
        chart = chart if len(chart) > 1 else []
        lines = [*head, *facts, *above, *chart, *middle, *below, *hint, *statistics]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
        return lines

    def _curve(self, width: int, height: int) -> list[Text]:
        """Return the curve of the run's score or Elo rating as text; [] if there is no space."""
        if width < MIN_CURVE_COLUMNS or height < MIN_CURVE_LINES:
            return []
        run = self._run
        points = run.score_curve()
        name = "Training score"
        if run.has_opponents:
            points = run.rating_curve()
            name = "Elo"
        title = f"{name} over {format_count(run.total_steps)} steps"
        return draw_curve(title, points, run.total_steps, width, height)

    def _statistics(self, width: int) -> list[Text]:
        """Return the environment's statistics as lines of text, several statistics in each line."""
        cells = _aligned_lines(self._run.statistics())
        if not cells:
            return []
        per_line = max(1, (width + GAP) // (cells[0].cell_len + GAP))
        starts = range(0, len(cells), per_line)
        rows = [Text(" " * GAP).join(cells[start : start + per_line]) for start in starts]
        return [Text(ENVIRONMENT_TITLE, "italic"), *rows]


_PLAIN_CONSOLE = Console(width=80, color_system=None)  # only used to wrap lines


def _flow(pairs: Pairs, width: int, style: str = "") -> list[Text]:
    """Return (name, value) pairs as lines of running text, broken only between two pairs."""
    lines: list[Text] = []
    for name, value in pairs:
        item = Text.assemble((name, "cyan"), " " if name and value else "", (value, style))
        if lines and lines[-1].cell_len + GAP + item.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], " " * GAP, item)
        else:
            lines.append(item)
    return lines


def _aligned_lines(pairs: Pairs) -> list[Text]:
    """Return a line of text for each (name, value) pair, with names and values in two columns."""
    name_width = max((len(name) for name, _ in pairs), default=0)
    value_width = max((len(value) for _, value in pairs), default=0)
    return [
        Text.assemble((f"{name:{name_width}}", "cyan"), f"  {value:>{value_width}}")
        for name, value in pairs
    ]


def _titled_column(title: str, pairs: Pairs) -> list[Text]:
    """Return a title and a line for each (name, value) pair, all equally wide; [] without pairs."""
    lines = _aligned_lines(pairs)
    return [Text(f"{title:{lines[0].cell_len}}", "italic"), *lines] if lines else []


def _side_by_side(columns: list[list[Text]], width: int) -> list[Text]:
    """Combine columns of text side by side, as many as fit. Returns the lines."""
    columns = [column for column in columns if column]
    lines = columns[0] if columns else []
    for column in columns[1:]:
        label_width = max(line.cell_len for line in lines)
        free = width - label_width - column[0].cell_len
        if free < GAP:
            break
        for row, cell in enumerate(column):
            if row == len(lines):
                lines.append(Text())
            lines[row].pad_right(label_width - lines[row].cell_len + min(3 * GAP, free))
            lines[row].append_text(cell)
    return lines


def draw_curve(title: str, points: Curve, end: float, width: int, height: int) -> list[Text]:
    """Draw a curve as text, with a bar in each column. Returns the lines, [] without points.

    Args:
        title: Text of the first line.
        points: Increasing steps, and values, which are interpolated linearly.
        end: Steps at the right edge. The left edge is 0.
        width: Number of columns, including the labels.
        height: Number of lines, at least 3.
    """
    steps, values = points
    if not steps:
        return []
    bottom, top = min(0.0, *values), max(values)
    if bottom == top:  # a constant curve needs a height, too
        top += 1
    names = [_short_number(top), *[""] * (height - 3), _short_number(bottom)]
    label_width = max(map(len, names))
    bar_columns = width - label_width - 1
    edges = np.arange(1, bar_columns + 1) * (end / bar_columns)  # right edge of each column
    filled_columns = int(np.searchsorted(edges, steps[-1])) + 1
    heights = (np.interp(edges[:filled_columns], steps, values) - bottom) / (top - bottom)
    eighths = np.maximum(1, np.rint(8 * (height - 1) * heights)).astype(int)
    lines = [Text(f"{title:{width}}"[:width], "italic")]
    for row, name in enumerate(names):
        eighths_in_row = np.clip(eighths - 8 * (height - 2 - row), 0, 8)
        bars = "".join(BARS[eighth] for eighth in eighths_in_row.tolist())
        bars = f"{bars:{bar_columns}}"
        lines.append(Text.assemble((f"{name:>{label_width}}", "cyan"), " ", (bars, "green")))
    return lines


def _short_number(value: float) -> str:
    return format_count(value) if abs(value) >= 1000 else f"{value:.3g}"
