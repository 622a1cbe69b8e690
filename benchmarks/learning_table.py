"""Tables of learning from the records of `learning/`, as Markdown.

Of each trainer: the median over the seeds of the scores, (their range), and the interquartile mean
with its 95 % interval: the mean of the seeds without the best and the worst quarter (of five: the
middle three), resampled with replacement, seeds of a task among themselves, 10,000 times. That is
what Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
recommend for few seeds; so is the probability of improvement, how often a run of one trainer is
better than one of another, in the mean over all tasks. A seed has *failed* that learned less than
80 % of what the median one did.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from learning_tasks import IN_C, IN_PYTHON, OURS, PARTIAL, SB3, UPSTREAM, in_part
from learning_zoo import PUBLISHED

from puffer_mlx.errors import UserError
from puffer_mlx.system.files import publish

RESAMPLES, COVERAGE = 10_000, 0.95
FAILED = 0.8  # of what the median seed learned
LITTLE = 0.1  # of its score
BEGIN, END = "<!-- learning tables: begin -->", "<!-- learning tables: end -->"
NONE = "–"
RATE = "steps / CPU-s, with evaluation"
NATIVE = {  # of upstream's own trainer: the mean scores of the last tenth of training, seeds 1 - 3
    "pong": (19.5, 19.9, 20.9),
    "connect4": (0.990, 0.972, 0.992),
    "cartpole": (197.9, 197.7, 182.5),
    "tripletriad": (6.41, 6.41, 6.41),
    "trash_pickup": (38.9, 38.8, 38.9),
    "moba": (0.986, 1.0, 0.998),
    "breakout": (857, 851, 846, 848, 793, 860, 863, 828),
}

Record = Mapping[str, Any]


# ---- numbers -------------------------------------------------------------------------------------


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean without the lowest and the highest quarter, (..., n) -> (...); of less than 4 of all."""
    n = scores.shape[-1]
    return np.sort(scores, axis=-1)[..., n // 4 : n - n // 4].mean(axis=-1)


def interval(scores: Iterable[float]) -> tuple[float, float, float] | None:
    """Return the interquartile mean and the ends of its interval, None for a single seed."""
    values = np.array(list(scores), np.float64)
    if len(values) < 2:
        return None
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(interquartile_mean(drawn), ends())
    return float(interquartile_mean(values)), float(low), float(high)


def ends() -> list[float]:
    return [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]


def better(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Return the share of pairs in which ours is better, (..., n) and (..., m) -> (...).

    Ties count half.
    """
    pairs = np.sign(ours[..., :, None] - theirs[..., None, :])
    return (pairs.mean(axis=(-2, -1)) + 1) / 2


def improvement(pairs: list[tuple[list[float], list[float]]]) -> tuple[float, float, float]:
    """Mean over tasks of the probability of improvement, and the ends of its interval."""
    random = np.random.default_rng(0)
    drawn = np.zeros(RESAMPLES)
    for ours, theirs in pairs:
        sides = [random.choice(np.array(s), (RESAMPLES, len(s))) for s in (ours, theirs)]
        drawn += better(*sides) / len(pairs)
    mean = statistics.fmean(float(better(np.array(a), np.array(b))) for a, b in pairs)
    low, high = np.quantile(drawn, ends())
    return mean, float(low), float(high)


def fell_short(record: Record) -> list[str]:
    """Seeds that failed: that learned less than FAILED of what the median one did.

    Learned is the score less the mean of the curves' first points. None failed where even the
    median one learned next to nothing.
    """
    runs = record["seeds"]
    firsts = [run["curve"][0][1] for run in runs.values() if run.get("curve")]
    if not firsts:
        return []
    first, middle = statistics.fmean(firsts), statistics.median(r["score"] for r in runs.values())
    learned = abs(middle - first)
    if learned < LITTLE * abs(middle):
        return []
    return [s for s, run in runs.items() if run["score"] < middle - (1 - FAILED) * learned]


def tail(run: Record) -> float:
    """The mean of a curve's last tenth."""
    return statistics.fmean(score for steps, score in run["curve"] if steps > 0.9 * run["steps"])


# ---- cells ---------------------------------------------------------------------------------------


def digits(*values: float) -> int:
    """Decimals that numbers of this size are worth."""
    size = max(map(abs, values))
    return next(n for n, least in enumerate((1000, 10, 2, 0)) if size >= least)


def spread(values: list[float]) -> str:
    """Median and range."""
    n = digits(*values)
    middle = f"{statistics.median(values):,.{n}f}"
    return f"{middle} ({min(values):,.{n}f} – {max(values):,.{n}f})" if len(values) > 1 else middle


def certain(values: list[float]) -> str:
    """Interquartile mean and its interval."""
    found, n = interval(values), digits(*values)
    return NONE if found is None else "{:,.{n}f} [{:,.{n}f}, {:,.{n}f}]".format(*found, n=n)


def millions(steps: float) -> str:
    return f"{steps / 1e6:,.3g} M"


class Column(NamedTuple):
    """Scores and speed of a trainer on a task."""

    scores: list[float]
    steps: float  # median
    rate: float  # steps per CPU second, median; 0: unknown
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


def two(column: Column | None, best: bool) -> list[str]:
    """The cells of a trainer."""
    if column is None:
        return [NONE, NONE]
    first = spread(column.scores)
    failed = f"; {column.failed} failed" if column.failed else ""
    return [f"**{first}**{failed}" if best else f"{first}{failed}", certain(column.scores)]


def rates(ours: Column | None, theirs: Column | None) -> list[str]:
    """Steps per CPU second of both, and their ratio."""
    both = [column.rate if column else 0.0 for column in (ours, theirs)]
    ratio = f"{both[0] / both[1]:.2g}" if all(both) else NONE
    return [*(f"{rate:,.0f}" if rate else NONE for rate in both), ratio]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---- tables --------------------------------------------------------------------------------------

Records = Mapping[tuple[str, str], Record]  # (task, trainer)


def load(folder: Path) -> dict[tuple[str, str], Record]:
    """Return all records of a folder; records without a name get the file's name."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        task, trainer = record.get("task", path.stem), record.get("trainer", OURS)
        found[task, trainer] = record
    return found


def seeds_note(records: Iterable[Record]) -> str:
    """Return the number of seeds, as text."""
    counts = sorted({len(record["seeds"]) for record in records})
    return f"{' or '.join(map(str, counts))} seeds" if counts != [1] else "one seed"


def gym_table(records: Records) -> str:
    """Ours, Stable-Baselines3 and RL Zoo on Gymnasium's environments; empty without records."""
    rows, used, pairs = [], [], []
    for name in IN_PYTHON:
        both = [records.get((name, trainer)) for trainer in (OURS, SB3)]
        ours, theirs = map(Column.of, both)
        if not (ours or theirs):
            continue
        used += [record for record in both if record]
        published = PUBLISHED.get(name)
        there = [column for column in (ours, theirs) if column]
        most = max(column.median for column in there)
        best = [column is not None and column.median == most for column in (ours, theirs)]
        if ours and theirs:
            pairs.append((ours.scores, theirs.scores))
        if ours and published is not None and ours.median < published:
            name += " ↓"
        zoo = NONE if published is None else f"{published:,.{digits(published)}f}"
        cells = [*two(ours, best[0]), *two(theirs, best[1]), zoo, *rates(ours, theirs)]
        rows.append([name, millions(there[0].steps), *cells])
    if not rows:
        return ""
    head = ["", "steps", "puffer_mlx", "IQM [95 %]", "Stable-Baselines3", "IQM [95 %]", "RL Zoo"]
    head += ["steps / CPU-s", "of SB3", "ratio"]
    text = [
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
        text += [
            "",
            f"A run of puffer_mlx ends above one of Stable-Baselines3 with a probability of"
            f" {mean:.2f} [{low:.2f}, {high:.2f}], mean over the {len(pairs)} that both learned.",
        ]
    return "\n".join(text)


def c_table(records: Records) -> str:
    """Environments in C that come with puffer_mlx."""
    found = {name: records[name, OURS] for name in IN_C if (name, OURS) in records}
    rows = [native_row(name, record) for name, record in found.items()]
    head = ["", "steps", "metric", "evaluation", "IQM [95 %]", "last tenth", RATE]
    text = f"Environments in C that come with puffer_mlx, {seeds_note(found.values())}:"
    return f"{text}\n\n{table(head, rows)}" if rows else ""


def native_row(name: str, record: Record) -> list[str]:
    """Return the row of an environment in C."""
    runs, column = list(record["seeds"].values()), Column.of(record)
    assert column
    name_of_score = record["metric"].partition("/")[2]
    rate = f"{column.rate:,.0f}" if column.rate else NONE
    last = spread([tail(run) for run in runs])
    return [name, millions(column.steps), name_of_score, *two(column, False), last, rate]


def upstream_table(records: Records) -> str:
    """Folders of PufferLib 4.0 with their own files, beside its own trainer."""
    rows, used = [], []
    for (name, _), record in records.items():
        if not name.startswith(UPSTREAM):
            continue
        used.append(record)
        plain = name.removeprefix(UPSTREAM)
        *cells, last, rate = native_row(plain, record)
        native = NATIVE.get(plain)
        rows.append([*cells, last, spread([*native]) if native else NONE, rate])
    head = ["", "steps", "metric", "evaluation", "IQM [95 %]", "last tenth of training"]
    head += ["the same of PufferLib's trainer", RATE]
    text = f"PufferLib 4.0's folders with their own files, {seeds_note(used)}:"
    return f"{text}\n\n{table(head, rows)}" if rows else ""


def partial_table(records: Records) -> str:
    """Tasks that need memory: a row for each, a column for each that learns."""
    found = {in_part(*key): r for key, r in records.items() if key[0].startswith(PARTIAL)}
    if not found:
        return ""
    trainers, tasks = ({key[i]: None for key in found} for i in (1, 0))
    rows = []
    for task in tasks:
        columns = [Column.of(found.get((task, trainer))) for trainer in trainers]
        cells = [f"{spread(c.scores)}; {c.rate:,.0f}" if c else NONE for c in columns]
        run = next(iter(next(found[key] for key in found if key[0] == task)["seeds"].values()))
        rows.append([task, millions(run["steps"]), *cells])
    text = f"What isn't seen has to be remembered, {seeds_note(found.values())}: median (range);"
    text += " steps per CPU second."
    return f"{text}\n\n{table(['', 'steps', *trainers], rows)}"


def tables(folder: Path) -> str:
    """Return the tables of all records."""
    records = load(folder)
    made = [make(records) for make in (gym_table, c_table, upstream_table, partial_table)]
    return "\n\n".join(text for text in made if text) + "\n"


def write(text: str, page: Path) -> None:
    """Replace what lies between the two marks of a page.

    Raises:
        UserError: it hasn't both of them, in this order, once each.
    """
    old = page.read_text()
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise UserError(
            f"{page.name} has no place for the tables", f"a line {BEGIN} and below it a line {END}"
        )
    with publish(page) as temporary:
        temporary.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
