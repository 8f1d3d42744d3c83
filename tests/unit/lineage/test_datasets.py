"""What facts become: datasets and facets that OpenLineage's client can write down."""

from __future__ import annotations

import json
from typing import Any

from openlineage.client.serde import Serde

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.lineage.datasets import MOST_TABLES, inputs_of, job_facets_of, outputs_of, run_facets_of
from airflow_lakestream.lineage.facts import CatalogName, LineageColumn, LineageFacts, TableOutput, TablePlace

PLACE = TablePlace(
    "s3://lake/orders",
    "iceberg",
    (LineageColumn("id", "long"), LineageColumn("at", "struct", (LineageColumn("x", "int"),))),
)


def as_json(value: Any) -> Any:
    return json.loads(Serde.to_json(value))


def test_a_topic_tells_its_ranges_losses_and_what_became_of_its_records() -> None:
    facts = LineageFacts("b:9092", "g")
    read = facts.topic("orders")
    read.counts = Counts(read=10, written=6, rejected=1, skipped=2, filtered=1)
    read.ranges = RangeSet([OffsetRange("orders", 0, 5, 15)])
    read.lost = RangeSet([OffsetRange("orders", 1, 0, 4)])
    [topic] = map(as_json, inputs_of(facts))
    assert (topic["namespace"], topic["name"]) == ("kafka://b:9092", "orders")
    assert topic["inputFacets"]["inputStatistics"]["rowCount"] == 10
    offsets = {key: value for key, value in topic["inputFacets"]["lakestream_offsets"].items() if key[0] != "_"}
    assert offsets == {"ranges": [[0, 5, 15]], "lost": [[1, 0, 4]], "rejected": 1, "skipped": 2, "filtered": 1}


def test_sizes_are_told_only_if_all_are_known() -> None:
    known, unknown = TableOutput(), TableOutput()
    for written, sizes in ((known, (7, 5)), (unknown, (7, None, 5))):
        for number, size in enumerate(sizes):
            written.add(1, size, size and 1, str(number))
    assert (known.rows, known.size, known.files) == (2, 12, 2)
    assert (unknown.rows, unknown.size, unknown.files) == (3, None, None)


def test_a_table_has_its_place_its_columns_and_its_name_in_the_catalog() -> None:
    place = TablePlace(PLACE.location, "iceberg", PLACE.columns, CatalogName("mine", "rest", "https://rest"))
    facts = LineageFacts("b", "g", tables={"lake.orders": TableOutput(3, 70, 1, ["11", "12"], place)})
    [table] = map(as_json, outputs_of(facts))
    assert (table["namespace"], table["name"]) == ("s3://lake", "orders")
    facets = table["facets"]
    assert facets["version"]["datasetVersion"] == "12"
    assert facets["storage"]["storageLayer"] == "iceberg"
    [identifier] = facets["symlinks"]["identifiers"]
    assert identifier == {"namespace": "https://rest", "name": "lake.orders", "type": "TABLE"}
    [_, nested] = facets["schema"]["fields"]
    assert [one["name"] for one in nested["fields"]] == ["x"]
    assert table["outputFacets"]["lakestream_snapshots"]["snapshots"] == ["11", "12"]


def test_a_table_whose_catalog_did_not_answer_is_told_by_its_name() -> None:
    facts = LineageFacts("b", "g", tables={"lake.orders": TableOutput(3, None, None, ["11"])})
    [table] = map(as_json, outputs_of(facts))
    assert (table["namespace"], table["name"]) == ("lakestream", "lake.orders")
    statistics = table["outputFacets"]["outputStatistics"]
    assert statistics["rowCount"] == 3
    assert statistics.get("size") is None


def test_of_very_many_tables_those_with_most_rows_are_told_and_how_many_are_not() -> None:
    tables = {f"lake.t{n}": TableOutput(n, place=PLACE) for n in range(MOST_TABLES + 5)}
    facts = LineageFacts("b", "g", tables=tables)
    assert min(as_json(one)["outputFacets"]["outputStatistics"]["rowCount"] for one in outputs_of(facts)) == 5
    assert as_json(run_facets_of(facts)["lakestream_landing"])["tablesLeftOut"] == 5


def test_the_statement_is_told_where_there_is_one() -> None:
    assert job_facets_of(LineageFacts("b", "g")) == {}
    assert as_json(job_facets_of(LineageFacts("b", "g", statement="select 1"))["sql"])["query"] == "select 1"
