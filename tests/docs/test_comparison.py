"""The comparison on the home page is fair: each yes and no is tried with the library that is installed."""

from __future__ import annotations

import importlib
import importlib.machinery
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from packaging.version import Version

import fsstore

PAGE = Path(__file__).parents[2] / "docs" / "index.md"
LIBRARIES = ("fsstore", "tensorstore", "zarr", "kerchunk", "virtualizarr", "icechunk")
JUDGED_BY_PEOPLE = {"released and used for years"}


def table():
    """The versions of the heading, and the answers of each row."""
    text = PAGE.read_text(encoding="utf-8").split("## Compared with other libraries")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    heading = dict(cell.split(" ") for cell in rows[0][1:])
    return heading, {row[0]: dict(zip(LIBRARIES, row[1:], strict=True)) for row in rows[2:]}


HEADING, ROWS = table()


def open_with(library, place, **options):
    """Open a place as an array, as each library does it, and read an element."""
    if library == "tensorstore":
        return importlib.import_module("tensorstore").open(place, **options).result()[0].read().result()
    if library == "fsstore":
        return fsstore.open(place, **options).result()[0].read().result()
    if library == "zarr":
        return importlib.import_module("zarr").open_array(place.removeprefix("file://").split("|")[0], mode="r")[0]
    module = importlib.import_module(library)
    return module.open(place)  # AttributeError: it opens no arrays


def works(function, *arguments, **options):
    """Whether a call ends without an error."""
    try:
        function(*arguments, **options)
    except Exception:
        return False
    return True


def is_pure(library, _):
    """No compiled module is in the package."""
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    folder = Path(importlib.import_module(library).__file__).parent
    return not [path for path in folder.rglob("*") if path.name.endswith(suffixes)]


def has_zarr(library, folder):
    """Arrays of both versions are created and read again."""

    def made(number):
        path = f"{folder}/{library}{number}.zarr"
        if library == "zarr":
            zarr = importlib.import_module("zarr")
            zarr.create_array(path, shape=(2,), dtype="i4", zarr_format=number)[:] = [5, 6]
            return int(zarr.open_array(path, mode="r")[0])
        module = importlib.import_module(library)
        spec = {"driver": {2: "zarr", 3: "zarr3"}[number], "kvstore": f"file://{path}/"}
        store = module.open(spec, create=True, dtype="int32", shape=[2]).result()
        store.write(np.array([5, 6], "i4")).result()
        return int(module.open(spec).result()[0].read().result())

    return all(works(made, number) for number in (2, 3))


def has_volumes(library, folder):
    """An N5 dataset and a precomputed volume open."""
    places = {}
    for driver, rank in (("n5", 1), ("neuroglancer_precomputed", 4)):
        place = f"file://{folder}/{driver}/"
        spec = {"driver": driver, "kvstore": place}
        fsstore.open(spec, open=True, create=True, dtype="uint8", shape=[2] * rank).result().write(1).result()
        places[driver] = f"{place}|{driver.replace('_', '-')}:"
    return all(works(open_with, library, place) for place in places.values())


def has_files(library, folder):
    """A variable of a NetCDF 4 file opens by URL."""
    return works(open_with, library, f"file://{netcdf(folder)}|hdf5:t")


def netcdf(folder):
    """Write a NetCDF 4 file."""
    import h5netcdf

    path = Path(folder) / "x.nc"
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"x": 4}
        file.create_variable("t", ("x",), "f4", chunks=(2,), data=np.arange(4, dtype="f4"))
    return path


def makes_references(library, folder):
    """References to the chunks of a file come out."""
    path = str(netcdf(folder))
    makers = {
        "fsstore": lambda: fsstore.references.open(path)["t/0"],
        "kerchunk": lambda: importlib.import_module("kerchunk.hdf").SingleHdf5ToZarr(path).translate()["refs"]["t/0"],
        "virtualizarr": lambda: virtual(path)["t"].data.manifest,
    }
    return library in makers and works(makers[library])


def virtual(path):
    """Open a file with VirtualiZarr."""
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    url = path if "://" in path else f"file://{path}"
    return open_virtual_dataset(url, registry=registry, parser=HDFParser(), loadable_variables=["time"])


def is_lazy(library, folder):
    """Indexing an array that is open gives a view, not values."""
    if library == "zarr":
        zarr = importlib.import_module("zarr")
        return not isinstance(zarr.create_array({}, shape=(2,), dtype="i4")[:], np.ndarray)
    if library not in {"fsstore", "tensorstore"}:
        return False
    store = importlib.import_module(library).array(np.zeros(2))
    return not isinstance(store[:], np.ndarray)


def takes_protocols(library, folder):
    """A protocol that a program registers with fsspec is read."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Own(MemoryFileSystem):
        protocol = "ownproto"
        store: dict = {}
        pseudo_dirs = [""]

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(path.removeprefix("ownproto://"))

    fsspec.register_implementation("ownproto", Own, clobber=True)
    zarr = importlib.import_module("zarr")
    data = zarr.create_array(f"{folder}/p.zarr", shape=(2,), dtype="i4", overwrite=True)
    data[:] = 3
    files = fsspec.filesystem("ownproto")
    files.put(f"{folder}/p.zarr", "/p.zarr", recursive=True)
    files.put(str(netcdf(folder)), "/x.nc")
    tries = {
        "fsstore": lambda: open_with("fsstore", "ownproto://p.zarr"),
        "tensorstore": lambda: open_with("tensorstore", "ownproto://p.zarr"),
        "zarr": lambda: zarr.open_array("ownproto://p.zarr", mode="r")[0],
        "kerchunk": lambda: importlib.import_module("kerchunk.hdf").SingleHdf5ToZarr("ownproto://x.nc").translate(),
        "virtualizarr": lambda: virtual("ownproto://x.nc"),
        "icechunk": lambda: importlib.import_module("icechunk").Repository.open("ownproto://x"),
    }
    return works(tries[library])


def commits_together(library, folder):
    """Two arrays change in one commit."""
    if library in {"fsstore", "tensorstore"}:
        module = importlib.import_module(library)

        def change():
            with module.Transaction(atomic=True) as transaction:
                for name in "ab":
                    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/{library}.db/|ocdbt:{name}/"}
                    options = {"create": True, "dtype": "int32", "shape": [2], "transaction": transaction}
                    module.open(spec, **options).result()[:] = np.int32(1)

        return works(change)
    if library == "icechunk":
        icechunk, zarr = importlib.import_module("icechunk"), importlib.import_module("zarr")

        def commit():
            session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
            for name in "ab":
                zarr.create_array(session.store, name=name, shape=(2,), dtype="i4")
            session.commit("both")

        return works(commit)
    return hasattr(importlib.import_module(library), "Transaction")


def has_branches(library, _):
    """A branch is made."""
    if library != "icechunk":
        return hasattr(importlib.import_module(library), "create_branch")
    icechunk = importlib.import_module("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    return works(repository.create_branch, "other", repository.lookup_branch("main"))


def rechunks(library, folder):
    """A function copies into other chunks and takes a limit of memory."""
    module = importlib.import_module(library)
    if not hasattr(module, "copy") or library == "zarr":
        return works(lambda: module.copy("a", "b", max_memory="1MB"))
    source = module.array(np.arange(4.0))
    return works(lambda: module.copy(source, f"{folder}/r.zarr", schema={"chunks": [2]}, max_memory="1MB").result())


def combined(library, folder, files):
    """The variable of files that a library has combined along time; None if it cannot."""
    import xarray as xr

    def with_fsstore():
        fsstore.references.combine(files, "time").result().save(f"{folder}/all.mosaic")
        return f"{folder}/all.mosaic"

    def with_kerchunk():
        from kerchunk.combine import MultiZarrToZarr
        from kerchunk.hdf import SingleHdf5ToZarr

        sets = [SingleHdf5ToZarr(file, inline_threshold=0).translate() for file in files]
        return MultiZarrToZarr(sets, concat_dims=["time"]).translate()

    def with_virtualizarr():
        parts = [virtual(file) for file in files]
        return xr.concat(parts, dim="time", combine_attrs="override").vz.to_kerchunk(format="dict")

    tries = {"fsstore": with_fsstore, "kerchunk": with_kerchunk, "virtualizarr": with_virtualizarr}
    found: list = []
    if library in tries:
        works(lambda: found.append(xr.open_dataset(tries[library](), engine="fsstore")["t"].values))
    return found[0] if found else None


def combines(library, folder):
    """Files with different scale factors become one variable with the numbers that each file means."""
    import xarray as xr

    for number, scale in enumerate((0.5, 0.25)):
        data = xr.DataArray(np.full((1, 2), 3.0), dims=("time", "x"), coords={"time": [number]})
        encoding = {"t": {"dtype": "i2", "scale_factor": scale, "_FillValue": -1}}
        data.to_dataset(name="t").to_netcdf(f"{folder}/{number}.nc", engine="h5netcdf", encoding=encoding)
    files = [f"{folder}/{number}.nc" for number in range(2)]

    found = combined(library, folder, files)
    return found is not None and bool((found == 3).all())


def combines_short_chunks(library, folder):
    """Files whose own last chunk is short become one variable, with every value in its place."""
    import xarray as xr

    for number in range(2):
        data = xr.DataArray(np.arange(3.0) + 3 * number, dims="time", coords={"time": 3 * number + np.arange(3)})
        data.to_dataset(name="t").to_netcdf(
            f"{folder}/s{number}.nc", engine="h5netcdf", encoding={"t": {"chunksizes": (2,)}}, unlimited_dims="time"
        )
    files = [f"{folder}/s{number}.nc" for number in range(2)]

    found = combined(library, folder, files)
    return found is not None and np.array_equal(found, np.arange(6.0))


FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
library, path = sys.argv[1:]
if library == "zarr":
    import zarr
    zarr.create_array(path, shape=(4,), chunks=(2,), dtype="i4")[:] = 7
    array = zarr.open_array(path, mode="r")
    read = lambda: array[:]
else:
    import importlib
    module = importlib.import_module(library)
    spec = {"driver": "zarr3", "kvstore": f"file://{path}/"}
    array = module.open(spec, create=True, dtype="int32", shape=[4]).result()
    array[...] = np.int32(7)
    read = lambda: array.read().result()
assert (read() == 7).all()
child = os.fork()
if not child:
    os._exit(0 if (read() == 7).all() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def survives_forks(library, folder):
    """A forked child reads an array that its parent has opened and read."""
    if library not in {"fsstore", "tensorstore", "zarr"}:
        return False
    command = [sys.executable, "-c", FORKED, library, f"{folder}/forked.zarr"]
    try:
        done = subprocess.run(command, timeout=20, capture_output=True, check=False, start_new_session=True)
    except subprocess.TimeoutExpired:
        return False  # the child waits for threads that only its parent has
    return done.returncode == 0


def shows_as_zarr(library, folder):
    """zarr-python reads an N5 dataset through the library."""
    import zarr

    fsstore.open(
        {"driver": "n5", "kvstore": f"file://{folder}/v.n5/"}, create=True, dtype="uint8", shape=[2]
    ).result().write(9).result()
    if library != "fsstore":
        return hasattr(importlib.import_module(library), "get_mapper")
    return int(zarr.open_array(f"zarr3::file://{folder}/v.n5/", mode="r")[0]) == 9


PROBES = {
    "combines files whose last chunk is short": combines_short_chunks,
    "works in forked children": survives_forks,
    "shows N5 and volumes as zarr": shows_as_zarr,
    "pure Python": is_pure,
    "reads and writes zarr 2 and 3": has_zarr,
    "reads N5 and Neuroglancer volumes": has_volumes,
    "opens NetCDF and HDF5 as arrays by URL": has_files,
    "makes references to NetCDF and HDF5": makes_references,
    "combines files that are packed differently": combines,
    "takes any fsspec protocol": takes_protocols,
    "indexes without reading": is_lazy,
    "changes several arrays in one commit": commits_together,
    "keeps branches and tags": has_branches,
    "rechunks within a limit of memory": rechunks,
}


def test_versions_are_those_installed():
    """The heading names what the probes have run with on the newest interpreter; an older one may have older libraries."""
    assert tuple(HEADING) == LIBRARIES
    here = {name: version(name) for name in LIBRARIES}
    if sys.version_info >= (3, 13):
        assert HEADING == here
    assert all(Version(here[name]) <= Version(HEADING[name]) for name in LIBRARIES)


def test_every_row_is_tried():
    """No row stands there without a probe, but what only people can judge."""
    assert set(ROWS) == set(PROBES) | JUDGED_BY_PEOPLE


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("row", PROBES)
def test_an_answer_is_what_the_library_does(row, library, tmp_path):
    """Each cell begins with yes where the probe works, and with no where it fails."""
    answer = re.match(r"yes|no", ROWS[row][library])
    assert answer is not None
    assert answer[0] == ("yes" if PROBES[row](library, tmp_path) else "no"), ROWS[row][library]
