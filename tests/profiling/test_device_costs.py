"""What bench.py --sync measures: its record's shape, and what must hold on any machine."""

import mlx.core as mx
import pytest

from puffer_mlx.profiling import device_costs
from puffer_mlx.profiling.device_costs import Effort, measure, table

TINY = Effort(
    repeats=3, nbytes=(4, 4096), chains=(10, 2000), queued=(200, 200), slow=2**12, rows=64
)


@pytest.fixture(scope="module")
def results():
    return measure(TINY)


def median(results, name: str) -> float:
    return results[name]["cpu"]["median"]


def test_the_record(results):
    assert list(results) == [
        "smallest eval, us",
        "host -> device -> host, 4 B, us",
        "host -> device -> host, 4 KiB, us",
        "chain of 10: async_eval returns, us",
        "chain of 10: done, us",
        "chain of 2000: async_eval returns, us",
        "chain of 2000: done, us",
        "one more tiny operation, us",
        "operations queued before async_eval blocks",
        "memory of 1 queued update, MiB",
        "memory of 2 queued updates, MiB",
        "memory of 4 queued updates, MiB",
        "memory of 8 queued updates, MiB",
        "CPU -> device -> CPU, one eval, 4 B, us",
        "CPU -> device -> CPU, one eval, 4 KiB, us",
        "a fence between CPU and device, us",
        "beside a CPU stream, times as fast",
    ]
    for name, row in results.items():
        assert list(row) == ["cpu", "gpu"]
        spread = row["cpu"]
        assert 0 <= spread["min"] <= spread["median"] <= spread["max"], name
        assert (row["gpu"] is None) == (mx.default_device() == mx.cpu)


def test_what_holds_anywhere(results):
    assert median(results, "chain of 2000: done, us") > median(results, "chain of 10: done, us")
    assert median(results, "one more tiny operation, us") > 0
    for length in (10, 2000):
        returned = results[f"chain of {length}: async_eval returns, us"]["cpu"]
        assert returned["median"] <= median(results, f"chain of {length}: done, us")
    assert median(results, "smallest eval, us") > 0
    assert median(results, "beside a CPU stream, times as fast") > 0
    # Activations (64, 256) and the gradients of (64, 256) and (256, 1), at least.
    assert median(results, "memory of 1 queued update, MiB") >= (64 * 256 * 4) / 2**20
    assert median(results, "operations queued before async_eval blocks") <= 200


def test_a_fence_is_half_of_what_two_crossings_take(monkeypatch):
    """With a clock that only evaluations move: 9 us alone, 20 more through another stream."""
    now, home, peer = [0.0], mx.default_stream(mx.cpu), mx.new_stream(mx.cpu)
    monkeypatch.setattr(
        device_costs, "_through", lambda _, streams: 29e-6 if peer in streams else 9e-6
    )
    monkeypatch.setattr(device_costs, "_ready", lambda array: array)
    monkeypatch.setattr(device_costs.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(device_costs.mx, "eval", lambda took: now.__setitem__(0, now[0] + took))
    assert device_costs._fence(TINY, home, peer)["median"] == pytest.approx(10)


@pytest.mark.parametrize("column", ["cpu", "gpu"])
def test_the_table_shows_medians_and_says_where_there_is_no_gpu(monkeypatch, column):
    row = {"cpu": None, "gpu": None, column: {"median": 1234.5, "min": 1.0, "max": 9e9}}
    text = table({"smallest eval, us": row})
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["median", "CPU", "GPU"]
    numbers = ["1,234.50", "-"]
    assert lines[1] == ["smallest", "eval,", "us", *numbers[:: 1 if column == "cpu" else -1]]
    assert ("GPU: " in text) == (column == "cpu")
    monkeypatch.setattr(device_costs.mx, "is_available", lambda device: True)
    assert ("GPU: not measured: --device cpu" in table({"x": row})) == (column == "cpu")
