"""Proof of a sink's rows: comparison with the extract's rows of the same records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from airflow_lakestream.connect.iceberg_sink import POSITION_TRANSFORM
from airflow_lakestream.core.formats import ValueEnvelope, ValueFormat
from airflow_lakestream.core.ports import RecordReader
from airflow_lakestream.core.publishing.branch import RowProof
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.run.publication import DecodingProof

log = logging.getLogger(__name__)

_JSON = "org.apache.kafka.connect.json.JsonConverter"


def proof_of(config: Mapping[str, str], reader: Callable[[], RecordReader], share: float) -> RowProof | None:
    """Return the proof of a sink; None without a share, or for rows that we can't make ourselves.

    :param config: the sink's complete configuration.
    :param share: the share of the records that are compared.
    """
    if not share:
        return None
    if reason := find_proof_obstacle(config):
        log.warning("The values of the rows are not compared with the extract's values: %s", reason)
        return None
    # Connect's own default is to expect a schema in each value.
    wrapped = config.get("value.converter.schemas.enable", "true").strip().lower() != "false"
    payload = PayloadFormats(format=ValueFormat.JSON, envelope=ValueEnvelope.CONNECT if wrapped else None)
    # A record that a sink has left out has no row: it does not spoil other rows, and the ledger calls it missing.
    return DecodingProof(reader=reader(), decoder=payload.decoder, beyond_rows=False, share=share)


def find_proof_obstacle(config: Mapping[str, str]) -> str:
    """Return the reason against a proof of a sink's rows; empty if we can make these rows ourselves."""
    transforms = [
        name.strip() for name in config.get("transforms", "").split(",") if name.strip() != POSITION_TRANSFORM
    ]
    if transforms:
        return f"transforms ({', '.join(transforms)}) change them."
    if (converter := config.get("value.converter", "")) != _JSON:
        return f"value.converter is {converter or 'that of the workers'}, and only JsonConverter's rows are compared."
    return ""
