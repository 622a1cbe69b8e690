"""Advantages: the backward recursion in C++, and all of ``ppo/advantage.py`` on a GPU."""

from functools import partial
from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import FEWEST, launch, placeholder
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.recurrence import steps_of
from puffer_mlx.system.plain_functions import record

TEXT = Path(__file__).with_name("advantages.metal.h")
BLOCK = 32  # agents per block; a small block spreads 4096 agents over 128 cores


@partial(Implementation, name="the recursion of advantages in C++", cpu="discount")
def discount(delta: mx.array, decay: mx.array) -> mx.array:
    """Backward recursion from adv[T-1] = 0: adv[t] = delta[t] + decay[t] * adv[t+1].

    Args:
        delta: (T - 1, N) float32.
        decay: (T - 1, N) float32.

    Returns:
        (T, N) float32.
    """
    adv = mx.zeros(delta.shape[1:])
    if not delta.shape[0]:
        return adv[None]
    out = [adv]
    for d, k in zip(reversed(steps_of(delta)), reversed(steps_of(decay)), strict=True):
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
    form,
    bootstrap,
    gamma,
    gae_lambda,
    back=None,
    **clips,
):
    """Compute ``ppo.advantage.advantages`` in one launch, with the same arguments.

    If ``back`` is given, ``ops.rows.put_rows`` runs first, with these arguments after the values.

    Returns:
        Advantages (T, N), the sums (1, N) of their magnitudes over time; and with ``back`` the new
        values and ratios, each (T, N). All are float32.
    """
    T, N = values.shape
    zeros = placeholder(mx.float32)
    old, rows, *new, ok = back or (ratios, placeholder(mx.int32), zeros, zeros, zeros)
    sizes = {"T": T, "N": N, "S": rows.size if back else 0}
    sizes |= {"within_rho": int(form == "V"), "bootstrap": int(bootstrap)}
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
    put = (T, N) if back else (FEWEST,)
    threads = -(-N // BLOCK) * BLOCK
    shapes = [(T, N), (1, N), put, put]
    found = launch(TEXT, "advantages", arrays, shapes, threads, BLOCK, THREADS=BLOCK)
    return found if back else found[:2]


record(__name__)
