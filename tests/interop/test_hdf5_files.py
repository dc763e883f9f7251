"""HDF5 files of every layout, index, filter and type are read as h5py reads them."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import fsstore as ts
from fsstore.context.context import Context
from fsstore.kvstore.spec.opening import open_kv
from fsstore.kvstore.spec.parse import kv_spec
from fsstore.runtime import execution

sys.path.insert(0, str(Path(__file__).parent))
import hdf5_corpus
from hdf5_corpus import CORPUS

sys.path.pop(0)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Give the directory of the corpus."""
    return tmp_path_factory.mktemp("hdf5")


def notes(path):
    """Return what is left out of a file, and why."""
    opened = execution.call(open_kv(kv_spec(f"file://{path}|hdf5:"), Context()))
    return execution.call(opened.driver.hierarchy()).notes


def datasets(file):
    """Return the names of all datasets of a file, those behind soft links left out."""
    found = []
    file.visititems(lambda name, node: found.append(name) if isinstance(node, h5py.Dataset) else None)
    return found


def read(path, name, **members):
    """Return the values of a dataset."""
    spec = {"driver": "zarr", "kvstore": f"file://{path}|hdf5:{name}/", **members}
    return np.asarray(ts.open(spec).result().read().result())


def expected(dataset):
    """Return what h5py reads, strings as text."""
    value = np.asarray(dataset[()])
    if dataset.dtype.kind == "O":
        texts = [each.decode() if isinstance(each, bytes) else each for each in value.ravel().tolist()]
        return np.array(texts, object).reshape(value.shape)
    return value


@pytest.mark.parametrize("name", [name for name in CORPUS if name not in ("structures", "links")])
def test_values_are_those_of_h5py(name, folder):
    """Every dataset of a file has the values that h5py reads, whatever its index, filters and type."""
    path = hdf5_corpus.write(name, folder)
    assert not notes(path)
    with h5py.File(path) as file:
        names = datasets(file)
        assert names
        for each in names:
            want, got = expected(file[each]), read(path, each)
            assert got.dtype == want.dtype.newbyteorder("=") or want.dtype.kind in "OVM"
            if want.dtype.kind in "fc":
                np.testing.assert_array_equal(got, want)
            else:
                assert got.tolist() == want.tolist(), each


def test_fields_of_records_are_those_of_h5py(folder):
    """Records are read by field, those with gaps between the fields and those never written too."""
    path = hdf5_corpus.write("structures", folder)
    with h5py.File(path) as file:
        for name in datasets(file):
            for field in file[name].dtype.names:
                np.testing.assert_array_equal(read(path, name, field=field), file[name][field])


def test_links_are_followed_and_nothing_costs_the_file(folder):
    """Soft and hard links show what they lead to; cycles, dangling links and odd types leave out one object each."""
    path = hdf5_corpus.write("links", folder)
    for name in ("g/h/x", "soft", "hard", "g/h/soft2", "chain"):
        assert read(path, name).tolist() == [0, 1, 2]
    left_out = notes(path)
    assert set(left_out) == {"nowhere", "away", "g/h/cycle", "loop", "lists", "reference", "empty"}
    assert "another file" in left_out["away"]
    assert "references" in left_out["reference"]


def test_the_corpus_is_large():
    """There are more than 200 files: a maker that fails would fail its test, not vanish."""
    assert len(CORPUS) > 200


def test_external_storage_is_read_under_the_policy(tmp_path):
    """Values in another file are read from there, unless `allow` forbids it."""
    np.arange(50, dtype="i4").tofile(tmp_path / "raw.bin")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", (10, 5), "i4", external=[(str(tmp_path / "raw.bin"), 0, 200)])
    assert read(path, "v").tolist() == np.arange(50).reshape(10, 5).tolist()
    kvstore = {"driver": "hdf5", "base": f"file://{path}", "path": "v/", "allow": ["file:///elsewhere"]}
    with pytest.raises(ts.errors.PermissionDeniedError, match="allow"):
        ts.open({"driver": "zarr", "kvstore": kvstore}).result().read().result()
