"""scripts/check_gpu.py: a healthy machine passes, a fault fails its item and hides no other."""

import json
import os
import re
import shutil
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from emulated_run import emulated_gpu, stand_in
from mlx.utils import tree_map
from running import ROOT, files, run

from puffer_mlx import ops
from puffer_mlx.check.gpu import arithmetic, coded_environment, live, several, speeds, upkeep
from puffer_mlx.check.gpu.items import FAIL, ITEMS, PASS, SKIP, Item, Verdict, judge
from puffer_mlx.check.gpu.tools import QUICK, TF32, UNIT, Effort, unit
from puffer_mlx.check.item_processes import known
from puffer_mlx.checkpoint import State
from puffer_mlx.cli import check_gpu
from puffer_mlx.cli.check_gpu import Result
from puffer_mlx.errors import UserError
from puffer_mlx.export import importing
from puffer_mlx.policy.networks.mingru import gpu as mingru_gpu
from puffer_mlx.policy.networks.mingru.network import MinGRU
from puffer_mlx.ppo import precision
from puffer_mlx.profiling import timeline
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.rollout.on_gpu import RolloutsOnGPU, rollouts_in_one_launch
from puffer_mlx.system.devices import has_gpu
from puffer_mlx.system.version import version_text
from puffer_mlx.training import collector, health, trainer
from puffer_mlx.training.placement import Placement

NEED_GPU = {"kernels-gpu-fp32", "kernels-gpu-bf16", "kernels-gpu-fp16", "minibatch", "loss"}
NEED_GPU |= {"acting", "several", "minibatch-5", "round-trip", "where-to-act", "same-epoch"}
NEED_GPU |= {"capture", "speeds", "one-launch"}  # whose fault is in test_trajectories.py
NEED_TIME = {"profile-cost", "learns"}


@pytest.fixture
def cpu():
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(device)


def item(name: str) -> Item:
    (found,) = known(ITEMS, [name])
    return found


@pytest.mark.parametrize(
    ("architecture", "told", "rounding"),
    [
        ("applegpu_g16s", None, UNIT["fp32"]),  # M4
        ("applegpu_g17s", None, TF32),  # M5
        ("applegpu_g17s", "0", UNIT["fp32"]),
        ("applegpu_g17s", "1", TF32),
        (None, None, TF32),  # CUDA
        (None, "0", UNIT["fp32"]),
    ],
)
def test_rounding_of_float32_products(monkeypatch, architecture, told, rounding):
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    monkeypatch.setattr(mx.metal, "is_available", lambda: architecture is not None)
    monkeypatch.setattr(mx, "device_info", lambda device: {"architecture": architecture})
    monkeypatch.delenv("MLX_ENABLE_TF32", raising=False)
    if told is not None:
        monkeypatch.setenv("MLX_ENABLE_TF32", told)
    assert unit("fp32") == rounding
    assert unit("bf16") == UNIT["bf16"]


def test_a_healthy_machine(tmp_path):
    done = run("check_gpu", "--quick", "--device", "cpu", "--json", "record.json", cwd=tmp_path)
    rows = json.loads((tmp_path / "record.json").read_text())["items"]
    wrong = {name: row for name, row in rows.items() if row["verdict"] == FAIL}
    assert (done.returncode, wrong, done.stderr) == (0, {}, "")
    assert list(rows) == [*(item.name for item in ITEMS), "end"]
    skipped = {name for name, row in rows.items() if row["verdict"] == SKIP}
    assert skipped == NEED_GPU | NEED_TIME
    assert all(row["text"] and row["seconds"] >= 0 for row in rows.values())
    summary = f"{len(rows) - len(skipped)} passed, 0 failed, {len(skipped)} skipped"
    assert summary in done.stdout
    for item in ITEMS:
        assert item.title in done.stdout
    assert files(tmp_path) == {"record.json"}


# ---- faults in a process of their own ------------------------------------------------------------


def planted(folder: Path, *faults: tuple[str, str, str]) -> dict[str, str]:
    """A copy of the package with faults (file, what is there, what becomes of it) for Python."""
    shutil.copytree(
        ROOT / "puffer_mlx", folder / "puffer_mlx", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("configs", "envs"):
        (folder / name).symlink_to(ROOT / name)
    for file, old, new in faults:
        path = folder / "puffer_mlx" / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has changed: plant another fault"
        path.write_text(text.replace(old, new))
    return {**os.environ, "PYTHONPATH": str(folder)}


def verdicts(folder: Path) -> dict[str, str]:
    rows = json.loads((folder / "record.json").read_text())["items"]
    return {name: row["verdict"] for name, row in rows.items()}


def test_one_fault_fails_one_item(tmp_path):
    """Steps that overflow are counted, and taken all the same."""
    environment = planted(
        tmp_path,
        ("ppo/precision/__init__.py", "mx.where(ok, a, b)", "a"),
        (
            "ppo/optimizers/muon/__init__.py",
            "extension = ops.extension_with_products(REFERENCE)",
            "extension = None",
        ),
    )
    words = ["--quick", "--device", "cpu", "--json", "record.json"]
    only = ["--only", "losses", "overflow", "trace", "files"]
    done = run("check_gpu", *words, *only, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (1, "")
    assert verdicts(tmp_path) == {
        **dict.fromkeys(("losses", "trace", "files", "end"), PASS),
        "overflow": FAIL,
    }
    assert "weights or momentum changed in a skipped step" in done.stdout
    assert "4 passed, 1 failed, 0 skipped" in done.stdout


def test_a_process_that_dies_or_hangs_hides_no_other_item(tmp_path):
    environment = planted(
        tmp_path,
        ("check/gpu/items.py", "lines = dict(", "os.abort(); lines = dict("),
        ("check/gpu/upkeep.py", "spans = [event for", "time.sleep(90); spans = [event for"),
    )
    words = ["--quick", "--device", "cpu", "--json", "record.json", "--timeout", "30"]
    only = ["--report", "report.txt", "--only", "machine", "losses", "trace", "files"]
    done = run("check_gpu", *words, *only, cwd=tmp_path, env=environment)
    assert done.returncode == 1
    assert verdicts(tmp_path) == {
        **dict.fromkeys(("losses", "files", "end"), PASS),
        **dict.fromkeys(("machine", "trace"), FAIL),
    }
    assert "the process died of SIGABRT" in done.stdout and "Fatal Python error" in done.stderr
    assert "no answer after 30 seconds" in done.stdout and "upkeep.py" in done.stderr
    report = (tmp_path / "report.txt").read_text()
    assert all(line in report for line in done.stdout.splitlines())
    versions = [line for line in version_text().splitlines() if not line.startswith("BLAS")]
    assert all(line in report for line in versions)  # BLAS: its threads are each process's own


WRONG = Item("wrong", "what is wrong", lambda effort: "1 / 0")
RESULTS = [
    Result(WRONG, Verdict(FAIL, "ZeroDivisionError: by nothing", "Traceback: in wrong"), 1.5),
    Result(item("machine"), Verdict(PASS, "a number"), 0.5),
]


def test_a_report_has_what_was_found_when_the_check_was_ended(monkeypatch, tmp_path, capsys):
    """Each result is in the file before the next item runs."""
    seen = []

    def results(*_):
        for result in RESULTS:
            seen.append(path.read_text())
            yield result
        raise KeyboardInterrupt

    path = tmp_path / "report.txt"
    monkeypatch.setattr(check_gpu, "results", results)
    assert check_gpu.main(["--report", str(path), "--only", "losses", "files", "machine"]) == 130
    assert "not all: 0 of 3 items" in seen[0] and "FAIL" not in seen[0]
    assert "FAIL  what is wrong  wrong, 1.5 s\n      ZeroDivisionError: by nothing\n" in seen[1]
    assert "Traceback: in wrong" in seen[1] and "not all: 1 of 3 items, 0 passed, 1 fail" in seen[1]
    assert "not all: 2 of 3 items, 1 passed, 1 failed" in path.read_text()
    assert files(tmp_path) == {"report.txt"}


@pytest.mark.parametrize("option", ["--report", "--json"])
@pytest.mark.parametrize("file", ["there", "file/report.txt"])
def test_a_report_that_cannot_be_written_is_told_before_anything_runs(
    monkeypatch, tmp_path, capsys, file, option
):
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr(check_gpu, "results", lambda *_: pytest.fail("an item ran"))
    assert check_gpu.main([option, str(tmp_path / file)]) == 2
    said, error = capsys.readouterr()
    assert said == "" and len(error.splitlines()) == 2
    assert f"error: can't write {tmp_path}" in error and "hint:" in error
    assert files(tmp_path) == {"file"}


def test_names(tmp_path):
    done = run("check_gpu", "--list", cwd=tmp_path)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [i.name for i in ITEMS]
    done = run("check_gpu", "--only", "losses", "nonsense", cwd=tmp_path)
    assert done.returncode == 2 and "no item 'nonsense'" in done.stderr
    with pytest.raises(UserError, match="torn-slots"):
        known(ITEMS, ["nonsense"])
    if not has_gpu():
        done = run("check_gpu", "--device", "gpu", cwd=tmp_path)
        assert done.returncode == 2 and "has no GPU" in done.stderr


# ---- every item finds what it looks for ----------------------------------------------------------


def wrong_operations(patch):
    real = ops.FusedOperation.form

    def form(self):
        right = real(self)
        assert right is not None
        return (lambda x, dy: 1.1 * right(x, dy)) if self.name == "gelu_backward" else right

    patch.setattr(ops.FusedOperation, "form", form)


def wrong_step(patch):
    real = MinGRU.step

    def step(self, *arguments):
        out, state = real(self, *arguments)
        return out, [0.9 * layer for layer in state]

    patch.setattr(MinGRU, "step", step)


def wrong_cast(patch):
    """What trains in low precision isn't what acts."""

    def cast(weights, name):
        low = precision.DTYPES[name]
        return weights if name == "fp32" else tree_map(lambda w: (1.2 * w).astype(low), weights)

    patch.setattr(arithmetic, "lower", cast)
    patch.setattr(precision, "lower", cast)


def nan_cast(patch):
    def cast(weights, name):
        return weights if name == "fp32" else tree_map(lambda w: w * float("nan"), weights)

    patch.setattr(precision, "lower", cast)


def no_carry(patch):
    real = RolloutBuffer.begin
    patch.setattr(RolloutBuffer, "begin", lambda self, _: real(self, self))


def more_lag(patch):
    """What acts beside training is one update older still."""
    real = collector.Collector.begin

    def begin(self, weights, key):
        older, self.older = getattr(self, "older", weights), weights
        return real(self, older if self.overlap else weights, key)

    patch.setattr(collector.Collector, "begin", begin)


def one_slot(patch):
    real = collector.Collector.begin

    def begin(self, *arguments):
        self.buffers = [self.buffer, self.buffer]
        return real(self, *arguments)

    patch.setattr(collector.Collector, "begin", begin)


def no_way_back(patch):
    patch.setattr(coded_environment.Faulty, "restore", lambda self, state: None, raising=False)


def forgetful_restore(patch):
    real = trainer.Trainer.restore

    def restore(self, weights, state):
        kept = {n: a for n, a in state.arrays.items() if not n.startswith("acting.")}
        return real(self, weights, State(kept, state.numbers))

    patch.setattr(trainer.Trainer, "restore", restore)


def no_thread(patch):
    def submit(job):
        future: Future = Future()
        future.set_result(job())
        return future

    patch.setattr(collector, "worker", lambda: SimpleNamespace(submit=submit))


def steps_that_count(patch):
    patch.setattr(ops, "extension_with_products", lambda *_: None)  # whose own choice is in C++
    patch.setattr(precision, "choose", lambda ok, new, old: new)


def silent_error(patch):
    patch.setattr(health, "not_finite", lambda *_: UserError("something isn't finite"))


def leak(patch):
    real, kept = trainer.Trainer.step, []

    def step(self):
        kept.append(mx.zeros(100_000))
        mx.eval(kept[-1])
        return real(self)

    patch.setattr(trainer.Trainer, "step", step)


def lost_laps(patch):
    real = PhaseTimer.lap

    def lap(self, phase, *more):
        real(self, phase, *more) if phase != "eval_act" else self.start()

    patch.setattr(PhaseTimer, "lap", lap)


def no_durations(patch):
    real = timeline.Trace._document

    def document(self, lost):
        made = real(self, lost)
        for event in made["traceEvents"]:
            event.pop("dur", None)
        return made

    patch.setattr(timeline.Trace, "_document", document)


def changed_import(patch):
    real = importing.weights_of

    def weights_of(*arguments: Any):
        policy, weights = real(*arguments)
        return policy, tree_map(lambda w: w + 1e-7, weights)

    patch.setattr(importing, "weights_of", weights_of)


FAULTS = {
    "kernels-cpu-fp32": (wrong_operations, "GELU gradient 1"),
    "kernels-cpu-bf16": (wrong_operations, "GELU gradient 1"),
    "steps": (wrong_step, "MinGRU"),
    "gradients": (wrong_cast, "gradient by"),
    "first-ratios": (wrong_cast, "ratios of bf16"),
    "rollouts": (no_carry, "observations of rollout"),
    "losses": (more_lag, "losses apart by"),
    "torn-slots": (one_slot, "torn slot"),
    "exceptions": (no_way_back, "losses apart by"),
    "resume": (forgetful_restore, "losses apart by"),
    "overlap": (no_thread, "beside the other"),
    "precisions": (nan_cast, "bf16"),
    "overflow": (steps_that_count, "changed in a skipped step"),
    "not-finite": (silent_error, "another phase"),
    "memory": (leak, "bytes left behind"),
    "profile": (lost_laps, "sum off by"),
    "trace": (no_durations, "lacks dur"),
    "files": (changed_import, "bin changed"),
}


def test_every_item_has_a_fault():
    other = NEED_GPU | NEED_TIME | {"machine", "kernels-cpu-fp16"}
    assert set(FAULTS) == {item.name for item in ITEMS} - other


@pytest.mark.parametrize("name", FAULTS)
def test_faults(cpu, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    plant, words = FAULTS[name]
    plant(monkeypatch)
    verdict = judge(item(name), QUICK)
    assert verdict.verdict == FAIL and words in verdict.text


@pytest.fixture
def a_gpu(monkeypatch):
    for item in (live, several):
        stand_in(monkeypatch, item)
    for name, size in {"T": 6, "S": 5, "H": 8}.items():
        monkeypatch.setattr(arithmetic, name, size)


def test_a_minibatch_of_5(a_gpu, monkeypatch):
    """A fault of what is launched is found: here a state that isn't forgotten."""
    assert judge(item("minibatch-5"), QUICK).verdict == PASS
    real = mingru_gpu.first_and_keep
    monkeypatch.setattr(mingru_gpu, "first_and_keep", lambda first, _: real(first, None))
    verdict = judge(item("minibatch-5"), QUICK)
    assert verdict.verdict == FAIL and "MinGRU fp32" in verdict.text


def test_several_policies(a_gpu, monkeypatch):
    """A row for which another policy acts than should is found."""
    monkeypatch.setattr(several, "S", 11)
    monkeypatch.setattr(several, "NETWORKS", ["LSTM"])
    assert judge(item("several"), QUICK).verdict == PASS
    real = several.crews_of
    monkeypatch.setattr(several, "crews_of", lambda acts, n: real(np.roll(acts, 1), n))
    verdict = judge(item("several"), QUICK)
    assert verdict.verdict == FAIL and "at most 2e-05" in verdict.text


BREAKOUT = "--vec.total-agents 16 --vec.num-buffers 2 --policy.hidden-size 8 --train.horizon 8"
BREAKOUT += " --train.minibatch-size 64 --train.total-timesteps 1e12"


@pytest.fixture
def breakout_on_a_gpu(cpu, monkeypatch):
    """The item ``speeds`` measures a small Breakout on a GPU that is the CPU."""

    def place(given, vec, policy, *_):
        whole = rollouts_in_one_launch(policy, vec, given.train.horizon)
        device, apart = mx.Device(mx.cpu), given.train.rollout_device == "cpu"
        return Placement(device, device, given.train.overlap, whole=None if apart else whole)

    monkeypatch.setattr(trainer, "place", place)
    monkeypatch.setattr(speeds, "need_gpu", lambda: None)
    monkeypatch.setattr(speeds, "OPTIONS", BREAKOUT.split())
    monkeypatch.setattr(speeds, "ROUNDS", 1)
    monkeypatch.setattr(mx, "device_info", lambda device: {"device_name": "Apple M4 Pro"})
    with emulated_gpu():
        yield


def test_speeds(breakout_on_a_gpu):
    verdict = judge(item("speeds"), Effort())
    assert verdict.verdict == PASS, verdict
    *ways, predicted = verdict.text.splitlines()
    numbers = r"training [\d.]+ ms, epoch [\d.]+ ms: [\d.]+ M steps/s"
    expected = [r"one launch: rollout [\d.]+ ms \(8 steps a launch\), "]
    expected += [r"in pieces: rollout [\d.]+ ms \(4 steps a launch\), "]
    expected += [r"overlapped, rollouts on the CPU: rollout [\d.]+ ms, "]
    for way, begins in zip(ways, expected, strict=True):
        assert re.fullmatch(begins + numbers, way), way
    assert predicted == speeds.predicted("Apple M4 Pro")


def test_a_speed_that_cannot_be_had_hides_no_other(breakout_on_a_gpu, monkeypatch):
    def fail(*_):
        raise UserError("macOS ended the GPU's rollout twice")

    monkeypatch.setattr(RolloutsOnGPU, "collect", fail)
    verdict = judge(item("speeds"), Effort())
    assert verdict.verdict == FAIL and "one launch: UserError: macOS ended" in verdict.text
    assert "overlapped, rollouts on the CPU: rollout" in verdict.text
    assert "predicted for Apple M4 Pro" in verdict.text


def test_predictions():
    """3.5 GB at 100 GB/s take longer than 76 GFLOP at 4 TFLOP/s; 2,030 launches 5 ms."""
    patched = {"A chip": (4, 100)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speeds, "CHIPS", patched)
        assert "rollout 4.3 ms, training 40.1 ms" in speeds.predicted("A chip")
        assert speeds.predicted("NVIDIA X") == "predicted for NVIDIA X: none"


def test_learning_is_judged(cpu, monkeypatch, tmp_path):
    """By the score of what a minute gives; too few steps are no verdict."""
    monkeypatch.chdir(tmp_path)
    real = upkeep.trainer
    small = ("--env.size", "3", "--vec.total-agents", "64", "--train.minibatch-size", "4096")

    def tiny(*options, env, **more):
        return real(*options, *small, env="squared", **more)

    monkeypatch.setattr(upkeep, "trainer", tiny)
    monkeypatch.setattr(upkeep, "STEPS", 5 * 64 * 64)
    monkeypatch.setattr(upkeep, "SCORE", -2.0)
    assert judge(item("learns"), Effort()).verdict == PASS
    monkeypatch.setattr(upkeep, "SCORE", 2.0)
    verdict = judge(item("learns"), Effort())
    assert verdict.verdict == FAIL and "at least 2" in verdict.text
    monkeypatch.setattr(upkeep, "MINUTE", 0.0)
    assert judge(item("learns"), Effort()).verdict == SKIP


def test_what_nobody_expected_is_a_failure_with_details():
    def check(effort):
        raise ZeroDivisionError("by nothing")

    verdict = judge(Item("x", "y", check), QUICK)
    assert verdict.verdict == FAIL and verdict.text == "ZeroDivisionError: by nothing"
    assert "in check" in verdict.details
