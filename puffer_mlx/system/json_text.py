"""JSON that every reader takes: it has no NaN and no infinity."""

import json
import math
from typing import Any


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON; numbers in it that aren't finite, however deep, are null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
