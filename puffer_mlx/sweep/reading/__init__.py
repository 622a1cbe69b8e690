"""A configuration's ``[sweep]`` sections as settings and a space, with what is odd in them.

PufferLib's own files have sections that its sweep stumbles over: keys that nothing has, values
outside their ranges, names of before 4.0. Each is one sentence for the person, and the sweep goes
on without it; only what leaves nothing sensible to do is an error.
"""

from typing import NamedTuple

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.reading.of_parameters import read_parameters
from puffer_mlx.sweep.reading.of_settings import read_settings
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Space


class Sweep(NamedTuple):
    """What is to be swept, and how.

    Args:
        settings: of ``[sweep]``.
        space: of the ``[sweep.SECTION.KEY]``.
        notes: what is odd, a sentence each, for the person.
    """

    settings: SweepSettings
    space: Space
    notes: list[str]


def read_sweep(config: Config, only: str = "") -> Sweep:
    """What a configuration's ``[sweep]`` sections say, over PufferLib's own default ranges.

    Args:
        config: a checked configuration.
        only: words with commas between them, which win over ``sweep.sweep_only``.

    Raises:
        UserError: what can't be swept: an empty range, an unknown distribution, nothing at all.
    """
    notes: list[str] = []
    settings = read_settings(config.sweep, notes, only)
    parameters = read_parameters(config, settings.sweep_only, notes)
    if not parameters:
        words = f" whose name contains {', '.join(settings.sweep_only)}" * bool(settings.sweep_only)
        message = f"there is no parameter{words} to sweep"
        raise UserError(
            message, "write a section [sweep.train.learning_rate], or another sweep_only"
        )
    return Sweep(settings, Space(parameters), notes)
