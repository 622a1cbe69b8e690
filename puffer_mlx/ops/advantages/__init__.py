"""Compute advantages: the backward recursion in C++, or all of ``ppo/advantage.py`` on a GPU."""

from functools import partial
from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import MIN_ARRAY_SIZE, launch, placeholder
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.recurrence import split_steps
from puffer_mlx.system.plain_functions import record

KERNEL_FILE = Path(__file__).with_name("advantages.metal.h")
AGENTS_PER_BLOCK = 32  # small, so that 4096 agents occupy 128 cores


@partial(Implementation, name="the recursion of advantages in C++", cpu="discount")
def discount(delta: mx.array, decay: mx.array) -> mx.array:
    """Compute advantages backward in time: adv[t] = delta[t] + decay[t] * adv[t+1], adv[T-1] = 0.

    Args:
        delta: (T - 1, N) float32, temporal-difference errors.
        decay: (T - 1, N) float32, factors of the next advantage.

    Returns:
        adv (T, N) float32.
    """
    adv = mx.zeros(delta.shape[1:])
    if not delta.shape[0]:
        return adv[None]
    out = [adv]
    for d, k in zip(reversed(split_steps(delta)), reversed(split_steps(decay)), strict=True):
        adv = d + k * adv
        out.append(adv)
    return mx.stack(out[::-1])


def launch_advantages(
    values,
    rewards,
    terminals,
    ratios,
    final_observations,
    *,
    formula,
    bootstrap,
    gamma,
    gae_lambda,
    back=None,
    **clips,
):
    """Compute ``ppo.advantage.advantages`` in one launch, with the same arguments.

    A minibatch's values and ratios are written back first if ``back`` isn't None: it has the
    arguments of ``ops.rows.put_rows`` after the values.

    Returns:
        Advantages (T, N) and the sums (1, N) of their magnitudes over time. If ``back`` isn't None,
        also the new values and ratios, each (T, N). All are float32.
    """
    T, N = values.shape
    zeros = placeholder(mx.float32)
    old, rows, *new, ok = back or (ratios, placeholder(mx.int32), zeros, zeros, zeros)
    sizes = {"T": T, "N": N, "S": rows.size if back else 0}
    sizes |= {"within_rho": int(formula == "V"), "bootstrap": int(bootstrap)}
    sizes |= {
        "has_final": int(final_observations is not None),
        "has_ratios": int(ratios is not None),
    }
    settings = {"gamma": float(gamma), "gamma_lambda": float(gamma * gae_lambda)}
    settings |= {name: float(clips[name]) for name in ("rho_clip", "c_clip", "reward_clip")}
    old, final_observations = (
        rewards if old is None else old,
        terminals if final_observations is None else final_observations,
    )
    arrays = [
        values,
        rewards,
        terminals,
        old,
        final_observations,
        rows,
        *new,
        ok.reshape(-1),
        sizes,
        settings,
    ]
    put = (T, N) if back else (MIN_ARRAY_SIZE,)
    threads = -(-N // AGENTS_PER_BLOCK) * AGENTS_PER_BLOCK
    shapes = [(T, N), (1, N), put, put]
    results = launch(
        KERNEL_FILE,
        "advantages",
        arrays,
        shapes,
        threads,
        AGENTS_PER_BLOCK,
        THREADS=AGENTS_PER_BLOCK,
    )
    return results if back else results[:2]


record(__name__)
