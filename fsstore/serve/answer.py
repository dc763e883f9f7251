"""Requests for keys of a store, and what is answered: ranges, conditions, listings.  Nothing here knows of sockets."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from urllib.parse import quote, unquote_to_bytes

from fsstore.errors import PermissionDeniedError, StoreError
from fsstore.filesystem.kv import Listing, children
from fsstore.kvstore.contract.driver import KvPrefix, Read, ReadResult
from fsstore.redaction import plain
from fsstore.runtime import execution
from fsstore.serve.tuning import COMPRESSED_FROM_BYTES

__all__ = ["Answer", "answer", "path_of", "said"]

_RANGE = re.compile(r"bytes=([0-9]*)-([0-9]*)\Z")
_MOST_DIGITS = 18  # of a position: more are of no value
_LONGEST_NAME = 255  # bytes of a part of a path, as in files
_DOCUMENTS = (".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json")
_CONDITIONS = ("If-Match", "If-None-Match")
_LOOKING_FIRST = ("Range", *_CONDITIONS)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to send: a status, headers, and a body; `length` is that of a body that is left out."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None


def said(status: int, text: str, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
    """Return an answer that says something in a sentence."""
    body = f"{plain(text)}.\n".encode("utf-8", "backslashreplace")
    return Answer(status, {"Content-Type": "text/plain; charset=utf-8", **headers}, body)


def path_of(target: str) -> str | None:
    """Return the key that the target of a request names, or None for what no key may be.

    That are paths that climb, that are not UTF-8, and whose parts are empty or longer than names of files.
    """
    try:
        path = unquote_to_bytes(target.partition("?")[0]).decode().lstrip("/")
    except UnicodeDecodeError:
        return None
    parts = path.split("/")
    if any(part in (".", "..") or len(part.encode()) > _LONGEST_NAME for part in parts) or "" in parts[:-1]:
        return None
    return None if "\\" in path or "\0" in path else path


def _is_hidden(key: str) -> bool:
    """Return whether a key is shown to nobody: one with a name that begins with a dot, documents of zarr excepted."""
    *above, name = key.split("/")
    return any(part.startswith(".") for part in above) or (name.startswith(".") and name not in _DOCUMENTS)


async def answer(store: KvPrefix, key: str, headers: Mapping[str, str], *, head: bool = False) -> Answer:
    """Return what stands at a key, or a listing of what is below it; with `head` the body may be left out.

    A value is read with one request.  Where there are conditions or a range, or no body is wanted, the store is asked
    for the size and the generation first.
    """
    if _is_hidden(key.rstrip("/")):
        return said(404, "There is no such key")
    if not key or key.endswith("/"):
        return await _listing(store, key.rstrip("/"), headers)
    if not head and not any(name in headers for name in _LOOKING_FIRST):
        found = await store.read(key)
        return await _whole(key, found, headers) if found.state == "value" else await _absent(store, key)
    known = (await store.read_many([Read(key, 0, 0)]))[0]
    if known.state == "missing":
        return await _absent(store, key)
    if not known.generation and any(name in headers for name in _CONDITIONS):
        known = await store.read(key)
    tag = _tag(known)
    if "If-Match" in headers and not _names(headers["If-Match"], tag):
        return Answer(412, {"ETag": tag} if tag else {})
    if "If-None-Match" in headers and _names(headers["If-None-Match"], tag):
        return Answer(304, {"ETag": tag} if tag else {})
    if head and known.size is not None and not _is_document(key) and "Range" not in headers:
        named = {"ETag": tag} if tag else {}
        return Answer(200, {**_named(key), **named, "Accept-Ranges": "bytes"}, length=known.size)
    return await _value(store, key, headers, known)


def _names(condition: str, tag: str) -> bool:
    """Return whether a condition names the generation that is there: by its tag, or as any."""
    return condition.strip() == "*" or bool(tag and tag in condition)


async def _absent(store: KvPrefix, key: str) -> Answer:
    if await Listing(store).is_directory(key):
        return Answer(301, {"Location": f"{quote(key.rpartition('/')[2])}/"})
    return said(404, "There is no such key")


def _tag(found: ReadResult) -> str:
    """Return the tag of a value: of its generation, or where it has none of its bytes, if they were read."""
    known = found.generation or bytes(found.value)
    return f'"{hashlib.sha256(known).hexdigest()[:24]}"' if known else ""


async def _value(store: KvPrefix, key: str, headers: Mapping[str, str], known: ReadResult) -> Answer:
    wanted, size = headers.get("Range", ""), known.size
    bounds = _RANGE.match(wanted) if wanted else None
    if "If-Range" in headers and not _names(headers["If-Range"], _tag(known)):
        bounds = None  # it is a part of another generation
    if bounds is not None and size is None:
        size = len((await store.read(key)).value)
    if bounds is not None and size is not None and bounds.groups() != ("", ""):
        return await _part(store, key, bounds, size)
    found = await store.read(key)
    return await _whole(key, found, headers) if found.state == "value" else await _absent(store, key)


async def _whole(key: str, found: ReadResult, headers: Mapping[str, str]) -> Answer:
    body, named = bytes(found.value), _named(key)
    tag = _tag(found)
    if tag:
        named["ETag"] = tag
    if (
        _is_document(key)
        and len(body) > COMPRESSED_FROM_BYTES
        and "gzip" in headers.get("Accept-Encoding", "")
    ):
        return Answer(
            200,
            {**named, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"},
            await execution.offload(gzip.compress, body, 6),
        )
    return Answer(200, {**named, "Accept-Ranges": "bytes"}, body)


async def _part(store: KvPrefix, key: str, bounds: re.Match[str], size: int) -> Answer:
    first, last = bounds.groups()
    if max(len(first), len(last)) > _MOST_DIGITS:
        return Answer(416, {"Content-Range": f"bytes */{size}"})
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        return Answer(416, {"Content-Range": f"bytes */{size}"})
    found = await store.read(key, start, stop)
    named = {**_named(key), "Content-Range": f"bytes {start}-{stop - 1}/{size}", "Accept-Ranges": "bytes"}
    tag = _tag(found) if found.generation else ""  # not of the bytes of a part
    return Answer(206, {**named, "ETag": tag} if tag else named, bytes(found.value))


def _is_document(key: str) -> bool:
    return key.rpartition("/")[2] in _DOCUMENTS


def _named(key: str) -> dict[str, str]:
    return {"Content-Type": "application/json" if _is_document(key) else "application/octet-stream"}


async def _listing(store: KvPrefix, key: str, headers: Mapping[str, str]) -> Answer:
    try:
        found = await children(Listing(store), key)
    except PermissionDeniedError:
        raise
    except StoreError as error:
        return said(404, f"This store is not listed: {error}")
    names = [
        each["name"][len(key) :].lstrip("/") + ("/" if each["type"] == "directory" else "")
        for each in found
        if path_of(quote(each["name"], errors="surrogateescape")) and not _is_hidden(each["name"])
    ]
    if "application/json" in headers.get("Accept", ""):
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(names).encode())
    links = "".join(f'<li><a href="{quote(name)}">{escape(name)}</a></li>' for name in names)
    title = escape(f"/{key}")
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1><ul>{links}</ul>"
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Answer(200, {"Content-Type": "text/html; charset=utf-8", **policy}, page.encode())
