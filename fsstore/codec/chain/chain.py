"""A chain of codecs as stored in zarr v3 metadata: array codecs, one codec that makes bytes, bytes codecs.

Here is the strict reading: every codec is an object, every needed member is there, and the kinds come in order.
`chain_spec` reads the partial chains of specs and completes them.  Binding a chain to a chunk checks everything that
depends on dtype and shape, and gives what the chunk engine calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from fsstore.codec.chain.bound_chain import BoundChain
from fsstore.codec.contract import BoundCodec, ByteSpec, ChunkSpec, Codec, CodecFactory, Kind
from fsstore.errors import JsonError, StoreError
from fsstore.values import registry
from fsstore.values.json_value import Fields, Json, array_of, boolean, expected, obj, quote, string

__all__ = ["CodecChain", "codec_json", "find_codec", "misplaced", "parse_entry"]


def find_codec(name: Any) -> CodecFactory:
    """Return what is registered as `name`, or raise an error that says why nothing is."""
    found: CodecFactory | None = registry.codecs.get(string(name))
    for prefix in registry.codec_families.names() if found is None else ():
        if name.startswith(prefix) and (find := registry.codec_families.get(prefix)) is not None:
            found = find(name)
    if found is None:
        found = _without_prefix(name)
    if found is None:
        raise JsonError(f"{quote(name)} is not registered")
    return found


def _without_prefix(name: str) -> CodecFactory | None:
    """Return the codec of numcodecs that is called so there; its names are also known without a prefix."""
    find = registry.codec_families.get("numcodecs.")
    try:
        return None if find is None else find(name)
    except JsonError:  # numcodecs has no such codec either
        return None


def parse_entry(value: Any) -> tuple[CodecFactory, dict[str, Any]]:
    """Return the codec that one element of a chain names, and its raw configuration."""
    fields = Fields(value)
    factory = fields.require("name", find_codec)
    configuration = fields.take("configuration", obj, default={})
    fields.take("must_understand", boolean)  # a codec that is known is understood
    fields.finish()
    return factory, configuration


def codec_json(name: str, configuration: Mapping[str, Any]) -> dict[str, Json]:
    """Return one element of a chain; an empty configuration is left out, except where zarr-python demands it."""
    if configuration or name.startswith("numcodecs."):
        return {"name": name, "configuration": dict(configuration)}
    return {"name": name}


def misplaced(kinds: Iterable[Kind]) -> int | None:
    """Return the position of the first codec that is given bytes and wants an array, or None."""
    are_bytes = False
    for position, kind in enumerate(kinds):
        if are_bytes and kind != "bytes_to_bytes":
            return position
        are_bytes = kind != "array_to_array"
    return None


def _parse_stored(value: Any) -> Codec:
    factory, configuration = parse_entry(value)
    try:
        return factory.from_json(configuration)
    except JsonError as error:
        raise error.within('Error parsing object member "configuration"') from None


@dataclass(frozen=True, slots=True)
class CodecChain:
    """The codecs of a stored array, complete and in order."""

    codecs: tuple[Codec, ...]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the chain of a stored document.  Raises `JsonError` with every problem in it."""
        try:
            codecs = array_of(_parse_stored)(value)
        except RecursionError:
            raise JsonError("Codecs are nested too deeply") from None
        wrong = misplaced(codec.kind for codec in codecs)
        if wrong is not None:
            raise expected("bytes -> bytes codec", value[wrong])
        if not any(codec.kind == "array_to_bytes" for codec in codecs):
            raise JsonError("array -> bytes codec must be specified")
        return cls(tuple(codecs))

    def to_json(self) -> list[Json]:
        """Return the chain as stored."""
        return [codec_json(codec.name, codec.to_json()) for codec in self.codecs]

    @property
    def arrays(self) -> tuple[Codec, ...]:
        """The array-to-array codecs."""
        return tuple(codec for codec in self.codecs if codec.kind == "array_to_array")

    @property
    def pack(self) -> Codec:
        """The array-to-bytes codec."""
        return next(codec for codec in self.codecs if codec.kind == "array_to_bytes")

    @property
    def stages(self) -> tuple[Codec, ...]:
        """The bytes-to-bytes codecs."""
        return tuple(codec for codec in self.codecs if codec.kind == "bytes_to_bytes")

    def bind(self, chunk: ChunkSpec) -> BoundChain:
        """Return the chain for chunks like `chunk`, or raise a `StoreError` that says why it does not fit."""
        spec: ChunkSpec | ByteSpec = chunk
        bound: list[BoundCodec] = []
        for codec in self.codecs:
            try:
                bound.append(codec.bind(spec))
            except StoreError as error:
                error.add_note(f"in codec {quote(codec.name)}")
                raise
            spec = bound[-1].encoded
        at = len(self.arrays)
        names = [f"codec {quote(codec.name)}" for codec in self.codecs[at:]]
        return BoundChain(chunk, bound[:at], bound[at], bound[at + 1 :], names)
