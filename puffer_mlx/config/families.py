"""Families of environments in Python: by its spaces, which settings an environment begins with.

| family | sees | does | files after python.ini |
| --- | --- | --- | --- |
| ``discrete`` | numbers | choices | discrete.ini |
| ``continuous`` | numbers | numbers | continuous.ini |
| ``images`` | an image of bytes, nothing else | choices | images.ini |
| ``continuous_images`` | such an image | numbers | images.ini, a part of continuous.ini |

If the network has a memory, ``recurrent.ini`` follows the first two families' file, a part of it
that of the others.

Sizes, passes and encoder depend on what an agent sees more than on what it does, or on what it
remembers. So images.ini counts whole, of continuous.ini only the keys that are about actions, and
of recurrent.ini those about when a state is cleared: ``PARTS``.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # it imports NumPy, which help needn't
    from puffer_mlx.spec import EnvSpec

CONTINUOUS_FILE = "continuous.ini"
RECURRENT_FILE = "recurrent.ini"
PARTS = {  # of files that count in part for a family, the keys that do
    CONTINUOUS_FILE: frozenset({"vec.rescale_actions", "train.ent_coef", "policy.log_std_init"}),
    RECURRENT_FILE: frozenset({"base.reset_state", "policy.reset_on_terminal"}),
}


class Family(NamedTuple):
    """A group of Python environments with the same default settings."""

    kind: str  # description for notes
    files: tuple[str, ...]  # the later ones win
    partly: tuple[str, ...] = ()  # files that count only for the keys in ``PARTS``

    def files_for(self, memory: bool) -> tuple[str, ...]:
        """Return the files for a network with or without recurrent state."""
        return self.files + ((RECURRENT_FILE,) if memory else ())


FAMILIES = {
    "discrete": Family("discrete control", ("discrete.ini",)),
    "continuous": Family("continuous control", (CONTINUOUS_FILE,)),
    "images": Family("images", ("images.ini",), (RECURRENT_FILE,)),
    "continuous_images": Family(
        "images, continuous control", ("images.ini", CONTINUOUS_FILE), tuple(PARTS)
    ),
}
AUTO = "auto"  # the spaces decide
ASSUMED = "discrete"  # until they are known
FILES = tuple(dict.fromkeys(file for f in FAMILIES.values() for file in f.files_for(True)))


def family_of(spec: "EnvSpec") -> str:
    """Return the family of an environment in Python."""
    if spec.observation_shape or spec.image_parts:
        return "continuous_images" if spec.action.continuous else "images"
    return "continuous" if spec.action.continuous else "discrete"
