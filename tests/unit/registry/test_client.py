"""The registry client against a server that answers as told: what is asked, how often, and which error comes of it."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_lakestream.exceptions import InvalidArgument, Terminal, Transient
from airflow_lakestream.registry import client as client_module
from airflow_lakestream.registry.client import RegistryClient, RegistryRefused, RegistryUnavailable, SchemaNotFound
from airflow_lakestream.registry.config import RegistryConfig, refuse_secrets
from dev.ports import LOOPBACK, free_ports
from tests.support.loopback import LoopbackHandler, LoopbackServer

ABSENT = {"error_code": 40403, "message": "Schema not found"}


class Answering(LoopbackServer):
    """Gives the answers it was given for a path, one after the other, the last one again and again."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, str | None]] = []

    def client(self, **settings: Any) -> RegistryClient:
        return RegistryClient(RegistryConfig(self.url, **settings))


class Handler(LoopbackHandler):
    def respond(self, body: bytes) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        answers = self.server.answers.get(self.path, [(404, ABSENT)])
        status, said = answers.pop(0) if len(answers) > 1 else answers[0]
        self.reply(status, said, **({"Location": said} if status == 302 else {}))


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering() as answering:
        yield answering


def test_a_schema_is_asked_for_once_by_all_clients_of_a_process(server: Answering) -> None:
    server.answers["/schemas/ids/7"] = [(200, {"schema": '"string"'})]
    first = server.client().schema(7)
    assert (first.id, first.kind, first.text, first.references) == (7, "AVRO", '"string"', ())
    assert server.client().schema(7) == first
    assert len(server.asked) == 1


def test_references_come_before_those_who_need_them_and_once(server: Answering) -> None:
    def to(name: str) -> dict[str, Any]:
        return {"name": name, "subject": f"s/{name}", "version": 1}

    server.answers["/schemas/ids/8"] = [(200, {"schema": "top", "references": [to("b"), to("a")]})]
    server.answers["/subjects/s%2Fb/versions/1"] = [(200, {"id": 2, "schema": "b", "references": [to("a")]})]
    server.answers["/subjects/s%2Fa/versions/1"] = [(200, {"id": 1, "schema": "a"})]
    schema = server.client().schema(8)
    assert [(name, needed.text) for name, needed in schema.all_references()] == [("a", "a"), ("b", "b")]


def test_an_id_that_is_not_there_is_no_failure_of_the_registry_and_asked_for_once(server: Answering) -> None:
    for _ in range(2):
        with pytest.raises(SchemaNotFound, match=f"Schema 9 is not in the registry {server.url}"):
            server.client().schema(9)
    assert len(server.asked) == 1


def test_a_failure_that_passes_is_asked_again(server: Answering) -> None:
    server.answers["/schemas/ids/10"] = [(503, "busy"), (200, {"schema": '"int"', "schemaType": "AVRO"})]
    assert server.client().schema(10).text == '"int"'


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_failure_that_stays_is_transient(server: Answering, status: int) -> None:
    server.answers["/schemas/ids/11"] = [(status, {"error_code": 50001, "message": "store is gone"})]
    with pytest.raises(
        RegistryUnavailable, match=f"{server.url}/schemas/ids/11 with {status}: store is gone"
    ) as caught:
        server.client(retries=1).schema(11)
    assert isinstance(caught.value, Transient)
    assert len(server.asked) == 2


def test_a_registry_that_is_down_is_transient() -> None:
    (port,) = free_ports(1)
    with pytest.raises(RegistryUnavailable, match=f"could not be asked for http://{LOOPBACK}:{port}/schemas/ids/1"):
        RegistryClient(RegistryConfig(f"http://{LOOPBACK}:{port}", retries=0)).schema(1)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_terminal_and_stay_secret(server: Answering, status: int) -> None:
    server.answers["/schemas/ids/12"] = [(status, {"error_code": status, "message": "no"})]
    client = server.client(username="ann", password="s3cret")
    with pytest.raises(RegistryRefused, match="Check the credentials") as caught:
        client.schema(12)
    assert isinstance(caught.value, Terminal)
    assert "s3cret" not in str(caught.value) + repr(client.config)
    assert len(server.asked) == 1


def test_a_server_that_is_no_registry_is_terminal_and_says_how_the_url_should_be(server: Answering) -> None:
    server.answers["/schemas/ids/13"] = [(404, "<html>not here</html>")]
    with pytest.raises(RegistryRefused, match="/apis/ccompat/v7"):
        server.client().schema(13)
    server.answers["/schemas/ids/14"] = [(200, "<html>welcome</html>")]
    with pytest.raises(RegistryRefused, match="did not answer as a schema registry does"):
        server.client().schema(14)


def test_credentials_go_to_the_registry_and_not_where_it_redirects_to(server: Answering) -> None:
    server.answers["/schemas/ids/15"] = [(302, f"http://localhost:{server.server_port}/elsewhere")]
    server.answers["/elsewhere"] = [(200, {"schema": '"int"'})]
    assert server.client(username="ann", password="s3cret").schema(15).text == '"int"'
    basic = "Basic " + base64.b64encode(b"ann:s3cret").decode()
    assert server.asked == [("/schemas/ids/15", basic), ("/elsewhere", None)]


def test_a_token_goes_as_bearer_also_from_a_pickled_client(server: Answering) -> None:
    server.answers["/schemas/ids/16"] = [(200, {"schema": '"int"'})]
    pickle.loads(pickle.dumps(server.client(token="t0ken"))).schema(16)
    assert server.asked == [("/schemas/ids/16", "Bearer t0ken")]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"url": "registry:8081"}, "not one of http or https"),
        ({"url": "http://ann:s3cret@registry"}, "holds credentials"),
        ({"url": "http://r", "username": "ann"}, "a username needs a password"),
        ({"url": "http://r?key=4711"}, "a query or a fragment"),
        ({"url": "http://r#4711"}, "a query or a fragment"),
        ({"url": {"http": "r"}}, "its url is a dict, not a text"),
        ({"url": "http://r", "username": "ann", "password": "x", "token": "y"}, "both a token and a username"),
        ({"url": "http://r", "key_file": "k"}, "a key without a certificate"),
        ({"url": "http://r", "timeout": 0}, "timeout has to be above 0"),
        ({"url": "http://r", "user": "ann"}, "unknown settings user"),
        ({"username": "ann"}, "its url is missing"),
    ],
)
def test_settings_that_can_not_work_are_said_at_once(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem) as caught:
        RegistryConfig.parse(settings)
    assert "s3cret" not in str(caught.value)


def test_certificates_that_are_not_there() -> None:
    with pytest.raises(InvalidArgument, match="its certificates can't be loaded"):
        RegistryClient(RegistryConfig("https://registry", ca_file="/nowhere/ca.pem"))


def test_ids_that_nobody_knows_are_asked_for_so_often_and_no_more(
    server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_UNKNOWN_AT_ONCE", 3)
    monkeypatch.setattr(client_module, "_UNKNOWN_PER_SECOND", 0.0)
    server.answers["/schemas/ids/7"] = [(200, {"schema": '"long"'})]
    client = server.client()
    assert client.schema(7).text == '"long"'
    reasons = []
    for schema_id in range(1000, 1010):
        with pytest.raises(SchemaNotFound) as caught:
            client.schema(schema_id)
        reasons.append(str(caught.value))
    assert len(server.asked) == 1 + 3
    assert ["is not in the registry" in reason for reason in reasons] == [True] * 3 + [False] * 7
    assert "Schema 1009 was not asked for" in reasons[-1]
    # What is known stays known, and time heals.
    assert client.schema(7).text == '"long"'
    monkeypatch.setattr(client_module, "_UNKNOWN_PER_SECOND", 1e9)
    server.answers["/schemas/ids/1009"] = [(200, {"schema": '"int"'})]
    assert client.schema(1009).text == '"int"'


def test_a_registry_as_the_settings_of_a_kafka_client_name_it() -> None:
    assert RegistryConfig.from_client_settings({"bootstrap.servers": "broker:9092"}) is None
    found = RegistryConfig.from_client_settings(
        {
            "schema.registry.url": "https://registry:8081",
            "schema.registry.basic.auth.credentials.source": "USER_INFO",
            "schema.registry.basic.auth.user.info": "me:my:secret",
            "schema.registry.ssl.ca.location": "/etc/ca.pem",
        }
    )
    assert found == RegistryConfig("https://registry:8081", "me", "my:secret", ca_file="/etc/ca.pem")
    assert "secret" not in repr(found)
    with pytest.raises(InvalidArgument, match=r"schema\.registry\.urls.*schema\.registry\.url"):
        RegistryConfig.from_client_settings({"schema.registry.urls": "http://registry"})


@pytest.mark.parametrize(
    "value",
    [
        {"url": "http://registry", "username": "me", "password": "secret-4711"},
        {"url": "http://registry", "token": "secret-4711"},
        '{"url": "http://registry", "key_password": "secret-4711"}',
        "http://me:secret-4711@registry",
        {"url": "http://me:secret-4711@registry"},
        {"url": "http://registry?apikey=secret-4711"},
        {"url": "http://registry/#secret-4711"},
        "http://registry/apis/ccompat/v7?X-Key=secret-4711&v=1",
        "me:secret-4711@registry:8081",
        "registry?key=secret-4711",
        {"url": "http://registry", "headers.Authorization": "Basic secret-4711"},
        {"url": "http://registry", "Headers": {"x-api-key": "secret-4711"}},
        {"url": "http://registry", "AUTHORIZATION": "Bearer secret-4711"},
        {"url": "http://registry", "basic.auth.user.info": "me:secret-4711"},
        {"url": "http://registry", "Password": "secret-4711"},
        # What templates render is shown as well.
        {"url": "http://registry", "token": "{{ conn.registry.password }}"},
        "http://me:secret-4711@{{ var.value.host }}",
        '{"url": "{{ var.value.registry }}?apikey=secret-4711"}',
        "https://{{ conn.r.login }}:{{ conn.r.password }}@registry",
    ],
)
def test_secrets_have_no_place_in_an_argument(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="Put them into an Airflow connection") as caught:
        refuse_secrets(value)
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        "http://registry",
        "https://registry:8081/apis/ccompat/v7",
        {"url": "http://registry", "timeout": 5},
        {"url": "http://registry", "ca_file": "/ca.pem", "cert_file": "/c.pem", "key_file": "/k.pem", "retries": 1},
        "registry_conn",
        "{{ x }}",
        "{{ 'a' if x else 'b@c?d' }}",
        "https://{{ var.value.host }}:8081",
        {"url": "{{ var.value.registry }}"},
        '{"url": "http://registry", "timeout": {{ params.timeout }}}',
    ],
)
def test_what_holds_no_secret_is_no_matter(value: Any) -> None:
    refuse_secrets(value)


def test_settings_as_templates_render_them() -> None:
    assert RegistryConfig.parse('{"url": "http://registry", "timeout": "5", "retries": "0"}') == RegistryConfig(
        "http://registry", timeout=5.0, retries=0
    )
    with pytest.raises(InvalidArgument, match="timeout is not a number"):
        RegistryConfig.parse({"url": "http://registry", "timeout": "soon"})
    with pytest.raises(InvalidArgument, match="it is a int"):
        RegistryConfig.parse(7)
