"""LSTM, GRU and MinGRU: forward and backward of one layer, and one step of acting, in each form.

Forms take turns, so that a noisy machine disturbs all of them, and medians are printed: of the time
on the clock, and of the processor time of all threads, which other processes disturb less.

On a CPU a fused operation alone that takes too large a part of plain MLX's time is an error.
--policy: forward and backward of upstream's Breakout policy around two layers, too.

fused: the C extension on a CPU, kernels on a GPU; pure: plain MLX, time-major; mlx.nn: MLX's own
layers, without the gradient by their input; log-space: MinGRU's recurrence as upstream's torch
backend has it; torch: with each number of threads of --threads on a CPU, cuDNN on a CUDA GPU, if
torch is installed.
"""

# ruff: noqa: I001
import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import puffer_mlx  # first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx
import mlx.nn as nn

from puffer_mlx.system.blas import blas_name
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.mlx_memory import choose_cache_limit
from puffer_mlx.ops.linear import linear
from puffer_mlx.policy.networks.gru import gru, gru_reference
from puffer_mlx.policy.networks.lstm import lstm, lstm_reference
from puffer_mlx.policy.networks.catalog import FORMS
from puffer_mlx.policy.networks.mingru import mingru, mingru_reference

Layer = dict[str, mx.array]
Form = Callable[[], Any]  # runs once, to the end
PARTS = {"LSTM": 4, "GRU": 3, "MinGRU": 3}  # rows of a layer's weights, in H
AT_MOST = {"LSTM": 0.3, "GRU": 0.3, "MinGRU": 0.15}  # of plain MLX's time, on a CPU


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


# ---- forms ---------------------------------------------------------------------------------------


def run(function: Callable, *arguments: Any) -> Form:
    return lambda: mx.eval(function(*arguments))


def passes(form: Callable, name: str) -> Callable:
    """Outputs' sum and all gradients of a layer."""
    return mx.value_and_grad(
        lambda layer, x, first, keep: form(name, layer, x, first, keep).sum(), argnums=(0, 1)
    )


def puffer_forms(name: str, arrays: tuple, training: bool) -> dict[str, Form]:
    """Fused and pure."""

    def whole(form: Callable) -> Callable:
        return passes(form, name) if training else lambda *a: form(name, *a)

    # a GPU's compiler takes minutes for 64 steps in one graph
    pure = whole(by_reference)
    pure = mx.compile(pure) if mx.default_device() == mx.cpu else pure
    return {"fused": run(mx.compile(whole(by_fused)), *arrays), "pure": run(pure, *arrays)}


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
    """Best milliseconds of outputs and gradients by the fused operation alone, and by plain MLX.

    Raises:
        SystemExit: the former takes a larger part of the latter than ``AT_MOST``.
    """
    make = FORMS[name].fused_case
    assert make is not None
    case = make(T, S, hidden)
    low = [mx.random.uniform(-0.5, 0.5, shape) for shape in case.low]
    rest = [*(mx.random.uniform(shape=shape) for shape in case.states), mx.ones((T, S))]
    dh = mx.ones((T, S, hidden))
    mx.eval(low, rest, dh)

    plain = mx.compile(lambda *inputs: mx.vjp(case.reference, inputs, [dh]))
    forms = {"fused": run(case.run, low, rest, dh), "pure": run(plain, *low, *rest)}
    found = {form: ms["best_ms"] for form, ms in alternate(forms, 30).items()}
    share = found["fused"] / found["pure"]
    print(f"{name}: the fused operation alone takes {share:.3f} of plain MLX's time")
    if share > AT_MOST[name]:
        raise SystemExit(f"{name}: that is more than {AT_MOST[name]}: has the compiler lost lanes?")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default="LSTM,GRU,MinGRU")
    parser.add_argument("--horizon", type=int, default=64, help="T")
    parser.add_argument("--segments", type=int, default=1024, help="S")
    parser.add_argument("--hidden", type=int, default=128, help="H")
    parser.add_argument("--agents", type=int, default=4096, help="rows of one step of acting")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--threads", default="1,2", help="of torch on a CPU")
    parser.add_argument("--forms", default="", help="only those that hold one of these words")
    parser.add_argument("--policy", action="store_true", help="with a policy around two layers")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    T, S, H = options.horizon, options.segments, options.hidden
    threads = [int(n) for n in options.threads.split(",")]
    choose_cache_limit()
    print(f"puffer_mlx {puffer_mlx.__version__}, {mx.default_device()}, BLAS {blas_name()}")
    record: dict[str, Any] = {"device": str(mx.default_device()), **vars(options), "results": {}}
    del record["json"]  # a path of this machine
    for name in options.networks.split(","):
        if mx.default_device() == mx.cpu:
            record["results"][f"{name} operation alone"] = bounded(name, H)
        runs: dict[str, dict[str, Form]] = {}
        for title, training, (steps, n) in (
            ("forward and backward", True, (T, S)),
            ("forward", False, (T, S)),
            ("acting", False, (1, options.agents)),
        ):
            layer, x = new_layer(name, H), mx.random.normal((steps, n, H))
            arrays = layer, x, mx.zeros((n, H)), mx.ones((steps, n))
            mx.eval(arrays)
            forms = puffer_forms(name, arrays, training)
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
    if options.json:
        write_json(record, options.json)


if __name__ == "__main__":
    main()
