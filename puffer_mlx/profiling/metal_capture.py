"""Capture the GPU's work in an epoch, kernel by kernel, as a .gputrace file for Xcode (Metal only).

A capture contains every GPU command and every buffer of the captured epochs, which takes gigabytes
and slows the run down. So it covers few epochs and starts after kernels are compiled. Metal allows
captures only in processes started with ``MTL_CAPTURE_ENABLED=1``. Kernels have readable names in
MLX builds with ``MLX_METAL_DEBUG=ON``, and numbers in other builds.

Tested only with a substitute for MLX's functions, not on a Mac.
"""

import os
from pathlib import Path

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.system.files import check_writable

CAPTURE_VARIABLE = "MTL_CAPTURE_ENABLED"
MAX_EPOCHS = 5
# Epochs before a capture: the first compiles, the second evaluates after each phase (profiling),
# so neither is representative.
WARMUP_EPOCHS = 2


class MetalCapture:
    """Capture the GPU work of a few epochs of a run in a file for Xcode.

    Args:
        path: File to write; ends in .gputrace and must not exist.
        epochs: Number of epochs, 1 to ``MAX_EPOCHS``; each may add gigabytes to the file.

    Raises:
        UserError: Metal is missing, captures aren't enabled, or an argument is invalid.
    """

    def __init__(self, path: Path | str, epochs: int = 1) -> None:
        self.path = Path(path)
        self.epochs = epochs
        _check_arguments(self.path, epochs)
        _check_metal()
        check_writable(self.path)
        self._begun_epochs = 0
        self._active = False

    def begin_epoch(self, epoch: int) -> None:
        """Report to the GPU capture that an epoch begins. Starts it after ``WARMUP_EPOCHS`` epochs.

        Args:
            epoch: Number of the epoch, for the error message.

        Raises:
            UserError: Metal can't start the capture.
        """
        if self._begun_epochs == WARMUP_EPOCHS:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                mx.metal.start_capture(str(self.path))
            except (RuntimeError, ValueError, OSError) as error:
                raise UserError(
                    f"the capture didn't start in epoch {epoch}: {error}",
                    "train without it, or choose another file",
                ) from None
            self._active = True
        self._begun_epochs += 1

    def end_epoch(self) -> bool:
        """Report to the GPU capture that an epoch ended. Stops it after its last epoch.

        Call it when the epoch's arrays are evaluated.

        Returns:
            True if this call stopped the capture.
        """
        if self._active and self._begun_epochs == WARMUP_EPOCHS + self.epochs:
            self.close()
            return True
        return False

    def close(self) -> None:
        """Stop the GPU capture if it is in progress, also when the run ends with an error."""
        if self._active:
            self._active = False
            mx.synchronize()
            mx.metal.stop_capture()


def _check_arguments(path: Path, epochs: int) -> None:
    """Raise an error for a GPU capture with a bad number of epochs or an unusable file path."""
    if not 1 <= epochs <= MAX_EPOCHS:
        raise UserError(
            f"a capture of {epochs} epochs, expected 1 to {MAX_EPOCHS}",
            "start with 1: one epoch can take gigabytes",
        )
    if path.suffix != ".gputrace":
        raise UserError(
            f"a capture can't be written to {path}: its name must end in .gputrace",
            f"{path.with_suffix('.gputrace')}" if path.name else "run.gputrace",
        )
    if os.path.lexists(path):
        raise UserError(
            f"{path} exists, and Metal doesn't replace a capture",
            "remove it, or choose another path",
        )


def _check_metal() -> None:
    """Check that MLX uses Metal and GPU captures are enabled. Raises an error otherwise."""
    if not mx.metal.is_available():
        device = mx.default_device()
        name = mx.device_info(device).get("device_name", "unnamed")
        raise UserError(
            f"a Metal capture needs Metal, but MLX uses {device.type.name} ({name})",
            "use a Mac with Apple silicon, or record a timeline: --profile run.json",
        )
    if os.environ.get(CAPTURE_VARIABLE) != "1":
        command = f"{CAPTURE_VARIABLE}=1 {program.full_command_line()}"
        raise UserError(
            f"Metal captures only programs started with {CAPTURE_VARIABLE}=1,"
            f" found {os.environ.get(CAPTURE_VARIABLE, 'nothing')}",
            command,
        )
