"""Check an environment's observations, rewards and actions."""

import numpy as np

from puffer_mlx.check.env.environment import EnvUnderTest, RandomRollout
from puffer_mlx.check.env.reproducibility import first_row_difference
from puffer_mlx.check.items import (
    Findings,
    fail,
    format_indices,
    format_number,
    format_percent,
    ok,
    warn,
)
from puffer_mlx.config.compatibility import ZERO_OBSERVATIONS_OF_5

MAX_OBSERVATION = 10.0  # networks learn badly from larger values
MIN_REWARD = 1e-3  # smaller rewards hardly change the loss
MAX_STEPS_TO_EFFECT = 300  # until different actions must have changed a row

FINITE_HINT = (
    "avoid divisions by 0, roots of negative numbers, and values that grow without a limit"
)


def check_spaces(env: EnvUnderTest) -> Findings:
    """Return a finding that describes an environment's observations and actions. Never fails."""
    spec = env.full.spec
    agents_each = env.agents_each
    if spec.observation_shape:
        h, w, c = spec.observation_shape
        observation = f"an image of {h} x {w} pixels with {c} channel{'s' * (c > 1)}"
    else:
        count = spec.observation_size
        observation = f"{count:,} number{'s' * (count > 1)}"
        for h, w, c in (image_part.shape for image_part in spec.image_parts):
            observation += f", an image of {h} x {w} x {c} among them"
    sizes = spec.action.sizes
    if spec.action.continuous:
        action = f"chooses {len(sizes)} continuous number{'s' * (len(sizes) > 1)}"
    elif len(sizes) == 1:
        action = f"chooses one of {sizes[0]} actions"
    else:
        action = f"makes {len(sizes)} choices, one of {', one of '.join(map(str, sizes))}"
    masks = "; a mask says which are legal" if spec.mask_size else ""
    shared = (
        "" if agents_each == 1 else f"; {format_number(agents_each)} agents share an environment"
    )
    return [
        ok(f"an agent sees {observation} ({spec.observation_dtype}) and {action}{masks}{shared}")
    ]


def check_observations(env: EnvUnderTest) -> Findings:
    """Check that an environment's observations are finite, vary, and have a suitable scale."""
    observed = env.observed
    spec = env.full.spec
    if observed.not_finite:
        step, agent, element = observed.not_finite
        name = f"observation[{element}] of agent {agent}"
        return [fail(f"{name} is not finite (NaN or infinite) after {step} steps", FINITE_HINT)]
    pixels = np.full(spec.observation_size, bool(spec.observation_shape))
    for image_part in spec.image_parts:
        pixels[image_part.start : image_part.stop] = True
    same = observed.low == observed.high
    if same.all():
        text = f"never change: every agent sees the same in all {observed.steps:,} steps"
        return [fail(text, "write the observations in reset and in every step")]
    low, high = observed.low.min(), observed.high.max()
    findings = [ok(f"from {format_number(low)} to {format_number(high)}, all finite")]
    # The observation elements that stay 0 with this option, as in PufferLib 5.0.
    key, left_at_0 = ZERO_OBSERVATIONS_OF_5.get(env.config.env_name, ("", ()))
    if env.config.env.get(key):
        same[[*left_at_0]] = False
    if constant := np.flatnonzero(same & ~pixels).tolist():
        text = f"{format_indices(constant)} never changed ({spec.observation_size} numbers in all)"
        hint = (
            "leave out useless numbers, or check that they are written; numbers that change only"
            " for good players are fine"
        )
        findings.append(warn(text, hint))
    beyond = np.maximum(-observed.low, observed.high) > MAX_OBSERVATION
    large_elements = np.flatnonzero(beyond & ~pixels).tolist()
    if large_elements and not env.training_config.vec.normalize_observations:
        text = (
            f"{format_indices(large_elements)} went beyond ±{MAX_OBSERVATION:g}"
            f" ({spec.observation_size} numbers in all)"
        )
        hint = "scale them to about -1 to 1, or --vec.normalize-observations 1"
        if spec.observation_dtype == np.uint8:
            hint = "the network gets bytes unscaled: write floats of about -1 to 1 instead"
        findings.append(warn(text, hint))
    return findings


def check_rewards(env: EnvUnderTest) -> Findings:
    """Check that an environment's rewards are finite, that some occur, and none are clipped."""
    rewards = np.stack(env.observed.rewards)
    not_finite = np.argwhere(~np.isfinite(rewards))
    if len(not_finite):
        step, agent = not_finite[0]
        text = f"agent {agent}'s reward is not finite (NaN or infinite) after {step + 1} steps"
        return [fail(text, FINITE_HINT)]
    if not rewards.any():
        hint = (
            "if only good players are rewarded, add rewards for progress: otherwise training can't"
            " start"
        )
        return [warn(f"always 0 in {rewards.size:,} random steps", hint)]
    nonzero = format_percent(np.count_nonzero(rewards) / rewards.size)
    span = f"{format_number(rewards.min())} to {format_number(rewards.max())}"
    findings = [ok(f"from {span}, not 0 in {nonzero} of steps")]
    largest = float(np.abs(rewards).max())
    clip = env.config.train.reward_clip
    if env.training_config.vec.normalize_rewards:
        return findings
    if clipped_fraction := (np.abs(rewards) > clip).mean():
        text = f"{format_percent(clipped_fraction)} of rewards are beyond ±{clip:g} and are clipped"
        hint = (
            "scale them in the environment, or --vec.normalize-rewards 1, or --train.reward-clip"
            f" {format_number(largest).replace(',', '')}"
        )
        findings.append(warn(f"{text} (train.reward_clip)", hint))
    elif largest < MIN_REWARD:
        hint = "scale the largest rewards to about 1, or --vec.normalize-rewards 1"
        findings.append(warn(f"none is larger than {format_number(largest)}", hint))
    return findings


def check_actions(env: EnvUnderTest) -> Findings:
    """Check that an environment's actions have an effect, and masks leave a legal choice."""
    observed = env.observed
    spec = env.full.spec
    if observed.no_legal_choice:
        step, agent, head = observed.no_legal_choice
        text = f"the mask of agent {agent} allows no choice of head {head} after {step} steps"
        hint = "leave at least one legal choice in every row, also after an episode's end"
        return [fail(text, hint)]
    if not actions_have_effect(env):
        text = "no effect: agents that acted differently had the same observations and rewards"
        hint = "read the actions in step. In C they are floats with integer values, one per head"
        return [fail(text, hint)]
    sizes = ", ".join(map(str, spec.action.sizes))
    text = f"all choices were tried (sizes {sizes}), and they have an effect"
    if spec.action.continuous:
        text = "random actions from N(0, 1) were accepted, and have an effect"
    findings = [ok(text)]
    if observed.masked:
        forbidden = format_percent(observed.masked / observed.choices)
        findings.append(ok(f"masks forbid {forbidden} of choices"))
    elif spec.mask_size:
        hint = "remove the masks if all choices are always legal: they cost memory and time"
        findings.append(warn("the masks never forbid anything", hint))
    return findings


def actions_have_effect(env: EnvUnderTest) -> bool:
    """Return True if different actions in an environment give different observations or rewards."""
    with env.make() as one, env.make() as other:
        rollouts = RandomRollout(one, seed=1), RandomRollout(other, seed=2)
        for _ in env.steps(MAX_STEPS_TO_EFFECT):
            if first_row_difference(*(rollout.step() for rollout in rollouts)):
                return True
    return False
