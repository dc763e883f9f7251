"""The `.zmetadata` of a parquet set: every metadata document, and the number of references in a file.

The documents stand in it as JSON objects; their text is kept as it is, byte for byte, but for white space around it.
Only documents and chunks of arrays have a place in a parquet set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fsstore.errors import JsonError
from fsstore.reference.document.json_scan import Buffer, JsonMember, MemberSink, Scanner
from fsstore.reference.state.scan_record import MEMBER, ScanRecord
from fsstore.reference.table.builder import Run
from fsstore.reference.table.grid import Grid, grid_of
from fsstore.reference.table.keys import check_key
from fsstore.reference.table.value import decode_text, encode_text
from fsstore.values.json_value import Fields, integer, show

__all__ = ["MAX_RECORD_SIZE", "format_metadata", "is_object", "parse_metadata"]

MAX_RECORD_SIZE = 10_000_000
_CLAIM = "fsstore_claim"


def is_object(value: bytes) -> bool:
    """Return whether a value is the text of a JSON object, as `.zmetadata` can hold it."""
    try:
        return isinstance(json.loads(value.decode()), dict)
    except (ValueError, RecursionError):
        return False


def format_metadata(
    metadata: Mapping[str, bytes], record_size: int, scanned: ScanRecord | None = None, *, claim: str = ""
) -> bytes:
    """Return a `.zmetadata`; the documents stand in it as they are, and what is no document as text.

    A `claim` of a writer makes it another one than all before, and says nothing to readers.
    """
    members = b",".join(json.dumps(key).encode() + b":" + _text(metadata[key]) for key in sorted(metadata))
    record = b"" if scanned is None else b',"%b":%b' % (MEMBER.encode(), json.dumps(scanned.json()).encode())
    claimed = b"" if not claim else b',"%b":%b' % (_CLAIM.encode(), json.dumps(claim).encode())
    return b'{"metadata":{' + members + b'},"record_size":%d' % record_size + record + claimed + b"}"


def _text(value: bytes) -> bytes:
    return value.strip() if is_object(value) else json.dumps(encode_text(value)).encode()


class _Metadata:
    """Takes the members of the `metadata` object: keys and the JSON text of their values."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.parsed: dict[str, Any] = {}
        self.problems: list[str] = []

    def run(self, run: Run) -> bool:
        """Want metadata one by one, as their text."""
        return False

    def batch(self, members: dict[str, Any]) -> bool:
        """Want metadata one by one, as their text."""
        return False

    def enter(self, key: str) -> MemberSink | None:  # the contract of sinks
        return None

    def member(self, member: JsonMember) -> None:
        key, found = member.key, member.parse()
        why = check_key(key)
        if why is not None:
            self.problems.append(f"Error in metadata {show(key)}: {why}")
        elif isinstance(found, dict):
            self.values[key], self.parsed[key] = member.text, found
        elif isinstance(found, str):
            value = self.values[key] = decode_text(found)
            if is_object(value):
                self.parsed[key] = json.loads(value)
        else:
            self.problems.append(
                f"Error in metadata {show(key)}: Expected object, but received: {show(found)[:80]}"
            )


class _MetadataMembers:
    """Takes the members of a `.zmetadata`."""

    def __init__(self) -> None:
        self.metadata = _Metadata()
        self.others: dict[str, Any] = {}
        self.complete = False

    def run(self, run: Run) -> bool:
        """Want members one by one."""
        return False

    def batch(self, members: dict[str, Any]) -> bool:
        """Want metadata one by one, as their text."""
        return False

    def enter(self, key: str) -> MemberSink | None:
        self.complete |= key == "metadata"
        return self.metadata if key == "metadata" else None

    def member(self, member: JsonMember) -> None:
        self.others[member.key] = member.parse()


def parse_metadata(data: Buffer) -> tuple[dict[str, bytes], dict[str, Grid], int, ScanRecord | None]:
    """Return the metadata documents, the grids of the arrays, the record size, and what was scanned."""
    scanner, document = Scanner((data,)), _MetadataMembers()
    if scanner.first() != b"{":
        raise scanner.damaged("an object")
    scanner.members(document)
    scanner.finish()
    found = document.metadata
    if not document.complete:
        found.problems.append('Error parsing object member "metadata": Expected object')
    fields = Fields({name: value for name, value in document.others.items() if name == "record_size"})
    record_size = fields.require("record_size", integer(1, MAX_RECORD_SIZE))
    try:
        fields.finish()
    except JsonError as error:
        found.problems += error.problems
    grids = {}
    for key, value in found.parsed.items():
        path, _, name = key.rpartition("/")
        if name not in (".zarray", "zarr.json"):
            continue
        try:
            grid = grid_of(path, value)
        except JsonError as error:
            found.problems += error.within(f"Error in metadata {show(key)}").problems
            continue
        if grid is not None:
            grids[path] = grid
    if found.problems:
        raise JsonError(found.problems[:100])
    return found.values, grids, record_size, ScanRecord.parse(document.others.get(MEMBER))
