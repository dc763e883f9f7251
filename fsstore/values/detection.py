"""Telling a format by the files of a directory, or by the first and last bytes of a file.

Each format says in its own file, as a `Detection`, what it is recognised by; this module compares.  It is pure: who
reads the bytes, how many formats there are, and what is done with the one that matches is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Detection",
    "is_page",
    "is_text_of_json",
    "is_whole_json",
    "match_file",
    "match_files",
    "settle",
    "sizes",
]


@dataclass(frozen=True, slots=True)
class Detection:
    """The signature of a format.

    `name` is its URL scheme and what messages call it.  `role` says what is opened: the `array` driver of that
    name, the `store` adapter of that name, or `foreign` for formats known by name only, which `tool` reads.

    A directory is of the format when all of `files` are in it; with `read_whole` opening it begins with reading them,
    so detection asks for no less and hands over what it got.  A file is when it has one of the `signatures` (pairs
    of an offset and the bytes there, all of one tuple together), or when `matches(head, tail)` says so, given its
    first `head` and last `tail` bytes; a file shorter than that is given whole, twice.  `at_least` is its smallest
    size.  With `confirm` that only makes it likely, and the first `confirm_head` bytes decide; a format that is certain
    then takes precedence `over` the ones named there.  `usual_head` is how files recognised by their end nearly always
    begin: where reading the end costs reading everything, only those are looked at.
    """

    name: str
    role: Literal["array", "store", "foreign"]
    files: tuple[str, ...] = ()
    read_whole: bool = False
    signatures: tuple[tuple[tuple[int, bytes], ...], ...] = ()
    matches: Callable[[bytes, bytes], bool] | None = None
    head: int = 0
    tail: int = 0
    at_least: int = 0
    confirm: Callable[[bytes], bool] | None = None
    confirm_head: int = 0
    over: tuple[str, ...] = ()
    usual_head: bytes = b""
    tool: str = ""
    title: str = ""

    def fits(self, head: bytes, tail: bytes) -> bool:
        """Return whether a file with this beginning and this end is of the format."""
        if len(head) < self.at_least:
            return False
        for signature in self.signatures:
            if all(head.startswith(magic, offset) for offset, magic in signature):
                return True
        return self.matches is not None and self.matches(head, tail)

    @property
    def is_of_files(self) -> bool:
        """Whether single files can be of the format."""
        return bool(self.signatures) or self.matches is not None


def sizes(detections: Iterable[Detection]) -> tuple[int, int]:
    """Return how many first and last bytes are enough to tell all of the formats."""
    head = tail = 0
    for each in detections:
        ends = [offset + len(magic) for signature in each.signatures for offset, magic in signature]
        head = max(head, each.head, each.at_least, *ends, 0)
        tail = max(tail, each.tail)
    return head, tail


def match_file(detections: Iterable[Detection], head: bytes, tail: bytes) -> list[Detection]:
    """Return the formats that a file with this beginning and this end can be of."""
    return [each for each in detections if each.is_of_files and each.fits(head, tail)]


def settle(found: Iterable[Detection], head: bytes) -> list[Detection]:
    """Return which of the formats found are left when the first bytes (the largest `confirm_head`) are known."""
    kept = [each for each in found if each.confirm is None or each.confirm(head)]
    beaten = {name for each in kept for name in each.over}
    return [each for each in kept if each.name not in beaten]


def match_files(detections: Iterable[Detection], present: set[str]) -> list[Detection]:
    """Return the formats that a directory can be of which has the files `present`."""
    return [each for each in detections if each.files and present.issuperset(each.files)]


def is_whole_json(head: bytes, tail: bytes) -> bool:
    """Return whether a value begins and ends like a JSON document that is an object or an array.

    Only the beginning of one that is cut off could be read, and it may be that of something else than it seems.
    Where the end is not known, nothing is said of it.

    >>> is_whole_json(b'{"a": 1}', b'{"a": 1}\\n'), is_whole_json(b'{"a": 1', b'{"a": 1')
    (True, False)
    """
    return is_text_of_json(head, tail) and (not tail or tail.rstrip(b" \t\r\n").endswith((b"}", b"]")))


def is_page(head: bytes) -> bool:
    """Return whether a value begins like a page of HTML, which web servers send for directories.

    >>> is_page(b"<!DOCTYPE HTML><html>"), is_page(b"<x>")
    (True, False)
    """
    return head.lstrip().lower().startswith((b"<!doctype html", b"<html"))


def is_text_of_json(head: bytes, tail: bytes) -> bool:  # noqa: ARG001  # the contract of `Detection.matches`
    """Return whether a value begins like a JSON document that is an object or an array.

    >>> is_text_of_json(b'  {"a": 1}', b"")
    True
    >>> is_text_of_json(b"{x", b"")
    False
    """
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    inside = text[1:].lstrip(b" \t\r\n")[:1]
    if text.startswith(b"{"):
        return inside in (b'"', b"}", b"")
    return text.startswith(b"[") and inside in b'"{[]tfn-0123456789'
