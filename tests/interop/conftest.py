"""Files and makers of reference sets that tests of several modules share."""

from __future__ import annotations

import gc
import io
import warnings

import numpy as np
import pytest


def write_hdf5(path):
    """Write an HDF5 file with groups, filters, holes, odd byte orders, strings, scalars and grown dimensions."""
    import h5py

    rng = np.random.default_rng(11)
    with h5py.File(path, "w") as f:
        f.attrs["title"] = "é"
        temp = np.round(rng.random((5, 33, 47)), 3)
        f.create_dataset("temp", data=temp, chunks=(2, 16, 20), compression="gzip", shuffle=True)
        f.create_dataset("plain", data=rng.integers(-9, 9, (7, 9)).astype("<i2"))
        f.create_dataset("big", data=rng.random((6, 5)).astype(">f4"), chunks=(4, 5), compression="gzip")
        f.create_dataset("scalar", data=np.float32(3.5))
        f.create_dataset("zeros", data=np.array([0, 3, 0, 4], "u1"), fillvalue=0)
        f.create_dataset("holes", shape=(100,), chunks=(10,), dtype="i4", fillvalue=-1)[35:45] = 7
        f.create_dataset("nan", shape=(9,), chunks=(4,), dtype="f4", fillvalue=np.nan)[:3] = 2
        grown = f.create_dataset("grown", shape=(3, 4), maxshape=(None, 9), chunks=(2, 3), dtype="f8", fillvalue=9)
        grown[0] = 1
        f.create_dataset("fixed", data=np.array([b"ab", b"c", b"defg"], "S4"), chunks=(2,))
        f.create_dataset("empty", shape=(0, 3), dtype="i4", chunks=(1, 3), maxshape=(None, 3))
        deep = f.create_group("g").create_group("deep")
        deep.create_dataset("x", data=rng.integers(0, 9, (8, 8)), chunks=(3, 5), compression="gzip")
        f.create_dataset("names", data=np.array(["aa", "é", ""], dtype=object), dtype=h5py.string_dtype())
    return path


def kerchunk_document(path, **options):
    """Return kerchunk's document of an HDF5 file, made with the collector off (it can deadlock with it on)."""
    from kerchunk.hdf import SingleHdf5ToZarr

    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return SingleHdf5ToZarr(str(path), **options).translate()
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def scan_hdf5():
    """Give the function that makes kerchunk's document of an HDF5 file."""
    return kerchunk_document


@pytest.fixture(scope="session")
def hdf5(tmp_path_factory):
    """Give an HDF5 file of many kinds of arrays."""
    return write_hdf5(tmp_path_factory.mktemp("arrays") / "a.h5")


@pytest.fixture(scope="session")
def document(hdf5):
    """Give kerchunk's references into that file, with a few small chunks inline."""
    return kerchunk_document(hdf5, inline_threshold=20)


@pytest.fixture(scope="session")
def virtualize():
    """Give the function that writes VirtualiZarr's set of an HDF5 file."""

    def write(source, path, form="json"):
        import virtualizarr as vz
        from obspec_utils.registry import ObjectStoreRegistry
        from obstore.store import LocalStore
        from virtualizarr.parsers import HDFParser

        registry = ObjectStoreRegistry({"file://": LocalStore()})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            virtual = vz.open_virtual_dataset(
                f"file://{source}", registry=registry, parser=HDFParser(), loadable_variables=[]
            )
            virtual.vz.to_kerchunk(str(path), format=form)

    return write


@pytest.fixture(scope="session")
def tiff_references():
    """Give the function that writes a TIFF file, and tifffile's set of it to `r.json` beside it."""

    def write(folder, data, version=1, **options):
        import tifffile

        tifffile.imwrite(folder / "a.tif", data, **options)
        with tifffile.imread(folder / "a.tif", aszarr=True) as store:
            text = io.StringIO()
            template = {"templatename": "u"} if version else {}
            store.write_fsspec(text, url=f"file://{folder}/", version=version, **template)
        (folder / "r.json").write_text(text.getvalue())

    return write
