"""Aggregate a run's records for a display: a terminal (``dashboard.py``) or a notebook."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from puffer_mlx.profiling.phases import WAIT_PHASES, format_duration
from puffer_mlx.tracking.scores import (
    DEFAULT_METRIC,
    EVALUATION_PREFIX,
    MEAN_SCORE,
    SCORED_EPISODES,
    score_name,
)

Record = dict[str, float]  # values of an epoch or an evaluation by name
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
MISC_PHASES = {"rollout": "eval_misc", "train": "train_misc"}

RETURN_KEY = "env/episode_return"
RATING_KEY, POOL_SIZE_KEY = "env/elo", "pool/size"  # in records of self-play runs
# In self-play runs, keys with these prefixes aren't statistics of the environment.
SELF_PLAY_PREFIXES = (RATING_KEY, "env/historical_winrate")
SHOWN_IF_LARGE = {  # losses that are shown only from a threshold on: label, threshold, format
    "skipped_steps": ("skipped minibatches", 1, "{:.0f}"),
    "first_ratio_error": ("acting vs training", 0.1, "{:.2f} apart"),
}
MAX_POINTS = 512  # of a curve, an even number; when full, every other point is dropped


def format_count(number: float) -> str:
    """Format a count with a unit: 1_234_567 -> 1.2M."""
    for unit in ("", "K", "M", "B"):
        if abs(number) < (999.95 if unit else 999.5):  # 1000 after rounding is 1.0 of the next unit
            return f"{number:.1f}{unit}" if unit else f"{number:.0f}"
        number /= 1000
    return f"{number:.1f}T"


def format_episodes(count: float) -> str:
    """Format a number of episodes: 1 -> 1 episode, 2000 -> 2.0K episodes."""
    return f"{format_count(count)} episode{'s' * (count != 1)}"


def format_agents(agents: int, groups: int) -> str:
    """Return as text the number of agents, and the number of groups that act alternately.

    A single group isn't mentioned.
    """
    return f"{agents:,}" + (f" ({groups} groups take turns)" if groups > 1 else "")


class Phase(NamedTuple):
    """A phase of an epoch and the time that it takes.

    Args:
        label: Name to show.
        parent: Name of the phase that contains this one; "" for rollout and training.
        seconds: Duration of the phase.
        fraction: Fraction of the epoch's time.
    """

    label: str
    parent: str
    seconds: float
    fraction: float


class CurvePoint(NamedTuple):
    """A point of a run's curves: totals from the start of the run up to one of its records.

    Args:
        steps: Environment steps so far.
        seconds: Duration of the epochs so far.
        score: Sum of the scores of the episodes that have ended.
        episodes: Number of episodes that have ended.
        rating: The learner's Elo rating at this record; None without self-play.
    """

    steps: float
    seconds: float
    score: float
    episodes: float
    rating: float | None = None


class RunState:
    """State of a training run for a display, aggregated from its records.

    Args:
        summary: Constant facts (name -> text), the environment first.
        total_steps: Environment steps of the entire run.
        metric: Name of the value that ranks policies: ``Config.metric``.

    Attributes:
        logs: Newest values by name. Phases come from the last record that has phases.
        speed: Steps per second between the last two calls of ``update_speed``; 0 at first.
        no_episode_ended: True if epochs ended between these calls, but no episodes.
    """

    def __init__(
        self, summary: dict[str, str], total_steps: int, metric: str = DEFAULT_METRIC
    ) -> None:
        self.summary = summary
        self.total_steps = total_steps
        self.metric = metric
        self.logs: Record = {}
        self.speed = 0.0
        self.no_episode_ended = False
        self._episode_ended: bool | None = None  # since update_speed, or None
        self._spent: Record = {}  # seconds of the run by perf/*
        self._last_measurement: tuple[float, float] | None = None  # uptime and steps
        self._points: list[CurvePoint] = []
        self._sums = CurvePoint(0.0, 0.0, 0.0, 0.0)
        self._record_count = 0
        self._stride = 1  # records per point

    def update(self, logs: Record) -> None:
        """Update the state of the run with a new record.

        A record without ``SPS``, such as that of an evaluation, adds no point to the curves.
        """
        previous_steps = self.logs.get("agent_steps", 0.0)
        perf = {name: value for name, value in logs.items() if name.startswith("perf/")}
        old = self.logs
        if perf:  # phases of different epochs must not be mixed
            old = {name: v for name, v in old.items() if not name.startswith("perf/")}
        self.logs = {**old, **logs}
        for name, seconds in perf.items():
            self._spent[name] = self._spent.get(name, 0.0) + seconds
        if "SPS" not in logs or "agent_steps" not in logs:
            return
        self._episode_ended = bool(self._episode_ended) or logs.get("env/n", 0.0) > 0
        name = self.score_name(logs)
        score = logs.get(name, math.nan)
        # SCORE is already a mean over the last episodes, so each record counts once.
        episodes = 1.0 if name == MEAN_SCORE else logs.get("env/n", 1.0)
        episodes = episodes if math.isfinite(score) else 0.0
        self._sums = CurvePoint(
            logs["agent_steps"],
            self._sums.seconds + (logs["agent_steps"] - previous_steps) / logs["SPS"],
            self._sums.score + (score * episodes if episodes else 0.0),
            self._sums.episodes + episodes,
            self.logs.get(RATING_KEY) if self.has_opponents else None,
        )
        self._add_point(self._sums)

    def _add_point(self, point: CurvePoint) -> None:
        """Add a point to the curves of the run, which keep at most ``MAX_POINTS`` points.

        Within a stride, the point replaces the last one. When there are ``MAX_POINTS``, every other
        point is dropped and the stride is doubled.
        """
        if self._record_count % self._stride:
            self._points.pop()
        elif len(self._points) == MAX_POINTS:
            del self._points[::2]
            self._stride *= 2
        self._points.append(point)
        self._record_count += 1

    def update_speed(self) -> None:
        """Measure the run's speed since the last call. The first call only starts the measurement.

        The first call must come after the first epoch, so that compiling isn't included.
        """
        uptime = self.logs.get("uptime", 0.0)
        steps = self.logs["agent_steps"]
        if self._last_measurement is not None:
            last_uptime, last_steps = self._last_measurement
            if uptime > last_uptime:
                self.speed = (steps - last_steps) / (uptime - last_uptime)
        self._last_measurement = uptime, steps
        if self._episode_ended is not None:
            self.no_episode_ended = not self._episode_ended
            self._episode_ended = None

    @property
    def time_left(self) -> str:
        """Remaining time of the run at its current speed, as text."""
        steps = max(0.0, self.total_steps - self.logs["agent_steps"])
        return format_duration(steps / self.speed)

    def score_name(self, logs: Record) -> str:
        """Return the key under which a record contains the score, or "" if it contains none.

        The score is the first of these that the record contains: the run's metric, the default
        metric, the episode return.
        """
        names = [score_name(logs, metric) for metric in (self.metric, DEFAULT_METRIC, RETURN_KEY)]
        return next(filter(None, names), "")

    @property
    def has_opponents(self) -> bool:
        """True if the run trains by self-play."""
        return POOL_SIZE_KEY in self.logs

    def scores(self) -> dict[str, str]:
        """Return the training score and the last evaluation's score as text, by label.

        The texts include the number of episodes. If no episode ended between the last two calls of
        ``update_speed``, the training score is that of earlier episodes.
        """
        logs = self.logs
        texts = {}
        if name := self.score_name(logs):
            episodes = format_episodes(logs.get("env/n", 1.0))
            episodes = f"last {SCORED_EPISODES}" if name == MEAN_SCORE else episodes
            episodes += ", none since" if self.no_episode_ended else ""
            texts[f"training {score_label(name)}"] = f"{logs[name]:.3f} ({episodes})"
        for name in (self.metric, DEFAULT_METRIC, RETURN_KEY):
            key = EVALUATION_PREFIX + name.removeprefix("env/")
            if key in logs:
                episodes = format_episodes(logs.get(f"{EVALUATION_PREFIX}n", 1.0))
                texts[f"evaluation {score_label(name)}"] = f"{logs[key]:.3f} ({episodes})"
                return texts
        return texts

    def progress(self) -> dict[str, str]:
        """Return the run's steps, speed and remaining time as text, by label."""
        steps = self.logs["agent_steps"]
        percent = 100 * steps / self.total_steps
        total = format_count(self.total_steps)
        texts = {"steps": f"{format_count(steps)} of {total} ({percent:.0f} %)"}
        if self.speed:
            texts |= {"SPS": format_count(self.speed), "left": self.time_left}
        return texts

    def facts(self) -> dict[str, str]:
        """Return further facts about the run as text, by label: epoch, uptime, memory, …."""
        return {
            **{name.lower(): text for name, text in self.summary.items()},
            "epoch": f"{self.logs.get('epoch', 0):.0f}",
            "uptime": format_duration(self.logs.get("uptime", 0.0)),
            "memory": f"{self.logs.get('util/cpu_mem_gb', 0):.2f} GiB",
        }

    def phases(self, max_phases: int | None = None) -> list[Phase]:
        """Return the phases of an epoch: rollout and training, each followed by its subphases.

        If rollout and training overlap, each takes the entire epoch, including waiting.

        Args:
            max_phases: Largest number of phases, or None. If there are more, the shortest subphases
                are merged into the subphase misc. It is left out if it would be the only one.
        """
        perf = {name: self.logs.get(f"perf/{name}", 0.0) for name, _, _ in PHASES}
        rows = self._merged_phases(max_phases)
        seconds = {name: sum(perf[member] for member in members) for name, members in rows.items()}
        with_waits = dict.fromkeys(MISC_PHASES, 0.0)  # seconds of rollout and training with waits
        for parent_name in MISC_PHASES:
            members = [name for name, _, parent in PHASES if parent == parent_name]
            total = sum(perf[name] for name in members)
            with_waits[parent_name] = max(perf[parent_name], total)
            if parent_name in seconds:
                busy = sum(perf[name] for name in members if name not in WAIT_PHASES)
                seconds[parent_name] = max(seconds[parent_name], busy)
        overlapped = any(self._spent.get(f"perf/{name}", 0.0) > 0 for name in WAIT_PHASES)
        epoch = max(with_waits.values()) if overlapped else perf["rollout"] + perf["train"]
        epoch = self.logs.get("perf/epoch", epoch) or 1.0
        return [
            Phase(label, parent, seconds[name], seconds[name] / epoch)
            for name, label, parent in PHASES
            if name in rows
        ]

    def _merged_phases(self, max_phases: int | None) -> dict[str, list[str]]:
        """Return the names of the phases to show, each with the list of phases merged into it.

        If there are more than ``max_phases``, short phases are merged into misc.
        """
        spent = {name: self._spent.get(f"perf/{name}", 0.0) for name, _, _ in PHASES}
        measured = [name for name in spent if spent[name] > 0]
        parents = {name: parent for name, _, parent in PHASES if parent}
        fixed = [name for name in measured if name in MISC_PHASES or name in WAIT_PHASES]
        members = [name for name in measured if name not in (*fixed, *MISC_PHASES.values())]
        members.sort(key=spent.__getitem__, reverse=True)
        for count in range(len(members), -1, -1):
            rows = {name: [name] for name in (*fixed, *members[:count])}
            for misc in MISC_PHASES.values():
                parent = parents[misc]
                merged = [n for n in (*members[count:], misc) if parents[n] == parent and spent[n]]
                if merged and any(parents[name] == parent for name in members[:count]):
                    rows[misc] = merged
            if max_phases is None or len(rows) <= max_phases:
                return rows
        return {name: [name] for name in fixed}

    def times(self, max_phases: int | None = None) -> Pairs:
        """Return the phases of an epoch, such as rollout and training, as (label, time) texts.

        With a small ``max_phases`` only rollout and training are included.
        """
        phases = self.phases(max_phases)
        if max_phases is not None and len(phases) > max_phases:
            phases = [phase for phase in phases if not phase.parent][:max_phases]
        names = [f"  {phase.label}" if phase.parent else phase.label for phase in phases]
        times = [
            f"{1000 * phase.seconds:5.0f} ms {100 * phase.fraction:3.0f} %" for phase in phases
        ]
        return list(zip(names, times, strict=True))

    def losses(self) -> Pairs:
        """Return the last epoch's losses as (name, value) pairs of text.

        Losses in ``SHOWN_IF_LARGE``, which are 0 in a healthy run, are left out if they are small.
        """
        losses = self._values_of("loss")
        rows = [(n, f"{value:.4f}") for n, value in losses.items() if n not in SHOWN_IF_LARGE]
        for name, (label, threshold, number_format) in SHOWN_IF_LARGE.items():
            if losses.get(name, 0.0) >= threshold:
                rows.append((label, number_format.format(losses[name])))
        return rows

    def statistics(self) -> Pairs:
        """Return the environment's statistics (means over episodes) as (name, value) texts."""
        return [
            (name, format_count(value) if name == "n" else f"{value:.3f}")
            for name, value in self._values_of("env").items()
            if not (self.has_opponents and f"env/{name}".startswith(SELF_PLAY_PREFIXES))
        ]

    def self_play(self) -> dict[str, str]:
        """Return ratings, win rate and pool size of a self-play run as text; {} for other runs."""
        rows = {
            "Elo": (RATING_KEY, "+.0f"),
            "opponents": ("pool/opponent_elo", "+.0f"),  # their mean rating
            "win rate": ("pool/winrate", ".3f"),
            "pool": (POOL_SIZE_KEY, ".0f"),
            "swaps": ("pool/swaps", ".0f"),
        }
        if not self.has_opponents:
            return {}
        return {
            label: f"{self.logs[name]:{number_format}}"
            for label, (name, number_format) in rows.items()
            if name in self.logs
        }

    def score_curve(self) -> Curve:
        """Return the curve of the score over steps.

        Each point is the mean score of the episodes since the previous point.
        """
        pairs = zip([CurvePoint(0.0, 0.0, 0.0, 0.0), *self._points], self._points, strict=False)
        return _curve(
            (b.steps, (b.score - a.score) / (b.episodes - a.episodes))
            for a, b in pairs
            if b.episodes > a.episodes
        )

    def rating_curve(self) -> Curve:
        """Return the curve of the learner's Elo rating over steps; empty without self-play."""
        return _curve((p.steps, p.rating) for p in self._points if p.rating is not None)

    def speed_curve(self) -> Curve:
        """Return the curve of the speed over steps: steps per second since the previous point.

        The first point is left out, because it includes compiling. Time between epochs isn't
        included.
        """
        pairs = zip(self._points, self._points[1:], strict=False)
        return _curve((b.steps, (b.steps - a.steps) / (b.seconds - a.seconds)) for a, b in pairs)

    def _values_of(self, section: str) -> Record:
        """Return the newest values of a section, such as loss, from names like ``loss/policy``.

        The returned names don't contain the section.
        """
        begin = f"{section}/"
        values = {name: value for name, value in self.logs.items() if name.startswith(begin)}
        return {name.removeprefix(begin): value for name, value in values.items()}


def _curve(points: Iterable[tuple[float, float]]) -> Curve:
    points = list(points)
    return [steps for steps, _ in points], [value for _, value in points]


def score_label(name: str) -> str:
    """Return the word to show for a score, by its key: score, return or the metric's name."""
    if name in ("", MEAN_SCORE, DEFAULT_METRIC):
        return "score"
    return "return" if name == RETURN_KEY else name.removeprefix("env/")
