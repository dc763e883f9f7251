"""Which file a set was scanned from: enough to tell, later and elsewhere, whether it still is that file.

It is saved with the set, as the member `scanned` next to the references, which other readers ignore.  A set that has
changed since has no record, because it no longer describes the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fsstore.errors import JsonError
from fsstore.values.json_value import Fields, Json, integer, string

__all__ = ["MEMBER", "ScanRecord"]

MEMBER = "scanned"


@dataclass(frozen=True, slots=True)
class ScanRecord:
    """A scanned file: its format, what the references call it, its size, and what its store says of its version.

    `stamp` is empty where the store says nothing.
    """

    format: str
    url: str
    size: int
    stamp: str

    def json(self) -> dict[str, Json]:
        """Return the member."""
        return {"format": self.format, "url": self.url, "size": self.size, "stamp": self.stamp}

    def moved(self, move: Callable[[str], str]) -> ScanRecord:
        """Return the record of a set that calls its targets otherwise."""
        return replace(self, url=move(self.url))

    @classmethod
    def parse(cls, value: Any) -> ScanRecord | None:
        """Return the record that a document holds; None for a member that is none, which other programs may write."""
        if not isinstance(value, dict):
            return None
        fields = Fields(value)
        try:
            found = cls(
                fields.require("format", string),
                fields.require("url", string),
                fields.require("size", integer(0, 2**63)),
                fields.require("stamp", string),
            )
            fields.finish()
        except JsonError:
            return None
        return found
