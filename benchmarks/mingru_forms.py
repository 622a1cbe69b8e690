"""Forward and backward of upstream's Breakout policy on one minibatch, in each form.

Forms take turns, so that a noisy machine disturbs all of them; medians and ratios are printed. The
fused form is the C extension on a CPU and kernels on a GPU; the log-space form is the one of
upstream's torch backend.
"""

# ruff: noqa: I001
import argparse
import statistics
import time

import puffer_mlx  # first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx

from puffer_mlx.system.blas import blas_name
from puffer_mlx.system.mlx_memory import choose_cache_limit
from puffer_mlx.policy.networks.mingru import FORWARD, mingru, mingru_reference


def log_space(x: mx.array, weight: mx.array, first: mx.array) -> mx.array:
    """The recurrence as cumulative sums of logarithms, zero initial state."""
    hidden, gate, projection = mx.split(x @ weight.T, 3, axis=-1)
    log_a = -mx.logaddexp(gate, mx.array(0.0))
    log_g = mx.where(
        hidden >= 0, mx.log(mx.maximum(hidden, 0) + 0.5), -mx.logaddexp(-hidden, mx.array(0.0))
    )
    total = mx.cumsum(log_a, axis=0)
    states = mx.exp(
        total + mx.logcumsumexp(log_g - mx.logaddexp(-gate, mx.array(0.0)) - total, axis=0)
    )
    return x + mx.sigmoid(projection) * (states - x)


def plain(x: mx.array, weight: mx.array, first: mx.array) -> mx.array:
    return mingru_reference(mx.split(x @ weight.T, 3, axis=-1), x, first)[0]


def fused_form(x: mx.array, weight: mx.array, first: mx.array) -> mx.array:
    return mingru(x, weight, first)[0]


def step(layer):
    """Value and gradient of a policy made of two such layers."""

    def loss(weights, observations, first):
        T, S, D = observations.shape
        h = (observations.reshape(T * S, D) @ weights["encoder"].T).reshape(T, S, -1)
        for weight in weights["layers"]:
            h = layer(h, weight, first)
        return mx.mean(mx.square(h.reshape(T * S, -1) @ weights["decoder"].T))

    return mx.value_and_grad(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--forms", default="", help="only those that hold one of these words")
    options = parser.parse_args()
    T, S, D, H, A = 64, options.segments, 118, 64, 4
    choose_cache_limit()
    assert FORWARD.form() is not None, "the fused form could not be built"
    keys = mx.random.split(mx.random.key(0), 4)
    weights = {
        "encoder": mx.random.uniform(-0.1, 0.1, (H, D), key=keys[0]),
        "layers": [mx.random.uniform(-0.1, 0.1, (3 * H, H), key=keys[1]) for _ in range(2)],
        "decoder": mx.random.uniform(-0.1, 0.1, (A, H), key=keys[2]),
    }
    observations = mx.random.uniform(shape=(T, S, D), key=keys[3])
    first = mx.zeros((S, H))
    mx.eval(weights, observations, first)
    forms = {
        "fused": mx.compile(step(fused_form)),
        "fused, not compiled": step(fused_form),
        "plain MLX, compiled": mx.compile(step(plain)),
        "plain MLX": step(plain),
        "log-space, compiled": mx.compile(step(log_space)),
    }
    words = options.forms.split(",")
    forms = {name: form for name, form in forms.items() if any(word in name for word in words)}
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(options.repeat + 2):
        for name, form in forms.items():
            began = time.perf_counter()
            mx.eval(form(weights, observations, first))
            if turn >= 2:  # two rounds of warm-up: the first compiles
                seconds[name].append(time.perf_counter() - began)
    best = statistics.median(seconds["fused"])
    print(f"puffer_mlx {puffer_mlx.__version__}, BLAS {blas_name()}")
    print(f"{mx.default_device()}, T = {T}, S = {S}: {T * S} samples, {options.repeat} runs each")
    for name, values in seconds.items():
        median = statistics.median(values)
        ms = f"{1000 * median:9.2f} ms ({1000 * min(values):.2f} at best)"
        print(f"{name:22} {ms}  {median / best:5.2f} x")


if __name__ == "__main__":
    main()
