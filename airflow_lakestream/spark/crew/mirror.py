"""Executors that write a mirror's change events into files, which the driver's commit merges."""

from __future__ import annotations

from airflow_lakestream.core.landing.job import Job
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.spark.crew.crew import SparkCrew


class MirrorCrew(SparkCrew):
    """`SparkCrew` of a mirror."""

    def takes(self, job: Job, plan: Plan) -> bool:
        """Tell whether executors read the plan: always, since the files of events may have different columns."""
        return bool(plan.ranges) and not job.careful
