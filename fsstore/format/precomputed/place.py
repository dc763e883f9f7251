"""Where the chunks of a scale are: a directory, or the values of its shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fsstore.format.precomputed.keys import folder_of
from fsstore.format.precomputed.sharding import values_in
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.shard.uint64_driver import Uint64ShardedDriver
from fsstore.kvstore.shard.uint64_layout import Sharding
from fsstore.kvstore.transaction.transactional import TransactionalDriver

__all__ = ["chunks_of"]


def chunks_of(scale: Mapping[str, Any], store: KvPrefix) -> KvPrefix:
    """Return where the chunks of a scale are, given the place of its volume; nothing is read or written."""
    driver, path = store
    folder = folder_of(path, scale["key"])
    if scale["sharding"] is None:
        return KvPrefix(driver, folder)
    # values are inflated and deflated with the chunks, by many threads
    sharding = replace(Sharding.of(scale["sharding"]), data_encoding="raw")
    inside = driver.base if isinstance(driver, TransactionalDriver) else driver

    def filling(shard: int) -> int | None:
        return values_in(scale, scale["chunk_size"], shard)

    shards = Uint64ShardedDriver(KvPrefix(inside, folder), sharding, filling)
    if isinstance(driver, TransactionalDriver):
        return KvPrefix(TransactionalDriver(shards, driver.ledger))
    return KvPrefix(shards)
