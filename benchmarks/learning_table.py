"""Write Markdown tables of the records in `learning/`.

For each trainer: the median score over the seeds and the range, and the interquartile mean with its
95 % interval. The interquartile mean leaves out the best and the worst quarter of the seeds (of
five seeds: the mean of the middle three); its interval is a bootstrap over the seeds of a task with
10,000 resamples. Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice", recommend it for few seeds, and also the probability of improvement: how often a run of
one trainer is better than a run of another, averaged over all tasks. A seed has *failed* if it
learned less than 80 % of what the median seed learned.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from learning_tasks import IN_C, IN_PYTHON, PARTIAL, PUFFER_MLX, SB3, UPSTREAM, split_partial_name
from learning_zoo import PUBLISHED

from puffer_mlx.errors import UserError
from puffer_mlx.system.files import publish

RESAMPLES, COVERAGE = 10_000, 0.95
MIN_LEARNED = 0.8  # fraction of what the median seed learned that every seed should learn
MIN_PROGRESS = 0.1  # relative to the median score; with less, no seed counts as failed
BEGIN, END = "<!-- learning tables: begin -->", "<!-- learning tables: end -->"
EMPTY_CELL = "–"
RATE = "steps / CPU-s, with evaluation"
NATIVE = {  # PufferLib's trainer: mean scores of the last tenth of training, one per seed
    "pong": (19.5, 19.9, 20.9),
    "connect4": (0.990, 0.972, 0.992),
    "cartpole": (197.9, 197.7, 182.5),
    "tripletriad": (6.41, 6.41, 6.41),
    "trash_pickup": (38.9, 38.8, 38.9),
    "moba": (0.986, 1.0, 0.998),
    "breakout": (857, 851, 846, 848, 793, 860, 863, 828),
}

Record = Mapping[str, Any]


# ---- statistics ----------------------------------------------------------------------------------


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean without the lowest and the highest quarter, (..., n) -> (...).

    With fewer than 4 scores, all are included.
    """
    n = scores.shape[-1]
    return np.sort(scores, axis=-1)[..., n // 4 : n - n // 4].mean(axis=-1)


def interval(scores: Iterable[float]) -> tuple[float, float, float] | None:
    """Return the scores' interquartile mean and the ends of its confidence interval.

    Returns None for a single score.
    """
    values = np.array(list(scores), np.float64)
    if len(values) < 2:
        return None
    samples = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(interquartile_mean(samples), ends())
    return float(interquartile_mean(values)), float(low), float(high)


def ends() -> list[float]:
    return [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]


def better(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return the fraction of pairs in which our score is better, (..., n), (..., m) -> (...).

    Ties count half.
    """
    pairs = np.sign(ours[..., :, None] - theirs[..., None, :])
    return (pairs.mean(axis=(-2, -1)) + 1) / 2


def improvement(pairs: list[tuple[list[float], list[float]]]) -> tuple[float, float, float]:
    """Return the probability that our score is better, averaged over tasks, and its interval.

    The interval is given by both of its ends.
    """
    random = np.random.default_rng(0)
    samples = np.zeros(RESAMPLES)
    for ours, theirs in pairs:
        sides = [random.choice(np.array(s), (RESAMPLES, len(s))) for s in (ours, theirs)]
        samples += better(*sides) / len(pairs)
    mean = statistics.fmean(float(better(np.array(a), np.array(b))) for a, b in pairs)
    low, high = np.quantile(samples, ends())
    return mean, float(low), float(high)


def fell_short(record: Record) -> list[str]:
    """Return the failed seeds: those that learned less than MIN_LEARNED of the median seed.

    What a seed learned is its score less the mean of the curves' first points. No seed counts as
    failed if even the median seed learned almost nothing (MIN_PROGRESS).
    """
    runs = record["seeds"]
    firsts = [run["curve"][0][1] for run in runs.values() if run.get("curve")]
    if not firsts:
        return []
    start, middle = statistics.fmean(firsts), statistics.median(r["score"] for r in runs.values())
    learned = abs(middle - start)
    if learned < MIN_PROGRESS * abs(middle):
        return []
    return [s for s, run in runs.items() if run["score"] < middle - (1 - MIN_LEARNED) * learned]


def tail(run: Record) -> float:
    """Return the mean score of the last tenth of a run's curve."""
    return statistics.fmean(score for steps, score in run["curve"] if steps > 0.9 * run["steps"])


# ---- cells ---------------------------------------------------------------------------------------


def digits(*values: float) -> int:
    """Return the number of decimals to show for values of this size."""
    size = max(map(abs, values))
    return next(n for n, least in enumerate((1000, 10, 2, 0)) if size >= least)


def spread(values: list[float]) -> str:
    """Format the median and the range of values as a table cell."""
    n = digits(*values)
    middle = f"{statistics.median(values):,.{n}f}"
    return f"{middle} ({min(values):,.{n}f} – {max(values):,.{n}f})" if len(values) > 1 else middle


def certain(values: list[float]) -> str:
    """Format the interquartile mean of values and its interval as a table cell."""
    bounds, n = interval(values), digits(*values)
    return EMPTY_CELL if bounds is None else "{:,.{n}f} [{:,.{n}f}, {:,.{n}f}]".format(*bounds, n=n)


def millions(steps: float) -> str:
    return f"{steps / 1e6:,.3g} M"


class Column(NamedTuple):
    """Scores and speed of one trainer on one task, over all seeds, for a table."""

    scores: list[float]
    steps: float  # median
    rate: float  # median of the steps per CPU second; 0: unknown
    failed: int = 0  # seeds that ``fell_short``

    @classmethod
    def of(cls, record: Record | None) -> "Column | None":
        if record is None or not record["seeds"]:
            return None
        runs = list(record["seeds"].values())
        rates = [run["steps"] / run["CPU s"] for run in runs if run.get("CPU s")]
        scores = [run["score"] for run in runs]
        steps = statistics.median(run["steps"] for run in runs)
        rate = statistics.median(rates) if rates else 0.0
        return cls(scores, steps, rate, len(fell_short(record)))

    @property
    def median(self) -> float:
        return statistics.median(self.scores)


def score_cells(column: Column | None, best: bool) -> list[str]:
    """Return two table cells for a trainer's scores: median with range, and interquartile mean."""
    if column is None:
        return [EMPTY_CELL, EMPTY_CELL]
    first = spread(column.scores)
    failed = f"; {column.failed} failed" if column.failed else ""
    return [f"**{first}**{failed}" if best else f"{first}{failed}", certain(column.scores)]


def rates(ours: Column | None, theirs: Column | None) -> list[str]:
    """Return the table's speed cells: steps per CPU second of two trainers, and their ratio."""
    both = [column.rate if column else 0.0 for column in (ours, theirs)]
    ratio = f"{both[0] / both[1]:.2g}" if all(both) else EMPTY_CELL
    return [*(f"{rate:,.0f}" if rate else EMPTY_CELL for rate in both), ratio]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---- tables --------------------------------------------------------------------------------------

Records = Mapping[tuple[str, str], Record]  # (task, trainer)


def load(folder: Path) -> dict[tuple[str, str], Record]:
    """Return all records of a folder; records without a name get the file's name."""
    records_by_name = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        task, trainer = record.get("task", path.stem), record.get("trainer", PUFFER_MLX)
        records_by_name[task, trainer] = record
    return records_by_name


def seeds_note(records: Iterable[Record]) -> str:
    """Return the number of seeds of records as text, such as: 3 or 5 seeds."""
    counts = sorted({len(record["seeds"]) for record in records})
    return f"{' or '.join(map(str, counts))} seeds" if counts != [1] else "one seed"


def gym_table(records: Records) -> str:
    """Return the table of Gymnasium's environments: puffer_mlx, Stable-Baselines3 and RL Zoo.

    It is empty without records.
    """
    rows, used, pairs = [], [], []
    for name in IN_PYTHON:
        both = [records.get((name, trainer)) for trainer in (PUFFER_MLX, SB3)]
        ours, theirs = map(Column.of, both)
        if not (ours or theirs):
            continue
        used += [record for record in both if record]
        published = PUBLISHED.get(name)
        columns = [column for column in (ours, theirs) if column]
        best_median = max(column.median for column in columns)
        best = [column is not None and column.median == best_median for column in (ours, theirs)]
        if ours and theirs:
            pairs.append((ours.scores, theirs.scores))
        if ours and published is not None and ours.median < published:
            name += " ↓"
        zoo = EMPTY_CELL if published is None else f"{published:,.{digits(published)}f}"
        cells = [
            *score_cells(ours, best[0]),
            *score_cells(theirs, best[1]),
            zoo,
            *rates(ours, theirs),
        ]
        rows.append([name, millions(columns[0].steps), *cells])
    if not rows:
        return ""
    head = ["", "steps", "puffer_mlx", "IQM [95 %]", "Stable-Baselines3", "IQM [95 %]", "RL Zoo"]
    head += ["steps / CPU-s", "of SB3", "ratio"]
    paragraphs = [
        f"Gymnasium's environments, {seeds_note(used)}: mean return of the evaluation's episodes"
        " with the most probable actions (Atari: drawn ones); median (range), interquartile mean"
        " [95 % bootstrap interval]. RL Zoo's are what it published, one run each, some of older"
        " versions. Bold: the better median of the two that were run here; ↓: ours is below RL"
        " Zoo's. CPU seconds of ours are of the whole program, Stable-Baselines3's of learning"
        " alone.",
        "",
        table(head, rows),
    ]
    if pairs:
        mean, low, high = improvement(pairs)
        paragraphs += [
            "",
            f"A run of puffer_mlx ends above one of Stable-Baselines3 with a probability of"
            f" {mean:.2f} [{low:.2f}, {high:.2f}], mean over the {len(pairs)} that both learned.",
        ]
    return "\n".join(paragraphs)


def c_table(records: Records) -> str:
    """Return the table of the C environments that puffer_mlx ships."""
    records_by_name = {
        name: records[name, PUFFER_MLX] for name in IN_C if (name, PUFFER_MLX) in records
    }
    rows = [native_row(name, record) for name, record in records_by_name.items()]
    head = ["", "steps", "metric", "evaluation", "IQM [95 %]", "last tenth", RATE]
    text = f"Environments in C that come with puffer_mlx, {seeds_note(records_by_name.values())}:"
    return f"{text}\n\n{table(head, rows)}" if rows else ""


def native_row(name: str, record: Record) -> list[str]:
    """Return the table row of a C environment: steps, scores and speed."""
    runs, column = list(record["seeds"].values()), Column.of(record)
    assert column
    name_of_score = record["metric"].partition("/")[2]
    rate = f"{column.rate:,.0f}" if column.rate else EMPTY_CELL
    last = spread([tail(run) for run in runs])
    return [name, millions(column.steps), name_of_score, *score_cells(column, False), last, rate]


def upstream_table(records: Records) -> str:
    """Return the table of PufferLib 4.0's environments, compared with PufferLib's trainer."""
    rows, used = [], []
    for (name, _), record in records.items():
        if not name.startswith(UPSTREAM):
            continue
        used.append(record)
        plain = name.removeprefix(UPSTREAM)
        *cells, last, rate = native_row(plain, record)
        native = NATIVE.get(plain)
        rows.append([*cells, last, spread([*native]) if native else EMPTY_CELL, rate])
    head = ["", "steps", "metric", "evaluation", "IQM [95 %]", "last tenth of training"]
    head += ["the same of PufferLib's trainer", RATE]
    text = f"PufferLib 4.0's folders with their own files, {seeds_note(used)}:"
    return f"{text}\n\n{table(head, rows)}" if rows else ""


def partial_table(records: Records) -> str:
    """Return the table of tasks that need memory, with a column for each network or trainer."""
    records_by_name = {
        split_partial_name(*key): r for key, r in records.items() if key[0].startswith(PARTIAL)
    }
    if not records_by_name:
        return ""
    trainers, tasks = ({key[i]: None for key in records_by_name} for i in (1, 0))
    rows = []
    for task in tasks:
        columns = [Column.of(records_by_name.get((task, trainer))) for trainer in trainers]
        cells = [f"{spread(c.scores)}; {c.rate:,.0f}" if c else EMPTY_CELL for c in columns]
        run = next(
            iter(
                next(records_by_name[key] for key in records_by_name if key[0] == task)[
                    "seeds"
                ].values()
            )
        )
        rows.append([task, millions(run["steps"]), *cells])
    seeds = seeds_note(records_by_name.values())
    text = f"What isn't seen has to be remembered, {seeds}: median (range); steps per CPU second."
    return f"{text}\n\n{table(['', 'steps', *trainers], rows)}"


def tables(folder: Path) -> str:
    """Return the Markdown tables of all learning records in a folder."""
    records = load(folder)
    tables_of_kinds = [
        make(records) for make in (gym_table, c_table, upstream_table, partial_table)
    ]
    return "\n\n".join(text for text in tables_of_kinds if text) + "\n"


def write(text: str, page: Path) -> None:
    """Replace the text between the two marks of a page by new tables.

    Raises:
        UserError: If the page doesn't have each mark once, in this order.
    """
    old = page.read_text()
    text_above, begin, rest = old.partition(BEGIN)
    _, end, text_below = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in text_below:
        raise UserError(
            f"{page.name} has no marks for the tables", f"add a line {BEGIN} and a line {END}"
        )
    with publish(page) as temporary:
        temporary.write_text(f"{text_above}{BEGIN}\n\n{text}\n{END}{text_below}")
