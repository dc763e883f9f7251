"""The `gzip`, `zstd`, `bz2` and `xz` key-value stores: the values of any other store, decompressed, read-only.

Keys are those of the base store, so that `file:///d/a.json.gz|gzip:` is one value, under the empty key, and
`file:///d/|gzip:a.json.gz` is the same one.

A compressed value can be read only from its beginning, so ranges are served from the whole value.  It stays in the
cache of the context, or in a small one of the store, as long as the generation of the base does not change.  The first
bytes, which tell a format, are decompressed from the first bytes of the base.  The size of decompressed values is
bounded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from fsstore.errors import OutOfRangeError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import (
    UNKNOWN,
    AdapterKind,
    Entry,
    Features,
    KvOpening,
    KvPrefix,
    Read,
    ReadOnly,
    ReadResult,
    StandsOver,
)
from fsstore.kvstore.contract.request import KeyRange, resolve_range
from fsstore.runtime import execution
from fsstore.runtime.cache import CachePool
from fsstore.runtime.tuning import CACHE_BYTES, KEPT_BYTES
from fsstore.values.detection import Method, beginning, expand, usual_limit
from fsstore.values.json_value import Fields, Json, integer, optional
from fsstore.values.registry import encode_path

Wanted: TypeAlias = Mapping[str, list[Read]]

_BLOCK = (1 << 17) + 64
"""How many more bytes of the base a head takes: a block of zstd, which can only be decompressed as a whole."""


class CompressedDriver(ReadOnly, StandsOver):
    """The values at `base`, decompressed."""

    id: ClassVar[str] = "compressed"

    def __init__(
        self, method: Method, base: KvPrefix, *, size_limit: int | None = None, pool: CachePool | None = None
    ) -> None:
        self.method: Method = method
        self.base = base
        self.size_limit = size_limit
        below = base.driver.features
        self.features = Features(
            waits=below.waits,
            writable=False,
            listable=below.listable,
            sorted_scan=below.sorted_scan,
            empty_key=not base.path.endswith("/"),
        )
        self._cache = pool if pool is not None and pool.total_bytes_limit else CachePool(KEPT_BYTES)

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`; each value of the base is read once, all of them in one batch."""
        wanted: dict[str, list[Read]] = {}
        for read in reads:
            wanted.setdefault(read.key, []).append(read)
        found = await self._heads(wanted)
        found |= await self._wholes({key: group for key, group in wanted.items() if key not in found})
        return [self._cut(read, found[read.key]) for read in reads]

    async def _heads(self, wanted: Wanted) -> dict[str, ReadResult]:
        """Return the heads of values of which only the head is wanted, as far as the base can give them."""
        sizes = {
            key: max(read.stop or 0 for read in group)
            for key, group in wanted.items()
            if all(map(_is_head, group)) and self._cache.get((self, key)) is None
        }
        if not sizes:
            return {}
        try:
            found = await self.base.read_many([Read(key, 0, size and size + _BLOCK) for key, size in sizes.items()])
        except OutOfRangeError:  # the base value is shorter
            return {}
        heads = {}
        for (key, size), answer in zip(sizes.items(), found, strict=True):
            head = beginning(self.method, answer.value, size) if size else b""
            if answer.state != "value" or len(head) == size:
                heads[key] = answer._replace(value=head, size=None)
        return heads

    async def _wholes(self, wanted: Wanted) -> dict[str, ReadResult]:
        """Return whole values, from the cache if the base still has their generation."""
        if not wanted:
            return {}
        kept: dict[str, ReadResult | None] = {key: self._cache.get((self, key)) for key in wanted}
        found = await self.base.read_many([_request(key, group, kept[key]) for key, group in wanted.items()])
        answers = dict(zip(wanted, found, strict=True))
        packed = [(key, answer) for key, answer in answers.items() if answer.state == "value"]
        answers |= await execution.offload(execution.map_blocking, self._expand, packed)
        for key, answer in answers.items():
            known = kept[key]
            if known is not None and answer.state == "unspecified":
                answers[key] = known._replace(time=answer.time)
        return answers

    def _expand(self, packed: tuple[str, ReadResult]) -> tuple[str, ReadResult]:
        key, answer = packed
        limit = usual_limit(len(answer.value)) if self.size_limit is None else self.size_limit
        try:
            value = expand(self.method, answer.value, limit)
        except StoreError as error:
            raise self._located(error, key) from error
        answer = answer._replace(value=value, size=len(value))
        if answer.generation != UNKNOWN:
            self._cache.put((self, key), answer, len(value))
        return key, answer

    def _cut(self, read: Read, answer: ReadResult) -> ReadResult:
        if answer.state != "value":
            return answer
        if read.if_not_equal == answer.generation != UNKNOWN:
            return answer._replace(state="unspecified", value=b"")
        try:
            start, stop = resolve_range(read.start, read.stop, len(answer.value))
        except StoreError as error:
            raise self._located(error, read.key) from None
        return answer._replace(value=memoryview(answer.value)[start:stop])

    def _located(self, error: StoreError, key: str) -> StoreError:
        return error.within(f"Error reading {self.describe_key(key)}")

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys of the base in the range, without sizes: they are unknown before decompression."""
        async for batch in self.base.scan(keys):
            yield [Entry(entry.key) for entry in batch]

    def describe_key(self, key: str) -> str:
        """Return the base's name of the key, and the compression method."""
        return f"{self.base.describe(key)} decompressed by {self.method}"

    def spec(self) -> Mapping[str, Json]:
        """Return the size limit, if there is one."""
        return {} if self.size_limit is None else {"size_limit": self.size_limit}


def _is_head(read: Read) -> bool:
    return read.start == 0 and read.stop is not None and read.stop <= CACHE_BYTES and read.if_not_equal == UNKNOWN


def _request(key: str, group: Sequence[Read], kept: ReadResult | None) -> Read:
    """Return the read of a base value; it gets no value back while the cached copy is current."""
    conditions = {read.if_not_equal for read in group}
    known = kept.generation if kept is not None else conditions.pop() if len(conditions) == 1 else UNKNOWN
    return Read(key, if_not_equal=known, staleness_bound=max(read.staleness_bound for read in group))


@dataclass(frozen=True)
class CompressedKind(AdapterKind):
    """`{"driver": "gzip", "base": ..., "path": ...}`, or `base|gzip:path`.

    size_limit   greatest size of a decompressed value in bytes; by default 256 MiB or a thousand times the stored size
    """

    id: Method
    resources: tuple[str, ...] = ("cache_pool",)
    single_file: bool = True
    sequential: bool = True

    @property
    def schemes(self) -> tuple[str, ...]:
        """The URL scheme."""
        return (self.id,)

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the size limit."""
        limit = fields.take("size_limit", optional(integer(0)))
        return {} if limit is None else {"size_limit": limit}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return the URL component; a limit has no URL."""
        if members:
            raise UnimplementedError(f"{self.id} URL syntax not supported with size_limit specified")
        return f"{self.id}:{encode_path(path)}"

    async def open(self, opening: KvOpening) -> CompressedDriver:
        """Return the driver over the base store."""
        limit = opening.members.get("size_limit")
        return CompressedDriver(
            self.id,
            opening.below,
            size_limit=limit if isinstance(limit, int) else None,
            pool=opening.resources.get("cache_pool"),
        )


GZIP = CompressedKind("gzip")
ZSTD = CompressedKind("zstd")
BZ2 = CompressedKind("bz2")
XZ = CompressedKind("xz")
