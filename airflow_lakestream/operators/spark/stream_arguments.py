"""Arguments of SparkStreamingSubmitOperator, checked as far as possible at the parsing of a DAG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_lakestream.config.literals import OF_MIRROR, Check, check_literals
from airflow_lakestream.config.settings import SETTINGS
from airflow_lakestream.core.policies import SqlInput, is_given
from airflow_lakestream.core.secrecy import MASKED, refuse_shown, secrets_in
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import lake_of_app
from airflow_lakestream.operators.arguments import set_arguments, templated
from airflow_lakestream.operators.sql_template import check_written_out
from airflow_lakestream.operators.supervised.operator import SupervisedOperator
from airflow_lakestream.registry.config import refuse_secrets
from airflow_lakestream.spark.apps import MAINTAIN_ICEBERG, MIRROR_APPS, check_app
from airflow_lakestream.stores.folders import is_object_store

_NUMBERS = ("total_executor_cores", "executor_cores", "num_executors")


class SparkArguments(SupervisedOperator):
    """An operator that submits to Spark.

    All arguments are templated, and each is in the signature, so that `default_args` and `partial` reach them.

    :param conf: Spark's settings; they go into a file, never onto the command line
    :param jars: paths of jars, separated by commas
    :param py_files: Python code for the executors; default: this package, if they are on other machines
    :param files: files for the working folder of each executor
    :param archives: archives to be unpacked there
    :param driver_class_path: more for the driver's class path
    :param exclude_packages: Maven coordinates that `packages` shall not bring
    :param repositories: more repositories for `packages`
    :param total_executor_cores: cores of all executors, on standalone
    :param executor_cores: cores of each executor
    :param executor_memory: memory of each executor, such as "2g"
    :param driver_memory: memory of the driver
    :param num_executors: number of executors
    :param name: name of the application; default: `lakestream <dag>.<task>`
    :param env_vars: variables of the driver; never on the command line
    :param spark_binary: program to submit with; default: the connection's, or `spark-submit`
    :param properties_file: a file that is read before `conf`, which wins
    :param yarn_queue: YARN's queue; default: the connection's
    :param deploy_mode: `"client"` or `"cluster"`; default: the connection's
    :param keytab: for Kerberos
    :param principal: for Kerberos
    :param proxy_user: user to impersonate
    """

    def __init__(
        self,
        *,
        conf: Mapping[str, Any] | None = None,
        jars: str | None = None,
        py_files: str | None = None,
        files: str | None = None,
        archives: str | None = None,
        driver_class_path: str | None = None,
        exclude_packages: str | None = None,
        repositories: str | None = None,
        total_executor_cores: int | str | None = None,
        executor_cores: int | str | None = None,
        executor_memory: str | None = None,
        driver_memory: str | None = None,
        num_executors: int | str | None = None,
        name: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        spark_binary: str | None = None,
        properties_file: str | None = None,
        yarn_queue: str | None = None,
        deploy_mode: str | None = None,
        keytab: str | None = None,
        principal: str | None = None,
        proxy_user: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for argument, value in (("conf", conf), ("env_vars", env_vars), ("repositories", repositories)):
            _refuse_unmasked(argument, value)
        set_arguments(self, SparkArguments, locals())

    _hook_arguments = templated(__init__)
    template_fields: Sequence[str] = (*_hook_arguments, *SupervisedOperator.template_fields)

    def spark_options(self) -> dict[str, Any]:
        """Return the arguments of `SparkHook` that have a value. Raises InvalidArgument."""
        options = {name: value for name in self._hook_arguments if (value := getattr(self, name)) is not None}
        return options | {name: SETTINGS[name].parse(options[name]) for name in _NUMBERS if name in options}


def _refuse_unmasked(argument: str, value: Any) -> None:
    """Raise InvalidArgument for a secret under a name that Airflow does not mask."""
    for name in secrets_in(value, rendered="", assigned=True):
        if not MASKED.search(name):
            problem = f"{name or 'its text'} holds a secret, which would be shown."
            raise InvalidArgument(argument, problem, "Put it into a connection, or a file that properties_file names.")


class StreamArguments(SparkArguments):
    """The arguments of `SparkStreamingSubmitOperator`, which documents each."""

    def __init__(
        self,
        *,
        app: str | None = None,
        application: str | None = None,
        app_config: Mapping[str, Any] | None = None,
        trigger: str = "available_now",
        max_batches: int | str | None = None,
        max_offsets_per_trigger: int | str | None = None,
        driver_folder: str | None = None,
        kafka_conn_id: str | None = "kafka_default",
        iceberg_conn_id: str | None = "iceberg_default",
        spark_conn_id: str = "spark_default",
        storage_conn_id: str | None = None,
        packages: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (app is None) == (application is None):
            raise InvalidArgument("app", "exactly one of app and application has to be given.")
        # Here, before Airflow stores a DAG with a secret anywhere.
        refuse_secrets((app_config or {}).get("schema_registry") or "")
        refuse_shown("app_config", app_config)
        checks: dict[str, Check] = {"app": lambda _, value: check_app(str(value))}
        set_arguments(self, StreamArguments, {**locals(), "app_config": dict(app_config or {})}, checks)
        if app not in (None, MAINTAIN_ICEBERG):
            check_written_out(self.app_config.get("sql"), self.app_config.get("sql_input", SqlInput.RAW.value))
            own = OF_MIRROR if app in MIRROR_APPS else {}
            check_literals({"table_format": lake_of_app(app).format, **self.app_config}, own)

    template_fields: Sequence[str] = (*templated(__init__), *SparkArguments.template_fields)

    def store_conn_id(self) -> str | None:
        """Return the connection of the object store with lease and checkpoint; None for a local path."""
        location = self.checkpoint_location
        if not is_given(location) or not is_object_store(str(location)):
            return None
        lake_conn_id: str | None = getattr(self, lake_of_app(self.app).connection)
        return self.storage_conn_id if lake_conn_id is None else lake_conn_id
