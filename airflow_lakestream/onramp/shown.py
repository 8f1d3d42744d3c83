"""Arbitrary values of records, for a screen or JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from airflow_lakestream.decode.values.outcome import excerpt as excerpt


def json_ready(value: Any) -> Any:
    """Return a JSON-ready value.

    Bytes become text, or base64 if they are not UTF-8; times become ISO 8601; infinities and NaN become text.
    """
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float):
        # JSON can't express these.
        return value if value == value and abs(value) != float("inf") else str(value)
    if value is None or isinstance(value, str | int):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
