"""``bench``: the same plausible numbers in the table and in the JSON."""

import json
import shlex
from pathlib import Path

import pytest
from running import BATCH, ROOT, TINY, files, run

from puffer_mlx.cli import bench_run
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import count_cores

NAMES = {"date", "command", "cpu", "cores", "load_before", "blas", "blas_threads", "versions"}
SPREAD = {"median", "min", "max"}


@pytest.fixture
def script(here, scripts):
    """Return the module of scripts/bench.py, to run in an empty working directory."""
    return scripts("bench")


def rows(table: str) -> dict[str, list[str]]:
    """Return the numbers in each line of a printed table, by the line's name."""
    return {line[:30].strip(): line[30:].split() for line in table.splitlines() if line[30:]}


def check_spread(values: dict[str, float], least: float, most: float) -> None:
    assert set(values) == SPREAD
    assert least <= values["min"] <= values["median"] <= values["max"] <= most


def test_training_is_measured_and_written(tmp_path):
    words = [*TINY, "--epochs", "2", "--warm-up", "1", "--json", "out/record.json"]
    done = run("bench", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == {"out/record.json"}  # and neither logs nor checkpoints
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert set(record) == {"environment", "machine", "results"}
    machine, results, shown = record["machine"], record["results"], rows(done.stdout)
    assert set(machine) >= NAMES and machine["cpu"]
    assert machine["command"] == shlex.join(["python", str(ROOT / "scripts/bench.py"), *words])
    for name in set(machine) - {"versions"}:
        assert f"\n{name:14} {machine[name]}\n" in f"\n{done.stdout}"

    check_spread(results["SPS"], 1, 1e7)
    assert 10 < results["steps per CPU-second"] < 1e7
    assert 0.02 < results["peak memory, GiB"] < 20
    phases = {name: value for name, value in results.items() if name.startswith("perf/")}
    assert {"perf/rollout, ms", "perf/train, ms", "perf/train_forward, ms"} <= set(phases)
    # Rollout and training are at most the epoch.
    parts = [phases[f"perf/{name}, ms"]["min"] / 1000 for name in ("rollout", "train")]
    assert sum(parts) <= BATCH / results["SPS"]["max"] * (1 + 1e-9)
    for name, value in results.items():
        numbers = list(value.values()) if isinstance(value, dict) else [value]
        assert shown[name] == [f"{number:,.2f}" for number in numbers]


def test_placements_are_compared_and_the_fastest_is_printed(script, here, capsys):
    words = [*TINY, "--placements", "--device", "cpu", "--epochs", "2", "--warm-up", "1"]
    assert script.main([*words, "--json", "record.json"]) == 0
    results = json.loads((here / "record.json").read_text())["results"]
    units = "epoch ms", "steps/s"
    assert set(results) == {f"cpu, overlap {o}, {unit}" for o in (0, 1) for unit in units}
    for overlap in (0, 1):
        epoch, speed = (results[f"cpu, overlap {overlap}, {unit}"]["median"] for unit in units)
        assert epoch * speed == pytest.approx(1000 * BATCH, rel=0.5)
    best = max((0, 1), key=lambda o: results[f"cpu, overlap {o}, steps/s"]["median"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"fastest: --train.rollout-device cpu --train.overlap {best}"


def test_an_impossible_placement_does_not_hide_the_others(script, here, capsys, monkeypatch):
    real = bench_run.Run.open

    def opened(config):
        if not config.train.overlap:
            raise UserError("not here")
        return real(config)

    monkeypatch.setattr(bench_run.Run, "open", opened)
    words = [*TINY, "--placements", "--device", "cpu", "--epochs", "1", "--warm-up", "1"]
    assert script.main([*words, "--json", "record.json"]) == 0
    results = json.loads((here / "record.json").read_text())["results"]
    assert set(results) == {"cpu, overlap 1, epoch ms", "cpu, overlap 1, steps/s"}
    assert "cpu is impossible: not here" in capsys.readouterr().err


def test_progress_is_on_standard_error_and_no_number_is_nan_in_json(script, monkeypatch, capsys):
    monkeypatch.setattr(bench_run, "PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setattr(bench_run, "peak_memory_gb", lambda: float("nan"))
    assert script.main([*TINY, "--epochs", "2", "--warm-up", "1", "--json", "x.json"]) == 0
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if "measured" in line]
    assert [line.split()[2:5] for line in lines] == [[str(n), "of", "3"] for n in (1, 2, 3)]
    assert [line.endswith("steps/s") for line in lines] == [False, True, True]  # it compiles first
    assert "measured" not in captured.out
    record = json.loads(Path("x.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert record["results"]["peak memory, GiB"] is None
    monkeypatch.setattr(bench_run, "PROGRESS_INTERVAL_S", 1e9)
    assert script.main([*TINY, "--epochs", "1", "--warm-up", "0"]) == 0
    assert "measured" not in capsys.readouterr().err


def test_environments_are_measured_without_a_policy(script, tmp_path, capsys):
    words = [*TINY, "--env-only", "--seconds", "0.2", "--repeat", "2", "--json", "record.json"]
    assert script.main(words) == 0
    table = rows(capsys.readouterr().out)
    results = json.loads((tmp_path / "record.json").read_text())["results"]
    counts = sorted({1, min(16, count_cores())})
    assert list(results) == [f"steps/s, {n} thread{'s' if n > 1 else ''}" for n in counts]
    for name, values in results.items():
        check_spread(values, 1, 1e10)
        assert table[name] == [f"{values[key]:,.2f}" for key in ("median", "min", "max")]
