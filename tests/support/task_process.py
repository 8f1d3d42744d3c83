"""One task of a run as an executor runs it: Airflow's own supervisor, and the task in a process below it.

    python -m tests.support.task_process BUNDLE FILE DAG_ID RUN_ID TASK_ID LOG

The try is counted up first, as the scheduler does. LOG is what the UI would show of it, a JSON document a line.
"""

from __future__ import annotations

import sys


def main(bundle: str, file: str, dag_id: str, run_id: str, task_id: str, log: str) -> int:
    from airflow.executors.workloads import BundleInfo, ExecuteTask
    from airflow.models.dagbag import DBDagBag
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor, supervise_task
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    with create_session() as session:
        key = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id}
        ti = session.scalars(select(TaskInstance).filter_by(**key)).one()
        ti.try_number += 1
        ti.state = TaskInstanceState.QUEUED
        session.flush()
        workload = ExecuteTask.make(ti, dag_rel_path=None, bundle_info=BundleInfo(name=bundle))
        dag = next(DBDagBag().iter_all_latest_version_dags(session=session), None)
    return supervise_task(
        ti=workload.ti,
        bundle_info=workload.bundle_info,
        dag_rel_path=file,
        token="",
        client=InProcessTestSupervisor._api_client(dag),
        log_path=log,
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
