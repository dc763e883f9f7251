"""`view`: the page for an array, a group or a place, as programs and notebooks open it."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import Any

from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context
from fsstore.dataset.group import Group
from fsstore.errors import StoreError
from fsstore.job.ends import opened_source
from fsstore.runtime import execution
from fsstore.runtime.pool import begin_thread
from fsstore.viewer.server import PageServer
from fsstore.viewer.subject import Subject

__all__ = ["View", "page_server", "view"]

_CACHE = {"cache_pool": {"total_bytes_limit": 256_000_000}}  # what was seen is not read again


class View:
    """A page that is served until it is closed, or the process ends.  `url` is where; a notebook shows it."""

    __slots__ = ("_server", "height")

    def __init__(self, server: PageServer, height: int) -> None:
        self._server, self.height = server, height

    @property
    def url(self) -> str:
        """Where the page is; only browsers on this machine reach it."""
        return self._server.url

    def close(self) -> None:
        """Stop serving the page."""
        self._server.shutdown()
        self._server.server_close()

    def __repr__(self) -> str:
        """Return where the page is."""
        return f"<View at {self.url}>"

    def _repr_html_(self) -> str:
        """Return the page as a frame of a notebook."""
        style = "border:1px solid rgba(128,128,128,.35);border-radius:8px"
        return (
            f"<iframe src='{escape(self.url, quote=True)}' width='100%' height='{self.height}' style='{style}'"
            f" title='fsstore'></iframe>"
        )


def page_server(
    place: Any, *, context: Context | None = None, port: int = 0, framed: bool = False
) -> PageServer:
    """Return the server of the page for an array, a group, or what stands at a place; `serve_forever` runs it."""
    chosen = context or Context(_CACHE)
    opened = execution.call(opened_source(place, chosen))
    return PageServer(Subject(opened, chosen), title=_title(opened), port=port, framed=framed)


def _title(opened: TensorStore | Group) -> str:
    try:
        return str(opened.kvstore.url if isinstance(opened, Group) else opened.url)
    except StoreError:  # arrays of live objects have no URL
        return "array"


def view(place: Any, *, port: int = 0, height: int = 720) -> View:
    """Serve the page for an array, a group or a place from a thread, and return where it is."""
    server = page_server(place, port=port, framed=True)
    begin_thread(partial(server.serve_forever, 0.1), "fsstore-view")
    return View(server, height)
