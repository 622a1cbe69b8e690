"""Check observations, rewards and actions."""

import numpy as np

from puffer_mlx.check.env.environment import EnvUnderTest, RandomRollout
from puffer_mlx.check.env.reproducibility import first_difference
from puffer_mlx.check.items import Findings, fail, number, numbers, ok, percent, warn
from puffer_mlx.config.compatibility import ZERO_OBSERVATIONS_OF_5

LARGE = 10.0  # larger observations are bad inputs for a network
SMALL = 1e-3  # smaller rewards vanish among the other losses
TRIED = 300  # steps within which actions must have an effect

FINITE = (
    "divide by nothing that can be 0, take no root of what can be negative, and limit what grows"
)


def check_spaces(env: EnvUnderTest) -> Findings:
    """Report the spaces of observations and actions."""
    spec = env.full.spec
    each = env.agents_each
    if spec.observation_shape:
        h, w, c = spec.observation_shape
        seen = f"an image of {h} x {w} pixels with {c} channel{'s' * (c > 1)}"
    else:
        count = spec.observation_size
        seen = f"{count:,} number{'s' * (count > 1)}"
        for h, w, c in (part.shape for part in spec.image_parts):
            seen += f", an image of {h} x {w} x {c} among them"
    sizes = spec.action.sizes
    if spec.action.continuous:
        done = f"chooses {len(sizes)} continuous number{'s' * (len(sizes) > 1)}"
    elif len(sizes) == 1:
        done = f"chooses one of {sizes[0]} actions"
    else:
        done = f"makes {len(sizes)} choices, one of {', one of '.join(map(str, sizes))}"
    masks = "; a mask says which are legal" if spec.mask_size else ""
    shared = "" if each == 1 else f"; {number(each)} agents share an environment"
    return [ok(f"an agent sees {seen} ({spec.observation_dtype}) and {done}{masks}{shared}")]


def check_observations(env: EnvUnderTest) -> Findings:
    """Check that observations are finite, vary, and have a scale that suits a network."""
    observed = env.observed
    spec = env.full.spec
    if observed.not_finite:
        step, agent, element = observed.not_finite
        whose = f"observation[{element}] of agent {agent}"
        return [fail(f"{whose} is not finite (NaN or infinite) after {step} steps", FINITE)]
    pixels = np.full(spec.observation_size, bool(spec.observation_shape))
    for part in spec.image_parts:
        pixels[part.start : part.stop] = True
    same = observed.low == observed.high
    if same.all():
        text = f"never change: every agent sees the same in all {observed.steps:,} steps"
        return [fail(text, "write them in reset and in every step")]
    low, high = observed.low.min(), observed.high.max()
    findings = [ok(f"from {number(low)} to {number(high)}, all finite")]
    key, left_at_0 = ZERO_OBSERVATIONS_OF_5.get(env.config.env_name, ("", ()))
    if env.config.env.get(key):
        same[[*left_at_0]] = False
    if constant := np.flatnonzero(same & ~pixels).tolist():
        text = f"{numbers(constant)} never changed ({spec.observation_size} numbers in all)"
        hint = (
            "leave out what is of no use, or see whether they are written at all; what only good"
            " players see is fine"
        )
        findings.append(warn(text, hint))
    beyond = np.maximum(-observed.low, observed.high) > LARGE
    large = np.flatnonzero(beyond & ~pixels).tolist()
    if large and not env.given.vec.normalize_observations:
        text = f"{numbers(large)} went beyond ±{LARGE:g} ({spec.observation_size} numbers in all)"
        hint = "bring them to about -1 to 1, or --vec.normalize-observations 1"
        if spec.observation_dtype == np.uint8:
            hint = "the network takes bytes as they are: write floats of about -1 to 1 instead"
        findings.append(warn(text, hint))
    return findings


def check_rewards(env: EnvUnderTest) -> Findings:
    """Check that rewards are finite, occur, and aren't clipped."""
    rewards = np.stack(env.observed.rewards)
    for step, agent in np.argwhere(~np.isfinite(rewards))[:1]:
        text = f"agent {agent}'s is not finite (NaN or infinite) after {step + 1} steps"
        return [fail(text, FINITE)]
    if not rewards.any():
        hint = (
            "if a good player gets some: reward a part of the way too, or training has nothing to"
            " begin with"
        )
        return [warn(f"always 0 in {rewards.size:,} random steps", hint)]
    often = percent(np.count_nonzero(rewards) / rewards.size)
    text = f"from {number(rewards.min())} to {number(rewards.max())}; {often} of steps give some"
    findings = [ok(text)]
    largest = float(np.abs(rewards).max())
    clip = env.config.train.reward_clip
    if env.given.vec.normalize_rewards:
        return findings
    if clipped := (np.abs(rewards) > clip).mean():
        text = f"{percent(clipped)} of them are beyond ±{clip:g} and clipped to it"
        hint = (
            "scale them in the environment, or --vec.normalize-rewards 1, or --train.reward-clip"
            f" {number(largest).replace(',', '')}"
        )
        findings.append(warn(f"{text} (train.reward_clip)", hint))
    elif largest < SMALL:
        hint = "make the best ones about 1, or --vec.normalize-rewards 1"
        findings.append(warn(f"none is larger than {number(largest)}", hint))
    return findings


def check_actions(env: EnvUnderTest) -> Findings:
    """Check that actions have an effect and masks leave a legal choice."""
    observed = env.observed
    spec = env.full.spec
    if observed.nothing_legal:
        step, agent, head = observed.nothing_legal
        text = f"the mask of agent {agent} allows no choice of head {head} after {step} steps"
        hint = "leave at least one legal in every row, also in those of finished episodes"
        return [fail(text, hint)]
    if not actions_have_effect(env):
        text = "change nothing: two agents that acted differently always saw and got the same"
        hint = "read actions in step: floats that hold whole numbers in C, one for each head"
        return [fail(text, hint)]
    sizes = ", ".join(map(str, spec.action.sizes))
    text = f"all choices were tried (sizes {sizes}), and they change what happens"
    if spec.action.continuous:
        text = "random ones from N(0, 1) were accepted, and change what happens"
    findings = [ok(text)]
    if observed.masked:
        forbidden = percent(observed.masked / observed.choices)
        findings.append(ok(f"masks forbid {forbidden} of choices"))
    elif spec.mask_size:
        hint = "leave them out if there is nothing to forbid: they cost memory and time"
        findings.append(warn("the masks never forbid anything", hint))
    return findings


def actions_have_effect(env: EnvUnderTest) -> bool:
    """Return True if different actions give different rows."""
    with env.make() as one, env.make() as other:
        rollouts = RandomRollout(one, seed=1), RandomRollout(other, seed=2)
        for _ in env.steps(TRIED):
            if first_difference(*(rollout.step() for rollout in rollouts)):
                return True
    return False
