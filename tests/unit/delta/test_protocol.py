"""The protocol of a Delta table that gets its first timestamp without zone: all that it required before, and that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_lakestream.delta.columns import delta_fields
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import NTZ_FEATURE, protocol_of, unreadable
from tests.support.delta_table import land, versions

PLAIN, WITH_NTZ = (delta_fields(pa.schema([("at", kind)])) for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")))
HEAD = DeltaTableHead("t", 3, "id", pa.schema([]), (), ())
OF_VERSION_4 = ["appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants"]
OF_VERSION_6 = [*OF_VERSION_4, "columnMapping", "identityColumns"]


@pytest.mark.parametrize(
    ("reader", "writer", "readers", "writers"),
    [
        (1, 1, [], []),
        (1, 2, [], ["appendOnly", "invariants"]),
        (1, 4, [], OF_VERSION_4),
        (2, 6, ["columnMapping"], OF_VERSION_6),
    ],
)
def test_what_a_version_meant_is_named(reader: int, writer: int, readers: list[str], writers: list[str]) -> None:
    head = replace(HEAD, reader_version=reader, writer_version=writer)
    [action] = protocol_of(head, WITH_NTZ)
    assert action["protocol"] == {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted([*readers, NTZ_FEATURE]),
        "writerFeatures": sorted([*writers, NTZ_FEATURE]),
    }


def test_features_that_a_table_has_stay() -> None:
    held = replace(HEAD, reader_version=3, writer_version=7, reader_features=frozenset(["v2Checkpoint"]))
    [action] = protocol_of(replace(held, writer_features=frozenset(["v2Checkpoint", "appendOnly"])), WITH_NTZ)
    assert action["protocol"]["readerFeatures"] == [NTZ_FEATURE, "v2Checkpoint"]
    assert action["protocol"]["writerFeatures"] == ["appendOnly", NTZ_FEATURE, "v2Checkpoint"]


def test_the_protocol_stays_where_nothing_needs_another() -> None:
    assert protocol_of(HEAD, PLAIN) == []
    ntz = frozenset([NTZ_FEATURE])
    head = replace(HEAD, reader_version=3, writer_version=7, reader_features=ntz, writer_features=ntz)
    assert protocol_of(head, WITH_NTZ) == []


def test_a_table_gets_the_feature_in_the_version_of_the_column(tmp_path: Path) -> None:
    table = tmp_path / "clicks"
    land(table, 0, 3)
    before = DeltaTable(str(table)).protocol()
    assert (before.min_reader_version, before.min_writer_version) == (1, 2)
    land(table, 3, 5, schema="id bigint not null, name string, at timestamp_ntz", schema_evolution="add")
    after = DeltaTable(str(table))
    assert after.protocol().reader_features == [NTZ_FEATURE]
    assert set(after.protocol().writer_features or ()) == {"appendOnly", "invariants", NTZ_FEATURE}
    assert after.to_pyarrow_table().num_rows == 5
    assert [action for action in versions(table)[-1] if "protocol" in action]
    land(table, 5, 6)
    assert not [action for action in versions(table)[-1] if "protocol" in action]


def test_a_table_that_has_the_column_without_the_feature_is_named_with_what_to_do(tmp_path: Path) -> None:
    table = tmp_path / "clicks"
    land(table, 0, 3)
    [metadata] = [action for action in versions(table)[0] if "metaData" in action]
    schema = json.loads(metadata["metaData"]["schemaString"])
    schema["fields"].append({"name": "at", "type": "timestamp_ntz", "nullable": True, "metadata": {}})
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    (table / "_delta_log" / f"{1:020}.json").write_text(json.dumps(metadata) + "\n")
    with pytest.raises(Exception, match="timestampNtz") as error:
        DeltaTable(str(table))
    refusal = unreadable(str(table), str(error.value))
    assert "'delta.feature.timestampNtz' = 'supported'" in str(refusal)
