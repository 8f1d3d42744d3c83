"""Flights from New York City in 2013, from Kafka to the lake, when triggered.

Shows a table designed by hand: types, partitions and the order of rows in each file.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, AssetAlias, Param

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

SCHEMA = """
    year int not null, month int not null, day int not null,
    dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, arr_delay int,
    carrier string not null, flight int not null, tailnum string, origin string not null, dest string not null,
    air_time int, distance int, hour int, minute int, time_hour timestamp not null
"""

with DAG(
    dag_id="flights_to_lake",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["lakestream"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "topic": Param("flights", type="string", minLength=1, title="Topic", description="Kafka topic to read."),
        "table": Param(
            "lake.flights",
            type="string",
            pattern=r"^[^.\s]+(\.[^.\s]+)+$",
            title="Table",
            description="Iceberg table to land in, as namespace.table; created when missing.",
        ),
        "start_offset": Param(
            "earliest",
            enum=["earliest", "latest"],
            values_display={"earliest": "The first record", "latest": "What comes from now on"},
            title="Begin at",
            description="Where the first run begins; later runs go on where the table says.",
        ),
    },
) as dag:
    KafkaExtractOperator(
        task_id="land",
        topic="{{ params.topic }}",
        table="{{ params.table }}",
        start_offset="{{ params.start_offset }}",
        schema=SCHEMA,
        partition_by=["months(time_hour)"],
        sort_order=["time_hour", "carrier"],
        outlets=[AssetAlias("flights_to_lake")],
    )
