"""Aggregate a run's records for display, in a terminal (``dashboard.py``) or a notebook."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from puffer_mlx.profiling.phases import WAIT_PHASES, duration
from puffer_mlx.tracking.scores import EPISODES, EVALUATION, METRIC, SCORE, score_name

Logs = dict[str, float]
Pairs = list[tuple[str, str]]  # names and values, as text
Curve = tuple[list[float], list[float]]  # steps and values

# Phases: name in perf/*, label, and the phase that contains it.
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
OF_SELF_PLAY = (RATING, "env/historical_winrate")  # prefixes; not of the environment's numbers
HIDDEN_IF_SMALL = {  # losses that are about 0 in a healthy run: label, threshold, format
    "skipped_steps": ("skipped minibatches", 1, "{:.0f}"),
    "first_ratio_error": ("acting vs training", 0.1, "{:.2f} apart"),
}
POINTS = 512  # maximum points of a curve, an even number; then every other one is dropped


def abbreviate(number: float) -> str:
    """1_234_567 -> 1.2M."""
    for unit in ("", "K", "M", "B"):
        if abs(number) < (999.95 if unit else 999.5):  # 1000 after rounding is 1.0 of the next unit
            return f"{number:.1f}{unit}" if unit else f"{number:.0f}"
        number /= 1000
    return f"{number:.1f}T"


def episodes_text(count: float) -> str:
    """Return a number of episodes."""
    return f"{abbreviate(count)} episode{'s' * (count != 1)}"


def agents_text(agents: int, groups: int) -> str:
    """Return the number of agents, and of groups that alternate."""
    return f"{agents:,}" + (f" ({groups} groups take turns)" if groups > 1 else "")


class Phase(NamedTuple):
    """A part of an epoch's time.

    Args:
        label: Name to show.
        parent: Name of the phase that contains it, "" for rollout and training.
        seconds: Duration.
        share: Fraction of the epoch.
    """

    label: str
    parent: str
    seconds: float
    share: float


class CurvePoint(NamedTuple):
    """Sums over a run up to one of its records.

    Args:
        steps: Environment steps.
        seconds: Duration of the epochs.
        score: Sum of the scores of ended episodes.
        episodes: Number of ended episodes.
        rating: The learner's Elo rating; None without self-play.
    """

    steps: float
    seconds: float
    score: float
    episodes: float
    rating: float | None = None


class RunState:
    """The records of a run, aggregated for display.

    Args:
        summary: Constant facts (name -> text), the environment first.
        total_steps: Environment steps of the entire run.
        metric: Name of the number that ranks policies: ``Config.metric``.

    Attributes:
        logs: Newest value of each number; phases are of the last record with phases.
        speed: Steps per second between the last two calls of ``update_speed``; 0 before the second.
        none_ended: True if epochs, but no episodes, ended between these calls.
    """

    def __init__(self, summary: dict[str, str], total_steps: int, metric: str = METRIC) -> None:
        self.summary = summary
        self.total_steps = total_steps
        self.metric = metric
        self.logs: Logs = {}
        self.speed = 0.0
        self.none_ended = False
        self._ended: bool | None = None  # an episode ended since; None before a record
        self._spent: Logs = {}  # seconds of the run by perf/*
        self._mark: tuple[float, float] | None = None  # uptime and steps at the last measurement
        self._points: list[CurvePoint] = []
        self._sums = CurvePoint(0.0, 0.0, 0.0, 0.0)
        self._records = 0
        self._stride = 1  # records per point

    def update(self, logs: Logs) -> None:
        """Add a record; one without ``SPS``, such as an evaluation's, adds nothing to curves."""
        before = self.logs.get("agent_steps", 0.0)
        perf = {name: value for name, value in logs.items() if name.startswith("perf/")}
        old = {n: v for n, v in self.logs.items() if not (perf and n.startswith("perf/"))}
        self.logs = {**old, **logs}
        for name, seconds in perf.items():
            self._spent[name] = self._spent.get(name, 0.0) + seconds
        if "SPS" not in logs or "agent_steps" not in logs:
            return
        self._ended = bool(self._ended) or logs.get("env/n", 0.0) > 0
        name = self.score_name(logs)
        score = logs.get(name, math.nan)
        episodes = 1.0 if name == SCORE else logs.get("env/n", 1.0)
        episodes = episodes if math.isfinite(score) else 0.0
        self._sums = CurvePoint(
            logs["agent_steps"],
            self._sums.seconds + (logs["agent_steps"] - before) / logs["SPS"],
            self._sums.score + (score * episodes if episodes else 0.0),
            self._sums.episodes + episodes,
            self.logs.get(RATING) if self.has_opponents else None,
        )
        self._add_point(self._sums)

    def _add_point(self, point: CurvePoint) -> None:
        """Add a point; within a stride, replace the last one. Drop every other one if too many."""
        if self._records % self._stride:
            self._points.pop()
        elif len(self._points) == POINTS:
            del self._points[::2]
            self._stride *= 2
        self._points.append(point)
        self._records += 1

    def update_speed(self) -> None:
        """Set the speed since the last call, which is unknown at the first call.

        Call it first after the first epoch of a start, so that compiling counts for no speed.
        """
        uptime = self.logs.get("uptime", 0.0)
        steps = self.logs["agent_steps"]
        if self._mark is not None and uptime > self._mark[0]:
            self.speed = (steps - self._mark[1]) / (uptime - self._mark[0])
        self._mark = uptime, steps
        if self._ended is not None:
            self.none_ended = not self._ended
            self._ended = None

    @property
    def time_left(self) -> str:
        """Time to the end at the current speed."""
        steps = max(0.0, self.total_steps - self.logs["agent_steps"])
        return duration(steps / self.speed)

    def score_name(self, logs: Logs) -> str:
        """Return the name of a record's score: of the metric, else of the default or the return.

        "" without any of them.
        """
        names = [score_name(logs, metric) for metric in (self.metric, METRIC, RETURN)]
        return next(filter(None, names), "")

    @property
    def has_opponents(self) -> bool:
        """True for self-play."""
        return POOL in self.logs

    def scores(self) -> dict[str, str]:
        """Return the training score and the last evaluation's, with their numbers of episodes.

        If no episode ended between the last two calls of ``update_speed``, the score is older.
        """
        logs = self.logs
        texts = {}
        if name := self.score_name(logs):
            many = f"last {EPISODES}" if name == SCORE else episodes_text(logs.get("env/n", 1.0))
            many += ", none since" if self.none_ended else ""
            texts[f"training {label(name)}"] = f"{logs[name]:.3f} ({many})"
        for name in (self.metric, METRIC, RETURN):
            evaluated = EVALUATION + name.removeprefix("env/")
            if evaluated in logs:
                many = episodes_text(logs.get(f"{EVALUATION}n", 1.0))
                return {**texts, f"evaluation {label(name)}": f"{logs[evaluated]:.3f} ({many})"}
        return texts

    def progress(self) -> dict[str, str]:
        """Return steps, and speed and remaining time if the speed is known."""
        steps = self.logs["agent_steps"]
        share = 100 * steps / self.total_steps
        texts = {"steps": f"{abbreviate(steps)} of {abbreviate(self.total_steps)} ({share:.0f} %)"}
        if self.speed:
            texts |= {"SPS": abbreviate(self.speed), "left": self.time_left}
        return texts

    def facts(self) -> dict[str, str]:
        """Return the facts about the entire run that aren't in ``progress``."""
        return {
            **{name.lower(): text for name, text in self.summary.items()},
            "epoch": f"{self.logs.get('epoch', 0):.0f}",
            "uptime": duration(self.logs.get("uptime", 0.0)),
            "memory": f"{self.logs.get('util/cpu_mem_gb', 0):.2f} GiB",
        }

    def phases(self, most: int | None = None) -> list[Phase]:
        """Return the phases of an epoch: rollout and training, each followed by its parts.

        If rollout and training run at the same time, each takes the entire epoch, waiting included.

        Args:
            most: Largest number of parts, besides waiting; the phases with the least time so far
                are merged into misc. None for all. A misc that would be the only part is left out.
        """
        perf = {name: self.logs.get(f"perf/{name}", 0.0) for name, _, _ in PHASES}
        rows = self._rows(most)
        seconds = {name: sum(perf[part] for part in parts) for name, parts in rows.items()}
        lanes = dict.fromkeys(MISC, 0.0)  # seconds of the parts, waiting included
        for whole in MISC:
            parts = [name for name, _, parent in PHASES if parent == whole]
            lanes[whole] = max(perf[whole], sum(perf[name] for name in parts))
            if whole in seconds:
                busy = sum(perf[name] for name in parts if name not in WAIT_PHASES)
                seconds[whole] = max(seconds[whole], busy)
        overlapped = any(self._spent.get(f"perf/{name}", 0.0) > 0 for name in WAIT_PHASES)
        epoch = max(lanes.values()) if overlapped else perf["rollout"] + perf["train"]
        epoch = self.logs.get("perf/epoch", epoch) or 1.0
        return [
            Phase(label, parent, seconds[name], seconds[name] / epoch)
            for name, label, parent in PHASES
            if name in rows
        ]

    def _rows(self, most: int | None) -> dict[str, list[str]]:
        """Return the phases to show, each with the phases that are merged into it."""
        spent = {name: self._spent.get(f"perf/{name}", 0.0) for name, _, _ in PHASES}
        seen = [name for name in spent if spent[name] > 0]
        whole = {name: parent for name, _, parent in PHASES if parent}
        kept = [name for name in seen if name in MISC or name in WAIT_PHASES]
        parts = [name for name in seen if name not in (*kept, *MISC.values())]
        parts.sort(key=spent.__getitem__, reverse=True)
        for count in range(len(parts), -1, -1):
            rows = {name: [name] for name in (*kept, *parts[:count])}
            for misc in MISC.values():
                others = [n for n in (*parts[count:], misc) if whole[n] == whole[misc] and spent[n]]
                if others and any(whole[name] == whole[misc] for name in parts[:count]):
                    rows[misc] = others
            if most is None or len(rows) <= most:
                return rows
        return {name: [name] for name in kept}

    def times(self, most: int | None = None) -> Pairs:
        """Return names and times of phases. If ``most`` is too few, return rollout and training."""
        phases = self.phases(most)
        if most is not None and len(phases) > most:
            phases = [phase for phase in phases if not phase.parent][:most]
        names = [f"  {phase.label}" if phase.parent else phase.label for phase in phases]
        times = [f"{1000 * phase.seconds:5.0f} ms {100 * phase.share:3.0f} %" for phase in phases]
        return list(zip(names, times, strict=True))

    def losses(self) -> Pairs:
        """Return the last epoch's losses, those of ``HIDDEN_IF_SMALL`` only if they are large."""
        losses = self._section("loss")
        shown = [(n, f"{value:.4f}") for n, value in losses.items() if n not in HIDDEN_IF_SMALL]
        for name, (words, least, form) in HIDDEN_IF_SMALL.items():
            if losses.get(name, 0.0) >= least:
                shown.append((words, form.format(losses[name])))
        return shown

    def statistics(self) -> Pairs:
        """Return the environment's own numbers, means per finished episode."""
        return [
            (name, abbreviate(value) if name == "n" else f"{value:.3f}")
            for name, value in self._section("env").items()
            if not (self.has_opponents and f"env/{name}".startswith(OF_SELF_PLAY))
        ]

    def self_play(self) -> dict[str, str]:
        """Return ratings, the learner's win rate and the pool; {} without self-play."""
        shown = {
            "Elo": (RATING, "+.0f"),
            "opponents": ("pool/opponent_elo", "+.0f"),  # their mean rating
            "win rate": ("pool/winrate", ".3f"),
            "pool": (POOL, ".0f"),
            "swaps": ("pool/swaps", ".0f"),
        }
        known = {k: how for k, how in shown.items() if self.has_opponents and how[0] in self.logs}
        return {label: f"{self.logs[name]:{form}}" for label, (name, form) in known.items()}

    def score_curve(self) -> Curve:
        """Return steps, and the mean score of the episodes since the previous point."""
        pairs = zip([CurvePoint(0.0, 0.0, 0.0, 0.0), *self._points], self._points, strict=False)
        return _curve(
            (b.steps, (b.score - a.score) / (b.episodes - a.episodes))
            for a, b in pairs
            if b.episodes > a.episodes
        )

    def rating_curve(self) -> Curve:
        """Return steps and the learner's Elo ratings; empty without self-play."""
        return _curve((p.steps, p.rating) for p in self._points if p.rating is not None)

    def speed_curve(self) -> Curve:
        """Return steps, and steps per second since the previous point.

        The first point is left out, as it includes compiling. Time between epochs doesn't count.
        """
        pairs = zip(self._points, self._points[1:], strict=False)
        return _curve((b.steps, (b.steps - a.steps) / (b.seconds - a.seconds)) for a, b in pairs)

    def _section(self, section: str) -> Logs:
        begin = f"{section}/"
        values = {name: value for name, value in self.logs.items() if name.startswith(begin)}
        return {name.removeprefix(begin): value for name, value in values.items()}


def _curve(points: Iterable[tuple[float, float]]) -> Curve:
    points = list(points)
    return [steps for steps, _ in points], [value for _, value in points]


def label(name: str) -> str:
    """Return the label of a score: score, return, or the name of another metric."""
    if name in ("", SCORE, METRIC):
        return "score"
    return "return" if name == RETURN else name.removeprefix("env/")
