"""Reference documents in JSON, read into a table and written piece by piece.

Version 1 has a member `version` equal to 1 and holds `refs`, `templates` and `gen`; other members are ignored.
Version 0 has none, and the document is the map of references.  One dialect leaves `version` out of a version 1
document: it is recognised when `refs` is an object and nothing but members of version 1 stands beside it.

The document is scanned once (`json_scan`), and need not be in memory as a whole.  Every malformed reference is
reported, with its key and the byte where it stands, all at once.

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
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from dataclasses import dataclass
from itertools import islice
from json.encoder import encode_basestring_ascii
from typing import Any, Literal

import numpy as np

from fsstore.errors import JsonError, ResourceExhaustedError
from fsstore.kvstore.contract.ability import WritesLate, able
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, LateWrite, Read, Stamp
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference import json_scan
from fsstore.reference import json_scan as json_batch
from fsstore.reference.json_scan import JsonMember, MemberSink, Scanner
from fsstore.reference.policy import name_of
from fsstore.reference.table.generator import MAX_TABULATED, Gen, parse_gen
from fsstore.reference.table.keys import check_key
from fsstore.reference.table.refset import (
    MEMBER,
    ORIGINS,
    Origins,
    Resolved,
    Run,
    ScanRecord,
    TableBuilder,
    TableSet,
    parse_origins,
    saved_origins,
)
from fsstore.reference.table.set_state import Changes, Saved, State, Taking, with_references
from fsstore.reference.table.table import ABSENT, WHOLE, Row, Rows, Table, decode_value, encode_text, is_url, plain_text
from fsstore.reference.table.template import TemplateError, Templates, render
from fsstore.runtime import execution
from fsstore.runtime.tuning import ROWS_AT_ONCE
from fsstore.values.detection import Method, compressor, method_named
from fsstore.values.json_value import show

# Reference documents in JSON, versions 0 and 1, read into a table.

MAX_PROBLEMS = 100
FREE_TEXT, MOST_GROWTH = 2**26, 64
"""Characters that the URLs of a set may render to, and how many times what was written they may be beyond."""
Pieces = Callable[[], Iterable[json_scan.Buffer]]

_SPECIAL = {"version", "templates", "gen", "refs", MEMBER, ORIGINS}
_BESIDE_REFS = {"templates", "gen", "refs", "generationMetadata", MEMBER, ORIGINS}


class _Refs:
    """Takes the members of a map of references into a table, and remembers what is wrong with them."""

    def __init__(self, target: str | None) -> None:
        self.builder = TableBuilder()
        self.problems: list[str] = []
        self._target = target

    def run(self, run: Run) -> bool:
        self.builder.add_run(run)
        return True

    def batch(self, members: dict[str, Any]) -> bool:
        batch = json_batch.sort(members, WHOLE)
        if batch is None:
            return False
        for key, value in batch.inline.items():
            self.builder.add_inline(key, value)
        if batch.keys:
            offset, length = np.array(batch.ranges, np.int64).T
            self.builder.add_rows(batch.keys, Rows(self.builder.url_ids(batch.urls), offset, length))
        return True

    def member(self, member: JsonMember) -> None:
        found = member.parse()
        place = f" at byte {member.place}"
        if isinstance(found, dict):  # the text is kept as it is: numbers and spaces survive
            self._keep(member.key, place, lambda: member.text)
        else:
            self._keep(member.key, place, lambda: decode_value(found))

    def enter(self, key: str) -> MemberSink | None:  # the contract of sinks
        return None

    def values(self, members: Mapping[Any, Any]) -> None:
        """Take the members of a Python mapping, many at a time where there is nothing special about them."""
        items = iter(members.items())
        while some := list(islice(items, ROWS_AT_ONCE)):
            if not all(type(key) is str for key, _ in some) or not self.batch(dict(some)):
                for key, value in some:
                    self._value(key, value)

    def _value(self, key: Any, value: Any) -> None:
        if isinstance(key, str):
            self._keep(key, "", lambda: decode_value(value))
        else:
            self.problems.append(f"Expected text as key, but received: {key!r}")

    def _keep(self, key: str, place: str, decode: Callable[[], Any]) -> None:
        try:
            why = check_key(key)
            if why is not None:
                raise JsonError(why)
            self._add(key.encode(), decode())
        except UnicodeEncodeError:
            self.problems.append(f"Error in reference {show(key)}{place}: the key is not text")
        except JsonError as error:
            self.problems += error.within(f"Error in reference {show(key)}{place}").problems

    def _add(self, key: bytes, value: Any) -> None:
        if value is None:
            self.builder.add(key, Row(ABSENT, 0, 0))
        elif isinstance(value, bytes):
            self.builder.add_inline(key, value)
        else:
            url = self._target if value.url is None else value.url
            if url is None:
                raise JsonError("The reference names no URL, and no `target` is given to stand in for it")
            number = int(self.builder.url_ids([url.encode()])[0])
            self.builder.add(key, Row(number, value.offset, value.length))

    def finish(self) -> Table:
        if self.problems:
            more = len(self.problems) - MAX_PROBLEMS
            tail = [f"and {more} more problems"] if more > 0 else []
            raise JsonError(self.problems[:MAX_PROBLEMS] + tail)
        return self.builder.finish()


class _TopLevel(_Refs):
    """Takes the top level of a document: sets members of version 1 aside until the version is known."""

    def __init__(self, target: str | None, *, nested: bool = True) -> None:
        super().__init__(target)
        self.special: dict[str, JsonMember] = {}
        self.names: set[str] = set()
        self.refs: _Refs | None = None
        self._nested = nested

    def run(self, run: Run) -> bool:
        keys = set(run.loose)
        return not keys & _SPECIAL and super().run(run) and self._note(keys, odd=bool(run.found.groups))

    def batch(self, members: dict[str, Any]) -> bool:
        return not members.keys() & _SPECIAL and super().batch(members) and self._note(members.keys())

    def _note(self, keys: Set[str], *, odd: bool = False) -> bool:
        """Remember names beside which a document of version 1 may not lack its version."""
        self.names |= {"a reference"} if odd or keys - _BESIDE_REFS else keys
        return True

    def member(self, member: JsonMember) -> None:
        if member.key in _SPECIAL:
            self.special[member.key] = member
        else:
            super().member(member)
        self.names.add(member.key)

    def enter(self, key: str) -> MemberSink | None:
        if key != "refs" or not self._nested:
            return None
        self.names.add(key)
        self.special.pop(key, None)
        self.refs = _Refs(self._target)
        return self.refs

    def value_of(self, name: str) -> Any:
        """Return a member set aside, or None."""
        return self.special[name].parse() if name in self.special else None


def from_json(
    data: json_scan.Buffer | Pieces, *, target: str | None = None, overrides: Mapping[str, str] | None = None
) -> TableSet:
    """Return the set of a JSON document, uncompressed: its bytes, or a function that gives them piece by piece.

    `target` stands in for null URLs; `overrides` replaces or adds templates.
    """
    pieces = data if callable(data) else lambda: (data,)
    document = _scanned(pieces, _TopLevel(target))
    if _is_version_1(document):
        if "refs" in document.special:
            raise JsonError('Error parsing object member "refs": Expected object')
        refs = document.refs or _Refs(target)
        found = _version_1(refs, document.value_of("templates"), document.value_of("gen"), overrides)
        found.scanned = ScanRecord.parse(document.value_of(MEMBER))
        found.origins = parse_origins(document.value_of(ORIGINS))
        return found
    if document.refs is not None:  # version 0 with a key of that name, whose text was not kept
        document = _scanned(pieces, _TopLevel(target, nested=False))
    for name, member in document.special.items():
        if name != "version":
            _Refs.member(document, member)
    return _version_1(document, None, None, overrides)


def _scanned(pieces: Pieces, document: _TopLevel) -> _TopLevel:
    scanner = Scanner(pieces())
    first = scanner.first()
    if first == b"[":
        raise JsonError(
            "Expected a reference set, but received an array (a GRIB scan gives one set a message: save each)"
        )
    if first != b"{":
        raise scanner.damaged("an object")
    scanner.members(document)
    scanner.finish()
    return document


def _is_version_1(document: _TopLevel) -> bool:
    version = document.value_of("version")
    if version is None:
        return "version" not in document.special and document.refs is not None and document.names <= _BESIDE_REFS
    if version != 1:
        raise JsonError(f"Unsupported version of a reference set: {show(version)}; 0 (no version) and 1 are known")
    return True


def from_mapping(
    mapping: Mapping[str, Any], *, target: str | None = None, overrides: Mapping[str, str] | None = None
) -> TableSet:
    """Return the set of a document given as Python objects; values may be bytes."""
    version = mapping.get("version")
    one = version == 1 and not isinstance(version, list | tuple)
    if version is not None and not one:
        raise JsonError(f"Unsupported version of a reference set: {show(version)}; 0 (no version) and 1 are known")
    plain = isinstance(mapping.get("refs"), Mapping) and set(mapping) <= _BESIDE_REFS
    refs = _Refs(target)
    found = mapping.get("refs", {}) if one or plain else mapping
    if not isinstance(found, Mapping):
        raise JsonError('Error parsing object member "refs": Expected object')
    if found is mapping and "version" in mapping:  # it is null
        found = {key: value for key, value in mapping.items() if key != "version"}
    refs.values(found)
    if one or plain:
        known = _version_1(refs, mapping.get("templates"), mapping.get("gen"), overrides)
        known.scanned = ScanRecord.parse(mapping.get(MEMBER))
        known.origins = parse_origins(mapping.get(ORIGINS))
        return known
    return _version_1(refs, None, None, overrides)


def _version_1(refs: _Refs, templates: Any, gen: Any, overrides: Mapping[str, str] | None) -> TableSet:
    """Return the set of references, templates and generators, with every URL rendered."""
    named = _templates(refs, templates, overrides)
    gens: list[Gen] = []
    if gen is not None and not isinstance(gen, list | tuple):
        refs.problems.append(f'Error parsing object member "gen": Expected array, but received: {show(gen)[:80]}')
    room = MAX_TABULATED
    for position, entry in enumerate(gen if isinstance(gen, list | tuple) else ()):
        try:
            gens.append(parse_gen(entry, named, room=room))
            room -= gens[-1].tabulated
        except (JsonError, TemplateError) as error:
            refs.problems.append(f'Error parsing object member "gen": at position {position}: {error.message}')
    urls = refs.builder.urls
    if len(named):
        _render(refs, named, urls)
    described = {"templates": named.texts, "gen": list(gen)} if gens else {}
    return TableSet(refs.finish(), tuple(gens), described)


def _render(refs: _Refs, named: Templates, urls: list[str]) -> None:
    left = FREE_TEXT + MOST_GROWTH * sum(map(len, urls))
    for number, url in enumerate(urls):
        try:
            urls[number] = render(named, url)
        except TemplateError as error:
            refs.problems.append(f"Error in URL {show(url[:200])}: {error.message}")
        left -= len(urls[number])
        if left < 0:
            raise ResourceExhaustedError(f"The templates make {len(urls)} URLs too long to be kept in memory")


def _templates(refs: _Refs, templates: Any, overrides: Mapping[str, str] | None) -> Templates:
    found: dict[str, str] = {}
    if isinstance(templates, Mapping):
        for name, text in templates.items():
            try:
                found[name] = plain_text(text)
            except JsonError as error:
                where = f'Error parsing object member "templates": {show(name)}'
                refs.problems += error.within(where).problems
    elif templates is not None:
        refs.problems.append(
            f'Error parsing object member "templates": Expected object, but received: {show(templates)[:80]}'
        )
    return Templates({**found, **(overrides or {})})


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
        pieces = encode(after, compression=method_named(name_of(self.base)), origins=after.base.origins)
        stamp = await write_document(self.base, pieces, after, if_equal=state.generation)
        if stamp.generation == UNKNOWN:
            return Saved(await self.load(), {})
        return Saved(State(after.base, after.changes, stamp.generation), changes)

    async def check(self, state: State, taking: Taking) -> None:
        """Refuse nothing: the document is written anew."""

    async def take(self, before: State, taking: Taking) -> State | None:
        """Write the document with what it takes, None if it was changed by somebody else."""
        after = await with_references(before, taking)
        pieces = encode(after, compression=method_named(name_of(self.base)), origins=after.base.origins)
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
    origins: Origins = None,
) -> AsyncGenerator[bytes]:
    """Yield the document of a set.

    Generators stay symbolic in version 1 unless a change touches one of their keys; version 0 writes them out, and has
    no place for what was `scanned`, nor for `origins`.
    """
    machine = None if compression is None else compressor(compression)
    async for text in _pieces(state, version, scanned, origins):
        data = text.encode("ascii")
        piece = data if machine is None else machine.compress(data)
        if piece:
            yield piece
    if machine is not None:
        yield machine.flush()


async def _pieces(state: State, version: int, scanned: ScanRecord | None, origins: Origins) -> AsyncIterator[str]:
    symbolic = _symbolic(state) if version == 1 else {}
    if version == 1:
        record = {} if scanned is None else {MEMBER: scanned.json()}
        head = {"version": 1, **record, **saved_origins(origins), **symbolic}
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
        raise ResourceExhaustedError(f"A change touches a generated key, and the {count} generated keys are too many")
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
