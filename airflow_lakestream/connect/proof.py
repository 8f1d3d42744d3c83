"""The proof of what a sink has written: its rows are compared with those that the extract makes of the same records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from airflow_lakestream.connect.iceberg_sink import POSITION_TRANSFORM
from airflow_lakestream.core.formats import Envelope, Format
from airflow_lakestream.core.ports import Reader
from airflow_lakestream.core.publishing.branch import Proof
from airflow_lakestream.decode.formats import Payload
from airflow_lakestream.run.publication import DecodedAgain

log = logging.getLogger(__name__)

_JSON = "org.apache.kafka.connect.json.JsonConverter"


def proof_of(config: Mapping[str, str], reader: Callable[[], Reader], share: float) -> Proof | None:
    """Return the proof of a sink; None where nobody is to compare, or its rows are nothing that we can make.

    :param config: the sink's complete configuration.
    :param share: of the records that are compared.
    """
    if not share:
        return None
    if why := unproven_because(config):
        log.warning("The values of the rows are not compared with what the extract makes of the records: %s", why)
        return None
    # Connect's own default is to expect a schema in each value.
    wrapped = config.get("value.converter.schemas.enable", "true").strip().lower() != "false"
    payload = Payload(format=Format.JSON, envelope=Envelope.CONNECT if wrapped else None)
    # What a sink has read over has no row: it spoils no other, and the ledger calls it missing.
    return DecodedAgain(reader=reader(), decoder=payload.decoder, beyond_rows=False, share=share)


def unproven_because(config: Mapping[str, str]) -> str:
    """Say why the rows of a sink are nothing that we can make; empty where they are."""
    others = [name.strip() for name in config.get("transforms", "").split(",") if name.strip() != POSITION_TRANSFORM]
    if others:
        return f"transforms ({', '.join(others)}) make others of them."
    if (converter := config.get("value.converter", "")) != _JSON:
        return f"value.converter is {converter or 'that of the workers'}, and only JsonConverter's rows are compared."
    return ""
