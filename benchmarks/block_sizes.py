#!/usr/bin/env python
"""Measure GPU rollouts by block size: python benchmarks/block_sizes.py [ENV ...] [--help].

Collects rollouts in one launch (`policy/rollout_on_gpu.py`) with the block size that is chosen
automatically and with others: 4, 8 and 16 agents with half and twice the threads; on matrix units
(fp32, bf16) 16, 32 and 64 agents. Prints the fastest of several rollouts in milliseconds, and the
speed relative to the chosen size. Needs a GPU, and compiles a kernel for each size.
"""

import argparse
import datetime
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads

# isort: split
import mlx.core as mx

from puffer_mlx import config, vec
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import count_cores
from puffer_mlx.policy import rollout_on_gpu as kernels
from puffer_mlx.policy.acting_on_gpu import BlockLayout
from puffer_mlx.policy.policy import Policy
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.on_gpu import (
    BufferOnGPU,
    EnvironmentsOnGPU,
    RolloutsOnGPU,
    rollouts_in_one_launch,
)
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.backend import kernel_substitute
from puffer_mlx.system.devices import has_gpu
from puffer_mlx.system.json_text import write_json
from puffer_mlx.training.trainer import configured_policy
from puffer_mlx.vec.native.vec import NativeVec

ENVIRONMENTS = "craftax_classic", "breakout", "cartpole", "memory", "connect4", "connect4_two"
BLOCK_AGENTS = (4, 8, 16)
MAX_BLOCK_THREADS = 256
MATRIX_UNIT_AGENTS = (16, 32, 64)  # agents per block, with matrix units


def rollout_ms(policy: Policy, env: NativeVec, horizon: int, precision: str, times: int) -> float:
    """Return the milliseconds of the fastest of several rollouts. Compiling isn't included."""
    kernel = rollouts_in_one_launch(policy, env, horizon, precision)
    assert kernel is not None
    N = env.num_agents
    device = mx.default_device()
    environments = EnvironmentsOnGPU(env, kernel)
    buffer = BufferOnGPU(env.spec, horizon, N, 1)
    timer = PhaseTimer("", enabled=False)
    collector = RolloutsOnGPU(kernel, lambda: [mx.default_stream(device)], timer)
    weights = policy.init(mx.random.key(0))
    states = [policy.initial_state(N)]
    noise = policy.distribution.noise(mx.random.key(1), (horizon, N))
    mx.eval(weights, states, noise)
    buffer.reset(environments)
    seconds = []
    for _ in range(1 + times):
        buffer.begin(buffer)
        began = time.perf_counter()
        states = collector.collect(buffer, environments, weights, states, noise)
        seconds.append(time.perf_counter() - began)
    return 1000 * min(seconds[1:])


def layouts(policy: Policy, spec: EnvSpec, n: int, agents_each: int) -> Iterator[BlockLayout]:
    """Yield ways to divide n agents into GPU thread blocks: the automatic choice, then others.

    ``agents_each`` is the number of agents per environment.
    """
    counts = n // agents_each, agents_each
    chosen_layout = kernels.choose_rollout_layout(policy, spec, *counts)
    assert chosen_layout is not None
    yield chosen_layout
    for agents in BLOCK_AGENTS:
        with patch.object(kernels, "BLOCK_SIZES", (agents,)):
            default_layout = kernels.choose_rollout_layout(policy, spec, *counts)
        if default_layout is not None:
            usual = default_layout.threads
            for thread_count in (usual // 2, usual, 2 * usual):
                layout = replace(default_layout, threads=thread_count)
                if 32 <= thread_count <= MAX_BLOCK_THREADS and layout != chosen_layout:
                    yield layout


def sizes(
    policy: Policy, spec: EnvSpec, n: int, agents_each: int
) -> Iterator[tuple[str, str, str, Any]]:
    """Yield the thread block sizes to measure; for each kind of kernel, the chosen size is first.

    Each size is a tuple: the kind ("", or the precision with matrix units), a description, an
    attribute of ``rollout_on_gpu.py``, and the value that selects the size.
    """
    for layout in layouts(policy, spec, n, agents_each):
        size_text = f"{layout.agents} agents, {layout.threads} threads"
        yield "", size_text, "choose_rollout_layout", lambda *_, layout=layout: layout
    for precision in ("fp32", "bf16"):
        chosen = kernels.choose_rows(policy, spec, n, precision == "bf16")
        if chosen is None or agents_each > 1:
            continue
        for rows in (chosen["M"], *(each for each in MATRIX_UNIT_AGENTS if each != chosen["M"])):
            with patch.object(kernels, "MATRIX_BLOCK_SIZES", (rows,)):
                fits = kernels.choose_rows(policy, spec, n, precision == "bf16")
            if fits:
                yield precision, f"{rows} agents, matrix units", "MATRIX_BLOCK_SIZES", (rows,)


def measure_sizes(
    name: str, agents: int, horizon: int, times: int, deadline: float
) -> list[dict[str, Any]]:
    """Measure an environment's rollouts with all block sizes until the deadline.

    Returns:
        One record for each measured size.
    """
    options = {"vec.total-agents": agents, "vec.num-buffers": 1, "train.horizon": horizon}
    options["train.minibatch-size"] = agents * horizon // 8
    settings = config.load(name, [f"--{key}={value}" for key, value in options.items()])
    rows: list[dict[str, Any]] = []
    with vec.make(settings, count_cores()) as environments:
        assert isinstance(environments, NativeVec)
        policy = configured_policy(environments.spec, settings)
        chosen: dict[str, float] = {}
        agents_each = agents // environments.num_environments
        for kernel_kind, size_text, attribute, replacement in sizes(
            policy, environments.spec, agents, agents_each
        ):
            if time.perf_counter() > deadline:
                break
            try:
                with patch.object(kernels, attribute, replacement):
                    ms = rollout_ms(policy, environments, horizon, kernel_kind, times)
            except RuntimeError as error:  # from MLX, if the GPU rejects the size
                print(f"{name:16} {kernel_kind:5} {size_text:26} {str(error).splitlines()[0][:60]}")
                continue
            chosen.setdefault(kernel_kind, ms)
            rows.append(
                {
                    "form": kernel_kind,
                    "size": size_text,
                    "ms": ms,
                    "ratio": chosen[kernel_kind] / ms,
                }
            )
            rate = agents * horizon / ms / 1000
            measurement = f"{ms:8.2f} ms {rate:7.2f} M steps/s  {rows[-1]['ratio']:.2f}"
            print(f"{name:16} {kernel_kind:5} {size_text:26} {measurement}", flush=True)
    return rows


@with_exit_code
def main(argv: list[str]) -> None:
    """Measure rollouts of the requested environments by block size, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=ENVIRONMENTS, metavar="ENV")
    parser.add_argument("--agents", type=int, default=4096, help="(4096)")
    parser.add_argument("--horizon", type=int, default=64, help="steps of a rollout (64)")
    parser.add_argument("--times", type=int, default=5, help="rollouts of each size (5)")
    parser.add_argument("--seconds", type=float, default=90, help="time limit of all (90)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to a file")
    options = parser.parse_args(argv)
    if not has_gpu() and kernel_substitute() is None:
        raise UserError("this build of MLX has no GPU", "pip install 'puffer-mlx[cuda]' on Linux")
    began = time.perf_counter()
    results = {}
    for number, name in enumerate(options.names, 1):
        deadline = began + options.seconds * number / len(options.names)
        results[name] = measure_sizes(
            name, options.agents, options.horizon, options.times, deadline
        )
    record = {
        "command": " ".join(["python benchmarks/block_sizes.py", *argv]),
        "date": datetime.date.today().isoformat(),
        "gpu": str(mx.device_info(mx.default_device()).get("device_name", "")),
        "agents": options.agents,
        "horizon": options.horizon,
        "ratio": "speed relative to the first size of the same form, which is the default",
        "results": results,
    }
    if options.json:
        write_json(record, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
