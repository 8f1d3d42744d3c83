"""Executors that write change events for a mirror: files beside its own, which the commit on the driver merges."""

from __future__ import annotations

from airflow_lakestream.core.landing.job import Job
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.spark.crew.crew import SparkCrew


class MirrorCrew(SparkCrew):
    """`SparkCrew` of a mirror."""

    def takes(self, job: Job, plan: Plan) -> bool:
        """Tell whether executors read: whatever columns come up, the files need not agree on them."""
        return bool(plan.ranges) and not job.careful
