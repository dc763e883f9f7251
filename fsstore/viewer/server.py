"""The server of one page, and who may ask it.

It listens on this machine only.  Everything is below a random token in the path, so no other page can name it.  A
request must name the host by an address or as `localhost`, which a page under a name of its own cannot; a question must
come from the page itself: with its origin or none, and with a header that pages of other sites may not send.  The page
runs its own scripts and nothing else, loads nothing from elsewhere, and tells nobody its address.
"""

from __future__ import annotations

import hmac
import secrets
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from fsstore.runtime import execution
from fsstore.serve.answer import Answer
from fsstore.serve.listener import HttpAnswers, Listener
from fsstore.viewer.picture import PictureLimits
from fsstore.viewer.routes import page_file, routed
from fsstore.viewer.subject import Subject
from fsstore.viewer.tuning import READS_AT_ONCE

__all__ = ["MARK", "PageServer"]

MARK = "Fsstore-View"
"""The header of every question of the page: other sites would have to ask first whether they may send it."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors {frames}"
)


class PageServer(Listener):
    """The server of a page about one subject.  `framed` lets notebooks show the page inside of theirs."""

    most_connections = 64

    def __init__(
        self,
        subject: Subject,
        *,
        title: str = "",
        port: int = 0,
        framed: bool = False,
        limits: PictureLimits | None = None,
    ) -> None:
        self.subject, self.title, self.limits = subject, title, limits or PictureLimits()
        self.token = secrets.token_urlsafe(24)
        self.policy = _POLICY.format(frames="*" if framed else "'none'")
        super().__init__("127.0.0.1", port, _PageConnection)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"{self.origin}/{self.token}/"


class _PageConnection(HttpAnswers):
    server: PageServer
    shared_headers: ClassVar[dict[str, str]] = {
        **HttpAnswers.shared_headers,
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }

    def answered(self) -> Answer:
        """Return what the page or its question is answered."""
        parts = urlsplit(self.path)
        _, _, rest = parts.path.partition("/")
        token, slash, name = unquote(rest).partition("/")
        if not self.names_this_host:
            return _plain(421, b"This server is not reached by that name.\n")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            return _plain(
                403, b"This page has an address of its own; the command that serves it prints it.\n"
            )
        if not slash:
            return Answer(301, {"Location": f"/{self.server.token}/"})
        if self._is_from_elsewhere():
            return _plain(403, b"Only the page itself may ask.\n")
        if name.startswith("api/"):
            return self._question(name.removeprefix("api/"), parts.query)
        found = page_file(name or "index.html")
        if found is None:
            return _plain(404, b"There is no such file.\n")
        return Answer(200, {**found.headers, "Content-Security-Policy": self.server.policy}, found.body)

    def _is_from_elsewhere(self) -> bool:
        """Return whether the request says that another site makes it."""
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{self.headers.get('Host')}":
            return True
        site, mode = (
            self.headers.get("Sec-Fetch-Site", "none"),
            self.headers.get("Sec-Fetch-Mode", "navigate"),
        )
        return site not in ("none", "same-origin") and mode != "navigate"

    def _question(self, route: str, query: str) -> Answer:
        if self.headers.get(MARK) is None:
            return _plain(403, b"Only the page itself may ask.\n")
        if route == "title":
            return Answer(
                200,
                {"Content-Type": "text/plain; charset=utf-8"},
                self.server.title.encode("utf-8", "replace"),
            )
        asked = (self.server.subject, route, query, self.server.limits)
        return execution.submit(routed, *asked, kind="request", limit=READS_AT_ONCE).result()


def _plain(status: int, text: bytes) -> Answer:
    return Answer(status, {"Content-Type": "text/plain; charset=utf-8"}, text)
