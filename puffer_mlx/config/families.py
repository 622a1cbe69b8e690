"""Families of Python environments: their spaces choose the default settings.

| family | observations | actions | files after python.ini |
| --- | --- | --- | --- |
| ``discrete`` | numbers | discrete | discrete.ini |
| ``continuous`` | numbers | continuous | continuous.ini |
| ``images`` | one image of bytes | discrete | images.ini |
| ``continuous_images`` | one image of bytes | continuous | images.ini, continuous.ini (partly) |

For a recurrent network, ``recurrent.ini`` is read last; for images only partly.

Sizes, passes and encoder depend more on the observations than on the actions or the network. So of
files that are read partly, only ``PARTIAL_FILE_KEYS`` are used: from continuous.ini the keys about
actions, from recurrent.ini those about resetting the state.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # it imports NumPy, which help doesn't need
    from puffer_mlx.spec import EnvSpec

CONTINUOUS_FILE = "continuous.ini"
RECURRENT_FILE = "recurrent.ini"
PARTIAL_FILE_KEYS = {  # keys that are used of a file that a family reads only partly
    CONTINUOUS_FILE: frozenset({"vec.rescale_actions", "train.ent_coef", "policy.log_std_init"}),
    RECURRENT_FILE: frozenset({"base.reset_state", "policy.reset_on_terminal"}),
}


class Family(NamedTuple):
    """A group of Python environments with the same defaults, such as those that return images.

    Args:
        kind: Description for notes.
        files: Files of settings; later ones win.
        partial_files: Files that are read only for the keys in ``PARTIAL_FILE_KEYS``.
    """

    kind: str
    files: tuple[str, ...]
    partial_files: tuple[str, ...] = ()

    def files_for(self, recurrent: bool) -> tuple[str, ...]:
        """Return the .ini files with this family's defaults, for a recurrent network or not."""
        return self.files + ((RECURRENT_FILE,) if recurrent else ())


FAMILIES = {
    "discrete": Family("discrete control", ("discrete.ini",)),
    "continuous": Family("continuous control", (CONTINUOUS_FILE,)),
    "images": Family("images", ("images.ini",), (RECURRENT_FILE,)),
    "continuous_images": Family(
        "images, continuous control", ("images.ini", CONTINUOUS_FILE), tuple(PARTIAL_FILE_KEYS)
    ),
}
AUTO = "auto"  # the environment's spaces choose the family
DEFAULT_FAMILY = "discrete"  # until the spaces are known
FAMILY_FILES = tuple(dict.fromkeys(file for f in FAMILIES.values() for file in f.files_for(True)))


def family_of(spec: "EnvSpec") -> str:
    """Return the family (group with the same defaults) of a Python environment, by its spaces.

    The families are discrete or continuous actions, each with or without images.
    """
    if spec.observation_shape or spec.image_parts:
        return "continuous_images" if spec.action.continuous else "images"
    return "continuous" if spec.action.continuous else "discrete"
