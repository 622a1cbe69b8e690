"""check-gpu: a healthy machine passes, a fault fails its item and hides no other."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from emulated_run import emulated_gpu, rolling_out_there, stand_in
from mlx.utils import tree_map
from running import copied_package, files, run

from puffer_mlx.check.gpu import kernels, runs
from puffer_mlx.check.gpu.items import ITEMS
from puffer_mlx.check.gpu.tools import ROUNDING_UNIT, TF32_ROUNDING, WorstCase, rounding_unit
from puffer_mlx.check.items import (
    FAIL,
    OK,
    SKIP,
    Failed,
    Finding,
    Item,
    Result,
    fail,
    ok,
    run_item,
    select_items,
)
from puffer_mlx.checkpoint import SavedState
from puffer_mlx.cli import check_gpu
from puffer_mlx.ops.gelu import BACKWARD
from puffer_mlx.ops.implementation import COMPARING_VARIABLE, Implementation
from puffer_mlx.policy.networks import mingru as mingru_gpu
from puffer_mlx.policy.rollout_on_gpu import RolloutOnGPU
from puffer_mlx.ppo import minibatch as one_launch
from puffer_mlx.ppo import precision
from puffer_mlx.system.devices import has_gpu
from puffer_mlx.system.version import version_text
from puffer_mlx.training import trainer

NEED_GPU = {"kernels-gpu-fp32", "kernels-gpu-bf16", "kernels-gpu-fp16", "minibatch", "same-epoch"}
NEED_GPU |= {"speeds", "one-launch"}  # whose fault is in test_trajectories.py
NEED_TIME = {"learns"}


@pytest.fixture
def cpu():
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(device)


def verdict_of(name: str, quick: bool = True) -> Finding:
    (item,) = select_items(ITEMS, [name])
    (finding,) = run_item(item, set(), quick)
    return finding


@pytest.mark.parametrize(
    ("architecture", "tf32_variable", "rounding"),
    [
        ("applegpu_g16s", None, ROUNDING_UNIT["fp32"]),  # M4
        ("applegpu_g17s", None, TF32_ROUNDING),  # M5
        (None, "0", ROUNDING_UNIT["fp32"]),  # CUDA
    ],
)
def test_rounding_of_float32_products_depends_on_the_chip(
    monkeypatch, architecture, tf32_variable, rounding
):
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    monkeypatch.setattr(mx.metal, "is_available", lambda: architecture is not None)
    monkeypatch.setattr(mx, "device_info", lambda device: {"architecture": architecture})
    monkeypatch.delenv("MLX_ENABLE_TF32", raising=False)
    if tf32_variable is not None:
        monkeypatch.setenv("MLX_ENABLE_TF32", tf32_variable)
    assert rounding_unit("fp32") == rounding
    assert rounding_unit("bf16") == ROUNDING_UNIT["bf16"]


def test_healthy_machine_passes(tmp_path):
    done = run("check_gpu", "--quick", "--device", "cpu", "--json", "record.json", cwd=tmp_path)
    rows = json.loads((tmp_path / "record.json").read_text())["items"]
    wrong = {name: row for name, row in rows.items() if row["verdict"] == FAIL}
    assert (done.returncode, wrong, done.stderr) == (0, {}, "")
    assert list(rows) == [*(item.name for item in ITEMS), "end"]
    skipped = {name for name, row in rows.items() if row["verdict"] == "SKIP"}
    assert skipped == NEED_GPU | NEED_TIME
    summary = f"{len(rows) - len(skipped)} passed, 0 failed, {len(skipped)} skipped"
    assert summary in done.stdout


# ---- the command -------------------------------------------------------------------------------


def planted(folder: Path, *faults: tuple[str, str, str]) -> dict[str, str]:
    """Copy the package with planted faults (file, old, new).

    Returns the environment variables with which Python imports the copy.
    """
    package = copied_package(folder)
    for file, old, new in faults:
        path = package / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has changed: plant another fault"
        path.write_text(text.replace(old, new))
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_item_that_fails_dies_or_hangs_hides_no_other(tmp_path):
    asked = "on_cpu = mx.default_device() == mx.cpu"
    environment = planted(
        tmp_path,
        ("check/gpu/items.py", "lines = dict(", "os.abort(); lines = dict("),
        ("check/gpu/kernels.py", '"fp32": 2e-5', '"fp32": 1e-12'),
        ("check/gpu/runs.py", asked, f"time.sleep(90); {asked}"),
    )
    words = ["--quick", "--device", "cpu", "--json", "record.json", "--timeout", "30"]
    only = ["machine", "kernels-cpu-fp32", "kernels-cpu-bf16", "first-ratios", "resume"]
    words += ["--report", "report.txt", "--only", *only]
    done = run("check_gpu", *words, cwd=tmp_path, env=environment)
    assert done.returncode == 1
    rows = json.loads((tmp_path / "record.json").read_text())["items"]
    assert {name: row["verdict"] for name, row in rows.items()} == {
        **dict.fromkeys(("kernels-cpu-bf16", "resume", "end"), "PASS"),
        **dict.fromkeys(("machine", "kernels-cpu-fp32", "first-ratios"), FAIL),
    }
    assert "the process died of SIGABRT" in done.stdout and "Fatal Python error" in done.stderr
    assert "(at most 1e-12)" in done.stdout and "3 passed, 3 failed, 0 skipped" in done.stdout
    assert "no answer after 30 seconds" in done.stdout and "runs.py" in done.stderr
    report = (tmp_path / "report.txt").read_text()
    assert all(line in report for line in done.stdout.splitlines())
    assert version_text().splitlines()[0] in report


RESULTS = [
    Result("learns", [fail("ZeroDivisionError: by nothing", "", "Traceback: in wrong")], 1.5),
    Result("machine", [ok("a number")], 0.5),
]


def test_report_of_an_interrupted_check_has_the_results_until_then(monkeypatch, tmp_path):
    seen = []

    def results(*_):
        for result in RESULTS:
            seen.append(path.read_text())
            yield result
        raise KeyboardInterrupt

    path = tmp_path / "report.txt"
    monkeypatch.setattr(check_gpu, "run_items", results)
    assert check_gpu.main(["--report", str(path), "--only", "learns", "resume", "machine"]) == 130
    assert "incomplete: 0 of 3 checks" in seen[0] and "FAIL" not in seen[0]
    assert "ZeroDivisionError: by nothing" in seen[1] and "Traceback: in wrong" in seen[1]
    assert "incomplete: 2 of 3 checks, 1 passed, 1 failed" in path.read_text()


def test_report_that_cannot_be_written_is_refused_before_anything_runs(
    monkeypatch, tmp_path, capsys
):
    (tmp_path / "file").touch()
    monkeypatch.setattr(check_gpu, "run_items", lambda *_: pytest.fail("an item ran"))
    assert check_gpu.main(["--report", str(tmp_path / "file" / "report.txt")]) == 2
    said, error = capsys.readouterr()
    assert said == "" and len(error.splitlines()) == 2
    assert f"error: can't write {tmp_path}" in error and "hint:" in error
    assert files(tmp_path) == {"file"}


def test_items_are_listed_and_unknown_ones_refused(capsys):
    assert check_gpu.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [item.name for item in ITEMS]
    assert check_gpu.main(["--only", "resume", "nonsense"]) == 2
    error = capsys.readouterr().err
    assert "no item 'nonsense'" in error and "first-ratios" in error
    if not has_gpu():
        assert check_gpu.main(["--device", "gpu"]) == 2
        assert "has no GPU" in capsys.readouterr().err


# ---- faults that items find ---------------------------------------------------------------------


def wrong_operations(patch):
    real = Implementation.choose

    def choose(self, *passed):
        right = real(self, *passed)
        return (lambda x, dy: 1.1 * right(x, dy)) if self is BACKWARD else right

    patch.setattr(Implementation, "choose", choose)


def wrong_cast(patch):

    def cast(weights, name):
        low = precision.DTYPES[name]
        return weights if name == "fp32" else tree_map(lambda w: (1.2 * w).astype(low), weights)

    patch.setattr(precision, "cast_weights", cast)


def forgetful_restore(patch):
    real = trainer.Trainer.restore

    def restore(self, weights, state):
        kept = {n: a for n, a in state.arrays.items() if not n.startswith("acting.")}
        return real(self, weights, SavedState(kept, state.values))

    patch.setattr(trainer.Trainer, "restore", restore)


FAULTS = {
    "kernels-cpu-fp32": (wrong_operations, "GELU gradient 1"),
    "first-ratios": (wrong_cast, "ratios of MinGRU in bf16"),
    "resume": (forgetful_restore, "losses differ by"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found_by_its_item(cpu, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    plant, words = FAULTS[name]
    plant(monkeypatch)
    verdict = verdict_of(name)
    assert verdict.verdict == FAIL and words in verdict.text


@pytest.fixture
def a_gpu(monkeypatch):
    for module in (kernels, runs):
        stand_in(monkeypatch, module)
    for name, size in {"T": 8, "S": 6, "H": 8}.items():
        monkeypatch.setattr(kernels, name, size)


def test_minibatch_that_keeps_a_state_is_found(a_gpu, monkeypatch):
    monkeypatch.setenv(COMPARING_VARIABLE, "1")  # the replaced function is no reason for plain MLX
    real = mingru_gpu.kernel_state_inputs
    monkeypatch.setattr(mingru_gpu, "kernel_state_inputs", lambda first, _: real(first, None))
    verdict = verdict_of("minibatch")
    assert verdict.verdict == FAIL and "MinGRU fp32" in verdict.text


def test_minibatch_in_one_launch_is_compared_in_both_precisions(a_gpu, monkeypatch):
    real, kinds, off = one_launch.launch_minibatch, [], [0, 0, 0, 0, 1]

    def launched(policy, scoring, plan, low, *arguments):
        kinds.append(low)
        (*others, adv), grads = real(policy, scoring, plan, low, *arguments)
        return (*others, adv + off.pop(0)), grads

    monkeypatch.setattr(kernels, "NETWORKS", ["MinGRU"])
    monkeypatch.setattr(one_launch, "launch_minibatch", launched)
    assert verdict_of("minibatch").verdict == OK and kinds == [False, True] * 2
    verdict = verdict_of("minibatch")
    assert verdict.verdict == FAIL and "in one launch advantages" in verdict.text


@pytest.mark.parametrize("more", [0.0, float("nan")])
def test_epoch_with_another_loss_is_found(a_gpu, monkeypatch, more):
    real, steps = trainer.Trainer.step, []

    def step(self):
        steps.append(self)
        logs = real(self)
        return {**logs, "loss/total": logs["loss/total"] + (more if len(steps) > 1 else 0.0)}

    monkeypatch.setattr(trainer.Trainer, "step", step)
    assert verdict_of("same-epoch").verdict == (FAIL if more else OK)


def test_worst_value_is_the_nearest_to_its_bound():
    worst = WorstCase()
    worst.add("near", 0.9, 1)
    worst.add("far", 5, 10)
    assert worst.text == "near 0.9 (at most 1)"
    with pytest.raises(Failed, match="beyond nan"):
        worst.add("beyond", float("nan"), 10)


BREAKOUT = "--vec.total-agents 16 --vec.num-buffers 2 --policy.hidden-size 8 --train.horizon 8"
BREAKOUT += " --train.minibatch-size 64 --train.total-timesteps 1e12"


@pytest.fixture
def breakout_on_a_gpu(cpu, monkeypatch):
    """Let check-gpu's item ``speeds`` measure a small Breakout, with the CPU as the GPU."""

    def place(given, *others):
        placement = rolling_out_there(given, *others)
        train = given.config.train
        whole = None if train.rollout_device == "cpu" else placement.gpu_rollouts
        return replace(placement, overlap=train.overlap, gpu_rollouts=whole)

    monkeypatch.setattr(trainer, "choose_placement", place)
    monkeypatch.setattr(runs, "need_gpu", lambda: None)
    monkeypatch.setattr(runs, "TIMED_OPTIONS", BREAKOUT.split())
    monkeypatch.setattr(runs, "MEASURED_EPOCHS", 1)
    monkeypatch.setattr(mx, "device_info", lambda device: {"device_name": "Apple M4 Pro"})
    with emulated_gpu():
        yield


def test_speeds_has_a_line_for_every_way(breakout_on_a_gpu):
    verdict = verdict_of("speeds", quick=False)
    assert verdict.verdict == OK, verdict
    ways = verdict.text.splitlines()
    begins = ["one launch", "several launches", "several launches, minibatch in one"]
    begins += ["several launches, minibatch in many", "overlapped, rollouts on the CPU"]
    assert [way.partition(": rollout ")[0] for way in ways] == begins
    numbers = r"rollout [\d.]+ ms.*, training [\d.]+ ms, epoch [\d.]+ ms: [\d.]+ M steps/s"
    assert all(re.search(numbers, way) for way in ways)


@pytest.mark.parametrize("off", [0.0, 0.01])
def test_first_ratios_compare_log_probabilities_of_rollouts_in_one_launch(cpu, monkeypatch, off):
    real = RolloutOnGPU.launch

    def launch(self, *given):
        found = real(self, *given)
        return found._replace(logprobs=found.logprobs + off)

    monkeypatch.setattr(trainer, "choose_placement", rolling_out_there)
    monkeypatch.setattr(RolloutOnGPU, "launch", launch)
    monkeypatch.setattr(runs, "NETWORKS", ["MinGRU"])
    with emulated_gpu() as gpu:
        verdict = verdict_of("first-ratios")
    assert verdict.verdict == (FAIL if off else OK), verdict
    assert "rollout_mingru_squared" in gpu.names


def test_learning_passes_by_its_score_and_is_skipped_on_a_slow_machine(cpu, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    real = runs.trainer
    small = ("--env.size", "3", "--vec.total-agents", "64", "--train.minibatch-size", "4096")

    def tiny(*options, env, **more):
        return real(*options, *small, env="squared", **more)

    monkeypatch.setattr(runs, "trainer", tiny)
    monkeypatch.setattr(runs, "MAX_LEARNING_STEPS", 5 * 64 * 64)
    monkeypatch.setattr(runs, "MIN_SCORE", -2.0)
    assert verdict_of("learns", quick=False).verdict == OK
    monkeypatch.setattr(runs, "MIN_SCORE", 2.0)
    verdict = verdict_of("learns", quick=False)
    assert verdict.verdict == FAIL and "at least 2" in verdict.text
    monkeypatch.setattr(runs, "MINUTE", 0.0)
    assert verdict_of("learns", quick=False).verdict == SKIP


def test_unexpected_exception_is_a_failure_with_details():
    def check(quick):
        raise ZeroDivisionError("by nothing")

    (verdict,) = run_item(Item("x", check), set(), True)
    assert verdict.verdict == FAIL and verdict.text == "ZeroDivisionError: by nothing"
    assert "in check" in verdict.details
