"""Declare configuration keys (type, default, unit, range, help), and represent their settings."""

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from puffer_mlx.config.compatibility import closest
from puffer_mlx.errors import UserError

INT_MAX = 2**31 - 1  # largest C int, the type in environments
CUSTOM_NAME = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"  # module:Class
COMMAND_LINE = "command line"  # origin of a typed setting
ARGUMENT = "keyword or dictionary"  # origin of a setting in a Python program
EVERY_KEY_HINT = "python -m puffer_mlx.config prints every key; the environment's own are env.NAME"
FLOAT_MAX = (2 - 2.0**-23) * 2.0**127  # largest float32, the type in training


@dataclass(frozen=True)
class Key:
    """Declaration of one configuration key: default value, help and limits.

    The type of the default is the key's type.

    Args:
        default: Value if nothing sets the key: an int, float, bool or str.
        help: Text for `--help` and `default.ini`.
        unit: Unit of a number; empty for a pure number.
        minimum: Smallest legal number.
        maximum: Largest legal number.
        above: Exclusive lower bound.
        below: Exclusive upper bound.
        choices: Legal texts; empty if any text is legal.
        several: True if several choices are legal, separated by commas.
        custom: Format of names of custom objects, for help: `module:Class`; empty if not allowed.
        aliases: Other spellings of choices.
        suffix: Ending of file names that a bool may have as its value.
        special_values: Texts that are legal values of a bool or a number. If the default is one of
            them, other values are numbers.
        advice: Text added to the hint after a value of a wrong type.
        brief: Short text for the first page of help; empty for less common keys.
    """

    default: int | float | bool | str
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    several: bool = False
    custom: str = ""
    aliases: dict[str, str] = field(default_factory=dict)
    suffix: str = ""
    special_values: tuple[str, ...] = ()
    advice: str = ""
    brief: str = ""

    @property
    def kind(self) -> type:
        """Type of a configuration key's values, except for ``special_values`` and file names."""
        return float if self.default in self.special_values else type(self.default)

    @property
    def bounds(self) -> str:
        """Legal values of a configuration key as text, such as "0 to 1"; empty without limits."""
        if self.minimum is not None and self.maximum is not None:
            return f"{self.minimum:g} to {self.maximum:g}"
        sides = ("at least", self.minimum), ("above", self.above)
        sides += ("at most", self.maximum), ("below", self.below)
        limits = " and ".join(f"{side} {limit:g}" for side, limit in sides if limit is not None)
        words = [*self.choices, *filter(None, [self.custom])]
        words += ["true", "false", f"a file {self.suffix}"] if self.suffix else []
        if self.special_values:
            words += ["a number"] if self.kind is float else ["true", "false"]
            words += self.special_values
        return limits or " or ".join(words)

    def problem(self, value: object) -> tuple[str, str] | None:
        """Check a value for a configuration key. Returns the problem and a hint, or None."""
        kind = self.kind
        if self.suffix and isinstance(value, str) and value.endswith(self.suffix):
            return None
        if self.special_values and value in self.special_values:
            return None
        if type(value) is not kind and not (kind is float and type(value) is int):
            return f"{value!r} is not of type {kind.__name__}", f"for example {self.default!r}"
        if isinstance(value, str):
            chosen = [word.strip() for word in value.split(",")] if self.several else [value]
            if unknown := [word for word in chosen if self.choices and word not in self.choices]:
                if self.custom and re.fullmatch(CUSTOM_NAME, value):
                    return None
                return f"{unknown[0] or repr('')} does not exist here", self.bounds
            if value in ("", "None") or [value.strip()] != value.replace("\0", "\n").splitlines():
                return f"{value!r} is not one line of text", f"for example {self.default}"
        elif isinstance(value, (int, float)):
            bound = INT_MAX if kind is int else FLOAT_MAX
            maximum = bound if self.maximum is None else self.maximum
            legal = (
                -bound <= value <= maximum  # False for nan
                and (self.minimum is None or value >= self.minimum)
                and (self.above is None or value > self.above)
                and (self.below is None or value < self.below)
            )
            if not legal:
                hint = self.bounds
                if value > maximum:
                    hint = f"at most {maximum:_.0f}" if kind is int else f"at most {maximum:g}"
                return f"{value} is out of range", f"{hint}, for example {self.default}"
        return None


LIMIT_SIGNS = {">=": "minimum", "<=": "maximum", ">": "above", "<": "below"}


def key(default: Any, help: str, unit_and_limits: str = "", **more: Any) -> Any:
    """Return a dataclass field that declares a configuration key, with a `Key` in its metadata.

    Args:
        default: Default value.
        help: Text for help.
        unit_and_limits: For a number: "steps >= 1", "0 to 1", "seconds > 0".
        more: Further arguments of `Key`.
    """
    text = re.sub(r"(\S+) to (\S+)$", r">= \1 <= \2", unit_and_limits)
    unit, *limits = re.split(r"(?:^| )([<>]=?) ", text)
    for sign, limit in zip(limits[::2], limits[1::2], strict=True):
        more[LIMIT_SIGNS[sign]] = float(limit)
    return field(default=default, metadata={"key": Key(default, help, unit, **more)})


class StrictFields:
    """Base class of configuration dataclasses, which refuse fields that aren't declared.

    Raises:
        UserError: If an undeclared field is passed or set later; the hint is the closest field.
    """

    if not TYPE_CHECKING:  # with these, type checkers would accept any name

        def __new__(cls, *_: Any, **fields: Any) -> Self:
            """Raise a UserError if a configuration section is created with undeclared fields."""
            _refuse_unknown_fields(cls, fields)
            return super().__new__(cls)

        def __setattr__(self, name: str, value: Any) -> None:
            _refuse_unknown_fields(type(self), (name,))
            super().__setattr__(name, value)


def _refuse_unknown_fields(cls: Any, names: Any) -> None:
    unknown = [name for name in names if name not in cls.__dataclass_fields__]
    if unknown:
        names = [item.name for item in fields(cls)]
        for section, kind in sections_of(cls).items():
            names += (f"{section}.{item.name}" for item in fields(kind))
        similar = closest(unknown[0], names)
        hint = "python -m puffer_mlx.config prints every key"
        if similar:
            hint = f"did you mean {similar}?"
        raise UserError(f"config.{cls.__name__} has no {unknown[0]}", hint)


def sections_of(cls: Any) -> dict[str, type]:
    """Return the sections of a configuration: a dict from their names to their dataclasses."""
    kinds = ((item.name, item.default_factory) for item in fields(cls))
    return {
        n: kind for n, kind in kinds if isinstance(kind, type) and issubclass(kind, StrictFields)
    }


class Setting(NamedTuple):
    """One setting: the value of a configuration key, as set by a file, a command line or a program.

    Args:
        section: Section: "base", "train", "sweep.train.gamma", ...
        key: Key without its section.
        text: Value as text; for a program's value, the text in messages.
        origin: "configs/breakout.ini:12", ``COMMAND_LINE`` or ``ARGUMENT``.
        value: A program's value; ``...`` if there is only text.
    """

    section: str
    key: str
    text: str
    origin: str
    value: Any = ...

    @property
    def name(self) -> str:
        """Name of the setting's key with its section, such as `train.gamma`."""
        return f"{self.section}.{self.key}"

    @property
    def typed(self) -> bool:
        """True if the setting comes from the command line or a program, not from a file."""
        return self.origin in (COMMAND_LINE, ARGUMENT)

    def __str__(self) -> str:
        """Return the setting as one line of text for messages: `train.gamma 0.9`."""
        printable = self.text.isprintable() and self.text
        return f"{self.name} {printable or repr(self.text)}"
