"""OCDBT over an object store: conditional writes across the network, by several clients at once."""

import asyncio

import pytest

import fsstore.ocdbt
from fsstore.kvstore.contract.driver import UNKNOWN, Read, Write
from fsstore.kvstore.kv_store import KvStore
from fsstore.runtime.execution import call

pytestmark = pytest.mark.usefixtures("s3_credentials")


def spec(moto_bucket, path, engine, **members):
    """Return the spec of a database in the bucket."""
    endpoint, bucket = moto_bucket
    base = {"driver": "s3", "bucket": bucket, "endpoint": endpoint, "aws_region": "us-east-1", "path": path}
    return {"driver": "ocdbt", "base": {**base, "engine": engine}, **members}


@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_engines_side_by_side(kind, moto_bucket):
    """Two writers with different clients commit at once to one database in a bucket, and nothing is lost."""
    config = {"manifest_kind": kind}
    stores = [
        KvStore.open(spec(moto_bucket, f"{kind}/", engine, config=config)).result() for engine in ("fsspec", "obstore")
    ]

    async def work(store, name):
        driver = store.prefix.driver
        for number in range(3):
            await driver.write_many([Write(f"{name}/{number}", b"x" * 200)])
            while True:
                read = (await driver.read_many([Read("counter")]))[0]
                value = b"%d" % (int(bytes(read.value) or b"0") + 1)
                stamps = await driver.write_many([Write("counter", value, read.generation)])
                if stamps[0].generation != UNKNOWN:
                    break

    async def together():
        await asyncio.gather(*(work(store, f"{place}{twin}") for place, store in enumerate(stores) for twin in "ab"))

    call(together())
    for store in stores:
        assert store["counter"] == b"12"
        names = [f"{place}{twin}/{number}" for place in (0, 1) for twin in "ab" for number in range(3)]
        assert store.list().result() == sorted([b"counter", *map(str.encode, names)])
        assert [store[name] for name in names] == [b"x" * 200] * 12
        assert fsstore.ocdbt.verify(store).result().ok
