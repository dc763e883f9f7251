"""The dimension names that xarray writes beside arrays of zarr v2."""

import json
import pickle

import fsspec
import numpy as np
import pytest
import tensorstore
import xarray

import fsstore as ts
from fsstore.errors import PermissionDeniedError
from fsstore.kvstore.memory import MemoryKind
from fsstore.testing.doubles import Faulty

VALUES = np.arange(6, dtype="i4").reshape(2, 3)


@pytest.fixture
def folder(tmp_path):
    """Return a dataset of zarr v2 as xarray writes it."""
    data = xarray.Dataset({"t": (("y", "x"), VALUES, {"units": "K"}), "scalar": ((), 1.5)}, {"x": [1, 2, 3]})
    data.to_zarr(tmp_path / "a.zarr", zarr_format=2)
    return tmp_path / "a.zarr"


def spec(folder, name="t"):
    """Return the spec of an array of the dataset."""
    return {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder / name}/"}}


def rewrite(folder, names):
    """Store other attributes beside the array; text is stored as it is."""
    text = names if isinstance(names, str) else json.dumps({"_ARRAY_DIMENSIONS": names, "units": "K"})
    (folder / "t" / ".zattrs").write_text(text)


def test_names_are_labels(folder):
    """Names label the domain and select dimensions; a resize, a pickle and a spec keep them, files stay as they are."""
    before = (folder / "t" / ".zattrs").read_bytes()
    store = ts.open(spec(folder)).result()
    assert store.domain.labels == ("y", "x")
    assert store[ts.d["x"][1]].read().result().tolist() == [1, 4]
    assert ts.open(spec(folder, "x")).result().domain.labels == ("x",)
    assert ts.open(spec(folder, "scalar")).result().rank == 0
    assert ts.open(f"file://{folder}/t/").result().domain.labels == ("y", "x")
    assert store.schema.domain.labels == ("y", "x")
    assert pickle.loads(pickle.dumps(store)).domain.labels == ("y", "x")
    grown = store.resize(exclusive_max=[3, 3]).result()
    assert grown.domain.labels == store.resolve().result().domain.labels == ("y", "x")
    with ts.Transaction() as transaction:
        assert store.with_transaction(transaction).resolve().result().domain.labels == ("y", "x")
    assert tensorstore.open(store.spec().to_json()).result().domain.labels == ("y", "x")
    assert (folder / "t" / ".zattrs").read_bytes() == before


@pytest.mark.parametrize(
    "names",
    [["y"], ["y", "x", "z"], ["x", "x"], [], None, "yx", [1, 2], ["y", None], ["", ""], "{", "[]", "7", "\xff"],
    ids=repr,
)
def test_names_that_are_no_labels(folder, names):
    """Names of another rank, repeated, of no text or in damaged attributes leave the array unlabeled."""
    rewrite(folder, names)
    store = ts.open(spec(folder)).result()
    assert store.domain.labels == ("", "")
    assert store.read().result().tolist() == VALUES.tolist()


def test_a_dimension_may_be_unnamed(folder):
    """An empty name is no label; attributes may hold NaN, which is no JSON."""
    rewrite(folder, '{"_ARRAY_DIMENSIONS": ["", "x"], "missing": NaN}')
    assert ts.open(spec(folder)).result().domain.labels == ("", "x")


def test_labels_asked_for_win(folder):
    """As the names are no part of the format, other labels may be asked for, as with TensorStore."""
    wanted = ts.IndexDomain(shape=[2, 3], labels=["row", "column"])
    assert ts.open(spec(folder), domain=wanted).result().domain.labels == ("row", "column")


def test_new_names_are_seen_at_the_next_opening(folder):
    """Attributes are read at every opening, also when the metadata are known already."""
    context = ts.Context()
    first = ts.open(spec(folder), context=context).result()
    rewrite(folder, ["a", "b"])
    assert ts.open(spec(folder), context=context).result().domain.labels == ("a", "b")
    assert first.domain.labels == ("y", "x")


def test_creation_stores_no_names(tmp_path):
    """The labels of a new array stay with the handle, as with TensorStore: the format has no place for them."""
    files = []
    for module in (ts, tensorstore):
        place = {**spec(tmp_path, module.__name__), "dtype": "int32"}
        domain = module.IndexDomain(shape=[2, 3], labels=["y", "x"])
        store = module.open(place, create=True, domain=domain).result()
        assert store.domain.labels == ("y", "x")
        assert module.open(place).result().domain.labels == ("", "")
        files.append(store.kvstore.list().result())
    assert files[0] == files[1]


def test_fields_have_no_names(tmp_path):
    """Names are those of the chunked dimensions; dimensions inside the elements stay unlabeled."""
    place = spec(tmp_path)
    metadata = {"shape": [2], "chunks": [2], "dtype": [["f", "<i4", [3]]]}
    store = ts.open({**place, "metadata": metadata}, create=True).result()
    store.kvstore[".zattrs"] = b'{"_ARRAY_DIMENSIONS": ["n"]}'
    assert ts.open(place).result().domain.labels == ("n", "")


def test_shown_as_zarr_v3(folder):
    """The same array shown as zarr v3 has them as `dimension_names`."""
    shown = json.loads(fsspec.get_mapper(f"zarr3::file://{folder}")["t/zarr.json"])
    assert shown["dimension_names"] == ["y", "x"]
    assert shown["attributes"]["units"] == "K"
    assert "_ARRAY_DIMENSIONS" not in shown["attributes"]
    alone = json.loads(fsspec.get_mapper(f"zarr3::file://{folder}/t")["zarr.json"])
    assert alone["dimension_names"] == ["y", "x"]


def test_attributes_that_may_not_be_read(monkeypatch):
    """Where absent keys are answered with "forbidden", as object stores do, the array opens; its metadata must be read."""
    forbidden = {".zattrs"}
    plain = MemoryKind.open

    def fails(operation, key):
        return PermissionDeniedError(key) if operation == "read" and key in forbidden else None

    async def opened(self, opening):
        return Faulty(await plain(self, opening), fails)

    monkeypatch.setattr(MemoryKind, "open", opened)
    context, place = ts.Context(), {"driver": "zarr", "kvstore": {"driver": "memory"}}
    ts.open(place, create=True, open=True, context=context, dtype="int8", shape=[3]).result()
    assert ts.open(place, context=context).result().domain.labels == ("",)
    forbidden.add(".zarray")
    with pytest.raises(PermissionDeniedError):
        ts.open(place, context=context).result()
