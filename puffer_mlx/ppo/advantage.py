"""Compute advantages: GAE with importance ratios clipped as in V-trace, by two formulas.

Reward and terminal in row t belong to action t - 1 (see ``rollout/buffer.py``). The last action's
reward is unknown, so its advantage is 0.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.ops import discount, put_rows
from puffer_mlx.ops.advantages import launch_advantages
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.system.plain_functions import record

KERNEL = Implementation(("ppo.advantage",), "the kernel of advantages", gpu=launch_advantages)


class Discounts(NamedTuple):
    """Constant coefficients for computing advantages: discounts, clips and name of the formula."""

    gamma: float
    gae_lambda: float
    rho_clip: float = 1.0
    c_clip: float = 1.0
    reward_clip: float = math.inf
    bootstrap: bool = True
    formula: str = "V"


def advantages(
    values: mx.array,
    rewards: mx.array,
    terminals: mx.array,
    ratios: mx.array | None,
    *,
    gamma: float,
    gae_lambda: float,
    rho_clip: float,
    c_clip: float,
    reward_clip: float = math.inf,
    formula: str = "V",
    final_observations: mx.array | None = None,
    bootstrap: bool = True,
) -> mx.array:
    """Return advantages (GAE with clipped importance ratios).

    They are computed backward in time, starting with adv[T-1] = 0.

    With n = 1 - terminal[t+1], rho = min(ratio[t], rho_clip) and c = min(ratio[t], c_clip):

        V:  delta = rho * (reward[t+1] + gamma * value[t+1] * n - value[t])     the intended formula
        S:  delta = rho * reward[t+1] + gamma * value[t+1] * n - value[t]       upstream's CPU
            extension
        adv[t] = delta + gamma * gae_lambda * c * n * adv[t+1]

    Both formulas are equal if rho = 1. Source: PufferLib 4.0; 3.0 uses V.

    If row t + 1 contains an episode's last observation (``final_observations``), n is 0 after a
    termination. n is 1 after a truncation, so the value of the last observation is bootstrapped.
    The last observation's action was ignored, so delta and adv of its row are 0.

    Args:
        values: (T, N), any floating type.
        rewards: (T, N) float32.
        terminals: (T, N) float32, 0 or 1.
        ratios: (T, N) float32, new over old probability of each action, measured when the agent was
            last trained on, else 1. None means ones. The clips also apply to ones.
        gamma: discount per step.
        gae_lambda: decay of the recursion.
        rho_clip: upper bound of rho.
        c_clip: upper bound of c.
        reward_clip: rewards are clipped to ±reward_clip.
        formula: ``V`` or ``S``.
        final_observations: (T, N), 0, ``TERMINATED`` or ``TRUNCATED`` of ``vec/base.py``. None
            means zeros.
        bootstrap: False to treat truncations as terminations.

    Returns:
        Advantages, (T, N) float32.

    Raises:
        ValueError: If shapes differ, or the formula is unknown.
    """
    inputs = values, rewards, terminals, ratios, final_observations
    shapes = [a.shape for a in inputs if a is not None]
    if len(set(shapes)) != 1:
        raise ValueError(
            f"values, rewards, terminals, ratios, final_observations differ in shape: {shapes}"
        )
    if formula not in ("V", "S"):
        raise ValueError(f"the formula of the advantage is V or S, not {formula!r}")
    kernel = KERNEL.choose()
    if kernel is not None:
        adv, _ = kernel(
            values,
            rewards,
            terminals,
            ratios,
            final_observations,
            gamma=gamma,
            gae_lambda=gae_lambda,
            rho_clip=rho_clip,
            c_clip=c_clip,
            reward_clip=reward_clip,
            formula=formula,
            bootstrap=bootstrap,
        )
        return adv
    values = values.astype(mx.float32)
    if reward_clip < math.inf:
        rewards = mx.clip(rewards, -reward_clip, reward_clip)
    if ratios is None:
        rho = min(1.0, rho_clip)
        c = min(1.0, c_clip)
    else:
        rho = mx.minimum(ratios[:-1], rho_clip)
        c = mx.minimum(ratios[:-1], c_clip)
    not_done = 1 - terminals[1:]
    if final_observations is not None:
        over = final_observations == 1 if bootstrap else final_observations > 0
        not_done = not_done * (1 - over[1:])
    target = gamma * values[1:] * not_done - values[:-1]
    delta = rho * (rewards[1:] + target) if formula == "V" else rho * rewards[1:] + target
    if final_observations is not None:
        delta = mx.where(final_observations[:-1] > 0, 0, delta)
    decay = (gamma * gae_lambda) * c * not_done
    return discount(delta, decay)


def rollout_advantages(
    fields: dict[str, Any],
    values: mx.array,
    ratios: mx.array | None,
    discounts: Discounts,
    function: Callable[..., Any] = advantages,
) -> Any:
    """Return the advantages of a rollout, computed by a built-in or custom function.

    Args:
        fields: arrays of the rollout by name, with T or T + 1 rows.
        values: values, (T, N).
        ratios: new over old probabilities, (T, N), or None: see ``advantages``.
        discounts: coefficients of the advantages.
        function: ``advantages``, or a custom function with the same arguments.

    Returns:
        The result of ``function``.
    """
    T = len(values)
    inputs = values, fields["rewards"][:T], fields["terminals"][:T], ratios
    final_observations = (
        None if fields.get("final_observations") is None else fields["final_observations"][:T]
    )
    return function(*inputs, final_observations=final_observations, **discounts._asdict())


def after_minibatch(
    fields: dict[str, Any],
    values: mx.array,
    ratios: mx.array,
    back: tuple[mx.array, ...] | None,
    discounts: Discounts,
    vtrace: bool,
    function: Callable[..., mx.array] = advantages,
) -> tuple[mx.array, ...]:
    """Update values, ratios and advantages after a minibatch; on a GPU in one launch.

    Args:
        fields: arrays of the rollout by name, with T or T + 1 rows.
        values: values before the minibatch, (T, N).
        ratios: new over old probabilities before the minibatch, (T, N).
        back: the minibatch's results for ``ops.put_rows``: agents (S,), values and ratios (T, S),
            and a flag. None before the first minibatch.
        discounts: coefficients of the advantages.
        vtrace: False to compute advantages with ratios of 1.
        function: ``advantages``, or a custom function with the same arguments.

    Returns:
        Values, ratios and advantages (T, N). For the priorities also the advantages again, or on a
        GPU their magnitudes summed over time (1, N).
    """
    kernel = KERNEL.choose() if function is advantages else None
    if kernel is None:
        if back is not None:
            values, ratios = put_rows(values, ratios, *back)
        adv = rollout_advantages(fields, values, ratios if vtrace else None, discounts, function)
        return values, ratios, adv, adv
    launched = partial(kernel, back=back and (ratios, *back))
    used_ratios = ratios if vtrace else None
    adv, sums, *new = rollout_advantages(fields, values, used_ratios, discounts, launched)
    return *(new or (values, ratios)), adv, sums


record(__name__)
