"""The server of stores: places by name, tokens, origins and links; `listener.answer` reads the keys.

The server listens on this machine only, unless a host is given.  The address that it prints begins with a token, so
only its recipients can read; pages of any site may read with it.  With a list of origins, only pages of those sites may
read, and no token is needed on this machine.  A public server needs no token, and lets no page of another site read.

Nothing outside the served places is read: paths do not climb, names that begin with a dot are hidden, and symbolic
links below a directory are followed only on request.  Nothing can be written.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote as percent_encode

from fsstore.context.context import Context, context_of
from fsstore.dataset.image import described
from fsstore.dataset.place import store_spec
from fsstore.driver.auto import Node, hierarchy
from fsstore.errors import NotFoundError, PermissionDeniedError, StoreError
from fsstore.filesystem.view import open_view
from fsstore.kvstore.contract.driver import Entry, KvPrefix, Read, ReadResult
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.spec_parse import open_kv
from fsstore.runtime import execution
from fsstore.serve.listener import Answer, HttpRequest, Listener, answer, is_plain_host, path_of, said
from fsstore.values.json_value import quote

# Links that open Neuroglancer with the served arrays it can show.  Neuroglancer reads both versions of zarr, and
# OME-Zarr images in all their resolutions.  So it shows any served array with a type and codecs that it knows, even
# volumes of the precomputed format, which are served as zarr.  The page comes from its authors' site; its scripts read
# from the server.

NEUROGLANCER = "https://neuroglancer-demo.appspot.com"
"""The origin of Neuroglancer's page."""
_TYPES = frozenset(("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32"))
_TYPES_OF_VERSION_2 = frozenset(("u1", "i1", "u2", "i2", "u4", "i4", "u8", "f4"))
_CODECS = frozenset(("bytes", "transpose", "gzip", "blosc", "zstd", "crc32c", "sharding_indexed"))
_COMPRESSORS = frozenset(("blosc", "gzip", "zlib", "zstd"))
_FEWEST = 2  # dimensions: an array of one dimension is a coordinate


async def neuroglancer_pages(store: KvPrefix, url: str) -> dict[str, str]:
    """Return links by path: to images in several resolutions, and to arrays that are no level of one."""
    nodes = (await hierarchy(store)).nodes
    return {path: _page(path, f"{url}{percent_encode(path)}", nodes) for path in _shown(nodes)}


def _shown(nodes: Mapping[str, Node]) -> Iterator[str]:
    levels: set[str] = set()
    for path, node in nodes.items():
        own = [f"{node.prefix}{each}" for each in _levels(node)]
        if own and all(each in nodes and _fits(nodes[each]) for each in own):
            levels.update(own)
            yield path
    yield from (path for path, node in nodes.items() if path not in levels and _fits(node))


def _levels(node: Node) -> list[str]:
    """Return the paths of the resolutions if a group is an image, otherwise none."""
    try:
        image = described(node.attributes) if node.kind == "group" else None
    except StoreError:  # metadata in an unknown form
        return []
    return [level.path for level in image.levels] if image is not None else []


def _fits(node: Node) -> bool:
    """Return whether Neuroglancer knows the type of an array and the codecs of its chunks."""
    document = node.document
    if node.kind != "array" or len(document.get("shape", ())) < _FEWEST:
        return False
    if node.zarr_format == 3:
        return document.get("data_type") in _TYPES and _knows(document.get("codecs", ()))
    dtype, compressor = document.get("dtype"), document.get("compressor")
    known = compressor is None or compressor.get("id") in _COMPRESSORS
    return isinstance(dtype, str) and dtype[1:] in _TYPES_OF_VERSION_2 and known and not document.get("filters")


def _knows(codecs: Iterable[Any]) -> bool:
    for codec in codecs:
        named = codec if isinstance(codec, Mapping) else {"name": codec}
        if named.get("name") not in _CODECS:
            return False
        inner = named.get("configuration", {})
        if not _knows([*inner.get("codecs", ()), *inner.get("index_codecs", ())]):
            return False
    return True


def _page(path: str, url: str, nodes: Mapping[str, Node]) -> str:
    node = nodes[path]
    first = node if node.kind == "array" else nodes[f"{node.prefix}{_levels(node)[0]}"]
    dtype = first.document.get("data_type", first.document.get("dtype", ""))
    is_label = dtype in ("uint64", "<u8", ">u8")
    layer = {
        "type": "segmentation" if is_label else "image",
        "source": f"zarr{first.zarr_format}://{url.rstrip('/')}",
        "name": path.rpartition("/")[2] or "array",
    }
    state: dict[str, Any] = {"layers": [layer], "selectedLayer": {"layer": layer["name"], "visible": True}}
    if len(first.document["shape"]) == _FEWEST:
        state["layout"] = "xy"
    return f"{NEUROGLANCER}/#!{percent_encode(json.dumps(state, separators=(',', ':')))}"


_ORIGIN = re.compile(r"https?://[^/?#\s@]+\Z")
_FOR_PAGES = {
    "Access-Control-Expose-Headers": "Content-Range, ETag, Content-Length, Accept-Ranges",
    "Access-Control-Allow-Headers": "Range, If-Match, If-None-Match, If-Range",
    "Access-Control-Allow-Private-Network": "true",
}


class Server(Listener):
    """A server of stores by name; `url` is its address, with the token if it has one."""

    shared_headers: ClassVar[Mapping[str, str]] = {**Listener.shared_headers, "Cache-Control": "no-cache"}

    def __init__(
        self, stores: Mapping[str, KvPrefix], host: str, port: int, *, token: str = "", origins: Sequence[str] = ()
    ) -> None:
        self.stores, self.token, self.origins = dict(stores), token, frozenset(origins)
        super().__init__(host, port)

    @property
    def url(self) -> str:
        """The address of the server, with its token: a URL to open or to extend."""
        return f"{self.origin}/" + (f"{self.token}/" if self.token else "")

    def neuroglancer_pages(self) -> dict[str, str]:
        """Return links by path that open Neuroglancer with the served arrays it can show.

        There are none if Neuroglancer's page may not read: without a token, when its site is none of the origins.
        """
        if self._origin_for(NEUROGLANCER) is None:
            return {}
        found: dict[str, str] = {}
        for name, store in self.stores.items():
            prefix = f"{name}/" if name else ""
            pages = execution.call(neuroglancer_pages(store, f"{self.url}{prefix}"))
            found |= {f"{prefix}{path}".rstrip("/"): page for path, page in pages.items()}
        return found

    def _origin_for(self, origin: str) -> str | None:
        """Return the value of `Access-Control-Allow-Origin` for a page of `origin`, or None if it may not read."""
        if self.origins:
            return origin if origin in self.origins else None
        return "*" if self.token else None

    async def answered(self, request: HttpRequest) -> Answer:
        """Return the answer to a request."""
        if not self.is_named(request.headers.get("Host", "")):
            return said(421, "This server is not reached by that name")
        target = self._without_token(request)
        if target is None:
            return said(
                401, "This server wants its token; the address that it printed holds it", {"WWW-Authenticate": "Bearer"}
            )
        found = Answer(204) if request.method == "OPTIONS" else await self._found(target, request)
        allowed = self._origin_for(request.headers.get("Origin", ""))
        pages = {"Vary": "Origin"} if self.origins else {}
        if allowed is not None:
            pages |= {"Access-Control-Allow-Origin": allowed, **_FOR_PAGES}
        if "Vary" in found.headers and pages.get("Vary"):
            pages["Vary"] = f"{found.headers['Vary']}, Origin"
        return Answer(found.status, {**found.headers, **pages}, found.body, found.length)

    def _without_token(self, request: HttpRequest) -> str | None:
        """Return the target behind the token, or None if the token is absent or wrong."""
        if not self.token:
            return request.target
        first, slash, rest = request.target[1:].partition("/")
        if _is_same(first, self.token):
            return f"/{rest}" if slash else None
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return request.target if _is_same(given, self.token) else None

    async def _found(self, target: str, request: HttpRequest) -> Answer:
        path = path_of(target)
        if path is None:
            return said(400, "A path names a key in UTF-8, and does not climb")
        name, slash, key = path.partition("/")
        if "" in self.stores:
            store, key = self.stores[""], path
        elif not name:
            return Answer(200, {"Content-Type": "application/json"}, json.dumps(sorted(self.stores)).encode())
        elif name not in self.stores:
            return said(404, "Nothing is served under this name")
        elif not slash:
            return Answer(301, {"Location": f"{name}/"})
        else:
            store = self.stores[name]
        try:
            return await answer(store, key, request.headers, head=request.method == "HEAD")
        except StoreError as error:
            return said(_status_of(error), str(error))


def _status_of(error: StoreError) -> int:
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, PermissionDeniedError):
        return 403
    return 400 if type(error) is StoreError else 502


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _is_link(path: str) -> bool:
    return Path(path).is_symlink()


class _Inside(LocalDriver):
    """Local files below a directory, none of them reached by a symbolic link."""

    def __init__(self, files: LocalDriver, root: str) -> None:
        super().__init__(files.protocol, mapped=files.mapped, io_limit=files.io_limit, members=files.spec())
        self.meter, self._root = files.meter, root

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`; a link created during the read is noticed, too."""
        keys = {read.key for read in reads}
        self._check(keys)
        found = await super().read_many(reads)
        self._check(keys)
        return found

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range that are not links."""
        self._check([keys.common_prefix.decode("utf-8", "surrogateescape").rstrip("/")])
        async for batch in super().scan(keys):
            yield [entry for entry in batch if not _is_link(entry.key)]

    async def names(self, directory: str) -> list[str]:
        """Return the names in a directory, without links."""
        self._check([directory.rstrip("/")])
        found = await super().names(directory)
        return [name for name in found if not _is_link(f"{directory}/{name}")]

    def _check(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._root.rstrip("/")
            for part in key.removeprefix(self._root).strip("/").split("/"):
                path = f"{path}/{part}"
                if part and _is_link(path):
                    raise PermissionDeniedError(
                        f"{quote(path)} is a symbolic link, and none is followed: serve with `links=True` (`--links`)"
                    )

    def _identity(self) -> tuple[Any, ...]:
        return (*super()._identity(), self._root)


def serve(
    places: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    zarr_format: int = 3,
    token: str | None = None,
    origins: Sequence[str] = (),
    public: bool = False,
    links: bool = False,
    context: Context | None = None,
) -> Server:
    """Return a server that shows places as plain zarr stores over HTTP; `serve_forever` runs it, `shutdown` ends it.

    `places` is one place, or a dictionary of places by name, each served below its name.  Arrays of any format are
    shown as zarr of `zarr_format`.  Port 0 takes any free port.  A `token` is generated unless one is given, the server
    is `public`, or it listens on this machine only and has `origins`: the sites whose pages may read, such as
    `https://example.org`.  With `links` symbolic links are followed, wherever they lead.
    """
    named = places if isinstance(places, dict) and "driver" not in places else {"": places}
    if any(not name.isidentifier() and name for name in named):
        raise ValueError(f"Names of what is served are plain words, not {sorted(named)}")
    wrong = [each for each in origins if not _ORIGIN.match(each)]
    if wrong:
        raise ValueError(f"An origin is a scheme and a host, such as https://example.org, and not {wrong[0]!r}")
    if token is not None and not re.fullmatch(r"[\w.~-]+", token, re.ASCII):
        raise ValueError("A token is a part of an address: letters, digits, and the characters - . _ ~")
    chosen = context_of(context)
    stores = {name: execution.call(_open(place, chosen, zarr_format, links=links)) for name, place in named.items()}
    near = host == "localhost" or (is_plain_host(host) and ipaddress.ip_address(host).is_loopback)
    secret = token or ("" if public or (near and origins) else secrets.token_urlsafe(16))
    bound = "127.0.0.1" if host == "localhost" else host
    return Server(stores, bound, port, token=secret, origins=origins)


async def _open(place: Any, context: Context, zarr_format: int, *, links: bool) -> KvPrefix:
    opened = await open_kv(store_spec(place), context)
    if not links and isinstance(opened.driver, LocalDriver):
        opened = opened._replace(driver=_Inside(opened.driver, opened.path))
    shown = await open_view(opened, context, zarr_format=zarr_format)
    return shown.as_directory().prefix
