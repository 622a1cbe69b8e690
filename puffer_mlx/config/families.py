"""Families of environments in Python: which settings they begin with, by their spaces.

| family | sees | does | files after python.ini |
| --- | --- | --- | --- |
| ``discrete`` | numbers | choices | discrete.ini |
| ``continuous`` | numbers | numbers | continuous.ini |
| ``images`` | an image of bytes, nothing else | choices | images.ini |
| ``continuous_images`` | such an image | numbers | images.ini; of continuous.ini ``OF_ACTIONS`` |

Where the network has a memory, the first two have ``recurrent.ini`` behind their file.

What an agent sees decides about sizes, passes and encoders; so images count before actions, and
only those keys of continuous.ini that are about actions alone count beside images.
"""

from typing import NamedTuple

from puffer_mlx.spec import EnvSpec

CONTINUOUS_FILE = "continuous.ini"
RECURRENT_FILE = "recurrent.ini"
OF_ACTIONS = frozenset({"vec.rescale_actions", "train.ent_coef", "policy.log_std_init"})


class Family(NamedTuple):
    """What environments have in common."""

    kind: str  # in words
    files: tuple[str, ...]  # the later ones win
    partly: str = ""  # one of them, of which only ``OF_ACTIONS`` count
    recurrent: tuple[str, ...] = ()  # behind them where the network has a memory

    def files_for(self, memory: bool) -> tuple[str, ...]:
        """Its files, for a network that has a memory or hasn't."""
        return self.files + (self.recurrent if memory else ())


FAMILIES = {
    "discrete": Family("discrete control", ("discrete.ini",), recurrent=(RECURRENT_FILE,)),
    "continuous": Family("continuous control", (CONTINUOUS_FILE,), recurrent=(RECURRENT_FILE,)),
    "images": Family("images", ("images.ini",)),
    "continuous_images": Family(
        "images, continuous control", ("images.ini", CONTINUOUS_FILE), CONTINUOUS_FILE
    ),
}
AUTO = "auto"  # to be chosen from the spaces
ASSUMED = "discrete"  # while nobody has looked at them
FILES = tuple(
    dict.fromkeys(file for family in FAMILIES.values() for file in family.files + family.recurrent)
)


def family_of(spec: EnvSpec) -> str:
    """The family of an environment in Python, by what it shows and takes."""
    if spec.observation_shape:
        return "continuous_images" if spec.action.continuous else "images"
    return "continuous" if spec.action.continuous else "discrete"
