"""The steps of a minibatch, as functions that are compiled in one place.

PufferLib 4.0's (``puffer4``):

    targets:    advantages over all rows
    draw:       priorities -> S rows and what is compared with them
    gather:     the rows' observations, actions, masks and terminals
    gradients:  forward over (T, S), loss, gradients
    optimise:   clip, the optimizer's step; nothing if the loss or a gradient isn't finite
    write_back: the rows' new ratios and values

All run for every minibatch: advantages change within an epoch once a row has been trained on, as
upstream.

5.0's (``puffer5``), whose minibatch is the next S of the N rows, and which writes nothing back:

    split:      once an epoch: all rows, S by S; of each S what the forward pass reads, and what
                the result is compared with
    gradients:  forward over (T, S) from the rollout's recurrent states, advantages of the values
                that it gives, loss, gradients
    optimise:   as above

PPO as the field has it (``ppo``), which writes nothing back either:

    targets:    once an epoch: advantages of the rollout's values
    shuffle:    once a pass: all samples in a random order (all segments, if the network has a
                memory), minibatch by minibatch: ``ppo/shuffle.py``
    gradients:  forward, loss, which normalises the advantages, gradients
    optimise:   as above

or ``epoch``, all minibatches in one operation: ``ppo/small_networks``.

``act`` is the rollout's; ``logprobs`` is the forward pass alone, for comparing the two.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Train
from puffer_mlx.ops import put_rows, split_rows, take_rows, take_targets
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import optimizers, precision, priority, small_networks
from puffer_mlx.ppo.advantage import advantages
from puffer_mlx.ppo.closed_form import operation as closed_form
from puffer_mlx.ppo.loss import METRICS, Coefficients, Minibatch
from puffer_mlx.ppo.shuffle import Fields, samples, segments
from puffer_mlx.system.backend import backend


class Inputs(NamedTuple):
    """What the forward pass reads of S rows."""

    observations: mx.array
    """(T, S, D)."""
    actions: mx.array
    """(T*S, heads) float32, time-major."""
    masks: mx.array | None
    """(T*S, A) uint8, or None."""
    keep: mx.array | None
    """(T, S), what states are multiplied by before each step (``Policy.keep``), or None."""


class Segments(NamedTuple):
    """What puffer5 compares S rows with, all float32."""

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


class Section(NamedTuple):
    """A minibatch of puffer5 or ppo: T steps of S rows, or M shuffled samples as one step of M."""

    inputs: Inputs
    compared: Segments | Minibatch
    """What the forward pass is compared with, by puffer5 and by ppo."""
    state: Any
    """The network's, with which the rows' rollout began; None: its initial one."""


class Executables(NamedTuple):
    """The functions of a run, compiled where that pays; which ones an algorithm calls: see above.

    ``act`` and ``step`` are for the rollout's device, the others for the learner's. Where another
    thread builds graphs at the same time, ``devices.building`` is held during each call.
    """

    act: Callable[..., Any]
    step: Callable[..., Any]
    targets: Callable[..., Any]
    draw: Callable[..., Any]
    split: Callable[..., Any]
    shuffle: Callable[..., Any]
    gather: Callable[..., Any]
    gradients: Callable[..., Any]
    optimise: Callable[..., Any]
    write_back: Callable[..., Any]
    logprobs: Callable[..., Any]
    epoch: Callable[..., Any]


def compile_update(policy: Policy, train: Train) -> Executables:
    """Make a run's functions; everything that is compiled is compiled here.

    Numbers that change during a run (schedules, random draws) are arguments; those that don't are
    constants of the compiled code.
    """

    def act(weights, observations, state, noise, mask, terminals):
        """One step of a group.

        Returns:
            Actions, log-probabilities and values (heads + 2, n) float32, in one array because the
            host reads them; the network's state.
        """
        keep = policy.keep(terminals)
        actions, logprobs, values, state = policy.act(
            weights, observations, state, noise, mask, keep
        )
        return mx.concatenate([actions.T, logprobs[None], values[None]]), state

    def step(weights, observations, state, terminals):
        """``act`` without choosing actions, to measure the policy's part of its time."""
        return policy.step(weights, observations, state, policy.keep(terminals))

    weighed = train.algorithm != "ppo"  # by importance ratios; PPO's advantages have none
    estimate = partial(
        advantages,
        bootstrap=train.bootstrap_truncated,
        gamma=train.gamma,
        gae_lambda=train.gae_lambda,
        rho_clip=train.vtrace_rho_clip if weighed else 1.0,
        c_clip=train.vtrace_c_clip if weighed else 1.0,
        reward_clip=train.reward_clip,
    )

    def targets(fields: Fields, values, ratios):
        """Advantages (T, N)."""
        T = values.shape[0]
        return estimate(
            values,
            fields["rewards"][:T],
            fields["terminals"][:T],
            ratios if train.vtrace else None,
            finals=None if fields.get("finals") is None else fields["finals"][:T],
            form=train.advantage,
        )

    def draw(fields: Fields, adv, values, uniforms, beta):
        """Draw the minibatch's rows (S,) and their targets."""
        rows, weights = priority.choose(adv, uniforms, beta, train.prio_alpha)
        finals = fields.get("finals")
        return rows, Minibatch(
            *take_targets(fields["logprobs"], values, adv, finals, rows, weights)
        )

    def split(fields: Fields, states: Any) -> list[Section]:
        """All rows in their order, S by S; ``states`` are the network's of all N, or None."""
        (T, N), S = fields["actions"].shape[:2], train.minibatch_size // train.horizon
        fields = {**fields, "keep": policy.keep(fields["terminals"])}
        parts = {n: split_rows(a, S, T) for n, a in fields.items() if a is not None}

        def section(k: int) -> Section:
            steps = {name: own[k] for name, own in parts.items()}
            flat = {name: own.flatten(0, 1) for name, own in steps.items()}
            masks, keep, finals = flat.get("masks"), steps.get("keep"), steps.get("finals")
            came = steps["rewards"], steps["terminals"], finals
            return Section(
                Inputs(steps["observations"], flat["actions"], masks, keep),
                Segments(flat["logprobs"], flat["values"], *came),
                None if states is None else tree_map(lambda a: a[k * S : (k + 1) * S], states),
            )

        return [section(k) for k in range(N // S)]

    def shuffle(
        fields: Fields, adv: mx.array, states: Any, learned: mx.array, order: mx.array
    ) -> list[Section]:
        """A pass's minibatches.

        Args:
            fields: the rollout's.
            adv: (T, N).
            states: the network's, of N agents; None: its initial one, or it has no memory.
            learned: (T, N) float32, 1 for steps that are learned from.
            order: (K, M) int32 of samples; for a network with memory (K, S) of agents.
        """
        if not policy.has_memory:
            picked = samples(fields, adv, order)
            return [Section(_rows_of_one_step(read), batch, None) for read, batch in picked]
        heads = policy.decoder.action.heads

        def section(rows: mx.array) -> Section:
            read, batch, first = segments(fields, adv, learned, states, rows)
            masks, keep = read.get("masks"), policy.keep(read["terminals"])
            masks = None if masks is None else masks.flatten(0, 1)
            actions = read["actions"].reshape(-1, heads)
            return Section(Inputs(read["observations"], actions, masks, keep), batch, first)

        return [section(rows.reshape(-1)) for rows in mx.split(order, len(order))]

    def gather(fields: Fields, rows: mx.array) -> Inputs:
        """What the forward pass reads of the rows."""
        T = fields["actions"].shape[0]
        masks, resets = fields["masks"], policy.reset_on_terminal
        return Inputs(
            take_rows(fields["observations"], rows, T),
            take_rows(fields["actions"], rows, T).reshape(-1, policy.decoder.action.heads),
            None if masks is None else take_rows(masks, rows, T).reshape(-1, masks.shape[-1]),
            policy.keep(take_rows(fields["terminals"], rows, T)) if resets else None,
        )

    def product(weights, observations, keep, state=None):
        """The decoder's weights in the precision of the pass, and its product (A + 1, T*S).

        ``state`` None is the network's initial one.
        """
        low = precision.lower(weights, train.precision)
        y, _ = policy.product(low, observations, state, keep)
        return low["decoder"], y

    coefficients = Coefficients(train.clip_coef, train.vf_coef, train.vf_clip_coef)
    scaled = train.precision == "fp16"

    def differentiated(weights, forward, actions, masks, ent_coef, scale):
        """Gradients, statistics, and the samples' new ratios, values and advantages, each (T*S,).

        ``forward(weights)`` returns the decoder's weights, its product, and the targets.
        """

        def loss(weights):
            low, y, batch = forward(weights)
            settings = coefficients, ent_coef, scale if scaled else None
            made = closed_form.losses(policy.decoder, low, y, actions, masks, batch, *settings)
            return *made, batch.adv

        (_, metrics, *samples), grads = mx.value_and_grad(loss)(weights)
        if scaled:
            grads = tree_map(lambda g: g * (1 / scale), grads)
        return grads, metrics, *samples

    def gradients(weights, observations, actions, masks, keep, batch: Minibatch, ent_coef, scale):
        """Gradients, statistics, and the new ratios and values (T, S) of the rows."""
        shape = observations.shape[:2]

        def forward(weights):
            return *product(weights, observations, keep), batch

        given = actions, masks, ent_coef, scale
        grads, metrics, ratio, value, _ = differentiated(weights, forward, *given)
        return grads, metrics, ratio.reshape(shape), value.reshape(shape)

    def live_gradients(
        weights, observations, actions, masks, keep, segments: Segments, state, ent_coef, scale
    ):
        """Gradients, statistics, and the ratios and advantages (T, S) of the rows.

        ``state`` is the network's, with which the rows' rollout began; None: its initial one.
        """
        shape = observations.shape[:2]

        def forward(weights):
            low, y = product(weights, observations, keep, state)
            fixed, now = tree_map(mx.stop_gradient, low), mx.stop_gradient(y)
            values, ratios = now[-1:].reshape(shape), None
            if train.vtrace:
                logprobs = closed_form.logprobs(policy.decoder, fixed, now, actions, masks)
                ratios = mx.exp(logprobs - segments.old_logprob).reshape(shape)
            old_logprob, old_value, rewards, terminals, finals = segments
            adv = estimate(values, rewards, terminals, ratios, finals=finals)
            return low, y, Minibatch(old_logprob, old_value, adv.reshape(-1))

        given = actions, masks, ent_coef, scale
        grads, metrics, ratio, _, adv = differentiated(weights, forward, *given)
        return grads, metrics, ratio.reshape(shape), adv.reshape(shape)

    def shuffled_gradients(
        weights, observations, actions, masks, keep, batch: Minibatch, state, ent_coef, scale
    ):
        """Gradients, statistics, and the ratios and advantages (T, S) of the rows."""
        shape = observations.shape[:2]

        def forward(weights):
            return *product(weights, observations, keep, state), batch

        given = actions, masks, ent_coef, scale
        grads, metrics, ratio, _, adv = differentiated(weights, forward, *given)
        return grads, metrics, ratio.reshape(shape), adv.reshape(shape)

    its_own = {"puffer4": gradients, "puffer5": live_gradients, "ppo": shuffled_gradients}
    optimizer = optimizers.find(train.optimizer)

    def optimise(weights, state, scaler, grads, metrics, lr):
        """New weights, optimizer's state and scaler; whether (a scalar) the minibatch counted."""
        total = METRICS.index("total")
        loss = metrics[total : total + 1].squeeze(0)  # a view: an index would copy it
        weights, state, ok = optimizer.step(weights, grads, state, loss, lr, train)
        return weights, state, precision.next_scaler(scaler, ok, train.precision), ok

    def logprobs(weights, observations, actions, masks, keep, state):
        """Log-probabilities (T, S) of actions as training computes them."""
        low, y = product(weights, observations, keep, state)
        found = closed_form.logprobs(policy.decoder, low, y, actions, masks)
        return found.reshape(observations.shape[:2])

    # On a CPU only what runs often on large arrays is compiled. A fused kernel takes the compiler
    # 0.4 s, again for each constant in it; compiling the rest (many constants, small arrays) made a
    # first start half a minute longer, for 1 % of the speed. On a GPU the steps are kernels of our
    # own, with nothing to fuse: there compiling saves building their graphs in Python again.
    small = mx.compile if backend() != "cpu" else lambda function: function
    return Executables(
        act=mx.compile(act),
        step=mx.compile(step),
        targets=small(targets),
        draw=small(draw),
        split=small(split),
        shuffle=shuffle,
        gather=small(gather),
        gradients=mx.compile(its_own[train.algorithm]),
        optimise=small(optimise),
        write_back=small(put_rows),
        logprobs=mx.compile(logprobs),
        epoch=small_networks.Epochs(policy, train),
    )


def _rows_of_one_step(read: dict[str, mx.array]) -> Inputs:
    """What the forward pass reads of M samples: M rows of one step."""
    return Inputs(read["observations"][None], read["actions"], read.get("masks"), None)
