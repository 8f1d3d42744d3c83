"""The command `lakestream maintain`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from airflow_lakestream.cli.connections import IcebergConn, Json, StorageConn, aside, open_lake, report_text
from airflow_lakestream.cli.tables import given
from airflow_lakestream.core.policies import size_in_bytes


def maintain(
    tables: Annotated[
        list[str], typer.Argument(help='namespace.table, a pattern such as "lake.*", or paths of Delta tables')
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only print what would be gained; nothing is changed")
    ] = False,
    retention: Annotated[
        bool, typer.Option("--retention", help="remove rows older than lakestream.retention of the table says")
    ] = False,
    keep: Annotated[
        str | None, typer.Option("--keep", help='in place of the property, such as "90 days of event_time"')
    ] = None,
    compact: Annotated[bool, typer.Option("--compact", help="rewrite small files, and files with deletes")] = False,
    rewrite_manifests: Annotated[bool, typer.Option("--rewrite-manifests", help="merge small manifests")] = False,
    expire: Annotated[
        bool, typer.Option("--expire", help="remove old snapshots, and files that only they need")
    ] = False,
    remove_orphans: Annotated[
        bool, typer.Option("--remove-orphans", help="delete old files that no snapshot has")
    ] = False,
    target_size: Annotated[
        str | None, typer.Option("--target-size", help='size of a compacted file, such as "256MiB"')
    ] = None,
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", help="of --compact: the number of processes; default: 1", min=1)
    ] = None,
    zorder_by: Annotated[
        list[str] | None,
        typer.Option("--zorder-by", help="of --compact: a column to Z-order Delta tables by"),
    ] = None,
    expire_older_than: Annotated[
        str | None, typer.Option("--expire-older-than", help="least age of a snapshot; default: 5d")
    ] = None,
    retain_last: Annotated[
        int | None, typer.Option("--retain-last", help="snapshots that stay; default: 1", min=1)
    ] = None,
    orphans_older_than: Annotated[str | None, typer.Option("--orphans-older-than", help="default: 3d")] = None,
    longest_run: Annotated[str | None, typer.Option("--longest-run", help="into the tables; default: 1d")] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help='time after which no work begins, such as "10m"')
    ] = None,
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
) -> None:
    """Remove old rows, compact tables, merge manifests, remove old snapshots and orphans, as far as needed.

    Without an option for a work all are done. A work's bound, such as --expire-older-than, chooses the work. Landings
    and merges go on meanwhile. A run that ends early has changed nothing by halves, and the next one goes on.
    """
    with aside():
        from airflow_lakestream.config.arguments import positive_seconds
        from airflow_lakestream.config.maintenance import MaintenanceSection, format_of
        from airflow_lakestream.run.maintenance.processes import rewriter_processes
        from airflow_lakestream.tables.retention import RowRetention

        size = None if target_size is None else size_in_bytes("--target-size", target_size)
        options = given({"target-file-size-bytes": size})
        compaction = given({"options": options or None, "parallelism": parallelism, "zorder_by": zorder_by or None})
        age = given({"older_than": expire_older_than, "retain_last": retain_last})
        orphans = given({"older_than": orphans_older_than, "longest_run": longest_run})
        compact, expire, remove_orphans = (
            compact or bool(compaction),
            expire or bool(age),
            remove_orphans or bool(orphans),
        )
        rule = None if keep is None else RowRetention.parse(keep, "--keep")
        every = not (retention or rule or compact or rewrite_manifests or expire or remove_orphans)
        section = MaintenanceSection.parse(
            {
                "tables": tables,
                "retention": asdict(rule) if rule is not None else retention or every,
                "compact": compaction if compact or every else None,
                "rewrite_manifests": rewrite_manifests or every,
                "expire": age if expire or every else None,
                "remove_orphans": orphans if remove_orphans or every else None,
            }
        )
        seconds = None if budget is None else positive_seconds("--budget", budget)
        with rewriter_processes(section, dry_run) as children:
            lake = open_lake(tables[0], iceberg_conn, storage_conn)
            work = format_of(section.tables).part("upkeep")(lake, section, dry_run, seconds, children=children)
            reports = work.run()
    if as_json:
        report_text(json.dumps([one.to_dict() for one in reports], indent=2))
        return
    for one in reports:
        report_text(str(one))
