"""The HTTP client against a real server: certificates, credentials, redirects, and answers that are cut."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.stores.http import HttpClient, NoAnswer, tls_context
from dev.ports import LOOPBACK, free_ports
from tests.support.certificates import KEY_PASSWORD, Authority, Pair
from tests.support.loopback import LoopbackHandler, LoopbackServer

SECRET = "s3cret-4711"


class Server(LoopbackServer):
    """Answers each request with its own method, headers and body; below `/moved`, with a redirect."""

    def __init__(self, pair: Pair | None = None, authority: Authority | None = None) -> None:
        super().__init__(Handler)
        self.asked: list[tuple[str, str, str | None]] = []
        if pair:
            self.scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.certificate, pair.key, KEY_PASSWORD)
            if authority:
                context.load_verify_locations(authority.certificate)
                context.verify_mode = ssl.CERT_REQUIRED
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, *_: Any) -> None:
        """A client that trusts nobody hangs up."""


class Handler(LoopbackHandler):
    def respond(self, body: bytes) -> None:
        self.server.asked.append((self.command, self.path, self.headers["Authorization"]))
        data = json.dumps({"type": self.headers["Content-Type"], "body": body.decode()})
        if self.path == "/moved":
            self.reply(302, data, Location=f"{self.server.url}/there")
        else:
            self.reply(200, data, Content_Length=str(len(data) + 9 * (self.path == "/cut")))


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as serving:
        yield serving


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_change_is_not_redirected_since_it_would_become_a_question(server: Server, method: str) -> None:
    answer = HttpClient().send(method, f"{server.url}/moved", {}, timeout=5)
    assert (answer.status, answer.is_error) == (302, True)
    assert server.asked == [(method, "/moved", None)]


def test_a_redirect_on_the_same_host_has_no_credentials(server: Server) -> None:
    assert not HttpClient("ann", SECRET).send("GET", f"{server.url}/moved", timeout=5).is_error
    assert [(path, bool(login)) for _, path, login in server.asked] == [("/moved", True), ("/there", False)]


def test_credentials_are_those_that_are_given_alone(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine {LOOPBACK} login other password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(netrc))
    HttpClient().send("GET", f"{server.url}/a", timeout=5)
    HttpClient("ann", "pw", "t").send("GET", f"{server.url}/b", timeout=5)
    HttpClient("ann", "pä").send("GET", f"{server.url}/c", timeout=5)
    assert [login for *_, login in server.asked] == [None, "Bearer t", "Basic YW5uOnDDpA=="]


@pytest.mark.parametrize("token", [f"{SECRET}\n", f"{SECRET}\r\nX: y", f"{SECRET}\x00"])
def test_a_token_that_cannot_be_sent_stays_secret(server: Server, token: str) -> None:
    with pytest.raises(NoAnswer, match="the token has a line break") as caught:
        HttpClient(token=token).send("GET", server.url, timeout=5)
    assert SECRET not in str(caught.value) + repr(caught.value.reason)
    assert server.asked == []


def test_a_value_goes_as_json_and_a_file_as_a_form(server: Server) -> None:
    found = HttpClient().send("PUT", server.url, {"a": [1]}, timeout=5).json()
    assert (found["type"], json.loads(found["body"])) == ("application/json", {"a": [1]})
    assert HttpClient().send("PUT", server.url, timeout=5).json() == {"type": "application/json", "body": ""}
    files = {"jarfile": ("a.jar", b"content", "application/x-java-archive")}
    form = HttpClient().send("POST", server.url, files=files, timeout=5).json()
    assert form["type"].startswith("multipart/form-data; boundary=")
    assert 'name="jarfile"; filename="a.jar"\r\nContent-Type: application/x-java-archive\r\n\r\ncontent' in form["body"]


def test_the_reason_is_the_innermost_error_and_not_one_that_is_handled(server: Server) -> None:
    (port,) = free_ports(1)
    try:
        raise KeyError("another")
    except KeyError:
        with pytest.raises(NoAnswer, match=r"^\[Errno \d+\] Connection refused$"):
            HttpClient().send("GET", f"http://{LOOPBACK}:{port}", timeout=5)
    with pytest.raises(NoAnswer, match="IncompleteRead"):
        HttpClient().send("GET", f"{server.url}/cut", timeout=5)
    with pytest.raises(NoAnswer, match="ftp"):
        HttpClient().send("GET", "ftp://host/", timeout=5)


def test_a_server_that_is_silent_is_given_up(server: Server) -> None:
    silent = ThreadingHTTPServer((LOOPBACK, 0), Handler)  # It listens, and nobody serves.
    with silent, pytest.raises(NoAnswer, match="timed out"):
        HttpClient().send("GET", f"http://{LOOPBACK}:{silent.server_port}", timeout=0.2)


def test_certificates_are_those_of_the_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, other = Authority(tmp_path / "known"), Authority(tmp_path / "other")
    # What the environment trusts is of no matter where an authority is given.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(known.certificate))
    pair, client = known.sign("server", address=LOOPBACK), known.sign("client")
    with Server(pair, known) as server:
        own = tls_context(str(known.certificate), str(client.certificate), str(client.key), KEY_PASSWORD)
        assert HttpClient(tls=own).send("GET", server.url, timeout=5).status == 200
        for tls in (None, tls_context(str(other.certificate))):
            with pytest.raises(NoAnswer) as caught:
                HttpClient(tls=tls).send("GET", server.url, timeout=5)
            assert isinstance(caught.value.reason, ssl.SSLCertVerificationError)
        with pytest.raises(NoAnswer):
            HttpClient(tls=tls_context(str(known.certificate))).send("GET", server.url, timeout=5)
    assert len(server.asked) == 1


def test_proxies_of_the_environment_are_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    HttpClient().send("GET", "http://registry.invalid/subjects", timeout=5)
    assert [path for _, path, _ in server.asked] == ["http://registry.invalid/subjects"]
