"""The official provider's `spark` connection: the command that submits a driver, and where the driver runs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowException

from airflow_lakestream.driver import detached
from airflow_lakestream.driver.job_folder import CONFIG_FILE
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue
from airflow_lakestream.hooks.connections import connection_of, refuse_unread, texts_of
from airflow_lakestream.spark.connect import VARIABLES as OF_CONNECT
from airflow_lakestream.spark.connect import check_connection, check_settings, check_variables

PROPERTIES_FILE = "spark.properties"
# Files of a driver's folder that may hold secrets.
SECRET_FILES = (CONFIG_FILE, PROPERTIES_FILE)


class BackendKind(StrEnum):
    """DETACHED: a process on Airflow's worker, for local masters and all client modes. Others run in the cluster."""

    DETACHED = detached.KIND
    YARN = "yarn"
    KUBERNETES = "kubernetes"


# The settings that the provider reads from `conf`; all others go into a file, since they may be secret.
_LOOKED_AT = (
    "spark.kubernetes.namespace",
    "spark.kubernetes.submission.waitAppCompletion",
    "spark.yarn.submit.waitAppCompletion",
)
_ENVIRONMENT_OF = {
    BackendKind.YARN: "spark.yarn.appMasterEnv.",
    BackendKind.KUBERNETES: "spark.kubernetes.driverEnv.",
}
# What the provider reads of a connection's extra, with a hyphen.
_EXTRA = ("queue", "deploy-mode", "spark-binary", "namespace", "principal", "keytab", "rest-scheme", "rest-port")
# The operator restarts and counts; the cluster must not restart a driver as well.
_FORCED = {BackendKind.YARN: {"spark.yarn.maxAppAttempts": "1"}}
_TRACKED_BY: dict[BackendKind, dict[str, Any]] = {
    BackendKind.DETACHED: {},
    BackendKind.YARN: {"yarn_track_via_rm_api": True},
    BackendKind.KUBERNETES: {"track_driver_via_k8s_api": True},
}


class SparkHook(SparkSubmitHook):
    """Reads a `spark` connection like the official hook: master, deploy-mode, queue, spark-binary, and so on.

    :param conf: Spark's settings; written into a file, never onto the command line.
    :param env_vars: of the driver; never on the command line either.
    :param options: further options of `SparkSubmitHook`.
    """

    def __init__(
        self,
        spark_conn_id: str = "spark_default",
        *,
        conf: Mapping[str, Any] | None = None,
        env_vars: Mapping[str, str] | None = None,
        properties_file: str | None = None,
        deploy_mode: str | None = None,
        **options: Any,
    ) -> None:
        self.kind = _kind(spark_conn_id, deploy_mode)
        check_settings(conf or {})
        check_variables("env_vars", env_vars or {})
        self._settings = {key: str(value) for key, value in (conf or {}).items()} | _FORCED.get(self.kind, {})
        self._variables = {name: str(value) for name, value in (env_vars or {}).items()}
        if prefix := _ENVIRONMENT_OF.get(self.kind):
            self._settings |= {prefix + name: value for name, value in self._variables.items()}
            self._variables = {}
        self._given_properties = properties_file
        self._given_files = options.get("files")
        self._given_py_files = options.get("py_files")
        looked_at = {key: self._settings.pop(key) for key in _LOOKED_AT if key in self._settings}
        try:
            super().__init__(
                conf=looked_at, conn_id=spark_conn_id, deploy_mode=deploy_mode, **_TRACKED_BY[self.kind], **options
            )
        except (TypeError, NameError) as e:
            raise InvalidArgument(
                "spark_conn_id",
                f"{self.kind} is not tracked by the installed providers ({e}).",
                "Install apache-airflow-providers-apache-spark 6.3 or newer, for Kubernetes also -cncf-kubernetes.",
            ) from e
        except (ValueError, AirflowException) as e:
            raise InvalidArgument("spark_conn_id", f"connection {spark_conn_id!r} can't be used: {e}") from e

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one process on this machine."""
        return str(self._connection["master"]).startswith("local")

    def add_jars(self, paths: Sequence[str]) -> None:
        """Add jars to those given."""
        self._jars = _joined(self._jars, *paths)

    def add_packages(self, coordinates: Sequence[str], without: Sequence[str] = ()) -> None:
        """Let Spark fetch packages itself, without some of their dependencies (group:artifact)."""
        self._packages = _joined(self._packages, *coordinates)
        self._exclude_packages = _joined(self._exclude_packages, *without) or None

    def add_file(self, path: str) -> None:
        """Add a file to the driver's working folder; it replaces that of an earlier launch."""
        self._files = _joined(self._given_files, path)

    def add_py_files(self, paths: Sequence[str]) -> None:
        """Add Python code to what was given; it replaces that of an earlier launch."""
        self._py_files = _joined(self._given_py_files, *paths) or None

    def command(self, application: str, folder: Path, arguments: list[str]) -> list[str]:
        """Return the `spark-submit` command; what may be secret is in a file in `folder`."""
        self._application_args = arguments
        file = folder / PROPERTIES_FILE
        given = Path(self._given_properties).read_text() if self._given_properties else ""
        settings = self._settings
        if self.kind is BackendKind.DETACHED:
            # Shown on the log page of Spark's UI.
            (folder / "jvm").mkdir(exist_ok=True)
            settings = {"spark.driver.log.localDir": str(folder / "jvm"), **settings}
            if "spark.pyspark.python" in settings:
                # The executors' Python may not exist on this machine; Spark would use it for the driver, too.
                settings = {"spark.pyspark.driver.python": sys.executable, **settings}
        lines = [f"{key}={_escaped(value)}" for key, value in sorted(settings.items())]
        file.touch(0o600)
        file.write_text("\n".join([given, *lines, ""]))
        self._properties_file = str(file)
        command: list[str] = self._build_spark_submit_command(application)
        # Otherwise spark-submit would read a given properties file instead of the installation's defaults.
        command.insert(1, "--load-spark-defaults")
        return command

    def environment(self) -> dict[str, str]:
        """Return the driver's environment: the worker's, without Airflow's variables, which may be secret.

        Variables that would make its session one of Spark Connect are left out, too: the connection decides where it
        runs.
        """
        left_out = ("AIRFLOW_", "_AIRFLOW_", *OF_CONNECT)
        told = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        binary = str(self._connection["spark_binary"])
        if shutil.which(binary) is None:
            # The home of this Python's pyspark, which need not be on a worker's PATH.
            told["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{told.get('PATH', '')}"
        if self.kind is BackendKind.DETACHED:
            told.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
            if self.is_local:
                told.setdefault("PYSPARK_PYTHON", sys.executable)
        return told | self._variables

    def yarn_page(self, job_id: str) -> str:
        """Return the page of a YARN application, with links to its logs."""
        return f"{self._get_yarn_rm_base_url()}/cluster/app/{job_id}"


def _kind(conn_id: str, deploy_mode: str | None) -> BackendKind:
    # The official hook would use YARN for one that is not there.
    remedy = "Add one of type spark, with the master as host: local[*], spark://..., yarn, or k8s://..."
    connection = connection_of("spark_conn_id", conn_id, remedy)
    extra = texts_of("spark_conn_id", connection)
    for name in extra:
        # Others may be known to a newer provider.
        if (meant := name.lower().replace("_", "-")) in _EXTRA and meant != name:
            raise InvalidArgument("spark_conn_id", f"connection {conn_id!r}: its extra has {name}.", f"Write {meant}.")
    refuse_unread("spark_conn_id", connection, "login", "password", remedy="Give Spark's settings by conf.")
    check_connection(str(connection.conn_type), connection.host or "")
    master = f"{connection.conn_type}://{connection.host or ''}"
    mode = deploy_mode or extra.get("deploy-mode") or "client"
    if mode not in ("client", "cluster"):
        raise UnknownValue("deploy_mode", mode, ("client", "cluster"))
    if mode == "client":
        return BackendKind.DETACHED
    if "yarn" in master:
        return BackendKind.YARN
    if "k8s" in master:
        return BackendKind.KUBERNETES
    raise InvalidArgument(
        "deploy_mode",
        "Spark has no cluster mode for Python applications on this master.",
        'Set "client": the driver runs next to the worker, and outlives the task.',
    )


def _joined(*parts: str | None) -> str:
    return ",".join(part for part in parts if part)


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return "\\" + text if text[:1].isspace() else text
