"""A connector's configuration without literal secrets and misspelt keys, and completed for Iceberg's sink."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.core.names import is_own_branch
from airflow_lakestream.core.secrecy import secrets_in
from airflow_lakestream.exceptions import InvalidArgument, Terminal

log = logging.getLogger(__name__)

ICEBERG_SINK = "org.apache.iceberg.connect.IcebergSinkConnector"
_REFERENCE = re.compile(r"\$\{[^}]*\}")
# Prefixes of settings that Connect passes unread to clients and converters.
_PASSED_THROUGH = (
    *(f"{client}.override." for client in ("consumer", "producer", "admin")),
    *(f"{part}.converter." for part in ("key", "value", "header")),
)
# Least similarity, from 0 to 1, of an unknown key to a known key from which on the key counts as misspelt.
_LEAST_SIMILARITY = 0.86


class ConfigRefused(InvalidArgument, Terminal):
    """Error of a connector's configuration refused by Connect, or taken without the intended effect."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__("config", problem, remedy)


def as_text(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a configuration in Connect's form: all values are text. Raises ConfigRefused.

    True and false become lower-case words. Lists, mappings and None have no such form, and are refused.
    """
    text = {}
    for key, value in config.items():
        if isinstance(value, Mapping | list | tuple | set) or value is None:
            raise ConfigRefused(f"{key} is a {type(value).__name__}.", "Connect takes text, numbers and true or false.")
        text[str(key)] = str(value).lower() if isinstance(value, bool) else str(value).strip()
    return text


def refuse_literal_secrets(config: Mapping[str, Any]) -> None:
    """Refuse literal secrets in the configuration, visible to everybody in Connect. Raises ConfigRefused.

    A secret has to be a reference to a config provider, such as `${file:/etc/connect/lake.properties:password}`.
    """
    if secrets := sorted(set(_literal_secrets(config))):
        remedy = "Refer to it by a config provider of the workers, such as ${file:/path/lake.properties:password}."
        raise ConfigRefused(f"{' and '.join(secrets)} holds a secret, which Connect would show.", remedy)


def _literal_secrets(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of settings with literal secrets."""
    for key, value in config.items():
        # A reference to a config provider is not literal; the text around it may still hold a secret.
        text = _REFERENCE.sub("", value) if isinstance(value, str) else value
        if isinstance(text, str) and key.endswith("jaas.config"):
            # A line of settings, of which only some are secret.
            yield from (key for _ in secrets_in(text, key, assigned=True))
        else:
            yield from secrets_in({key: text})


def changed_settings(wanted: Mapping[str, str], existing: Mapping[str, str]) -> list[str]:
    """Return the sorted names of the settings that differ, or that only one configuration has.

    The key `name`, which Connect adds, is left out.
    """
    names = (set(wanted) | set(existing)) - {"name"}
    return sorted(name for name in names if wanted.get(name) != existing.get(name))


def check_keys(config: Mapping[str, str], known: Collection[str], handed_on: Collection[str] = ()) -> None:
    """Refuse misspelt keys, since Connect ignores unknown keys. Raises ConfigRefused.

    An unknown key that looks like a known key is refused, and so is any unknown key of a transformation or predicate.
    Any other unknown key gets a warning only: some connectors pass settings to a library.

    :param known: the names that Connect returns from its validation.
    :param handed_on: prefixes of further settings that the connector passes on, and that are not checked.
    """
    prefixes = (*_PASSED_THROUGH, *handed_on)
    for key in sorted(set(config) - set(known) - {"name"}):
        if key.startswith(prefixes):
            continue
        similar = difflib.get_close_matches(key, known, n=1, cutoff=_LEAST_SIMILARITY)
        if similar:
            raise ConfigRefused(f"{key} is not a setting of the connector.", f"Is {similar[0]} meant?")
        if key.startswith(("transforms.", "predicates.")):
            remedy = f"Is it listed in {key.partition('.')[0]}, and does its type have such a setting?"
            raise ConfigRefused(f"{key} does not belong to a transformation or predicate of this connector.", remedy)
        log.warning("%s is not a setting that the connector lists; the connector may pass it to a library.", key)


def check_errors(errors: Mapping[str, Collection[str]], config: Mapping[str, str]) -> None:
    """Refuse a configuration with errors of Connect's own validation. Raises ConfigRefused.

    Connect resolves config providers before the validation, and its message may contain the value, a secret. So the
    message is left out for a setting with a reference to a provider.
    """
    problems = []
    for name, messages in errors.items():
        has_reference = _REFERENCE.search(config.get(name, ""))
        problem = f"the value of {config[name]}, which is not shown" if has_reference else " ".join(messages)
        problems.append(f"{name}: {problem}")
    if problems:
        raise ConfigRefused(f"Connect refuses {'; '.join(problems)[:1000]}")


# Prefixes of settings that the sink passes to the catalog, to Hadoop, to its Kafka clients, and to tables.
HANDED_ON = (
    "iceberg.catalog.",
    "iceberg.hadoop.",
    "iceberg.kafka.",
    "iceberg.tables.auto-create-props.",
    "iceberg.tables.write-props.",
)
_TABLE_SETTINGS = ("id-columns", "partition-by")
# The name of the added transformation.
POSITION_TRANSFORM = "lakestreamPosition"
_INSERT_FIELD = "org.apache.kafka.connect.transforms.InsertField$Value"
_COLUMNS = {
    "topic.field": "_kafka_topic",
    "partition.field": "_kafka_partition",
    "offset.field": "_kafka_offset",
    "timestamp.field": "_kafka_timestamp",
}
# The columns that identify a row's record for the ledger.
POSITIONS = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
_COMMIT_INTERVAL = "iceberg.control.commit.interval-ms"
_COMMIT_TIMEOUT = "iceberg.control.commit.timeout-ms"
SESSION = "iceberg.kafka.session.timeout.ms"
_DEFAULT_SESSION_MS = 45_000
# Brokers accept no lower value.
_LEAST_SESSION_MS = 6_000
_REFUSED = {
    "topics.regex": "A ledger belongs to one topic: give topics, and one connector to each.",
    "iceberg.tables.route-field": "The sink drops records that match no table: the ledger would not know.",
    "iceberg.tables.dynamic-enabled": "The sink drops records that match no table without a trace.",
    "iceberg.tables.auto-create-enabled": "Let an extract make the table: it knows the columns of positions.",
    "iceberg.connect.group-id": "The sink's own group, connect-<name>, is the one whose offsets are set.",
    "iceberg.coordinator.transactional.suffix": "It is the sink's own.",
    "errors.tolerance": 'Skipped records would be lost: leave it at "none".',
    "transforms.lakestreamPosition.type": "That name is taken.",
}
# The first reads a partition that is added later from its beginning, the second leaves out aborted transactions.
_CONSUMER_SETTINGS = {
    "consumer.override.auto.offset.reset": "earliest",
    "consumer.override.isolation.level": "read_committed",
}
_OFF_VALUES = ("", "false", "none")


@dataclass(frozen=True)
class IcebergConnector:
    """A sink's complete configuration, with derived names."""

    connector: str
    config: Mapping[str, str]
    topic: str
    table: str
    branch: str
    control_topic: str

    @property
    def group(self) -> str:
        """The consumer group of the sink's tasks, whose offsets the sink commits before the table."""
        return f"connect-{self.connector}"

    @property
    def coordinator_group(self) -> str:
        """The consumer group of the coordinator, for reading the control topic."""
        return f"{self.group}-coord"

    @property
    def commit_bound(self) -> float:
        """Seconds for two rounds of commits: a sink with records to land makes progress within this time."""
        interval, timeout = (int(self.config[name]) / 1000 for name in (_COMMIT_INTERVAL, _COMMIT_TIMEOUT))
        return 2 * (interval + timeout)


def session_of(config: Mapping[str, str]) -> float:
    """Return the session time-out of a sink's coordinator, in seconds; without a setting Kafka's default."""
    return int(config.get(SESSION, _DEFAULT_SESSION_MS)) / 1000


def complete_config(
    connector: str, user_config: Mapping[str, str], catalog: str, publish_interval: float
) -> IcebergConnector:
    """Return Iceberg's sink with its complete configuration. Raises ConfigRefused for settings unfit for a ledger.

    The sink gets a branch and a control topic of its own, named after the connector. A transformation, added as the
    last, puts each record's topic, partition, offset and timestamp into its row: the ledger needs the record of a row.

    :param connector: the connector's name.
    :param user_config: the user's configuration, which wins over the defaults, also for branch and control topic.
    :param catalog: the id of Airflow's connection, as the catalog's name. A SQL catalog keeps its name with each table,
        so that the sink finds our tables only under the same name.
    :param publish_interval: seconds between two publications; the sink commits at the same interval by default.
    """
    _refuse_settings(user_config)
    branch = f"lakestream-{re.sub('[^A-Za-z0-9_-]', '-', connector)}"
    control = f"lakestream-control-{re.sub('[^A-Za-z0-9._-]', '-', connector)}"
    config = {
        "connector.class": ICEBERG_SINK,
        "iceberg.catalog": catalog,
        "iceberg.tables.default-commit-branch": branch,
        "iceberg.control.topic": control,
        _COMMIT_INTERVAL: str(int(publish_interval * 1000)),
        _COMMIT_TIMEOUT: "30000",
        **_CONSUMER_SETTINGS,
        **user_config,
    }
    config |= _position_settings(user_config)
    _check(config, catalog)
    return IcebergConnector(
        connector,
        config,
        _single_value(config, "topics", "A ledger belongs to one topic: give one connector to each."),
        _single_value(config, "iceberg.tables", "Each table has a ledger of its own: give one connector to each."),
        config["iceberg.tables.default-commit-branch"],
        config["iceberg.control.topic"],
    )


def _position_settings(config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the transformations, with the added transformation for positions."""
    names = [name.strip() for name in config.get("transforms", "").split(",") if name.strip()]
    return {
        # The last: other transformations may replace the value by a part of the value.
        "transforms": ",".join([*names, POSITION_TRANSFORM]),
        f"transforms.{POSITION_TRANSFORM}.type": _INSERT_FIELD,
        **{f"transforms.{POSITION_TRANSFORM}.{field}": column for field, column in _COLUMNS.items()},
    }


def _refuse_settings(config: Mapping[str, str]) -> None:
    """Raise ConfigRefused for a setting of the user that does not go with a ledger."""
    for name, reason in _REFUSED.items():
        if config.get(name, "").strip().lower() not in _OFF_VALUES:
            raise ConfigRefused(f"{name} does not go with a ledger.", reason)
    for name, value in config.items():
        if name.startswith("transforms.") and name.endswith(".type"):
            _check_transform(name, value)
        if name.startswith("iceberg.table.") and not name.endswith(_TABLE_SETTINGS):
            raise ConfigRefused(f"{name} does not go with a ledger.", "All of a connector's records go to one branch.")


def _check_transform(name: str, value: str) -> None:
    """Raise ConfigRefused for the class of a transform with which a ledger would be wrong.

    :param name: the setting that has the class, for the error.
    """
    if value.endswith("KafkaMetadataTransform"):
        remedy = "Leave it out: the columns of positions are added by InsertField."
        raise ConfigRefused(f"{name}: KafkaMetadataTransform mixes up the columns of two connectors.", remedy)
    if re.search(r"(RegexRouter|TimestampRouter|ByLogicalTableRouter|ExtractTopic\$?\w*)$", value):
        raise ConfigRefused(f"{name}: {value} renames topics; the ledger knows them by their names in Kafka.")
    if re.search(r"\.Filter$", value):
        # A filtered record could not be distinguished from a lost record.
        raise ConfigRefused(
            f"{name}: a filter leaves out records, which the ledger would count as lost.", "Filter in the readers."
        )


def _check(config: Mapping[str, str], catalog: str) -> None:
    """Raise ConfigRefused for a complete configuration with a value that does not go with a ledger."""
    if config["connector.class"] != ICEBERG_SINK:
        remedy = 'Give kind="sink" to a connector of another class; it is supervised without a ledger.'
        raise ConfigRefused(f"connector.class is {config['connector.class']}, not {ICEBERG_SINK}.", remedy)
    kind = f"{config.get('iceberg.catalog.type', '')} {config.get('iceberg.catalog.catalog-impl', '')}".lower()
    if "jdbc" in kind and config["iceberg.catalog"] != catalog:
        problem = f"iceberg.catalog is {config['iceberg.catalog']!r}, and a SQL catalog keeps its name with each table."
        raise ConfigRefused(problem, f"It has to be the id of the Airflow connection, {catalog!r}.")
    if not any(name.startswith("iceberg.catalog.") for name in config):
        raise ConfigRefused("iceberg.catalog.* are missing.", "The workers need them to reach the catalog.")
    if not is_own_branch(branch := config["iceberg.tables.default-commit-branch"]):
        problem = f"iceberg.tables.default-commit-branch is {branch!r}."
        raise ConfigRefused(problem, "The sink has a branch of its own, which is published: leave it out.")
    for name, needed in _CONSUMER_SETTINGS.items():
        if config[name] != needed:
            raise ConfigRefused(f"{name} is {config[name]}, not {needed}.", "A ledger needs it so: leave it out.")
    for name, least in ((_COMMIT_INTERVAL, 1), (_COMMIT_TIMEOUT, 1), (SESSION, _LEAST_SESSION_MS)):
        _check_number(config, name, least)


def _check_number(config: Mapping[str, str], name: str, least: int) -> None:
    value = config.get(name)
    if value is not None and (not value.isdigit() or int(value) < least):
        raise ConfigRefused(f"{name} is {value!r}.", f"It takes milliseconds, {least} or more.")


def _single_value(config: Mapping[str, str], name: str, remedy: str) -> str:
    """Return the only value of a setting that may be a list. Raises ConfigRefused for several values or none."""
    values = [value.strip() for value in config.get(name, "").split(",") if value.strip()]
    if len(values) != 1:
        raise ConfigRefused(f"{name} is missing." if not values else f"{name} has {len(values)}.", remedy)
    return values[0]
