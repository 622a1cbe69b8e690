"""PufferLib 5.0's: segments in their order, advantages of the values of the same forward pass.

    split:      once an epoch: all rows, S by S; of each S what the forward pass reads, and what
                the result is compared with
    gradients:  for each minibatch: forward over (T, S) from the rollout's recurrent states,
                advantages of the values that it gives, loss, gradients
    optimise:   the optimizer's step

Nothing is written back.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.config.parts import Facts
from puffer_mlx.ops import split_rows
from puffer_mlx.ops.gpu.launch import indices
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import closed_form, minibatch
from puffer_mlx.ppo.advantage import Discounts
from puffer_mlx.ppo.algorithms import Algorithm, Epoch, Step, discounts, score, scoring
from puffer_mlx.ppo.custom import find_advantages
from puffer_mlx.ppo.gradients import Decoded, Loss, Scored
from puffer_mlx.ppo.loss import Minibatch
from puffer_mlx.ppo.sections import Fields, Inputs, MinibatchInputs, SegmentView
from puffer_mlx.system.devices import building
from puffer_mlx.system.plain_functions import record

FACTS = Facts(
    about="5.0's, segments in their order, advantages of the values of the same forward pass",
    title="PufferLib 5.0's trainer",
    release="5.0",
    layer="puffer5.ini",
    unread=("train.prio_alpha", "train.prio_beta0", "train.advantage"),
    limits=(1e6, -20.0, 2.0),
    in_order=True,
    lags=True,
    evaluates_apart=True,
    saves_after=1,
)


class Segments(NamedTuple):
    """Targets of S segments, all float32."""

    old_logprob: mx.array
    """(T*S,), time-major; of the rollout's policy, as the next."""
    old_value: mx.array
    """(T*S,)."""
    rewards: mx.array
    """(T, S)."""
    terminals: mx.array
    """(T, S)."""
    finals: mx.array | None
    """(T, S), as of the rollout, or None."""


def make(policy: Policy, config: Config, agents: int, one_cpu: bool) -> Algorithm:
    """See ``algorithms.make``."""
    train, numbers, function = config.train, discounts(config.train), find_advantages(config)
    scored, metrics = score(policy, config, live=True)
    compared = scoring(config, function, numbers, train.vtrace)
    in_one = partial(minibatch.supports_fused, policy, train.precision, compared, train.one_launch)
    return Algorithm(
        minibatches=partial(_minibatches, config.minibatches, config.segments, in_one),
        loss=partial(live_loss, policy, scored, numbers, train.vtrace, function),
        metrics=metrics,
        scoring=compared,
        steps={"split": Step(partial(_split, policy), "train_gather")},
        normalises=False,
    )


def live_loss(
    policy: Policy,
    scored: Loss,
    numbers: Discounts,
    vtrace: bool,
    function: Callable[..., mx.array],
    now: Decoded,
    segments: Segments,
    ent_coef: mx.array,
    scale: mx.array | None,
) -> Scored:
    """A loss of advantages of the values of the same forward pass; no gradient flows through them.

    Args:
        policy: what is trained.
        scored: the loss: see ``gradients.clipped_loss``, behind its first two arguments.
        numbers: of the advantages.
        vtrace: whether they are clipped by the actions' new probabilities.
        function: gives them: ``advantage.advantages``, or one of the user's own.
        now: the decoded minibatch.
        segments: what it is compared with.
        ent_coef: the weight of the entropy bonus, a scalar.
        scale: what the loss is multiplied by, a scalar; None is 1.
    """
    decoder, y = tree_map(mx.stop_gradient, now.decoder), mx.stop_gradient(now.y)
    values, ratios = y[-1:].reshape(now.shape), None
    if vtrace:
        acted = policy.decoder, decoder, y, now.actions, now.masks
        ratios = mx.exp(closed_form.logprobs(*acted) - segments.old_logprob).reshape(now.shape)
    old_logprob, old_value, rewards, terminals, finals = segments
    adv = function(values, rewards, terminals, ratios, finals=finals, **numbers._asdict())
    return scored(now, Minibatch(old_logprob, old_value, adv.reshape(-1)), ent_coef, scale)


def _minibatches(
    K: int, S: int, in_one: Callable[[], bool], epoch: Epoch
) -> Iterator[MinibatchInputs]:
    """Sections of S agents in their order, and from the first again.

    If K isn't a multiple of their number, the first ones are trained on once more than the others.
    A section leaves the list when it comes for the last time.
    """
    fields, states = epoch.fields, epoch.states()
    strips, whole, T = in_one(), fields["observations"], len(fields["actions"])  # type: ignore
    with building:
        whole = whole[:T]  # type: ignore
    if strips:  # it reads each section's where they are
        fields = {**fields, "observations": None}
    sections = epoch.run("split", fields, states, S)
    if strips:
        with building:
            rows = mx.split(indices(whole.shape[1]), len(sections))
        sections = [
            each._replace(inputs=each.inputs._replace(observations=SegmentView(whole, own)))
            for each, own in zip(sections, rows, strict=True)
        ]
    count = len(sections)
    for k in range(K):
        section = sections.pop(0)
        if k + count < K:  # it comes again; else its memory is free for the next ones
            sections.append(section)
        yield section


def _split(policy: Policy, fields: Fields, states: Any, S: int) -> list[MinibatchInputs]:
    """All rows of a rollout in their order, S by S.

    Args:
        policy: what is trained.
        fields: the rollout's.
        states: the network's, of N agents; None: its initial one.
        S: of the N agents, which it divides.
    """
    T, N = fields["actions"].shape[:2]
    fields = {**fields, "keep": policy.keep(fields["terminals"])}
    parts = {n: split_rows(a, S, T) for n, a in fields.items() if a is not None}

    def section(k: int) -> MinibatchInputs:
        steps = {name: own[k] for name, own in parts.items()}
        flat = {name: own.flatten(0, 1) for name, own in steps.items()}
        masks, keep, finals = flat.get("masks"), steps.get("keep"), steps.get("finals")
        came = steps["rewards"], steps["terminals"], finals
        return MinibatchInputs(
            Inputs(steps.get("observations"), flat["actions"], masks, keep),  # type: ignore
            Segments(flat["logprobs"], flat["values"], *came),
            None if states is None else tree_map(lambda a: a[k * S : (k + 1) * S], states),
        )

    return [section(k) for k in range(N // S)]


record(__name__)
