"""Items of tests/hardware pass on a CPU, and find planted faults."""

import hardware_kernels as kernels
import mlx.core as mx
import numpy as np
import pytest
from emulated_run import stand_in
from hardware_items import DEVELOPER_ITEMS

from puffer_mlx.check.items import FAIL, OK, SKIP, run_item, select_items
from puffer_mlx.training import collector, trainer

NEED_GPU = {"around", "acting", "several", "round-trip", "capture"}
NEED_IDLE_MACHINE = {"overlap"}  # not tested
ON_CPU = {item.name for item in DEVELOPER_ITEMS} - NEED_GPU - NEED_IDLE_MACHINE


def verdict(name: str) -> tuple[str, str]:
    (item,) = select_items(DEVELOPER_ITEMS, [name])
    (finding,) = run_item(item, set(), True)
    return finding[:2]


def act_with_older_weights(patch):
    real = collector.Collector.begin

    def begin(self, weights, *arguments):
        older, self.older = getattr(self, "older", weights), weights
        return real(self, older if self.overlap else weights, *arguments)

    patch.setattr(collector.Collector, "begin", begin)


def use_one_buffer(patch):
    real = collector.Collector.begin

    def begin(self, *arguments):
        self.buffers = [self.buffer, self.buffer]
        return real(self, *arguments)

    patch.setattr(collector.Collector, "begin", begin)


def leak(patch):
    real, kept = trainer.Trainer.step, []

    def step(self):
        kept.append(mx.zeros(100_000))
        mx.eval(kept[-1])
        return real(self)

    patch.setattr(trainer.Trainer, "step", step)


FAULTS = {
    act_with_older_weights: ("losses", "losses differ by"),
    use_one_buffer: ("losses", "losses differ by"),
    leak: ("memory", "bytes left behind"),
}


@pytest.mark.parametrize("name", sorted(NEED_GPU))
def test_item_is_skipped_without_a_gpu(name):
    assert verdict(name)[0] == SKIP


@pytest.mark.parametrize("name", sorted(ON_CPU))
def test_item_passes_on_a_cpu(name):
    assert verdict(name)[0] == OK


@pytest.mark.parametrize("plant", FAULTS)
def test_item_finds_a_fault(monkeypatch, plant):
    name, words = FAULTS[plant]
    plant(monkeypatch)
    found, text = verdict(name)
    assert found == FAIL and words in text


@pytest.fixture
def a_gpu(monkeypatch):
    stand_in(monkeypatch, kernels)


def test_item_several_finds_a_row_of_another_policy(a_gpu, monkeypatch):
    monkeypatch.setattr(kernels, "S", 11)
    monkeypatch.setattr(kernels, "NETWORKS", ["LSTM"])
    assert verdict("several")[0] == OK
    real = kernels.blocks_of_agents
    monkeypatch.setattr(kernels, "blocks_of_agents", lambda acts, n: real(np.roll(acts, 1), n))
    found, text = verdict("several")
    assert found == FAIL and "at most 2e-05" in text
