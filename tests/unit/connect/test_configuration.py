"""A connector's configuration: what is added, what is refused, and what counts as the same."""

from __future__ import annotations

import pytest

from airflow_lakestream.connect.configuration import (
    ConfigRefused,
    as_text,
    changed_settings,
    check_errors,
    check_keys,
    complete_config,
    refuse_literal_secrets,
)

GIVEN = {
    "topics": "orders",
    "iceberg.tables": "lake.orders",
    "iceberg.catalog.type": "rest",
    "iceberg.catalog.uri": "http://catalog:8181",
}


def test_a_sink_gets_a_branch_positions_and_a_control_topic_of_its_own() -> None:
    sink = complete_config(
        "orders sink", {**GIVEN, "transforms": "unwrap", "transforms.unwrap.type": "x.Unwrap"}, "lake", 5
    )
    assert (sink.topic, sink.table, sink.branch) == ("orders", "lake.orders", "lakestream-orders-sink")
    assert sink.control_topic == "lakestream-control-orders-sink"
    assert (sink.group, sink.coordinator_group) == ("connect-orders sink", "connect-orders sink-coord")
    # After the user's: those may replace the whole value.
    assert sink.config["transforms"] == "unwrap,lakestreamPosition"
    assert sink.config["iceberg.control.commit.interval-ms"] == "5000"
    assert sink.config["consumer.override.isolation.level"] == "read_committed"
    assert sink.commit_bound == 2 * (5 + 30)
    # It is the same each time: nothing is sent to Connect again.
    again = complete_config(
        "orders sink", {**GIVEN, "transforms": "unwrap", "transforms.unwrap.type": "x.Unwrap"}, "lake", 5
    )
    assert changed_settings(again.config, {**sink.config, "name": "orders sink"}) == []


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"topics": "a,b"}, "topics has 2"),
        ({"topics": ""}, "topics is missing"),
        ({"topics.regex": "a.*"}, "topics.regex"),
        ({"iceberg.tables": "a.b,a.c"}, "iceberg.tables has 2"),
        ({"iceberg.tables.route-field": "kind"}, "route-field"),
        ({"iceberg.tables.dynamic-enabled": "true"}, "dynamic-enabled"),
        ({"iceberg.tables.auto-create-enabled": "true"}, "auto-create-enabled"),
        ({"iceberg.table.lake.orders.commit-branch": "main"}, "commit-branch"),
        ({"iceberg.table.lake.orders.route-regex": "x"}, "route-regex"),
        *[
            ({"iceberg.tables.default-commit-branch": name}, "default-commit-branch is '")
            for name in ("main", "MAIN", " main ", "refs/heads/main", "", "own ")
        ],
        ({"iceberg.connect.group-id": "mine"}, "group-id"),
        ({"errors.tolerance": "all"}, "errors.tolerance"),
        ({"consumer.override.auto.offset.reset": "latest"}, "earliest"),
        ({"consumer.override.isolation.level": "read_uncommitted"}, "read_committed"),
        ({"iceberg.kafka.session.timeout.ms": "3000"}, "6000 or more"),
        ({"iceberg.control.commit.interval-ms": "soon"}, "'soon'"),
        ({"iceberg.catalog.type": "jdbc", "iceberg.catalog": "other"}, "SQL catalog"),
        ({"connector.class": "io.other.Sink"}, 'kind="sink"'),
        ({"transforms": "m", "transforms.m.type": "o.a.i.connect.transforms.KafkaMetadataTransform"}, "mixes up"),
        ({"transforms": "r", "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter"}, "renames topics"),
        ({"transforms": "f", "transforms.f.type": "org.apache.kafka.connect.transforms.Filter"}, "leaves out records"),
    ],
)
def test_what_a_ledger_could_not_hold_is_refused_with_its_name(settings: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        complete_config("c", GIVEN | settings, "lake", 60)
    assert told in str(refused.value)


def test_a_sink_without_a_catalog_is_refused() -> None:
    with pytest.raises(ConfigRefused, match="are missing"):
        complete_config("c", {"topics": "orders", "iceberg.tables": "lake.orders"}, "lake", 60)


@pytest.mark.parametrize(
    "config",
    [
        {"database.password": "hunter2"},
        {"iceberg.catalog.jdbc.password": "hunter2"},
        {"iceberg.catalog.uri": "jdbc:postgresql://me:hunter2@db/lake"},
        {"iceberg.catalog.s3.secret-access-key": "hunter2"},
        {"sasl.jaas.config": 'x.Login required username="u" password="hunter2";'},
        # Rendered, it would be as literal.
        {"database.password": "{{ conn.db.password }}"},
    ],
)
def test_a_literal_secret_is_refused_and_not_shown(config: dict[str, str]) -> None:
    with pytest.raises(ConfigRefused) as refused:
        refuse_literal_secrets(config)
    assert next(iter(config)) in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_secrets_that_a_provider_of_the_workers_has_are_taken() -> None:
    refuse_literal_secrets(
        {
            "database.password": "${file:/etc/connect/db.properties:password}",
            "sasl.jaas.config": 'x.Login required username="u" password="${env:PASSWORD}";',
            "tasks.max": 2,
        }
    )


def test_keys_that_nobody_reads_are_refused_where_a_known_one_is_meant(caplog: pytest.LogCaptureFixture) -> None:
    known = {"tasks.max", "iceberg.tables", "transforms", "topics"}
    check_keys({"topics": "a", "value.converter.schemas.enable": "false", "name": "c"}, known)
    with pytest.raises(ConfigRefused, match=r"iceberg\.tabels .* Is iceberg\.tables meant\?"):
        check_keys({"iceberg.tabels": "a.b"}, known)
    with pytest.raises(ConfigRefused, match="does not belong to a transformation"):
        check_keys({"transforms.gone.type": "X"}, known)
    check_keys({"driver.something": "x"}, known)
    assert "driver.something is not a setting" in caplog.text


def test_values_are_compared_as_connect_keeps_them() -> None:
    text = as_text({"a": True, "b": 2, "c": " x "})
    assert text == {"a": "true", "b": "2", "c": "x"}
    assert changed_settings(text, {"a": "true", "b": "3", "c": "x", "name": "n", "d": "4"}) == ["b", "d"]
    with pytest.raises(ConfigRefused, match="a is a dict"):
        as_text({"a": {}})


def test_a_message_of_connect_shows_no_value_of_a_config_provider() -> None:
    config = {"port": "${file:/run/lake.properties:port}", "tasks.max": "many"}
    errors = {"port": ["Invalid value s3cret for configuration port: Not a number"], "tasks.max": ["Not a number"]}
    with pytest.raises(ConfigRefused, match=r"tasks\.max: Not a number") as caught:
        check_errors(errors, config)
    assert "s3cret" not in str(caught.value)
    assert "port: the value of ${file:/run/lake.properties:port}, which is not shown" in str(caught.value)
    check_errors({}, config)
