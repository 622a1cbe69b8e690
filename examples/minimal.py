#!/usr/bin/env python
"""Train with PPO, V-trace, prioritised segments and Muon on MLX: the entire algorithm on one page.

    python examples/minimal.py cartpole --train.total-timesteps 3_000_000

In a few seconds, the score rises from 7 to 197, of 200 possible. The algorithm is PufferLib 4.0's,
which differs from standard PPO in four points:

- The last step's advantage is 0, because its reward is unknown.
- Advantages are computed again before each minibatch, from the newest values and the newest ratios,
  clipped as in V-trace (``advantages``).
- A minibatch consists of S agents with all T steps. Agents with larger advantages are sampled more
  often (``draw``).
- The optimizer is Muon, which orthogonalises the momentum (``puffer_mlx/ppo/optimizers/muon``).

Row t of the buffer contains observation t, the reward and the terminal of action t - 1, which
arrive together, and then action t with its log-probability and value.

A test compares the final weights with those of ``Trainer``. They are equal to the bit if
``Trainer`` also acts through MLX. In addition, ``Trainer`` acts in C, reports, saves and resumes.
The command line is in ``minimal_command.py``, which refuses options that this page doesn't support.
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
import mlx.core as mx  # after puffer_mlx, which sets a fast BLAS
import numpy as np


def collect(buffer, environments, policy, act, weights, state, noise):
    """Collect a rollout of T steps of N agents. Returns the recurrent state after the last step."""
    buffer.begin(buffer)  # copy row T of the previous rollout to row 0
    for t in range(buffer.horizon):
        row = buffer.step_arrays(1)[t][0]
        observations = row.observations
        not_done = policy.not_done(row.terminals)
        actions, logprobs, values, state = act(
            weights, observations, state, noise[t], row.mask, not_done
        )
        choices = mx.concatenate([actions.T, logprobs[None], values[None]])  # (heads + 2, N)
        mx.eval(choices, state)
        buffer.record(row, np.asarray(choices))
        environments.send(0, buffer.taken[t][0], buffer.outputs[t + 1][0])
        environments.wait(0)  # writes row t + 1: observations, rewards, terminals, masks
    return state


def advantages(values, rewards, terminals, ratios, final_observations, settings):
    """Return advantages: GAE with clipped ratios, as in V-trace. All arrays are (T, N).

    ``ratios``: new over old probabilities of the actions. ``final_observations``: 1 at
    a terminated episode's last observation, 2 at a truncated one's; None if the environments don't
    report last observations.
    """
    rewards = mx.clip(rewards, -settings.reward_clip, settings.reward_clip)
    ratio = ratios[:-1] if settings.vtrace else 1.0
    rho, c = mx.minimum(ratio, settings.vtrace_rho_clip), mx.minimum(ratio, settings.vtrace_c_clip)
    not_done = 1 - terminals[1:]  # 0 where action t ended the episode
    if final_observations is not None:  # the value of a truncated episode's last observation counts
        ended = final_observations == 1 if settings.bootstrap_truncated else final_observations > 0
        not_done = not_done * (1 - ended[1:])
    bootstrap = settings.gamma * values[1:] * not_done - values[:-1]
    delta = rho * (rewards[1:] + bootstrap)
    if settings.advantage == "S":  # the formula of PufferLib's CPU extension
        delta = rho * rewards[1:] + bootstrap
    if (
        final_observations is not None
    ):  # an action that is chosen from a last observation has no effect
        delta = mx.where(final_observations[:-1] > 0, 0, delta)
    decay = (settings.gamma * settings.gae_lambda) * c * not_done
    return discount(delta, decay)  # adv[T-1] = 0; adv[t] = delta[t] + decay[t] adv[t+1]


def draw(buffer, adv, values, uniforms, beta, settings):
    """Sample S agents, and gather their minibatch.

    Agents with large advantages are sampled more often, with smaller weights.
    """
    T = buffer.horizon
    rows, weight = priority.choose_segments(adv, uniforms, beta, settings.prio_alpha)  # (S,), (S,)
    weight = mx.broadcast_to(weight, (T, rows.size))
    if buffer.final_observations is not None:
        weight = mx.where(buffer.final_observations[:T, rows] > 0, 0, weight)
    masks = None if buffer.masks is None else buffer.masks[:T, rows]
    inputs = buffer.observations[:T, rows], buffer.terminals[:T, rows], masks
    outputs = buffer.actions[:, rows], buffer.logprobs[:, rows], values[:, rows]
    return rows, (*inputs, *outputs, adv[:, rows], weight)


def loss(weights, minibatch, ent_coef, policy, settings):
    """Return PPO's loss of a minibatch, the new ratios and values (T, S), and statistics."""
    observations, terminals, masks, actions, old_logprob, old_value, adv, weight = minibatch
    T, S = terminals.shape
    state = policy.initial_state(S)
    not_done = policy.not_done(terminals)
    outputs, value, _ = policy.scan(weights, observations, state, not_done)
    actions, masks = (None if a is None else a.reshape(T * S, -1) for a in (actions, masks))
    logprob, entropy = policy.distribution.log_prob_entropy(outputs, actions, masks)
    logprob = logprob.reshape(T, S)
    value = value.reshape(T, S)

    # Policy loss: clipped ratios, and normalised advantages with a weight per agent.
    logratio = logprob - old_logprob
    ratio = mx.exp(logratio)
    clipped = mx.clip(ratio, 1 - settings.clip_coef, 1 + settings.clip_coef)
    gain = weight * ((adv - mx.mean(adv)) / (mx.sqrt(mx.var(adv, ddof=1)) + 1e-8))
    policy_loss = mx.mean(mx.maximum(-gain * clipped, -gain * ratio))

    # Value loss: the larger error of the new value and of the old one moved by at most
    # vf_clip_coef.
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
    """Train a policy, printing one line per epoch. Returns the weights."""
    settings = config.train
    E, K, S = config.epochs, config.minibatches, config.segments
    T, N = settings.horizon, config.vec.total_agents
    policy = configured_policy(environments.spec, config)
    act = mx.compile(policy.act)
    gradient = mx.compile(mx.value_and_grad(partial(loss, policy=policy, settings=settings)))
    init, key = mx.random.split(mx.random.key(config.base.seed))
    weights = policy.init(init)
    optimizer = optimizers.from_config(config)
    step = partial(optimizer.step, **optimizer.hyperparameters(settings))
    optimizer_state = optimizer.init(weights)
    state = policy.initial_state(N)
    buffer = RolloutBuffer(environments.spec, T, N, 1, environments.final_observations)
    buffer.reset(environments)
    for epoch in range(E):
        began = time.perf_counter()
        key, noise_key = mx.random.split(key)
        noise = policy.distribution.noise(noise_key, (T, N))  # (T, N, heads)
        state = policy.initial_state(N) if config.base.reset_state else state
        state = collect(buffer, environments, policy, act, weights, state, noise)

        schedule = settings.lr_schedule if settings.anneal_lr else "constant"
        lr = annealed(schedule, settings.learning_rate, settings.min_lr_ratio, epoch, E)
        schedule = "cosine" if settings.anneal_ent_coef else "constant"
        ent_coef = annealed(schedule, settings.ent_coef, settings.min_ent_coef_ratio, epoch, E)
        beta = priority.annealed_beta(settings.prio_beta0, settings.prio_alpha, epoch, E)
        key, draw_key = mx.random.split(key)
        uniforms = 1 - mx.random.uniform(shape=(K, S), key=draw_key)  # (0, 1]
        values = buffer.values
        ratios = mx.ones((T, N))
        history = []
        rewards, terminals = buffer.rewards[:T], buffer.terminals[:T]
        final_observations = (
            None if buffer.final_observations is None else buffer.final_observations[:T]
        )
        for k in range(K):
            adv = advantages(values, rewards, terminals, ratios, final_observations, settings)
            rows, batch = draw(buffer, adv, values, uniforms[k], mx.array(beta), settings)
            (total, ratio, value, statistics), grads = gradient(weights, batch, mx.array(ent_coef))
            weights, optimizer_state, _ = step(weights, grads, optimizer_state, total, mx.array(lr))
            column = mx.broadcast_to(rows[None], (T, S))  # write back, for the next advantages
            values = mx.put_along_axis(values, column, value, axis=1)
            ratios = mx.put_along_axis(ratios, column, ratio, axis=1)
            mx.eval(weights, optimizer_state, values, ratios, statistics)
            history.append(statistics)

        report((epoch + 1) * N * T, N * T / (time.perf_counter() - began), environments, history)
    return weights


if __name__ == "__main__":
    sys.exit(run(train, sys.argv[1:]))
