"""Check that an environment's episodes end, start again, and are reported."""

import math

import numpy as np

from puffer_mlx.check.env.environment import EnvUnderTest, PlayStatistics
from puffer_mlx.check.items import Findings, fail, format_indices, format_number, ok, skip, warn

MAX_COMPARED_ROWS = 64  # rows to compute distances of
MIN_EPISODES = 20  # with fewer episodes no pattern is reported


def check_episodes(env: EnvUnderTest) -> Findings:
    """Check that an environment's episodes end with a terminal, and not after one step."""
    observed = env.observed
    reported = sum(record.get("n", 0.0) for record in observed.logs)
    if not observed.lengths and reported:
        text = (
            f"{format_number(reported)} were reported, but {observed.steps:,} steps had no terminal"
        )
        hint = (
            "set terminals where an episode ends: otherwise the next episode's rewards count as its"
            " future. Fine if the reported episodes don't really end"
        )
        return [warn(text, hint)]
    if not observed.lengths:
        hint = (
            "scores and time limits are per episode, so end them. In Gymnasium: max_episode_steps,"
            " or truncated=True after a number of steps"
        )
        return [warn(f"none ended in {observed.steps:,} steps of {observed.agents} agents", hint)]
    lengths = np.array(observed.lengths)
    if lengths.max() == 1:
        hint = "fine if one step is the task; otherwise set terminals only where an episode ends"
        return [warn(f"all {observed.terminals:,} of them are one step long", hint)]
    span = f"{format_number(lengths.min())} to {format_number(lengths.max())} steps"
    # Equal to the number in the items ``endings`` (Python) and ``log`` (C).
    count = len(observed.observed_ends) or observed.terminals
    return [ok(f"{count:,} ended: {span}, {lengths.mean():.4g} on average")]


def check_endings(env: EnvUnderTest) -> Findings:
    """Check that the environment distinguishes terminated and truncated episodes."""
    if env.native:
        return [skip("C environments have one terminal for both, after which the value is 0")]
    truncated = [steps for steps, is_truncated in env.observed.observed_ends if is_truncated]
    terminated = [steps for steps, is_truncated in env.observed.observed_ends if not is_truncated]
    if not truncated and not terminated:
        return [skip("no episode's last observation was shown: all ends count as terminated")]
    equal_lengths = len(set(terminated)) == 1 and terminated[0] > 1
    if len(terminated) >= MIN_EPISODES and equal_lengths and not truncated:
        text = f"all {len(terminated)} episodes terminated after {terminated[0]} steps"
        hint = "report a time limit as truncated=True: the following steps would have had a value"
        return [warn(text, hint)]
    count = f"{len(terminated)} episodes terminated, {len(truncated)} truncated by a time limit"
    findings = [ok(count)]
    if truncated and not env.config.train.bootstrap_truncated:
        hint = "--train.bootstrap-truncated 1 adds the value of the following steps"
        findings.append(warn("truncated episodes count as terminated", hint))
    return findings


def check_resets(env: EnvUnderTest) -> Findings:
    """Check that an environment shows the next episode's first observation with each terminal."""
    observed = env.observed
    if len(observed.first_rows) < MIN_EPISODES:
        return [skip(f"{len(observed.first_rows)} episodes ended, too few to compare their starts")]
    first_rows = np.stack(observed.first_rows)
    low, high = observed.initial.min(0), observed.initial.max(0)
    span = high - low  # later resets may differ by this from the first ones
    outside = (first_rows < low - span - 1e-6) | (first_rows > high + span + 1e-6)
    hint = "reset must set everything that step changes"
    if env.native:
        hint = "c_step must call c_reset where an episode ends, and c_reset must write every number"
    if env.agents_each == 1 and still_old_episode(observed):
        return [fail("the row with a terminal still belongs to the episode that ended", hint)]
    always_outside = outside.all(0)
    if env.agents_each == 1 and always_outside.any():
        i = int(np.argmax(always_outside))
        reset = f"{format_number(low[i])} to {format_number(high[i])} after a reset"
        values = first_rows[:, i]
        later = f"{format_number(values.min())} to {format_number(values.max())} after a terminal"
        text = "later episodes start differently from the first one: "
        text += f"observation[{i}] is {reset}, but {later}"
        return [fail(text, hint)]
    if changed_elements := np.flatnonzero(outside.mean(0) > 0.5).tolist():
        problem = "has other values after most terminals than after a reset"
        hint = (
            "check whether values of the old episode are left; fine if that is intended, for"
            " example with agents that stay in the game"
        )
        return [warn(f"{format_indices(changed_elements)} {problem}", hint)]
    text = f"{len(first_rows)} observations after a terminal have the values of those after a reset"
    return [ok(text)]


def still_old_episode(observed: PlayStatistics) -> bool:
    """Return True if observations that arrive with a terminal still belong to the old episode.

    They do if they are about one step away from the previous observations and far from those after
    a reset. Distances are means over observation elements, each in units of its range.
    """
    if not observed.successive:
        return False
    span = observed.high - observed.low
    varies = span > 0
    scale = np.where(varies, 1 / np.where(varies, span, 1), 0) / max(1, np.count_nonzero(varies))
    first_rows = np.stack(observed.first_rows)[:MAX_COMPARED_ROWS] * scale
    initial = observed.initial[:MAX_COMPARED_ROWS] * scale
    step_distance = np.mean([np.abs((b - a) * scale).sum() for a, b in observed.successive])
    last_rows = np.stack(observed.last_rows)[:MAX_COMPARED_ROWS] * scale
    distance_to_last = np.abs(last_rows - first_rows).sum(1).mean()
    start_distances = np.abs(initial[:, None] - initial).sum(2)
    np.fill_diagonal(start_distances, np.inf)
    usual_distance = start_distances.min(1).mean()  # to the nearest other start
    distance_to_starts = np.abs(first_rows[:, None] - initial).sum(2).min(1).mean()
    is_near_last = distance_to_last < 2 * step_distance
    is_far_from_starts = distance_to_starts > 3 * usual_distance + 0.01  # 0.01: equal starts
    return bool(is_near_last and is_far_from_starts)


def check_log(env: EnvUnderTest) -> Findings:
    """Check that an environment's ``log`` reports every episode, with finite values and a score."""
    logs = env.observed.logs
    terminals = env.observed.terminals
    if not logs and terminals:
        hint = "where an episode ends, add to env->log: log.score += ..., and log.n += 1"
        return [fail(f"{terminals:,} episodes ended, but nothing was reported", hint)]
    if not logs:
        return [skip("no episode ended")]
    for record in logs:
        if invalid := [name for name, value in record.items() if not math.isfinite(value)]:
            hint = "report finite numbers in the last info of an episode"
            if env.native:
                hint = "add finite numbers to the fields of Log; they are divided by n when read"
            return [fail(f"{', '.join(invalid)}: not finite ({record[invalid[0]]:g})", hint)]
    names = [name for name in logs[0] if name != "n"]
    counts = [record.get("n", 0.0) for record in logs]
    count = sum(counts)
    means = [np.average([r.get(name, 0.0) for r in logs], weights=counts) for name in names]
    pairs = zip(names, means, strict=True)
    text = ", ".join(f"{name} {format_number(float(mean))}" for name, mean in pairs)
    findings = [ok(f"of {format_number(count)} episodes: {text}")]
    if env.native and env.agents_each == 1 and count < terminals:
        text = f"log.n counts {format_number(count)} episodes, but {terminals:,} ended"
        hint = "log.n += 1 where an episode ends, once per episode; fine if some shouldn't count"
        findings.append(warn(text, hint))
    source, _, metric = env.config.metric.partition("/")
    if source == "env" and metric not in names:
        hint = "[sweep] metric = one of those above"
        if env.native:
            hint = f'dict_set(out, "{metric}", log->{metric}) in my_log, or metric = ... in [sweep]'
        text = f"there is no {metric}, the metric that selects the best checkpoint"
        findings.append(warn(text, hint))
    return findings
