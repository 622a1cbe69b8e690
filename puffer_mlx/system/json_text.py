"""Strict JSON, without NaN and infinity; checks of numbers read from JSON."""

import json
import math
from pathlib import Path
from typing import Any, TypeGuard

from puffer_mlx.system import output
from puffer_mlx.system.files import publish

STANDARD_OUTPUT = Path("-")  # as the file of --json
LARGEST = 2**63 - 1


def is_count(value: Any, most: int = LARGEST) -> TypeGuard[int]:
    """Return True for an integer from 0 to ``most``; booleans don't count."""
    return type(value) is int and 0 <= value <= most


def is_finite(value: Any) -> TypeGuard[float]:
    """Return True for a finite number that isn't larger than any counter."""
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST


def record_of(line: str) -> dict[str, float | None] | None:
    """Return a log's line as a record of numbers, or None for other lines.

    A number that isn't finite is None.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    numbers = isinstance(record, dict) and all(
        value is None or type(value) in (int, float) for value in record.values()
    )
    return record if numbers else None


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, with null for numbers that aren't finite at any depth."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def write_json(record: Any, path: Path, indent: int | None = 1) -> None:
    """Write a record as JSON, completely or not at all.

    Args:
        record: The record.
        path: File that the user named, or ``STANDARD_OUTPUT``.
        indent: Blanks per level; None for one line.
    """
    text = json_text(record, indent) + "\n"
    if path == STANDARD_OUTPUT:
        output.set_result(text)
        return
    with publish(path, named=True) as temporary:
        temporary.write_text(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
