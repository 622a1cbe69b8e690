"""Item: the loss by closed form on the GPU, against what MLX differentiates on the CPU."""

import itertools
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.check.gpu.arithmetic import FUSED_BOUND, difference
from puffer_mlx.check.gpu.tools import Effort, at_most, need_gpu, on
from puffer_mlx.policy.decoders import Fused
from puffer_mlx.ppo.closed_form import operation
from puffer_mlx.ppo.loss import Coefficients, Minibatch
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.spec import ActionSpec

N = 700  # samples, no multiple of a block
SPACES = {"discrete": ((5,), False), "masked": ((3, 2, 4), True), "continuous": ((1, 1, 1), False)}
COEFFICIENTS = Coefficients(clip_coef=0.2, vf_coef=1.5, vf_clip_coef=0.3)


class Case:
    """Random samples of an action space."""

    def __init__(self, space: str) -> None:
        sizes, masked = SPACES[space]
        rng = np.random.default_rng(len(space))
        self.action = ActionSpec(sizes)
        A = self.action.logits
        made: dict[str, Any] = {"y": rng.normal(size=(A + 1, N)) * 1.5}
        if self.action.continuous:
            made["logstd"] = rng.normal(size=(1, A)) * 0.3
        self.low = {name: a.astype(np.float32) for name, a in made.items()}
        chosen = [rng.normal(size=N) if s == 1 else rng.integers(0, s, N) for s in sizes]
        self.actions = np.stack(chosen, axis=1).astype(np.float32)
        self.masks = (rng.random((N, A)) < 0.7).astype(np.uint8) if masked else None
        self.targets = rng.normal(size=(4, N)).astype(np.float32) * 0.5
        self.targets[0] -= 1.5  # log-probabilities

    def run(self, dtype: mx.Dtype, computed_in: mx.Dtype, live: bool) -> dict[str, mx.array]:
        """All that a minibatch takes from the loss, of samples that are rounded to a dtype.

        ``live``: of advantages that count as they are, which have no weight.
        """
        low = {name: mx.array(a).astype(dtype).astype(computed_in) for name, a in self.low.items()}
        targets = self.targets[:3] if live else self.targets
        actions, batch = mx.array(self.actions), Minibatch(*map(mx.array, targets))
        masks = None if self.masks is None else mx.array(self.masks)
        decoder = Fused(self.action, 1)

        def total(low: dict[str, mx.array]) -> operation.Losses:
            settings = COEFFICIENTS, mx.array(0.02), mx.array(64.0)
            return operation.losses(decoder, low, low["y"], actions, masks, batch, *settings)

        (_, metrics, ratio, value), gradients = mx.value_and_grad(total)(low)
        found = {"metrics": metrics, "ratios": ratio, "values": value}
        found |= {f"gradient by {name}": array for name, array in gradients.items()}
        found["log-probabilities"] = operation.logprobs(decoder, low, low["y"], actions, masks)
        mx.eval(found)
        return found


def closed_form(effort: Effort) -> str:
    """Numbers and gradients of every kind of action space, in every precision."""
    need_gpu()
    worst, what = 0.0, ""
    for precision, space, live in itertools.product(DTYPES, SPACES, (False, True)):
        case, dtype = Case(space), DTYPES[precision]
        with on(mx.Device(mx.cpu)):
            expected = case.run(dtype, mx.float32, live)
        with on(mx.Device(mx.gpu)):
            found = case.run(dtype, dtype, live)
        where = f"{space}{', live' if live else ''}, {precision}"
        for name, array in expected.items():
            off, bound = difference(found[name], array), FUSED_BOUND[precision]
            at_most(f"{where}: {name}", off, bound)
            if off / bound >= worst:
                worst, what = off / bound, f"{where}: {name}"
    return at_most(f"share of the bound, {what}", worst, 1.0)
