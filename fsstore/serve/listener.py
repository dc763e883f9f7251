"""HTTP on one address: what servers of this library share, whatever they answer.

A listener has a thread for each connection, as many as it allows; later ones are told so.  A reader who is slower
than the timeout between two packets is cut off.  A request must name the host it was sent to by an address or as
`localhost`, so that a page of another site cannot reach the server under a name of its own.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

from fsstore.runtime import fork
from fsstore.serve.answer import Answer
from fsstore.serve.tuning import CONNECTIONS, SILENT_S

__all__ = ["HttpAnswers", "Listener", "is_plain_host"]

_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


class Listener(ThreadingHTTPServer):
    """A server on one address."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256
    most_connections = CONNECTIONS

    def __init__(self, host: str, port: int, handler: type[HttpAnswers]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._lock, self._open = fork.lock(), 0
        super().__init__((host, port), handler)

    @property
    def open_connections(self) -> int:
        """How many connections there are, those that are about to be told that there are too many included."""
        return self._open

    @property
    def origin(self) -> str:
        """Scheme, address and port."""
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}"

    def server_bind(self) -> None:
        """Bind without asking a name server for the name of the host."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to answer a connection, or say that there are too many."""
        with self._lock:
            self._open += 1
            busy = self._open > self.most_connections
        if not busy:
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.setblocking(False)
            request.send(_BUSY)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with self._lock:
            self._open -= 1
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that ended early."""


class HttpAnswers(BaseHTTPRequestHandler):
    """One connection, which may bring several requests, all of them to read."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fsstore", ""
    timeout = SILENT_S
    disable_nagle_algorithm: ClassVar[bool] = True
    wbufsize = -1
    shared_headers: ClassVar[dict[str, str]] = {"X-Content-Type-Options": "nosniff"}

    preflight: ClassVar[Answer] = Answer(405, {"Allow": "GET, HEAD"})

    def answered(self) -> Answer:
        """Return what is answered to the request."""
        raise NotImplementedError  # every server has its own

    def do_GET(self) -> None:
        """Answer with headers and body."""
        self.send(self.answered(), body=True)

    def do_HEAD(self) -> None:
        """Answer with headers."""
        self.send(self.answered(), body=False)

    def do_OPTIONS(self) -> None:
        """Say which headers pages of other sites may send: none, unless `preflight` allows some."""
        self.send(self.preflight, body=False)

    @property
    def names_this_host(self) -> bool:
        """Whether the request says that it was sent to an address or to this machine."""
        try:
            return is_plain_host(urlsplit(f"//{self.headers.get('Host', '')}").hostname or "")
        except ValueError:  # brackets that do not match
            return False

    def send(self, found: Answer, *, body: bool) -> None:
        """Send an answer; one who has gone away is not told."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.send_response(found.status)
            for name, value in {**self.shared_headers, **found.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(found.body) if found.length is None else found.length))
            self.end_headers()
            if body:
                self.wfile.write(found.body)
            self.wfile.flush()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  # the name of the base class
        """Say nothing: URLs may hold the token."""


def is_plain_host(host: str) -> bool:
    """Return whether a host is an address or `localhost`: no name that somebody else may have given it."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True
