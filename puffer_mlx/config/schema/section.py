"""What sections of a configuration, and all of it, refuse: names that they haven't."""

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from puffer_mlx.config.compatibility import closest
from puffer_mlx.errors import UserError


class Named:
    """A dataclass with the fields that it declares and no others, however they are set.

    Raises:
        UserError: a field is given, or set later, that there isn't; with the closest one.
    """

    if not TYPE_CHECKING:  # with these a type checker would take any name for right

        def __new__(cls, *_: Any, **given: Any) -> Self:
            """Refuse keywords that are no fields, which ``__init__`` would call unexpected."""
            _refuse_unknown(cls, given)
            return super().__new__(cls)

        def __setattr__(self, name: str, value: Any) -> None:
            _refuse_unknown(type(self), (name,))
            super().__setattr__(name, value)


def _refuse_unknown(cls: Any, given: Any) -> None:
    unknown = [name for name in given if name not in cls.__dataclass_fields__]
    if unknown:
        near = closest(unknown[0], list(_names(cls)))
        hint = f"did you mean {near}?" if near else "python -m puffer_mlx.config prints every key"
        raise UserError(f"config.{cls.__name__} has no {unknown[0]}", hint)


def _names(cls: Any) -> Iterator[str]:
    """A dataclass's fields, and after each one that is a section its keys."""
    for field in fields(cls):
        yield field.name
        section = field.default_factory
        if isinstance(section, type) and issubclass(section, Named):
            yield from (f"{field.name}.{name}" for name in _names(section))
