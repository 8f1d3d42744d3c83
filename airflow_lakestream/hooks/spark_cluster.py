"""Backends of Spark drivers: next to the worker, in YARN, or in Kubernetes; the official provider's hook submits."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowException

from airflow_lakestream.driver.backend import DriverBackend, DriverHandle, SubmitFailed
from airflow_lakestream.driver.detached import DetachedBackend, DetachedJob
from airflow_lakestream.driver.driver_folder import delete_secrets
from airflow_lakestream.driver.supervisor import BackendState
from airflow_lakestream.exceptions import install_command
from airflow_lakestream.hooks.spark import SECRET_FILES, BackendKind, DriverSubmission, SparkHook

_INSTALL = f"Install it on the worker ({install_command('spark')}), or put Spark's bin folder on its PATH."
_OF_YARN = {"SUCCEEDED": BackendState.FINISHED, "FAILED": BackendState.FAILED}


class DetachedSpark(DetachedBackend):
    """Processes of this machine: `spark-submit` in client mode."""

    def __init__(self, hook: SparkHook) -> None:
        super().__init__(SECRET_FILES, _INSTALL)
        self._hook = hook

    def launch(self, job: DriverSubmission) -> DriverHandle:  # type: ignore[override]  # each backend has its own terms
        """Start `spark-submit` in client mode, and return the process's handle. Raises SubmitFailed."""
        job = job.with_config_file()
        logs = job.folder / "jvm"
        logs.mkdir(exist_ok=True)
        # Spark's UI shows this log on a page.
        settings = {"spark.driver.log.localDir": str(logs)}
        if "spark.pyspark.python" in job.settings:
            # The executors' Python may not exist on this machine; Spark would use it for the driver, too.
            settings["spark.pyspark.driver.python"] = sys.executable
        environment = self._hook.environment(job.variables)
        for name in ("PYSPARK_DRIVER_PYTHON", *(("PYSPARK_PYTHON",) if self._hook.is_local else ())):
            environment.setdefault(name, sys.executable)
        submitter = self._hook.submitter(job.with_settings(settings))
        return super().launch(
            DetachedJob(submitter._build_spark_submit_command(job.application), environment, job.folder)
        )


class YarnBackend:
    """Applications in YARN's cluster mode, through the ResourceManager's REST API."""

    def __init__(self, hook: SparkHook) -> None:
        self._hook = hook

    def planned(self, job: DriverSubmission) -> DriverHandle | None:
        """Return None: YARN names an application only at the submission."""
        return None

    def launch(self, job: DriverSubmission) -> DriverHandle:
        """Submit; return the handle when the ResourceManager has accepted the application.

        Raises SubmitFailed.
        """
        # YARN copies the configuration into the driver's working folder.
        written = job.with_config_file()
        sent = replace(written, files=(*job.files, written.seen_at), seen_at=Path(written.seen_at).name)
        submitter = submit(self._hook, sent.with_environment("spark.yarn.appMasterEnv."))
        return DriverHandle(BackendKind.YARN, str(submitter._yarn_application_id))

    def state(self, handle: DriverHandle) -> BackendState:
        """Ask the ResourceManager.

        Returns UNKNOWN without an answer, and VANISHED if YARN does not know the application.
        """
        try:
            status = self._hook.official.query_yarn_application_status(handle.job_id)
        except RuntimeError as e:
            # The provider raises the same error for every answer; its text has the status code.
            return BackendState.VANISHED if "HTTP 404" in str(e) else BackendState.UNKNOWN
        return _OF_YARN.get(status, BackendState.RUNNING)

    def kill(self, handle: DriverHandle) -> None:
        """Kill the application."""
        self._hook.official._yarn_application_id = handle.job_id
        self._hook.official.on_kill()

    def log_tail(self, handle: DriverHandle) -> list[str]:
        """Return the address of the log in YARN."""
        return [f"The driver's log: {self._hook.yarn_page(handle.job_id)}"]

    def works(self, handle: DriverHandle) -> None:
        """Do nothing: after a submission the cluster has copies, and the worker's files are deleted."""

    def ended(self, handle: DriverHandle) -> None:
        """Do nothing: YARN deletes the copies, and forgets applications by itself."""


def backend_of(hook: SparkHook) -> DriverBackend:
    """Return the backend of this connection's drivers. Raises InvalidArgument if the worker can't ask the cluster."""
    if hook.kind is BackendKind.YARN:
        return YarnBackend(hook)
    if hook.kind is BackendKind.KUBERNETES:
        from airflow_lakestream.hooks.spark_kubernetes import KubernetesBackend

        return KubernetesBackend(hook)
    return DetachedSpark(hook)


def submit(
    hook: SparkHook, submission: DriverSubmission, variables: Mapping[str, str] | None = None
) -> SparkSubmitHook:
    """Submit to a cluster; return the official hook, with the cluster's answer.

    In any case the files with secrets in the submission's folder are deleted afterwards.

    :param variables: variables of `spark-submit`, in addition to the worker's.

    Raises SubmitFailed.
    """
    try:
        submitter = hook.submitter(submission)
        environment = hook.environment(variables or {})
        submitter.submit(submission.application, env=environment, cwd=str(submission.folder))
        return submitter
    except (AirflowException, RuntimeError, OSError) as e:
        raise SubmitFailed(f"the driver could not be submitted: {e}") from e
    finally:
        # The cluster has its own copies now.
        delete_secrets(submission.folder, SECRET_FILES)
