"""`json`: a JSON document, or a part of one, as a store of rank 0 whose element is the value.

All handles of a document in one context share its last value that was read or written, whatever part they show, and
check it as `recheck_cached_data` says.  Inside a transaction every read checks it.  JSON pointers (RFC 6901) find and
replace parts.
"""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fsstore.chunk.request import new_array
from fsstore.context.context import ContextResource
from fsstore.driver.contract import Array, ArrayDriver, OpenArray, Opening, PlainKind, Role
from fsstore.driver.metadata_entry import place_of
from fsstore.errors import (
    DataLossError,
    FailedPreconditionError,
    JsonError,
    NotFoundError,
    OutOfRangeError,
    StoreError,
    UnimplementedError,
)
from fsstore.index import IndexDomain, IndexTransform
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer, Read, begin_creating
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.runtime import execution
from fsstore.runtime.cache import CachePool
from fsstore.runtime.future import Future
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.schema import Schema, fresh_after, recheck
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import Fields, Json, dumps, loads, quote, show, string
from fsstore.values.registry import decode_path, encode_path

_BAD_TILDE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")


def check_pointer(pointer: str) -> str:
    """Return a well-formed pointer, or raise."""
    if pointer and not pointer.startswith("/"):
        raise StoreError(f"JSON Pointer does not start with '/': {quote(pointer)}")
    if _BAD_TILDE.search(pointer):
        raise StoreError(f"JSON Pointer requires '~' to be followed by '0' or '1': {quote(pointer)}")
    return pointer


def _steps(pointer: str) -> list[tuple[str, str]]:
    """Return each reference token, decoded, with the pointer up to and including it."""
    steps, upto = [], ""
    for token in pointer.split("/")[1:]:
        upto += "/" + token
        steps.append((token.replace("~1", "/").replace("~0", "~"), upto))
    return steps


def _index(token: str, array: list[Any], upto: str, outside: type[StoreError]) -> int:
    if not _INDEX.fullmatch(token):
        raise FailedPreconditionError(f"JSON Pointer {quote(upto)} is invalid for array value")
    index = int(token)
    if index >= len(array):
        raise outside(f"JSON Pointer {quote(upto)} is out-of-range for array of size {len(array)}")
    return index


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", type(None): "null"}.get(type(value), "number")


def find(value: Any, pointer: str) -> Any:
    """Return the part of `value` that a pointer names; raise an error that names the missing step."""
    for token, upto in _steps(pointer):
        if isinstance(value, dict):
            if token not in value:
                raise NotFoundError(f"JSON Pointer {quote(upto)} refers to non-existent object member")
            value = value[token]
        elif isinstance(value, list):
            if token == "-":
                raise FailedPreconditionError(f"JSON Pointer {quote(upto)} refers to non-existent array element")
            value = value[_index(token, value, upto, OutOfRangeError)]
        else:
            raise _through_scalar(upto, value)
    return value


def _through_scalar(upto: str, value: Any) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"JSON Pointer reference {quote(upto)} cannot be applied to {_kind(value)} value: {show(value)}"
    )


def replace(document: Any, pointer: str, part: Any) -> Any:
    """Return the document with the part at a pointer replaced; missing objects are created."""
    steps = _steps(pointer)
    if not steps:
        return part
    root = value = copy.deepcopy(document)
    for (token, upto), following in zip(steps, [*steps[1:], None], strict=True):
        last = following is None
        if isinstance(value, dict):
            if last:
                value[token] = part
            else:
                value = value.setdefault(token, {})
        elif isinstance(value, list):
            if token == "-":
                value.append(part if last else {})
                value = value[-1]
                continue
            index = _index(token, value, upto, FailedPreconditionError)
            if last:
                value[index] = part
            else:
                value = value[index]
        else:
            raise _through_scalar(upto, value)
    return root


def _pointer(value: Any) -> str:
    pointer = string(value)
    try:
        return check_pointer(pointer)
    except StoreError as error:
        raise JsonError(error.message) from None


@dataclass(frozen=True, slots=True)
class JsonKind(PlainKind):
    """The driver kind."""

    id: str = "json"
    schemes: tuple[str, ...] = ("json",)
    role: Role = "store"
    resources: tuple[str, ...] = ("cache_pool", "data_copy_concurrency")

    @property
    def defaults(self) -> Mapping[str, Json]:
        """Members printed with `include_defaults`."""
        return {"json_pointer": "", "recheck_cached_data": "open"}

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take the pointer and the recheck option."""
        pointer = fields.take("json_pointer", _pointer, default="")
        bound = fields.take("recheck_cached_data", recheck, default="open")
        out: dict[str, Any] = {"json_pointer": pointer} if pointer else {}
        return out if bound == "open" else {**out, "recheck_cached_data": bound}

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema of rank 0 and type json."""
        merged = schema.copy()
        merged.update(dtype="json", domain=IndexDomain(rank=0))
        return merged

    def from_url(self, rest: str) -> tuple[str, dict[str, Any]]:
        """Return the pointer that a component names."""
        pointer = check_pointer(decode_path(rest))
        return "", {"json_pointer": pointer} if pointer else {}

    def to_url(self, members: Mapping[str, Any]) -> str:
        """Return `json:<pointer>`."""
        return "json:" + encode_path(members.get("json_pointer", ""))

    async def open(self, opening: Opening) -> OpenArray:
        """Return the store; nothing is read yet."""
        if opening.kvstore is None:
            raise StoreError('Error opening "json" driver: "kvstore" must be specified')
        for name in ("fill_value", "codec"):
            if getattr(opening.schema, name) is not None:
                raise StoreError(f"{name} not supported by json driver")
        driver = JsonDriver(opening.kvstore, opening.members, opening.resources)
        return opening.view_of(driver)


KIND = JsonKind()


class _StoredJson(NamedTuple):
    """A stored document, its generation, and a time at which it was stored so."""

    data: Buffer = b""
    generation: bytes = UNKNOWN
    time: float = -math.inf


class _KnownJson:
    """A stored document as it was last read."""

    __slots__ = ("__weakref__", "known")

    def __init__(self) -> None:
        self.known = _StoredJson()

    def keep(self, known: _StoredJson) -> None:
        """Remember the document that was stored at a time, unless a later one is known."""
        if known.time >= self.known.time:
            self.known = known

    def forget(self) -> None:
        """Forget the document."""
        self.known = _StoredJson()


class JsonDriver(ArrayDriver):
    """A document and a pointer into it."""

    def __init__(self, kvstore: OpenKv, members: Mapping[str, Any], resources: Mapping[str, ContextResource]) -> None:
        self.kind = KIND
        self.dtype = dtype_of("json")
        self.kvstore: OpenKv = kvstore
        self._store = kvstore.prefix
        self._members = dict(members)
        self._pointer: str = members.get("json_pointer", "")
        self._resources = resources
        bound = members.get("recheck_cached_data", "open")
        self._fresh_after = math.inf if kvstore.ledger else fresh_after(bound, time.time())
        pool = resources.get("cache_pool")
        self._pool: CachePool = (pool and pool.value) or CachePool()
        self._place = "json", place_of(kvstore)
        self._document = _KnownJson() if kvstore.ledger else self._pool.share(self._place, _KnownJson())

    def domain(self) -> IndexDomain:
        """Return the domain of rank 0."""
        return IndexDomain(rank=0)

    def members(self) -> Mapping[str, Any]:
        """Return the JSON members in effect."""
        return self._members

    def resources(self) -> Mapping[str, ContextResource]:
        """Return the context resources in use."""
        return self._resources

    def schema(self) -> Schema:
        """Return rank and type."""
        return Schema(dtype=self.dtype, domain=self.domain(), chunk_layout=ChunkLayout(rank=0))

    @property
    def _waits(self) -> bool:
        return self._store.driver.features.waits

    def _parse(self, data: Any) -> Any:
        try:
            return loads(data)
        except DataLossError as error:
            raise FailedPreconditionError(f"Error reading {self._store.describe()}: {error.message}") from None

    async def _stored(self) -> Buffer:
        """Return the document, read again unless it is known to be fresh enough."""
        known = self._document.known
        if known.generation != UNKNOWN and known.time >= self._fresh_after:
            return known.data
        (answer,) = await self._store.read_many([Read("", if_not_equal=known.generation)])
        if answer.state == "missing":
            self._document.forget()
            raise NotFoundError(f"Error reading {self._store.describe()}")
        data = known.data if answer.state == "unspecified" else answer.value
        self._document.keep(_StoredJson(data, answer.generation, answer.time))
        return data

    def read(self, transform: IndexTransform, order: str = "C") -> Future[Array]:
        """Begin to read the value, broadcast to the view."""

        async def run() -> Array:
            document = self._parse(await self._stored())
            try:
                value = find(document, self._pointer)
            except StoreError as error:
                raise error.within(f"Error reading {self._store.describe()}") from None
            out = new_array(transform.domain.shape, np.dtype(object))
            for index in np.ndindex(out.shape):
                out[index] = value
            return out

        return execution.start(run(), waits=self._waits)

    def write(self, transform: IndexTransform, values: Array) -> Future[None]:
        """Begin to replace the value: a whole document unconditionally, a part of it by read-modify-write."""
        if values.shape and transform.input_rank:
            raise StoreError(f"Expected array of rank 0, but received array of rank {values.ndim}")
        part = _plain(values.tolist())  # an array becomes a list
        if self.kvstore.ledger is not None:
            pool, place = self._pool, self._place
            self.kvstore.ledger.after_commit((pool, place), lambda _: _forget(pool, place))
        return execution.start(self._replace(part), waits=self._waits)

    async def _write(self, data: bytes, condition: bytes = UNKNOWN) -> bool:
        """Store the document; return False if another writer has replaced it before."""
        stamp = await self._store.write("", data, condition)
        if condition != UNKNOWN and stamp.generation == UNKNOWN:
            return False
        self._document.keep(_StoredJson(data, stamp.generation, stamp.time))
        return True

    async def _replace(self, part: Any) -> None:
        if not self._pointer:
            await self._write(dumps(part).encode())
            return
        if not self._store.driver.features.conditional_write:
            raise UnimplementedError(
                f"Writing a part of {self._store.describe()} needs conditional writes, which this store does not have;"
                ' if only this process writes here, say so: "single_writer": true in the spec of the store'
            )
        begin_creating(self._store.driver)
        await until_unchanged(partial(self._replace_part, part), self._store.describe)

    async def _replace_part(self, part: Any) -> None:
        answer = await self._store.read()
        document = {} if answer.state == "missing" else self._parse(answer.value)
        try:
            changed = dumps(replace(document, self._pointer, part)).encode()
        except StoreError as error:
            raise error.within(f"Error writing {self._store.describe()}") from None
        if not await self._write(changed, NO_VALUE if answer.state == "missing" else answer.generation):
            raise ChangedError

    def with_transaction(self, transaction: Any) -> JsonDriver:
        """Return the document as a transaction sees it; None unbinds."""
        bound = JsonDriver(self.kvstore.within(transaction), self._members, self._resources)
        bound.transaction = transaction
        return bound


def _forget(pool: CachePool, place: tuple[str, str]) -> None:
    document = pool.shared(place)
    if document is not None:
        document.forget()


def _plain(value: Any) -> Any:
    """Return a Python value as JSON; numbers that JSON has no form for become null."""
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("JSON object members must have string names")
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        raise OverflowError(f"{value} does not fit in 64 bits")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"Object {type(value).__name__!r} does not support conversion to JSON")
