"""The journal of a scan: every batch of files is written down when it is done, so that the same call goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np

from fsstore.combine.scan.packing import unpacked
from fsstore.combine.scan.parts import ScanPart
from fsstore.combine.scan.scanning import FileStores, is_unchanged, place_of
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import KvPrefix, begin_creating
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.runtime import execution
from fsstore.task.journal import job_name

__all__ = ["Notes", "notes_of"]

_DIRECTORY = ".fsstore-scan"
_FORM = 5  # of what is written down


@dataclass(frozen=True, slots=True)
class Notes:
    """Finished batches below a place, under a name that tells what was looked for."""

    place: KvPrefix
    name: str

    async def read(self, position: Mapping[str, int]) -> list[ScanPart]:
        """Return the batches that are written down and whole, of files that are wanted and have not changed."""
        seen: set[int] = set()
        out = []
        async for entries in self.place.scan(KeyRange.prefix(self._key(""))):
            for entry in entries:
                part = await self._part(entry.key, position, seen)
                if part is not None:
                    seen.update(part.at.tolist())
                    out.append(part)
        return out

    async def _part(self, key: str, position: Mapping[str, int], seen: set[int]) -> ScanPart | None:
        answer = await self.place.read(key)
        try:
            batch, urls = unpacked(answer.value)
        except StoreError:
            return None  # half a file of a run that was killed: the batch is scanned again
        wanted = [
            at for at, url in enumerate(urls) if position.get(url, -1) >= 0 and position[url] not in seen
        ]
        places = FileStores()
        same = await execution.gather(is_unchanged(batch.files[at], places) for at in wanted)
        kept = [at for at, unchanged in zip(wanted, same, strict=True) if unchanged]
        at = np.array([position[urls[at]] for at in kept], np.int64)
        return ScanPart(at, batch.only(np.array(kept, np.int64)))

    async def write(self, urls: Sequence[str], found: bytes) -> None:
        """Write a packed batch down; files that failed are in none, and are tried again by the next run."""
        await self.place.write(self._key(job_name({"urls": list(urls)})), found)

    def _key(self, name: str) -> str:
        return f"{_DIRECTORY}/{self.name}/{name}"


async def notes_of(journal: Any, wanted: Mapping[str, Any]) -> Notes | None:
    """Return the journal at a place, of a scan that looks for this; None without a place."""
    if journal is None:
        return None
    text = fspath(journal) if isinstance(journal, PathLike) else journal
    place = await place_of(text if not isinstance(text, str) or text.endswith("/") else text + "/")
    begin_creating(place.driver)
    return Notes(place, job_name({**wanted, "version": _FORM}))
