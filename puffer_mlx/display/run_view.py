"""A run's numbers and words.

``dashboard.py`` draws it in a terminal, ``notebook.py`` as a figure.
"""

from typing import NamedTuple

from puffer_mlx.profiling.phases import WAITS, duration
from puffer_mlx.tracking.scores import EPISODES, EVALUATION, METRIC, SCORE, score_name

Logs = dict[str, float]

# Phases as people read them: name of perf/*, label, indented under which.
PHASES = (
    ("rollout", "Rollout", ""),
    ("eval_copy_in", "copy in", "rollout"),
    ("eval_act", "act", "rollout"),
    ("eval_sample", "sample", "rollout"),
    ("eval_copy_out", "copy out", "rollout"),
    ("eval_store", "store", "rollout"),
    ("eval_env", "environment", "rollout"),
    ("eval_misc", "misc", "rollout"),
    ("eval_idle", "idle", "rollout"),
    ("train", "Train", ""),
    ("train_copy", "copy", "train"),
    ("train_recompute", "recompute", "train"),
    ("train_advantage", "advantage", "train"),
    ("train_priorities", "priorities", "train"),
    ("train_gather", "gather", "train"),
    ("train_forward", "forward", "train"),
    ("train_backward", "backward", "train"),
    ("train_optimizer", "optimizer", "train"),
    ("train_minibatches", "minibatches", "train"),
    ("train_misc", "misc", "train"),
    ("train_wait", "wait", "train"),
)
MISC = {"rollout": "eval_misc", "train": "train_misc"}

RETURN = "env/episode_return"
RATING, POOL = "env/elo", "pool/size"  # of runs with self-play
OF_SELF_PLAY = (RATING, "env/historical_winrate")  # how names begin that aren't the environment's
HIDDEN_IF_SMALL = {  # losses that are 0 but for rounding in a healthy run: label, threshold, format
    "skipped_steps": ("skipped minibatches", 1, "{:.0f}"),
    "first_ratio_error": ("acting vs training", 0.1, "{:.2f} apart"),
}
POINTS = 512  # of the history at most, an even number; then neighbours are merged


def abbreviate(number: float) -> str:
    """1_234_567 -> 1.2M."""
    for unit in ("", "K", "M", "B"):
        if abs(number) < (999.95 if unit else 999.5):  # what rounds to 1000 is 1.0 of the next
            return f"{number:.1f}{unit}" if unit else f"{number:.0f}"
        number /= 1000
    return f"{number:.1f}T"


def agents_text(agents: int, groups: int) -> str:
    """Return the number of agents, and of groups that alternate."""
    return f"{agents:,}" + (f" ({groups} groups take turns)" if groups > 1 else "")


def label(name: str) -> str:
    """Return the label of a score: score, return, or the name of another metric."""
    if name in ("", SCORE, METRIC):
        return "score"
    return "return" if name == RETURN else name.removeprefix("env/")


class Phase(NamedTuple):
    """A part of an epoch's time."""

    label: str
    parent: str  # the name of the phase it is a part of, "" for a whole
    seconds: float
    share: float  # of the epoch


class Point(NamedTuple):
    """A part of a run."""

    steps: float  # at the end of the part
    seconds: float  # duration of its epochs
    score: float  # sum over the episodes that ended
    episodes: float
    records: int
    rating: float | None = None  # the learner's rating at the end, Elo points

    def merge(self, later: "Point") -> "Point":
        """Return this part and the following one as one."""
        return Point(
            later.steps,
            self.seconds + later.seconds,
            self.score + later.score,
            self.episodes + later.episodes,
            self.records + later.records,
            self.rating if later.rating is None else later.rating,
        )


class View:
    """The records of a run, aggregated for display.

    Args:
        summary: Constant facts (name -> text), the environment first.
        total_steps: Environment steps of the entire run.
        metric: Name of the number that ranks policies: ``Config.metric``.

    Attributes:
        logs: Newest value of each number; phases are of the last record with phases.
        speed: Steps per second between the last two calls of ``measure``.
    """

    def __init__(self, summary: dict[str, str], total_steps: int, metric: str = METRIC) -> None:
        self.summary = summary
        self.total_steps = total_steps
        self.metric = metric
        self.logs: Logs = {}
        self.speed = 0.0
        self._spent: Logs = {}  # seconds of the run by perf/*
        self._mark: tuple[float, float] | None = None  # uptime and steps at the last measurement
        self._points: list[Point] = []
        self._length = 1  # records of a point

    def take(self, logs: Logs) -> None:
        """Add a record; one without ``SPS``, such as an evaluation's, adds nothing to curves."""
        before = self.logs.get("agent_steps", 0.0)
        perf = {name: value for name, value in logs.items() if name.startswith("perf/")}
        old = {n: v for n, v in self.logs.items() if not (perf and n.startswith("perf/"))}
        self.logs = {**old, **logs}
        for name, seconds in perf.items():
            self._spent[name] = self._spent.get(name, 0.0) + seconds
        if "SPS" not in logs or "agent_steps" not in logs:
            return
        seconds = (logs["agent_steps"] - before) / logs["SPS"]
        name = self.score_name(logs)
        score = logs.get(name)
        episodes = 1.0 if name == SCORE else logs.get("env/n", 1.0)
        episodes = 0.0 if score is None else episodes
        total, rating = (score or 0.0) * episodes, self.logs.get(RATING) if self.plays else None
        self._append(Point(logs["agent_steps"], seconds, total, episodes, 1, rating))

    def measure(self) -> None:
        """Set the speed since the last measurement from the records."""
        uptime, steps = self.logs.get("uptime", 0.0), self.logs["agent_steps"]
        if self._mark is None:
            self.speed = self.logs.get("SPS", 0.0)
        elif uptime > self._mark[0]:
            self.speed = (steps - self._mark[1]) / (uptime - self._mark[0])
        self._mark = uptime, steps

    @property
    def left(self) -> str:
        """Time to the end at the current speed."""
        steps = max(0.0, self.total_steps - self.logs["agent_steps"])
        return duration(steps / self.speed) if self.speed else "unknown"

    def score_name(self, logs: Logs) -> str:
        """Return the name of a record's score: of the metric, else of the default or the return.

        "" without any of them.
        """
        names = [score_name(logs, metric) for metric in (self.metric, METRIC, RETURN)]
        return next(filter(None, names), "")

    def score(self) -> float | None:
        """Return the training score, or None before an episode has ended."""
        return self.logs.get(self.score_name(self.logs))

    def scores(self) -> dict[str, str]:
        """Return the training score with its number of episodes, and the last evaluation's."""
        logs, texts = self.logs, {}
        if name := self.score_name(logs):
            count = logs.get("env/n", 1.0)
            many = f"{abbreviate(count)} episode{'s' * (count != 1)}"
            many = f"last {EPISODES}" if name == SCORE else many
            texts[f"training {label(name)}"] = f"{logs[name]:.3f} ({many})"
        for name in (self.metric, METRIC, RETURN):
            evaluated = EVALUATION + name.removeprefix("env/")
            if evaluated in logs:
                return {**texts, f"evaluation {label(name)}": f"{logs[evaluated]:.3f}"}
        return texts

    def headline(self) -> dict[str, str]:
        """Score, steps, speed, the time that is left."""
        facts = self.facts()
        return {
            **({"": "no episode has ended yet"} if self.score() is None else {}),
            **self.scores(),
            "steps": facts["Steps"],
            "SPS": facts["SPS"],
            "left": facts["Left"],
        }

    def details(self) -> dict[str, str]:
        """Return the facts that aren't in ``headline``."""
        headline = ("Steps", "SPS", "Left")
        return {name.lower(): text for name, text in self.facts().items() if name not in headline}

    def facts(self) -> dict[str, str]:
        """Return the facts about the entire run."""
        logs = self.logs
        return {
            **self.summary,
            "Steps": f"{abbreviate(logs['agent_steps'])} of {abbreviate(self.total_steps)}"
            f" ({100 * logs['agent_steps'] / self.total_steps:.0f} %)",
            "SPS": abbreviate(self.speed),
            "Epoch": f"{logs.get('epoch', 0):.0f}",
            "Uptime": duration(logs.get("uptime", 0.0)),
            "Left": self.left,
            "Memory": f"{logs.get('util/cpu_mem_gb', 0):.2f} GiB",
        }

    @property
    def overlapped(self) -> bool:
        """True if rollout and training run at the same time: one has waited for the other."""
        return any(self._spent.get(f"perf/{name}", 0.0) > 0 for name in WAITS)

    @property
    def epoch_seconds(self) -> float:
        """Duration of the last epoch, from its record or from its phases."""
        perf = self._perf()
        if "perf/epoch" in self.logs:
            return self.logs["perf/epoch"]
        if not self.overlapped:
            return perf["rollout"] + perf["train"]
        sums = dict.fromkeys(MISC, 0.0)
        for name, _, parent in PHASES:
            if parent:
                sums[parent] += perf[name]
        return max(*sums.values(), perf["rollout"], perf["train"])

    def phases(self, most: int | None = None) -> list[Phase]:
        """Return the phases of an epoch: rollout and training, each followed by its parts.

        If rollout and training run at the same time, each takes the entire epoch, waiting included.

        Args:
            most: Largest number of parts, besides waiting; the phases with the least time so far
                are merged into misc. None for all. A misc that would be the only part is left out.
        """
        perf, epoch = self._perf(), self.epoch_seconds or 1.0
        rows = self._rows(most)
        seconds = {name: sum(perf[part] for part in parts) for name, parts in rows.items()}
        for whole in {parent for _, _, parent in PHASES if parent} & seconds.keys():
            parts = [n for n, _, parent in PHASES if parent == whole and n not in WAITS]
            seconds[whole] = max(seconds[whole], sum(perf[name] for name in parts))
        return [
            Phase(label, parent, seconds[name], seconds[name] / epoch)
            for name, label, parent in PHASES
            if name in rows
        ]

    def _perf(self) -> Logs:
        return {name: self.logs.get(f"perf/{name}", 0.0) for name, _, _ in PHASES}

    def _rows(self, most: int | None) -> dict[str, list[str]]:
        """The phases to show, and which others are shown with each."""
        spent = {name: self._spent.get(f"perf/{name}", 0.0) for name, _, _ in PHASES}
        seen = [name for name in spent if spent[name] > 0]
        whole = {name: parent for name, _, parent in PHASES if parent}
        kept = [name for name in seen if name in MISC or name in WAITS]
        parts = [name for name in seen if name not in (*kept, *MISC.values())]
        parts.sort(key=spent.__getitem__, reverse=True)
        for count in range(len(parts), -1, -1):
            rows = {name: [name] for name in (*kept, *parts[:count])}
            for misc in MISC.values():
                others = [n for n in (*parts[count:], misc) if whole[n] == whole[misc]]
                others = [name for name in others if spent[name] > 0]
                if others and any(whole[name] == whole[misc] for name in parts[:count]):
                    rows[misc] = others
            if most is None or len(rows) <= most:
                return rows
        return {name: [name] for name in kept}

    def losses(self) -> dict[str, str]:
        """The last epoch's losses; of ``HIDDEN_IF_SMALL`` those that tell something."""
        losses = self._section("loss")
        shown = {n: f"{value:.4f}" for n, value in losses.items() if n not in HIDDEN_IF_SMALL}
        for name, (words, least, form) in HIDDEN_IF_SMALL.items():
            if losses.get(name, 0.0) >= least:
                shown[words] = form.format(losses[name])
        return shown

    def statistics(self) -> dict[str, str]:
        """The environment's own numbers, means per finished episode."""
        return {
            name: abbreviate(value) if name == "n" else f"{value:.3f}"
            for name, value in self._section("env").items()
            if not (self.plays and f"env/{name}".startswith(OF_SELF_PLAY))
        }

    @property
    def plays(self) -> bool:
        """True if the run has opponents (self-play)."""
        return POOL in self.logs

    def self_play(self) -> dict[str, str]:
        """Return ratings, the learner's win rate and the pool; {} without self-play."""
        shown = {
            "Elo": (RATING, "+.0f"),
            "opponents": ("pool/opponent_elo", "+.0f"),  # theirs, the mean
            "win rate": ("pool/winrate", ".3f"),
            "pool": (POOL, ".0f"),
            "swaps": ("pool/swaps", ".0f"),
        }
        known = {label: how for label, how in shown.items() if self.plays and how[0] in self.logs}
        return {label: f"{self.logs[name]:{form}}" for label, (name, form) in known.items()}

    def score_curve(self) -> tuple[list[float], list[float]]:
        """Return steps, and the mean score of the episodes since the previous point."""
        ended = [point for point in self._points if point.episodes]
        return [p.steps for p in ended], [p.score / p.episodes for p in ended]

    def rating_curve(self) -> tuple[list[float], list[float]]:
        """Return steps and the learner's Elo ratings; empty without self-play."""
        rated = [(point.steps, point.rating) for point in self._points if point.rating is not None]
        return [steps for steps, _ in rated], [rating for _, rating in rated]

    def speed_curve(self) -> tuple[list[float], list[float]]:
        """Return steps, and steps per second since the previous point.

        The first point is left out, as it includes compiling. Time between epochs doesn't count.
        """
        pairs = list(zip(self._points, self._points[1:], strict=False))
        return [after.steps for _, after in pairs], [
            (after.steps - before.steps) / after.seconds for before, after in pairs
        ]

    def _append(self, point: Point) -> None:
        """Extend the last point or add one; if there are too many, merge neighbours."""
        if self._points and self._points[-1].records < self._length:
            self._points[-1] = self._points[-1].merge(point)
            return
        if len(self._points) == POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [first.merge(second) for first, second in pairs]
            self._length *= 2
        self._points.append(point)

    def _section(self, section: str) -> Logs:
        begin = f"{section}/"
        values = {name: value for name, value in self.logs.items() if name.startswith(begin)}
        return {name.removeprefix(begin): value for name, value in values.items()}
