"""Fills Airflow's database with streams as their runs leave them: `python -m dev.bench.page.streams 1000 300 100`.

The DAGs are written by Airflow itself, as its DAG processor does it; runs, tasks, XComs and events of assets by SQL.
Each stream has run each five minutes until now. Of twenty of them seventeen have an asset as outlet, two have none, and
one runs on Spark. The newest three runs of each fourth found nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.utils.session import create_session
from sqlalchemy import text

_DAGS = """
import pendulum
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator
from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor
from airflow_lakestream.sensors.iceberg_snapshot_freshness import IcebergSnapshotFreshnessSensor
from airflow_lakestream.sensors.retention_risk import RetentionRiskSensor

for n in range({streams}):
    with DAG(
        f"stream_{{n:05}}",
        schedule=CronDataIntervalTimetable("*/5 * * * *", timezone="UTC"),
        start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
        catchup=False,
        is_paused_upon_creation=False,
    ) as dag:
        names = {{"topic": f"topic_{{n}}", "table": f"lake.t{{n}}", "consumer_group": f"group_{{n}}"}}
        if n % 20 == 19:
            SparkStreamingSubmitOperator(task_id="land", app="kafka_to_iceberg", app_config=names)
        else:
            outlets = [] if n % 20 in (9, 14) else [Asset(f"lake.t{{n}}", uri=f"iceberg://lake/t{{n}}")]
            KafkaExtractOperator(task_id="land", outlets=outlets, **names)
    globals()[dag.dag_id] = dag

with DAG("supervises", schedule=None) as supervises:
    listed = EmptyOperator(task_id="streams").output
    IcebergSnapshotFreshnessSensor.partial(task_id="is_fresh", fail_when_stale=True).expand_kwargs(listed)
    CheckpointLagSensor.partial(task_id="keeps_up", fail_when_behind=True).expand_kwargs(listed)
    RetentionRiskSensor.partial(task_id="loses_nothing").expand_kwargs(listed)
"""

# What is the same for every statement: streams by number with their DAG's version, and runs by number with their time.
_WITH = """
with made as (
    select v.dag_id, v.id as version, substring(v.dag_id from 8)::int as n
    from dag_version v where v.dag_id like 'stream\\_%'
), ran as (
    select k, now() - interval '5 minutes' * (:landings - k) as at from generate_series(1, :landings) k
), all_runs as (
    select *, 'scheduled__' || to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') as run_id,
        n % 4 = 0 and k > :landings - 3 as is_empty, n % 20 = 19 as on_spark, n % 20 in (9, 14) as no_outlet
    from made cross join ran
), told as (
    select *, json_build_object(
        'topic', 'topic_' || n, 'topic_id', md5(n::text), 'table', 'lake.t' || n, 'consumer_group', 'group_' || n,
        'ranges', case when is_empty then '[]'
            else json_build_array(json_build_array(0, k * :rows, (k + 1) * :rows)) end,
        'snapshot_ids', case when is_empty then '[]' else json_build_array(1000000000000000000 + k) end,
        'read', case when is_empty then 0 else :rows end, 'rows', case when is_empty then 0 else :rows end,
        'rejected', 0, 'skipped', 0, 'filtered', 0, 'remaining_lag', 0, 'lost', json_build_array(),
        'tables', json_build_object('lake.t' || n, case when is_empty then 0 else :rows end),
        'schema_changes', json_build_array(), 'complete_through', at, 'seconds', 1.5
    ) as report
    from all_runs
)
"""
_STATEMENTS = (
    """
insert into dag_run (dag_id, run_id, logical_date, data_interval_start, data_interval_end, run_after, queued_at,
    start_date, end_date, state, run_type, triggered_by, clear_number, span_status, created_dag_version_id,
    log_template_id)
select dag_id, run_id, at, at, at, at, at, at, case when on_spark and k = :landings then null else at end,
    case when on_spark and k = :landings then 'running' else 'success' end, 'scheduled', 'timetable', 0, 'ended',
    version, (select max(id) from log_template)
from all_runs order by k, n
""",
    """
insert into task_instance (id, task_id, dag_id, run_id, map_index, start_date, end_date, state, try_number, max_tries,
    pool, pool_slots, queue, priority_weight, custom_operator_name, span_status, dag_version_id)
select gen_random_uuid(), 'land', dag_id, run_id, -1, at, case when on_spark and k = :landings then null else at end,
    case when on_spark and k = :landings then 'running' else 'success' end, 1, 0, 'default_pool', 1, 'default', 1, '',
    'ended', version
from all_runs order by k, n
""",
    """
insert into xcom (dag_run_id, task_id, map_index, key, dag_id, run_id, value, timestamp)
select r.id, 'land', -1, case when on_spark and k = :landings then 'progress' else 'return_value' end, told.dag_id,
    told.run_id, case when on_spark then told.report::jsonb
        || jsonb_build_object('rows_in', :rows, 'rows_out', :rows, 'lag', 5) else told.report::jsonb end, at
from told join dag_run r on r.dag_id = told.dag_id and r.run_id = told.run_id order by k, n
""",
    """
insert into asset_event (asset_id, timestamp, source_dag_id, source_task_id, source_run_id, source_map_index, extra)
select ref.asset_id, at, told.dag_id, 'land', run_id, -1, report
from told join task_outlet_asset_reference ref on ref.dag_id = told.dag_id order by k, n
""",
    # One run that has looked at all streams.
    """
insert into dag_run (dag_id, run_id, run_after, start_date, end_date, state, run_type, triggered_by, clear_number,
    span_status, created_dag_version_id, log_template_id)
select dag_id, 'manual__looked', now(), now(), now(), 'failed', 'manual', 'ui', 0, 'ended', id,
    (select max(id) from log_template)
from dag_version where dag_id = 'supervises'
""",
    """
insert into task_instance (id, task_id, dag_id, run_id, map_index, start_date, end_date, state, try_number, max_tries,
    pool, pool_slots, queue, priority_weight, custom_operator_name, span_status, dag_version_id)
select gen_random_uuid(), task, 'supervises', 'manual__looked', n, now(), now(),
    case when task = 'keeps_up' and n % 50 = 0 then 'failed' else 'success' end, 1, 0, 'default_pool', 1, 'default', 1,
    '', 'ended', v.id
from dag_version v cross join (values ('is_fresh'), ('keeps_up'), ('loses_nothing')) looks (task)
    cross join generate_series(0, :streams - 1) n where v.dag_id = 'supervises'
union all
select gen_random_uuid(), 'streams', 'supervises', 'manual__looked', -1, now(), now(), 'success', 1, 0, 'default_pool',
    1, 'default', 1, '', 'ended', id
from dag_version where dag_id = 'supervises'
""",
    """
insert into xcom (dag_run_id, task_id, map_index, key, dag_id, run_id, value, timestamp)
select r.id, task, n, 'return_value', 'supervises', 'manual__looked', jsonb_build_object('lag', n % 50, 'lost', 0,
    'fresh', true, 'age', 12.5, 'time_left', 86400, 'reasons', jsonb_build_array()), now()
from dag_run r cross join (values ('is_fresh'), ('keeps_up'), ('loses_nothing')) looks (task)
    cross join generate_series(0, :streams - 1) n where r.dag_id = 'supervises'
union all
select r.id, 'streams', -1, 'return_value', 'supervises', 'manual__looked', (select jsonb_agg(jsonb_build_object(
    'table', 'lake.t' || n, 'consumer_group', 'group_' || n) order by n) from generate_series(0, :streams - 1) n), now()
from dag_run r where r.dag_id = 'supervises'
""",
)


def fill(streams: int, landings: int, rows: int) -> None:
    """Make so many streams of so many landings of so many rows each, in an empty database of PostgreSQL."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "streams.py"
        file.write_text(_DAGS.format(streams=streams))
        DagBundlesManager().sync_bundles_to_db()
        bag = DagBag(str(file))
        if bag.import_errors:
            raise AssertionError(bag.import_errors)
        sync_bag_to_db(bag, "dags-folder", None)
    given = {"streams": streams, "landings": landings, "rows": rows}
    with create_session() as session:
        for statement in _STATEMENTS:
            needed = {name: value for name, value in given.items() if f":{name}" in statement + _WITH}
            session.execute(text((_WITH if "k, n" in statement else "") + statement), needed)
    with create_session() as session:
        # As autovacuum does, sooner or later.
        session.execute(text("analyze"))


if __name__ == "__main__":
    fill(*map(int, sys.argv[1:]))
