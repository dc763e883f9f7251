"""Reading chunks that lie outside the documents: objects of the repository, and ranges of objects elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsstore.errors import DataLossError, OutOfRangeError
from fsstore.icechunk.format.manifest import Reference
from fsstore.icechunk.location import NAMED
from fsstore.icechunk.repository import Repository
from fsstore.icechunk.virtual import Part, VirtualReader
from fsstore.kvstore.contract.driver import UNKNOWN, Read, ReadResult, now
from fsstore.values.json_value import quote

__all__ = ["SnapshotChunks", "stamp_of"]


def stamp_of(reference: Reference) -> bytes:
    """Return the generation of a chunk by its reference; those of virtual chunks come with their bytes."""
    if reference.kind != "native":
        return UNKNOWN
    return f"{reference.place}@{reference.offset}:{reference.length}".encode()


@dataclass(frozen=True, slots=True)
class SnapshotChunks:
    """Reads parts of chunks: those in the repository with one call of its store, the others with one round."""

    repository: Repository
    virtual: VirtualReader

    async def read(self, parts: Sequence[Part]) -> list[ReadResult]:
        """Return the answers to parts, in order; a part of no bytes is not asked for."""
        results = [
            ReadResult("value", b"", stamp_of(part.reference), now(), part.reference.length) for part in parts
        ]
        wanted = [number for number, part in enumerate(parts) if part.start < part.stop]
        native = [number for number in wanted if parts[number].reference.kind == "native"]
        virtual = [number for number in wanted if parts[number].reference.kind == "virtual"]
        for numbers, read in ((native, self._native), (virtual, self._virtual)):
            found = await read([parts[number] for number in numbers]) if numbers else []
            for number, answer in zip(numbers, found, strict=True):
                size = parts[number].reference.length
                results[number] = answer._replace(size=size)
        return results

    async def _virtual(self, parts: Sequence[Part]) -> Sequence[ReadResult]:
        named = any(part.reference.place.startswith(NAMED) for part in parts)
        return await self.virtual.read(parts, await self.repository.containers() if named else {})

    async def _native(self, parts: Sequence[Part]) -> Sequence[ReadResult]:
        base = self.repository.base
        reads = [_read(part) for part in parts]
        try:
            answers = await base.read_many(reads)
        except OutOfRangeError as error:
            raise DataLossError(
                f"A chunk in {self.repository.described} is cut off: {error.message}"
            ) from error
        out = []
        for part, read, found in zip(parts, reads, answers, strict=True):
            if found.state != "value" or len(found.value) != part.stop - part.start:
                short = f"has {len(found.value)} bytes for {part.stop - part.start} at offset {read.start}"
                why = "does not exist" if found.state != "value" else short
                where = f"Error reading {quote(part.key)} in {self.repository.described}"
                raise DataLossError(f"{where}: its object {base.describe(read.key)} {why}")
            out.append(ReadResult("value", found.value, stamp_of(part.reference), found.time))
        return out


def _read(part: Part) -> Read:
    place, offset = part.reference.place, part.reference.offset
    return Read(f"chunks/{place}", offset + part.start, offset + part.stop)
