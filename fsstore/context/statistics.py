"""The work of the stores of a context, as numbers and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fsstore.runtime.observer import Meter

__all__ = ["ContextStatistics", "StoreCounts", "bytes_text", "statistics_of", "table"]


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """The work of one kind of store.  Times are in seconds; those of requests that ran at once are added."""

    reads: int = 0
    bytes_read: int = 0
    writes: int = 0
    bytes_written: int = 0
    deletes: int = 0
    listings: int = 0
    batches: int = 0
    """Reads and writes that were asked for together are one batch."""
    retries: int = 0
    failures: int = 0
    """Batches, and pages of listings, that ended with an error."""
    waiting_s: float = 0.0
    decodes: int = 0
    """Chunks that were decoded."""
    decoding_s: float = 0.0

    @property
    def requests(self) -> int:
        """Reads, writes, deletions and pages of listings, what was tried again, and what failed."""
        return self.reads + self.writes + self.deletes + self.listings + self.retries + self.failures


@dataclass(frozen=True, slots=True)
class ContextStatistics:
    """The work of the stores of a context, by kind of store, and what its cache had."""

    stores: Mapping[str, StoreCounts] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0

    def __getitem__(self, store: str) -> StoreCounts:
        """Return the counts of a kind of store; zeros if there was none."""
        return self.stores.get(store, StoreCounts())

    def __contains__(self, store: object) -> bool:
        """Return whether a kind of store did anything."""
        return store in self.stores

    def __iter__(self) -> Iterator[str]:
        """Yield the kinds of stores that did anything."""
        return iter(self.stores)

    def __len__(self) -> int:
        """Return how many kinds of stores did anything."""
        return len(self.stores)

    @property
    def requests(self) -> int:
        """The requests of all stores."""
        return sum(counts.requests for counts in self.stores.values())

    @property
    def bytes_read(self) -> int:
        """The bytes read from all stores."""
        return sum(counts.bytes_read for counts in self.stores.values())

    def __repr__(self) -> str:
        """Return a table."""
        if not self.stores:
            return "nothing yet"
        rows = [
            (
                store, f"{counts.requests:,}", bytes_text(counts.bytes_read), bytes_text(counts.bytes_written),
                str(counts.retries), str(counts.failures), f"{counts.waiting_s:.3f}", f"{counts.decoding_s:.3f}",
            )
            for store, counts in sorted(self.stores.items())
        ]  # fmt: skip
        text = table(
            ("store", "requests", "read", "written", "retries", "failures", "waiting s", "decoding s"), rows
        )
        cache = f"\ncache: {self.hits:,} hits, {self.misses:,} misses" if self.hits + self.misses else ""
        return text + cache


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows below their heads; the first column is text, the others numbers."""
    lines = [head, *rows]
    widths = [max(len(line[number]) for line in lines) for number in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not number else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def bytes_text(count: float) -> str:
    """Return a number of bytes as people read it.

    >>> bytes_text(12), bytes_text(4096), bytes_text(2_500_000)
    ('12 bytes', '4.1 kB', '2.5 MB')
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    size, unit = next(
        (count / size, unit)
        for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
        if count >= size
    )
    return f"{size:.1f} {unit}"


def statistics_of(meters: Iterable[Meter]) -> ContextStatistics:
    """Return what meters have counted; of caches, hits and misses."""
    stores: dict[str, StoreCounts] = {}
    hits = misses = 0
    for meter in meters:
        counts = meter.counts()
        hits += counts.pop("hits")
        misses += counts.pop("misses")
        waiting, decoding = counts.pop("waiting_ns") / 1e9, counts.pop("decoding_ns") / 1e9
        if any(counts.values()):
            stores[meter.store] = StoreCounts(**counts, waiting_s=waiting, decoding_s=decoding)
    return ContextStatistics(stores, hits, misses)
