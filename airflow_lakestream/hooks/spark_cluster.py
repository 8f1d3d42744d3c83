"""Backends of Spark drivers: next to the worker, in YARN, or in Kubernetes; the official provider's hook submits."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowException, redact

from airflow_lakestream.core.secrecy import MASKED, secrets_in
from airflow_lakestream.driver.backend import DriverBackend, DriverHandle, SubmitFailed
from airflow_lakestream.driver.detached import DetachedBackend, DetachedJob
from airflow_lakestream.driver.driver_folder import CONFIG_FILE, delete_secrets
from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.driver.supervisor import BackendState
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, install_command
from airflow_lakestream.hooks.kubernetes import KubernetesNamespace, problems_of, settings_of_airflow
from airflow_lakestream.hooks.spark import SECRET_FILES, BackendKind, DriverSubmission, SparkHook

log = logging.getLogger(__name__)

# Settings of Spark.
_POD_NAME = "spark.kubernetes.driver.pod.name"
_UPLOADS = "spark.kubernetes.file.upload.path"
_CONTEXT = "spark.kubernetes.context"
# Folder of the secret in a pod, and the file in it with settings for the pod's JVM.
_MOUNTED = "/etc/lakestream"
_SETTINGS_FILE = "jvm.args"
# Label of all pods and secrets of a stream.
_LABEL = "lakestream-stream"
# Settings that become variables of a pod, and the settings that read the variables from a secret instead.
_VARIABLES = {
    "spark.kubernetes.driverEnv.": "spark.kubernetes.driver.secretKeyRef.",
    "spark.executorEnv.": "spark.kubernetes.executor.secretKeyRef.",
}
# Variable from which a JVM reads arguments, also `@` and the path of a file with arguments.
_JVM_VARIABLE = "JDK_JAVA_OPTIONS"
# Settings whose values are arguments of the driver's JVM.
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
# Settings that Spark writes readably into the pods of the executors.
_SHOWN_OPTIONS = ("spark.executor.extraJavaOptions", "spark.executor.defaultJavaOptions")
# Verbs by resource that the worker needs in the namespace.
_NEEDED_RIGHTS = {
    "pods": ("create", "get", "list", "delete"),
    "services": ("create", "patch"),
    "configmaps": ("create", "patch"),
    "secrets": ("create", "list", "patch", "delete"),
}
# By phase of a pod.
_STATES_OF_PHASES = {
    "Pending": BackendState.RUNNING,
    "Running": BackendState.RUNNING,
    "Succeeded": BackendState.FINISHED,
    "Failed": BackendState.FAILED,
}
# A deleted pod has this long for ending by itself, before it is killed.
_GRACE_S = 1
# The longest wait for the end of a deleted pod.
_REMOVAL_TIMEOUT_S = 60.0
# Lines of a driver's log that are shown after a failure.
_TAIL_LINES = 30


class KubernetesBackend:
    """Backend of drivers in pods. A missing pod is a failure here, though a success for the official operator.

    Raises InvalidArgument if `conf` sets the pod's name, or if Airflow has no credentials for the cluster.
    """

    def __init__(self, hook: SparkHook) -> None:
        if _POD_NAME in hook.settings:
            raise InvalidArgument("conf", f"{_POD_NAME} is set.", "Leave it out: each launch has a name of its own.")
        self._hook = hook
        self._cluster = KubernetesNamespace(hook.master, hook.namespace)
        self._secret_place = _PodSecret(self._cluster)
        # Names of pods that own their secret already.
        self._owners: set[str] = set()

    def planned(self, job: DriverSubmission) -> DriverHandle:
        """Return the handle of the pod to be created by `launch`."""
        return DriverHandle(BackendKind.KUBERNETES, f"{self._cluster.namespace}:{self._pod_name(job)}", is_planned=True)

    def launch(self, job: DriverSubmission) -> DriverHandle:
        """Submit a driver; return its handle when the pod is created.

        Pods and secrets of the stream's earlier drivers are deleted first: at a launch no earlier driver works any
        more. Raises SubmitFailed, ClusterAway, ClusterRefuses, InvalidArgument.
        """
        handle = replace(self.planned(job), is_planned=False)
        self._check_uploads(job)
        self._cluster.check_rights(_NEEDED_RIGHTS)
        for leftover in self._leftovers(job.stream):
            log.info("Deleting leftovers of an earlier driver: %s", leftover)
            self._remove(leftover)
        name = self._pod_name(job)
        try:
            submit(self._hook, self._secret_place.put(self._with_pod_name(job, name)), self._kubeconfig())
        # Also if the task is killed: without a pod no owner would delete the secret.
        except BaseException:
            with suppress(LakestreamError):
                self._remove(name)
            raise
        self.works(handle)
        return handle

    def state(self, handle: DriverHandle) -> BackendState:
        """Return the state by the pod's phase.

        UNKNOWN if the API does not answer, or if a submit may still create the pod; VANISHED if the pod is gone.
        """
        name = _pod_of(handle)
        try:
            pod = self._cluster.pod(name)
        except LakestreamError as e:
            log.warning("%s", e)
            return BackendState.UNKNOWN
        if pod is None:
            may_come = handle.is_planned and name not in self._owners
            return BackendState.UNKNOWN if may_come else BackendState.VANISHED
        return _STATES_OF_PHASES.get(pod.status.phase or "Pending", BackendState.UNKNOWN)

    def kill(self, handle: DriverHandle) -> None:
        """Delete the pod with all owned objects, and wait for the end. Raises ClusterAway, ClusterRefuses."""
        self._remove(_pod_of(handle))

    def log_tail(self, handle: DriverHandle) -> list[str]:
        """Return the pod's problems as Kubernetes reports them, and the last lines of the driver's log.

        If there are neither, or if Kubernetes does not answer, return the kubectl command that shows the log.
        """
        name, lines = _pod_of(handle), list[str]()
        with suppress(LakestreamError):
            pod = self._cluster.pod(name)
            lines += problems_of(pod) if pod is not None else [f"There is no pod {name} any more."]
            lines += self._cluster.log(name, _TAIL_LINES)
        return lines or [f"The driver's log: kubectl logs -n {self._cluster.namespace} {name}"]

    def works(self, handle: DriverHandle) -> None:
        """Make the pod the owner of the secret, unless this process has done this before.

        A launch calls this. The supervision calls this again, since the worker of the launch may have died before. An
        error is only logged: the next call tries again.
        """
        name = _pod_of(handle)
        if name in self._owners:
            return
        try:
            if (pod := self._cluster.pod(name)) is not None:
                self._cluster.give_secret(name, pod)
                self._owners.add(name)
        except LakestreamError as e:
            log.warning("The secret of %s is not its pod's yet: %s", name, e)

    def ended(self, handle: DriverHandle) -> None:
        """Delete the completed pod, with all owned objects; an error is only logged."""
        try:
            self._remove(_pod_of(handle))
        except LakestreamError as e:
            log.warning("The pod stays until the stream's next start: %s", e)

    def _pod_name(self, job: DriverSubmission) -> str:
        """Return the name of a launch's pod. Each launch has a folder of its own, and so a new name."""
        app = re.sub(r"[^a-z0-9]+", "-", Path(job.application).stem.lower()).strip("-")[:24] or "app"
        return f"lakestream-{app}-{fingerprint_of({'launch': str(job.folder)})[:10]}-driver"

    def _with_pod_name(self, job: DriverSubmission, name: str) -> DriverSubmission:
        """Return the submission with the settings of its pod: name, label, upload folder and Kubernetes context."""
        settings = {_POD_NAME: name, f"spark.kubernetes.driver.label.{_LABEL}": _stream_label(job.stream)}
        if uploads := job.settings.get(_UPLOADS):
            # A folder for each launch, deleted with the launch's pod.
            settings[_UPLOADS] = f"{uploads.rstrip('/')}/{name}"
        if context := settings_of_airflow().get("cluster_context"):
            settings[_CONTEXT] = job.settings.get(_CONTEXT, context)
        return replace(job, settings={**job.settings, **settings})

    def _check_uploads(self, job: DriverSubmission) -> None:
        """Raise InvalidArgument if local files have to be uploaded, but no folder for uploads can be configured."""
        local = [path for path in (job.application, *job.py_files) if not re.match(r"\w+:", path)]
        if not local or _UPLOADS in job.settings or _UPLOADS in self._hook.given_properties or self._hook.has_defaults:
            return
        raise InvalidArgument(
            "conf",
            f"{_UPLOADS} is missing, by which Spark hands {Path(local[0]).name} to the driver.",
            "Set it to a folder of a store that worker and pods share; no secret is put there.",
        )

    def _kubeconfig(self) -> Mapping[str, str]:
        """Return the variables for `spark-submit` to use Airflow's kubeconfig file."""
        file = settings_of_airflow().get("config_file")
        return {"KUBECONFIG": file} if file else {}

    def _leftovers(self, stream: str) -> Iterator[str]:
        """Yield the names of all launches of a stream that have a pod or a secret."""
        label = f"{_LABEL}={_stream_label(stream)}"
        yield from sorted({*self._cluster.pods(label), *self._cluster.secrets(label)})

    def _remove(self, name: str) -> None:
        """Delete a pod with its secret and its uploads in a local folder; wait for the pod's end.

        Kubernetes deletes the pod's service and maps. After _REMOVAL_TIMEOUT_S the wait ends with a warning.
        """
        self._cluster.delete_pod(name, _GRACE_S)
        self._secret_place.forget(name)
        uploads = urlsplit(self._hook.settings.get(_UPLOADS, ""))
        if uploads.path and uploads.scheme in ("", "file"):
            shutil.rmtree(Path(unquote(uploads.path), name), ignore_errors=True)
        deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
        while (pod := self._cluster.pod(name)) is not None:
            if time.monotonic() > deadline or _is_overdue(pod):
                log.warning("Pod %s was to be gone within %g s: its node may be away.", name, _REMOVAL_TIMEOUT_S)
                return
            time.sleep(0.2)  # between two questions to the API server, within the deadline above


class _PodSecret:
    """A secret for each launch, outside of the submission: configuration, variables, and secret settings."""

    def __init__(self, cluster: KubernetesNamespace) -> None:
        self._cluster = cluster

    def put(self, submission: DriverSubmission) -> DriverSubmission:
        """Create the secret. Return the submission without the secret parts, and with the path of the secret.

        The secret has the configuration, the variables of driver and executors, and the secret settings, which the
        pod's JVM reads from a file. Raises InvalidArgument for a secret setting that Spark would show, ClusterAway,
        ClusterRefuses.
        """
        submission = submission.with_environment("spark.kubernetes.driverEnv.")
        name, content = submission.settings[_POD_NAME], {CONFIG_FILE: json.dumps(submission.config.content)}
        settings = {f"spark.kubernetes.driver.secrets.{name}": _MOUNTED}
        secret_settings = {}
        for key, value in submission.settings.items():
            prefix = next((prefix for prefix in _VARIABLES if key.startswith(prefix)), None)
            if prefix is not None:
                variable = key.removeprefix(prefix)
                part = f"{'driver' if 'driverEnv' in prefix else 'executor'}.{variable}"
                content[part] = value
                settings[_VARIABLES[prefix] + variable] = f"{name}:{part}"
            elif _is_secret(key, value):
                _refuse_shown(key)
                secret_settings[key] = value
            else:
                settings[key] = value
        if secret_settings:
            content[_SETTINGS_FILE] = "\n".join(_jvm_argument(key, value) for key, value in secret_settings.items())
            part = f"driver.{_JVM_VARIABLE}"
            content[part] = f"{content.get(part, '')} @{_MOUNTED}/{_SETTINGS_FILE}".strip()
            settings[f"spark.kubernetes.driver.secretKeyRef.{_JVM_VARIABLE}"] = f"{name}:{part}"
        self._cluster.create_secret(name, content, {_LABEL: _stream_label(submission.stream)})
        return replace(submission, settings=settings, seen_at=f"{_MOUNTED}/{CONFIG_FILE}")

    def forget(self, name: str) -> None:
        """Delete the secret of a launch."""
        self._cluster.delete_secret(name)


def _is_secret(key: str, value: str) -> bool:
    """Return whether a setting holds a secret, judged by its name, its value's form, or since Airflow masks it."""
    if key.startswith("spark.kubernetes."):
        # Spark needs these at the submission, and some have the name of a secret, which is none itself.
        return False
    return bool(MASKED.search(key)) or any(secrets_in({key: value}, assigned=True)) or redact(value) != value


def _refuse_shown(key: str) -> None:
    """Raise InvalidArgument for a secret setting that Spark would show in the executors' pods."""
    if key in _SHOWN_OPTIONS:
        problem = f"{key} holds a secret, and Spark would write it into the pods of its executors."
        raise InvalidArgument("conf", problem, "Hand it over in a variable: spark.executorEnv.NAME.")


def _jvm_argument(key: str, value: str) -> str:
    """Return a setting as a line in a file of the JVM's arguments; Spark reads properties of the JVM as settings."""
    if key in _JAVA_OPTIONS:
        return value
    text = f"-D{key}={value}".replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{text}"'


def _is_overdue(pod: Any) -> bool:
    """Return whether a pod had to end more than _REMOVAL_TIMEOUT_S ago: an earlier call has waited for this already."""
    due = pod.metadata.deletion_timestamp
    return due is not None and time.time() - due.timestamp() > _REMOVAL_TIMEOUT_S


def _pod_of(handle: DriverHandle) -> str:
    """Return the name of a driver's pod."""
    return handle.job_id.partition(":")[2]


def _stream_label(location: str) -> str:
    """Return the label's value for a stream: a fingerprint, since a URI is too long for a label."""
    return fingerprint_of({"location": location})


_INSTALL = f"Install it on the worker ({install_command('spark')}), or put Spark's bin folder on its PATH."
# By final status of an application; any other status belongs to a running application.
_STATES_OF_YARN = {"SUCCEEDED": BackendState.FINISHED, "FAILED": BackendState.FAILED}


class DetachedSpark(DetachedBackend):
    """Backend of drivers that are processes of this machine: `spark-submit` in client mode."""

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
        # The user's own settings win.
        submitter = self._hook.submitter(replace(job, settings={**settings, **job.settings}))
        return super().launch(
            DetachedJob(submitter._build_spark_submit_command(job.application), environment, job.folder)
        )


class YarnBackend:
    """Backend of drivers in YARN's cluster mode, through the ResourceManager's REST API."""

    def __init__(self, hook: SparkHook) -> None:
        self._hook = hook

    def planned(self, job: DriverSubmission) -> DriverHandle | None:
        """Return None: YARN names an application only at the submission."""
        return None

    def launch(self, job: DriverSubmission) -> DriverHandle:
        """Submit a driver; return its handle when the ResourceManager has accepted it. Raises SubmitFailed."""
        # YARN copies the configuration into the driver's working folder.
        job = job.with_config_file()
        job = replace(job, files=(*job.files, job.seen_at), seen_at=Path(job.seen_at).name)
        submitter = submit(self._hook, job.with_environment("spark.yarn.appMasterEnv."))
        return DriverHandle(BackendKind.YARN, str(submitter._yarn_application_id))

    def state(self, handle: DriverHandle) -> BackendState:
        """Return the state known to YARN: UNKNOWN without an answer, VANISHED if YARN has no such application."""
        try:
            status = self._hook.official.query_yarn_application_status(handle.job_id)
        except RuntimeError as e:
            # The provider raises the same error for every answer; its text has the status code.
            return BackendState.VANISHED if "HTTP 404" in str(e) else BackendState.UNKNOWN
        return _STATES_OF_YARN.get(status, BackendState.RUNNING)

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
    """Return the backend of a connection's drivers. Raises InvalidArgument as `KubernetesBackend` does."""
    if hook.kind is BackendKind.YARN:
        return YarnBackend(hook)
    if hook.kind is BackendKind.KUBERNETES:
        return KubernetesBackend(hook)
    return DetachedSpark(hook)


def submit(
    hook: SparkHook, submission: DriverSubmission, variables: Mapping[str, str] | None = None
) -> SparkSubmitHook:
    """Submit a driver to a cluster; return the official hook, which has the driver's id.

    Afterwards the files with secrets in the submission's folder are deleted, also after an error.

    :param variables: environment variables of `spark-submit`, in addition to the worker's.

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
