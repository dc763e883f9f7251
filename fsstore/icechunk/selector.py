"""The name of what is read: `branch.NAME`, `tag.NAME`, or the 20 characters of a snapshot."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fsstore.errors import StoreError
from fsstore.icechunk.format.identifier import decode_identifier, encode_identifier
from fsstore.values.json_value import quote

__all__ = ["MAIN", "Selector", "parse_selector"]

MAIN = "branch.main"


class Selector(NamedTuple):
    """A branch or tag by its name, or a snapshot by its identifier."""

    by: Literal["branch", "tag", "snapshot"]
    name: str

    def __str__(self) -> str:
        """Return the text it is parsed from."""
        return self.name if self.by == "snapshot" else f"{self.by}.{self.name}"


def parse_selector(text: str) -> Selector:
    """Return what a text names.

    >>> parse_selector("tag.v5")
    Selector(by='tag', name='v5')
    >>> str(parse_selector("1cechnkrep0f1rstcmt0"))
    '1CECHNKREP0F1RSTCMT0'
    """
    kind, dot, name = text.partition(".")
    if dot and name and kind == "branch":
        return Selector("branch", name)
    if dot and name and kind == "tag":
        return Selector("tag", name)
    if dot or len(text) != 20:
        raise StoreError(
            f'Expected "branch.NAME", "tag.NAME" or the 20 characters of a snapshot, but received: {quote(text)}'
        )
    return Selector("snapshot", encode_identifier(decode_identifier(text)))
