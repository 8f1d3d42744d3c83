"""Writes receipts for lost records, or replaces rows, after the approval of a person.

Kafka's retention was faster than the stream, and the ledger is to record the loss. Or the records of some hours are to
be decoded again. `look` finds the offsets, `approve` shows them to a person, under "Required Actions" of Airflow's UI,
and `write` writes exactly these offsets, without those lost or landed meanwhile. Airflow's database records who has
agreed. Rejected, or without an answer for two days, nothing is written. Tables are those of the Airflow variable
`lakestream_tables`, as for `lake_audit`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, AssetAlias, Param, task

from airflow_lakestream.hooks.allowed_tables import refuse_others, table_param
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

with DAG(
    dag_id="lake_repairs",
    schedule=None,
    max_active_runs=1,
    tags=["lakestream"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "change": Param(
            "loss",
            enum=["loss", "replace"],
            values_display={"loss": "Write down lost records", "replace": "Replace the rows of a time"},
            title="Change",
            description="What is to be written.",
        ),
        "topic": Param("clickstream", type="string", minLength=1, title="Topic", description="Kafka topic."),
        "table": table_param("lake.clickstream", "Iceberg table that the topic is landed in, as namespace.table."),
        "consumer_group": Param(
            "clickstream_to_lake",
            type="string",
            minLength=1,
            title="Consumer group",
            description="Whose ledger is changed: the id of the DAG that lands, unless it has another.",
        ),
        "interval_start": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="From",
            description="Begin of the time whose rows are replaced.",
        ),
        "interval_end": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Until",
            description="End of the time whose rows are replaced, exclusive.",
        ),
    },
) as dag:

    @task
    def look(params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the offsets to write, and a text with the consequences for the approval.

        Without offsets the remaining tasks are skipped. The table must be one of the allowed tables.
        """
        from airflow_lakestream.hooks.places import AirflowPlaces
        from airflow_lakestream.watching.proposals import Proposing

        form = params or {}
        refuse_others({"params": form})
        arguments = {name: form[name] for name in ("change", "topic", "table", "consumer_group")}
        proposing = Proposing(**arguments, start=form["interval_start"], end=form["interval_end"])
        proposal = proposing.propose(AirflowPlaces())
        if not proposal.ranges:
            raise AirflowSkipException("There is nothing to write: the ledger and Kafka are at one.")
        return proposal.to_dict()

    approve = ApprovalOperator(
        task_id="approve",
        subject="{{ params.change }} of {{ params.topic }} in {{ params.table }}",
        body="{{ ti.xcom_pull(task_ids='look')['text'] }}",
        response_timeout=timedelta(days=2),
    )
    write = KafkaExtractOperator(
        task_id="write",
        topic="{{ params.topic }}",
        table="{{ params.table }}",
        consumer_group="{{ params.consumer_group }}",
        mode="ranges",
        ranges="{{ ti.xcom_pull(task_ids='look')['ranges'] | tojson }}",
        replace="{{ params.change == 'replace' }}",
        on_data_loss="{{ 'record' if params.change == 'loss' else 'fail' }}",
        outlets=[AssetAlias("lake_repairs")],
    )
    look() >> approve >> write
