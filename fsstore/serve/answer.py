"""Requests for keys of a store, and what is answered: ranges, conditions, listings.  Nothing here knows of sockets."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from urllib.parse import quote, unquote

from fsstore.errors import StoreError
from fsstore.filesystem.listing import Listing, children
from fsstore.kvstore.contract.driver import KvPrefix, Read

__all__ = ["Answer", "answer", "path_of"]

_RANGE = re.compile(r"bytes=(\d*)-(\d*)\Z")
_DOCUMENTS = (".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json")
_WORTH_COMPRESSING = 1400  # bytes; less fits into one packet anyway


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent: a status, headers, and a body."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def path_of(target: str) -> str | None:
    """Return the key that the target of a request names, or None for what no key may be: one that climbs."""
    path = unquote(target.partition("?")[0], errors="surrogateescape").lstrip("/")
    parts = path.split("/")
    if any(part in (".", "..") for part in parts) or "\\" in path or "\0" in path:
        return None
    return path


async def answer(store: KvPrefix, key: str, headers: Mapping[str, str]) -> Answer:
    """Return what stands at a key, or a listing of what is below it."""
    if not key or key.endswith("/"):
        return await _listing(store, key.rstrip("/"), headers)
    head = (await store.read_many([Read(key, 0, 0)]))[0]
    if head.state == "missing":
        if await Listing(store).is_directory(key):
            return Answer(301, {"Location": f"{quote(key.rpartition('/')[2])}/"})
        return Answer(404, {"Content-Type": "text/plain"}, b"There is no such key.\n")
    tag = _tag(head.generation)
    if tag and tag in headers.get("If-None-Match", ""):
        return Answer(304, {"ETag": tag})
    return await _value(store, key, headers, head.size)


def _tag(generation: bytes) -> str:
    return f'"{hashlib.sha256(generation).hexdigest()[:24]}"' if generation else ""


async def _value(store: KvPrefix, key: str, headers: Mapping[str, str], size: int | None) -> Answer:
    wanted = headers.get("Range", "")
    bounds = _RANGE.match(wanted) if wanted else None
    if wanted and bounds is not None and size is None:
        size = len((await store.read(key)).value)
    if bounds is not None and size is not None and bounds.groups() != ("", ""):
        return await _part(store, key, bounds, size)
    found = await store.read(key)
    if found.state != "value":
        return Answer(404, {"Content-Type": "text/plain"}, b"There is no such key.\n")
    body, named = bytes(found.value), _named(key)
    tag = _tag(found.generation)
    if tag:
        named["ETag"] = tag
    if _is_document(key) and len(body) > _WORTH_COMPRESSING and "gzip" in headers.get("Accept-Encoding", ""):
        return Answer(
            200, {**named, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}, gzip.compress(body, 6)
        )
    return Answer(200, {**named, "Accept-Ranges": "bytes"}, body)


async def _part(store: KvPrefix, key: str, bounds: re.Match[str], size: int) -> Answer:
    first, last = bounds.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        return Answer(416, {"Content-Range": f"bytes */{size}"})
    found = await store.read(key, start, stop)
    named = {**_named(key), "Content-Range": f"bytes {start}-{stop - 1}/{size}", "Accept-Ranges": "bytes"}
    tag = _tag(found.generation)
    return Answer(206, {**named, "ETag": tag} if tag else named, bytes(found.value))


def _is_document(key: str) -> bool:
    return key.rpartition("/")[2] in _DOCUMENTS


def _named(key: str) -> dict[str, str]:
    return {"Content-Type": "application/json" if _is_document(key) else "application/octet-stream"}


async def _listing(store: KvPrefix, key: str, headers: Mapping[str, str]) -> Answer:
    try:
        found = await children(Listing(store), key)
    except StoreError as error:
        return Answer(404, {"Content-Type": "text/plain"}, f"This store is not listed: {error}\n".encode())
    names = [
        each["name"][len(key) :].lstrip("/") + ("/" if each["type"] == "directory" else "") for each in found
    ]
    if "application/json" in headers.get("Accept", ""):
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(names).encode())
    links = "".join(f'<li><a href="{quote(name)}">{escape(name)}</a></li>' for name in names)
    title = escape(f"/{key}")
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1><ul>{links}</ul>"
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Answer(
        200, {"Content-Type": "text/html; charset=utf-8", **policy}, page.encode("utf-8", "surrogateescape")
    )
