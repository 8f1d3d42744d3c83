"""The HTTP client of registry, Connect and Flink: credentials, certificates, redirects, time-outs, errors, JSON."""

from __future__ import annotations

import base64
import functools
import json
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies

from airflow_lakestream.exceptions import LakestreamError, Transient

# The most bytes of an answer that are read.
_MOST_BYTES = 64 << 20


class NoAnswer(LakestreamError, Transient):
    """Error of a request without an answer; `reason` is the innermost error, of the network or of TLS.

    :param handled: the error that the caller handles at the moment: it is in the chain of errors, but not a reason.
    """

    def __init__(self, error: BaseException, handled: BaseException | None = None) -> None:
        while (inner := error.__cause__ or error.__context__) is not None and inner is not handled:
            error = inner
        self.reason = error
        super().__init__(str(error))


@dataclass(frozen=True)
class HttpAnswer:
    """Status and body of an answer."""

    status: int
    body: bytes

    @property
    def is_error(self) -> bool:
        """Whether the request failed; a redirect that is not followed is an error."""
        return self.status >= 300

    def json(self) -> Any:
        """Return the value of a body in JSON. Raises ValueError."""
        return json.loads(self.body)


class HttpClient:
    """Client of an HTTP server, with username and password, or a token, or neither.

    Each request has a connection of its own, since forked processes cannot share a connection.

    :param tls: trusted certificates (default: the system's), and perhaps the client's own certificate.
    """

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._authorization = f"Bearer {token}" if token else ""
        if username is not None and not token:
            self._authorization = f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"

    def send(
        self,
        method: str,
        url: str,
        body: Any = None,
        *,
        timeout: float,
        accept: str = "application/json",
        files: Mapping[str, tuple[str, bytes, str]] | None = None,
    ) -> HttpAnswer:
        """Send a request; return the answer, of any status. Raises NoAnswer.

        Only a GET follows redirects, without the credentials; another request would become a GET.
        :param body: a value that is sent as JSON.
        :param timeout: seconds for the connection, and for each part of the answer.
        :param files: by field of a form, the name, content and type of a file.
        """
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        if files is None:
            headers["Content-Type"] = "application/json"
        handled = sys.exception()
        try:
            with (
                _OwnSession(self._tls or _system_tls()) as session,
                session.request(
                    method,
                    url,
                    headers=headers,
                    json=body,
                    files=files,
                    auth=self._authorize,
                    timeout=timeout,
                    allow_redirects=method == "GET",
                    stream=True,
                    proxies=get_environ_proxies(url),
                ) as answer,
            ):
                content = bytearray()
                for part in answer.iter_content(1 << 16):
                    content += part
                    if len(content) > _MOST_BYTES:
                        break
                return HttpAnswer(answer.status_code, bytes(content))
        except (OSError, ValueError, HTTPException) as e:
            raise NoAnswer(e, handled) from None

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        # Set here, since requests would otherwise search a login in the URL and in a file .netrc. Checked here, since
        # the library's own error would show the header.
        if not self._authorization.isprintable():
            raise ValueError("the token has a line break or another control character")
        if self._authorization:
            request.headers["Authorization"] = self._authorization
        return request


def tls_context(
    ca_file: str | None, cert_file: str | None = None, key_file: str | None = None, key_password: str | None = None
) -> ssl.SSLContext:
    """Return the context of trusted certificates (default: the system's) and a client's certificate. Raises OSError."""
    context = ssl.create_default_context(cafile=ca_file or None)
    if cert_file:
        context.load_cert_chain(cert_file, key_file, key_password)
    return context


@functools.cache
def _system_tls() -> ssl.SSLContext:
    return tls_context(None)


class _OwnSession(requests.Session):
    """A session with the certificates of a context, without settings from the environment."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__()
        self.trust_env = False
        self.mount("https://", _ContextAdapter(tls))

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Remove the credentials from the request to the target of a redirect, even on the same host."""
        prepared_request.headers.pop("Authorization", None)


class _ContextAdapter(HTTPAdapter):
    """Connections with the certificates of a context alone: requests would add the authorities of `certifi`."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Use the context for direct connections."""
        super().init_poolmanager(*args, **options, ssl_context=self._tls)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        """Use the context for connections through a proxy."""
        return super().proxy_manager_for(proxy, **options, ssl_context=self._tls)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Leave the certificates of the context as they are."""
