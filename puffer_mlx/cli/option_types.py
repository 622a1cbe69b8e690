"""What options take, as functions of their text: numbers in a range."""

import argparse
import math
from collections.abc import Callable


def number(kind: type, least: float, most: float = math.inf) -> Callable[[str], float]:
    """A parser of finite numbers in a range; a whole one may be written 1_000 or 1e3."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        legal = math.isfinite(value) and least <= value <= most
        if not legal or (kind is int and value != int(value)):
            words = "a whole number" if kind is int else "a number"
            end = "up" if most == math.inf else f"to {most:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {words} from {least:g} {end}")
        return kind(value)

    return parse
