"""The `kvstack` key-value store: ranges of keys, each from a store of its own; later layers hide earlier ones."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fsstore.context.context import Context
from fsstore.errors import JsonError, StoreError
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    Entry,
    Features,
    KvOpening,
    KvPrefix,
    Read,
    ReadResult,
    RootKind,
    Stamp,
    Write,
)
from fsstore.kvstore.contract.request import KeyRange, key_bytes, key_text, prefix_end
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.values.json_value import Fields, Json, array_of, integer, json_error, quote, string


@dataclass(frozen=True, slots=True)
class KeyPiece:
    """The keys of a range; `base` holds them without their first `strip` bytes."""

    keys: KeyRange
    strip: int
    base: KvPrefix
    json: Json

    def below(self, key: bytes) -> str:
        """Return the key in the base."""
        return key_text(key[self.strip :])

    def inside(self, keys: KeyRange) -> KeyRange:
        """Return the intersection of a range with the piece."""
        low = max(keys.inclusive_min, self.keys.inclusive_min)
        return KeyRange(low, _earlier(keys.exclusive_max, self.keys.exclusive_max))


def _earlier(a: bytes, b: bytes) -> bytes:
    """Return the smaller of two ends; empty means no end."""
    return min(a, b) if a and b else a or b


def _exact(keys: KeyRange) -> bytes | None:
    """Return the key of a range that holds one key only, otherwise None."""
    return keys.inclusive_min if keys.exclusive_max == keys.inclusive_min + b"\0" else None


def _common(keys: KeyRange) -> bytes:
    exact = _exact(keys)
    return keys.common_prefix if exact is None else exact


def disjoint(layers: Sequence[KeyPiece]) -> list[KeyPiece]:
    """Return the layers without the keys that later ones hide, in order of keys."""
    pieces: list[KeyPiece] = []
    for layer in layers:
        if layer.keys.empty:
            continue
        low, high = layer.keys.inclusive_min, layer.keys.exclusive_max
        left = []
        for piece in pieces:
            before = KeyRange(piece.keys.inclusive_min, _earlier(low, piece.keys.exclusive_max)) if low else None
            after = KeyRange(max(high, piece.keys.inclusive_min), piece.keys.exclusive_max) if high else None
            left += [replace(piece, keys=part) for part in (before, after) if part is not None and not part.empty]
        pieces = [*left, layer]
    return sorted(pieces, key=lambda piece: piece.keys.inclusive_min)


class KeyStackDriver:
    """The stores of `pieces`, disjoint and in order of keys."""

    id: ClassVar[str] = "kvstack"

    def __init__(self, pieces: Sequence[KeyPiece]) -> None:
        self.pieces = tuple(pieces)
        below = [piece.base.driver.features for piece in pieces]
        self.features = Features(
            waits=any(one.waits for one in below),
            writable=any(one.writable for one in below),
            listable=all(one.listable for one in below),
            create_only=all(one.create_only for one in below),
            conditional_write=all(one.conditional_write for one in below),
            conditional_delete=all(one.conditional_delete for one in below),
            sorted_scan=all(one.sorted_scan for one in below),
            slow_writes=any(one.slow_writes for one in below),
        )

    def _of(self, key: str) -> int | None:
        data = key_bytes(key)
        return next((at for at, piece in enumerate(self.pieces) if piece.keys.contains(data)), None)

    def _grouped(self, keys: Sequence[str]) -> dict[int | None, list[int]]:
        groups: dict[int | None, list[int]] = {}
        for at, key in enumerate(keys):
            groups.setdefault(self._of(key), []).append(at)
        return groups

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`, with one batch for each layer; keys outside all layers are missing."""
        results = [ReadResult("missing", b"", NO_VALUE, math.inf)] * len(reads)
        for at, places in self._grouped([read.key for read in reads]).items():
            if at is None:
                continue
            piece = self.pieces[at]
            asked = [reads[place]._replace(key=piece.below(key_bytes(reads[place].key))) for place in places]
            for place, answer in zip(places, await piece.base.read_many(asked), strict=True):
                results[place] = answer
        return results

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes`, with one batch for each layer; a key outside all layers is an error before any write."""
        stamps = [Stamp()] * len(writes)
        groups = self._grouped([write.key for write in writes])
        if None in groups:
            raise StoreError(f"Key not found in any layers: {quote(writes[groups[None][0]].key)}")
        for at, places in groups.items():
            assert at is not None
            piece = self.pieces[at]
            asked = [writes[place]._replace(key=piece.below(key_bytes(writes[place].key))) for place in places]
            for place, stamp in zip(places, await piece.base.write_many(asked), strict=True):
                stamps[place] = stamp
        return stamps

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete the keys of a range in every layer that has some."""
        for piece in self.pieces:
            part = piece.inside(keys)
            if not part.empty:
                await piece.base.delete_range(_stripped(part, piece.strip))

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range, layer by layer in order of keys."""
        for piece in self.pieces:
            part = piece.inside(keys)
            if part.empty:
                continue
            lead = piece.keys.inclusive_min[: piece.strip]
            async for batch in piece.base.scan(_stripped(part, piece.strip)):
                found = [Entry(key_text(lead + key_bytes(entry.key)), entry.size) for entry in batch]
                yield [entry for entry in found if part.contains(entry.key)]

    def describe_key(self, key: str) -> str:
        """Return the layer's name of the key."""
        at = self._of(key)
        return quote(key) if at is None else self.pieces[at].base.describe(self.pieces[at].below(key_bytes(key)))

    def spec(self) -> Mapping[str, Json]:
        """Return the visible parts of the layers."""
        return {"layers": [_layer_json(piece.json, piece.keys, piece.strip) for piece in self.pieces]}


def _stripped(keys: KeyRange, strip: int) -> KeyRange:
    """Return a range without the `strip` bytes that all its keys begin with."""
    lead = keys.inclusive_min[:strip]
    high = keys.exclusive_max
    return KeyRange(keys.inclusive_min[strip:], high[strip:] if high.startswith(lead) else b"")


def _layer_json(base: Json, keys: KeyRange, strip: int) -> dict[str, Json]:
    out: dict[str, Json] = {"base": base}
    exact, low, high = _exact(keys), keys.inclusive_min, keys.exclusive_max
    if exact is not None:
        out["exact"] = key_text(exact)
    elif low and high == prefix_end(low):
        out["prefix"] = key_text(low)
    else:
        out |= {"inclusive_min": key_text(low)} if low else {}
        out |= {"exclusive_max": key_text(high)} if high else {}
    is_usual = strip == len(_common(keys)) == _common_elsewhere(keys)
    return out if is_usual else {**out, "strip_prefix": strip}


def _common_elsewhere(keys: KeyRange) -> int:
    """Return the length of TensorStore's default prefix: too long for some ranges, such as 1 for `["b", "cb")`."""
    low, high, length = keys.inclusive_min, keys.exclusive_max, len(_common(keys))
    at = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    if high and at + 1 == len(low) and at < len(high) and low[at] + 1 == high[at]:
        return max(length, at + 1)
    return length


def _base_json(value: Any) -> Json:
    try:
        json: Json = kv_spec(value).to_json()
    except StoreError as error:
        raise json_error(error) from None
    return json


def _parse_layer(value: Any) -> dict[str, Json]:

    fields = Fields(value)
    below = fields.require("base", _base_json)
    exact, prefix = fields.take("exact", string), fields.take("prefix", string)
    low, high = fields.take("inclusive_min", string), fields.take("exclusive_max", string)
    strip = fields.take("strip_prefix", integer(0))
    if sum((exact is not None, prefix is not None, low is not None or high is not None)) > 1:
        last = "inclusive_min" if low is not None else "exclusive_max"
        fields.problem(f'At most one of "prefix", "exact", "{last}" members is allowed')
    fields.finish()
    if exact is not None:
        keys, what = KeyRange(exact, key_bytes(exact) + b"\0"), f"exact {quote(exact)}"
    elif prefix is not None:
        keys, what = KeyRange.prefix(prefix), f"prefix {quote(prefix)}"
    else:
        keys, what = KeyRange(low or "", high or ""), f"range [{quote(low or '')}, {quote(high or '')})"
        if keys.exclusive_max and keys.inclusive_min > keys.exclusive_max:
            raise JsonError(f"Invalid inclusive_min/exclusive_max in range {what}")
    longest = len(_common(keys))
    if strip is not None and strip > longest:
        raise JsonError(f"Invalid strip_prefix of {strip} for {what}")
    return _layer_json(below, keys, longest if strip is None else strip)


def _range_of(layer: Mapping[str, Any]) -> tuple[KeyRange, int]:
    """Return the range of a parsed layer, and the number of bytes that it strips."""
    if "exact" in layer:
        keys = KeyRange(layer["exact"], key_bytes(layer["exact"]) + b"\0")
    elif "prefix" in layer:
        keys = KeyRange.prefix(layer["prefix"])
    else:
        keys = KeyRange(layer.get("inclusive_min", ""), layer.get("exclusive_max", ""))
    return keys, layer.get("strip_prefix", len(_common(keys)))


class KeyStackKind(RootKind):
    """`{"driver": "kvstack", "layers": [{"base": ..., "prefix": ...}, ...]}`; it has no URL."""

    id: str = "kvstack"
    schemes: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the layers."""
        return {"layers": fields.require("layers", array_of(_parse_layer))}

    async def open(self, opening: KvOpening) -> KeyStackDriver:
        """Open the stores of all layers."""
        layers: Any = opening.members["layers"]
        context = opening.context or Context()
        pieces = []
        for layer in layers:
            keys, strip = _range_of(layer)
            opened = await open_kv(kv_spec(layer["base"]), context)
            pieces.append(KeyPiece(keys, strip, opened.prefix, layer["base"]))
        return KeyStackDriver(disjoint(pieces))


KIND = KeyStackKind()
"""The kind of `{"driver": "kvstack"}`."""
