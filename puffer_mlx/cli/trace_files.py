"""What a run records of itself besides its log: a timeline, and what a Mac's GPU does."""

from argparse import Namespace

from puffer_mlx.cli.train_options import PROFILED
from puffer_mlx.profiling import metal_capture
from puffer_mlx.profiling.timeline import Trace
from puffer_mlx.training.trainer import Trainer


class TraceFiles:
    """The timeline and the GPU capture that were asked for; wrong ones are errors at once.

    Enter it before the first epoch, call ``epoch`` after each.

    Args:
        trainer: what is recorded.
        options: the command's, which name the files.
    """

    def __init__(self, trainer: Trainer, options: Namespace) -> None:
        self.trainer, self.trace = trainer, options.trace
        self.epochs = options.profile_epochs or PROFILED  # of the timeline
        captured = options.gpu_capture, options.gpu_capture_epochs or 1
        self.capture = metal_capture.MetalCapture(*captured) if captured[0] else None

    def __enter__(self) -> None:
        if self.trace:  # counts from where the run goes on, which a resumed one knows only now
            trace = Trace(self.trace, self.trainer.epoch + 2, self.epochs)
            self.trainer.profiler.trace = trace
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
        for made in (self.trace, self.capture and self.capture.path):
            if made and made.exists():
                print(f"wrote {made}")
