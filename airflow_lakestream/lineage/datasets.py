"""OpenLineage's datasets and facets of landings.

Only OpenLineage's callback imports this module, since OpenLineage's client must be installed for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attr
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.generated.base import DatasetFacet, InputDatasetFacet, OutputDatasetFacet, RunFacet
from openlineage.client.generated.catalog_dataset import CatalogDatasetFacet
from openlineage.client.generated.column_lineage_dataset import (
    ColumnLineageDatasetFacet,
    Fields,
    InputField,
    Transformation,
)
from openlineage.client.generated.dataset_type_dataset import DatasetTypeDatasetFacet
from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet
from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet
from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields
from openlineage.client.generated.sql_job import SQLJobFacet
from openlineage.client.generated.storage_dataset import StorageDatasetFacet
from openlineage.client.generated.symlinks_dataset import Identifier, SymlinksDatasetFacet

from airflow_lakestream.core.landing.report import triples
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.lineage.facts import (
    LineageColumn,
    LineageFacts,
    TableOutput,
    TablePlace,
    TopicRead,
    kafka_namespace,
    of_location,
)

# OpenLineage's servers would refuse an event with thousands of tables: only the tables with most rows are in it.
MOST_TABLES = 100
# Most items of each list of snapshots, landings or ranges in an event.
MOST_LISTED = 1_000


@attr.define
class LakestreamOffsetsInputDatasetFacet(InputDatasetFacet):
    """Landed offsets, as [partition, from, until], and the counts of rejected, skipped and filtered records."""

    ranges: list[list[int]] = attr.field(factory=list)
    lost: list[list[int]] = attr.field(factory=list)
    rejected: int = 0
    skipped: int = 0
    filtered: int = 0


@attr.define
class LakestreamSnapshotsOutputDatasetFacet(OutputDatasetFacet):
    """Snapshots with the landed rows, oldest first, as text: JSON numbers have too few digits for snapshot ids."""

    snapshots: list[str] = attr.field(factory=list)


@attr.define
class LakestreamLandingRunFacet(RunFacet):
    """Ledger of the rows, landings of this try, snapshots that earlier tries have emitted, tables that are left out."""

    consumerGroup: str = ""  # noqa: N815  # OpenLineage's spelling
    landings: list[str] = attr.field(factory=list)
    recovered: list[str] = attr.field(factory=list)
    tablesLeftOut: int = 0  # noqa: N815  # OpenLineage's spelling


def inputs_of(facts: LineageFacts) -> list[InputDataset]:
    """Return the topics as OpenLineage's datasets."""
    namespace = kafka_namespace(facts.brokers)
    return [_topic(namespace, name, read) for name, read in facts.topics.items()]


def outputs_of(facts: LineageFacts) -> list[OutputDataset]:
    """Return the tables as OpenLineage's datasets: at most `MOST_TABLES`, with the most rows.

    Column lineage is added only for a single topic and a single table.
    """
    tables = [_table(name, written) for name, written in _largest_tables(facts)]
    if facts.columns and len(tables) == len(facts.topics) == 1:
        _add_columns(tables[0], facts)
    return tables


def run_facets_of(facts: LineageFacts) -> dict[str, RunFacet]:
    """Return the facets of the run."""
    left_out = len(facts.tables) - len(_largest_tables(facts))
    landings, recovered = facts.landings[-MOST_LISTED:], facts.recovered[-MOST_LISTED:]
    return {"lakestream_landing": LakestreamLandingRunFacet(facts.consumer_group, landings, recovered, left_out)}


def job_facets_of(facts: LineageFacts) -> dict[str, Any]:
    """Return the facets of the job: the statement, if any."""
    return {} if facts.statement is None else {"sql": SQLJobFacet(query=facts.statement)}


def _largest_tables(facts: LineageFacts) -> list[tuple[str, TableOutput]]:
    """Return the `MOST_TABLES` tables with the most rows, by name."""
    by_rows = sorted(facts.tables.items(), key=lambda item: (-item[1].rows, item[0]))
    return sorted(by_rows[:MOST_TABLES])


def _topic(namespace: str, name: str, read: TopicRead) -> InputDataset:
    """Return a topic as OpenLineage's dataset."""
    counts = read.counts or Counts()
    offsets = LakestreamOffsetsInputDatasetFacet(
        ranges=triples(read.ranges)[:MOST_LISTED],
        lost=triples(read.lost)[:MOST_LISTED],
        rejected=counts.rejected,
        skipped=counts.skipped,
        filtered=counts.filtered,
    )
    facets: dict[str, InputDatasetFacet] = {"lakestream_offsets": offsets}
    if read.counts is not None:
        facets["inputStatistics"] = InputStatisticsInputDatasetFacet(rowCount=counts.read)
    return InputDataset(namespace, name, inputFacets=facets, facets={"datasetType": DatasetTypeDatasetFacet("TOPIC")})


def _table(name: str, written: TableOutput) -> OutputDataset:
    """Return a table as OpenLineage's dataset."""
    facets: dict[str, OutputDatasetFacet] = {
        "outputStatistics": OutputStatisticsOutputDatasetFacet(written.rows, written.size, written.files)
    }
    if written.snapshots:
        facets["lakestream_snapshots"] = LakestreamSnapshotsOutputDatasetFacet(written.snapshots[-MOST_LISTED:])
    place = written.place
    # Without an answer of the catalog only the user's name of the table is known.
    namespace, path = ("lakestream", name) if place is None else of_location(place.location)
    newest = written.snapshots[-1] if written.snapshots else None
    return OutputDataset(namespace, path, outputFacets=facets, facets=_facets(name, place, newest))


def _add_columns(table: OutputDataset, facts: LineageFacts) -> None:
    """Add column lineage to the dataset of the only table."""
    [(topic, _)], [written] = facts.topics.items(), facts.tables.values()
    namespace = kafka_namespace(facts.brokers)
    columns = {column.name for column in written.place.columns} if written.place else set()
    fields = {
        name: Fields([InputField(namespace, topic, column, [Transformation("DIRECT")]) for column in origins])
        for name, origins in facts.columns.items()
        if name in columns
    }
    if fields and table.facets is not None:
        table.facets["columnLineage"] = ColumnLineageDatasetFacet(fields)


def _facets(name: str, place: TablePlace | None, newest: str | None) -> dict[str, DatasetFacet]:
    """Return the facets of a table: type, newest snapshot, storage, schema and catalog, as far as known."""
    facets: dict[str, DatasetFacet] = {"datasetType": DatasetTypeDatasetFacet("TABLE")}
    if newest is not None:
        facets["version"] = DatasetVersionDatasetFacet(newest)
    if place is None:
        return facets
    facets["storage"] = StorageDatasetFacet(place.format, "parquet")
    facets["schema"] = SchemaDatasetFacet(_fields(place.columns))
    if (catalog := place.catalog) is not None:
        facets["symlinks"] = SymlinksDatasetFacet([Identifier(catalog.namespace, name, "TABLE")])
        facets["catalog"] = CatalogDatasetFacet(framework=place.format, type=catalog.kind, name=catalog.name)
    return facets


def _fields(columns: Iterable[LineageColumn]) -> list[SchemaDatasetFacetFields]:
    return [SchemaDatasetFacetFields(column.name, column.type, fields=_fields(column.fields)) for column in columns]
