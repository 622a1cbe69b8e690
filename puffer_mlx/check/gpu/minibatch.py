"""Item: what a minibatch does around its gradients, on the GPU against the CPU."""

from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx import ops
from puffer_mlx.check.gpu.arithmetic import FUSED_BOUND, difference
from puffer_mlx.check.gpu.tools import Effort, at_most, need_gpu, on, require
from puffer_mlx.ppo import priority
from puffer_mlx.ppo.advantage import advantages
from puffer_mlx.vec.base import TERMINATED, TRUNCATED

T, N, S = 21, 1300, 700  # no multiple of a block; some of 700 rows are drawn twice
ROUNDED = 0.01  # share of rows that may be a neighbour: their uniform is within rounding
HYPER: dict[str, Any] = dict(gamma=0.99, gae_lambda=0.95, rho_clip=1.2, c_clip=1.0, reward_clip=1.0)

Arrays = dict[str, mx.array]


def _rollout() -> Arrays:
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {name: rng.normal(size=(T, N)) for name in ("values", "rewards", "adv")}
    made["terminals"] = rng.random((T, N)) < 0.1
    made["ratios"] = rng.lognormal(0, 0.4, (T, N))
    made["finals"] = rng.choice([0, 0, 0, TERMINATED, TRUNCATED], (T, N))
    made["uniforms"] = 1 - rng.random(S)
    made["new_values"], made["new_ratios"] = rng.normal(size=(2, T, S))
    found = {name: mx.array(a.astype(np.float32)) for name, a in made.items()}
    found["rows"] = mx.array(rng.integers(0, N, S).astype(np.int32))
    found["masks"] = mx.array(rng.integers(0, 2, (T + 1, N, 7)).astype(np.uint8))
    return found


def _computed(a: Arrays) -> Arrays:
    series = a["values"], a["rewards"], a["terminals"], a["ratios"]
    grid = a["ratios"], a["values"], a["adv"], a["finals"]
    new = a["values"], a["ratios"], a["rows"], a["new_values"], a["new_ratios"]
    found = {f"advantages {form}": advantages(*series, **HYPER, form=form) for form in "VS"}
    found["advantages with ends"] = advantages(*series, **HYPER, finals=a["finals"])
    found["advantages without ratios"] = advantages(*series[:3], None, **HYPER)
    rounded = a["values"].astype(mx.bfloat16)
    found["advantages of bf16"] = advantages(rounded, *series[1:], **HYPER)
    drawn = priority.choose(a["adv"], a["uniforms"], mx.array(0.4), 0.8)
    found["drawn rows"], found["their weights"] = drawn
    weights = a["uniforms"]
    found["masks"] = ops.take_rows(a["masks"], a["rows"], T)
    for name in "masks", "values":
        parts = ops.split_rows(a[name], N // 2, T)
        found |= {f"{name} of part {i}": part for i, part in enumerate(parts)}
    for i, target in enumerate(ops.take_targets(*grid, a["rows"], weights)):
        found[f"target {i}"] = target
    for counted in (1.0, 0.0):
        pair = ops.put_rows(*new, mx.array(counted))
        found |= {f"written back {i} {counted:.0f}": array for i, array in enumerate(pair)}
    mx.eval(found)
    return found


def steps(effort: Effort) -> str:
    """Advantages, draw, gathers and writing back on the GPU: those of the CPU."""
    need_gpu()
    arrays, found = _rollout(), {}
    for device in (mx.Device(mx.cpu), mx.Device(mx.gpu)):
        with on(device):
            found[device.type] = _computed(arrays)
    expected, ours = found[mx.cpu], found[mx.gpu]
    same = np.array(ours["drawn rows"]) == np.array(expected["drawn rows"])
    rounded = at_most("share of other rows drawn", 1 - same.mean(), ROUNDED)
    off = (np.array(ours["their weights"]) / np.array(expected["their weights"]))[same]
    at_most("weights of drawn rows", float(np.abs(off - 1).max()), FUSED_BOUND["fp32"])
    worst = 0.0
    for name, array in expected.items():
        if name.startswith("advantages"):
            worst = max(worst, difference(ours[name], array))
            at_most(name, worst, FUSED_BOUND["fp32"])
        elif name not in ("drawn rows", "their weights"):
            require(mx.array_equal(ours[name], array).item() is True, f"{name} isn't the CPU's")
    return f"{at_most('advantages', worst, FUSED_BOUND['fp32'])}; {rounded}"
