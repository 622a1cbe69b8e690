"""A setting's text as a value: the types of keys, numbers, truth values, quotes."""

import math

from puffer_mlx.config.key import COMMAND_LINE, Key, Setting
from puffer_mlx.errors import UserError

BOOLS = {"1": True, "true": True, "yes": True, "on": True}
BOOLS |= {"0": False, "false": False, "no": False, "off": False}


def read_value(setting: Setting, declared: Key) -> int | float | bool | str:
    """A setting's text as its key's type.

    Upstream's rule for an integer key in a file: a fraction is cut off, 4.07 is 4.
    """
    _, _, text, origin = setting
    if declared.kind is str:
        word = unquoted(text)
        return declared.aliases.get(word, word)
    if declared.suffix and (word := unquoted(text)).endswith(declared.suffix):
        return word
    if unquoted(text) in declared.words:
        return unquoted(text)
    if declared.kind is bool:
        if (word := without_comment(text).lower()) not in BOOLS:
            message = f"{setting} is neither true nor false ({origin})"
            raise UserError(message, declared.bounds or "true or false")
        return BOOLS[word]
    number = read_number(setting, f"{declared.default}{declared.advice}")
    if declared.kind is float:
        return float(number)
    if number != int(number) and origin == COMMAND_LINE:
        message = f"{setting} is not a whole number ({origin})"
        raise UserError(message, f"{math.floor(number)} or {math.ceil(number)}")
    return int(number)


def read_number(setting: Setting, example: float | str) -> int | float:
    """A setting's text as a finite number, exact for integers."""
    number = parse_number(setting.text)
    try:
        finite = number is not None and math.isfinite(number)
    except OverflowError:  # an integer beyond every float
        finite = False
    if number is None or not finite:
        kind = "number" if number is None else "finite number"
        message = f"{setting} is not a {kind} ({setting.origin})"
        raise UserError(message, f"for example {example}")
    return number


def parse_number(text: str) -> int | float | None:
    """A text as a number (`64`, `10_000_000`, `1e7`, `nan`, `True`); None if it is none."""
    word = without_comment(text)
    if word.lower() in ("true", "false"):
        return int(BOOLS[word.lower()])
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return None


def parse_argument(text: str) -> int | float | bool | str:
    """A text as an argument of a Python function: a number, True, False, else the text itself."""
    if (word := without_comment(text).lower()) in ("true", "false"):
        return BOOLS[word]
    number = parse_number(text)
    return unquoted(text) if number is None else number


def parse_parameter(text: str) -> float | str:
    """A text as a parameter of PufferLib 5.0's environments: a number, else the text itself.

    Its environments get lists of numbers, too: as their text, ``1, 2``.
    """
    number = parse_number(text)
    return unquoted(text) if number is None else float(number)


def without_comment(text: str) -> str:
    """A text without a comment behind it: upstream reads Python literals, which may have one."""
    return text.partition("#")[0].strip()


def unquoted(text: str) -> str:
    """A text without the quotes around it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
