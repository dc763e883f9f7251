"""Scanned files far away: what opening and reading them costs in requests and bytes, counted by a server here."""

from __future__ import annotations

import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import h5py
import netCDF4
import numpy as np
import pytest
import virtualizarr
import xarray as xr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import HTTPStore
from virtualizarr.parsers import HDFParser

import fsstore as ts
from benchmarks.workloads_scan import write_variables


class Server(ThreadingHTTPServer):
    """Serves a directory with ranges, and counts requests, bytes and rounds: requests under way together are one.

    `delay` is how late answers are, in seconds.
    """

    daemon_threads = True

    def __init__(self, folder):
        self.folder, self.sizes = folder, []
        self.delay, self.rounds, self._under_way = 0.0, 0, 0
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/"

    def cost(self):
        """Return requests and bytes since the last call."""
        sizes, self.sizes = self.sizes, []
        return len(sizes), sum(sizes)

    def begun(self):
        """Count a request, and wait."""
        with self._lock:
            self.rounds += not self._under_way
            self._under_way += 1
        time.sleep(self.delay)

    def ended(self):
        """Say that a request is about to be answered."""
        with self._lock:
            self._under_way -= 1


class Handler(BaseHTTPRequestHandler):
    """Answers with a file or a range of it."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        """Say nothing."""

    def do_HEAD(self):
        """Answer without the body."""
        self.answer(body=False)

    def do_GET(self):
        """Answer."""
        self.answer(body=True)

    def answer(self, *, body):
        """Send what is asked for."""
        self.server.begun()
        path = self.server.folder / self.path.lstrip("/")
        data = path.read_bytes() if path.is_file() else None
        self.server.ended()
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if data is None:
            self.server.sizes.append(0)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start, stop = 0, len(data)
        if found:
            start = int(found[1]) if found[1] else len(data) - int(found[2])
            stop = min(int(found[2]) + 1, len(data)) if found[1] and found[2] else len(data)
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.end_headers()
        self.server.sizes.append(stop - start if body else 0)
        if body:
            self.wfile.write(data[start:stop])


@pytest.fixture
def server(tmp_path):
    """Give a server of an empty directory."""
    found = Server(tmp_path)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def write_thirty(path):
    """Write thirty variables whose metadata lie between data."""
    values = np.random.default_rng(0).normal(size=(12, 60, 90)).astype("f4")
    with netCDF4.Dataset(path, "w") as file:
        for name, size in {"time": None, "lat": 60, "lon": 90}.items():
            file.createDimension(name, size)
        for number in range(30):
            found = file.createVariable(
                f"v{number:02}", "f4", ("time", "lat", "lon"), zlib=True, chunksizes=(1, 60, 90)
            )
            for each in range(8):
                found.setncattr(f"attribute{each}", f"value {each}")
            found[:] = values
    return values


def test_one_variable_of_thirty(server):
    """Opening one variable of a large file and reading a slice takes at most 1 MB and sixty requests in few rounds."""
    values = write_thirty(server.folder / "a.nc")
    assert (server.folder / "a.nc").stat().st_size > 5_000_000
    server.delay = 0.05
    array = ts.open(f"{server.url}a.nc|hdf5:v07").result()
    requests, octets = server.cost()
    assert requests <= 60
    assert octets < 900_000
    assert server.rounds <= 12  # nine, if no answer comes late
    np.testing.assert_array_equal(array[3].read().result(), values[3])
    requests, octets = server.cost()
    assert requests <= 2
    assert octets < 100_000
    assert server.rounds <= 14
    np.testing.assert_array_equal(array[4].read().result(), values[4])
    assert server.cost()[0] == 1


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
def test_the_structure_takes_a_twentieth_of_the_bytes_of_virtualizarr(server):
    """The parser of VirtualiZarr reads chunk indexes with the structure; here the blocks with headers are read."""
    write_variables(server.folder / "a.nc")
    shown = xr.open_dataset(f"{server.url}a.nc|hdf5:", engine="fsstore", decode_cf=False)
    ours = server.cost()[1]
    registry = ObjectStoreRegistry({server.url: HTTPStore.from_url(server.url, client_options={"allow_http": True})})
    found = virtualizarr.open_virtual_dataset(
        f"{server.url}a.nc", registry=registry, parser=HDFParser(), loadable_variables=[], decode_times=False
    )
    theirs = server.cost()[1]
    assert set(found.variables) == set(shown.variables)
    assert ours <= 0.05 * theirs


def test_an_index_of_many_chunks_is_read_once(server):
    """The index of 4,000 chunks is read with the first chunk, in few requests, and not again."""
    with h5py.File(server.folder / "a.h5", "w", libver="earliest") as file:
        file.create_dataset("v", data=np.arange(64_000).reshape(4000, 16), chunks=(1, 16), compression="gzip")
    array = ts.open(f"{server.url}a.h5|hdf5:v").result()
    server.cost()
    assert array[100].read().result()[0] == 1600
    assert server.cost()[0] <= 8
    assert array[3000].read().result()[0] == 48_000
    assert server.cost()[0] == 1


def test_a_classic_file_opens_with_one_request(server):
    """The header of a NetCDF 3 file comes with the first request, and a variable with one more."""
    with netCDF4.Dataset(server.folder / "a.nc", "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.createDimension("x", 100_000)
        file.createVariable("v", "f8", ("x",))[:] = np.arange(100_000)
    driver = {"driver": "zarr", "kvstore": f"{server.url}a.nc|netcdf3:v/"}
    array = ts.open(driver).result()
    assert server.cost()[0] == 1
    assert array.read().result().sum() == sum(range(100_000))
    assert server.cost()[0] == 1


def test_a_window_of_a_cog_takes_two_rounds(server):
    """The directories of a cloud-optimised TIFF come with the first request, a window of it with one round more."""
    import rasterio

    values = np.cumsum(np.random.default_rng(0).integers(0, 4, (1, 2048, 2048)), axis=2).astype("u2")
    profile = {"driver": "COG", "count": 1, "height": 2048, "width": 2048, "dtype": "uint16", "blocksize": 256}
    place = rasterio.Affine(2, 0, 0, 0, -2, 0)
    with rasterio.open(server.folder / "a.tif", "w", **profile, compress="DEFLATE", transform=place) as file:
        file.write(values)
    server.delay = 0.2
    array = ts.open({"driver": "zarr", "kvstore": f"{server.url}a.tif|tiff:0/"}).result()
    assert server.cost()[0] == 1
    window = array[300:556, 300:556].read().result()
    np.testing.assert_array_equal(window, values[0, 300:556, 300:556])
    requests, octets = server.cost()
    assert requests <= 4  # tiles of two rows
    assert server.rounds == 2
    assert octets < (server.folder / "a.tif").stat().st_size / 4


def test_a_far_stack_is_opened_in_few_rounds(server):
    """Directories that lie between the data of a stack are fetched ahead, many at a time."""
    import tifffile

    pages = np.random.default_rng(0).integers(0, 255, (100, 150, 200)).astype("u1")
    with tifffile.TiffWriter(server.folder / "a.tif") as file:
        for page in pages:
            file.write(page, contiguous=False, metadata=None)
    array = ts.open(f"{server.url}a.tif|tiff:0").result()
    assert server.cost()[0] <= 110  # of which most are together
    assert server.folder.joinpath("a.tif").stat().st_size > 3_000_000
    np.testing.assert_array_equal(array[50].read().result(), pages[50])
    assert server.cost()[0] <= 2


def test_an_index_beside_a_far_grib_file_saves_rounds(server):
    """With an index the heads of all messages come together; one that does not fit the file does no harm."""
    import eccodes

    data, lines = b"", []
    for number, step in enumerate(range(0, 60, 3), 1):
        handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
        eccodes.codes_set(handle, "stepRange", step)
        eccodes.codes_set(handle, "Ni", 200)
        eccodes.codes_set(handle, "Nj", 200)
        eccodes.codes_set_values(handle, np.random.default_rng(step).normal(size=40_000))
        lines.append(f"{number}:{len(data)}:d=2020010100:T:anl:")
        data += eccodes.codes_get_message(handle)
        eccodes.codes_release(handle)
    (server.folder / "a.grib").write_bytes(data)
    assert len(ts.list_arrays(f"{server.url}a.grib|grib:")) > 1
    requests, octets = server.cost()
    assert 20 <= requests <= 24  # a chain, a block each
    (server.folder / "a.grib.idx").write_text("\n".join(lines))
    assert len(ts.list_arrays(f"{server.url}a.grib|grib:")) > 1
    together = server.cost()
    assert together[1] < octets / 2
    (server.folder / "a.grib.idx").write_text("1:0:d=\n2:77:d=\n3:1000:d=\n")
    array = ts.open(f"{server.url}a.grib|grib:t").result()
    assert array.shape == (20, 200, 200)


def test_a_far_dataset_is_that_of_the_file_here(server):
    """xarray sees through the web what it sees in the file, by detection."""
    write_thirty(server.folder / "a.nc")
    far = xr.open_dataset(f"{server.url}a.nc", engine="fsstore").load()
    with xr.open_dataset(server.folder / "a.nc", engine="netcdf4") as here:
        assert far.identical(here.load())


def test_a_file_that_changes_is_scanned_again(server):
    """Values come from one generation of a far file: after it was replaced, from the new one."""
    for value in (1, 2):
        with h5py.File(server.folder / "fresh.h5", "w") as file:
            if value == 2:
                file["other"] = np.zeros(5000)
            file.create_dataset("v", data=np.full(100, value), chunks=(10,))
        (server.folder / "fresh.h5").rename(server.folder / "a.h5")
        if value == 1:
            store = ts.KvStore.open(f"{server.url}a.h5|hdf5:v/").result()
        assert store.read("3").result().value == np.full(10, value).tobytes()


def test_one_chunk_takes_one_request_that_sees_whether_the_file_changed(server, tune):
    """Nothing is asked beside the chunk, whose own answer says of which generation the file is."""
    tune("scan", TRUSTED_S=0.0)
    for value in (1, 2):
        with h5py.File(server.folder / "fresh.h5", "w") as file:
            file.create_dataset("v", data=np.full(100, value), chunks=(10,))
        (server.folder / "fresh.h5").rename(server.folder / "a.h5")
        if value == 1:
            array = ts.open(f"{server.url}a.h5|hdf5:v").result()
            assert array[5].read().result() == 1
            server.cost()
            assert array[95].read().result() == 1
            assert server.cost()[0] == 1
    assert array[45].read().result() == 2


@pytest.mark.parametrize("box", [slice(112, 195), slice(42, 95), slice(42, 175)])
def test_several_chunks_take_no_other_request_unless_some_are_missing(server, tune, box):
    """Chunks that are read say of which generation the file is; whether one is still missing has to be asked."""
    tune("scan", TRUSTED_S=0.0)
    for value in (1, 2):
        with h5py.File(server.folder / "fresh.h5", "w") as file:
            data = file.create_dataset("v", (200,), "i4", chunks=(10,))
            data[:100] = value
            data[100 * value - 40 : 100 * value] = value  # other chunks have no place in the file
        (server.folder / "fresh.h5").rename(server.folder / "a.h5")
        if value == 1:
            array = ts.open(f"{server.url}a.h5|hdf5:v").result()
            assert (array.read().result() == data_of(1)).all()
            server.cost()
            for low, requests in ((2, 1), (72, 2), (112, 1)):
                found = array[low : low + 60].read().result()
                assert (found == data_of(1)[low : low + 60]).all()
                assert server.cost()[0] == requests
    assert (array[box].read().result() == data_of(2)[box]).all()


def data_of(value):
    """Return what the file of a value holds."""
    data = np.zeros(200, "i4")
    data[:100] = value
    data[100 * value - 40 : 100 * value] = value
    return data


def test_a_chunk_whose_key_may_be_of_two_arrays_is_found(tmp_path):
    """The path of one array with a number at its end reads as the keys of another with a dimension more."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v/0", data=np.arange(12).reshape(3, 4), chunks=(1, 2))
        file.create_dataset("v/1", data=np.arange(12).reshape(3, 4) + 100, chunks=(1, 2))
        file.create_dataset("w", data=7)
    store = ts.KvStore.open(f"file://{tmp_path}/a.h5|hdf5:").result()
    assert store["v/1/2.1"] == np.array([110, 111]).tobytes()
    assert store["v/0/2.1"] == np.array([10, 11]).tobytes()
    for absent in ("v/1/3.0", "v/1/0.2", "v/2/0.0", "v/1/0", "u/0.0", "v"):
        assert store.read(absent).result().state == "missing"
