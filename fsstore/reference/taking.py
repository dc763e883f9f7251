"""Taking copies into a reference set in one step: references to files beside it, with their documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fsstore.errors import AbortedError, StoreError
from fsstore.kvstore.contract.ability import TakesAllAtOnce
from fsstore.kvstore.contract.driver import Buffer, KvDriver, KvPrefix, Read
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.parquet.refs import ParquetSet
from fsstore.reference.state.set_state import Overlay, Taking
from fsstore.reference.table.table import WHOLE, Row
from fsstore.reference.target.fetch import Fetcher

__all__ = ["TakesFiles", "check_unchanged"]


class TakesFiles(TakesAllAtOnce):
    """A driver over a set, with what `TakesAllAtOnce` promises."""

    overlay: Overlay
    fetcher: Fetcher

    @property
    def takes_stores(self) -> Literal["own", "files"] | None:
        """Files: references to values that lie below the directory of the set."""
        return "files" if self.overlay.is_stored and self.overlay.writable else None

    @property
    def only_takes(self) -> bool:
        """Whether it is a parquet set: that has a place only for chunks of arrays that it knows."""
        return isinstance(self.overlay.state.base, ParquetSet)

    async def check_taking(self, writes: Mapping[str, Buffer], deleted: Sequence[KeyRange]) -> None:
        """Raise if the set is stored in files that cannot be replaced together."""
        await self.overlay.check_taking(Taking({}, (), _inline_values(writes), deleted))

    async def take_all(
        self,
        others: Sequence[KvPrefix],
        writes: Mapping[str, Buffer],
        *,
        unchanged: Mapping[str, bytes],
        deleted: Sequence[KeyRange],
    ) -> None:
        """Delete the ranges, refer to all values below other prefixes, and write, in one step."""
        taking = await self.taking(others, writes, deleted)
        driver: Any = self  # which names this ability among its bases
        await self.overlay.take(taking, lambda: check_unchanged(driver, unchanged), driver)

    async def taking(
        self, others: Sequence[KvPrefix], writes: Mapping[str, Buffer], deleted: Sequence[KeyRange]
    ) -> Taking:
        """Return what a set takes that is to refer to all values below other prefixes."""
        home = self.fetcher.targets.base
        found: dict[str, Row] = {}
        urls: list[str] = []
        for other in others:
            if home is None or other.driver != home.driver or not other.path.startswith(home.path):
                raise StoreError(f"{other.describe()} does not lie beside {self.fetcher.described}")
            async for batch in other.scan():
                for entry in batch:
                    size = WHOLE if entry.size is None else entry.size
                    found[entry.key] = Row(len(urls), 0, size)
                    urls.append(other.path[len(home.path) :] + entry.key)
        return Taking(found, urls, _inline_values(writes), deleted)


async def check_unchanged(driver: KvDriver, generations: Mapping[str, bytes]) -> None:
    """Raise `AbortedError` if a key has another generation than it had."""
    answers = await driver.read_many([Read(key, 0, 0) for key in generations])
    for (key, generation), answer in zip(generations.items(), answers, strict=True):
        if answer.generation != generation:
            raise AbortedError(f"Error reading {driver.describe_key(key)}: Generation mismatch")


def _inline_values(writes: Mapping[str, Buffer]) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in writes.items()}
