"""Mixed precision: the scale, skipped minibatches, and the message that ends a run."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_run import emulated_gpu
from oracles import named
from running import BATCH, TINY, learned, records
from watching import before_training, functions, replace_functions

from puffer_mlx import checkpoint, config
from puffer_mlx.errors import UserError
from puffer_mlx.ppo import precision
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.training.trainer import Trainer

T, N, K = 4, 8, 2
LOW = ("bf16", "fp16")
OPTIONS = f"""
    --device cpu --env.size 3 --policy.hidden-size 8 --policy.num-layers 2
    --vec.total-agents {N} --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size 16
    --train.learning-rate 0.02
""".split()
pytestmark = pytest.mark.usefixtures("uncompiled")


def start(kind: str, *more: str, epochs: int = 8, sizes=(3, 2), masked: bool = True) -> Trainer:
    given = [*OPTIONS, f"--train.precision={kind}", f"--train.total-timesteps={epochs * N * T}"]
    environments = oracles.SmallVec(N, 2, sizes, masked)
    return Trainer(config.load("squared", [*given, *more]), environments)


def bits(tree: Any) -> list[bytes]:
    return [np.array(a).tobytes() for _, a in named(tree)]


def scaler(trainer: Trainer) -> dict[str, float]:
    return {name: a.item() for name, a in trainer.train_state.scaler.items()}  # type: ignore


def set_scale(trainer: Trainer, scale: float) -> None:
    state = {**trainer.train_state.scaler, "scale": mx.array(scale)}
    trainer.train_state = trainer.train_state._replace(scaler=state)


def wrap(trainer: Trainer, **wrappers: Callable[..., Any]) -> None:
    """Replace a trainer's update functions; replacements get the real function first."""
    real = functions(trainer)
    wrapped = {
        name: lambda *arguments, name=name, f=f: f(getattr(real, name), *arguments)
        for name, f in wrappers.items()
    }
    replace_functions(trainer, **wrapped)


# ---- the scale -----------------------------------------------------------------------------------


class Scale:
    """Simulates dynamic loss scaling in Python."""

    def __init__(self, interval: int, scale: float) -> None:
        self.interval, self.scale = interval, scale
        self.skipped = self.good = self.in_a_row = self.longest = 0

    def __call__(self, ok: bool) -> None:
        if ok:
            self.good, self.in_a_row = self.good + 1, 0
        else:
            self.good, self.in_a_row = 0, self.in_a_row + 1
            self.skipped += 1
            self.scale = max(1.0, self.scale / 2)
        self.longest = max(self.longest, self.in_a_row)
        if self.good == self.interval:
            self.scale, self.good = min(2.0**24, self.scale * 2), 0


def test_scale_follows_its_rules_up_to_both_bounds(monkeypatch):
    monkeypatch.setattr(precision, "GROWTH_INTERVAL", 3)
    rng = np.random.default_rng(0)
    state, mine = precision.first_scaler("fp16"), Scale(3, 65536.0)
    assert {array.dtype for name, array in state.items() if name != "scale"} == {mx.int32}
    seen = set()
    for probability in (0.97, 0.3, 0.9):
        for ok in rng.random(150) < probability:
            state = precision.next_scaler(state, mx.array(bool(ok)), "fp16")
            mine(bool(ok))
            found = {name: a.item() for name, a in state.items()}
            assert found == {name: getattr(mine, name) for name in found}
            seen.add(found["scale"])
    assert seen == {2.0**i for i in range(25)}
    assert mine.longest > 5


@pytest.mark.parametrize(
    ("kind", "device"),
    [("fp32", contextlib.nullcontext), ("fp32", emulated_gpu), ("fp16", emulated_gpu)],
)
def test_counting_minibatches_together_equals_counting_each(kind, device):
    oks = np.random.default_rng(0).random(30) < 0.6
    state = {**precision.first_scaler(kind), "good": mx.array(190)}
    with device() as gpu:
        found = precision.count_minibatches(state, [mx.array(float(ok)) for ok in oks], kind)
    assert gpu is None or ("count_minibatches" in gpu.names) == (kind != "fp16")
    for ok in oks:
        state = precision.next_scaler(state, mx.array(bool(ok)), kind)
    assert {n: a.item() for n, a in found.items()} == {n: a.item() for n, a in state.items()}


@pytest.mark.parametrize("kind", precision.DTYPES)
def test_lower_casts_weights(kind):
    low = precision.cast_weights({"a": mx.ones((2, 3)), "b": [mx.zeros(4)]}, kind)
    assert {array.dtype for _, array in named(low)} == {precision.DTYPES[kind]}


# ---- minibatches that aren't finite --------------------------------------------------------------


def test_overflow_skips_minibatches_and_halves_the_scale():
    trainer = start("fp16")
    trainer.step()
    before = bits([trainer.weights, trainer.train_state.optimizer])
    set_scale(trainer, 2.0**40)
    logs = trainer.step()
    assert bits([trainer.weights, trainer.train_state.optimizer]) == before
    assert (logs["loss/skipped_steps"], logs["loss/scale"]) == (K, 2.0 ** (40 - K))
    assert "loss/total" not in logs
    assert all(np.isfinite(value) for value in logs.values())
    set_scale(trainer, 65536.0)
    logs = trainer.step()
    assert np.isfinite(logs["loss/total"]) and logs["loss/skipped_steps"] == K
    assert bits([trainer.weights, trainer.train_state.optimizer]) != before


@pytest.mark.parametrize(("kind", "value"), [("bf16", np.nan), ("fp16", np.inf)])
def test_minibatch_with_one_gradient_that_is_not_finite_changes_nothing(kind, value):
    """The first of three minibatches is finite. The last one's values aren't written back."""
    trainer = start(kind, "--train.replay-ratio", "1.5")
    trainer.step()
    before = bits(trainer.weights)
    calls, trained, counted = [], [], []

    def gradients(real, *arguments):
        losses, grads = real(*arguments)
        calls.append(len(calls))
        if len(calls) > 1:  # one number of one tensor
            layer = grads["network"][1]["weight"]
            layer = mx.where(mx.arange(layer.size).reshape(layer.shape) == 7, value, layer)
            grads = {**grads, "network": [grads["network"][0], {"weight": layer}]}
        return losses, grads

    def optimise(real, *arguments):
        trained.append(real(*arguments))
        return trained[-1]

    def targets(real, fields, values, ratios, back):
        after = real(fields, values, ratios, back)
        if back is not None:
            counted.append(bool(back[-1].item()))
            assert counted[-1] or bits(list(after[:2])) == bits([values, ratios])
        return after

    wrap(trainer, gradients=gradients, optimise=optimise, targets=targets)
    logs = trainer.step()
    assert counted == [True, False]
    assert bits([trainer.weights, trainer.train_state.optimizer]) == bits(list(trained[0][:2]))
    assert bits(trainer.weights) != before
    assert logs["loss/skipped_steps"] == scaler(trainer)["in_a_row"] == 2
    assert all(np.isfinite(logs[f"loss/{name}"]) for name in METRICS)
    assert scaler(trainer)["scale"] == (16384.0 if kind == "fp16" else 1.0)
    assert ("loss/scale" in logs) == (kind == "fp16")


class Broken(oracles.SmallVec):
    """Stub environments whose observations are NaN from some step on."""

    def rows(self, agents, k):
        observations, *others = super().rows(agents, k)
        if k > 2 * T:
            observations[:] = np.nan
        return [observations, *others]


def broken(part: str) -> tuple[Callable[..., Any], str]:
    """Return a function that makes one part of a minibatch NaN, and what it replaces."""

    def targets(real, *arguments):
        values, ratios, *adv = real(*arguments)
        return values, ratios, *(array * np.nan for array in adv)

    def forward(real, weights, *arguments):
        return real(
            {**weights, "decoder": {"weight": weights["decoder"]["weight"] * np.nan}}, *arguments
        )

    def backward(real, *arguments):
        losses, grads = real(*arguments)
        return losses, {**grads, "encoder": {"weight": grads["encoder"]["weight"] * np.inf}}

    return {
        "advantages": (targets, "targets"),
        "forward": (forward, "gradients"),
        "backward": (backward, "gradients"),
    }[part]


@pytest.mark.parametrize(
    ("part", "kind", "overlap"),
    [
        *(("rollout", "bf16", 0), ("advantages", "fp16", 1)),
        *(("forward", "fp32", 1), ("backward", "fp16", 0)),
    ],
)
def test_ten_skipped_minibatches_end_the_run_and_name_the_cause(part, kind, overlap):
    more = ["--train.replay-ratio", "2.5", f"--train.overlap={overlap}"]  # 5 minibatches an epoch
    trainer = start(kind, *more)
    if part == "rollout":
        trainer = Trainer(trainer.config, Broken(N, 2, (3, 2), True))
        trainer.step()
    trainer.step()
    if part != "rollout":
        function, name = broken(part)
        wrap(trainer, **{name: function})
    before = bits([trainer.weights, trainer.train_state.optimizer])
    state = scaler(trainer)
    assert state["skipped"] == 0
    assert trainer.step()["loss/skipped_steps"] == 5
    kept = trainer.train_state
    with pytest.raises(UserError) as caught:
        trainer.step()
    assert trainer.train_state is kept
    assert bits([trainer.weights, trainer.train_state.optimizer]) == before
    message, hint = caught.value.message, caught.value.hint
    words = {"rollout": "the rollout", "advantages": "the advantages"}
    where = words.get(part, f"the {part} pass")
    assert message == f"10 minibatches in a row were not finite, first in {where}"
    expected = {
        "rollout": "its observations, values aren't finite: check the environment",
        "advantages": "lower train.gamma or train.gae_lambda",
    }.get(part, "lower train.learning_rate")
    if kind != "fp32" and part.endswith("ward"):
        expected += ", or --train.precision fp32"
    assert hint == f"{expected}; the last good weights are kept"


def test_command_reports_skipped_minibatches_and_keeps_the_last_good_checkpoint(
    script, here, monkeypatch, capsys
):

    def breaks(trainer, rollout):
        if trainer.epoch == 2:
            function, name = broken("backward")
            wrap(trainer, **{name: function})

    with monkeypatch.context() as patch:
        before_training(patch, breaks)
        more = ["--checkpoint-interval", "1", "--train.replay-ratio", "5"]  # 10 minibatches
        code = script.main([*TINY, *more, "--train.precision", "fp16"])
    stderr = capsys.readouterr().err
    assert code == 2 and "Traceback" not in stderr
    assert "error: 10 minibatches in a row were not finite, first in the backward pass" in stderr
    assert "hint: lower train.learning_rate, or --train.precision fp32; the last good" in stderr
    *_, made = sorted(Path("checkpoints").glob("*/*/0*"))
    assert made.name == f"{2 * BATCH:016d}"
    assert all(np.isfinite(np.array(w)).all() for _, w in named(checkpoint.load(made).weights))
    arrays = checkpoint.load_state(made).arrays
    assert (arrays["scaler.good"].item(), arrays["scaler.skipped"].item()) == (20, 0)

    assert script.main(["squared", "--resume", "latest"]) == 0
    logs = [record for record in records(here) if "epoch" in record]
    assert [record["epoch"] for record in logs] == [1, 2, 3, 4, 5, 6]
    assert all(np.isfinite(record["loss/total"]) for record in logs)


@pytest.mark.parametrize(("kind", "overlap"), [*zip(LOW, [0, 1], strict=True)])
def test_resumed_run_has_the_scale_of_an_uninterrupted_one(kind, overlap, monkeypatch):
    monkeypatch.setattr(precision, "GROWTH_INTERVAL", 5)
    monkeypatch.setattr(precision, "FIRST_SCALE", 2.0**24)
    whole = start(kind, f"--train.overlap={overlap}")
    logs = [learned(record) for record in whole]
    if kind == "fp16":
        scales = [record["loss/scale"] for record in logs]
        assert scales[0] < 2.0**24 and max(np.diff(scales)) > 0
        assert logs[-1]["loss/skipped_steps"] > 0
    for epoch in range(0, 8, 3):
        first = start(kind, f"--train.overlap={overlap}")
        for _ in range(epoch):
            first.step()
        trainer = start(kind, f"--train.overlap={overlap}")
        trainer.restore(first.weights, first.state())
        assert [learned(record) for record in trainer] == logs[epoch:]
        ours, theirs = (dict(t.state().arrays) for t in (trainer, whole))
        assert bits([trainer.weights, ours]) == bits([whole.weights, theirs])
