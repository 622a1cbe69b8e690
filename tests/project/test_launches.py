"""What a GPU is told to launch may only become less, and `benchmarks/launches.py` tells it."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import ROOT, TINY, benchmark, files

from puffer_mlx.errors import UserError

sys.path.append(str(ROOT / "benchmarks"))
epoch_of = importlib.import_module("gpu_costs").epoch_of

Counts = dict[str, tuple[float, ...]]

# Of a step: for each minibatch (act: for a part and step) and once an epoch, on Metal; on CUDA.
# Steps that launch nothing are left out. Where a change lowers a number, the test prints what is to
# be in the table.
TABLE = Path(__file__).with_name("launches.json")
LAUNCHES: dict[str, Counts] = {
    name: {step: tuple(row) for step, row in counts.items()}
    for name, counts in json.loads(TABLE.read_text()).items()
}


def count(folder: Path, *argv: object) -> tuple[str, dict]:
    """What is printed, and the record's results."""
    done = benchmark("launches", *argv, "--json", "record.json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(folder) == {"record.json"}
    return done.stdout, json.loads((folder / "record.json").read_text())["results"]


def counts_of(result: dict) -> Counts:
    none = {"launches": 0, "once": 0}

    def numbers(step: str) -> Iterator[float]:
        for backend in ("metal", "cuda"):
            row = result[backend].get(step, none)
            yield from (int(n) if n == int(n) else n for n in (row["launches"], row["once"]))

    counts = {step: tuple(numbers(step)) for step in {**result["cuda"], **result["metal"]}}
    return {step: row for step, row in counts.items() if any(row)}


def rises(found: Counts, recorded: Counts) -> Iterator[str]:
    for step, now in found.items():
        before = recorded.get(step, (0, 0, 0, 0))
        if any(a > b for a, b in zip(now, before, strict=True)):
            yield f"{step} launches {now}, and launched {before}"


def test_launches_only_fall(tmp_path):
    _, results = count(tmp_path, "--only", ",".join(LAUNCHES))
    found = {name: counts_of(result) for name, result in results.items()}
    if found == LAUNCHES:
        return
    rose = [f"{name}: {rise}" for name in found for rise in rises(found[name], LAUNCHES[name])]
    lines = ["more is launched:", *rose] if rose else ["less is launched: lower the table in"]
    lines += [] if rose else [f"{TABLE.relative_to(ROOT)} to"]
    for name, counts in found.items():
        rows = ",\n".join(f'  "{step}": {list(row)}' for step, row in counts.items())
        lines.append(f'"{name}": {{\n{rows}\n}},')
    pytest.fail("\n".join(lines), pytrace=False)


def test_mlx_compiles_nothing_for_an_epoch(tmp_path):
    """On CUDA that takes seconds: for an index, a slice at an array, and fused operations."""
    _, results = count(tmp_path, "breakout-a", "--back-ends", "cuda")
    steps = {"split", "gradients", "optimise", "Update.submit"}
    names = [name for step in steps for name in results["breakout-a"]["cuda"][step]["primitives"]]
    assert "kernel mingru_minibatch" in names and "Subtract" in names
    assert not [n for n in names if n.startswith(("Compiled", "Gather", "DynamicSlice"))]


def test_what_rises_is_found():
    recorded: Counts = {"draw": (2, 0, 2, 0)}
    assert not [*rises({"draw": (1, 0, 2, 0)}, recorded)]
    assert [*rises({"draw": (1, 0, 2, 1)}, recorded)] and [*rises({"new": (1, 0, 1, 0)}, recorded)]


@pytest.mark.slow
def test_the_table_that_is_printed(tmp_path):
    """Rows add up; what it is made of adds up to a row."""
    printed, results = count(tmp_path, *TINY, "--primitives", "--back-ends", "cuda")
    rows = results["squared"]["cuda"]
    assert {row["unit"] for row in rows.values()} == {"minibatch", "a part and step"}
    for unit in ("minibatch", "a part and step"):
        mine = {step: row for step, row in rows.items() if row["unit"] == unit}
        for step, row in mine.items():
            cells = rf"^  {re.escape(step)} +{row['launches']:g} +{row['once']:g}$"
            assert re.search(cells, printed, re.MULTILINE), step
            assert sum(row["primitives"].values()) in (row["launches"], row["once"])
            assert all(f"{n:g} {name}\n" in printed for name, n in row["primitives"].items())
        each, once = (sum(row[kind] for row in mine.values()) for kind in ("launches", "once"))
        assert re.search(rf"^  = {unit} +{each:g} +{once:g}$", printed, re.MULTILINE)
    assert rows["act"]["launches"] > 0 and rows["gradients"]["once"] == 0


@pytest.mark.slow
def test_what_cannot_be_done(tmp_path):
    refused = [(["--back-ends", "metal,rocm"], "no rocm"), (["--only", "pong"], "no pong")]
    refused.append((["squared", "--only", "breakout"], "--only"))
    for argv, words in refused:
        done = benchmark("launches", *argv, cwd=tmp_path)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    assert not files(tmp_path)


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
def test_what_an_epoch_costs_at_least(tmp_path, name):
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


@pytest.mark.parametrize("kinds", [["rollout_mingru_squared_0123"], ["gemm", "step_soccer_0123"]])
def test_what_ncu_counts_in_an_epoch(tmp_path, kinds):
    """Of rollouts in one launch, and in steps: the tenth of 12 epochs, of which each launches."""
    T = 1 if kinds[0].startswith("rollout") else 3
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
    with pytest.raises(UserError, match="ncu saw 5 rollouts that a GPU made, of 12"):
        epoch_of(file, T)
