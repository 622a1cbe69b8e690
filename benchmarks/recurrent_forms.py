"""LSTM, GRU and MinGRU: forward and backward of one layer, and one step of acting, in each form.

First the fused operations of the default device are checked against the pure MLX forms on the CPU;
then forms take turns, so that a noisy machine disturbs all of them, and medians are printed: of the
time on the clock, and of the processor time of all threads, which other processes disturb less.

On a CPU a fused gradient alone that takes too large a part of plain MLX's time is an error.
--policy: forward and backward of upstream's Breakout policy around two layers, too.

fused: the C extension on a CPU, kernels on a GPU (there once for each R of --rows and U of
--chunks, see ops/recurrence/walk.metal.h); pure: plain MLX, time-major; mlx.nn: MLX's own layers,
without the gradient by their input; log-space: MinGRU's recurrence as upstream's torch backend has
it; torch: with each number of threads of --threads on a CPU, cuDNN on a CUDA GPU, if torch is
installed.
"""

# ruff: noqa: I001
import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import puffer_mlx  # first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx
import mlx.nn as nn

from puffer_mlx.ops import recurrence as kernels
from puffer_mlx.system.blas import blas_name
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.mlx_memory import choose_cache_limit
from puffer_mlx.ops import linear
from puffer_mlx.policy.networks import gru as of_gru
from puffer_mlx.policy.networks.gru import gru, gru_reference
from puffer_mlx.policy.networks import lstm as of_lstm
from puffer_mlx.policy.networks.lstm import lstm, lstm_reference
from puffer_mlx.policy.networks import mingru as of_mingru
from puffer_mlx.policy.networks.mingru import mingru, mingru_reference

Layer = dict[str, mx.array]
Form = Callable[[], Any]  # runs once, to the end
TOLERANCE = 1e-4  # of the largest number of an array
PARTS = {"LSTM": 4, "GRU": 3, "MinGRU": 3}  # rows of a layer's weights, in H
AT_MOST = {"LSTM": 0.3, "GRU": 0.3, "MinGRU": 0.15}  # of plain MLX's time, on a CPU
PRODUCTS = {"LSTM": 6, "GRU": 6, "MinGRU": 3}  # of a pass, each 2 T S H (parts H) operations


def new_layer(name: str, hidden: int) -> Layer:
    rows = PARTS[name] * hidden
    shapes = {"weight_ih": (rows, hidden), "weight_hh": (rows, hidden)}
    biases = {"bias_ih": (rows,), "bias_hh": (rows,)}
    bound = hidden**-0.5
    made = {k: mx.random.uniform(-bound, bound, s) for k, s in {**shapes, **biases}.items()}
    return made if name != "MinGRU" else {"weight": made["weight_ih"]}


def by_fused(name: str, layer: Layer, x: mx.array, first: mx.array, keep: mx.array) -> mx.array:
    """Outputs (T, S, H) as the policy computes them."""
    if name == "LSTM":
        return lstm(x, layer, {"h": first, "c": first}, keep)[0]
    if name == "GRU":
        return gru(x, layer, first, keep)[0]
    return mingru(x, layer["weight"], first, keep)[0]


def by_reference(name: str, layer: Layer, x: mx.array, first: mx.array, keep: mx.array) -> mx.array:
    """The same in plain MLX."""
    T, S, H = x.shape
    rows = x.reshape(T * S, H)
    if name == "LSTM":
        z = linear(rows, layer["weight_ih"], layer["bias_ih"] + layer["bias_hh"])
        z = z.reshape(T, S, 4 * H)
        return lstm_reference(z, layer["weight_hh"], first, first, keep)[0]
    if name == "GRU":
        z = linear(rows, layer["weight_ih"], layer["bias_ih"]).reshape(T, S, 3 * H)
        return gru_reference(z, layer["weight_hh"], layer["bias_hh"], first, keep)[0]
    u = linear(rows, layer["weight"]).reshape(T, S, 3 * H)
    return mingru_reference(mx.split(u, 3, axis=-1), x, first, keep)[0]


def by_log_space(name: str, layer: Layer, x: mx.array, first: mx.array, keep: None) -> mx.array:
    """MinGRU's recurrence as cumulative sums of logarithms, zero initial state."""
    zero = mx.array(0.0)
    hidden, gate, projection = mx.split(x @ layer["weight"].T, 3, axis=-1)
    log_g = mx.where(hidden >= 0, mx.log(mx.maximum(hidden, 0) + 0.5), -mx.logaddexp(-hidden, zero))
    total = mx.cumsum(-mx.logaddexp(gate, zero), axis=0)
    states = mx.exp(total + mx.logcumsumexp(log_g - mx.logaddexp(-gate, zero) - total, axis=0))
    return x + mx.sigmoid(projection) * (states - x)


# ---- correctness ---------------------------------------------------------------------------------


def recurrence(name: str) -> tuple[list[str], Callable, Callable, Callable]:
    """What the fused kernels compute, without a GPU's products in TF32.

    Returns:
        names of inputs; forward; backward, of the inputs, forward's results and dh, giving the
        gradients by those inputs that have one; the pure form's outputs.
    """

    def lstm_gradient(z, weight, h0, c0, keep, saved, dh):
        h, c, gates = saved
        return of_lstm.BACKWARD.form()(gates, weight, h0, c0, keep, h, c, dh)

    def gru_gradient(z, weight, bias, h0, keep, saved, dh):
        h, gates = saved
        dz, _, dh0 = of_gru.BACKWARD.form()(gates, weight, h0, keep, h, dh)
        return dz, dh0

    def mingru_gradient(z, x, h0, keep, saved, dh):
        return of_mingru.BACKWARD.form()(z, x, h0, keep, saved[1], dh)

    def of_mingru_reference(z, *rest):
        return mingru_reference(mx.split(z, 3, axis=-1), *rest)

    names, forward, backward, reference = {
        "LSTM": ("z weight h0 c0 keep", of_lstm.FORWARD.form(), lstm_gradient, lstm_reference),
        "GRU": ("z weight bias h0 keep", of_gru.FORWARD.form(), gru_gradient, gru_reference),
        "MinGRU": ("z x h0 keep", of_mingru.FORWARD.form(), mingru_gradient, of_mingru_reference),
    }[name]
    return names.split(), forward, backward, lambda *a: reference(*a)[0]


def check(name: str, hidden: int, T: int = 9, S: int = 37) -> float:
    """The largest error of the fused outputs and gradients, in parts of the largest number."""
    names, forward, backward, reference = recurrence(name)
    H, parts = hidden, PARTS[name]
    shapes = {"z": (T, S, parts * H), "weight": (parts * H, H), "bias": (parts * H,)}
    shapes |= {"x": (T, S, H), "h0": (S, H), "c0": (S, H)}
    given = [mx.random.normal(shapes[n]) * 0.3 for n in names if n != "keep"]
    given.append((mx.random.uniform(shape=(T, S)) > 0.3).astype(mx.float32))
    dh = mx.random.normal((T, S, H))
    mx.eval(given, dh)
    saved = forward(*given)
    found = [saved[0], *backward(*given, saved, dh)]
    mx.eval(found)
    differentiable = [i for i, n in enumerate(names) if n in ("z", "x", "h0", "c0")]
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    outputs = reference(*given)
    gradients = mx.grad(lambda *a: mx.sum(reference(*a) * dh), argnums=differentiable)(*given)
    expected = [outputs, *gradients]
    mx.eval(expected)
    errors: list[Any] = [
        (mx.abs(a - b).max() / mx.maximum(1, mx.abs(b).max())).item()
        for a, b in zip(found, expected, strict=True)
    ]
    mx.set_default_device(device)
    return max(errors) if all(e == e for e in errors) else float("nan")


# ---- forms ---------------------------------------------------------------------------------------


def with_sizes(rows: int, chunk: int, function: Callable) -> Callable:
    """``function``, the kernels traced in it with these sizes: R, and ``kernels.CHUNK``."""

    def traced(*arguments):
        with mock.patch.multiple(
            kernels,
            rows_of_block=lambda *_: rows,
            CHUNK=dict.fromkeys(kernels.CHUNK, chunk),
        ):
            return function(*arguments)

    return traced


def run(function: Callable, *arguments: Any) -> Form:
    return lambda: mx.eval(function(*arguments))


def passes(form: Callable, name: str) -> Callable:
    """Outputs' sum and all gradients of a layer."""
    return mx.value_and_grad(
        lambda layer, x, first, keep: form(name, layer, x, first, keep).sum(), argnums=(0, 1)
    )


def puffer_forms(
    name: str, arrays: tuple, training: bool, sizes: list[tuple[int, int]]
) -> dict[str, Form]:
    """Fused (on a GPU for each R and U) and pure."""

    def whole(form: Callable) -> Callable:
        return passes(form, name) if training else lambda *a: form(name, *a)

    forms = {"fused": run(mx.compile(whole(by_fused)), *arrays)}
    on_gpu = mx.default_device() != mx.cpu
    if on_gpu and name != "MinGRU":
        for rows, chunk in sizes:
            step = mx.compile(with_sizes(rows, chunk, whole(by_fused)))
            forms[f"fused, R {rows}, U {chunk}"] = run(step, *arrays)
    # a GPU's compiler takes minutes for 64 steps in one graph
    pure = whole(by_reference)
    forms["pure"] = run(pure if on_gpu else mx.compile(pure), *arrays)
    return forms


def policy_forms(name: str, T: int, S: int, H: int) -> dict[str, Form]:
    """Gradients of a policy that sees and does what Breakout's does, with two layers."""
    encoder, decoder = (mx.random.uniform(-0.1, 0.1, shape) for shape in ((H, 118), (4, H)))
    weights = {"encoder": encoder, "layers": [new_layer(name, H)] * 2, "decoder": decoder}
    observations, first = mx.random.uniform(shape=(T * S, 118)), mx.zeros((S, H))
    mx.eval(weights, observations, first)

    def gradients(layer: Callable) -> Callable:
        def loss(weights: Any, observations: mx.array, first: mx.array) -> mx.array:
            h = (observations @ weights["encoder"].T).reshape(T, S, H)
            for each in weights["layers"]:
                h = layer(name, each, h, first, None)
            return mx.mean(mx.square(h.reshape(T * S, H) @ weights["decoder"].T))

        return mx.value_and_grad(loss)

    fused, pure, log_space = (gradients(f) for f in (by_fused, by_reference, by_log_space))
    steps = {"fused": mx.compile(fused), "pure": mx.compile(pure), "pure, not compiled": pure}
    if name == "MinGRU":
        steps["log-space"] = mx.compile(log_space)
    return {form: run(step, weights, observations, first) for form, step in steps.items()}


def mlx_form(name: str, x: mx.array, training: bool) -> dict[str, Form]:
    H = x.shape[-1]
    model = {"LSTM": nn.LSTM, "GRU": nn.GRU}[name](H, H)
    batch_first = mx.contiguous(x.swapaxes(0, 1))

    def forward(model: nn.Module, x: mx.array) -> mx.array:
        out = model(x)
        return out[0] if name == "LSTM" else out

    def step(x: mx.array) -> Any:
        return nn.value_and_grad(model, lambda x: forward(model, x).sum())(x)

    mx.eval(model.parameters(), batch_first)
    return {"mlx.nn": run(step if training else lambda x: forward(model, x), batch_first)}


def torch_forms(
    name: str, shape: tuple[int, ...], training: bool, threads: list[int]
) -> dict[str, Form]:
    """PyTorch's layer, unless PyTorch is missing, or has no GPU where MLX uses one."""
    try:
        import torch
    except ImportError:
        return {}
    on_gpu = mx.default_device() != mx.cpu
    if on_gpu and not torch.cuda.is_available():
        return {}
    device = "cuda" if on_gpu else "cpu"
    model = getattr(torch.nn, name)(shape[-1], shape[-1]).to(device)
    x = torch.randn(shape, device=device, requires_grad=training)

    def step(threads: int) -> None:
        torch.set_num_threads(threads)
        with torch.set_grad_enabled(training):
            out = model(x)[0]
            if training:
                model.zero_grad()
                x.grad = None
                out.sum().backward()
        if on_gpu:
            torch.cuda.synchronize()

    if on_gpu:
        return {"torch": lambda: step(1)}
    return {f"torch, {n} threads": lambda n=n: step(n) for n in threads}


# ---- timing --------------------------------------------------------------------------------------


def alternate(forms: dict[str, Form], repeat: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each form: median and best on the clock, median of processor time."""
    clock: dict[str, list[float]] = {name: [] for name in forms}
    work: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(repeat + 2):
        for name, form in forms.items():
            began, worked = time.perf_counter(), time.process_time()
            form()
            if turn >= 2:  # two rounds of warm-up: the first compiles
                clock[name].append(1000 * (time.perf_counter() - began))
                work[name].append(1000 * (time.process_time() - worked))
    return {
        name: {
            "ms": statistics.median(clock[name]),
            "best_ms": min(clock[name]),
            "processor_ms": statistics.median(work[name]),
        }
        for name in forms
    }


def bounded(name: str, hidden: int, T: int = 32, S: int = 128) -> dict[str, float]:
    """Best milliseconds of a gradient by the fused operation alone, and by plain MLX.

    Raises:
        SystemExit: the former takes a larger part of the latter than ``AT_MOST``.
    """
    names, forward, backward, reference = recurrence(name)
    H, parts = hidden, PARTS[name]
    shapes = {"z": (T, S, parts * H), "weight": (parts * H, H), "bias": (parts * H,)}
    shapes |= {"x": (T, S, H), "h0": (S, H), "c0": (S, H), "keep": (T, S)}
    given, dh = [mx.random.uniform(shape=shapes[n]) for n in names], mx.ones((T, S, H))
    saved = forward(*given)
    mx.eval(given, dh, saved)
    plain = mx.compile(mx.grad(lambda *a: mx.sum(reference(*a) * dh), argnums=(0, 1)))
    forms = {"fused": run(backward, *given, saved, dh), "pure": run(plain, *given)}
    found = {form: ms["best_ms"] for form, ms in alternate(forms, 30).items()}
    share = found["fused"] / found["pure"]
    print(f"{name}: the fused gradient alone takes {share:.3f} of plain MLX's time")
    if share > AT_MOST[name]:
        raise SystemExit(f"{name}: that is more than {AT_MOST[name]}: has the compiler lost lanes?")
    return found


def product_speed(rows: int, hidden: int) -> dict[str, float]:
    """Operations per millisecond, on the clock and of processor time, of (rows, H) x (H, 4H)."""
    x, weight = mx.random.normal((rows, hidden)), mx.random.normal((4 * hidden, hidden))
    mx.eval(x, weight)
    found = alternate({"product": run(linear, x, weight)}, 9)["product"]
    return {key: 8 * rows * hidden**2 / found[key] for key in ("best_ms", "processor_ms")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default="LSTM,GRU,MinGRU")
    parser.add_argument("--horizon", type=int, default=64, help="T")
    parser.add_argument("--segments", type=int, default=1024, help="S")
    parser.add_argument("--hidden", type=int, default=128, help="H")
    parser.add_argument("--agents", type=int, default=4096, help="rows of one step of acting")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--rows", default="2,4,8", help="R of the GPU kernels")
    parser.add_argument("--chunks", default="8,16", help="U of the GPU kernels")
    parser.add_argument("--threads", default="1,2", help="of torch on a CPU")
    parser.add_argument("--forms", default="", help="only those that hold one of these words")
    parser.add_argument("--policy", action="store_true", help="with a policy around two layers")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    T, S, H = options.horizon, options.segments, options.hidden
    lists = options.rows, options.chunks, options.threads
    rows, chunks, threads = ([int(n) for n in given.split(",")] for given in lists)
    sizes = list(itertools.product(rows, chunks))
    choose_cache_limit()
    assert of_gru.FORWARD.form() is not None, "the fused forms could not be built"
    print(f"puffer_mlx {puffer_mlx.__version__}, {mx.default_device()}, BLAS {blas_name()}")
    record: dict[str, Any] = {"device": str(mx.default_device()), **vars(options), "results": {}}
    del record["json"]  # a path of this machine
    for name in options.networks.split(","):
        errors = [check(name, H)]
        if name != "MinGRU" and mx.default_device() != mx.cpu:
            errors += [with_sizes(r, u, check)(name, H) for r, u in sizes]
        print(f"{name}: fused against pure, largest error {max(errors):.1e}")
        if not all(error < TOLERANCE for error in errors):
            raise SystemExit(f"{name}: the fused form is wrong")
        if mx.default_device() == mx.cpu:
            record["results"][f"{name} gradient alone"] = bounded(name, H)
        runs: dict[str, dict[str, Form]] = {}
        for title, training, (steps, n) in (
            ("forward and backward", True, (T, S)),
            ("forward", False, (T, S)),
            ("acting", False, (1, options.agents)),
        ):
            layer, x = new_layer(name, H), mx.random.normal((steps, n, H))
            arrays = layer, x, mx.zeros((n, H)), mx.ones((steps, n))
            mx.eval(arrays)
            forms = puffer_forms(name, arrays, training, sizes)
            if name != "MinGRU":
                forms |= mlx_form(name, x, training)
                forms |= torch_forms(name, (steps, n, H), training, threads)
            runs[f"{name} {title}, T {steps}, S {n}"] = forms
        if options.policy:
            runs[f"{name} policy, T {T}, S {S}"] = policy_forms(name, T, S, H)
        words = options.forms.split(",")
        for title, forms in runs.items():
            chosen = {k: form for k, form in forms.items() if any(word in k for word in words)}
            found = record["results"][title] = alternate(chosen, options.repeat)
            print(f"{title}, H {H}")
            for form, ms in found.items():
                print(
                    f"  {form:18} {ms['ms']:9.2f} ms ({ms['best_ms']:.2f} at best),"
                    f" {ms['processor_ms']:9.2f} ms of processor time"
                )
            if "forward and backward" in title and "fused" in found:
                speed = product_speed(T * S, H)
                work = PRODUCTS[name] * 2 * T * S * H * PARTS[name] * H
                share = work / speed["best_ms"] / found["fused"]["best_ms"]
                print(f"  products at the speed of a large one: {share:.0%} of the fused form")
                found["fused"]["share_of_products"] = share
    if options.json:
        write_json(record, options.json)


if __name__ == "__main__":
    main()
