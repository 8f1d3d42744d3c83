"""Drivers in YARN and Kubernetes, submitted, tracked and killed by the official provider's hook."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_lakestream.driver.backend import Backend, Handle, SubmitFailed
from airflow_lakestream.driver.detached import DetachedBackend, Job
from airflow_lakestream.driver.job_folder import forget
from airflow_lakestream.driver.supervisor import JobState
from airflow_lakestream.hooks.spark import SECRET_FILES, BackendKind, SparkHook

_INSTALL = "Run pip install 'airflow-lakestream[spark]' on the worker, or put Spark's bin folder on its PATH."
_OF_YARN = {"SUCCEEDED": JobState.FINISHED, "FAILED": JobState.FAILED}
_OF_PHASES = {
    "Pending": JobState.RUNNING,
    "Running": JobState.RUNNING,
    "Succeeded": JobState.FINISHED,
    "Failed": JobState.FAILED,
}


class _ClusterBackend:
    """What backends in a cluster share."""

    def __init__(self, hook: SparkHook, application: str) -> None:
        self._hook = hook
        self._application = application

    def works(self, handle: Handle) -> None:
        """Do nothing: the cluster got its own copies, and ours were deleted when it did."""


class YarnBackend(_ClusterBackend):
    """Applications in YARN's cluster mode, through its ResourceManager's REST API."""

    def launch(self, job: Job) -> Handle:
        """Submit; return when the ResourceManager has accepted the application."""
        _submit(self._hook, self._application, job)
        return Handle(BackendKind.YARN, str(self._hook._yarn_application_id))

    def state(self, handle: Handle) -> JobState:
        """Ask the ResourceManager; UNKNOWN if it does not answer."""
        try:
            status = self._hook.query_yarn_application_status(handle.job_id)
        except RuntimeError as e:
            # The provider raises the same error for every answer; its text has the status code.
            return JobState.VANISHED if "HTTP 404" in str(e) else JobState.UNKNOWN
        return _OF_YARN.get(status, JobState.RUNNING)

    def kill(self, handle: Handle) -> None:
        """Kill the application."""
        self._hook._yarn_application_id = handle.job_id
        self._hook.on_kill()

    def log_tail(self, handle: Handle) -> list[str]:
        """Return where YARN keeps the log."""
        return [f"The driver's log: {self._hook.yarn_page(handle.job_id)}"]


class KubernetesBackend(_ClusterBackend):
    """Driver pods. A pod that is gone is a failure here; the official operator takes it for a success."""

    def launch(self, job: Job) -> Handle:
        """Submit; return when the pod is created."""
        _submit(self._hook, self._application, job)
        pod = self._hook._kubernetes_driver_pod
        if not pod:
            raise SubmitFailed("spark-submit named no driver pod: its output, above, says why.")
        return Handle(BackendKind.KUBERNETES, f"{self._hook._connection['namespace']}:{pod}")

    def state(self, handle: Handle) -> JobState:
        """Ask for the pod; UNKNOWN if the API does not answer."""
        from airflow.providers.cncf.kubernetes import kube_client

        namespace, _, pod = handle.job_id.partition(":")
        try:
            found: Any = kube_client.get_kube_client().read_namespaced_pod(pod, namespace)
        except kube_client.ApiException as e:
            return JobState.VANISHED if e.status == 404 else JobState.UNKNOWN
        except OSError:
            return JobState.UNKNOWN
        return _OF_PHASES.get(found.status.phase or "Pending", JobState.UNKNOWN)

    def kill(self, handle: Handle) -> None:
        """Delete the pod."""
        self._hook._kubernetes_driver_pod = handle.job_id.partition(":")[2]
        self._hook.on_kill()

    def log_tail(self, handle: Handle) -> list[str]:
        """Return where Kubernetes keeps the log."""
        namespace, _, pod = handle.job_id.partition(":")
        return [f"The driver's log: kubectl logs -n {namespace} {pod}"]


def backend_of(hook: SparkHook, application: str) -> Backend:
    """Return the place where this connection's drivers run."""
    if hook.kind is BackendKind.YARN:
        return YarnBackend(hook, application)
    if hook.kind is BackendKind.KUBERNETES:
        return KubernetesBackend(hook, application)
    return DetachedBackend(SECRET_FILES, _INSTALL)


def _submit(hook: SparkHook, application: str, job: Job) -> None:
    # The provider's submit builds the command again, from what `SparkHook.command` has set.
    try:
        hook.submit(application, env=dict(job.environment), cwd=str(job.folder))
    except (AirflowException, RuntimeError, OSError) as e:
        raise SubmitFailed(f"the driver could not be submitted: {e}") from e
    finally:
        # The cluster has its own copies now.
        forget(job.folder, SECRET_FILES)
