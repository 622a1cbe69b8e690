"""Write strict JSON (null instead of NaN and infinity), and check values read from JSON."""

import json
import math
from pathlib import Path
from typing import Any, TypeGuard

from puffer_mlx.system import output
from puffer_mlx.system.files import publish

STANDARD_OUTPUT = Path("-")  # --json - writes to standard output
MAX_COUNT = 2**63 - 1


def is_count(value: Any, maximum: int = MAX_COUNT) -> TypeGuard[int]:
    """Return True if a value is an integer, not a boolean, from 0 to ``maximum``."""
    return type(value) is int and 0 <= value <= maximum


def is_finite(value: Any) -> TypeGuard[float]:
    """Return True if a value is a number of at most 2**63 - 1 in absolute value."""
    return type(value) in (int, float) and -MAX_COUNT <= value <= MAX_COUNT


def parse_record(line: str) -> dict[str, float | None] | None:
    """Parse a line of a JSON log into a record of numbers. Returns None for other lines.

    Numbers that weren't finite were written as null and become None.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_numeric = isinstance(record, dict) and all(
        value is None or type(value) in (int, float) for value in record.values()
    )
    return record if is_numeric else None


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON text, with null for every number that isn't finite."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def write_json(record: Any, path: Path, indent: int | None = 1) -> None:
    """Write a value as JSON to a file, completely or not at all, or to standard output.

    Args:
        record: Value to write.
        path: File that the user named, or ``STANDARD_OUTPUT``.
        indent: Spaces per level; None writes one line.
    """
    text = json_text(record, indent) + "\n"
    if path == STANDARD_OUTPUT:
        output.set_result(text)
        return
    with publish(path, user_named=True) as temporary:
        temporary.write_text(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
