"""Items that check observations, rewards and actions."""

import numpy as np

from puffer_mlx.check.env.findings import Findings, fail, number, numbers, ok, percent, warn
from puffer_mlx.check.env.random_play import Table
from puffer_mlx.check.env.subject import Subject
from puffer_mlx.config.compatibility import LEFT_AT_0

LARGE = 10.0  # larger observations are bad inputs for a network
SMALL = 1e-3  # smaller rewards vanish among the other losses
TRIED = 300  # steps within which actions must have an effect

FINITE = (
    "divide by nothing that can be 0, take no root of what can be negative, and limit what grows"
)


def spaces(subject: Subject) -> Findings:
    """Report the spaces of observations and actions."""
    spec, each = subject.whole.spec, subject.whole.agents_each
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
    yield ok(f"an agent sees {seen} ({spec.observation_dtype}) and {done}{masks}{shared}")


def observations(subject: Subject) -> Findings:
    """Check that observations are finite, vary, and have a scale that suits a network."""
    notes = subject.notes
    spec = subject.whole.spec
    if notes.wrong:
        step, agent, element = notes.wrong
        yield fail(
            f"number {element} of agent {agent}'s observation is not finite (NaN or infinite) after"
            f" {step} steps",
            FINITE,
        )
        return
    low, high = float(notes.low.min()), float(notes.high.max())
    pixels = np.full(spec.observation_size, bool(spec.observation_shape))
    for part in spec.image_parts:
        pixels[part.start : part.stop] = True
    same = notes.low == notes.high
    if same.all():
        yield fail(
            f"never change: every agent sees the same in all {notes.steps:,} steps",
            "write them in reset and in every step",
        )
        return
    yield ok(f"from {number(low)} to {number(high)}, all finite")
    key, left_at_0 = LEFT_AT_0.get(subject.config.env_name, ("", ()))
    if subject.config.env.get(key):
        same[[*left_at_0]] = False
    if constant := np.flatnonzero(same & ~pixels).tolist():
        yield warn(
            f"{numbers(constant)} of {spec.observation_size} never changed",
            "leave out what is of no use, or see whether they are written at all; what only good"
            " players see is fine",
        )
    large = np.flatnonzero((np.maximum(-notes.low, notes.high) > LARGE) & ~pixels).tolist()
    if large and not subject.normalized[0]:
        yield warn(
            f"{numbers(large)} of {spec.observation_size} went beyond ±{LARGE:g}",
            "bring them to about -1 to 1, or --vec.normalize-observations 1"
            if spec.observation_dtype != np.uint8
            else "the network takes bytes as they are: write floats of about -1 to 1 instead",
        )


def rewards(subject: Subject) -> Findings:
    """Check that rewards are finite, occur, and aren't clipped."""
    notes = subject.notes
    clip = subject.config.train.reward_clip
    if notes.wrong_reward:
        step, agent = notes.wrong_reward
        yield fail(f"agent {agent}'s is not finite (NaN or infinite) after {step} steps", FINITE)
        return
    total = notes.steps * notes.agents
    if not notes.rewarded:
        yield warn(
            f"always 0 in {total:,} random steps",
            "if a good player gets some: reward a part of the way too, or training has nothing to"
            " begin with",
        )
        return
    low, high = notes.reward_low, notes.reward_high
    often = notes.rewarded / total
    yield ok(f"from {number(low)} to {number(high)}; {percent(often)} of steps give some")
    if subject.normalized[1]:
        return
    if notes.clipped:
        yield warn(
            f"{percent(notes.clipped / total)} of them are beyond ±{clip:g} and clipped to it"
            " (train.reward_clip)",
            f"scale them in the environment, or --vec.normalize-rewards 1, or --train.reward-clip"
            f" {number(max(-low, high)).replace(',', '')}",
        )
    elif max(-low, high) < SMALL:
        yield warn(
            f"none is larger than {number(max(-low, high))}",
            "make the best ones about 1, or --vec.normalize-rewards 1",
        )


def actions(subject: Subject) -> Findings:
    """Check that actions have an effect and masks leave a legal choice."""
    notes = subject.notes
    spec = subject.whole.spec
    sizes = ", ".join(map(str, spec.action.sizes))
    if notes.nothing_legal:
        step, agent, head = notes.nothing_legal
        yield fail(
            f"the mask of agent {agent} allows no choice of head {head} after {step} steps",
            "leave at least one legal in every row, also in those of finished episodes",
        )
        return
    steps = effect(subject)
    if steps is None:
        yield fail(
            "change nothing: two agents that acted differently always saw and got the same",
            "read actions in step: floats that hold whole numbers in C, one for each head",
        )
        return
    if spec.action.continuous:
        yield ok("random ones from N(0, 1) were accepted, and change what happens")
    else:
        yield ok(f"all choices were tried (sizes {sizes}), and they change what happens")
    if spec.mask_size:
        if notes.masked:
            yield ok(f"masks forbid {percent(notes.masked / notes.choices)} of choices")
        else:
            yield warn(
                "the masks never forbid anything",
                "leave them out if there is nothing to forbid: they cost memory and time",
            )


def effect(subject: Subject) -> int | None:
    """Return the first step at which different actions gave different rows, or None."""
    rng = np.random.default_rng(1)
    with subject.make() as one, subject.make() as other:
        tables = Table(one), Table(other)
        for step in subject.steps(TRIED):
            first, second = (table.step(table.legal(rng)) for table in tables)
            for mine, its in zip(first, second, strict=True):
                if mine is not None and its is not None and not np.array_equal(mine, its):
                    return step
    return None
