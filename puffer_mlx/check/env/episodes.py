"""Check that episodes end, start again, and are reported."""

import math

import numpy as np

from puffer_mlx.check.env.environment import EnvUnderTest, Observed
from puffer_mlx.check.items import Findings, fail, number, numbers, ok, skip, warn

FEW = 64  # rows to compute distances of
ENOUGH = 20  # minimum episodes for a general finding


def check_episodes(env: EnvUnderTest) -> Findings:
    """Check that episodes end, and not after one step."""
    observed = env.observed
    reported = sum(record.get("n", 0.0) for record in observed.logs)
    if not observed.lengths and reported:
        text = f"{number(reported)} were reported, but no terminal came in {observed.steps:,} steps"
        hint = (
            "set terminals where an episode ends: else what follows counts as its future. Fine if"
            " nothing really ends there"
        )
        return [warn(text, hint)]
    if not observed.lengths:
        hint = (
            "end them: scores and time limits are per episode. In Gymnasium:"
            " max_episode_steps, or truncated=True after a number of steps"
        )
        return [warn(f"none ended in {observed.steps:,} steps of {observed.agents} agents", hint)]
    lengths = np.array(observed.lengths)
    if lengths.max() == 1:
        hint = "fine if there is nothing to plan; else set the terminal where an episode ends only"
        return [warn(f"all {observed.terminals:,} of them are one step long", hint)]
    span = f"{number(lengths.min())} to {number(lengths.max())} steps"
    count = len(observed.ended) or observed.terminals  # as ``endings`` and ``log`` count them
    return [ok(f"{count:,} ended: {span}, {lengths.mean():.4g} on average")]


def check_endings(env: EnvUnderTest) -> Findings:
    """Check that terminated and truncated episodes are distinguished."""
    if env.native:
        return [skip("C environments have one terminal for both: what it ends is worth 0")]
    cut = [steps for steps, truncated in env.observed.ended if truncated]
    over = [steps for steps, truncated in env.observed.ended if not truncated]
    if not cut and not over:
        return [skip("no episode's last observation was shown: what ends counts as over")]
    if len(over) >= ENOUGH and len(set(over)) == 1 and over[0] > 1 and not cut:
        text = f"all {len(over)} episodes ended after {over[0]} steps, and as terminated"
        hint = "an end by time limit is truncated=True: what would come next is worth something"
        return [warn(text, hint)]
    findings = [ok(f"{len(over)} episodes terminated, {len(cut)} truncated by a time limit")]
    if cut and not env.config.train.bootstrap_truncated:
        hint = "--train.bootstrap-truncated 1 values what was left"
        findings.append(warn("truncated episodes count as over", hint))
    return findings


def check_resets(env: EnvUnderTest) -> Findings:
    """Check that the row with a terminal contains an episode's first observation."""
    observed = env.observed
    if len(observed.fresh) < ENOUGH:
        return [skip(f"{len(observed.fresh)} episodes ended, too few to compare beginnings")]
    fresh = np.stack(observed.fresh)
    low, high = observed.started.min(0), observed.started.max(0)
    room = high - low  # tolerance for later resets
    outside = (fresh < low - room - 1e-6) | (fresh > high + room + 1e-6)
    anew = "reset must set everything that step changes"
    if env.native:
        anew = "c_step must call c_reset where an episode ends, and c_reset must write every number"
    if env.agents_each == 1 and still_old_episode(observed):
        return [fail("what arrives with a terminal still belongs to the episode that ended", anew)]
    if env.agents_each == 1 and outside.all(0).any():
        i = int(np.argmax(outside.all(0)))
        reset = f"{number(low[i])} to {number(high[i])} after a reset"
        ended = f"{number(fresh[:, i].min())} to {number(fresh[:, i].max())} after a terminal"
        text = "an episode doesn't begin as the first one did: "
        text += f"observation[{i}] is {reset}, but {ended}"
        return [fail(text, anew)]
    if often := np.flatnonzero(outside.mean(0) > 0.5).tolist():
        first = "differs after most terminals from what it is after a reset"
        hint = (
            "see whether something of the old episode is left; fine if it is meant, as with agents"
            " that stay"
        )
        return [warn(f"{numbers(often)} {first}", hint)]
    return [ok(f"{len(fresh)} first observations after a terminal are like those after a reset")]


def still_old_episode(observed: Observed) -> bool:
    """Return True if rows with a terminal still belong to the episode that ended.

    They do if they are about one step away from the previous rows and far from first observations.
    Distances are means over observation elements, each in units of its range.
    """
    if not observed.moved:
        return False
    span = observed.high - observed.low
    scale = np.where(span > 0, 1 / np.where(span > 0, span, 1), 0) / max(1, np.count_nonzero(span))
    fresh = np.stack(observed.fresh)[:FEW] * scale
    started = observed.started[:FEW] * scale
    step = np.mean([np.abs((b - a) * scale).sum() for a, b in observed.moved])
    ended = np.abs(np.stack(observed.before)[:FEW] * scale - fresh).sum(1).mean()
    apart = np.abs(started[:, None] - started).sum(2)
    np.fill_diagonal(apart, np.inf)
    usual = apart.min(1).mean()  # distance of a first observation to the nearest other one
    away = np.abs(fresh[:, None] - started).sum(2).min(1).mean()
    return bool(ended < 2 * step and away > 3 * usual + 0.01)


def check_log(env: EnvUnderTest) -> Findings:
    """Check that every episode is reported with finite values and a score."""
    logs = env.observed.logs
    terminals = env.observed.terminals
    if not logs and terminals:
        hint = "where an episode ends add to env->log: log.score += ..., and log.n += 1"
        return [fail(f"{terminals:,} episodes ended, but nothing was reported", hint)]
    if not logs:
        return [skip("no episode ended")]
    for record in logs:
        if wrong := [name for name, value in record.items() if not math.isfinite(value)]:
            hint = "report finite numbers in the last info of an episode"
            if env.native:
                hint = "add finite numbers to the fields of Log; they are divided by n when read"
            return [fail(f"{', '.join(wrong)}: not finite ({record[wrong[0]]:g})", hint)]
    names = [name for name in logs[0] if name != "n"]
    counts = [record.get("n", 0.0) for record in logs]
    count = sum(counts)
    means = [np.average([r.get(name, 0.0) for r in logs], weights=counts) for name in names]
    pairs = zip(names, means, strict=True)
    text = ", ".join(f"{name} {number(float(mean))}" for name, mean in pairs)
    findings = [ok(f"of {number(count)} episodes: {text}")]
    if env.native and env.agents_each == 1 and count < terminals:
        text = f"n says {number(count)} episodes, but {terminals:,} ended"
        hint = "log.n += 1 where an episode ends, once for each; fine if some aren't to be counted"
        findings.append(warn(text, hint))
    kind, _, metric = env.config.metric.partition("/")
    if kind == "env" and metric not in names:
        hint = "[sweep] metric = one of those above"
        if env.native:
            hint = f'dict_set(out, "{metric}", log->{metric}) in my_log, or metric = ... in [sweep]'
        findings.append(warn(f"there is no {metric}, by which the best checkpoint is chosen", hint))
    return findings
