"""Raw records to Arrow rows, the same in an Airflow task and on a Spark executor; a codec is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from airflow_lakestream.exceptions import UnknownValue

# A new format is one row: its name, and where its decoder class is.
FORMATS: dict[str, str] = {
    "json": "airflow_lakestream.decode.json:JsonDecoder",
}


def resolve_decoder(name: str) -> Any:
    """Return the decoder class of a format. Raises UnknownValue with the list of known ones."""
    if name not in FORMATS:
        raise UnknownValue("format", name, sorted(FORMATS))
    module, _, attribute = FORMATS[name].partition(":")
    return getattr(import_module(module), attribute)
