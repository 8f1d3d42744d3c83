"""The columns of a new table, where the registry tells them: the driver need not read the first records for them.

It would do so alone, while all executors wait.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import pyarrow as pa

from airflow_lakestream.core.job import Job
from airflow_lakestream.core.ports import Decoder, RowSchema
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.rows import RowDecoders
from airflow_lakestream.kafka.reader import HEADERS


@dataclass(frozen=True)
class ForeseenDecoders:
    """`core.ports.DecoderFactory` that asks the registry when there is neither a schema nor a record.

    The sink is told the columns at once, by a table of no rows.
    """

    decoders: RowDecoders
    job: Job

    def __call__(self, schema: RowSchema | None, first: RawBatch | None) -> Decoder | None:
        """Return a decoder; see `core.ports.DecoderFactory`."""
        if schema is not None or first is not None:
            return self.decoders(schema, first)
        identity = self.job.source.identity()
        columns = self.decoders.payload.foreseen_columns(identity.topic)
        if columns is None:
            return None
        decoder = self.decoders(columns, None)
        assert decoder is not None, "there is one for each schema"
        self.job.sink.write(decoder.decode(_no_records(identity.topic)).rows, identity)
        return decoder


def _no_records(topic: str) -> RawBatch:
    nothing = pa.array([], pa.binary())
    return RawBatch(topic, 0, range(0), array("q"), nothing, nothing, pa.array([], HEADERS))
