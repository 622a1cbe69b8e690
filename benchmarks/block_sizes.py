#!/usr/bin/env python
"""Measure blocks of other sizes: python benchmarks/block_sizes.py [ENV ...] [--help].

Collects rollouts in one launch (`policy/rollout_on_gpu.py`) with each environment's file, in blocks
of the chosen size and of others: 4, 8 and 16 agents with half and twice the threads; on matrix
units (fp32, bf16) 16, 32 and 64 agents. Prints the least milliseconds of several rollouts, and the
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
from puffer_mlx.ops.cpu_extension import threads
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
AGENTS, THREADS = (4, 8, 16), 256  # of a block; at most
ROWS = (16, 32, 64)  # agents of a block, by matrix units


def rollout_ms(policy: Policy, made: NativeVec, horizon: int, precision: str, times: int) -> float:
    """Return the least milliseconds of several rollouts, without compiling."""
    kernel = rollouts_in_one_launch(policy, made, horizon, precision)
    assert kernel is not None
    N, device = made.num_agents, mx.default_device()
    environments, buffer = EnvironmentsOnGPU(made, kernel), BufferOnGPU(made.spec, horizon, N, 1)
    way = RolloutsOnGPU(kernel, lambda: [mx.default_stream(device)], PhaseTimer("", enabled=False))
    weights, states = policy.init(mx.random.key(0)), [policy.initial_state(N)]
    noise = policy.distribution.noise(mx.random.key(1), (horizon, N))
    mx.eval(weights, states, noise)
    buffer.reset(environments)
    seconds = []
    for _ in range(1 + times):
        buffer.begin(buffer)
        began = time.perf_counter()
        states = way.collect(buffer, environments, weights, states, noise)
        seconds.append(time.perf_counter() - began)
    return 1000 * min(seconds[1:])


def layouts(policy: Policy, spec: EnvSpec, n: int, seats: int) -> Iterator[BlockLayout]:
    """Yield the chosen layout for n agents, ``seats`` per environment, then others that fit."""
    games = n // seats, seats
    chosen = kernels.choose_rollout_layout(policy, spec, *games)
    assert chosen is not None
    yield chosen
    for agents in AGENTS:
        with patch.object(kernels, "BLOCKS", (agents,)):
            usual = kernels.choose_rollout_layout(policy, spec, *games)
        if usual is not None:
            counts = usual.threads // 2, usual.threads, 2 * usual.threads
            others = (replace(usual, threads=each) for each in counts if 32 <= each <= THREADS)
            yield from (each for each in others if each != chosen)


def sizes(policy: Policy, spec: EnvSpec, n: int, seats: int) -> Iterator[tuple[str, str, str, Any]]:
    """Yield the sizes to measure, the chosen size of each form first.

    Each is a form, a text, a name in ``rollout_on_gpu.py`` and its replacement.
    """
    for each in layouts(policy, spec, n, seats):
        words = f"{each.agents} agents, {each.threads} threads"
        yield "", words, "choose_rollout_layout", lambda *_, each=each: each
    for precision in ("fp32", "bf16"):
        chosen = kernels.choose_rows(policy, spec, n, precision == "bf16")
        if chosen is None or seats > 1:
            continue
        for rows in (chosen["M"], *(each for each in ROWS if each != chosen["M"])):
            with patch.object(kernels, "ROWS_OF_A_BLOCK", (rows,)):
                fits = kernels.choose_rows(policy, spec, n, precision == "bf16")
            if fits:
                yield precision, f"{rows} agents, matrix units", "ROWS_OF_A_BLOCK", (rows,)


def tried(name: str, agents: int, horizon: int, times: int, until: float) -> list[dict[str, Any]]:
    """Rows of an environment's table, as far as there is time for them."""
    given = {"vec.total-agents": agents, "vec.num-buffers": 1, "train.horizon": horizon}
    given["train.minibatch-size"] = agents * horizon // 8
    settings = config.load(name, [f"--{key}={value}" for key, value in given.items()])
    rows: list[dict[str, Any]] = []
    with vec.make(settings, threads()) as made:
        assert isinstance(made, NativeVec)
        policy = configured_policy(made.spec, settings)
        chosen: dict[str, float] = {}
        seats = agents // made.num_environments
        for form, words, place, instead in sizes(policy, made.spec, agents, seats):
            if time.perf_counter() > until:
                break
            try:
                with patch.object(kernels, place, instead):
                    ms = rollout_ms(policy, made, horizon, form, times)
            except RuntimeError as error:  # MLX's: the GPU refuses it
                print(f"{name:16} {form:5} {words:26} {str(error).splitlines()[0][:60]}")
                continue
            chosen.setdefault(form, ms)
            rows.append({"form": form, "size": words, "ms": ms, "ratio": chosen[form] / ms})
            rate = agents * horizon / ms / 1000
            told = f"{ms:8.2f} ms {rate:7.2f} M steps/s  {rows[-1]['ratio']:.2f}"
            print(f"{name:16} {form:5} {words:26} {told}", flush=True)
    return rows


@with_exit_code
def main(argv: list[str]) -> None:
    """Measure what a command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=ENVIRONMENTS, metavar="ENV")
    parser.add_argument("--agents", type=int, default=4096, help="(4096)")
    parser.add_argument("--horizon", type=int, default=64, help="steps of a rollout (64)")
    parser.add_argument("--times", type=int, default=5, help="rollouts of each size (5)")
    parser.add_argument("--seconds", type=float, default=90, help="of all; then no other size (90)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to a file")
    options = parser.parse_args(argv)
    if not has_gpu() and kernel_substitute() is None:
        raise UserError("this build of MLX has no GPU", "pip install 'puffer-mlx[cuda]' on Linux")
    began = time.perf_counter()
    found = {}
    for place, name in enumerate(options.names, 1):
        until = began + options.seconds * place / len(options.names)
        found[name] = tried(name, options.agents, options.horizon, options.times, until)
    record = {
        "command": " ".join(["python benchmarks/block_sizes.py", *argv]),
        "date": datetime.date.today().isoformat(),
        "gpu": str(mx.device_info(mx.default_device()).get("device_name", "")),
        "agents": options.agents,
        "horizon": options.horizon,
        "ratio": "how often as fast as the first size of its form, which is chosen",
        "results": found,
    }
    if options.json:
        write_json(record, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
