"""SparkStreamingSubmitOperator: a streaming query on Spark, submitted once and watched from Airflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_lakestream.core.policies import is_given

# No import of PyIceberg, Arrow or the Spark provider at the top: Airflow parses DAG files again every half minute.
from airflow_lakestream.lakes import lake_of_app
from airflow_lakestream.links import DriverLogLink, SparkUILink, TableLink, TopicLink, links_until_run
from airflow_lakestream.operators.base import need_extras
from airflow_lakestream.operators.rendering import annotations_of
from airflow_lakestream.operators.spark.stream_arguments import StreamArguments
from airflow_lakestream.operators.sql_template import SqlRendering
from airflow_lakestream.spark.apps import MAINTAIN_ICEBERG

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_lakestream.driver.driving import DriverSupervision
    from airflow_lakestream.triggers.spark_stream import SparkStreamTrigger


class SparkStreamingSubmitOperator(SqlRendering, StreamArguments):
    """Run a streaming query on Spark; keep a single driver running and moving until a good end.

    Adopts the stream's driver if one is running; else submits one. Restarts it when it fails, vanishes or stalls.
    The worker's death leaves the driver running, and the retry adopts it: give the task retries. Returns, and puts on
    the event of each outlet asset, a report of what all tries landed: `batches`, `read`, `rows`, `rejected`, `skipped`,
    `filtered`, `bad`, `ranges` as [partition, from, until], the rows by table in `tables`, `restarts`, and for the
    newest batch `lag`, `snapshot_ids` and rates; the XCom `progress` holds its sums while the task runs.

    Raises AirflowFailException if only a change of input helps, and errors that Airflow retries otherwise.

    .. seealso:: docs/operators/spark_streaming_submit.md

    :param app: a bundled app, such as `"kafka_to_iceberg"` (templated)
    :param application: path of your own program, instead (templated)
    :param app_config: the app's arguments: for `kafka_to_iceberg`, arguments of `KafkaExtractOperator`; for
        `maintain_iceberg`, the tables and works; no secrets (templated)
    :param trigger: `"available_now"`: all available records, and then the query ends; or the time between two batches,
        such as `"10 seconds"` (templated)
    :param checkpoint_location: path or URI; the lease and the progress are in `<checkpoint_location>.lakestream`;
        without a query (an interval, ranges) a folder for these alone, by default in `driver_folder` (templated)
    :param max_batches: the query ends after this many batches (templated)
    :param max_offsets_per_trigger: most offsets in one batch (templated)
    :param driver_folder: folder of the drivers next to the worker, of which the last ten of a stream are kept; default:
        `$AIRFLOW_HOME/lakestream` (templated)
    :param kafka_conn_id: connection of type `kafka`; None for an application without Kafka (templated)
    :param iceberg_conn_id: connection of type `iceberg`; None likewise (templated)
    :param spark_conn_id: connection of type `spark`: master, deploy-mode, queue (templated)
    :param storage_conn_id: for the apps of Delta, as for `KafkaExtractOperator` (templated)
    :param packages: Maven coordinates; default: packages for the bundled app and the installed Spark, fetched
        once (templated)
    :param kwargs: of `SparkArguments`: conf, jars, driver_memory and so on, as for `SparkSubmitOperator`; and of
        `SupervisedOperator`: restarts, time-outs, what a kill does, deferring
    """

    template_fields_renderers = {"app_config": "json", "conf": "json"}
    engine = "spark"
    driver_pages = ((SparkUILink(), "{url}"), (DriverLogLink(), "{url}/logs/"))
    operator_extra_links = links_until_run(SparkUILink(), DriverLogLink(), TopicLink(), TableLink())
    ui_color = "#f7d9c4"

    def statement(self) -> Any:
        """Return the app's statement. Its `{{ input }}` stays unrendered."""
        return self.app_config.get("sql") if isinstance(self.app_config, Mapping) else None

    def new_supervisor(self, context: Context, wait: Callable[[float], None]) -> DriverSupervision:
        """Check all arguments, and return the supervision of the driver.

        Raises InvalidArgument, and MissingExtra without Spark's packages, or Delta's for an app of Delta.
        """
        need_extras("spark", *lake_of_app(self.app).extras)
        from airflow_lakestream.operators.spark.set_up import build_supervision

        return build_supervision(self, context, wait)

    def stream_names(self) -> Mapping[str, Any]:
        """Return the arguments of an app with a landing: topic, table, group and more; else an empty mapping."""
        return {"consumer_group": self.dag_id, **self.app_config} if self.app != MAINTAIN_ICEBERG else {}

    def column_sources(self) -> Mapping[str, tuple[str, ...]]:
        """Return by column of the table the decoded columns in the app's statement; empty without a statement."""
        from airflow_lakestream.lineage.columns import columns_of
        from airflow_lakestream.spark.app_config import LANDING_APPS, landing_of

        if self.app not in LANDING_APPS or not is_given(self.statement()):
            return {}

        return columns_of(landing_of(self.app, self.stream_names()).statement)

    def item_annotations(self) -> Mapping[str, str]:
        """Return the annotations of a bundled app's arguments, which are those of `KafkaExtractOperator`."""
        from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

        return annotations_of(KafkaExtractOperator)

    def new_trigger(self, **watched: Any) -> SparkStreamTrigger:
        """Return the trigger for the driver."""
        from airflow_lakestream.triggers.spark_stream import SparkStreamTrigger

        return SparkStreamTrigger(**watched)
