"""One minibatch, as functions of values that are compiled in one place.

    prepare:   advantages over all rows -> priorities -> draw S rows and their targets
    gather:    the rows' observations, actions, masks and terminals
    gradients: forward over (T, S), loss, gradients
    apply:     clip, Muon, write the rows' new ratios and values back

All four run for every minibatch: advantages change within an epoch once a row has been trained on,
as upstream.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx import priority
from puffer_mlx.advantage import advantages
from puffer_mlx.config import Train
from puffer_mlx.loss import Minibatch, ppo_loss
from puffer_mlx.ops import take_rows
from puffer_mlx.optim import clip_by_global_norm, muon
from puffer_mlx.policy.policy import Policy

Fields = dict[str, Any]  # the slot's arrays by name; masks may be None


class Executables(NamedTuple):
    """The functions of a run, compiled where that pays."""

    act: Callable[..., Any]
    prepare: Callable[..., Any]
    gather: Callable[..., Any]
    gradients: Callable[..., Any]
    apply: Callable[..., Any]


def compile_update(policy: Policy, train: Train) -> Executables:
    """Make a run's functions; everything that is compiled is compiled here.

    Numbers that change during a run (schedules, random draws) are arguments; those that don't are
    constants of the compiled code.
    """

    def act(weights, observations, state, noise, mask, terminals):
        """One step of a group; what the host reads is one array.

        Returns:
            (heads + 2, n) float32, to be read by the host in one piece; the network's state.
        """
        keep = policy.keep(terminals)
        actions, logprobs, values, state = policy.act(
            weights, observations, state, noise, mask, keep
        )
        return mx.concatenate([actions.T, logprobs[None], values[None]]), state

    def prepare(fields: Fields, values, ratios, uniforms, beta):
        """Draw the minibatch's rows (S,) and their targets."""
        T = values.shape[0]
        adv = advantages(
            values,
            mx.clip(fields["rewards"][:T], -1, 1),
            fields["terminals"][:T],
            ratios,
            gamma=train.gamma,
            gae_lambda=train.gae_lambda,
            rho_clip=train.vtrace_rho_clip,
            c_clip=train.vtrace_c_clip,
            form=train.advantage,
        )
        p = priority.probabilities(adv, train.prio_alpha)
        rows = priority.draw(p, uniforms)
        weight = mx.broadcast_to(priority.importance(p, rows, beta), (T, rows.shape[0]))
        return rows, Minibatch(
            old_logprob=take_rows(fields["logprobs"], rows, T).reshape(-1),
            old_value=take_rows(values, rows, T).reshape(-1),
            adv=take_rows(adv, rows, T).reshape(-1),
            weight=weight.reshape(-1),
        )

    def gather(fields: Fields, rows: mx.array):
        """What the forward pass reads of the rows.

        Returns:
            Observations (T, S, D), actions (T*S, heads), masks (T*S, A) or None, and terminals (T,
            S), or None where the policy doesn't reset.
        """
        T = fields["actions"].shape[0]
        masks = fields["masks"]
        return (
            take_rows(fields["observations"], rows, T),
            take_rows(fields["actions"], rows, T).reshape(-1, policy.decoder.action.heads),
            None if masks is None else take_rows(masks, rows, T).reshape(-1, masks.shape[-1]),
            take_rows(fields["terminals"], rows, T) if policy.reset_on_terminal else None,
        )

    def gradients(weights, observations, actions, masks, terminals, batch: Minibatch, ent_coef):
        """Gradients, statistics, and the new ratios and values (T, S) of the rows."""
        T, S = observations.shape[:2]

        def loss(weights):
            keep = None if terminals is None else policy.keep(terminals)
            state = policy.initial_state(S)
            outputs, value, _ = policy.scan(weights, observations, state, keep)
            logprob, entropy = policy.distribution.log_prob_entropy(outputs, actions, masks)
            total, metrics = ppo_loss(
                logprob,
                entropy,
                value,
                batch,
                ent_coef=ent_coef,
                clip_coef=train.clip_coef,
                vf_coef=train.vf_coef,
                vf_clip_coef=train.vf_clip_coef,
            )
            return total, metrics, mx.exp(logprob - batch.old_logprob), value

        (_, metrics, ratio, value), grads = mx.value_and_grad(loss)(weights)
        return grads, metrics, ratio.reshape(T, S), value.reshape(T, S)

    def apply(weights, momentum, grads, lr, values, ratios, rows, new_values, new_ratios):
        """New weights and momentum; values and ratios (T, N) with the rows' columns replaced."""
        grads, _ = clip_by_global_norm(grads, train.max_grad_norm)
        weights, momentum = muon(weights, grads, momentum, lr=lr, beta=train.beta1)
        column = mx.broadcast_to(rows[None], new_values.shape)
        values = mx.put_along_axis(values, column, new_values, axis=1)
        ratios = mx.put_along_axis(ratios, column, new_ratios, axis=1)
        return weights, momentum, values, ratios

    # Only what runs often on large arrays is compiled. Each fused kernel costs its compiler 0.4 s
    # on a CPU and seconds on a GPU, once for each constant in it: compiling `prepare` and `apply`
    # (many constants, small arrays) made a first start half a minute longer on a CPU and minutes on
    # a GPU, for 1 % of the speed.
    return Executables(mx.compile(act), prepare, gather, mx.compile(gradients), apply)
