"""CheckpointLagSensor: waits until a consumer has caught up with the topics, or checks once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_lakestream.operators.arguments import set_arguments, templated
from airflow_lakestream.sensors.base import ConsumerSensor


class CheckpointLagSensor(ConsumerSensor):
    """Wait until a consumer is near the end of the topics: a Spark query, a table's ledger, or a consumer group.

    Without a limit it must have read everything; with several limits, each must hold. A topic ends with the last
    committed record: markers of transactions and aborted records at the end do not count. Returns `lag` (unread records
    or holes between them), `partitions` (the same by topic and partition), `worst`, `seconds` (age of the oldest unread
    record seen), `batch_age` and `lost` (records that Kafka removed unread). A failed sensor leaves them as XCom.

    .. seealso:: docs/sensors.md

    :param max_lag_records: most unread records (templated)
    :param max_lag_seconds: greatest age of an unread record, such as `"5m"` (templated)
    :param max_batch_age: greatest age of the newest batch or landing while something is unread (templated)
    :param per_partition: `max_lag_records` is for each partition; False: for the sum (templated)
    :param fail_when_behind: look once, and fail if the consumer is too far behind (templated)
    :param kwargs: the consumer's arguments, see `ConsumerSensor`; `missing`, `deferrable` and `start_from_trigger`, see
        `LookSensor`; and Airflow's own
    """

    check_name = "checkpoint_lag"

    def __init__(
        self,
        *,
        max_lag_records: int | str | None = None,
        max_lag_seconds: float | str | None = None,
        max_batch_age: float | str | None = None,
        per_partition: bool | str = True,
        fail_when_behind: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        set_arguments(self, CheckpointLagSensor, locals())
        self.ready()

    template_fields: Sequence[str] = (*templated(__init__), *ConsumerSensor.template_fields)
