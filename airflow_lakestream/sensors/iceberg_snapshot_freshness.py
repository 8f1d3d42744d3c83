"""IcebergSnapshotFreshnessSensor: waits until a table's landings are young enough, or complete."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.arguments import set_arguments, templated
from airflow_lakestream.sensors.base import LookSensor


class IcebergSnapshotFreshnessSensor(LookSensor):
    """Wait until a table is fresh, by its landings: compaction, deletes and other writers do not count.

    A table is fresh if its newest landing is at most `max_age` old; with `event_time_column`, if its newest event is;
    with `complete_through`, if it holds all records from before that time and no more can come. If several are given,
    all must hold. A landing that was rolled back does not count. With a Kafka connection, a table whose groups have
    landed everything counts as young: its topic is idle.

    Returns the newest landing's `snapshot_id` (as text) and `rows`, `age` (seconds since the newest landing or event),
    `through` (the time up to which the table is known to be fresh) and `reasons`. A sensor that fails or times out
    leaves the same as XCom.

    .. seealso:: docs/sensors.md

    :param table: `namespace.table` (templated)
    :param consumer_group: group whose landings count; default: any group (templated)
    :param max_age: greatest age of the newest landing or event: seconds, `"15m"` or a timedelta. A replay of rejected
        records is not a landing (templated)
    :param event_time_column: a column of times; its newest value counts instead of the landing's time. It is found in
        the bounds that the manifests keep, without reading data; values in the future (10 minutes of skew) do not
        count (templated)
    :param complete_through: a time, such as `"{{ data_interval_end }}"`: every offset from before it must be landed,
        and each partition must have a record at or after it; needs `kafka_conn_id` (templated)
    :param idle_after: with `complete_through`: a partition without a record at or after the time counts as done once
        all of it is landed and this long has passed since the time; default: never. A partition with an open
        transaction stays open: its records may be from before (templated)
    :param idle_is_fresh: with `max_age` and a Kafka connection: a group that has landed everything counts as fresh
        (templated)
    :param operations: only snapshots of these operations count, such as `["append"]` (also `overwrite`, `replace`,
        `delete`); without a consumer group, also snapshots of other writers (templated)
    :param branch: branch or tag whose history counts (templated)
    :param fail_when_stale: look once, and fail if the table is not fresh (templated)
    :param kafka_conn_id: connection of type `kafka`; None: topics are not looked at (templated)
    :param iceberg_conn_id: connection of type `iceberg` (templated)
    :param kwargs: arguments of `LookSensor`: `missing`, `deferrable`, `start_from_trigger`, and Airflow's own
    """

    check_name = "freshness"

    def __init__(
        self,
        *,
        table: str,
        consumer_group: str | None = None,
        max_age: float | str | timedelta | None = None,
        event_time_column: str | None = None,
        complete_through: str | int | datetime | None = None,
        idle_after: float | str | timedelta | None = None,
        idle_is_fresh: bool | str = True,
        operations: Sequence[str] | str | None = None,
        branch: str = "main",
        fail_when_stale: bool | str = False,
        kafka_conn_id: str | None = None,
        iceberg_conn_id: str = "iceberg_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if max_age is None and complete_through is None:
            raise InvalidArgument("max_age", "is missing, and so is complete_through.", "Give one of them.")
        set_arguments(self, IcebergSnapshotFreshnessSensor, locals())
        if isinstance(complete_through, datetime):
            # The arguments of a trigger have to be plain values.
            self.complete_through = str(complete_through)
        self.ready()

    template_fields: Sequence[str] = (*templated(__init__), *LookSensor.template_fields)
