"""What a person sees while training: a live dashboard in a terminal, plain lines elsewhere."""

import time
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

Logs = dict[str, float]

INTERVAL = 0.6  # seconds between two plain lines at least, upstream's rhythm
REFRESH = 0.25  # seconds between two redraws at least

# Phases as people read them: name of perf/*, label, indented under which.
PHASES = (
    ("rollout", "Rollout", ""),
    ("eval_gpu", "act", "rollout"),
    ("eval_env", "environment", "rollout"),
    ("eval_copy", "copy", "rollout"),
    ("train", "Train", ""),
    ("train_advantage", "advantage", "train"),
    ("train_gather", "gather", "train"),
    ("train_forward", "gradients", "train"),
    ("train_optimizer", "optimizer", "train"),
    ("train_misc", "misc", "train"),
)

LINE = {  # what a plain line shows
    "env/score": "score",
    "env/episode_return": "return",
    "env/episode_length": "length",
    "loss/total": "loss",
    "loss/entropy": "entropy",
}


def abbreviate(number: float) -> str:
    """1_234_567 -> 1.2M."""
    for unit in ("", "K", "M", "B"):
        if abs(number) < (999.95 if unit else 999.5):  # what rounds to 1000 is 1.0 of the next
            return f"{number:.1f}{unit}" if unit else f"{number:.0f}"
        number /= 1000
    return f"{number:.1f}T"


def duration(seconds: float) -> str:
    """3723 -> 1h 2m 3s, from the largest unit that isn't 0."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    parts = [(days, "d"), (h, "h"), (m, "m"), (s, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{value}{unit}" for value, unit in parts)


class Dashboard:
    """Shows a run; a context manager.

    Args:
        summary: facts that don't change (name -> text), environment first.
        total_steps: when the run will be done.
        console: where to draw; standard output if None.
    """

    def __init__(
        self, summary: dict[str, str], total_steps: int, console: Console | None = None
    ) -> None:
        self.summary, self.total_steps = summary, total_steps
        self.console = console or Console()
        self._live = (
            Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        )
        self._logs: Logs = {}
        self._shown = float("-inf")
        self._speed = 0.0
        self._mark: tuple[float, float] | None = None  # uptime and steps at the last drawing

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
            words = (
                "The first epoch compiles kernels: seconds on a CPU, up to two minutes on a GPU."
            )
            self._live.update(Panel(words, border_style="cyan"), refresh=True)
        else:
            self.console.print(
                ", ".join(f"{k} {v}" for k, v in self.summary.items()), soft_wrap=True
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            if self._logs:
                self._live.update(self.render(), refresh=True)
            self._live.__exit__(None, None, None)

    @property
    def live(self) -> bool:
        """Whether it redraws a terminal; else it prints lines."""
        return self._live is not None

    def update(self, logs: Logs, last: bool = False) -> None:
        """Take a record; draw if the last drawing is old enough, or if this is the last record."""
        self._logs = {**self._logs, **logs}  # statistics stay until there are newer ones
        now = time.perf_counter()
        if not last and now - self._shown < (REFRESH if self._live else INTERVAL):
            return
        self._shown = now
        self._measure()
        if self._live:
            self._live.update(self.render(), refresh=True)
        else:
            self.console.print(self.line(), soft_wrap=True, highlight=False)

    def message(self, text: str) -> None:
        """Print a line above the dashboard."""
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _measure(self) -> None:
        """Speed since the last drawing, from what the records say."""
        uptime, steps = self._logs.get("uptime", 0.0), self._logs["agent_steps"]
        if self._mark is None:
            self._speed = self._logs.get("SPS", 0.0)
        elif uptime > self._mark[0]:
            self._speed = (steps - self._mark[1]) / (uptime - self._mark[0])
        self._mark = uptime, steps

    def _left(self) -> str:
        steps = max(0.0, self.total_steps - self._logs["agent_steps"])
        return duration(steps / self._speed) if self._speed else "unknown"

    def line(self) -> str:
        """One line for logs that aren't read live."""
        logs = self._logs
        parts = [
            f"{logs['agent_steps']:,.0f} of {self.total_steps:,} steps",
            f"{abbreviate(self._speed)} SPS",
            f"{self._left()} left",
        ]
        for name, label in LINE.items():
            if name in logs:
                parts.append(f"{label} {logs[name]:.3f}")
        return " | ".join(parts)

    def render(self) -> Panel:
        """The whole picture."""
        logs = self._logs
        uptime = logs.get("uptime", 0.0)
        facts = {
            **self.summary,
            "Steps": f"{abbreviate(logs['agent_steps'])} of {abbreviate(self.total_steps)}"
            f" ({100 * logs['agent_steps'] / self.total_steps:.0f} %)",
            "SPS": abbreviate(self._speed),
            "Epoch": f"{logs.get('epoch', 0):.0f}",
            "Uptime": duration(uptime),
            "Left": self._left(),
            "Memory": f"{logs.get('util/cpu_mem_gb', 0):.2f} GiB",
        }
        top = Table.grid(expand=True, padding=(0, 2))
        top.add_column(ratio=1)  # the only one that may wrap: 80 columns are common
        top.add_column()
        top.add_column()
        losses = {name: value for name, value in logs.items() if name.startswith("loss/")}
        top.add_row(
            self._table("Run", facts),
            self._phases(),
            self._table(
                "Losses", {k.partition("/")[2]: f"{v:.4f}" for k, v in losses.items()}, wrap=False
            ),
        )
        episodes = {k: v for k, v in logs.items() if k.startswith("env/")}
        names = [k.partition("/")[2] for k in episodes]
        values = [abbreviate(v) if k == "env/n" else f"{v:.3f}" for k, v in episodes.items()]
        stats = Table(
            title="Environment (per finished episode)", expand=True, box=None, title_justify="left"
        )
        for _ in range(3):
            stats.add_column(ratio=2, style="cyan")
            stats.add_column(ratio=1, justify="right")
        cells = [cell for pair in zip(names, values, strict=True) for cell in pair]
        for i in range(0, len(cells), 6):
            stats.add_row(*cells[i : i + 6])
        if not cells:
            stats.add_row("no episode has ended yet")
        return Panel(Group(top, "", stats), title="[bold]puffer_mlx[/]", border_style="cyan")

    @staticmethod
    def _table(title: str, rows: dict[str, str], wrap: bool = True) -> Table:
        table = Table(title=title, box=None, show_header=False, expand=wrap, title_justify="left")
        table.add_column(style="cyan", no_wrap=not wrap)
        table.add_column(justify="right", no_wrap=not wrap)
        for name, value in (rows or {"": ""}).items():  # without rows it would take all the room
            table.add_row(name, value)
        return table

    def _phases(self) -> Table:
        perf = {name: self._logs.get(f"perf/{name}", 0.0) for name, _, _ in PHASES}
        whole = (perf["rollout"] + perf["train"]) or 1.0
        rows = {}
        for name, label, parent in PHASES:
            if f"perf/{name}" in self._logs:
                text = f"{perf[name] * 1000:5.0f} ms {100 * perf[name] / whole:3.0f} %"
                rows[f"  {label}" if parent else f"[bold]{label}[/]"] = text
        return self._table("Time of an epoch", rows, wrap=False)
