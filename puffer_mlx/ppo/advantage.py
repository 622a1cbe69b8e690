"""Advantages: GAE with V-trace style clips of the importance ratios, in upstream's two forms.

Storage convention (stated in ``rollout/buffer.py``): reward and terminal of row t arrived *with*
observation t, so they are the outcome of action t - 1, and the last action's reward is never used.
There is no bootstrap beyond the last value.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.ops import discount, put_rows
from puffer_mlx.ops.advantages import launch_advantages
from puffer_mlx.ops.implementation import implementation
from puffer_mlx.system.plain_functions import record

KERNEL = implementation(("ppo.advantage",), "the kernel of advantages", gpu=launch_advantages)


class Discounts(NamedTuple):
    """The numbers of ``advantages`` that stay the same during a run; it explains them."""

    gamma: float
    gae_lambda: float
    rho_clip: float = 1.0
    c_clip: float = 1.0
    reward_clip: float = math.inf
    bootstrap: bool = True
    form: str = "V"


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
    form: str = "V",
    finals: mx.array | None = None,
    bootstrap: bool = True,
) -> mx.array:
    """Advantages by a backward recursion that starts with adv[T-1] = 0.

    With n = 1 - terminal[t+1], rho = min(ratio[t], rho_clip) and c = min(ratio[t], c_clip):

        V:  delta = rho * (reward[t+1] + gamma * value[t+1] * n - value[t])     the intended formula
        S:  delta = rho * reward[t+1] + gamma * value[t+1] * n - value[t]       upstream's CPU
            extension
        adv[t] = delta + gamma * gae_lambda * c * n * adv[t+1]

    The forms agree where rho = 1. Source: PufferLib 4.0; V is also 3.0's.

    Where an episode's last observation is in row t + 1 (``finals``), n is 0 if it terminated there,
    and 1 if it was truncated, so its value stands for the rest; the last observation itself, whose
    action was ignored, has delta = 0 and so adv = 0.

    Args:
        values: (T, N) of any floating type, as are ``rewards``, ``terminals`` (0 or 1) and
            ``ratios``, which are float32.
        rewards: see above.
        terminals: see above.
        ratios: new over old probability of each action, from the last time that its row was trained
            on, else 1; None is ones, to which the clips apply, too.
        gamma: discount per step.
        gae_lambda: decay of the recursion.
        rho_clip: upper bound of rho.
        c_clip: upper bound of c.
        reward_clip: largest magnitude of a reward; larger ones count as this.
        form: ``V`` or ``S``.
        finals: (T, N), 0 or ``TERMINATED`` or ``TRUNCATED`` of ``vec/base.py``; None is zeros.
        bootstrap: False: truncated is as good as terminated.

    Returns:
        (T, N) float32.

    Raises:
        ValueError: shapes differ, or an unknown form.
    """
    inputs = values, rewards, terminals, ratios, finals
    shapes = [a.shape for a in inputs if a is not None]
    if len(set(shapes)) != 1:
        raise ValueError(f"values, rewards, terminals, ratios, finals differ in shape: {shapes}")
    if form not in ("V", "S"):
        raise ValueError(f"the form of the advantage is V or S, not {form!r}")
    kernel = KERNEL.choose()
    if kernel is not None:
        adv, _ = kernel(
            *(values, rewards, terminals, ratios, finals),
            gamma=gamma,
            gae_lambda=gae_lambda,
            rho_clip=rho_clip,
            c_clip=c_clip,
            reward_clip=reward_clip,
            form=form,
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
    going = 1 - terminals[1:]
    if finals is not None:
        over = finals == 1 if bootstrap else finals > 0
        going = going * (1 - over[1:])
    target = gamma * values[1:] * going - values[:-1]
    delta = rho * (rewards[1:] + target) if form == "V" else rho * rewards[1:] + target
    if finals is not None:
        delta = mx.where(finals[:-1] > 0, 0, delta)
    decay = (gamma * gae_lambda) * c * going
    return discount(delta, decay)


def of_rollout(
    fields: dict[str, Any],
    values: mx.array,
    ratios: mx.array | None,
    numbers: Discounts,
    function: Callable[..., Any] = advantages,
) -> Any:
    """Advantages (T, N) of a rollout's arrays by name, which may have a row more.

    ``function`` gives them: ``advantages``, or one of the user's own, with its arguments.
    """
    T, finals = values.shape[0], fields.get("finals")
    finals = None if finals is None else finals[:T]
    came = fields["rewards"][:T], fields["terminals"][:T]
    return function(values, *came, ratios, finals=finals, **numbers._asdict())


def after_minibatch(
    fields: dict[str, Any],
    values: mx.array,
    ratios: mx.array,
    back: tuple[mx.array, ...] | None,
    numbers: Discounts,
    vtrace: bool,
    function: Callable[..., mx.array] = advantages,
) -> tuple[mx.array, ...]:
    """Advantages of a rollout after a minibatch was trained on; on a GPU in one launch.

    Args:
        fields: a rollout's.
        values: (T, N).
        ratios: (T, N).
        back: what the minibatch changes of both, by ``ops.put_rows``; None: there was none.
        numbers: of the advantages.
        vtrace: whether ratios count.
        function: see ``of_rollout``.

    Returns:
        New values, ratios and advantages (T, N), and what has the same sums of magnitudes over time
        as these: the advantages, or the sums (1, N).
    """
    kernel = KERNEL.choose() if function is advantages else None
    if kernel is None or put_rows.choose() is None:
        if back is not None:
            values, ratios = put_rows(values, ratios, *back)
        adv = of_rollout(fields, values, ratios if vtrace else None, numbers, function)
        return values, ratios, adv, adv
    launched = partial(kernel, back=back and (ratios, *back))
    adv, sums, *new = of_rollout(fields, values, ratios if vtrace else None, numbers, launched)
    return *(new or (values, ratios)), adv, sums


record(__name__)
