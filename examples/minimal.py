#!/usr/bin/env python
"""PPO with V-trace, prioritised segments and Muon on MLX: the whole algorithm on one page.

    python examples/minimal.py cartpole --train.total-timesteps 3_000_000

In a few seconds the score rises from 7 to 197, of 200. Read ``train`` first: an epoch is a rollout
(``collect``), then K minibatches, each of which computes the advantages (``targets``), draws
segments (``draw``), and descends along the gradient of ``loss``.

T steps of N agents make a rollout, T steps of S agents a minibatch. Row t of the buffer holds what
*arrived together*, observation t with the reward and the terminal of action t - 1, and what was
chosen from it: action t, its log-probability, and the value. Row T is row 0 of the next rollout.

A test compares the weights with those of ``Trainer``: equal to the bit where it acts through MLX
too. ``Trainer`` also acts in C, in several groups of agents (here they are one, whatever
vec.num_buffers says), reports, saves, goes on and knows what to do with infinite numbers. Its
options in ``LEFT_OUT`` would give other weights; here they are refused.
"""

import sys
import time
from functools import partial

from puffer_mlx import vec
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.config import parse_command_line, take_notes, unused_note
from puffer_mlx.errors import UserError
from puffer_mlx.ops import take_rows
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.ppo import optimizers, priority, schedules
from puffer_mlx.ppo.advantage import advantages
from puffer_mlx.ppo.loss import METRICS, Minibatch, ppo_loss
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.system.devices import select_device

# isort: split
import mlx.core as mx  # after puffer_mlx, which gives it a fast BLAS
import numpy as np

OBEYED = (
    *("base.seed", "base.device", "base.family", "base.reset_state"),
    *("vec", "policy", "torch", "train", "selfplay.enabled"),
)
LEFT_OUT = {  # of [train]
    **{"algorithm": "puffer4", "overlap": False, "precision": "fp32", "rollout_device": "auto"},
    **{"gpus": 1, "draw_from": "rank", "loss": "clipped"},
}


def collect(buffer, environments, policy, act, weights, state, noise):
    """Fill the buffer with T steps of all agents; returns the recurrent state after them."""
    buffer.begin(buffer)  # row T of the rollout before becomes row 0
    for t in range(buffer.horizon):
        part = buffer.parts(1)[t][0]  # what arrived, and where choices are written
        seen, legal, keep = part.observations, part.mask, policy.keep(part.terminals)
        actions, logprobs, values, state = act(weights, seen, state, noise[t], legal, keep)
        chosen = mx.concatenate([actions.T, logprobs[None], values[None]])  # (heads + 2, N)
        mx.eval(chosen, state)
        buffer.record(part, np.asarray(chosen))
        environments.send(0, buffer.taken[t][0], buffer.outputs[t + 1][0])
        environments.wait(0)  # it wrote row t + 1: observations, rewards, terminals, masks
    return state


def targets(buffer, values, ratios, settings):
    """Advantages (T, N): GAE with V-trace's clipped ratios, from values as they are by now."""
    T, clip = buffer.horizon, settings.reward_clip
    return advantages(
        values,
        mx.clip(buffer.rewards[:T], -clip, clip),
        buffer.terminals[:T],
        ratios if settings.vtrace else None,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        rho_clip=settings.vtrace_rho_clip,
        c_clip=settings.vtrace_c_clip,
        form=settings.advantage,
        finals=None if buffer.finals is None else buffer.finals[:T],
        bootstrap=settings.bootstrap_truncated,
    )


def draw(buffer, adv, values, uniforms, beta, settings):
    """Draw S agents, those with large advantages more often and with less weight; gather them."""
    T, S = buffer.horizon, uniforms.size
    rows, weight = priority.choose(adv, uniforms, beta, settings.prio_alpha)  # (S,), (S,)

    def take(source):  # (T or T + 1, N, ...) -> (T, S, ...)
        return take_rows(source, rows, T)

    weight = mx.broadcast_to(weight, (T, S))
    if buffer.finals is not None:  # an action chosen at an episode's end had no effect
        weight = mx.where(take(buffer.finals) > 0, 0, weight)
    masks = None if buffer.masks is None else take(buffer.masks)
    read = take(buffer.observations), take(buffer.actions), masks, take(buffer.terminals)
    batch = take(buffer.logprobs), take(values), take(adv), weight
    return rows, read, Minibatch(*(a.reshape(T * S) for a in batch))


def loss(weights, observations, actions, masks, terminals, batch, ent_coef, policy, settings):
    """PPO's loss on T steps of S agents, with statistics, and the new ratios and values (T, S)."""
    T, S = terminals.shape
    state, keep = policy.initial_state(S), policy.keep(terminals)
    outputs, value, _ = policy.scan(weights, observations, state, keep)  # value (T*S,)
    actions, masks = (None if a is None else a.reshape(T * S, -1) for a in (actions, masks))
    logprob, entropy = policy.distribution.log_prob_entropy(outputs, actions, masks)
    names = "clip_coef", "vf_coef", "vf_clip_coef"
    coefficients = {"ent_coef": ent_coef, **{name: getattr(settings, name) for name in names}}
    total, metrics = ppo_loss(logprob, entropy, value, batch, **coefficients)
    ratio = mx.exp(logprob - batch.old_logprob)
    return total, metrics, ratio.reshape(T, S), value.reshape(T, S)


def train(config, environments):
    """Train from the seed to the end, a line for each epoch; returns the weights."""
    if others := [key for key, value in LEFT_OUT.items() if getattr(config.train, key) != value]:
        raise UserError(f"not on this page: train.{others[0]}", "scripts/train.py has it")
    if config.selfplay.enabled:
        raise UserError("not on this page: selfplay.enabled", "scripts/train.py has it")
    settings, E, K, S = config.train, config.epochs, config.minibatches, config.segments
    T, N = settings.horizon, config.vec.total_agents
    policy = configured_policy(environments.spec, config)
    act = mx.compile(policy.act)
    gradient = mx.compile(mx.value_and_grad(partial(loss, policy=policy, settings=settings)))
    init, key = mx.random.split(mx.random.key(config.base.seed))
    weights = policy.init(init)
    optimizer = optimizers.of(config)
    optimizer_state, state = optimizer.init(weights), policy.initial_state(N)
    buffer = RolloutBuffer(environments.spec, T, N, 1, environments.finals)
    buffer.reset(environments)
    for epoch in range(E):
        began = time.perf_counter()
        key, mine = mx.random.split(key)
        noise = policy.distribution.noise(mine, (T, N))  # (T, N, heads)
        state = policy.initial_state(N) if config.base.reset_state else state
        state = collect(buffer, environments, policy, act, weights, state, noise)

        lr = mx.array(schedules.learning_rate(settings, epoch, E))
        ent = mx.array(schedules.entropy_coefficient(settings, epoch, E))
        beta = priority.annealed_beta(settings.prio_beta0, settings.prio_alpha, epoch, E)
        key, mine = mx.random.split(key)
        uniforms = 1 - mx.random.uniform(shape=(K, S), key=mine)  # (0, 1]
        values, ratios, statistics = buffer.values, mx.ones((T, N)), []
        for k in range(K):
            adv = targets(buffer, values, ratios, settings)
            rows, read, batch = draw(buffer, adv, values, uniforms[k], mx.array(beta), settings)
            (total, metrics, ratio, value), grads = gradient(weights, *read, batch, ent)
            weights, optimizer_state, _ = optimizer.step(
                weights, grads, optimizer_state, total, lr, settings
            )
            column = mx.broadcast_to(rows[None], (T, S))  # the next minibatch's targets see these
            values = mx.put_along_axis(values, column, value, axis=1)
            ratios = mx.put_along_axis(ratios, column, ratio, axis=1)
            mx.eval(weights, optimizer_state, values, ratios, metrics)
            statistics.append(metrics)

        means = zip(METRICS, np.array(mx.mean(mx.stack(statistics), axis=0)), strict=True)
        numbers = {"score": environments.log().get("score", float("nan")), **dict(means)}
        print(f"{(epoch + 1) * N * T:,} steps", end="")
        print(f" at {N * T / (time.perf_counter() - began):,.0f}/s:", end=" ")
        print(*(f"{name} {number:.3f}" for name, number in numbers.items()), sep=", ", flush=True)
    return weights


@reported
def main(argv):
    """Train as a command line says: --help shows the options that this page obeys."""
    config, _ = parse_command_line(argv, obeyed=OBEYED)
    select_device(config.base.device)
    config.vec.num_buffers = 1
    config.unused += optimizers.unread(config)
    with vec.make(config, threads()) as environments:
        for note in filter(None, [*take_notes(config), unused_note(config)]):
            print(note)
        train(config, environments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
