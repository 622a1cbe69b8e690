"""tests/hardware: on a CPU every item passes that can, and each finds what it looks for."""

from typing import Any

import coded_environment
import hardware_kernels as kernels
import mlx.core as mx
import numpy as np
import pytest
from emulated_run import stand_in
from hardware_items import ITEMS
from mlx.utils import tree_map

from puffer_mlx.check.gpu.items import FAIL, PASS, SKIP, judge
from puffer_mlx.check.item_processes import known
from puffer_mlx.errors import UserError
from puffer_mlx.export import importing
from puffer_mlx.policy.networks.mingru import MinGRU
from puffer_mlx.ppo import closed_form, precision
from puffer_mlx.ppo.optimizers import muon
from puffer_mlx.profiling import timeline
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.training import collector, results, trainer

ON_GPU = {"around", "loss", "acting", "several", "round-trip", "where-to-act", "capture"}
TIMED = {"overlap", "profile", "profile-cost"}  # of a machine that does nothing else


def verdict(name: str) -> tuple[str, str]:
    (item,) = known(ITEMS, [name])
    return judge(item, True)[:2]


def wrong_step(patch):
    real = MinGRU.step

    def step(self, *arguments):
        out, state = real(self, *arguments)
        return out, [0.9 * layer for layer in state]

    patch.setattr(MinGRU, "step", step)


def nan_cast(patch):
    def cast(weights, name):
        return weights if name == "fp32" else tree_map(lambda w: w * float("nan"), weights)

    patch.setattr(precision, "lower", cast)


def no_carry(patch):
    real = RolloutBuffer.begin
    patch.setattr(RolloutBuffer, "begin", lambda self, _: real(self, self))


def more_lag(patch):
    """What acts beside training is one update older still."""
    real = collector.Collector.begin

    def begin(self, weights, *arguments):
        older, self.older = getattr(self, "older", weights), weights
        return real(self, older if self.overlap else weights, *arguments)

    patch.setattr(collector.Collector, "begin", begin)


def one_slot(patch):
    real = collector.Collector.begin

    def begin(self, *arguments):
        self.buffers = [self.buffer, self.buffer]
        return real(self, *arguments)

    patch.setattr(collector.Collector, "begin", begin)


def no_way_back(patch):
    patch.setattr(coded_environment.Faulty, "restore", lambda self, state: None, raising=False)


def steps_that_count(patch):
    patch.setattr(muon.STEP, "choose", lambda *_: None)  # whose own choice is in C++
    real = muon.step_if_finite

    def step(update, weights, grads, state, *arguments):
        *_, ok = real(update, weights, grads, state, *arguments)
        return *update(weights, grads, state), ok

    patch.setattr(muon, "step_if_finite", step)


def silent_error(patch):
    patch.setattr(results, "not_finite", lambda *_: UserError("something isn't finite"))


def leak(patch):
    real, kept = trainer.Trainer.step, []

    def step(self):
        kept.append(mx.zeros(100_000))
        mx.eval(kept[-1])
        return real(self)

    patch.setattr(trainer.Trainer, "step", step)


def no_durations(patch):
    real = timeline.Trace._document

    def document(self, lost):
        made = real(self, lost)
        for event in made["traceEvents"]:
            event.pop("dur", None)
        return made

    patch.setattr(timeline.Trace, "_document", document)


def changed_import(patch):
    real = importing.convert_weights

    def weights_of(*arguments: Any):
        policy, weights = real(*arguments)
        return policy, tree_map(lambda w: w + 1e-7, weights)

    patch.setattr(importing, "convert_weights", weights_of)


def wrong_cast(patch):
    """What trains in low precision isn't what acts."""

    def cast(weights, name):
        low = precision.DTYPES[name]
        return weights if name == "fp32" else tree_map(lambda w: (1.2 * w).astype(low), weights)

    patch.setattr(kernels, "lower", cast)
    patch.setattr(precision, "lower", cast)


FAULTS = {
    "steps": (wrong_step, "MinGRU"),
    "gradients": (wrong_cast, "gradient by"),
    "rollouts": (no_carry, "observations of rollout"),
    "losses": (more_lag, "losses apart by"),
    "torn-slots": (one_slot, "torn slot"),
    "exceptions": (no_way_back, "losses apart by"),
    "precisions": (nan_cast, "bf16"),
    "overflow": (steps_that_count, "changed in a skipped step"),
    "not-finite": (silent_error, "another phase"),
    "memory": (leak, "bytes left behind"),
    "trace": (no_durations, "lacks dur"),
    "files": (changed_import, "bin changed"),
}


@pytest.mark.parametrize("name", [item.name for item in ITEMS if item.name not in TIMED])
def test_items(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    assert verdict(name)[0] == (SKIP if name in ON_GPU else PASS)
    if name in ON_GPU:
        return
    plant, words = FAULTS[name]
    plant(monkeypatch)
    found, text = verdict(name)
    assert found == FAIL and words in text


@pytest.fixture
def a_gpu(monkeypatch):
    stand_in(monkeypatch, kernels)


def test_the_loss(a_gpu, monkeypatch):
    assert verdict("loss")[0] == PASS
    real = closed_form.launch_moments
    monkeypatch.setattr(closed_form, "launch_moments", lambda adv: 1.001 * real(adv))
    found, text = verdict("loss")
    assert found == FAIL and text.startswith("discrete, fp32: ")


def test_several_policies(a_gpu, monkeypatch):
    """A row for which another policy acts than should is found."""
    monkeypatch.setattr(kernels, "S", 11)
    monkeypatch.setattr(kernels, "NETWORKS", ["LSTM"])
    assert verdict("several")[0] == PASS
    real = kernels.crews_of
    monkeypatch.setattr(kernels, "crews_of", lambda acts, n: real(np.roll(acts, 1), n))
    found, text = verdict("several")
    assert found == FAIL and "at most 2e-05" in text
