"""The command `lakestream maintain`: compaction, expiry, orphans and manifests, without another engine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from airflow_lakestream.cli.connections import IcebergConn, Json, StorageConn, aside, open_lake


def maintain(
    tables: Annotated[
        list[str], typer.Argument(help='namespace.table, a pattern such as "lake.*", or paths of Delta tables')
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only print what would be gained; nothing is changed")
    ] = False,
    compact: Annotated[bool, typer.Option("--compact", help="rewrite small files, and files with deletes")] = False,
    rewrite_manifests: Annotated[bool, typer.Option("--rewrite-manifests", help="merge small manifests")] = False,
    expire: Annotated[
        bool, typer.Option("--expire", help="remove old snapshots, and files that only they need")
    ] = False,
    remove_orphans: Annotated[
        bool, typer.Option("--remove-orphans", help="delete old files that no snapshot has")
    ] = False,
    target_size: Annotated[
        int | None, typer.Option("--target-size", help="bytes of a compacted file; default: the table's", min=1)
    ] = None,
    expire_older_than: Annotated[str, typer.Option("--expire-older-than", help="least age of a snapshot")] = "5d",
    retain_last: Annotated[int, typer.Option("--retain-last", help="newest snapshots that stay", min=1)] = 1,
    orphans_older_than: Annotated[str, typer.Option("--orphans-older-than", help="least age of an orphan")] = "3d",
    longest_run: Annotated[str, typer.Option("--longest-run", help="time of the longest run into the tables")] = "1d",
    budget: Annotated[
        str | None, typer.Option("--budget", help='time after which no work begins, such as "10m"')
    ] = None,
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
) -> None:
    """Compact tables, merge manifests, remove old snapshots and orphans, as far as needed; all four by default.

    Landings and merges go on meanwhile. A run that ends early has changed nothing by halves, and the next one goes on.
    """
    with aside():
        from airflow_lakestream.config.arguments import positive_seconds
        from airflow_lakestream.config.maintenance import MaintenanceSection, format_of

        every = not (compact or rewrite_manifests or expire or remove_orphans)
        options = {} if target_size is None else {"target-file-size-bytes": target_size}
        age = {"older_than": expire_older_than, "retain_last": retain_last}
        orphans = {"older_than": orphans_older_than, "longest_run": longest_run}
        section = MaintenanceSection.parse(
            {
                "tables": tables,
                "compact": {"options": options} if compact or every else None,
                "rewrite_manifests": rewrite_manifests or every,
                "expire": age if expire or every else None,
                "remove_orphans": orphans if remove_orphans or every else None,
            }
        )
        seconds = None if budget is None else positive_seconds("--budget", budget)
        lake = open_lake(tables[0], iceberg_conn, storage_conn)
        reports = format_of(section.tables).part("upkeep")(lake, section, dry_run, seconds).run()
    if as_json:
        typer.echo(json.dumps([one.to_dict() for one in reports], indent=2))
        return
    for one in reports:
        typer.echo(str(one))
