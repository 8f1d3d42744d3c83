"""Formats of Flink's landing, and the reasons against other formats. Without imports, to keep a DAG's parser fast."""

from __future__ import annotations

from airflow_lakestream.exceptions import InvalidArgument, UnknownValue

# Formats whose decoder in Flink takes the same records as the extract, or whose records can be read again.
FORMATS = ("json", "avro", "raw")
# Formats with a decoder in Flink that is not used, and the reasons.
_REFUSED = {
    "csv": (
        "is not read by Flink's landing: Flink's decoder makes NULL of an empty text in quotes (or a text of an empty "
        "field), `false` of any word for a boolean, and 7 of 007."
    ),
    "json_schema": "is not read by Flink's landing: Flink has no decoder for it.",
    "protobuf": "is not read by Flink's landing: Flink's decoder reads messages without a registry's framing only.",
}


def check_format(argument: str, value: object) -> None:
    """Refuse a format whose records Flink may read otherwise than the extract. Raises InvalidArgument.

    :param argument: the argument with the format, for errors.
    """
    if value in FORMATS:
        return
    if reason := _REFUSED.get(str(value)):
        known = ", ".join(f'"{name}"' for name in FORMATS)
        raise InvalidArgument(
            argument, f"{str(value)!r} {reason}", f"There are {known}; the extract and Spark read all."
        )
    raise UnknownValue(argument, str(value), FORMATS)
