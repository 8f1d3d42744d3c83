"""RetentionRiskSensor: fails before Kafka removes unread records of a consumer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_lakestream.operators.arguments import set_arguments, templated
from airflow_lakestream.sensors.base import ConsumerSensor


class RetentionRiskSensor(ConsumerSensor):
    """Fail in time, before retention removes unread records of a consumer.

    Looks once, and succeeds if no unread record leaves the log within `min_time_left`. With `watch_for` it goes on
    looking for that long, and fails as soon as a record would leave within `min_time_left`. The time left follows
    from the topic's `retention.ms` and `retention.bytes`, the rate at which records come, and the rate of the
    consumer's last runs or batches. A consumer group's rate is unknown: it counts as stopped. In the last quarter of
    `min_time_left` no rate is trusted. Records that are already lost also fail the sensor.

    Returns, or leaves as XCom if it fails: `time_left` and `time_left_if_stopped` (seconds; None: no record leaves),
    `partitions` (`time_left` by topic and partition), `unread`, `lost`, `records_per_second` and `max_records` (to
    catch up in half of the time).

    .. seealso:: docs/sensors.md

    :param min_time_left: least time that unread records must stay, such as `"6h"` (templated)
    :param watch_for: time to go on looking; default: look once (templated)
    :param run_interval: time between two runs of the landing, to compute the size of a run; default: time between its
        last runs (templated)
    :param kwargs: the consumer's arguments, see `ConsumerSensor`; `missing`, `deferrable` and `start_from_trigger`, see
        `LookSensor`; and Airflow's own
    """

    check_name = "retention_risk"

    def __init__(
        self,
        *,
        min_time_left: float | str = "1h",
        watch_for: float | str | None = None,
        run_interval: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        set_arguments(self, RetentionRiskSensor, locals())
        self.ready()

    template_fields: Sequence[str] = (*templated(__init__), *ConsumerSensor.template_fields)
