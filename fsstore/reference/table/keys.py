"""Chunk-like keys: a prefix and trailing integers, taken apart in bulk.

`temp/0.12.3` is the prefix `temp`, the separators `/..` and the coordinates `(0, 12, 3)`; `temp/c/4/5` is `temp/c`,
`//`, `(4, 5)`.  Keys with the same prefix and separators form a *family*.  The rule looks at the text alone: as
many trailing components as are canonical integers, after the last component that is not.  Whether an array of that
name exists does not matter, so no metadata is needed and it may come in any order; a family of pyramid levels
`level/0/3.4` simply has one more dimension.

Every other key is *loose*.  Splitting is deterministic and exact, so looking up is splitting again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Family", "KeyGroup", "check_key", "join", "split", "split_one", "tails"]

_LINE = re.compile(
    rb"^(?:(.*[^0-9./\n][0-9]*+|)((?:[./](?:0|[1-9][0-9]{0,17}))++)|.*)$",
    re.MULTILINE,
)
_ODD = re.compile(rb"[^0-9](?:[^0-9]|0[0-9]|\Z)|[0-9]{19}")
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")
_DIGITS = b"0123456789"
NUMBERS_ONLY = bytes(code if 48 <= code < 58 else 32 for code in range(256))
"""Translation table that leaves digits and turns every other byte into a space."""

Family = tuple[bytes, bytes]
"""Prefix with a slash put before it (empty for keys that are coordinates alone), and separators."""


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Keys of one family among the keys split: their positions there, and coordinates, a row each."""

    family: Family
    positions: np.ndarray[Any, np.dtype[np.int64]] | slice
    coords: np.ndarray[Any, np.dtype[np.int64]]


def check_key(key: str) -> str | None:
    """Return what forbids `key` in a set, or None.

    Keys that climb out of a directory, or that no file system can hold, are refused wherever they come from.
    """
    if len(key) > 4096:
        return "the key is longer than 4096 characters"
    if "\0" in key:
        return "the key contains a zero byte"
    if ".." in key and ".." in key.replace("\\", "/").split("/"):
        return "the key contains the component '..'"
    return "the key starts with a slash" if key.startswith("/") else None


def split(keys: Sequence[bytes]) -> tuple[list[KeyGroup], list[int]]:
    """Return the groups of `keys` by family, and the positions of the loose keys."""
    text = b"/" + b"\n/".join(keys)
    if text.count(b"\n") >= len(keys):
        return _split_with_newlines(keys)
    group = _one_family(text, keys)
    if group is not None:
        return [group], []
    pairs = _LINE.findall(text)
    return _by_family([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def _one_family(text: bytes, keys: Sequence[bytes]) -> KeyGroup | None:
    """Return the group of keys that are of the family of the first, as nearly always; None otherwise.

    `text` is the keys in lines.  Without the prefix at the start of each, all that is left must be canonical integers
    between the same separators.
    """
    first = split_one(keys[0])
    if first is None:
        return None
    (prefix, seps), _ = first
    lines = b"\n" + text
    rest = lines.replace(b"\n" + prefix + seps[:1], b"\n")
    removed = len(lines) - len(rest)
    if removed != len(keys) * len(prefix + seps[:1]) or _ODD.search(rest):
        return None
    if rest.translate(None, _DIGITS) != (b"\n" + seps[1:]) * len(keys):
        return None
    return KeyGroup((prefix, seps), slice(0, len(keys)), _coords(rest, len(seps)))


def split_one(key: bytes) -> tuple[Family, list[int]] | None:
    """Return the family and coordinates of one key, or None for a loose one."""
    if b"\n" in key:
        return None
    match = _LINE.match(b"/" + key)
    if match is None or match[2] is None:
        return None
    return (match[1], match[2].translate(None, _DIGITS)), [
        int(text) for text in match[2].translate(NUMBERS_ONLY).split()
    ]


def tails(key: bytes, most: int) -> Iterator[tuple[Family, list[int]]]:
    """Yield every way to take up to `most` trailing integers of a key for coordinates, the fewest first.

    `split_one` takes all that there are; here some of them may belong to the path of an array instead.
    """
    text, seps, coords = b"/" + key, b"", list[int]()
    end = len(text)
    while len(seps) < most:
        cut = max(text.rfind(b"/", 0, end), text.rfind(b".", 0, end))
        if cut < 0 or not _NUMBER.fullmatch(text, cut + 1, end):
            return
        seps, coords = text[cut : cut + 1] + seps, [int(text[cut + 1 : end]), *coords]
        yield (text[:cut], seps), coords
        end = cut


def _by_family(prefixes: list[bytes], suffixes: list[bytes]) -> tuple[list[KeyGroup], list[int]]:
    members: dict[Family, list[int]] = {}
    for position, (prefix, suffix) in enumerate(zip(prefixes, suffixes, strict=True)):
        members.setdefault((prefix, suffix.translate(None, _DIGITS)), []).append(position)
    loose: list[int] = []
    groups = []
    for family, positions in members.items():
        if not family[1]:
            loose += positions
            continue
        coords = _coords(b" ".join([suffixes[position] for position in positions]), len(family[1]))
        groups.append(KeyGroup(family, np.array(positions, np.int64), coords))
    return groups, sorted(loose)


def _split_with_newlines(keys: Sequence[bytes]) -> tuple[list[KeyGroup], list[int]]:
    plain = [position for position, key in enumerate(keys) if b"\n" not in key]
    groups, loose = split([keys[position] for position in plain]) if plain else ([], [])
    where = np.array(plain, np.int64)
    moved = [KeyGroup(group.family, where[group.positions], group.coords) for group in groups]
    odd = [position for position, key in enumerate(keys) if b"\n" in key]
    return moved, sorted(odd + [plain[position] for position in loose])


def _coords(text: bytes, ndim: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromstring(text.translate(NUMBERS_ONLY), np.int64, sep=" ").reshape(-1, ndim)


def join(family: Family, coords: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[str]:
    """Yield the keys of coordinates of a family: the inverse of `split`."""
    prefix, seps = family
    pattern = prefix.decode().replace("%", "%%") + "".join(f"{chr(sep)}%d" for sep in seps)
    pattern = pattern[1:]
    return (pattern % tuple(row) for row in coords.tolist())
