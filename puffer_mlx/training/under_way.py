"""What an epoch that isn't over has come to."""

from typing import NamedTuple

from puffer_mlx.profiling.phases import duration


class UnderWay(NamedTuple):
    """An epoch under way.

    Args:
        seconds: since it began.
        usual: seconds that the epoch before took; 0: there was none in this start, or it compiled.
        phase: ``rollout`` or ``training``.
        part: of the phase that is done, 0 to 1; None where that isn't known.
    """

    seconds: float
    usual: float
    phase: str
    part: float | None

    def text(self, epoch: int, stopping: bool) -> str:
        """A line about it.

        Args:
            epoch: its number, from 1.
            stopping: whether the run ends after it: then all that matters is when.
        """
        if stopping:
            left = self.usual - self.seconds
            when = f", in about {duration(left)}" if left >= 1 else ", soon"
            return "stops after this epoch" + (when if self.usual else "")
        part = "" if self.part is None else f" {100 * self.part:.0f} %"
        usual = f" of about {duration(self.usual)}" if self.usual else ""
        return f"epoch {epoch}: {self.phase}{part}, {duration(self.seconds)}{usual}"
