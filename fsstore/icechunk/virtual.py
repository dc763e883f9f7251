"""Reading virtual chunks: ranges of objects elsewhere, under the policy of reference sets.

The repository grants nothing: which targets may be read, and with which credentials, is what the policy of reference
sets and the members `targets`, `rewrite` and `allow` say.  Ranges of one object are merged as those of reference sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fsstore.errors import StoreError
from fsstore.icechunk.checksum import Expected, Times, check
from fsstore.icechunk.format.manifest import Reference
from fsstore.icechunk.location import expand, target_of
from fsstore.kvstore.contract.driver import ReadResult
from fsstore.reference.target.fetch import Asks, Fetcher
from fsstore.runtime import execution
from fsstore.values.json_value import quote

__all__ = ["Part", "VirtualReader", "urls_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes `[start, stop)` of the chunk that `reference` leads to, wanted for `key`."""

    key: str
    reference: Reference
    start: int
    stop: int


def urls_of(references: Sequence[Reference], containers: Mapping[str, str]) -> list[str]:
    """Return the URLs of virtual chunks as they are asked for; each location is looked at once."""
    known: dict[str, str] = {}
    for reference in references:
        if reference.place not in known:
            known[reference.place] = target_of(expand(reference.place, containers))
    return [known[reference.place] for reference in references]


@dataclass(frozen=True, slots=True)
class VirtualReader:
    """Reads parts of virtual chunks; with `checksums` the objects must be those that were referred to."""

    fetcher: Fetcher
    checksums: bool
    waits: bool
    _times: Times = field(default_factory=dict)

    async def read(self, parts: Sequence[Part], containers: Mapping[str, str]) -> Sequence[ReadResult]:
        """Return the answers to parts, in order."""
        try:
            urls = urls_of([part.reference for part in parts], containers)
        except StoreError as error:
            raise error.within(f"Error reading {quote(parts[0].key)} in {self.fetcher.described}") from error
        here = self.waits or not execution.must_not_wait()
        if here or all(map(self.fetcher.targets.local, dict.fromkeys(urls))):
            return await self._read(parts, urls)
        return execution.call(self._read(parts, urls))  # the repository never waits, but its targets do

    async def _read(self, parts: Sequence[Part], urls: Sequence[str]) -> Sequence[ReadResult]:
        numbers: dict[str, int] = {}
        for url in urls:
            numbers.setdefault(url, len(numbers))
        offset = np.array([part.reference.offset for part in parts], np.int64)
        start = np.array([part.start for part in parts], np.int64) + offset
        stop = np.array([part.stop for part in parts], np.int64) + offset
        length = np.array([part.reference.length for part in parts], np.int64)
        number = np.array([numbers[each] for each in urls], np.int32)
        asks = Asks(
            [part.key for part in parts], number, start, stop, np.zeros(len(parts), np.bool_), offset, length
        )
        answers = await self.fetcher.fetch(asks, list(numbers))
        if self.checksums:
            await self._check(parts, urls, answers)
        return answers

    async def _check(self, parts: Sequence[Part], urls: Sequence[str], answers: Sequence[ReadResult]) -> None:
        targets = self.fetcher.targets
        wanted: dict[tuple[str, str | None, int, bytes], str] = {}
        for part, url, answer in zip(parts, urls, answers, strict=True):
            _, _, _, _, _, etag, modified = part.reference
            if etag is not None or modified:
                wanted.setdefault((url, etag, modified, answer.generation.rpartition(b"@")[0]), part.key)
        expected = []
        for url, etag, modified, generation in wanted:
            place = targets.locate(url)
            expected.append(Expected(await targets.root(place.root), place.key, etag, modified, generation))
        try:
            await check(expected, self._times)
        except StoreError as error:
            raise error.within(
                f"Error reading {quote(next(iter(wanted.values())))} in {self.fetcher.described}"
            ) from error
