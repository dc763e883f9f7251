"""Reference documents in JSON, versions 0 and 1, read into a table.

Version 1 has a member `version` equal to 1 and holds `refs`, `templates` and `gen`; other members are ignored.
Version 0 has none, and the document is the map of references.  One dialect leaves `version` out of a version 1
document: it is recognised when `refs` is an object and nothing but members of version 1 stands beside it.

The document is scanned once (`json_scan`), and need not be in memory as a whole.  Every malformed reference is
reported, with its key and the byte where it stands, all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from itertools import islice
from typing import Any

import numpy as np

from fsstore.errors import JsonError, ResourceExhaustedError
from fsstore.reference.document import json_batch, json_scan
from fsstore.reference.document.json_scan import JsonMember, MemberSink, Scanner
from fsstore.reference.generate.generator import MAX_TABULATED, Gen, parse_gen
from fsstore.reference.generate.template import TemplateError, Templates, render
from fsstore.reference.state.refset import TableSet
from fsstore.reference.state.scan_record import MEMBER, ScanRecord
from fsstore.reference.table.builder import Run, TableBuilder
from fsstore.reference.table.keys import check_key
from fsstore.reference.table.table import ABSENT, WHOLE, Row, Rows, Table
from fsstore.reference.table.value import decode_value, plain_text
from fsstore.reference.tuning import REFERENCES_AT_ONCE
from fsstore.values.json_value import show

__all__ = ["Pieces", "from_json", "from_mapping"]

MAX_PROBLEMS = 100
FREE_TEXT, MOST_GROWTH = 2**26, 64
"""Characters that the URLs of a set may render to, and how many times what was written they may be beyond."""
Pieces = Callable[[], Iterable[json_scan.Buffer]]

_SPECIAL = {"version", "templates", "gen", "refs", MEMBER}
_BESIDE_REFS = {"templates", "gen", "refs", "generationMetadata", MEMBER}


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
        while some := list(islice(items, REFERENCES_AT_ONCE)):
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
        return (
            "version" not in document.special and document.refs is not None and document.names <= _BESIDE_REFS
        )
    if version != 1:
        raise JsonError(
            f"Unsupported version of a reference set: {show(version)}; 0 (no version) and 1 are known"
        )
    return True


def from_mapping(
    mapping: Mapping[str, Any], *, target: str | None = None, overrides: Mapping[str, str] | None = None
) -> TableSet:
    """Return the set of a document given as Python objects; values may be bytes."""
    version = mapping.get("version")
    one = version == 1 and not isinstance(version, list | tuple)
    if version is not None and not one:
        raise JsonError(
            f"Unsupported version of a reference set: {show(version)}; 0 (no version) and 1 are known"
        )
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
        return known
    return _version_1(refs, None, None, overrides)


def _version_1(refs: _Refs, templates: Any, gen: Any, overrides: Mapping[str, str] | None) -> TableSet:
    """Return the set of references, templates and generators, with every URL rendered."""
    named = _templates(refs, templates, overrides)
    gens: list[Gen] = []
    if gen is not None and not isinstance(gen, list | tuple):
        refs.problems.append(
            f'Error parsing object member "gen": Expected array, but received: {show(gen)[:80]}'
        )
    room = MAX_TABULATED
    for position, entry in enumerate(gen if isinstance(gen, list | tuple) else ()):
        try:
            gens.append(parse_gen(entry, named, room=room))
            room -= gens[-1].tabulated
        except (JsonError, TemplateError) as error:
            refs.problems.append(
                f'Error parsing object member "gen": at position {position}: {error.message}'
            )
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
