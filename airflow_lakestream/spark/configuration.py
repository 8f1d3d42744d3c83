"""Settings of all apps: a file readable only by the owner, a catalog, an owner, a lease; never Spark Connect.

The file has the content of connections, secrets included; a command line has only its path. The apps send tasks to
executors as RDDs, and the callback that commits a batch needs its own program's lease: Spark Connect has neither.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from airflow_lakestream.config.arguments import check_keys
from airflow_lakestream.config.settings import written
from airflow_lakestream.exceptions import InvalidArgument

# Created with this mode at once: Python's `open` would first create a file that others can read.
_OWNER_ONLY = 0o600
_CATALOG_KEYS = ("name", "properties")


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    """The settings of every app.

    :param app: name of the bundled app, such as "kafka_to_iceberg".
    :param catalog: {"name": ..., "properties": {...}} of PyIceberg's `load_catalog`; may hold secrets.
    :param owner: the submitter of the app, in words.
    :param lease_location: for an app without a query: path or URI; lease and progress are in
        `<lease_location>.lakestream`. None: neither is kept.
    :param spark: Spark settings of the app's session.
    """

    app: str
    catalog: Mapping[str, Any]
    owner: str = ""
    lease_location: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict)

    def check_sections(self, *more: str) -> None:
        """Check that `catalog`, `spark` and `more` are mappings. Raises InvalidArgument with the key."""
        for key in ("catalog", "spark", *more):
            if not isinstance(getattr(self, key), Mapping):
                raise InvalidArgument(key, f"is a {type(getattr(self, key)).__name__}, not a mapping.")
        check_keys("catalog", self.catalog, _CATALOG_KEYS)
        if not isinstance(self.catalog.get("properties", {}), Mapping):
            raise InvalidArgument("catalog", "its properties are not a mapping.")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Read a configuration from a mapping. Raises InvalidArgument with the key."""
        settings = fields(cls)
        check_keys("", given, [setting.name for setting in settings])
        for setting in settings:
            has_default = setting.default is not MISSING or setting.default_factory is not MISSING
            # `app` is required in a file even if the class has a default: a file of another app is noticed.
            if setting.name not in given and (not has_default or setting.name == "app"):
                raise InvalidArgument(setting.name, "is missing in the configuration of the app.")
        return cls(**given)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a configuration file. Raises InvalidArgument without the file's content, because of passwords."""
        return cls.parse(read_object(path))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, secrets included, without settings that have their default.

        Raises InvalidArgument for values without a form in JSON.
        """
        values = ((setting, written(self, setting.name)) for setting in fields(self))
        changed = {setting.name: value for setting, value in values if value != setting.default}
        # Through JSON text, so that nested values become plain, too.
        plain: dict[str, Any] = json.loads(json.dumps({"app": self.app, **changed}, default=self.to_json))
        return plain

    @staticmethod
    def to_json(value: Any) -> Any:
        """Return the JSON form of a value whose type JSON does not have. Raises InvalidArgument without a form."""
        if isinstance(value, Mapping):
            return dict(value)
        raise InvalidArgument("config", f"a {type(value).__name__} has no place in a file.")

    def write(self, path: str | Path) -> Path:
        """Write a file readable only by the owner, replacing any earlier file as a whole; return the path."""
        return write_object(path, self.to_dict())

    @property
    def catalog_name(self) -> str:
        """The catalog's name in both PyIceberg and Spark: catalogs may separate tables by the catalog's name."""
        return str(self.catalog.get("name", "iceberg_default"))

    @property
    def catalog_properties(self) -> dict[str, str]:
        """The properties of PyIceberg's catalog."""
        return dict(self.catalog.get("properties", {}))

    @property
    def store_properties(self) -> dict[str, str]:
        """The properties for opening the store of lease, progress and checkpoint."""
        return self.catalog_properties

    @property
    @abstractmethod
    def inputs(self) -> dict[str, str]:
        """The inputs that the location of lease and progress keeps for ever, without secrets."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A fingerprint without secrets, equal for two configurations if a driver may serve both."""


def read_object(path: str | Path) -> Mapping[str, Any]:
    """Read a configuration file. Raises InvalidArgument without the file's content, because of passwords."""
    try:
        given = json.loads(Path(path).read_text())
    except OSError as e:
        raise InvalidArgument("config", f"{path} can't be read: {e.strerror}.") from None
    except ValueError as e:
        detail = f" in line {e.lineno}: {e.msg}" if isinstance(e, json.JSONDecodeError) else ""
        raise InvalidArgument("config", f"{path} is not JSON{detail}.") from None
    if not isinstance(given, Mapping):
        raise InvalidArgument("config", f"{path} holds no JSON object.")
    return given


def write_object(path: str | Path, content: Mapping[str, Any]) -> Path:
    """Write a configuration file readable only by the owner, replacing any earlier file as a whole; return the path."""
    path = Path(path)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, indent=1)
    return new.replace(path)


# Environment variables that make pyspark a Connect client.
VARIABLES = ("SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE_ENABLED")
# Airflow's types of connections to Spark Connect.
_CONNECT_TYPES = ("sc", "spark_connect")


def check_connection(conn_type: str, host: str) -> None:
    """Raise InvalidArgument if a connection leads to Spark Connect."""
    if conn_type in _CONNECT_TYPES or host.startswith("sc://"):
        raise _connect_refusal("spark_conn_id", "the connection leads to Spark Connect")


def check_settings(settings: Mapping[str, object]) -> None:
    """Raise InvalidArgument if Spark settings make the session a session of Spark Connect.

    A master in the form sc://, any `spark.remote`, and the API mode "connect" do so.
    """
    for key in ("spark.remote", "spark.master", "spark.api.mode"):
        value = str(settings.get(key, ""))
        if value.startswith("sc://") or (value and key == "spark.remote") or value.lower() == "connect":
            raise _connect_refusal("conf", f"{key}={value.partition(';')[0]} asks for Spark Connect")


def check_variables(argument: str, variables: Mapping[str, str]) -> None:
    """Raise InvalidArgument if environment variables make the session a session of Spark Connect."""
    for name in VARIABLES:
        if str(variables.get(name, "")).lower() not in ("", "classic"):
            raise _connect_refusal(argument, f"{name} asks for Spark Connect")


def _connect_refusal(argument: str, problem: str) -> InvalidArgument:
    return InvalidArgument(
        argument,
        f"{problem}, which can't run an app: its client has no SparkContext, and the callback that commits a "
        "batch would run on the server, without the lease.",
        "Name the master itself: local[*], spark://..., yarn, or k8s://...",
    )
