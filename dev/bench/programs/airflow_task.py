"""One real task run in an Airflow process: `dag.test()` of the DAG in `dev/bench/dags`, its `execute` measured."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import BundleDagBag

from dev.bench.programs.measured import CommitClock, Work, write_result


def main() -> None:
    """Run the DAG once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    bag = BundleDagBag(str(folder), bundle_path=folder, bundle_name="dags-folder")
    if bag.import_errors:
        raise AssertionError(bag.import_errors)
    dag = bag.dags["measured"]
    (task,) = dag.tasks
    done, failures = measure_execute(type(task))
    clock = CommitClock().start()
    run = dag.test()
    if not done or str(run.state) != "success":
        raise AssertionError(f"the run ended as {run.state}: {' '.join(map(repr, failures))}")
    (work, report), *_ = done
    write_result(args.result, {**work.told(), "commits": clock.seconds, "report": report})


def measure_execute(operator: type) -> tuple[list[tuple[Work, Any]], list[Exception]]:
    """Measure `execute` alone: Airflow's own start is in nobody's rate. Fills the first list, or the second."""
    done: list[tuple[Work, Any]] = []
    failures: list[Exception] = []
    execute = operator.execute

    def measured(self: Any, context: Any) -> Any:
        try:
            with Work() as work:
                report = execute(self, context)
        except Exception as e:
            # Noted for who runs the task, and raised as ever.
            failures.append(e)
            raise
        done.append((work, report))
        return report

    operator.execute = measured
    return done, failures


if __name__ == "__main__":
    main()
