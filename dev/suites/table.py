"""The suites, and the rules for what imports don't show. Paths are globs in the checkout; `*` crosses folders."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Suite:
    """A suite of tests: its own files, and what has to be there before it runs.

    :param folders: where its tests are; none for a suite that is a target of the Makefile.
    :param files: globs of its files besides; a change of a file that one of them uses reaches the suite.
    :param containing: text that a file has to have.
    :param follows: whether what its files use is followed; else only a change of the files themselves reaches it.
    :param tools: programs of the machine that it needs, by their names in `dev.suites.tools`.
    :param prepared_by: targets of the Makefile that make what it needs.
    :param by_hand: whether it is a long play, which is no part of "all".
    :param where_made: whether "all" and "reached" take it only where what it needs was made before, in minutes.
    :param nightly: whether "reached" leaves it to "all".
    :param reached_by: globs of changed files for which "reached" takes a suite that is run by hand.
    """

    name: str
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    containing: str = ""
    follows: bool = True
    tools: tuple[str, ...] = ()
    prepared_by: tuple[str, ...] = ()
    by_hand: bool = False
    where_made: bool = False
    nightly: bool = False
    reached_by: tuple[str, ...] = ()

    @property
    def globs(self) -> tuple[str, ...]:
        """The globs of all its files."""
        return (*self.files, *(f"{folder}*" for folder in self.folders))


_JAVA, _ALL_TOOLS = ("java",), ("java", "go", "node")
_UNITS = ("tests/unit/", "tests/contract/")
# The site's reference is made from the docstrings of all modules that a page names.
_SITE = ("docs/*", "README.md", "CHANGELOG.md", "dev/mkdocs.yml", "dev/docs_hooks.py", "dev/hatch_build.py")
_PACKAGING = ("pyproject.toml", "dev/constraints*.txt", "dev/pins*.txt", "dev/hatch_build.py", "tests/install/*")
# Their tests are quick, except those marked `long`, which are a suite of their own.
QUICK = ("units", "integration", "dags", "faults")
SUITES = (
    Suite("lint", files=("*.py", "pyproject.toml"), follows=False),
    Suite("docs", files=_SITE, follows=False),
    Suite("units", _UNITS),
    Suite("integration", ("tests/integration/",), tools=_JAVA),
    Suite("dags", ("tests/dags/",), tools=_JAVA),
    Suite("faults", ("tests/faults/",), tools=_JAVA),
    Suite(
        "long",
        files=tuple(f"tests/{folder}/*" for folder in ("unit", "contract", "integration", "dags", "faults")),
        tools=(*_JAVA, "git"),
        prepared_by=("classes",),
        nightly=True,
    ),
    Suite("sensors", ("tests/sensors/",), tools=_JAVA),
    Suite("mirrors", ("tests/mirrors/",), tools=_JAVA, prepared_by=("classes",)),
    Suite("spark", ("tests/spark/",), tools=_JAVA, prepared_by=("classes",)),
    Suite("engines", ("tests/engines/",), tools=_JAVA, prepared_by=("classes",)),
    Suite("services", ("tests/services/",), tools=("java", "go"), prepared_by=("classes", "s3")),
    Suite("kubernetes", ("tests/kubernetes/",), tools=("java",), prepared_by=("node",), where_made=True),
    Suite("matrix", ("tests/matrix/",), tools=_ALL_TOOLS, prepared_by=("classes", "stores"), nightly=True),
    Suite("dev", ("tests/dev/",), tools=("java", "git"), prepared_by=("kubernetes-tools",)),
    Suite("compat", ("tests/compat/",), tools=_JAVA, prepared_by=("old-airflow",)),
    Suite("start", ("tests/start/",), tools=_JAVA),
    Suite("install", ("tests/install/",), tools=_JAVA, by_hand=True, reached_by=_PACKAGING),
    Suite("page", ("tests/page/",), tools=("java", "chromium"), prepared_by=("page-tools",)),
    Suite("events", ("tests/events/",), tools=_JAVA, by_hand=True),
    Suite("backfill", ("tests/backfill/",), tools=_JAVA, by_hand=True),
)

# Tests that `.ci/run` and a plain `make test` leave to `make test-all`: (a glob of their ids, the reason). Tests that
# stay run the same code of the package.
NIGHTLY = (
    ("tests/mirrors/test_upsert_spark.py*versions_and_fields*[[]delta*", "the same in Iceberg stays"),
    ("tests/engines/test_engine_histories.py*", "random histories; each step is a case of test_flink and test_connect"),
    ("tests/engines/test_*_kills.py::test_each_record_is*", "kills at random places; those at chosen ones stay"),
    ("tests/engines/test_flink_kills.py*", "kills of the gateway; those of the driver and the job stay"),
    ("tests/engines/test_connect_operator.py*worker_of_airflow_that_is_killed*", "the same for Flink stays"),
    ("tests/engines/test_flink_common_sql.py*random*", "random statements; the table of odd records stays"),
    ("tests/engines/test_flink_avro.py*a_bad_record_is_named*", "the same in JSON stays"),
    ("tests/engines/test_flink_left_out.py*", "rare orders of retention and rollback; the ledger's model plays them"),
    ("tests/engines/test_odd_values.py::test_by*", "random values; the unit tests of each converter stay"),
    ("tests/engines/test_flink_operator.py*", "two tasks of one job; the pipeline's task on Flink stays"),
    ("tests/engines/test_flink.py*refused_before_a_job*[[][!n]*", "six statements that are refused; one stays"),
    ("tests/engines/test_pipeline_example.py*each_engine[[]spark*", "Spark's bundled DAGs stay"),
    ("tests/engines/test_pipelines.py*avro*", "Avro by Flink stays in test_flink_avro"),
    ("tests/engines/test_pipeline_example.py*middle_of_a_flowing*", "the engine that changes five times stays"),
    (
        "tests/*hostile_r*_and_checks*",
        "the process that bounds checks is one for all engines; its cases are unit tests",
    ),
    ("tests/*hostile_records_times_hostile_checks*", "sixty records times thirty checks; each of both stays once"),
    ("tests/*damaged_batch*[[]gzip*", "a value that is cut stays"),
    ("tests/*damaged_batch*[[]length*", "a value that is cut stays"),
    ("tests/integration/test_damaged_log.py*", "each way to damage a log; the unit tests of damage stay"),
    ("tests/integration/test_extreme_values.py*", "values at the ends of types; the unit tests of ranges stay"),
    (
        "tests/integration/test_fan_out_hostile.py*",
        "hostile names of tables by the dozen; the unit tests of names stay",
    ),
    ("tests/spark/*killed_at_random*", "kills at random; those of one driver in test_spark_streams stay"),
    ("tests/services/test_submit_yarn.py*", "a whole YARN; its client's cases stay in test_submit_cluster"),
    ("tests/services/test_hdfs_checkpoint.py*", "the same on S3 stays"),
    ("tests/services/test_flink_lakes.py*hive*", "the same by a REST catalog stays"),
    ("tests/mirrors/test_cdc_hostile.py*", "random databases; `make soak-cdc` plays them"),
    ("tests/sensors/test_sensor_kills.py*", "a triggerer killed at random; `make soak-sensors` plays it"),
    ("tests/sensors/test_sensor_random_lag.py*", "random topics; the cases of test_sensor_lag stay"),
    ("tests/dev/test_mutants.py*", "mutants of the harness of faults"),
    ("tests/dev/test_demo.py*with_a_database*", "a whole demo; the page's suite walks through one"),
    ("tests/dev/test_whole_airflow.py*", "streams of both engines in a whole Airflow; the page's and the demo's stay"),
    ("tests/unit/cdc/test_logs.py::test_a_mirror_equals*", "random logs; the cases stay"),
    ("tests/unit/cdc/test_left_out.py::test_whichever*", "random events again; the cases stay"),
    ("tests/unit/cdc/test_keys.py::test_rows_of_one_key_within*", "random rows of a key; the cases stay"),
    ("tests/unit/cdc/test_truncations.py::test_a_mirror_stops_only*", "random truncations; the cases stay"),
    ("tests/unit/core/test_lineage_simulation.py*", "simulated years of snapshots; the cases of the ledger stay"),
    ("tests/unit/publishing/test_publish_checked.py::test_main_never*", "random failures; the landing's stay"),
    ("tests/unit/transform/test_bounds.py*", "records that exceed a bound, in gigabytes; the sandbox's cases stay"),
    ("tests/engines/test_flink_common_sql.py*", "SQL of all engines on Flink; the translation's unit tests stay"),
    ("tests/engines/test_flink_avro.py*", "Avro on Flink; JSON stays"),
    ("tests/engines/test_adopt_*", "taking over a sink; the unit tests of each account stay"),
    ("tests/spark/test_adopt_spark.py*", "taking over a checkpoint; the unit tests of checkpoints stay"),
    ("tests/spark/test_evolved_partitions.py*", "Spark reads all partition fields; PyIceberg's reading stays"),
    ("tests/spark/test_maintain_[cdt]*", "conflicts, deletes and times of maintenance; test_maintain_iceberg stays"),
    ("tests/spark/test_spark_decides.py*", "what executors decide; test_spark_query lands the same"),
    ("tests/spark/test_spark_f*", "functions, crashes between tables, texts of failures; those of streams stay"),
    ("tests/spark/test_spark_kills.py*", "kills at random; those of one driver in test_spark_streams stay"),
    ("tests/spark/test_spark_mostly_bad.py*", "the share of bad records; the extract's stays"),
    ("tests/spark/test_staged.py*", "values of staged files; the landings through these files stay"),
    (
        "tests/mirrors/test_cdc_[dkoprst]*",
        "types, keys, placeholders, Delta and topics of a real Debezium; unit tests of each stay",
    ),
    ("tests/mirrors/test_source_types.py*", "types of a real database; the unit tests of types stay"),
    ("tests/mirrors/test_maintain_mirrors.py*", "maintenance of mirrors; the table's stays"),
)

# A change of these reaches all suites.
EVERYTHING = {
    "airflow_lakestream/__init__.py": "all modules lie in it",
    "airflow_lakestream/core/*": "all else stands on the core",
    "airflow_lakestream/runtime/*": "all else stands on it",
    "airflow_lakestream/exceptions.py": "all else stands on it",
    "pyproject.toml": "dependencies and the settings of pytest",
    "dev/constraints*.txt": "versions of what is installed",
    "dev/pins*.txt": "versions of what is installed",
    "dev/suites/*": "where the choice is wrong, no chosen suite says so",
    "Makefile": "it runs the suites",
    ".ci/*": "it runs the suites",
    "tests/conftest.py": "each suite loads it",
}

# Files that one suite or more read as text, or start by name: (a glob of files, suites, the reason).
READ = (
    ("airflow_lakestream/ui/page/static/*", ("page", "dags", "compat"), "a browser runs it; the API server serves it"),
    ("airflow_lakestream/py.typed", ("units",), "the wheel has it"),
    ("docs/images/*", ("docs", "page"), "the site shows it; the walk through the page renews it"),
    ("docs/notebooks/*", ("start",), "the walk through the pages runs its cells"),
    ("dev/kubernetes/*", ("dev",), "the manifests are held against their schemas"),
    ("dev/*.py", ("dev",), "the tests of the tools"),
    ("dev/node/*", ("kubernetes",), "the node that its tests start"),
    (
        "dev/mkdocs.yml",
        ("docs", "long", "dags", "start", "page"),
        "the wheel has the site, and the API server shows it",
    ),
    ("dev/docs_hooks.py", ("docs", "long", "dags", "start", "page"), "the wheel has the site"),
    ("dev/hatch_build.py", ("long", "dags", "start", "install"), "it builds the wheel"),
    ("spark_apps/README.md", ("units",), "the wheel has it"),
    ("LICENSE", ("units",), "the wheel has it"),
    ("SECURITY.md", ("units",), "its links are followed"),
    ("docs/site.css", ("docs", "units"), "the site has it"),
    ("CHANGELOG.md", ("docs",), "a page of the site"),
    (".gitignore", ("lint",), "no test reads it"),
    ("dev/BOUNDS.md", ("lint",), "no test reads it"),
)

_ALL_DAGS = "dags/*.py"
# What files use without an import or a name in their text: (a glob of users, a glob of used files, the reason).
USES = (
    ("tests/page/*", "airflow_lakestream/ui/plugin.py", "the API server loads the entry point"),
    ("tests/page/*", "airflow_lakestream/ui/app.py", "the API server mounts it"),
    ("tests/page/*", "airflow_lakestream/get_provider_info.py", "the API server shows the provider"),
    ("tests/install/*", "airflow_lakestream/get_provider_info.py", "Airflow loads the installed provider"),
    ("tests/page/*", "dev/demo.py", "`python -m dev demo`"),
    ("tests/page/test_site.py", "docs/words.md", "the search knows its words"),
    ("tests/page/test_site.py", "docs/site.css", "it wraps long lines"),
    ("tests/dags/test_ui.py", "airflow_lakestream/ui/plugin.py", "Airflow loads the entry point"),
    ("tests/dags/test_page.py", "airflow_lakestream/ui/plugin.py", "the API server loads the entry point"),
    ("tests/dags/test_page.py", "airflow_lakestream/get_provider_info.py", "the API server shows the provider"),
    ("tests/faults/test_play.py", "dev/FAULTS.md", "its commands are played"),
    ("tests/unit/dev/test_contributing.py", "dev/CONTRIBUTING.md", "its tours lead to files"),
    ("tests/dags/test_documentation.py", "dev/CONTRIBUTING.md", "its commands are there"),
    ("tests/contract/test_written_commits.py", "dev/COMMITS.md", "its commits are written"),
    ("tests/dags/test_dags.py", _ALL_DAGS, "each is parsed"),
    ("tests/engines/test_pipeline_example.py", "dags/pipelines/*.yaml", "each engine runs it"),
    ("tests/unit/pipelines/test_common_sql.py", "dags/pipelines/*.yaml", "it is compiled"),
    ("tests/unit/transform/test_to_flink.py", "docs/sql.md", "its table has each function"),
    ("tests/unit/test_public_names.py", _ALL_DAGS, "each is read"),
    ("tests/unit/test_public_names.py", "docs/*.md", "each is read"),
    ("tests/unit/test_public_names.py", "README.md", "it is read"),
    ("tests/unit/dev/test_front_page.py", "README.md", "it is read"),
    ("tests/unit/dev/test_pages.py", "docs/*.md", "each page is read"),
    ("tests/unit/dev/test_pages.py", "README.md", "it is read"),
    ("tests/unit/test_wheel.py", "spark_apps/*.py", "the wheel has them"),
    ("tests/unit/spark/test_apps.py", "spark_apps/*.py", "each is started"),
    ("tests/dags/test_documentation.py", "docs/*.md", "the snippets are run"),
    ("tests/dags/test_documentation.py", "README.md", "the snippets are run"),
    ("tests/dags/test_documentation.py", "airflow_lakestream/sensors/*.py", "those of the snippets"),
    ("dev/demo.py", "dags/clickstream_*.py", "its Airflow runs them"),
    ("tests/start/*", "docs/start.md", "it is copied into a shell"),
    ("tests/start/*", "docs/readers.md", "it is copied into a shell"),
    ("tests/start/*", "docs/tutorial/*.md", "they are copied into a shell"),
    ("tests/start/*", "spark_apps/*.py", "the tutorial submits them"),
    ("docs/start.md", "airflow_lakestream/cli/app.py", "its commands are those of `lakestream`"),
    ("docs/tutorial/*.md", "airflow_lakestream/cli/app.py", "their commands are those of `lakestream`"),
    ("dags/clickstream_*.py", "dags/clickstream_frames/*", "the functions of DataFrames lie in it"),
    ("airflow_lakestream/config/mirror.py", "airflow_lakestream/cdc/*.py", "a mirror's run"),
    ("airflow_lakestream/spark/readers.py", "airflow_lakestream/cdc/*.py", "a mirror's batches"),
    ("airflow_lakestream/cli/pipeline.py", "airflow_lakestream/config/mirror.py", "a file may have a mirror"),
    ("spark_apps/cdc_to_*.py", "airflow_lakestream/spark/readers.py", "a mirror's batches"),
    ("spark_apps/cdc_to_*.py", "airflow_lakestream/config/mirror.py", "a mirror's batches"),
    ("airflow_lakestream/pipelines/operator.py", "airflow_lakestream/operators/kafka_extract*.py", "usual engines"),
    ("tests/*/test_pipelines.py", "airflow_lakestream/operators/*.py", "pipelines of each engine"),
    ("tests/*/test_pipelines.py", "spark_apps/*.py", "pipelines of each engine"),
)

# They name files of all kinds, as examples of changes; what they use is in `EVERYTHING`.
TABLES_OF_CHANGES = ("tests/dev/test_suites.py",)

# What these name is loaded, and no more: a change of what the named modules use in turn is not felt.
LOADING = {
    "airflow_lakestream/get_provider_info.py": "Airflow imports the modules of the provider",
    "docs/reference.md": "the docstrings of the classes become the page",
    "tests/install/landings.py": "it is run in the environments into which the wheel is installed",
}

# Imports on the way of all landings whose branch only some take: (users, globs of used files, the reason). The branch
# counts for those that have a row in USES, or another import.
_ALL_LANDINGS = (
    "airflow_lakestream/audit/delta.py",
    "airflow_lakestream/audit/keyed.py",
    "airflow_lakestream/lakes.py",
    "airflow_lakestream/pipelines/check.py",
    "airflow_lakestream/run/job.py",
    "airflow_lakestream/run/summary.py",
    "airflow_lakestream/run/topics.py",
    "airflow_lakestream/spark/app_config.py",
    "airflow_lakestream/spark/readers.py",
    "airflow_lakestream/spark/micro_batch.py",
)
BRANCHES = (
    (_ALL_LANDINGS, "airflow_lakestream/cdc/*", "no mirror without a MirrorConfig"),
    (_ALL_LANDINGS, "airflow_lakestream/config/mirror.py", "they look whether they have one"),
    (_ALL_LANDINGS, "airflow_lakestream/spark/readers.py", "no mirror without a MirrorConfig"),
    (("airflow_lakestream/pipelines/operator.py",), "airflow_lakestream/operators/*", "the engine that a file names"),
    (("dev/bench/lab.py",), "dev/bench/programs/*", "the row of the benchmark that is asked for"),
)
