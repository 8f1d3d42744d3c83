"""A small read-only client for the API of Confluent's Schema Registry.

The client of confluent-kafka would bring another HTTP library, an OAuth library and more into every environment that
decodes records, Spark's executors included, for three GET requests.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient
from airflow_lakestream.registry.config import RegistryConfig
from airflow_lakestream.stores.http import HttpAnswer, HttpClient, NoAnswer, tls_context

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of the registry.

    :param kind: "AVRO", "PROTOBUF" or "JSON".
    :param references: name and schema of each reference, with its own references.
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, RegisteredSchema], ...] = ()

    def all_references(self) -> list[tuple[str, RegisteredSchema]]:
        """Return all direct and indirect references, each name once; a schema follows its own references."""
        schemas: dict[str, RegisteredSchema] = {}
        for name, schema in self.references:
            for inner_name, inner_schema in schema.all_references():
                schemas.setdefault(inner_name, inner_schema)
            schemas.setdefault(name, schema)
        return list(schemas.items())


@dataclass(frozen=True)
class SchemaText:
    """Text of a schema, with name and text of its references, and for Protobuf the message's index path in the file."""

    text: str
    references: tuple[tuple[str, str], ...] = ()
    message: tuple[int, ...] = (0,)

    @property
    def texts(self) -> list[str]:
        """Texts of the references."""
        return [text for _, text in self.references]


class SchemaSource(Protocol):
    """A source of schemas for decoders."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of this id. Raises SchemaNotFound, and the source's own errors."""
        ...

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """Return all schemas of a subject, the oldest first. Raises SchemaNotFound, and the source's own errors."""
        ...


class SchemaNotFound(LakestreamError, Terminal):
    """The registry does not have the schema."""


class RegistryUnavailable(LakestreamError, Transient):
    """The registry could not be reached, or could not answer."""


class RegistryRefused(LakestreamError, Terminal):
    """Permanent error in the registry's answer, for example by wrong credentials."""


def versions_of(registry: SchemaSource | None, topic: str, kind: str | None) -> list[RegisteredSchema]:
    """Return all available versions of a topic's schemas of a kind, of values and keys. Raises RegistryUnavailable.

    A missing registry, and a subject that is missing or refused, have no versions. For `kind`, see `RegisteredSchema`;
    None for a format without schemas.
    """
    schemas: list[RegisteredSchema] = []
    for subject in (f"{topic}-value", f"{topic}-key"):
        try:
            schemas += [] if registry is None else registry.versions(subject)
        except (SchemaNotFound, RegistryRefused) as e:
            log.debug("Other versions of a schema are not looked at: %s", e)
    return [schema for schema in schemas if schema.kind == kind]


_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
# The deepest level of references.
_MOST_REFERENCES = 32
# Seconds before the first repetition of a request; each further pause is twice as long.
_FIRST_PAUSE = 0.2
# Seconds that an unknown id is remembered: it may be registered in a moment.
_ABSENT_SECONDS = 30.0
# If a producer writes arbitrary bytes after a zero, each record names another id. So requests for unknown ids are
# limited, to this number at once and this number more per second.
_UNKNOWN_AT_ONCE = 200
_UNKNOWN_PER_SECOND = 5.0


class _AnswerCache:
    """Bounded cache of answers in this process, by registry and path; removes the least recently used first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Any, tuple[float, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry[0] < time.monotonic():
                return None
            self._entries.move_to_end(key)
            return entry[1]

    def put(self, key: Any, value: Any, seconds: float = float("inf")) -> None:
        with self._lock:
            self._entries[key] = (time.monotonic() + seconds, value)
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)


class _RequestAllowance:
    """Allowance of requests for unknown ids: a bucket with a rate of refill."""

    def __init__(self) -> None:
        self._left = float(_UNKNOWN_AT_ONCE)
        self._refilled_at = time.monotonic()
        self._lock = threading.Lock()

    @property
    def is_used_up(self) -> bool:
        """Whether no more unknown ids may be requested at the moment."""
        with self._lock:
            now = time.monotonic()
            refill = (now - self._refilled_at) * _UNKNOWN_PER_SECOND
            self._left = min(float(_UNKNOWN_AT_ONCE), self._left + refill)
            self._refilled_at = now
            return self._left < 1

    def use(self) -> None:
        """Count a request for an unknown id."""
        with self._lock:
            self._left -= 1


_ALLOWANCES: dict[RegistryConfig, _RequestAllowance] = {}

# The schema of an id never changes, so all decoders of a process share the answers.
_SCHEMAS = _AnswerCache(2_000)
_ABSENT = _AnswerCache(10_000)


class RegistryClient:
    """Client for schemas. Can be pickled with credentials, for requests from Spark's executors.

    All methods raise RegistryUnavailable (a retry may help) and RegistryRefused (no retry helps), with the URL.
    """

    def __init__(self, config: RegistryConfig) -> None:
        self.config = config
        self._base = config.url.rstrip("/")
        tls = self._tls() if self._base.startswith("https:") else None
        self._http = HttpClient(config.username, config.password, config.token, tls=tls)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.config,)

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of this id with all references. Raises SchemaNotFound.

        The answer is cached in the process, an unknown id for some seconds. If too many ids were unknown,
        SchemaNotFound is raised without a request.
        """
        key = (self.config, schema_id)
        schema: RegisteredSchema | None = _SCHEMAS.get(key)
        if schema is None:
            if _ABSENT.get(key):
                raise SchemaNotFound(f"Schema {schema_id} is not in the registry {self._base}.")
            allowance = _ALLOWANCES.setdefault(self.config, _RequestAllowance())
            if allowance.is_used_up:
                raise SchemaNotFound(
                    f"Schema {schema_id} was not asked for: the registry {self._base} did not know some "
                    f"{_UNKNOWN_AT_ONCE} other ids of records. Which producer writes them?"
                )
            try:
                answer = self._get(f"/schemas/ids/{schema_id}")
            except SchemaNotFound:
                allowance.use()
                _ABSENT.put(key, True, _ABSENT_SECONDS)
                raise SchemaNotFound(f"Schema {schema_id} is not in the registry {self._base}.") from None
            schema = self._registered(schema_id, answer, 0)
            _SCHEMAS.put(key, schema)
        return schema

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the newest schema of a subject, such as "orders-value". Raises SchemaNotFound.

        The newest schema is never cached.
        """
        return self._version(subject, "latest", 0)

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """Return all schemas of a subject, the oldest first. Raises SchemaNotFound."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        try:
            numbers = [int(number) for number in self._get(path)]
        except (TypeError, ValueError):
            raise RegistryRefused(self._not_a_registry(path)) from None
        return [self._version(subject, number, 0) for number in sorted(numbers)]

    def _version(self, subject: str, version: int | str, depth: int) -> RegisteredSchema:
        """Return a version of a subject, from the cache if possible.

        :param version: a number, whose schema never changes; or "latest", which is not cached.
        :param depth: the level of references that has led here; 0 for a caller's own request.
        """
        key = (self.config, subject, version)
        schema: RegisteredSchema | None = _SCHEMAS.get(key)
        if schema is None:
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            answer = self._get(path)
            try:
                schema_id = int(answer["id"])
            except (KeyError, TypeError, ValueError):
                raise RegistryRefused(self._not_a_registry(path)) from None
            schema = self._registered(schema_id, answer, depth)
            if version != "latest":
                _SCHEMAS.put(key, schema)
        return schema

    def _registered(self, schema_id: int, answer: Any, depth: int) -> RegisteredSchema:
        """Return the schema of a registry's answer, with all references, which are requested here."""
        if depth > _MOST_REFERENCES:
            raise RegistryRefused(f"References from schema {schema_id} go deeper than {_MOST_REFERENCES} levels.")
        try:
            named = [(str(r["name"]), r["subject"], r["version"]) for r in answer.get("references") or ()]
            # For Avro a registry leaves the type out.
            kind, text = str(answer.get("schemaType") or "AVRO"), str(answer["schema"])
        except (KeyError, TypeError, AttributeError):
            raise RegistryRefused(self._not_a_registry(f"/schemas/ids/{schema_id}")) from None
        references = []
        for name, subject, version in named:
            try:
                references.append((name, self._version(subject, version, depth + 1)))
            except SchemaNotFound:
                problem = f"Schema {schema_id} refers to {name}, version {version} of subject {subject}"
                raise RegistryRefused(f"{problem}, which is not in the registry {self._base}.") from None
        return RegisteredSchema(schema_id, kind, text, tuple(references))

    def _get(self, path: str) -> Any:
        # The last attempt, below the loop, raises its error.
        for attempt in range(self.config.retries):
            try:
                return self._get_once(path)
            except RegistryUnavailable as e:
                log.info("%s Trying again.", e)
                # With growing pauses: a registry that restarts needs the time.
                time.sleep(_FIRST_PAUSE * 2**attempt)
        return self._get_once(path)

    def _get_once(self, path: str) -> Any:
        try:
            answer = self._http.send("GET", self._base + path, timeout=self.config.timeout, accept=_ACCEPT)
        except NoAnswer as error:
            raise self._unreachable(path, error.reason) from None
        if answer.is_error:
            raise self._explained(path, answer)
        try:
            return answer.json()
        except ValueError:
            raise RegistryRefused(self._not_a_registry(path)) from None

    def _explained(self, path: str, answer: HttpAnswer) -> Exception:
        """Return the error for an answer with an error's status."""
        where, status = f"{self._base}{path}", answer.status
        try:
            error = answer.json()
            message, code = str(error.get("message", ""))[:200], error.get("error_code")
        except (ValueError, AttributeError):
            message, code = "", None
        if status == 404:
            # Any server may answer 404; only a registry's body has an error code.
            if code is None:
                return RegistryRefused(self._not_a_registry(path))
            return SchemaNotFound(f"{where}: {message or 'not found'}")
        if status in (401, 403):
            remedy = "Check the credentials of schema_registry, and what they may read."
            return RegistryRefused(f"The schema registry refused {where} with {status}. {remedy}")
        if status in (408, 429) or status >= 500:
            return RegistryUnavailable(f"The schema registry answered {where} with {status}: {message}")
        return RegistryRefused(f"The schema registry answered {where} with {status}: {message}")

    def _unreachable(self, path: str, reason: BaseException) -> Exception:
        where = f"{self._base}{path}"
        if isinstance(reason, ssl.SSLCertVerificationError):
            remedy = "Give the certificate of its authority as ca_file."
            return RegistryRefused(f"The schema registry's certificate is not trusted ({where}): {reason}. {remedy}")
        remedy = "Check that it runs, and its url."
        return RegistryUnavailable(f"The schema registry could not be asked for {where}: {reason}. {remedy}")

    def _not_a_registry(self, path: str) -> str:
        remedy = "Check its url: for Apicurio it ends with /apis/ccompat/v7."
        return f"{self._base}{path} did not answer as a schema registry does. {remedy}"

    def _tls(self) -> ssl.SSLContext:
        config = self.config
        try:
            return tls_context(config.ca_file, config.cert_file, config.key_file, config.key_password)
        except OSError as error:
            raise InvalidArgument("schema_registry", f"its certificates can't be loaded: {error}.") from None
