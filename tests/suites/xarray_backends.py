"""xarray's tests of its zarr backend: over our store of zarr-python, and read back by our engine."""

from __future__ import annotations

import contextlib

import xarray
from xarray.tests import conftest
from xarray.tests import test_backends as theirs

from fsstore.interop.zarr import ZarrStore

default_zarr_format = theirs.default_zarr_format
"""The fixture by which each test is one for both versions of zarr."""
time_unit, use_dask = conftest.time_unit, conftest.use_dask


class TestOverOurStore(theirs.TestZarrDirectoryStore):
    """zarr-python reads and writes through us."""

    @contextlib.contextmanager
    def create_zarr_target(self):
        """Give our store over a directory."""
        with theirs.create_tmp_file(suffix=".zarr") as place:
            yield ZarrStore(f"{place}/")


class TestReadByOurEngine(theirs.TestZarrDirectoryStore):
    """xarray writes with zarr-python, and reads with the engine `fsstore`."""

    @contextlib.contextmanager
    def open(self, path, **options):
        """Open a place with our engine."""
        options.pop("consolidated", None)
        with xarray.open_dataset(path, engine="fsstore", **options) as dataset:
            yield dataset
