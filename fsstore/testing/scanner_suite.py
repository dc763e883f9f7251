"""The battery over the contract of scanners (`fsstore.scan.contract`), for built-in and plug-in ones alike.

A case is a scanner and a whole file of its format.  Each function proves one promise and raises `AssertionError` naming
the case.  With pytest:

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_scanner(check):
        check(ScannerCase(SCANNER, data))
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.memory import MemoryDriver
from fsstore.reference.table.table import ABSENT, INLINE
from fsstore.runtime import execution
from fsstore.runtime.cache import CachePool
from fsstore.scan.contract import MADE, FileScanner, Numbers, ScanSource
from fsstore.scan.driver import Means, ScanDriver

__all__ = ["CHECKS", "ScannerCase"]

_NAME = "file.bin"
_SEEDS = 40


@dataclass(frozen=True)
class ScannerCase:
    """A scanner, and a file of its format with at least one array that has a chunk."""

    scanner: FileScanner
    data: bytes

    def __str__(self) -> str:
        """Return the name of the format."""
        return self.scanner.name

    def place(self, data: bytes | None = None) -> KvPrefix:
        """Return a place in memory that holds the file."""
        driver = MemoryDriver()
        execution.drive(driver.write_many([Write(_NAME, self.data if data is None else data)]))
        return KvPrefix(driver, _NAME)

    def store(self, data: bytes | None = None) -> ScanDriver:
        """Return the store that shows the file."""
        from fsstore.context.context import Context
        from fsstore.kvstore.contract.batch import Limits
        from fsstore.reference.targets import open_in

        means = Means(Limits(), open_in(Context()), CachePool())
        return ScanDriver(self.scanner, self.place(data), {}, means)

    def scanned(self) -> Any:
        """Return the scanned file."""

        async def scan() -> Any:
            source = await ScanSource(self.place()).begin()
            return await self.scanner.scan(source, {})

        return execution.call(scan())


def arrays_are_described(case: ScannerCase) -> None:
    """Every array has a document and a grid, and every document is JSON."""
    hierarchy = case.scanned().hierarchy
    assert hierarchy.grids, f"{case}: the file has no arrays"
    for key, document in hierarchy.documents.items():
        assert isinstance(json.loads(document), dict), f"{case}: {key} is no object"
    for path in hierarchy.grids:
        head = f"{path}/" if path else ""
        names = (f"{head}.zarray", f"{head}zarr.json")
        assert any(name in hierarchy.documents for name in names), f"{case}: {path} has no document"


def _tables(case: ScannerCase) -> Iterator[tuple[str, Any, Any]]:
    """Yield the arrays of a file with their grids and tables."""
    file = case.scanned()
    paths = list(file.hierarchy.grids)
    for path, table in zip(paths, execution.call(file.tables(paths)), strict=True):
        yield path, file.hierarchy.grids[path], table


def chunks_lie_in_the_file(case: ScannerCase) -> None:
    """Every chunk that exists has a place inside the file, a value, or is made; `find` and `present` agree."""
    seen = 0
    for path, grid, table in _tables(case):
        numbers: Numbers = table.present(0, grid.count)
        seen += len(numbers)
        rows = table.find(numbers)
        pairs = zip(rows.url.tolist(), rows.offset.tolist(), rows.length.tolist(), strict=True)
        for url, offset, length in pairs:
            assert url != ABSENT, f"{case}: a chunk of {path} is present and absent"
            inside = offset + max(length, 0) <= len(case.data)
            assert url in (INLINE, MADE) or table.urls[url] or inside, f"{case}: a chunk of {path} at {offset}"
    assert seen, f"{case}: no array has a chunk"


def keys_are_listed_and_read(case: ScannerCase) -> None:
    """Every key that is listed is read; documents are listed without the chunks."""

    async def listed(documents: bool) -> list[str]:
        store = case.store()
        pages = store.documents(KeyRange()) if documents else store.scan(KeyRange())
        return [entry.key async for page in pages for entry in page]

    every, few = execution.call(listed(False)), execution.call(listed(True))
    assert set(few) < set(every), f"{case}: documents are not a part of the keys"
    found = execution.call(case.store().read_many([Read(key) for key in every]))
    for key, answer in zip(every, found, strict=True):
        assert answer.state == "value", f"{case}: {key} is listed and missing"


def other_files_are_refused(case: ScannerCase) -> None:
    """A file of another format is an error that names the file."""
    for data in (b"something else entirely" * 10, b"\0" * 100):
        try:
            execution.call(case.store(data).hierarchy())
        except StoreError as error:
            message = error.message
        else:
            message = "it was taken for a file of the format"
        assert _NAME in message, f"{case}: {data[:20]!r}: {message}"


def damage_is_an_error_or_values(case: ScannerCase) -> None:
    """Files that are cut off or overwritten give values or errors of fsstore, and nothing else."""
    for seed in range(_SEEDS):
        chance = random.Random(seed)
        data = bytearray(case.data)
        if seed % 2:
            del data[chance.randrange(len(data)) :]
        for _ in range(seed % 5):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        store = case.store(bytes(data))
        try:
            hierarchy = execution.call(store.hierarchy())
            keys = [grid.key((0,) * len(grid.shape)) for grid in hierarchy.grids.values() if grid.count]
            execution.call(store.read_many([Read(key) for key in keys[:20]]))
        except StoreError:
            continue


CHECKS: dict[str, Callable[[ScannerCase], None]] = {
    check.__name__: check
    for check in (
        arrays_are_described,
        chunks_lie_in_the_file,
        keys_are_listed_and_read,
        other_files_are_refused,
        damage_is_an_error_or_values,
    )
}
"""The checks by name."""
