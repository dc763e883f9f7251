"""Programs that stand beside older libraries: catalogues of intake 2, zarr-python 2, and xarray of its time."""

from __future__ import annotations

import warnings
import zipfile

import fsspec
import numpy as np
import pytest
import xarray
import zarr

import fsstore as ts

intake = pytest.importorskip("intake", reason="intake is not installed: `make test-older` has it")


@pytest.fixture(autouse=True)
def _quiet():
    """Let the tools warn of what is to come."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def database(tmp_path):
    """Give the URL of a dataset in an OCDBT database, written by xarray."""
    url = f"fsstore://file://{tmp_path}/a.ocdbt/|ocdbt:"
    dataset = xarray.Dataset({"t": ("x", np.arange(6.0)), "x": np.arange(6)})
    dataset.to_zarr(fsspec.get_mapper(url), **({} if zarr.__version__ < "3" else {"zarr_format": 2}))
    return url


def test_a_catalogue_names_places_by_our_protocols(tmp_path, database):
    """A table in an archive and a dataset in a database are entries, and the catalogue itself is read through us."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("a.csv", "x,y\n1,2\n3,4\n")
    types, catalogue = intake.readers.datatypes, intake.readers.entry.Catalog()
    table = types.CSV(url=f"auto://a.csv::file://{tmp_path}/a.zip")
    catalogue["table"] = table.to_reader("pandas", compression=None)
    catalogue["dataset"] = types.Zarr(url=database).to_reader("xarray")
    catalogue.to_yaml_file(f"{tmp_path}/catalogue.yaml")
    again = intake.readers.entry.Catalog.from_yaml_file(f"fsstore://file://{tmp_path}/catalogue.yaml")
    assert again["table"].read().y.tolist() == [2, 4]
    assert again["dataset"].read().t.values.tolist() == list(range(6))


def test_xarray_reads_by_mapper_and_by_url(database):
    """Both lead to the same dataset."""
    for place in (fsspec.get_mapper(database), database):
        with xarray.open_dataset(place, engine="zarr", consolidated=False) as dataset:
            assert dataset.t.values.tolist() == list(range(6))


def test_an_array_of_another_format_is_read_as_zarr(tmp_path):
    """zarr-python reads N5 by URL; before fsspec 2025.12 a protocol with a digit takes slashes in a chain."""
    place = f"file://{tmp_path}/a.n5/"
    array = ts.open(f"{place}|n5:", create=True, dtype="int32", shape=[5]).result()
    array.write(np.arange(5, dtype="int32")).result()
    assert zarr.open_array(f"zarr2://::{place}", mode="r")[:].tolist() == list(range(5))
