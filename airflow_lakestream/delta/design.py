"""Check of a user's design of a Delta table."""

from __future__ import annotations

from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.delta.write.layout import check_order, check_partitions
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.design import TableDesign

_KNOWN_PROPERTIES = (
    *("delta.logRetentionDuration", "delta.deletedFileRetentionDuration", "delta.checkpointInterval"),
    *("delta.enableExpiredLogCleanup", "delta.appendOnly", "delta.targetFileSize", "delta.tuneFileSizesForRewrites"),
    *("delta.autoOptimize.autoCompact", "delta.autoOptimize.optimizeWrite", "delta.dataSkippingNumIndexedCols"),
)


def check_design(design: TableDesign, *, widens: bool = False) -> None:
    """Refuse a design impossible for a Delta table. Raises InvalidArgument.

    :param widens: allow wider types, for staged files without a table.
    """
    if design.evolution is SchemaEvolution.WIDEN and not widens:
        raise InvalidArgument(
            "schema_evolution",
            '"widen": a wider type is a table feature of Delta (typeWidening) that is not written here.',
            'Set "add", or widen the column with ALTER TABLE first.',
        )
    for key in design.properties:
        if key.startswith("lakestream.") or (key.startswith("delta.") and key not in _KNOWN_PROPERTIES):
            raise InvalidArgument(
                "table_properties",
                f"{key!r} asks of all writers what is not done here, or is kept free.",
                f"Known ones: {', '.join(_KNOWN_PROPERTIES)}; and all without delta. before them.",
            )
    check_partitions(None, design.partition_by)
    check_order(None, design.sort_order)
