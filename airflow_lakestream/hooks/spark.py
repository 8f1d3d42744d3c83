"""The official provider's `spark` connection: the command for submitting a driver, and the backend of the driver."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowException

from airflow_lakestream.driver import detached
from airflow_lakestream.driver.driver_folder import CONFIG_FILE, DriverConfig
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue
from airflow_lakestream.hooks.connections import connection_of, refuse_unread, texts_of
from airflow_lakestream.spark.configuration import VARIABLES as OF_CONNECT
from airflow_lakestream.spark.configuration import check_connection, check_settings, check_variables

PROPERTIES_FILE = "spark.properties"


@dataclass(frozen=True)
class DriverSubmission:
    """A launch of a driver.

    :param application: path of the program.
    :param folder: folder of this launch, on the worker, which only its owner can read.
    :param config: the driver's configuration, with secrets: written into a file only if a backend needs it.
    :param stream: key that all launches of a stream share.
    :param settings: Spark's settings; they may be secret.
    :param variables: the driver's environment; they may be secret.
    :param py_files: Python code, for driver and executors.
    :param files: for the working folder of driver and executors.
    :param seen_at: the configuration file's path on the driver's machine; empty until the file is written.
    """

    application: str
    folder: Path
    config: DriverConfig
    stream: str
    settings: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    py_files: Sequence[str] = ()
    files: Sequence[str] = ()
    seen_at: str = ""

    def with_config_file(self) -> DriverSubmission:
        """Write the configuration into a file of the folder. Return the submission with the file's path."""
        return replace(self, seen_at=str(self.config.write(self.folder)))

    def with_environment(self, prefix: str) -> DriverSubmission:
        """Return the submission with each variable turned into a setting, named `prefix` and the variable's name."""
        added = {prefix + name: value for name, value in self.variables.items()}
        return replace(self, settings={**self.settings, **added}, variables={})

    def write_properties(self, given: str = "") -> Path:
        """Write the settings into a file of the folder, readable only by the owner. Return the path.

        :param given: the text of another properties file, which the settings win over.
        """
        lines = [f"{key}={_escaped(value)}" for key, value in sorted(self.settings.items())]
        file = self.folder / PROPERTIES_FILE
        file.touch(0o600)
        file.write_text("\n".join([given, *lines, ""]))
        return file


def _escaped(value: str) -> str:
    """Return a value as written in a properties file of Java, which trims a value's first spaces."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return "\\" + text if text[:1].isspace() else text


# Files of a driver's folder that may hold secrets.
SECRET_FILES = (CONFIG_FILE, PROPERTIES_FILE)


class BackendKind(StrEnum):
    """Place of a connection's drivers: DETACHED on Airflow's worker (client mode), the others in the cluster."""

    DETACHED = detached.KIND
    YARN = "yarn"
    KUBERNETES = "kubernetes"


# The settings that the provider reads from `conf`; all other settings go into a file, since they may be secret.
_PROVIDER_SETTINGS = (
    "spark.kubernetes.namespace",
    "spark.kubernetes.submission.waitAppCompletion",
    "spark.yarn.submit.waitAppCompletion",
)
# Names that the provider reads in a connection's extra, with a hyphen.
_EXTRA = ("queue", "deploy-mode", "spark-binary", "namespace", "principal", "keytab", "rest-scheme", "rest-port")
# The operator restarts a driver and counts restarts; the cluster must not restart the driver, too.
_FORCED = {BackendKind.YARN: {"spark.yarn.maxAppAttempts": "1"}}
# Options by which the official hook follows a driver through the cluster's API instead of `spark-submit`.
_TRACKING_OPTIONS: dict[BackendKind, dict[str, Any]] = {
    BackendKind.DETACHED: {},
    BackendKind.YARN: {"yarn_track_via_rm_api": True},
    BackendKind.KUBERNETES: {"track_driver_via_k8s_api": True},
}


class _SubmitHook(SparkSubmitHook):
    """The official hook. Spark reads spark-defaults.conf even if a properties file is given."""

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command: list[str] = super()._build_spark_submit_command(application)
        command.insert(1, "--load-spark-defaults")
        return command


class SparkHook:
    """Reads a `spark` connection by the official hook: master, deploy-mode, queue, spark-binary and more.

    :param conf: Spark's settings; written into a file, never onto the command line.
    :param env_vars: variables of the driver; never on the command line either.
    :param properties_file: a file with further settings; `conf` wins.
    :param deploy_mode: `"client"` or `"cluster"`; None: as in the connection, else `"client"`.
    :param options: further options of `SparkSubmitHook`.

    Raises InvalidArgument for an unusable connection, setting or mode.
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
        self.kind = _backend_kind(spark_conn_id, deploy_mode)
        check_settings(conf or {})
        check_variables("env_vars", env_vars or {})
        settings = {key: str(value) for key, value in (conf or {}).items()} | _FORCED.get(self.kind, {})
        provider_settings = {key: settings.pop(key) for key in _PROVIDER_SETTINGS if key in settings}
        self.settings = settings
        self.variables = {name: str(value) for name, value in (env_vars or {}).items()}
        self._given_properties = properties_file
        self._conn_id = spark_conn_id
        tracking = _TRACKING_OPTIONS[self.kind]
        self._options = {**options, "conf": provider_settings, "deploy_mode": deploy_mode, **tracking}
        self.official = self._new_hook()
        self._connection = self.official._connection

    @property
    def master(self) -> str:
        """The address of the cluster's manager, as given to `spark-submit`."""
        return str(self._connection["master"])

    @property
    def binary(self) -> str:
        """The program that submits, such as `spark-submit`."""
        return str(self._connection["spark_binary"])

    @property
    def namespace(self) -> str:
        """Kubernetes' namespace of the drivers."""
        return str(self._connection["namespace"] or "default")

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are the same process on this machine."""
        return self.master.startswith("local")

    @property
    def has_defaults(self) -> bool:
        """Whether this installation of Spark has a file spark-defaults.conf, whose settings nothing here knows."""
        folder = os.environ.get("SPARK_CONF_DIR") or Path(os.environ.get("SPARK_HOME", "/nowhere"), "conf")
        return Path(folder, "spark-defaults.conf").is_file()

    @property
    def given_properties(self) -> str:
        """The text of the user's properties file; empty without such a file."""
        return Path(self._given_properties).read_text() if self._given_properties else ""

    def add_jars(self, paths: Sequence[str]) -> None:
        """Add jars to the jars of the constructor's options."""
        self._options["jars"] = _joined(self._options.get("jars"), *paths)

    def add_packages(self, coordinates: Sequence[str], without: Sequence[str] = ()) -> None:
        """Add packages that Spark downloads at the start of a driver.

        :param coordinates: each package as group:artifact:version.
        :param without: dependencies that are not downloaded, as group:artifact.
        """
        options = self._options
        options["packages"] = _joined(options.get("packages"), *coordinates)
        options["exclude_packages"] = _joined(options.get("exclude_packages"), *without) or None

    def submitter(self, submission: DriverSubmission) -> SparkSubmitHook:
        """Return the official hook for a submission.

        The settings, which may be secret, are written into a file of the submission's folder. Raises InvalidArgument.
        """
        return self._new_hook(
            properties_file=str(submission.write_properties(self.given_properties)),
            files=_joined(self._options.get("files"), *submission.files) or None,
            py_files=_joined(self._options.get("py_files"), *submission.py_files) or None,
            application_args=["--config", submission.seen_at],
        )

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of `spark-submit`: the worker's, and `variables`.

        Airflow's own variables, possibly secret, are left out. Variables that would turn a driver's session into a
        session of Spark Connect are left out, too: the connection decides about the driver's machine.
        """
        left_out = ("AIRFLOW_", "_AIRFLOW_", *OF_CONNECT)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        if shutil.which(self.binary) is None:
            # The folder of this Python's pyspark, which may be missing in a worker's PATH.
            environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
        return environment | dict(variables)

    def yarn_page(self, job_id: str) -> str:
        """Return the page of a YARN application, with links to logs."""
        return f"{self.official._get_yarn_rm_base_url()}/cluster/app/{job_id}"

    def _new_hook(self, **options: Any) -> SparkSubmitHook:
        """Return an official hook with the constructor's options and `options`. Raises InvalidArgument."""
        try:
            return _SubmitHook(conn_id=self._conn_id, **{**self._options, **options})
        except (TypeError, NameError) as e:
            raise InvalidArgument(
                "spark_conn_id",
                f"{self.kind} is not tracked by the installed providers ({e}).",
                "Install apache-airflow-providers-apache-spark 6.3 or newer, for Kubernetes also -cncf-kubernetes.",
            ) from e
        except (ValueError, AirflowException) as e:
            raise InvalidArgument("spark_conn_id", f"connection {self._conn_id!r} can't be used: {e}") from e


def _backend_kind(conn_id: str, deploy_mode: str | None) -> BackendKind:
    """Check a connection, and return the kind of backend for its master and mode. Raises InvalidArgument."""
    # The official hook would take a missing connection for YARN.
    remedy = "Add one of type spark, with the master as host: local[*], spark://..., yarn, or k8s://..."
    connection = connection_of("spark_conn_id", conn_id, remedy)
    extra = texts_of("spark_conn_id", connection)
    for name in extra:
        # Unknown names are accepted, since a newer provider may know more; a misspelled known name is not.
        right_name = name.lower().replace("_", "-")
        if right_name in _EXTRA and right_name != name:
            problem = f"connection {conn_id!r}: its extra has {name}."
            raise InvalidArgument("spark_conn_id", problem, f"Write {right_name}.")
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
    """Join lists that are written with commas; None and empty lists are left out."""
    return ",".join(part for part in parts if part)
