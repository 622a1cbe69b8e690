"""Items: mixed precision trains, skips what overflows, and stops where nothing else helps."""

import math
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx import config
from puffer_mlx.check.gpu.coded_environment import Coded
from puffer_mlx.check.gpu.tools import Effort, Failed, at_most, changed, flat, require, trainer
from puffer_mlx.errors import UserError
from puffer_mlx.ppo import precision
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.training.run import Run
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.trees import named

EPOCHS = 4
NEAR = {"fp32": 1e-6, "bf16": 0.1, "fp16": 0.05}  # the first epoch's entropy, beside fp32's
OVERFLOWS = 4  # skipped steps at first, while fp16 finds its scale


def trains(effort: Effort) -> str:
    """Every precision trains: finite losses near fp32's, weights that stay float32 and move."""
    first, texts = math.nan, []
    for name in DTYPES:
        with trainer("--train.precision", name) as made:
            before = flat(made.weights)
            logs = [made.step() for _ in range(EPOCHS)]
            dtypes = {array.dtype for _, array in named(made.train_state.arrays()[:2])}
            require(dtypes == {mx.float32}, f"{name}: weights or momentum are {dtypes}")
            require(changed(made.weights, before), f"{name}: nothing was learned")
        bad = [key for key, value in logs[-1].items() if not math.isfinite(value)]
        require(not bad, f"{name}: {', '.join(bad)} not finite")
        at_most(f"{name}: skipped steps", logs[-1]["loss/skipped_steps"], OVERFLOWS)
        entropy = logs[0]["loss/entropy"]
        first = entropy if name == "fp32" else first
        at_most(f"{name}: entropy apart by", abs(entropy - first) / abs(first), NEAR[name])
        texts.append(f"{name} entropy {logs[0]['loss/entropy']:.4f}")
    return ", ".join(texts)


def spoil(made: Trainer) -> None:
    """Make the gradients of the next minibatches overflow."""
    steps = made.learner.steps

    def gradients(*arguments: Any) -> Any:
        grads, *rest = steps.gradients(*arguments)
        return tree_map(lambda grad: grad * math.inf, grads), *rest

    made.learner.steps = steps._replace(gradients=gradients)


def skips(effort: Effort) -> str:
    """A gradient that overflows changes nothing but the count and fp16's scale; then it goes on."""
    for name in DTYPES:
        with trainer("--train.precision", name) as made:
            made.step()
            steps, before = made.learner.steps, flat(made.train_state.arrays()[:2])
            counted = made.train_state.scaler
            spoil(made)
            try:
                made.step()
            except UserError as error:  # what the trainer looks at itself
                words = "weights or momentum changed in a skipped step"
                raise Failed(f"{name}: {words}: {error.message}") from None
            minibatches, now = made.config.minibatches, made.train_state.scaler
            skipped = int(now["skipped"].item()) - int(counted["skipped"].item())  # type: ignore
            require(skipped == minibatches, f"{name}: {skipped} of {minibatches} were skipped")
            same = not changed(made.train_state.arrays()[:2], before)
            require(same, f"{name}: weights or momentum changed in a skipped step")
            share = now["scale"].item() / counted["scale"].item()  # type: ignore
            expected = 0.5**minibatches if name == "fp16" else 1.0
            require(share == expected, f"{name}: scale times {share:g}, expected {expected:g}")
            made.learner.steps = steps
            made.step()
            require(changed(made.train_state.arrays()[:2], before), f"{name}: it learns no more")
    return "skipped, counted, fp16's scale halved, and on"


def stops(effort: Effort) -> str:
    """Ten minibatches in a row that aren't finite end a run; the message names where it began."""
    options = [
        *("--vec.total-agents", "16", "--vec.num-buffers", "2", "--train.horizon", "4"),
        *("--train.minibatch-size", "32", "--policy.hidden-size", "8", "--policy.num-layers", "1"),
        *("--train.total-timesteps", "1e9", "--train.rollout-device", "cpu"),
    ]
    made = Run.open(config.load("squared", options), Coded(16, 2, finite=False)).trainer
    before = flat(made.weights)
    for epoch in range(precision.TOLERATED):
        try:
            made.step()
        except UserError as error:
            told = "the rollout" in error.message and "observations" in error.hint
            require(told, f"the message names another phase: {error}")
            expected = math.ceil(precision.TOLERATED / made.config.minibatches)
            require(epoch + 1 == expected, f"stopped after {epoch + 1} epochs, not {expected}")
            require(not changed(made.weights, before), "weights changed")
            return f"stopped after {precision.TOLERATED}: {error.message}"
    raise Failed(f"{precision.TOLERATED} epochs of NaN observations didn't stop it")
