"""The server of one page, and who may ask it.

It listens on this machine only.  Everything is below a random token in the path, so no other page can name it.  A
request must name the host by an address or as `localhost`, which a page under a name of its own cannot; a question must
come from the page itself: with its origin or none, and with a header that pages of other sites may not send.  The page
runs its own scripts and nothing else, loads nothing from elsewhere, and tells nobody its address.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import unquote

from fsstore.runtime import execution
from fsstore.serve.answer import Answer, said
from fsstore.serve.listener import HttpRequest, Listener
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

    shared_headers: ClassVar[Mapping[str, str]] = {
        **Listener.shared_headers,
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }

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
        super().__init__("127.0.0.1", port)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"{self.origin}/{self.token}/"

    async def answered(self, request: HttpRequest) -> Answer:
        """Return what the page or its question is answered."""
        path, _, query = request.target.partition("?")
        token, slash, name = path[1:].partition("/")
        if not self.is_named(request.headers.get("Host", "")):
            return said(421, "This server is not reached by that name")
        if not hmac.compare_digest(unquote(token).encode("utf-8", "replace"), self.token.encode()):
            return said(403, "This page has an address of its own; the command that serves it prints it")
        if request.method == "OPTIONS":  # pages of other sites may send nothing
            return said(405, "Only the page itself may ask", {"Allow": "GET, HEAD"})
        if not slash:
            return Answer(301, {"Location": f"/{self.token}/"})
        if _is_from_elsewhere(request.headers):
            return said(403, "Only the page itself may ask")
        if name.startswith("api/"):
            return await self._question(name.removeprefix("api/"), query, request.headers)
        found = page_file(unquote(name) or "index.html")
        if found is None:
            return said(404, "There is no such file")
        return Answer(200, {**found.headers, "Content-Security-Policy": self.policy}, found.body)

    async def _question(self, route: str, query: str, headers: Mapping[str, str]) -> Answer:
        if MARK not in headers:
            return said(403, "Only the page itself may ask")
        if route == "title":
            kind = {"Content-Type": "text/plain; charset=utf-8"}
            return Answer(200, kind, self.title.encode("utf-8", "replace"))
        asked = (self.subject, route, query, self.limits)
        return await execution.offload(routed, *asked, kind="request", limit=READS_AT_ONCE)


def _is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Return whether a request says that another site makes it."""
    origin = headers.get("Origin")
    if origin is not None and origin != f"http://{headers.get('Host')}":
        return True
    site, mode = headers.get("Sec-Fetch-Site", "none"), headers.get("Sec-Fetch-Mode", "navigate")
    return site not in ("none", "same-origin") and mode != "navigate"
