"""Metal only: what the GPU did in an epoch, kernel by kernel, as a .gputrace file for Xcode.

A capture holds every command and every buffer of its epochs: gigabytes, and the epochs take much
longer than usual. So it lasts for few of them, and begins after kernels are compiled. Metal allows
captures in processes that were started with ``MTL_CAPTURE_ENABLED=1``. MLX names its kernels
readably in builds with ``MLX_METAL_DEBUG=ON``; others show them by number.

Written against MLX's documented interface and tested with a stand-in: not run on a Mac.
"""

import os
from pathlib import Path

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.profiling.timeline import refuse_unwritable
from puffer_mlx.system import program

VARIABLE = "MTL_CAPTURE_ENABLED"
MOST = 5  # epochs
SKIPPED = 2  # epochs before it: the first compiles, the second is measured phase by phase


class MetalCapture:
    """Captures a few epochs of a run; every wrong thing is found before it starts.

    Args:
        path: where the capture is to be; ends in .gputrace, and must not exist.
        epochs: how many, 1 to ``MOST``; each makes the file larger, by gigabytes perhaps.

    Raises:
        UserError: no Metal here, captures aren't enabled, or the path or the number won't do.
    """

    def __init__(self, path: Path | str, epochs: int = 1) -> None:
        self.path, self.epochs = Path(path), epochs
        _refuse_arguments(self.path, epochs)
        _refuse_machine()
        refuse_unwritable(self.path)
        self._seen, self._active = 0, False

    def begin(self, epoch: int) -> None:
        """An epoch begins; the capture starts after ``SKIPPED`` of them, wherever a run begins.

        Raises:
            UserError: Metal refuses to capture.
        """
        if self._seen == SKIPPED:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                mx.metal.start_capture(str(self.path))
            except (RuntimeError, ValueError, OSError) as error:
                raise UserError(
                    f"the capture didn't start in epoch {epoch}: {error}",
                    "train without it, or choose another file",
                ) from None
            self._active = True
        self._seen += 1

    def end(self) -> bool:
        """An epoch has ended, its arrays evaluated; returns whether the capture is done with it."""
        if self._active and self._seen == SKIPPED + self.epochs:
            self.close()
            return True
        return False

    def close(self) -> None:
        """Stop a capture that is under way: the run ends early, or with an error."""
        if self._active:
            self._active = False
            mx.synchronize()
            mx.metal.stop_capture()


def _refuse_arguments(path: Path, epochs: int) -> None:
    if not 1 <= epochs <= MOST:
        raise UserError(
            f"a capture of {epochs} epochs, expected 1 to {MOST}",
            "1: an epoch's capture can take gigabytes",
        )
    if path.suffix != ".gputrace":
        raise UserError(
            f"a capture can't be written to {path}: its name must end in .gputrace",
            f"{path.with_suffix('.gputrace')}" if path.name else "run.gputrace",
        )
    if os.path.lexists(path):
        raise UserError(
            f"{path} exists, and Metal doesn't replace a capture", "remove it, or choose another"
        )


def _refuse_machine() -> None:
    if not mx.metal.is_available():
        device = mx.default_device()
        name = mx.device_info(device).get("device_name", "unnamed")
        raise UserError(
            f"a Metal capture needs Metal; MLX has {device.type.name} ({name}) here",
            "a Mac with Apple silicon; elsewhere, a timeline: --profile run.json",
        )
    if os.environ.get(VARIABLE) != "1":
        command = f"{VARIABLE}=1 {program.typed()}"
        raise UserError(
            f"Metal captures only what was started with {VARIABLE}=1,"
            f" found {os.environ.get(VARIABLE, 'nothing')}",
            command,
        )
