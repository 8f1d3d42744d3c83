"""Small wrong changes of the package, each with the test that catches it: together they need most suites.

`make mutants` plays them; `test_crossing_mutants.py` holds them against the choice of suites.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CrossingMutant:
    """A text of one file of the package, and a wrong one in its place.

    :param suite: of the test.
    :param test: the node id of the test that fails by it.
    """

    name: str
    file: str
    text: str
    wrong: str
    suite: str
    test: str

    def applied_to(self, content: str) -> str:
        """Return a file's content with the mutant in it."""
        assert content.count(self.text) == 1, f"{self.name}: {self.file} has its text {content.count(self.text)} times"
        return content.replace(self.text, self.wrong)


MUTANTS = (
    CrossingMutant(
        "a name that Flink's SQL has unescaped",
        "airflow_lakestream/flink/formats/reading.py",
        'name.replace("`", "``")',
        "name",
        "units",
        "tests/unit/flink/test_statements.py::test_texts_are_quoted",
    ),
    CrossingMutant(
        "a publication of rows that are there twice",
        "airflow_lakestream/core/publishing/refusals.py",
        "    if twice:\n",
        "    if twice < 0:\n",
        "units",
        "tests/unit/publishing/test_publish_refused.py::test_a_row_twice_within_one_file_is_refused",
    ),
    CrossingMutant(
        "a position of Connect that is one event too far",
        "airflow_lakestream/connect/publishing.py",
        "event.offset >= until.get(event.partition, 0)",
        "event.offset > until.get(event.partition, 0)",
        "units",
        "tests/unit/connect/test_events.py::test_what_a_snapshot_proves_is_what_its_summary_points_at",
    ),
    CrossingMutant(
        "a pipeline that drops its checks",
        "airflow_lakestream/pipelines/compiling.py",
        'landing.take(quality, flow.quality_at, "freshness")',
        'landing.take(quality, flow.quality_at, "freshness", "checks")',
        "units",
        "tests/unit/pipelines/test_files.py::test_checks_are_the_operators_argument",
    ),
    CrossingMutant(
        "a database of SQL that reads files",
        "airflow_lakestream/transform/sandbox.py",
        '"enable_external_access": "false"',
        '"enable_external_access": "true"',
        "units",
        "tests/unit/transform/test_sandbox.py::test_no_way_out_of_the_database_itself",
    ),
    CrossingMutant(
        "a commit of Delta without its ledger",
        "airflow_lakestream/delta/committing.py",
        """
    properties = {**kept, **own}
    actions.append(head.metadata_action(properties, target.fields))
    actions.append({"txn": {"appId": ledger_store.app_id(group), "version": generation}})
""",
        """
    actions.append(head.metadata_action(kept, target.fields))
""",
        "units",
        "tests/unit/delta/test_sink.py::test_a_landing_is_one_version_with_rows_ledger_and_transaction",
    ),
    CrossingMutant(
        "an operator for Airflow 3.3 that an older Airflow takes",
        "airflow_lakestream/operators/asset_partitions.py",
        "if not AIRFLOW_V_3_3_PLUS:",
        "if False:",
        "compat",
        "tests/compat/test_airflow_3_1.py::test_partitions_of_assets_are_refused_with_the_reason",
    ),
    CrossingMutant(
        "a lag sensor that leaves the last partition out",
        "airflow_lakestream/watching/lag/check.py",
        "for p in sorted(topic.state.marks):",
        "for p in sorted(topic.state.marks)[:-1]:",
        "sensors",
        "tests/sensors/test_sensor_lag.py::test_a_table_that_holds_all_is_caught_up_and_one_that_does_not_is_behind",
    ),
    CrossingMutant(
        "a lease whose holder does not look for a newer one",
        "airflow_lakestream/driver/lease.py",
        "if newest > self._record.generation:",
        "if newest < self._record.generation:",
        "services",
        "tests/services/test_s3_leases.py::test_a_lease_is_lost_to_one_that_took_over_and_heeds_a_request_to_stop",
    ),
    CrossingMutant(
        "an object that is created over another",
        "airflow_lakestream/stores/folders.py",
        'self._store.put(path, content, mode="create")',
        "self._store.put(path, content)",
        "services",
        "tests/services/test_s3_leases.py::test_a_folder_of_s3_and_one_of_a_disk_behave_the_same",
    ),
    CrossingMutant(
        "a lease in a store that overwrites",
        "airflow_lakestream/driver/driver_folder.py",
        "if self._create(name, value) and self._create(name, value):",
        "if not self._create(name, value) and self._create(name, value):",
        "matrix",
        "tests/matrix/test_gcs.py::test_a_store_without_conditional_writes_is_refused",
    ),
    CrossingMutant(
        "a file of HDFS that is created over another",
        "airflow_lakestream/stores/hdfs.py",
        "self._rename(written, path, content, overwrite=False)",
        "self._rename(written, path, content, overwrite=True)",
        "matrix",
        "tests/matrix/test_hdfs.py::test_of_processes_that_create_a_file_at_once_one_does_each_time",
    ),
    CrossingMutant(
        "a commit to Hive that says nothing of what it has read",
        "airflow_lakestream/iceberg/commit/hive.py",
        "        environment_context.properties.update(_expecting(new_tbl.parameters[PREVIOUS_METADATA_LOCATION]))\n",
        "",
        "services",
        "tests/services/test_hive.py::test_what_another_commits_while_a_commit_is_held_up_stays[a landing, rows]",
    ),
    CrossingMutant(
        "a page that shows streams of DAGs that may not be read",
        "airflow_lakestream/ui/page/streams.py",
        "rows = [row for row in rows if row.dag_id in readable]",
        "rows = [row for row in rows if readable]",
        "long",
        "tests/dags/test_page.py::test_a_dag_that_may_not_be_read_never_shows",
    ),
    CrossingMutant(
        "a list of streams whose best comes first",
        "airflow_lakestream/ui/page/static/list.js",
        "return (x < y ? -1 : x > y ? 1 : 0)",
        "return (x < y ? 1 : x > y ? -1 : 0)",
        "page",
        "tests/page/test_streams.py::test_the_worst_comes_first_and_links_stay_in_airflow",
    ),
    CrossingMutant(
        "a metric of rows that counts what was read",
        "airflow_lakestream/metrics.py",
        "sum(count.written for count in counts)",
        "sum(count.read for count in counts)",
        "integration",
        "tests/integration/test_metrics.py::test_each_commit_of_a_landing_is_measured",
    ),
    CrossingMutant(
        "an event of OpenLineage that counts the last commit alone",
        "airflow_lakestream/lineage/looking.py",
        "read.counts = (read.counts or Counts()) + entry.counts",
        "read.counts = Counts() + entry.counts",
        "integration",
        "tests/integration/test_openlineage.py::test_a_try_that_fails_after_its_commits_tells_them_as_the_ledger_has_them"
        "_and_the_retry_does_not_tell_them_again",
    ),
    CrossingMutant(
        "a rejected record that is not written down",
        "airflow_lakestream/tables/rejects/sink.py",
        "        self._held.append(records)\n\n    def commit(",
        "        records.validate()\n\n    def commit(",
        "units",
        "tests/contract/test_rejects.py::test_rejected_records_are_written_with_the_landing_and_counted",
    ),
    CrossingMutant(
        "a checkpoint of Flink that is read one offset too low",
        "airflow_lakestream/flink/checkpoints.py",
        "return {partition: offset for partition, offset in offsets.items() if offset >= 0}",
        "return {partition: max(0, offset - 1) for partition, offset in offsets.items() if offset >= 0}",
        "engines",
        "tests/engines/test_flink.py::test_a_statement_that_leaves_every_record_out_lands_offsets_alone",
    ),
    CrossingMutant(
        "a mirror in which the earlier of two versions wins",
        "airflow_lakestream/cdc/merge/snapshots.py",
        "later |= same & (mine > other)",
        "later |= same & (mine < other)",
        "mirrors",
        "tests/mirrors/test_worker_mirror.py::test_events_that_come_again_take_no_row_back",
    ),
    CrossingMutant(
        "a fan-out whose home fences nobody off",
        "airflow_lakestream/iceberg/fan_out/tables.py",
        "if not self.fences and properties.get(key, self.fingerprint) != self.fingerprint:",
        "if not self.fences and properties.get(key, self.fingerprint) != properties.get(key, self.fingerprint):",
        "integration",
        "tests/integration/test_fan_out_crashes.py::test_a_zombie_can_not_even_write_to_a_table_that_gets_nothing_any_more",
    ),
    CrossingMutant(
        "a checkpoint of Spark's that is taken whichever query it is of",
        "airflow_lakestream/spark/frames/stateful.py",
        "if last is not None and last.query_id != checkpoint.query_id:",
        'if last is not None and last.query_id == "":',
        "spark",
        "tests/spark/test_spark_streams.py::test_a_checkpoint_that_is_not_the_tables_is_refused_by_name",
    ),
    CrossingMutant(
        "a commit that does not look at the ledger",
        "airflow_lakestream/iceberg/commit/guard.py",
        "        self.check_ledger(current)\n",
        "",
        "faults",
        "tests/faults/test_sequences.py::test_whatever_happens_the_table_equals_the_log_once_each",
    ),
    CrossingMutant(
        "an interval that is twice as long",
        "airflow_lakestream/operators/arguments.py",
        'return {"interval_start": start, "interval_end": end}',
        'return {"interval_start": start, "interval_end": end + (end - start)}',
        "dags",
        "tests/dags/test_dags.py::test_the_backfill_lands_the_hour_of_its_run_and_replaces_it",
    ),
)
