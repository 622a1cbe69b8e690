"""Items that check that episodes end, start again, and are reported."""

import math

import numpy as np

from puffer_mlx.check.env.findings import Findings, fail, number, numbers, ok, skip, warn
from puffer_mlx.check.env.random_play import Notes
from puffer_mlx.check.env.subject import Subject

FEW = 64  # rows to compute distances of
ENOUGH = 20  # minimum episodes for a general finding


def episodes(subject: Subject) -> Findings:
    """Check that episodes end, and not after one step."""
    notes = subject.notes
    reported = sum(record.get("n", 0.0) for record in notes.logs)
    if not notes.lengths and reported:
        yield warn(
            f"{number(reported)} were reported, but no terminal came in {notes.steps:,} steps",
            "set terminals where an episode ends: else what follows counts as its future. Fine if"
            " nothing really ends there",
        )
        return
    if not notes.lengths:
        yield warn(
            f"none ended in {notes.steps:,} steps of {notes.agents} agents",
            "end them: scores and time limits are per episode. In Gymnasium:"
            " max_episode_steps, or truncated=True after a number of steps",
        )
        return
    lengths = np.array(notes.lengths)
    words = (
        f"{number(lengths.min())} to {number(lengths.max())} steps, {lengths.mean():.4g} on average"
    )
    if lengths.max() == 1:
        yield warn(
            f"all {notes.terminals:,} of them are one step long",
            "fine if there is nothing to plan; else set the terminal where an episode ends only",
        )
        return
    yield ok(f"{notes.terminals:,} ended: {words}")


def endings(subject: Subject) -> Findings:
    """Check that terminated and truncated episodes are distinguished."""
    notes = subject.notes
    if subject.native:
        yield skip("C environments have one terminal for both: what it ends is worth 0")
        return
    if not notes.ended:
        yield skip("no episode's last observation was shown: what ends counts as over")
        return
    cut = [steps for steps, truncated in notes.ended if truncated]
    over = [steps for steps, truncated in notes.ended if not truncated]
    if len(over) >= ENOUGH and len(set(over)) == 1 and over[0] > 1 and not cut:
        yield warn(
            f"all {len(over)} episodes ended after {over[0]} steps, and as terminated",
            "an end by time limit is truncated=True: what would come next is worth something",
        )
        return
    yield ok(f"{len(over)} episodes terminated, {len(cut)} truncated by a time limit")
    if cut and not subject.config.train.bootstrap_truncated:
        yield warn(
            "truncated episodes count as over", "--train.bootstrap-truncated 1 values what was left"
        )


def resets(subject: Subject) -> Findings:
    """Check that the row with a terminal contains an episode's first observation."""
    notes = subject.notes
    if len(notes.fresh) < ENOUGH:
        yield skip(f"{len(notes.fresh)} episodes ended, too few to compare beginnings")
        return
    fresh = np.stack(notes.fresh)
    low, high = notes.started.min(0), notes.started.max(0)
    room = high - low  # tolerance for later resets
    outside = (fresh < low - room - 1e-6) | (fresh > high + room + 1e-6)
    always = np.flatnonzero(outside.all(0)).tolist()
    anew = (
        "c_step must call c_reset where an episode ends, and c_reset must write every number"
        if subject.native
        else "reset must set everything that step changes"
    )
    often = np.flatnonzero(outside.mean(0) > 0.5).tolist()
    if goes_on(notes) and subject.whole.agents_each == 1:
        yield fail("what arrives with a terminal still belongs to the episode that ended", anew)
    elif always and subject.whole.agents_each == 1:
        i = always[0]
        yield fail(
            f"an episode doesn't begin as the first one did: number {i} is {number(low[i])} to"
            f" {number(high[i])} after a reset, but {number(fresh[:, i].min())} to"
            f" {number(fresh[:, i].max())} after a terminal",
            anew,
        )
    elif often:
        yield warn(
            f"{numbers(often)} of most first observations after a terminal: not as after a reset",
            "see whether something of the old episode is left; fine if it is meant, as with agents"
            " that stay",
        )
    else:
        yield ok(f"{len(fresh)} first observations after a terminal are like those after a reset")


def goes_on(notes: Notes) -> bool:
    """Return True if rows with a terminal still belong to the episode that ended.

    They do if they are about one step away from the previous rows and far from first observations.
    Distances are means over observation elements, each in units of its range.
    """
    if not notes.moved:
        return False
    span = notes.high - notes.low
    scale = np.where(span > 0, 1 / np.where(span > 0, span, 1), 0) / max(1, np.count_nonzero(span))
    fresh, started = np.stack(notes.fresh)[:FEW] * scale, notes.started[:FEW] * scale
    step = np.mean([np.abs((b - a) * scale).sum() for a, b in notes.moved])
    ended = np.abs(np.stack(notes.before)[:FEW] * scale - fresh).sum(1).mean()
    apart = np.abs(started[:, None] - started).sum(2)
    np.fill_diagonal(apart, np.inf)
    usual = apart.min(1).mean()  # distance of a first observation to the nearest other one
    away = np.abs(fresh[:, None] - started).sum(2).min(1).mean()
    return bool(ended < 2 * step and away > 3 * usual + 0.01)


def log(subject: Subject) -> Findings:
    """Check that every episode is reported with finite values and a score."""
    notes = subject.notes
    if not notes.logs:
        if notes.terminals:
            yield fail(
                f"{notes.terminals:,} episodes ended, but nothing was reported",
                "where an episode ends add to env->log: log.score += ..., and log.n += 1",
            )
        else:
            yield skip("no episode ended")
        return
    for record in notes.logs:
        wrong = [name for name, value in record.items() if not math.isfinite(value)]
        if wrong:
            yield fail(
                f"{', '.join(wrong)}: not finite ({record[wrong[0]]:g})",
                "add finite numbers to the fields of Log; they are divided by n when read"
                if subject.native
                else "report finite numbers in the last info of an episode",
            )
            return
    names = [name for name in notes.logs[0] if name != "n"]
    count = sum(record.get("n", 0.0) for record in notes.logs)
    means = {
        name: np.average(
            [r.get(name, 0.0) for r in notes.logs], weights=[r["n"] for r in notes.logs]
        )
        for name in names
    }
    text = ", ".join(f"{name} {number(float(mean))}" for name, mean in means.items())
    yield ok(f"of {number(count)} episodes: {text}")
    if subject.native and subject.whole.agents_each == 1 and count < notes.terminals:
        yield warn(
            f"n says {number(count)} episodes, but {notes.terminals:,} ended",
            "log.n += 1 where an episode ends, once for each; fine if some aren't to be counted",
        )
    kind, _, metric = subject.config.metric.partition("/")
    if kind == "env" and metric not in names:
        yield warn(
            f"there is no {metric}, by which the best checkpoint is chosen",
            f'dict_set(out, "{metric}", log->{metric}) in my_log, or metric = ... in [sweep]'
            if subject.native
            else "[sweep] metric = one of those above",
        )
