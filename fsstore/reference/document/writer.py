"""Writing a set as a JSON document, byte-exact and piece by piece.

Inline bytes are written as text when they are UTF-8 and do not begin with `base64:`, else in base64: reading gives the
same bytes back, in this library and in every other.  No value is parsed or formatted again.  The document is produced
in pieces and compressed in a stream.  Local files are written while it is produced, other stores take it as a whole; it
is stored by one atomic write, under the condition that nobody else changed it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any, Literal

from fsstore.errors import JsonError, ResourceExhaustedError
from fsstore.kvstore.contract.ability import WritesLate, able
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, LateWrite, Read, Stamp
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.state.refset import Resolved, TableSet
from fsstore.reference.state.rewritten import with_references
from fsstore.reference.state.scan_record import MEMBER, ScanRecord
from fsstore.reference.state.set_state import Changes, Saved, State, Taking
from fsstore.reference.table.table import ABSENT, WHOLE
from fsstore.reference.table.value import encode_text, is_url
from fsstore.reference.target.location import name_of
from fsstore.runtime import execution
from fsstore.values.detection import Method, compressor, method_named

__all__ = ["JsonDocument", "encode", "write_document"]

MAX_EXPANDED = 20_000_000


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """The document at `base`; `load` reads its state."""

    base: KvPrefix
    load: Callable[[], Awaitable[State]]

    async def basis(self, state: State, keys: Sequence[str]) -> None:
        """Return nothing: changes are based on the state."""

    async def save(self, state: State, changes: Changes, basis: None) -> Saved:
        """Write the document again."""
        after = State(state.base, {**state.changes, **changes}, state.generation)
        pieces = encode(after, compression=method_named(name_of(self.base)))
        stamp = await write_document(self.base, pieces, after, if_equal=state.generation)
        if stamp.generation == UNKNOWN:
            return Saved(await self.load(), {})
        return Saved(State(after.base, after.changes, stamp.generation), changes)

    async def check(self, state: State, taking: Taking) -> None:
        """Refuse nothing: the document is written anew."""

    async def take(self, before: State, taking: Taking) -> State | None:
        """Write the document with what it takes, None if it was changed by somebody else."""
        after = await with_references(before, taking)
        pieces = encode(after, compression=method_named(name_of(self.base)))
        stamp = await write_document(self.base, pieces, after, if_equal=before.generation)
        return None if stamp.generation == UNKNOWN else State(after.base, after.changes, stamp.generation)

    async def reload(self, state: State, keys: Sequence[str]) -> State | None:
        """Return the state that is stored, or None if the document is the one that is known."""
        read = Read(self.base.path, if_not_equal=state.generation)
        found = (await self.base.driver.read_many([read]))[0]
        return None if found.generation == state.generation else await self.load()


async def write_document(
    base: KvPrefix, pieces: AsyncGenerator[bytes], state: State, *, if_equal: bytes = UNKNOWN
) -> Stamp:
    """Store the document of a set; where the store can take it piece by piece, it is never in memory as a whole."""
    late = able(base.driver, WritesLate)
    if late is None or state.base.waits:
        return await base.write("", b"".join([piece async for piece in pieces]), if_equal)
    [stamp] = await late.write_late([lambda: LateWrite(base.path, _driven(pieces), if_equal)])
    return stamp


def _driven(pieces: AsyncGenerator[bytes]) -> Generator[list[bytes], None, None]:
    """Yield the pieces of a document that is made without waiting."""
    with contextlib.suppress(StopAsyncIteration):
        while True:
            yield [execution.drive(pieces.__anext__())]


async def encode(
    state: State,
    *,
    version: Literal[0, 1] = 1,
    compression: Method | None = None,
    scanned: ScanRecord | None = None,
) -> AsyncGenerator[bytes]:
    """Yield the document of a set.

    Generators stay symbolic in version 1 unless a change touches one of their keys; version 0 writes them out, and has
    no place for what was `scanned`.
    """
    machine = None if compression is None else compressor(compression)
    async for text in _pieces(state, version, scanned):
        data = text.encode("ascii")
        piece = data if machine is None else machine.compress(data)
        if piece:
            yield piece
    if machine is not None:
        yield machine.flush()


async def _pieces(state: State, version: int, scanned: ScanRecord | None) -> AsyncIterator[str]:
    symbolic = _symbolic(state) if version == 1 else {}
    if version == 1:
        record = {} if scanned is None else {MEMBER: scanned.json()}
        head = {"version": 1, **record, **symbolic}
        yield json.dumps(head, separators=(",", ":"))[:-1] + ',"refs":{'
    else:
        yield "{"
    first = True
    async for names, found in _references(state, expand=not symbolic):
        if version == 0 and "version" in names:
            raise JsonError('A document of version 0 cannot hold the key "version"; save version 1')
        text = ",\n".join(_members(names, found, escape=bool(symbolic)))
        if text:
            yield text if first else ",\n" + text
            first = False
    yield "}" if version == 0 else "}}"


def _symbolic(state: State) -> Mapping[str, Any]:
    """Return `templates` and `gen` if they can be written as they are."""
    base = state.base
    if not isinstance(base, TableSet) or not base.gens:
        return {}
    touched = any(gen.find(key) is not None for key in state.changes for gen in base.gens)
    if not touched and base.described:
        return base.described
    count = sum(gen.count for gen in base.gens)
    if count > MAX_EXPANDED:
        raise ResourceExhaustedError(
            f"A change touches a generated key, and the {count} generated keys are too many"
        )
    return {}


async def _references(state: State, *, expand: bool) -> AsyncIterator[tuple[list[str], Resolved]]:
    if not expand and isinstance(state.base, TableSet):
        state = State(TableSet(state.base.table), state.changes)
    async for names, found in state.scan(KeyRange()):
        yield names, found


def _members(names: list[str], found: Resolved, *, escape: bool) -> Iterator[str]:
    """Yield `"key":value` of each reference; `escape` says that other readers will render the URLs."""
    quoted: dict[int, str] = {}
    columns = (column.tolist() for column in found.rows)
    for name, url, offset, length in zip(names, *columns, strict=True):
        key = encode_basestring_ascii(name)
        if url >= 0:
            text = quoted.get(url)
            if text is None:
                text = quoted[url] = _url(found.urls[url], escape=escape)
            yield f"{key}:[{text}]" if length == WHOLE else f"{key}:[{text},{offset},{length}]"
        elif url != ABSENT:
            yield f"{key}:{encode_basestring_ascii(encode_text(found.inline[offset]))}"


def _url(url: str, *, escape: bool) -> str:
    if not url or not is_url(url):
        raise JsonError(f"A set that names {url!r} as a URL could not be read again")
    if escape and "{{" in url:
        raise JsonError(f"The URL {url!r} holds braces and the set has templates; save version 0")
    return encode_basestring_ascii(url)
