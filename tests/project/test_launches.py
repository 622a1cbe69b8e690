"""The launches of an epoch on a GPU only fall; costs that benchmarks compute without a GPU."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from running import ROOT, benchmark

from puffer_mlx.errors import UserError

sys.path.append(str(ROOT / "benchmarks"))
epoch_of = importlib.import_module("gpu_costs").epoch_of

# Launches of a step for each minibatch (act: for a part and step) and once an epoch: on Metal, then
# on CUDA. Steps without launches are left out.
TABLE = Path(__file__).with_name("launches.json")
LAUNCHES: dict[str, dict[str, list[float]]] = json.loads(TABLE.read_text())


def count(folder: Path, *argv: object) -> dict:
    """Run benchmarks/launches.py with arguments; return its results."""
    done = benchmark("launches", *argv, "--json", "record.json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads((folder / "record.json").read_text())["results"]


def counts_of(result: dict) -> dict[str, list[float]]:
    none = {"launches": 0, "once": 0}
    counts = {}
    for step in {**result["cuda"], **result["metal"]}:
        rows = [result[backend].get(step, none) for backend in ("metal", "cuda")]
        counts[step] = [number for row in rows for number in (row["launches"], row["once"])]
    return {step: row for step, row in counts.items() if any(row)}


def test_launches_of_an_epoch_are_those_of_the_table(tmp_path):
    results = count(tmp_path, "--only", ",".join(LAUNCHES))
    found = {name: counts_of(result) for name, result in results.items()}
    assert found == LAUNCHES, f"fewer? then {TABLE.name} becomes {json.dumps(found)}"


def test_mlx_compiles_nothing_for_an_epoch_on_cuda(tmp_path):
    """MLX takes seconds to compile an index, a slice at an array, and fused operations."""
    results = count(tmp_path, "breakout-a", "--back-ends", "cuda")
    steps = {"split", "gradients", "optimise", "Update.submit"}
    names = [name for step in steps for name in results["breakout-a"]["cuda"][step]["primitives"]]
    assert "kernel mingru_minibatch" in names and "Subtract" in names
    assert not [n for n in names if n.startswith(("Compiled", "Gather", "DynamicSlice"))]


# ---- what an epoch must cost ---------------------------------------------------------------------

# H, L, D and choices; steps, samples: by hand from the files. 4.0's Breakout: 64, 2, 118, 3;
# 4096 agents by 64 steps; 5 minibatches of 65,536 samples. A sample's weights are 7,552 of the
# encoder, 24,576 of the layers and 256 of the decoder.
WEIGHTS = {"breakout": (7552, 24832), "breakout-a": (7552, 24832), "cartpole": (128, 6240)}
SAMPLES = {
    "breakout": (4096 * 64, 5 * 65536),
    "breakout-a": (8192 * 32, 6 * 65536),
    "cartpole": (131072, 49152),
}
FLOATS = {"breakout": 118, "breakout-a": 118, "cartpole": 4}  # of an observation


@pytest.mark.parametrize("name", WEIGHTS)
def test_necessary_costs_of_an_epoch_are_those_by_hand(tmp_path, name):
    done = benchmark("gpu_costs", name, "--json", "record.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    record = json.loads((tmp_path / "record.json").read_text())
    (encoder, behind), (steps, samples), D = WEIGHTS[name], SAMPLES[name], FLOATS[name]
    assert record["necessary"] == {
        "rollout_flops": 2 * (encoder + behind) * steps,
        "training_flops": (4 * encoder + 6 * behind) * samples,
        "rollout_bytes": 4 * (D + 6) * steps,
        "training_bytes": 4 * (D + 8) * samples,
    }


def test_launches_in_ncus_table_are_those_of_one_epoch(tmp_path):
    """The tenth epoch is counted."""
    T, kinds = 3, ["gemm", "step_soccer_0123"]
    epoch = [*kinds * T, "muon(float)"]
    rows = ["ID,Kernel Name,Metric Name,Metric Unit,Metric Value"]
    for k, name in enumerate(12 * epoch):
        rows.append(f'{k},"{name}",gpu__time_duration.sum,ns,"{1000 * (1 + k // len(epoch)):,}"')
    file = tmp_path / "ncu.csv"
    file.write_text("==PROF== begins\n" + "\n".join(rows))
    found = epoch_of(file, T)
    launches = {name: each["launches"] for name, each in found.items()}
    assert launches == {**dict.fromkeys(kinds, T), "muon": 1}
    assert found["muon"]["us"] == found[kinds[-1]]["us"] / T == 10
    file.write_text("\n".join(rows[: 1 + 5 * len(epoch)]))
    with pytest.raises(UserError, match="ncu found 5 of 12 rollouts on the GPU"):
        epoch_of(file, T)
