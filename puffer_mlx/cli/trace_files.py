"""What a run records of itself besides its log: a timeline, and what a Mac's GPU does."""

from pathlib import Path

from puffer_mlx.profiling import metal_capture
from puffer_mlx.profiling.timeline import Trace
from puffer_mlx.training.trainer import Trainer


class TraceFiles:
    """The timeline and the GPU capture that were asked for; wrong ones are errors at once.

    Enter it before the first epoch, call ``epoch`` after each.

    Args:
        trainer: what is recorded.
        captured: the GPU capture's file, and how many epochs.
        traced: the timeline's file, and how many epochs.
    """

    def __init__(
        self,
        trainer: Trainer,
        captured: tuple[Path, int] | None,
        traced: tuple[Path, int] | None,
    ) -> None:
        self.trainer, self.trace = trainer, traced
        self.capture = metal_capture.MetalCapture(*captured) if captured else None

    def __enter__(self) -> None:
        if self.trace:  # counts from where the run goes on, which a resumed one knows only now
            path, epochs = self.trace
            self.trainer.profiler.trace = Trace(path, self.trainer.epoch + 2, epochs)
        if self.capture:
            self.capture.begin(self.trainer.epoch)

    def epoch(self) -> None:
        """An epoch has ended."""
        if self.capture and not self.capture.end(self.trainer.epoch - 1):
            self.capture.begin(self.trainer.epoch)

    def __exit__(self, *_: object) -> None:
        self.trainer.profiler.close()
        if self.capture:
            self.capture.close()
        for made in (self.trace and self.trace[0], self.capture and self.capture.path):
            if made and made.exists():
                print(f"wrote {made}")
