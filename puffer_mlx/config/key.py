"""Configuration keys: their declaration (type, default, unit, range, help), sections, settings."""

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from puffer_mlx.config.compatibility import closest
from puffer_mlx.errors import UserError

INT_MAX = 2**31 - 1  # the environments' C int
CUSTOM = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"  # module:Class
COMMAND_LINE = "command line"  # the origin of a setting that no file gave
ARGUMENT = "keyword or dictionary"  # the same in a program
EVERY_KEY = "python -m puffer_mlx.config prints every key; the environment's own are env.NAME"
FLOAT_MAX = (2 - 2.0**-23) * 2.0**127  # of float32, in which training computes


@dataclass(frozen=True)
class Key:
    """The declaration of one key. The type of the default is the key's type.

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
        custom: Form of a legal name of a custom object: `module:Class`.
        aliases: Other spellings of choices.
        suffix: Ending of file names that a bool may have as its value.
        words: Texts that a bool or a number may have as its value. If the default is one of them,
            other values are numbers.
        advice: Text added to the hint for a value of a wrong type.
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
    words: tuple[str, ...] = ()
    advice: str = ""
    brief: str = ""

    @property
    def kind(self) -> type:
        """The type of values that are neither in ``words`` nor files."""
        return float if self.default in self.words else type(self.default)

    @property
    def bounds(self) -> str:
        """The legal values as text; empty if only the type limits them."""
        if self.minimum is not None and self.maximum is not None:
            return f"{self.minimum:g} to {self.maximum:g}"
        sides = ("at least", self.minimum), ("above", self.above)
        sides += ("at most", self.maximum), ("below", self.below)
        limits = " and ".join(f"{side} {limit:g}" for side, limit in sides if limit is not None)
        words = [*self.choices, *filter(None, [self.custom])]
        words += ["true", "false", f"a file {self.suffix}"] if self.suffix else []
        if self.words:
            words += ["a number"] if self.kind is float else ["true", "false"]
            words += self.words
        return limits or " or ".join(words)

    def fault(self, value: object) -> tuple[str, str] | None:
        """Return the problem with a value and a hint, or None for a legal value."""
        kind = self.kind
        if self.suffix and isinstance(value, str) and value.endswith(self.suffix):
            return None
        if self.words and value in self.words:
            return None
        if type(value) is not kind and not (kind is float and type(value) is int):
            return f"{value!r} is not of type {kind.__name__}", f"for example {self.default!r}"
        if isinstance(value, str):
            chosen = [word.strip() for word in value.split(",")] if self.several else [value]
            if unknown := [word for word in chosen if self.choices and word not in self.choices]:
                if self.custom and re.fullmatch(CUSTOM, value):
                    return None
                return f"{unknown[0] or repr('')} does not exist here", self.bounds
            if value in ("", "None") or [value.strip()] != value.replace("\0", "\n").splitlines():
                return f"{value!r} is not one line of text", f"for example {self.default}"
        elif isinstance(value, (int, float)):
            bound = INT_MAX if kind is int else FLOAT_MAX
            largest = bound if self.maximum is None else self.maximum
            legal = (
                -bound <= value <= largest  # False for nan
                and (self.minimum is None or value >= self.minimum)
                and (self.above is None or value > self.above)
                and (self.below is None or value < self.below)
            )
            if not legal:
                most = f"at most {largest:_.0f}" if kind is int else f"at most {largest:g}"
                hint = most if value > largest else self.bounds
                return f"{value} is out of range", f"{hint}, for example {self.default}"
        return None


LIMITS = {">=": "minimum", "<=": "maximum", ">": "above", "<": "below"}


def key(default: Any, help: str, numbers: str = "", **more: Any) -> Any:
    """Return a dataclass field that carries its `Key`.

    Args:
        default: Default value.
        help: Text for help.
        numbers: Unit and limits of numbers: "steps >= 1", "0 to 1", "seconds > 0".
        more: Further arguments of `Key`.
    """
    text = re.sub(r"(\S+) to (\S+)$", r">= \1 <= \2", numbers)
    unit, *limits = re.split(r"(?:^| )([<>]=?) ", text)
    for sign, number in zip(limits[::2], limits[1::2], strict=True):
        more[LIMITS[sign]] = float(number)
    return field(default=default, metadata={"key": Key(default, help, unit, **more)})


class Named:
    """A dataclass with the fields that it declares and no others, however they are set.

    Raises:
        UserError: a field is given, or set later, that there isn't; with the closest one.
    """

    if not TYPE_CHECKING:  # with these a type checker would take any name for right

        def __new__(cls, *_: Any, **fields: Any) -> Self:
            """Refuse keywords that are no fields, which ``__init__`` would call unexpected."""
            _refuse_unknown(cls, fields)
            return super().__new__(cls)

        def __setattr__(self, name: str, value: Any) -> None:
            _refuse_unknown(type(self), (name,))
            super().__setattr__(name, value)


def _refuse_unknown(cls: Any, names: Any) -> None:
    unknown = [name for name in names if name not in cls.__dataclass_fields__]
    if unknown:
        names = [item.name for item in fields(cls)]
        for section, kind in sections_of(cls).items():
            names += (f"{section}.{item.name}" for item in fields(kind))
        near = closest(unknown[0], names)
        hint = f"did you mean {near}?" if near else "python -m puffer_mlx.config prints every key"
        raise UserError(f"config.{cls.__name__} has no {unknown[0]}", hint)


def sections_of(cls: Any) -> dict[str, type]:
    """Return the fields of a dataclass that are sections."""
    kinds = ((item.name, item.default_factory) for item in fields(cls))
    return {n: kind for n, kind in kinds if isinstance(kind, type) and issubclass(kind, Named)}


class Setting(NamedTuple):
    """One key with its value as a file, a command line or a program gives it.

    Args:
        section: "base", "train", "sweep.train.gamma", …
        key: the key.
        text: the value as text; of a program's value, as messages show it.
        origin: "configs/breakout.ini:12", ``COMMAND_LINE`` or ``ARGUMENT``.
        value: a program's value; ``...`` if there is only text.
    """

    section: str
    key: str
    text: str
    origin: str
    value: Any = ...

    @property
    def name(self) -> str:
        """The key with its section: `train.gamma`."""
        return f"{self.section}.{self.key}"

    @property
    def typed(self) -> bool:
        """True if a person or a program gave the value, not a file."""
        return self.origin in (COMMAND_LINE, ARGUMENT)

    def __str__(self) -> str:
        """For messages: `train.gamma 0.9`, always one line."""
        plain = self.text.isprintable() and self.text
        return f"{self.name} {plain or repr(self.text)}"
