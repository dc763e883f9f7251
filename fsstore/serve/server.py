"""The server of stores: places by name, tokens and origins.  `answer` decides what is answered.

It listens on this machine only, unless a host is given; then it wants a token or the word that everybody may read.
There is nothing to be written.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from fsstore.context.context import Context, context_of
from fsstore.dataset.source import store_spec
from fsstore.errors import NotFoundError, StoreError
from fsstore.filesystem.view import open_view
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.spec.opening import open_kv
from fsstore.runtime import execution
from fsstore.serve.answer import Answer, answer, path_of
from fsstore.serve.listener import HttpAnswers, Listener
from fsstore.serve.neuroglancer import neuroglancer_pages

__all__ = ["Server", "serve"]


class Server(Listener):
    """A server of stores by name; `url` is where it is, with the token if it has one."""

    def __init__(self, stores: Mapping[str, KvPrefix], host: str, port: int, token: str) -> None:
        self.stores, self.token = dict(stores), token
        super().__init__(host, port, _Handler)

    @property
    def url(self) -> str:
        """Where the server is: a URL that can be opened."""
        return f"{self.origin}/" + (f"?token={self.token}" if self.token else "")

    def neuroglancer_pages(self) -> dict[str, str]:
        """Return addresses by path that open Neuroglancer with what is served and it can show.

        There are none for a server that wants a token, which its pages have no way to send.
        """
        if self.token:
            return {}
        found: dict[str, str] = {}
        for name, store in self.stores.items():
            prefix = f"{name}/" if name else ""
            pages = execution.call(neuroglancer_pages(store, f"{self.origin}/{prefix}"))
            found |= {f"{prefix}{path}".rstrip("/"): page for path, page in pages.items()}
        return found


class _Handler(HttpAnswers):
    server: Server
    shared_headers: ClassVar[dict[str, str]] = {
        **HttpAnswers.shared_headers,
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Expose-Headers": "Content-Range, ETag, Content-Length, Accept-Ranges",
        "Cache-Control": "no-cache",
    }

    preflight: ClassVar[Answer] = Answer(
        204,
        {
            "Access-Control-Allow-Headers": "Range, If-Match, If-None-Match, If-Range",
            "Access-Control-Allow-Private-Network": "true",  # pages of other sites may read, as from any public server
        },
    )

    def answered(self) -> Answer:
        refused = self._refused()
        if refused is not None:
            return refused
        path = path_of(self.path)
        if path is None:
            return Answer(400, {"Content-Type": "text/plain"}, b"A path names a key and does not climb.\n")
        name, slash, key = path.partition("/")
        if "" in self.server.stores:
            store, key = self.server.stores[""], path
        elif not name:
            return self._index()
        elif name not in self.server.stores:
            return Answer(404, {"Content-Type": "text/plain"}, b"Nothing is served under this name.\n")
        elif not slash:
            return Answer(301, {"Location": f"{name}/"})
        else:
            store = self.server.stores[name]
        try:
            named = {name.title(): value for name, value in self.headers.items()}  # browsers write them small
            return execution.call(answer(store, key, named, head=self.command == "HEAD"))
        except NotFoundError:
            return Answer(404)
        except StoreError as error:
            return Answer(502, {"Content-Type": "text/plain"}, f"{error}\n".encode("utf-8", "replace"))

    def _index(self) -> Answer:
        import json

        return Answer(
            200, {"Content-Type": "application/json"}, json.dumps(sorted(self.server.stores)).encode()
        )

    def _refused(self) -> Answer | None:
        """Return the answer to a request that may not be answered: for another host, or without the token."""
        if not self.names_this_host:
            return Answer(421, {"Content-Type": "text/plain"}, b"This server is not reached by that name.\n")
        if not self.server.token:
            return None
        given = parse_qs(urlsplit(self.path).query).get("token", [""])[0]
        authorization = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if any(
            hmac.compare_digest(each.encode(), self.server.token.encode()) for each in (given, authorization)
        ):
            return None
        return Answer(401, {"WWW-Authenticate": "Bearer"}, b"This server wants its token.\n")


def serve(
    places: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    zarr_format: int = 3,
    token: str | None = None,
    public: bool = False,
    context: Context | None = None,
) -> Server:
    """Return a server that shows places as plain zarr stores over HTTP; `serve_forever` runs it, `shutdown` ends it.

    `places` is one place, or a dictionary of places by name, each below its name.  Whatever the format is, it is shown
    as zarr of `zarr_format`.  Port 0 takes any that is free.  A `host` that other machines can reach wants a `token`,
    one is made up if there is none, or `public=True`.
    """
    named = places if isinstance(places, dict) and "driver" not in places else {"": places}
    if any(not name.isidentifier() and name for name in named):
        raise ValueError(f"Names of what is served are plain words, not {sorted(named)}")
    chosen = context_of(context)
    stores = {name: execution.call(_open(place, chosen, zarr_format)) for name, place in named.items()}
    near = ipaddress.ip_address(host).is_loopback if host != "localhost" else True
    secret = token or ("" if near or public else secrets.token_urlsafe(16))
    return Server(stores, "127.0.0.1" if host == "localhost" else host, port, secret)


async def _open(place: Any, context: Context, zarr_format: int) -> KvPrefix:
    opened = await open_view(await open_kv(store_spec(place), context), context, zarr_format=zarr_format)
    return opened.as_directory().prefix
