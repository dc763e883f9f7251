"""A reference set that does not exist: an error for who reads, which names it; made by who writes."""

from __future__ import annotations

import json
from dataclasses import replace

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr

import fsstore as ts
from fsstore import references
from fsstore.dataset.listing import list_arrays
from fsstore.errors import FailedPreconditionError, NotFoundError, PermissionDeniedError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.memory import MemoryDriver
from fsstore.reference.kind import open_reference
from fsstore.runtime.execution import drive
from fsstore.testing.doubles import Faulty

_NEW = ("refs.json", "refs.json.zst", "refs.parq", "refs.parquet/")
_NAMES = (*_NEW, "directory")
_ARRAY = {"dtype": "int32", "shape": [4], "chunk_layout": ts.ChunkLayout(read_chunk_shape=[2])}


@pytest.fixture(params=["file", "memory"])
def missing(request, tmp_path):
    """The URL of a set that does not exist, in a folder that has others, and the path that messages must show."""
    (tmp_path / "directory").mkdir()
    root = f"file://{tmp_path}" if request.param == "file" else f"memory:/{tmp_path}"
    return root, ts.Context()


def _readers(url, context):
    """Every way to read below a URL `…|reference:`."""

    def store():
        return ts.KvStore.open(url, context=context).result()

    def array(driver, path="x/", **options):
        return ts.open(f"{url}{path}|{driver}:", context=context, **options).result()

    assumed = {"driver": "zarr", "kvstore": f"{url}x/", "metadata": {"shape": [4], "chunks": [2], "dtype": "<i4"}}
    return {
        "read": lambda: store().read("x/.zarray").result(),
        "item": lambda: store()["x/.zarray"],
        "in": lambda: "x/.zarray" in store(),
        "list": lambda: store().list().result(),
        "arrays": lambda: list_arrays(url, context=context).result(),
        "zarr": lambda: ts.open({"driver": "zarr", "kvstore": f"{url}x/"}, context=context).result(),
        "zarr2": lambda: array("zarr2"),
        "zarr3": lambda: array("zarr3"),
        "n5": lambda: array("n5"),
        "png": lambda: array("png", "x.png"),
        "json": lambda: array("json", "x.json").read().result(),
        "auto": lambda: ts.open(f"{url}x/", context=context).result(),
        "at the root": lambda: ts.open(url, context=context).result(),
        "database": lambda: array("ocdbt:x/|zarr3", "db/"),
        "assumed": lambda: ts.open(assumed, context=context, assume_metadata=True, open=True).result().read().result(),
    }


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("refs.json", "refs.json"),
        ("set", "set/.zmetadata"),
        ("refs.parq", "refs.parq/.zmetadata"),
        ("refs.parq/", "refs.parq/.zmetadata"),
    ],
)
def test_a_set_that_cannot_be_read_is_not_missing(path, refused, writable):
    """A refusal while the set is looked for is told as such, whichever of its possible forms it concerns."""

    class Refusing(Faulty):
        @property
        def features(self):
            return replace(super().features, writable=writable)

    error = PermissionDeniedError("not for you")
    base = KvPrefix(Refusing(MemoryDriver(), lambda _, key: error if key == refused else None), path)
    with pytest.raises(PermissionDeniedError, match="not for you"):
        drive(open_reference(base, {}))


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("door", _readers("", None))
def test_who_reads_gets_an_error_that_names_the_set(missing, name, door):
    """The error says where there is no set and what to do, not which key is not in it."""
    root, context = missing
    with pytest.raises(NotFoundError, match="There is no reference set at") as caught:
        _readers(f"{root}/{name}|reference:", context)[door]()
    assert name in str(caught.value)
    assert "check its path; writing to it" in str(caught.value)


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("door", ["open", "inspect", "verify"])
def test_the_doors_of_the_module(tmp_path, name, door):
    """Sets are opened, inspected and verified only where there is one."""
    with pytest.raises(NotFoundError, match=f"There is no reference set at.*{name}.*check its path"):
        getattr(references, door)(f"{tmp_path}/{name}")


@pytest.mark.parametrize("protocol", ["auto", "zarr", "zarr2", "zarr3"])
def test_filesystems_over_a_missing_set(tmp_path, protocol):
    """What is asked of them is not found, and the error names the set."""
    filesystem = fsspec.filesystem(protocol, fo=f"file://{tmp_path}/typo.json|reference:")
    for ask in (filesystem.ls, filesystem.info, filesystem.cat_file, filesystem.find):
        with pytest.raises(FileNotFoundError, match=r"There is no reference set at.*typo\.json"):
            ask("x")
    assert not filesystem.exists("x")


def test_other_tools_over_a_missing_set(tmp_path):
    """xarray's engine names the set, too; so does the filesystem of pipelines."""
    url = f"file://{tmp_path}/typo.json|reference:"
    with pytest.raises(FileNotFoundError, match=r"There is no reference set at.*typo\.json"):
        xr.open_dataset(url, engine="fsstore")
    with pytest.raises(FileNotFoundError, match=r"There is no reference set at.*typo\.json"):
        fsspec.filesystem("fsstore").ls(f"fsstore://{url}")


@pytest.mark.parametrize("name", ["refs.json", "refs.parq"])
def test_where_a_set_cannot_be_made_it_is_not_opened(object_server, name):
    """A web server says 404: opening fails, and no advice is given that nobody can follow."""
    with pytest.raises(NotFoundError, match="There is no reference set at") as caught:
        ts.KvStore.open(f"{object_server.url}/{name}|reference:").result()
    assert name in str(caught.value)
    assert "writing" not in str(caught.value)


@pytest.mark.parametrize("name", _NEW)
def test_a_key_that_is_written_makes_the_set(missing, name):
    """Also under conditions; and who had opened it before finds it."""
    root, context = missing
    url = f"{root}/{name}|reference:"
    first, second = (ts.KvStore.open(url, context=context).result() for _ in range(2))
    refused = first.write(".zgroup", b"{}", if_equal=b"other").result()
    assert refused.generation == b""
    assert first.list().result() == []
    with pytest.raises(NotFoundError):
        second.list().result()
    absent = b"\x02"
    assert first.write(".zgroup", b'{"zarr_format": 2}', if_equal=absent).result().generation
    assert second.list().result() == [b".zgroup"]
    assert second.read("x").result().state == "missing"
    assert ts.KvStore.open(url, context=context).result()[".zgroup"] == b'{"zarr_format": 2}'


@pytest.mark.parametrize("mode", [{}, {"open": True}, {"delete_existing": True}])
@pytest.mark.parametrize(
    ("name", "driver"), [(name, driver) for name in _NEW for driver in ("zarr", "zarr3")] + [("refs.json", "n5")]
)
def test_an_array_that_is_created_makes_the_set(missing, name, mode, driver):
    """All modes that create do, in every format that the form of the set can hold."""
    root, context = missing
    url = {"driver": driver, "kvstore": f"{root}/{name}|reference:x/"}
    array = ts.open(url, context=context, create=True, **mode, **_ARRAY).result()
    array[1:3].write([5, 6]).result()
    assert ts.open(url, context=context).result().read().result().tolist() == [0, 5, 6, 0]


def test_a_transaction_makes_the_set(tmp_path):
    """Inside, what is about to be written is there, and nothing else; outside there is no set until the commit."""
    url = f"file://{tmp_path}/refs.json|reference:"
    with ts.Transaction() as transaction:
        inside = ts.KvStore.open(url).result().with_transaction(transaction)
        with pytest.raises(NotFoundError):
            inside.list().result()
        array = ts.open(f"{url}x/|zarr2:", create=True, transaction=transaction, **_ARRAY).result()
        array[1:3].write([5, 6]).result()
        assert array.read().result().tolist() == [0, 5, 6, 0]
        assert b"x/.zarray" in inside.list().result()
        with pytest.raises(NotFoundError):
            ts.KvStore.open(url).result().list().result()
    assert ts.open(f"{url}x/").result().read().result().tolist() == [0, 5, 6, 0]


@pytest.mark.parametrize("atomic", [False, True])
def test_a_database_inside_makes_the_set(tmp_path, atomic):
    """Whoever writes through other stores announces it to the set below."""
    url = f"file://{tmp_path}/refs.json|reference:db/|ocdbt:"
    with ts.Transaction(atomic=atomic) as transaction:
        ts.KvStore.open(url).result().with_transaction(transaction)["key"] = b"value"
    assert ts.KvStore.open(url).result()["key"] == b"value"
    other = ts.open(f"{url.replace('refs', 'other')}x/|zarr3:", create=True, **_ARRAY).result()
    other[0].write(7).result()
    assert other.read().result().tolist() == [7, 0, 0, 0]


def test_a_part_of_a_document_makes_the_set(tmp_path):
    """A JSON document is read before a part of it is written."""
    url = f"file://{tmp_path}/refs.json|reference:a.json|json:/b/c"
    ts.open(url).result().write({"d": 1}).result()
    assert json.loads(references.open(f"{tmp_path}/refs.json")["a.json"]) == {"b": {"c": {"d": 1}}}


@pytest.mark.parametrize("name", ["refs.json", "refs.parq"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_python_makes_the_set(tmp_path, name, zarr_format):
    """It looks before it writes, and is told that nothing is found."""
    url = f"fsstore://file://{tmp_path}/{name}|reference:"
    group = zarr.open_group(url, mode="w", zarr_format=zarr_format)
    group.create_array("x", shape=(3,), dtype="i4")[:] = [1, 2, 3]
    found = ts.open(f"file://{tmp_path}/{name}|reference:x/").result()
    np.testing.assert_array_equal(found.read().result(), [1, 2, 3])


def test_a_directory_is_not_replaced(tmp_path):
    """A set cannot be made where a directory stands, unless it is a parquet set in it."""
    url = f"file://{tmp_path}|reference:"
    with pytest.raises(FailedPreconditionError, match="Is a directory"):
        ts.KvStore.open(url).result()["a"] = b"b"
    ts.KvStore.open(f"file://{tmp_path}/|reference:").result()[".zgroup"] = b'{"zarr_format":2}'
    assert ts.KvStore.open(url).result()[".zgroup"] == b'{"zarr_format":2}'


def test_deleting_in_a_missing_set_is_fine(tmp_path):
    """There is nothing to delete, which is no error, as in any store."""
    store = ts.KvStore.open(f"file://{tmp_path}/refs.json|reference:").result()
    store.delete_range(ts.KvStore.KeyRange()).result()
    assert store.list().result() == []
