"""Measure the costs of starting work on a device, of waiting for it, and of changing devices.

    python benchmarks/device_costs.py [--json FILE]

These costs, not arithmetic, decide how many groups of agents are worthwhile, whether to act on the
CPU while the GPU trains, and how many updates may be queued.

On CUDA a graph of the GPU must not use an array that ``mx.async_eval`` computes on the CPU: it
would wait forever (MLX 0.32). Here such an array is evaluated in the same ``mx.eval``, or earlier.
"""

# ruff: noqa: I001
import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx
import numpy as np

from puffer_mlx.system import mlx_memory
from puffer_mlx.system.json_text import write_json

Spread = dict[str, float]  # median, min, max
Results = dict[str, dict[str, Spread | None]]  # measurement -> device -> spread
COLUMNS = ("cpu", "gpu")
WARM_UP = 2  # runs that aren't counted


@dataclass(frozen=True)
class Effort:
    """Sizes of the measurements. The default takes about ten seconds on a CPU.

    Args:
        repeats: Repeats of each measurement.
        nbytes: Bytes of the round trips.
        chains: Lengths of the chains of tiny operations, the shorter one first.
        queued: Number of queued operations on the CPU and the GPU. Must be more than
            ``async_eval`` queues without blocking.
        slow_elements: Elements of a slow operation that needs little memory (cumulative sum).
        rows: Rows of the small training step whose memory is measured; 64 -> 256 -> 1.
        depths: Numbers of queued training steps.
    """

    repeats: int = 15
    nbytes: tuple[int, ...] = (4, 2**16, 2**21)
    chains: tuple[int, int] = (100, 1000)
    queued: tuple[int, int] = (300, 4000)
    slow_elements: int = 2**16
    rows: int = 4096
    depths: tuple[int, ...] = (1, 2, 4, 8)


def measure(effort: Effort | None = None) -> Results:
    """Measure the costs of starting work on devices and of changing between devices.

    Measures the CPU, and the GPU if it is MLX's default device.

    Returns:
        For each measurement and device: median, smallest and largest value; None for a GPU that
        isn't measured. Measurements between two devices use the device and a CPU stream; in the
        CPU's column, two CPU streams.
    """
    effort = effort or Effort()
    home, other = mx.default_stream(mx.cpu), mx.new_stream(mx.cpu)
    results: Results = {}
    gpu = mx.default_stream(mx.gpu) if mx.default_device() == mx.gpu else None
    for column, stream, peer in (("cpu", home, other), ("gpu", gpu, gpu)):
        spreads: dict[str, Spread] = {}
        if stream is not None and peer is not None:
            spreads = _device(effort, stream) | _between(effort, home, peer)
        for name in spreads or results:
            results.setdefault(name, {"cpu": None, "gpu": None})[column] = spreads.get(name)
    return results


def table(results: Results) -> str:
    """Return a table of medians: a row per measurement, a column per device."""
    lines = [f"{'median':46}" + "".join(f"{column.upper():>17}" for column in COLUMNS)]
    for name, row in results.items():
        cells = [f"{spread['median']:,.2f}" if spread else "-" for spread in row.values()]
        lines.append(f"{name:46}" + "".join(f"{cell:>17}" for cell in cells))
    lines += ["", "CPU column of measurements with two devices: two CPU streams."]
    if all(row["gpu"] is None for row in results.values()):
        why = "not measured: --device cpu" if mx.is_available(mx.gpu) else "none in this MLX"
        lines.append(f"GPU: {why}")
    return "\n".join(lines)


def _device(effort: Effort, stream: mx.Stream) -> dict[str, Spread]:
    """Measure one device: evaluations, round trips, chains of operations and queued updates."""
    one = _ready(mx.ones(1, stream=stream))
    short, long = effort.chains
    spreads = {"smallest eval, us": _us(effort, lambda: mx.eval(mx.add(one, one, stream=stream)))}
    for nbytes in effort.nbytes:
        spreads[f"host -> device -> host, {_size(nbytes)}, us"] = _us(
            effort, _round_trip(nbytes, (stream,))
        )
    for length in (short, long):
        pairs = [_timed(lambda n=length: _chain(one, n, stream)) for _ in _runs(effort)]
        returned, done = zip(*pairs[WARM_UP:], strict=True)
        spreads[f"chain of {length}: async_eval returns, us"] = _spread(returned, 1e6)
        spreads[f"chain of {length}: done, us"] = _spread(done, 1e6)
    first, last = (spreads[f"chain of {length}: done, us"] for length in (short, long))
    each = (last["median"] - first["median"]) / (long - short)
    spreads["one more tiny operation, us"] = _spread([max(0.0, each)])
    queued = effort.queued[stream.device == mx.gpu]
    spreads["operations queued before async_eval blocks"] = _depth(effort, queued, stream)
    for depth in effort.depths:
        name = f"memory of {depth} queued update{'s' if depth > 1 else ''}, MiB"
        spreads[name] = _spread([_queued_memory(effort.rows, depth, stream) for _ in range(3)])
    return spreads


def _between(effort: Effort, home: mx.Stream, peer: mx.Stream) -> dict[str, Spread]:
    """Measure transfers between the CPU's default stream and another stream, and their overlap."""
    spreads = {}
    for nbytes in effort.nbytes:
        spreads[f"CPU -> device -> CPU, one eval, {_size(nbytes)}, us"] = _us(
            effort, _round_trip(nbytes, (home, peer, home))
        )
    spreads["a fence between CPU and device, us"] = _fence(effort, home, peer)
    spreads["beside a CPU stream, times as fast"] = _overlap(effort, home, peer)
    return spreads


def _round_trip(nbytes: int, streams: tuple[mx.Stream, ...]) -> Callable[[], object]:
    """Return a function that writes on the host, computes on each stream, and reads on the host.

    The buffer lies in the host's memory, like those of rollouts (``rollout/buffer.py``).
    """
    buffer = _ready(mx.zeros(max(1, nbytes // 4)))
    view = np.asarray(buffer)
    mlx_memory.keep_on_host(view.ctypes.data, view.nbytes)
    source, read = np.ones_like(view), np.empty_like(view)

    def once() -> None:
        np.copyto(view, source)
        result = _through(buffer, streams)
        mx.eval(result)
        np.copyto(read, np.asarray(result))

    return once


def _fence(effort: Effort, home: mx.Stream, peer: mx.Stream) -> Spread:
    """Return how much longer three operations take if the second is on another device, >= 0."""
    one = _ready(mx.ones(1, stream=home))

    def seconds(streams: tuple[mx.Stream, ...]) -> float:
        began = time.perf_counter()
        mx.eval(_through(one, streams))
        return time.perf_counter() - began

    alone, through = (home,) * 3, (home, peer, home)
    more = [seconds(through) - seconds(alone) for _ in range(4 * effort.repeats)]
    return _spread([max(0.0, each / 2) for each in more[WARM_UP:]], 1e6)


def _through(array: mx.array, streams: tuple[mx.Stream, ...]) -> mx.array:
    """Return an array after one operation on each stream, one after the other."""
    for stream in streams:
        array = mx.add(array, array, stream=stream)
    return array


def _chain(array: mx.array, length: int, stream: mx.Stream) -> mx.array:
    """Return a lazy array: a chain of tiny operations that can only run one after another."""
    for _ in range(length):
        array = mx.add(array, array, stream=stream)
    return array


def _slow_graph(length: int, elements: int, stream: mx.Stream) -> mx.array:
    """Return a lazy array: a chain of slow operations (cumulative sums) that need little memory."""
    array = _ready(mx.zeros((1, elements), stream=stream))
    for _ in range(length):
        array = mx.cumsum(array, axis=1, stream=stream)
    return array


def _depth(effort: Effort, queued: int, stream: mx.Stream) -> Spread:
    """Return how many queued operations are still in progress when ``mx.async_eval`` returns."""
    pairs = [_timed(lambda: _slow_graph(queued, effort.slow_elements, stream)) for _ in range(5)]
    return _spread([queued * (1 - returned / done) for returned, done in pairs[WARM_UP:]])


def _queued_memory(rows: int, depth: int, stream: mx.Stream) -> float:
    """Return the additional memory, in MiB, of ``depth`` queued updates of a small policy."""

    def loss(weights: list[mx.array], x: mx.array) -> mx.array:
        return mx.mean(mx.square(mx.tanh(x @ weights[0]) @ weights[1]))

    with mx.stream(stream):
        weights = [mx.full((64, 256), 0.01), mx.full((256, 1), 0.01)]
        x = mx.ones((rows, 64))
        mx.eval(weights, x)
        memory_before = mx.get_active_memory()
        mx.reset_peak_memory()
        for _ in range(depth):
            _, grads = mx.value_and_grad(loss)(weights, x)
            weights = [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]
            mx.async_eval(weights)
        mx.eval(weights)
    return (mx.get_peak_memory() - memory_before) / 2**20


def _overlap(effort: Effort, home: mx.Stream, peer: mx.Stream) -> Spread:
    """Return the speed-up of evaluating graphs on two streams together; 2 is the best.

    Each graph has few operations, because MLX stops submitting at about 50 on a CPU. Both graphs
    take the same time.
    """
    elements, count = 8 * effort.slow_elements, 8
    seconds = {}
    for stream in (home, peer):
        build = lambda s=stream: _slow_graph(count, elements, s)  # noqa: E731
        pairs = [_timed(build) for _ in range(WARM_UP + 3)]
        seconds[stream] = statistics.median(done for _, done in pairs[WARM_UP:])
    counts = [max(1, round(count * min(8.0, seconds[home] / seconds[s]))) for s in (home, peer)]

    def both(overlapped: bool) -> float:
        graphs = [_slow_graph(n, elements, s) for n, s in zip(counts, (home, peer), strict=True)]
        began = time.perf_counter()
        if overlapped:
            mx.eval(graphs)
        else:
            for graph in graphs:
                mx.eval(graph)
        return time.perf_counter() - began

    pairs = [(both(False), both(True)) for _ in _runs(effort)]
    return _spread([sequential / overlapped for sequential, overlapped in pairs[WARM_UP:]])


def _timed(build: Callable[[], mx.array]) -> tuple[float, float]:
    """Evaluate a new array. Returns the seconds that ``mx.async_eval`` takes, and all seconds."""
    array = build()
    began = time.perf_counter()
    mx.async_eval(array)
    returned = time.perf_counter()
    mx.eval(array)
    return returned - began, time.perf_counter() - began


def _us(effort: Effort, call: Callable[[], object]) -> Spread:
    """Measure a function several times. Returns its duration in microseconds."""
    seconds = []
    for _ in _runs(effort):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return _spread(seconds[WARM_UP:], 1e6)


def _runs(effort: Effort) -> range:
    return range(WARM_UP + effort.repeats)


def _ready(array: mx.array) -> Any:
    mx.eval(array)
    return array


def _spread(values: Any, unit: float = 1.0) -> Spread:
    return {
        "median": unit * statistics.median(values),
        "min": unit * min(values),
        "max": unit * max(values),
    }


def _size(nbytes: int) -> str:
    """Format a number of bytes with a unit: 65536 -> 64 KiB."""
    if nbytes < 1024:
        return f"{nbytes} B"
    return f"{nbytes // 1024} KiB" if nbytes < 2**20 else f"{nbytes // 2**20} MiB"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write the record to a file")
    options = parser.parse_args()
    results = measure()
    print(table(results))
    if options.json:
        write_json(results, options.json)
