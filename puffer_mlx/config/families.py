"""Families of environments in Python: by its spaces, which settings an environment begins with.

| family | sees | does | files after python.ini |
| --- | --- | --- | --- |
| ``discrete`` | numbers | choices | discrete.ini |
| ``continuous`` | numbers | numbers | continuous.ini |
| ``images`` | an image of bytes, nothing else | choices | images.ini |
| ``continuous_images`` | such an image | numbers | images.ini; of continuous.ini ``OF_ACTIONS`` |

If the network has a memory, ``recurrent.ini`` follows the first two families' file.

Sizes, passes and encoder depend on what an agent sees more than on what it does. So images.ini
counts whole where continuous actions go with images, and of continuous.ini only the keys that are
about actions.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # it imports NumPy, which help needn't
    from puffer_mlx.spec import EnvSpec

CONTINUOUS_FILE = "continuous.ini"
RECURRENT_FILE = "recurrent.ini"
OF_ACTIONS = frozenset({"vec.rescale_actions", "train.ent_coef", "policy.log_std_init"})


class Family(NamedTuple):
    """What environments have in common."""

    kind: str  # in words
    files: tuple[str, ...]  # the later ones win
    partly: str = ""  # the one among them of which only the keys in ``OF_ACTIONS`` count
    recurrent: tuple[str, ...] = ()  # further files, if the network has a memory

    def files_for(self, memory: bool) -> tuple[str, ...]:
        """The files for a network with or without a memory."""
        return self.files + (self.recurrent if memory else ())


FAMILIES = {
    "discrete": Family("discrete control", ("discrete.ini",), recurrent=(RECURRENT_FILE,)),
    "continuous": Family("continuous control", (CONTINUOUS_FILE,), recurrent=(RECURRENT_FILE,)),
    "images": Family("images", ("images.ini",)),
    "continuous_images": Family(
        "images, continuous control", ("images.ini", CONTINUOUS_FILE), CONTINUOUS_FILE
    ),
}
AUTO = "auto"  # the spaces decide
ASSUMED = "discrete"  # until they are known
FILES = tuple(
    dict.fromkeys(file for family in FAMILIES.values() for file in family.files + family.recurrent)
)


def family_of(spec: "EnvSpec") -> str:
    """The family of an environment in Python."""
    if spec.observation_shape or spec.image_parts:
        return "continuous_images" if spec.action.continuous else "images"
    return "continuous" if spec.action.continuous else "discrete"
