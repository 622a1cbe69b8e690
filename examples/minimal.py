#!/usr/bin/env python
"""PPO with V-trace, prioritised segments and Muon on MLX: the whole algorithm on one page.

    python examples/minimal.py cartpole --train.total-timesteps 3_000_000

In a few seconds the score rises from 7 to 197, of 200. This is PufferLib 4.0's trainer. Where it
differs from the PPO that you know:

- nothing is bootstrapped beyond the last value: the last step's advantage is 0;
- before each minibatch advantages are computed again, of the newest values and of the newest
  ratios, clipped as in V-trace (``advantages``);
- a minibatch is S agents with all T steps, drawn by the size of their advantages (``draw``);
- the optimizer is Muon: momentum, orthogonalised (``puffer_mlx/ppo/optimizers/muon``).

Row t of the buffer holds what *arrived together*, observation t with the reward and the terminal of
action t - 1, and what was chosen from it: action t, its log-probability, and the value.

A test compares the weights with those of ``Trainer``: equal to the bit where it acts through MLX
too. ``Trainer`` also acts in C, reports, saves and resumes. The command line is in
``minimal_command.py``, which refuses options that this page doesn't have.
"""

import sys
import time
from functools import partial

from minimal_command import report, run

from puffer_mlx.ops import discount
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.ppo import optimizers, priority
from puffer_mlx.ppo.schedules import annealed
from puffer_mlx.rollout.buffer import RolloutBuffer

# isort: split
import mlx.core as mx  # after puffer_mlx, which gives it a fast BLAS
import numpy as np


def collect(buffer, environments, policy, act, weights, state, noise):
    """Fill the buffer with T steps of N agents; returns the recurrent state after them."""
    buffer.begin(buffer)  # row T of the rollout before becomes row 0
    for t in range(buffer.horizon):
        row = buffer.shards(1)[t][0]  # what arrived, and where choices are written
        seen, legal, not_done = row.observations, row.mask, policy.not_done(row.terminals)
        actions, logprobs, values, state = act(weights, seen, state, noise[t], legal, not_done)
        chosen = mx.concatenate([actions.T, logprobs[None], values[None]])  # (heads + 2, N)
        mx.eval(chosen, state)
        buffer.record(row, np.asarray(chosen))
        environments.send(0, buffer.taken[t][0], buffer.outputs[t + 1][0])
        environments.wait(0)  # it wrote row t + 1: observations, rewards, terminals, masks
    return state


def advantages(values, rewards, terminals, ratios, final_observations, settings):
    """Generalised advantage estimation with V-trace's clipped ratios; all arrays are (T, N).

    ``ratios``: new over old probabilities of the actions. ``final_observations``: 1 at
    a terminated episode's last observation, 2 at a truncated one's; None if the environments don't
    report last observations.
    """
    rewards = mx.clip(rewards, -settings.reward_clip, settings.reward_clip)
    ratio = ratios[:-1] if settings.vtrace else 1.0
    rho, c = mx.minimum(ratio, settings.vtrace_rho_clip), mx.minimum(ratio, settings.vtrace_c_clip)
    going = 1 - terminals[1:]  # 0 where action t ended the episode
    if final_observations is not None:  # the value of a truncated episode's last observation counts
        ended = final_observations == 1 if settings.bootstrap_truncated else final_observations > 0
        going = going * (1 - ended[1:])
    bootstrap = settings.gamma * values[1:] * going - values[:-1]
    delta = rho * (rewards[1:] + bootstrap)
    if settings.advantage == "S":  # upstream's form on CPUs
        delta = rho * rewards[1:] + bootstrap
    if (
        final_observations is not None
    ):  # an action that is chosen from a last observation has no effect
        delta = mx.where(final_observations[:-1] > 0, 0, delta)
    decay = (settings.gamma * settings.gae_lambda) * c * going
    return discount(delta, decay)  # from adv[T-1] = 0 back: adv[t] = delta[t] + decay[t] adv[t+1]


def draw(buffer, adv, values, uniforms, beta, settings):
    """Draw S agents, those with large advantages more often and with less weight; gather them."""
    T = buffer.horizon
    rows, weight = priority.choose(adv, uniforms, beta, settings.prio_alpha)  # (S,), (S,)
    weight = mx.broadcast_to(weight, (T, rows.size))
    if buffer.final_observations is not None:
        weight = mx.where(buffer.final_observations[:T, rows] > 0, 0, weight)
    masks = None if buffer.masks is None else buffer.masks[:T, rows]
    arrived = buffer.observations[:T, rows], buffer.terminals[:T, rows], masks
    chosen = buffer.actions[:, rows], buffer.logprobs[:, rows], values[:, rows]
    return rows, (*arrived, *chosen, adv[:, rows], weight)


def loss(weights, minibatch, ent_coef, policy, settings):
    """PPO's loss on T steps of S agents, with the new ratios and values (T, S) and statistics."""
    observations, terminals, masks, actions, old_logprob, old_value, adv, weight = minibatch
    T, S = terminals.shape
    state, not_done = policy.initial_state(S), policy.not_done(terminals)
    outputs, value, _ = policy.scan(weights, observations, state, not_done)
    actions, masks = (None if a is None else a.reshape(T * S, -1) for a in (actions, masks))
    logprob, entropy = policy.distribution.log_prob_entropy(outputs, actions, masks)
    logprob, value = logprob.reshape(T, S), value.reshape(T, S)

    # The policy's loss: clipped ratios, normalised advantages, weighted by the segment.
    logratio = logprob - old_logprob
    ratio = mx.exp(logratio)
    clipped = mx.clip(ratio, 1 - settings.clip_coef, 1 + settings.clip_coef)
    gain = weight * ((adv - mx.mean(adv)) / (mx.sqrt(mx.var(adv, ddof=1)) + 1e-8))
    policy_loss = mx.mean(mx.maximum(-gain * clipped, -gain * ratio))

    # The value's loss, of the worse of the value and the value moved by at most vf_clip_coef.
    target = old_value + adv
    moved = old_value + mx.clip(value - old_value, -settings.vf_clip_coef, settings.vf_clip_coef)
    value_loss = 0.5 * mx.mean(mx.maximum(mx.square(moved - target), mx.square(value - target)))

    entropy = mx.mean(entropy)
    total = policy_loss + settings.vf_coef * value_loss - ent_coef * entropy
    clipfrac = mx.mean(mx.abs(ratio - 1) > settings.clip_coef)
    kl = mx.mean(ratio - 1 - logratio)
    statistics = {"policy": policy_loss, "value": value_loss, "entropy": entropy}
    statistics |= {"kl": kl, "clipfrac": clipfrac}
    return total, ratio, value, statistics


def train(config, environments):
    """Train from the seed to the end, a line for each epoch; returns the weights."""
    settings, E, K, S = config.train, config.epochs, config.minibatches, config.segments
    T, N = settings.horizon, config.vec.total_agents
    policy = configured_policy(environments.spec, config)
    act = mx.compile(policy.act)
    gradient = mx.compile(mx.value_and_grad(partial(loss, policy=policy, settings=settings)))
    init, key = mx.random.split(mx.random.key(config.base.seed))
    weights = policy.init(init)
    optimizer = optimizers.from_config(config)
    step = partial(optimizer.step, **optimizer.hyperparameters(settings))
    optimizer_state, state = optimizer.init(weights), policy.initial_state(N)
    buffer = RolloutBuffer(environments.spec, T, N, 1, environments.final_observations)
    buffer.reset(environments)
    for epoch in range(E):
        began = time.perf_counter()
        key, noise_key = mx.random.split(key)
        noise = policy.distribution.noise(noise_key, (T, N))  # (T, N, heads)
        state = policy.initial_state(N) if config.base.reset_state else state
        state = collect(buffer, environments, policy, act, weights, state, noise)

        rate = settings.lr_schedule if settings.anneal_lr else "constant"
        lr = annealed(rate, settings.learning_rate, settings.min_lr_ratio, epoch, E)
        bonus = "cosine" if settings.anneal_ent_coef else "constant"
        ent_coef = annealed(bonus, settings.ent_coef, settings.min_ent_coef_ratio, epoch, E)
        beta = priority.annealed_beta(settings.prio_beta0, settings.prio_alpha, epoch, E)
        key, draw_key = mx.random.split(key)
        uniforms = 1 - mx.random.uniform(shape=(K, S), key=draw_key)  # (0, 1]
        values, ratios, history = buffer.values, mx.ones((T, N)), []
        rewards, terminals = buffer.rewards[:T], buffer.terminals[:T]
        final_observations = (
            None if buffer.final_observations is None else buffer.final_observations[:T]
        )
        for k in range(K):
            adv = advantages(values, rewards, terminals, ratios, final_observations, settings)
            rows, batch = draw(buffer, adv, values, uniforms[k], mx.array(beta), settings)
            (total, ratio, value, statistics), grads = gradient(weights, batch, mx.array(ent_coef))
            weights, optimizer_state, _ = step(weights, grads, optimizer_state, total, mx.array(lr))
            column = mx.broadcast_to(rows[None], (T, S))  # the next minibatch sees these:
            values = mx.put_along_axis(values, column, value, axis=1)
            ratios = mx.put_along_axis(ratios, column, ratio, axis=1)
            mx.eval(weights, optimizer_state, values, ratios, statistics)
            history.append(statistics)

        report((epoch + 1) * N * T, N * T / (time.perf_counter() - began), environments, history)
    return weights


if __name__ == "__main__":
    sys.exit(run(train, sys.argv[1:]))
