"""The Metal capture, with a substitute for Metal: when it starts and stops, and refusals."""

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
    """Replace MLX's functions that capture GPU commands; record their calls in ``calls``."""
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
        captured.begin_epoch(epoch)
        calls.append(f"epoch {epoch}")
        if captured.end_epoch():
            calls.append("done")


def test_the_capture_begins_after_the_epochs_that_compile(metal, tmp_path):
    path = tmp_path / "new" / "run.gputrace"
    captured = MetalCapture(path, 2)
    train(captured, metal.calls, 700, 5)
    captured.close()
    recorded = "epoch 702, epoch 703, synchronize, stop, done, epoch 704"
    assert ", ".join(metal.calls) == f"epoch 700, epoch 701, start {path}, {recorded}"
    assert path.parent.is_dir()


def test_closing_stops_a_capture_in_progress_once(metal, tmp_path):
    captured = MetalCapture(tmp_path / "run.gputrace", 5)
    train(captured, metal.calls, 0, 4)
    captured.close()
    captured.close()
    assert metal.calls[-3:] == ["epoch 3", "synchronize", "stop"]


def test_a_capture_that_does_not_start_is_an_error(metal, tmp_path):
    def refuse(path):
        raise RuntimeError("[metal::start_capture] Failed to start: no")

    metal.start_capture = refuse
    captured = MetalCapture(tmp_path / "run.gputrace")
    with pytest.raises(UserError, match=r"didn't start in epoch 2: .*Failed to start: no"):
        train(captured, metal.calls, 0, 3)
    captured.close()
    assert metal.calls == ["epoch 0", "epoch 1"]


@pytest.mark.parametrize(
    ("name", "epochs", "message"),
    [
        ("run.json", 1, r"must end in .gputrace\n  hint: .*run.gputrace"),
        ("link.gputrace", 1, "exists, and Metal doesn't replace"),
        ("run.gputrace", MAX_EPOCHS + 1, f"a capture of {MAX_EPOCHS + 1} epochs, expected 1 to"),
    ],
)
def test_an_unusable_path_or_length_is_refused_before_the_run(
    metal, tmp_path, name, epochs, message
):
    (tmp_path / "link.gputrace").symlink_to("nowhere")
    with pytest.raises(UserError, match=message) as error:
        MetalCapture(tmp_path / name, epochs)
    assert error.value.hint and metal.calls == []


def test_captures_must_be_enabled_when_the_process_starts(metal, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", "breakout", "--name", "a b"])
    monkeypatch.setenv("MTL_CAPTURE_ENABLED", "0")
    with pytest.raises(UserError, match="found 0") as error:
        MetalCapture(tmp_path / "run.gputrace")
    assert error.value.hint == "MTL_CAPTURE_ENABLED=1 python scripts/train.py breakout --name 'a b'"


@pytest.mark.skipif(mx.metal.is_available(), reason="this machine has Metal")
def test_a_capture_without_metal_is_refused(tmp_path):
    name = mx.device_info(mx.default_device())["device_name"]
    with pytest.raises(UserError, match=r"needs Metal, but MLX uses [cg]pu") as error:
        MetalCapture(tmp_path / "run.gputrace")
    assert f"({name})" in error.value.message and "a Mac" in error.value.hint
    assert files(tmp_path) == set()
