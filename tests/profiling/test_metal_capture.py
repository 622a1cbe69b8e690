"""The Metal capture with a stand-in for Metal: when it starts and stops, and what it refuses."""

import sys
from types import SimpleNamespace

import mlx.core as mx
import pytest
from running import files

from puffer_mlx.errors import UserError
from puffer_mlx.profiling import metal_capture
from puffer_mlx.profiling.metal_capture import MAX_EPOCHS, MetalCapture


@pytest.fixture
def metal(monkeypatch):
    """A machine with Metal whose captures are allowed; what was called."""
    calls = []
    fake = SimpleNamespace(
        is_available=lambda: True,
        start_capture=lambda path: calls.append(f"start {path}"),
        stop_capture=lambda: calls.append("stop"),
        calls=calls,
    )
    monkeypatch.setattr(metal_capture.mx, "metal", fake)
    monkeypatch.setattr(metal_capture.mx, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setenv("MTL_CAPTURE_ENABLED", "1")
    return fake


def train(captured: MetalCapture, calls: list[str], first: int, epochs: int) -> None:
    for epoch in range(first, first + epochs):
        captured.begin(epoch)
        calls.append(f"epoch {epoch}")
        if captured.end():
            calls.append("done")


@pytest.mark.parametrize(("first", "epochs"), [(0, 1), (700, 2)])
def test_the_first_epochs_are_left_out(metal, tmp_path, first, epochs):
    """Also of a run that goes on: kernels are compiled anew."""
    path = tmp_path / "new" / "run.gputrace"
    captured = MetalCapture(path, epochs)
    train(captured, metal.calls, first, 5)
    captured.close()
    expected = [f"epoch {first + i}" for i in range(5)]
    expected[2 + epochs : 2 + epochs] = ["synchronize", "stop", "done"]
    expected.insert(2, f"start {path}")
    assert metal.calls == expected and path.parent.is_dir()


@pytest.mark.parametrize(
    ("epochs", "last"), [(4, ["epoch 3", "synchronize", "stop"]), (2, ["epoch 0", "epoch 1"])]
)
def test_a_run_that_ends_within_it_or_before_it(metal, tmp_path, epochs, last):
    captured = MetalCapture(tmp_path / "run.gputrace", 5)
    train(captured, metal.calls, 0, epochs)
    captured.close()
    captured.close()
    assert metal.calls[-len(last) :] == last


def test_metal_may_refuse(metal, tmp_path):
    def refuse(path):
        raise RuntimeError("[metal::start_capture] Failed to start: no")

    metal.start_capture = refuse
    captured = MetalCapture(tmp_path / "run.gputrace")
    with pytest.raises(UserError, match=r"didn't start in epoch 2: .*Failed to start: no"):
        train(captured, metal.calls, 0, 3)
    captured.close()
    assert metal.calls == ["epoch 0", "epoch 1"]


def test_what_will_not_do_is_refused_before_the_run(metal, tmp_path):
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "old.gputrace").mkdir()
    (tmp_path / "link.gputrace").symlink_to("nowhere")
    for name, epochs, expected in [
        ("run.json", 1, r"must end in .gputrace\n  hint: .*run.gputrace"),
        ("", 1, r"must end in .gputrace"),
        ("old.gputrace", 1, "exists, and Metal doesn't replace"),
        ("link.gputrace", 1, "exists, and Metal doesn't replace"),
        ("taken/run.gputrace", 1, "can't write "),
        ("run.gputrace", 0, f"a capture of 0 epochs, expected 1 to {MAX_EPOCHS}"),
        ("run.gputrace", MAX_EPOCHS + 1, f"a capture of {MAX_EPOCHS + 1} epochs"),
    ]:
        with pytest.raises(UserError, match=expected) as error:
            MetalCapture(tmp_path / name, epochs)
        assert error.value.hint and metal.calls == []


@pytest.mark.parametrize("value", [None, "0"])
def test_captures_must_be_enabled_when_the_process_starts(metal, tmp_path, monkeypatch, value):
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", "breakout", "--name", "a b"])
    monkeypatch.delenv("MTL_CAPTURE_ENABLED")
    if value:
        monkeypatch.setenv("MTL_CAPTURE_ENABLED", value)
    with pytest.raises(UserError, match=f"found {value or 'nothing'}") as error:
        MetalCapture(tmp_path / "run.gputrace")
    assert error.value.hint == (
        "MTL_CAPTURE_ENABLED=1 python scripts/train.py breakout --name 'a b'"
    )


@pytest.mark.skipif(mx.metal.is_available(), reason="this machine has Metal")
def test_without_metal(tmp_path):
    """Where MLX's own functions would do nothing, and say nothing."""
    name = mx.device_info(mx.default_device())["device_name"]
    with pytest.raises(UserError, match=r"needs Metal; MLX has [cg]pu") as error:
        MetalCapture(tmp_path / "run.gputrace")
    assert f"({name}) here" in error.value.message and "a Mac" in error.value.hint
    assert files(tmp_path) == set()
