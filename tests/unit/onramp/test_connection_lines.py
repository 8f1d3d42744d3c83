"""Connections as lines of a shell: what Airflow reads back, without a secret."""

from __future__ import annotations

import json
import shlex

from airflow_lakestream.onramp.dag_file import export_line, secret_values, without_secrets

KAFKA = {
    "bootstrap.servers": "broker:9092",
    "sasl.username": "me",
    "sasl.password": "pass-4711",
    "schema.registry.basic.auth.user.info": "me:registry-4711",
    "ssl.key.pem": "-----BEGIN 4711",
}
CATALOG = {
    "type": "sql",
    "uri": "postgresql+psycopg2://me:db-4711@host/db",
    "s3.secret-access-key": "s3-4711",
    "s3.access-key-id": "id-4711",
    "warehouse": "s3://it's/here",
}


def test_the_line_is_a_connection_with_placeholders_for_secrets() -> None:
    for settings in (KAFKA, CATALOG):
        line = export_line(
            "Mine", {"conn_type": "kafka", "host": "h", "password": "pw-4711", "port": None, "extra": settings}
        )
        assert "4711" not in line
        [word, assigned] = shlex.split(line)
        name, _, value = assigned.partition("=")
        assert (word, name) == ("export", "AIRFLOW_CONN_MINE")
        found = json.loads(value)
        assert (found["conn_type"], found["host"], found["password"]) == ("kafka", "h", "<password>")
        assert "port" not in found
        assert found["extra"].keys() == settings.keys()
    assert found["extra"]["warehouse"] == "s3://it's/here"
    assert found["extra"]["uri"] == "postgresql+psycopg2://<user>:<password>@host/db"


def test_secrets_are_taken_out_of_any_text() -> None:
    secrets = secret_values(KAFKA, CATALOG, None, {"nested": {"token": "nested-4711"}})
    said = "pass-4711 me:registry-4711 registry-4711 db-4711 s3-4711 nested-4711 broker:9092 id-4711"
    shown = without_secrets(said, secrets)
    assert "4711" not in shown
    assert "broker:9092" in shown
