r"""Convert the texts of settings to values: numbers, truth values, quoted texts, Python literals.

A text that begins with ``=`` is a Python literal: ``key := 'two\nlines'``, ``key := None``. Files
use literals for values that don't fit a plain line.
"""

import ast
import math
from typing import Any

from puffer_mlx.config.key import FLOAT_MAX, Key, Setting
from puffer_mlx.errors import UserError

BOOLS = {"1": True, "true": True, "yes": True, "on": True}
BOOLS |= {"0": False, "false": False, "no": False, "off": False}


def read_value(setting: Setting, declared: Key) -> int | float | bool | str:
    """Return the value of a setting, converted from text to the type of its key.

    For an integer key, a number in a file is truncated, as in PufferLib: 4.07 becomes 4.

    Raises:
        UserError: If the value has a wrong type.
    """
    if _is_exact(setting.value, declared):
        return float(setting.value) if declared.kind is float else setting.value
    if declared.kind is str and isinstance(setting.value, str):
        return declared.aliases.get(setting.value, setting.value)
    text, origin = setting.text, setting.origin
    if declared.kind is str:
        word = unquoted(text)
        return declared.aliases.get(word, word)
    if declared.suffix and (word := unquoted(text)).endswith(declared.suffix):
        return word
    if unquoted(text) in declared.special_values:
        return unquoted(text)
    if declared.kind is bool:
        if (word := without_comment(text).lower()) not in BOOLS:
            message = f"{setting} is neither true nor false ({origin})"
            raise UserError(message, declared.bounds or "true or false")
        return BOOLS[word]
    number = read_number(setting, f"{declared.default}{declared.advice}")
    if declared.kind is float:
        return float(number)
    if number != int(number) and setting.typed:
        message = f"{setting} is not a whole number ({origin})"
        raise UserError(message, f"{math.floor(number)} or {math.ceil(number)}")
    return int(number)


def _is_exact(value: Any, declared: Key) -> bool:
    """Return True if a value that a program assigned to a key already has the key's type."""
    kind = declared.kind
    if kind is float:
        return type(value) in (int, float) and abs(value) <= FLOAT_MAX  # False for nan
    return type(value) is kind and kind in (bool, int)


def read_number(setting: Setting, example: float | str) -> int | float:
    """Return a setting's value as a finite number; integers are exact.

    Raises:
        UserError: If it isn't a finite number; the hint shows ``example``.
    """
    value = setting.value
    number = value if type(value) in (int, float) else parse_number(setting.text)
    try:
        finite = number is not None and math.isfinite(number)
    except OverflowError:  # an integer larger than any float
        finite = False
    if number is None or not finite:
        kind = "number" if number is None else "finite number"
        message = f"{setting} is not a {kind} ({setting.origin})"
        raise UserError(message, f"for example {example}")
    return number


def parse_number(text: str) -> int | float | None:
    """Convert a text such as `64`, `1e7` or `True` to a number; return None if it isn't one."""
    word = without_comment(text)
    if word.lower() in ("true", "false"):
        return int(BOOLS[word.lower()])
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return None


def parse_argument(text: str, typed: bool = False) -> Any:
    """Convert the text of a setting to an argument of a Python environment.

    Args:
        text: A number, True, False, a literal after ``=``, or any other text, which stays a text.
        typed: True for a typed setting: None, lists, tuples and dictionaries need no ``=`` then. In
            files they are texts, for compatibility.
    """
    if (word := without_comment(text).lower()) in ("true", "false"):
        return BOOLS[word]
    number = parse_number(text)
    if number is not None:
        return number
    if text.startswith("=") or (typed and (text == "None" or text[:1] in ("[", "(", "{"))):
        value = parse_literal(text.removeprefix("="))
        if value is None or isinstance(value, list | tuple | dict):
            return value
    return unquoted(text)


def parse_literal(text: str) -> Any:
    """Return the value of a text that is a Python literal; otherwise return the text itself."""
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value if is_argument(value) else text


def is_argument(value: Any, inside: bool = False) -> bool:
    """Return True if an .ini file can store a value as an argument of an environment.

    Legal are None, bools, numbers, texts, and lists, tuples and dictionaries of these.

    Args:
        value: The value.
        inside: True for an element of a list, a tuple or a dictionary.
    """
    if isinstance(value, dict):
        keys = all(type(key) in (str, int) for key in value)
        return keys and all(is_argument(each, True) for each in value.values())
    if isinstance(value, list | tuple):
        return all(is_argument(each, True) for each in value)
    if inside and isinstance(value, float):
        return math.isfinite(value)  # inf and nan have no literal
    return value is None or isinstance(value, bool | int | float | str)


def parse_parameter(text: str) -> float | str:
    """Convert a PufferLib 5.0 environment's parameter from text to a number, if possible.

    Lists of numbers stay texts: ``1, 2``.
    """
    number = parse_number(text)
    return unquoted(text) if number is None else float(number)


def without_comment(text: str) -> str:
    """Return the text of a setting in an .ini file without a comment (``#``) at its end."""
    return text.partition("#")[0].strip()


def unquoted(text: str) -> str:
    """Return the text of a setting without quotes, or the text that a ``=`` literal means."""
    if text.startswith("=") and text[1:].strip()[:1] in ("'", '"'):
        value = parse_literal(text[1:])
        return value if isinstance(value, str) and value != text[1:] else text
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
