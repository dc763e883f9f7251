"""Archives written by others are read as they meant them; TensorStore 0.1.86 and we agree wherever it can read."""

import io
import zipfile

import numpy as np
import pytest
import tensorstore as ts

from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.zip_driver import ZipDriver
from fsstore.runtime import execution

VALUE = bytes(range(256)) * 40


def call(coroutine):
    """Run a coroutine that never waits."""
    return execution.call(coroutine, waits=False)


def ours(path):
    """Return everything we read from an archive."""

    async def collect():
        store = KvPrefix(ZipDriver(KvPrefix(LocalDriver(), str(path))))
        keys = [entry.key async for batch in store.scan() for entry in batch]
        results = await store.read_many([Read(key) for key in keys])
        return {key: bytes(result.value) for key, result in zip(keys, results, strict=True)}

    return call(collect())


def theirs(path):
    """Return everything TensorStore reads from an archive."""
    store = ts.KvStore.open({"driver": "zip", "base": f"file://{path}"}).result()
    return {key.decode(): bytes(store.read(key).result().value) for key in store.list().result()}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_python_zipfile(method, tmp_path):
    """Archives of Python's zipfile read the same in both."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as target:
        target.writestr("zarr.json", "{}")
        target.writestr("c/0/0", VALUE)
        target.writestr("é b/100%", b"x")
        target.mkdir("empty")
        target.comment = b'{"ome": {"version": "0.5"}}'
    assert ours(tmp_path / "a.zip") == theirs(tmp_path / "a.zip")


def test_streamed_archives(tmp_path):
    """Archives written to a pipe: TensorStore lists but cannot read them, we can."""

    class Pipe(io.BytesIO):
        def seekable(self):
            return False

        def seek(self, *args):
            raise io.UnsupportedOperation

        def tell(self):
            raise io.UnsupportedOperation

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("a", VALUE)
        target.writestr("b", b"b")
    (tmp_path / "s.zip").write_bytes(pipe.getvalue())
    assert ours(tmp_path / "s.zip") == {"a": VALUE, "b": b"b"}


def test_what_tensorstore_writes(tmp_path):
    """Archives TensorStore writes, in each of its compressions, read the same here."""
    for compression in ("store", "deflate", "zstd", "xz"):
        path = tmp_path / f"{compression}.zip"
        store = ts.KvStore.open({"driver": "zip", "base": f"file://{path}", "compression": compression}).result()
        store.write("a/b", VALUE).result()
        store.write("c", b"").result()
        assert ours(path) == {"a/b": VALUE, "c": b""}


def test_zarr_python_zip_store(tmp_path):
    """A zarr-python ZipStore whose keys were rewritten holds duplicates; the last of each counts."""
    import zarr

    store = zarr.storage.ZipStore(tmp_path / "z.zip", mode="w")
    array = zarr.create_array(store, shape=(4, 4), chunks=(2, 2), dtype="u2", compressors=None, fill_value=0)
    array[:] = 1
    with pytest.warns(UserWarning, match="Duplicate name"):
        array[:2, :2] = 7
    store.close()
    found = ours(tmp_path / "z.zip")
    assert np.frombuffer(found["c/0/0"], "<u2").tolist() == [7] * 4
    assert np.frombuffer(found["c/1/1"], "<u2").tolist() == [1] * 4


def test_zip64(tmp_path):
    """An archive with more members than the classic end record can count."""
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as target:
        for number in range(66_000):
            target.writestr(zipfile.ZipInfo(str(number)), b"")
        target.writestr("last", VALUE)
    store = KvPrefix(ZipDriver(KvPrefix(LocalDriver(), str(tmp_path / "many.zip"))))
    assert bytes(call(store.read("last")).value) == VALUE
    assert call(store.read("65999")).state == "value"
