"""Reference documents in JSON, versions 0 and 1, read into a table.

Version 1 has a member `version` equal to 1 and holds `refs`, `templates` and `gen`; other members are ignored.
Version 0 has none, and the document is the map of references.  One dialect leaves `version` out of a version 1
document: it is recognised when `refs` is an object and nothing but members of version 1 stands beside it.

The document is scanned once (`json_scan`).  Every malformed reference is reported, with its key and the byte where
it stands, all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fsstore._json import show
from fsstore.errors import DataLossError, JsonError
from fsstore.kvstore.reference import json_scan
from fsstore.kvstore.reference.gen import Gen, parse_gen
from fsstore.kvstore.reference.json_scan import Run, Span
from fsstore.kvstore.reference.keys import check_key
from fsstore.kvstore.reference.refset import TableSet
from fsstore.kvstore.reference.table import ABSENT, WHOLE, Row, Rows, Table, TableBuilder
from fsstore.kvstore.reference.template import TemplateError, Templates, render
from fsstore.kvstore.reference.value import decode_value

__all__ = ["from_json", "from_mapping"]

MAX_PROBLEMS = 100
_SPECIAL = ("version", "templates", "gen", "refs")
_BESIDE_REFS = {"templates", "gen", "refs", "generationMetadata"}


class _Refs:
    """Takes the members of a map of references into a table, and remembers what is wrong with them."""

    def __init__(self, target: str | None) -> None:
        self.builder = TableBuilder()
        self.problems: list[str] = []
        self._target = target

    def run(self, run: Run) -> None:
        if any(b".." in key or key.startswith(b"/") or len(key) > 4096 for key in run.keys):
            self.problems += [
                f"Error in reference {show(key.decode('utf-8', 'replace'))}: {why}"
                for key in run.keys
                if (why := check_key(key.decode("utf-8", "replace"))) is not None
            ]
        try:
            b"".join(run.keys).decode()
            urls = self.builder.url_ids(run.urls)
        except UnicodeDecodeError:
            raise DataLossError("Invalid JSON: a key or URL is not UTF-8") from None
        if run.numbers is None:
            rows = Rows(urls, np.zeros(len(urls), np.int64), np.full(len(urls), WHOLE, np.int64))
        else:
            rows = Rows(urls, run.numbers[:, 0].copy(), run.numbers[:, 1].copy())
        self.builder.add_rows(run.keys, rows)

    def member(self, data: json_scan.Buffer, key: str, value: Span) -> None:
        found = json_scan.parse(data, value)
        place = f" at byte {value.start}"
        if isinstance(found, dict):  # the text is kept as it is: numbers and spaces survive
            found = bytes(data[value.start : value.stop])
            self._keep(key, place, lambda: found)
        else:
            self._keep(key, place, lambda: decode_value(found))

    def enter(self, data: json_scan.Buffer, key: str, start: int) -> int | None:  # the contract of sinks
        return None

    def value(self, key: str, value: Any) -> None:
        """Take a member of a Python mapping."""
        self._keep(key, "", lambda: decode_value(value))

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


class _Document(_Refs):
    """Takes the top level of a document: sets members of version 1 aside until the version is known."""

    def __init__(self, target: str | None) -> None:
        super().__init__(target)
        self.special: dict[str, Span] = {}
        self.names: set[str] = set()
        self.refs: _Refs | None = None

    def run(self, run: Run) -> None:
        self.names.add("a reference")
        super().run(run)

    def member(self, data: json_scan.Buffer, key: str, value: Span) -> None:
        if key in _SPECIAL:
            self.special[key] = value
        else:
            super().member(data, key, value)
        self.names.add(key)

    def enter(self, data: json_scan.Buffer, key: str, start: int) -> int | None:
        if key != "refs":
            return None
        self.names.add(key)
        self.refs = _Refs(self._target)
        stop = json_scan.scan_members(data, start, self.refs)
        self.special[key] = Span(start, stop)
        return stop


def from_json(
    data: json_scan.Buffer, *, target: str | None = None, overrides: Mapping[str, str] | None = None
) -> TableSet:
    """Return the set of a JSON document, uncompressed.

    `target` stands in for null URLs; `overrides` replaces or adds templates.
    """
    start = json_scan.skip_space(data, 3 if data[:3] == b"\xef\xbb\xbf" else 0)
    if data[start : start + 1] == b"[":
        raise JsonError(
            "Expected a reference set, but received an array (a GRIB scan gives one set a message: save each)"
        )
    if data[start : start + 1] != b"{":
        raise json_scan.damaged(data, start, "an object")
    document = _Document(target)
    stop = json_scan.skip_space(data, json_scan.scan_members(data, start, document))
    if stop != len(data):
        raise json_scan.damaged(data, stop, "the end of the document")
    parsed = {name: json_scan.parse(data, span) for name, span in document.special.items() if name != "refs"}
    if _is_version_1(parsed.get("version"), document):
        if "refs" in document.special and document.refs is None:
            raise JsonError('Error parsing object member "refs": Expected object')
        refs = document.refs or _Refs(target)
        return _version_1(refs, parsed.get("templates"), parsed.get("gen"), overrides)
    for name, span in document.special.items():
        if name != "version":
            _Refs.member(document, data, name, span)
    return _version_1(document, None, None, overrides)


def _is_version_1(version: Any, document: _Document) -> bool:
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
    for key, value in found.items():
        if key == "version" and value is None and found is mapping:
            continue
        if isinstance(key, str):
            refs.value(key, value)
        else:
            refs.problems.append(f"Expected text as key, but received: {key!r}")
    if one or plain:
        return _version_1(refs, mapping.get("templates"), mapping.get("gen"), overrides)
    return _version_1(refs, None, None, overrides)


def _version_1(refs: _Refs, templates: Any, gen: Any, overrides: Mapping[str, str] | None) -> TableSet:
    """Return the set of references, templates and generators, with every URL rendered."""
    named = _templates(refs, templates, overrides)
    gens: list[Gen] = []
    if gen is not None and not isinstance(gen, list | tuple):
        refs.problems.append(
            f'Error parsing object member "gen": Expected array, but received: {show(gen)[:80]}'
        )
    for position, entry in enumerate(gen if isinstance(gen, list | tuple) else ()):
        try:
            gens.append(parse_gen(entry, named))
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
    for number, url in enumerate(urls):
        try:
            urls[number] = render(named, url)
        except TemplateError as error:
            refs.problems.append(f"Error in URL {show(url[:200])}: {error.message}")


def _templates(refs: _Refs, templates: Any, overrides: Mapping[str, str] | None) -> Templates:
    found: dict[str, str] = {}
    if isinstance(templates, Mapping):
        wrong = [name for name, text in templates.items() if not isinstance(text, str)]
        refs.problems += [
            f'Error parsing object member "templates": {show(name)}: Expected string' for name in wrong
        ]
        found = {name: text for name, text in templates.items() if isinstance(text, str)}
    elif templates is not None:
        refs.problems.append(
            f'Error parsing object member "templates": Expected object, but received: {show(templates)[:80]}'
        )
    return Templates({**found, **(overrides or {})})
