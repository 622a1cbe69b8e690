"""Item: a minibatch of PufferLib 5.0's on the GPU, against float32 on the CPU."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.check.gpu.arithmetic import inputs, small_policy
from puffer_mlx.check.gpu.tools import Effort, at_most, need_gpu, on, unit
from puffer_mlx.config import Config, Train
from puffer_mlx.policy.networks import NETWORKS
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import algorithms
from puffer_mlx.ppo.algorithms.puffer5 import Segments
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.ppo.update import compile_steps
from puffer_mlx.trees import named

COEFFICIENTS = {"clip_coef": 0.2, "vf_coef": 2.0, "vf_clip_coef": 0.2}


class Case:
    """Random segments with episodes' ends in them, and states that they go on from.

    Old log-probabilities and values are near a policy's, on both sides of the clips and not at
    them: what rounding carries to the other side of a clip has another gradient.
    """

    def __init__(self, policy: Policy) -> None:
        rng = np.random.default_rng(4)
        self.policy, observations = policy, inputs()
        T, S = observations.shape[:2]
        self.terminals = (rng.random((T, S)) < 0.2).astype(np.float32)
        self.rewards = rng.normal(size=(T, S)).astype(np.float32)
        self.actions = rng.integers(0, policy.decoder.action.logits, (T * S, 1)).astype(np.float32)
        self.observations = np.array(observations)
        self.state = tree_map(lambda a: rng.random(a.shape), policy.initial_state(S))
        self.weights = tree_map(np.array, policy.init(mx.random.key(0)))

        keep = policy.keep(mx.array(self.terminals))
        outputs, values, _ = policy.scan(
            *(_arrays(self.weights), observations, _arrays(self.state), keep)
        )
        heads = policy.distribution
        logprobs, _ = heads.log_prob_entropy(outputs, mx.array(self.actions), None)
        apart = rng.choice([-1, 1], (2, T * S)) * rng.choice([0.05, 0.5], (2, T * S))
        self.old_logprob, self.old_value = (
            np.array(logprobs) + apart[0],
            np.array(values) + apart[1],
        )

    def run(self, precision: str) -> dict[str, np.ndarray]:
        """Gradients by weights, ratios and advantages, in float64, by name."""
        train = Train(algorithm="puffer5", vtrace=False, precision=precision, **COEFFICIENTS)  # type: ignore
        config = Config(train=train)
        steps = compile_steps(self.policy, config, algorithms.make(self.policy, config))
        old_logprob, old_value, rewards, terminals = map(
            _arrays, (self.old_logprob, self.old_value, self.rewards, self.terminals)
        )
        read = self.observations, self.actions, None, 1 - self.terminals
        grads, _, ratios, _, adv = steps.gradients(
            *(_arrays(self.weights), *map(_arrays, read)),
            Segments(old_logprob, old_value, rewards, terminals, None),
            *(_arrays(self.state), mx.array(0.01), mx.array(1024.0)),
        )
        found = {f"gradient by {name}": array for name, array in named(grads)}
        found |= {"ratios": ratios, "advantages": adv}
        return {name: np.array(array).astype(np.float64) for name, array in found.items()}


def _arrays(tree: Any) -> Any:
    """NumPy's arrays as MLX's, floating ones in float32; None stays None."""
    return tree_map(lambda a: None if a is None else mx.array(np.asarray(a, np.float32)), tree)


def minibatch(effort: Effort) -> str:
    """Of every network, in every precision: its gradients, its ratios and its live advantages."""
    need_gpu()
    worst = (0.0, "", 1.0)  # share of its bound, what, bound
    for network in NETWORKS:
        with on(mx.Device(mx.cpu)):
            case = Case(small_policy(network, reset=True))
            expected = case.run("fp32")
        for precision in DTYPES:
            bound = unit(precision) ** 0.5  # kinks: see arithmetic's gradients
            with on(mx.Device(mx.gpu)):
                found = case.run(precision)
            for name, ours in found.items():
                off = float(np.linalg.norm(ours - expected[name]) / np.linalg.norm(expected[name]))
                what = f"{network} {precision} {name}"
                at_most(what, off, bound)
                worst = max(worst, (off / bound, what, bound))
    return at_most(worst[1], worst[0] * worst[2], worst[2])
