"""What programs of the fsspec world do with a filesystem, done with ours; the page about fsspec has a line for each."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import warnings
import zipfile
from pathlib import Path

import dask.bytes
import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from fsspec.callbacks import Callback
from fsspec.generic import GenericFileSystem, rsync
from upath import UPath

import fsstore as ts

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "fsspec.md"
TABLE = "x,y\n1,2\n3,4\n"


@pytest.fixture(autouse=True)
def _quiet():
    """Let the tools warn of protocols that they have not heard of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def archive(tmp_path):
    """Give the path of an archive with two tables."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("a.csv", TABLE)
        file.writestr("b.csv", TABLE)
    return tmp_path / "a.zip"


def opens(archive, tmp_path):
    """`fsspec.open` gives a member, as bytes or text."""
    with fsspec.open(f"auto://a.csv::file://{archive}", "rt") as file:
        assert file.read() == TABLE


def opens_many(archive, tmp_path):
    """`open_files` expands patterns."""
    files = fsspec.open_files(f"auto://*.csv::file://{archive}", "rt")
    assert [file.path for file in files] == ["a.csv", "b.csv"]


def maps(archive, tmp_path):
    """`get_mapper` gives keys and values."""
    assert fsspec.get_mapper(f"auto::file://{archive}")["b.csv"] == TABLE.encode()


def copies_generic(archive, tmp_path):
    """`GenericFileSystem` copies between one of our protocols and another filesystem."""
    source = f"fsstore://file://{archive}|zip:/a.csv"
    GenericFileSystem(default_method="current").cp_file(source, f"file://{tmp_path}/copied.csv")
    assert (tmp_path / "copied.csv").read_text() == TABLE


def synchronises(archive, tmp_path):
    """`rsync` copies what is in one of our places to another filesystem, and that to another of ours."""
    place, generic = f"file://{tmp_path}", GenericFileSystem(default_method="current")
    rsync(f"fsstore://file://{archive}|zip:", f"{place}/out", fs=generic)
    assert (tmp_path / "out" / "b.csv").read_text() == TABLE
    rsync(f"{place}/out", f"fsstore://{place}/db/|ocdbt:copied", fs=generic)
    assert fsspec.get_mapper(f"fsstore://{place}/db/|ocdbt:")["copied/a.csv"] == TABLE.encode()


def obeys_config(archive, tmp_path):
    """`fsspec.config` sets options of our protocols, which explicit ones replace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fsspec.config.conf, "ocdbt", {"context": {"file_io_sync": False}})
        filesystem = fsspec.filesystem("ocdbt", fo=f"{tmp_path}/db", skip_instance_cache=True)
        assert filesystem.storage_options["context"] == {"file_io_sync": False}
        filesystem.pipe_file("a", b"1")
        assert filesystem.cat_file("a") == b"1"


def tells_progress(archive, tmp_path):
    """Callbacks hear of each file that is fetched, and of its bytes."""
    seen = []

    class Watching(Callback):
        """Notes sizes of files."""

        def branched(self, path_1, path_2, **kwargs):
            """Return what hears of one file."""
            return Noting()

    class Noting(Callback):
        """Notes the bytes of a file."""

        def close(self):
            """Note them."""
            seen.append((self.size, self.value))

    callback = Watching()
    filesystem = fsspec.filesystem("auto", fo=str(archive))
    filesystem.get(["a.csv", "b.csv"], f"{tmp_path}/out/", callback=callback)
    assert (callback.size, callback.value) == (2, 2)
    assert seen == [(len(TABLE), len(TABLE))] * 2


def runs_in_a_loop(archive, tmp_path):
    """With `asynchronous=True` coroutines run on the loop of the program."""

    async def main():
        filesystem = fsspec.filesystem("auto", fo=str(archive), asynchronous=True)
        return await asyncio.gather(filesystem._cat_file("a.csv"), filesystem._cat_file("b.csv"))

    assert asyncio.run(main()) == [TABLE.encode()] * 2


def gives_blocks_to_dask(archive, tmp_path):
    """`dask.bytes.read_bytes` cuts members into blocks."""
    _, blocks = dask.bytes.read_bytes(f"auto://*.csv::file://{archive}", blocksize=6)
    assert b"".join(part.compute() for part in blocks[0]) == TABLE.encode()


def gives_tables(archive, tmp_path):
    """pandas reads a member by URL; pyarrow takes the filesystem."""
    # an older pandas takes the end of a chain for that of the file
    table = pd.read_csv(f"auto://a.csv::file://{archive}", compression=None)
    assert table.y.tolist() == [2, 4]
    filesystem = fsspec.filesystem("ocdbt", fo=f"{tmp_path}/tables")
    pyarrow.parquet.write_table(pa.table({"y": [2, 4]}), "t.parquet", filesystem=filesystem)
    assert pyarrow.parquet.read_table("t.parquet", filesystem=filesystem)["y"].to_pylist() == [2, 4]


def reads_by_blocks(archive, tmp_path):
    """Open files keep blocks as fsspec's caches do, whichever is asked for."""
    filesystem = fsspec.filesystem("auto", fo=str(archive))
    for cache in ("blockcache", "readahead", "bytes", "all", "none"):
        with filesystem.open("a.csv", cache_type=cache, block_size=4) as file:
            file.seek(4)
            assert file.read(3) == b"1,2"


def is_shared_and_pickled(archive, tmp_path):
    """Equal arguments give one instance, and a pickle opens the place again."""
    filesystem = fsspec.filesystem("auto", fo=str(archive))
    assert fsspec.filesystem("auto", fo=str(archive)) is filesystem
    assert pickle.loads(pickle.dumps(filesystem)).cat_file("a.csv") == TABLE.encode()


def stands_beside_caches(archive, tmp_path):
    """`simplecache::` stands before our protocols and behind them."""
    for url in (f"simplecache::auto://a.csv::file://{archive}", f"auto://a.csv::simplecache::file://{archive}"):
        with fsspec.open(url, "rt", simplecache={"cache_storage": f"{tmp_path}/cache"}) as file:
            assert file.read() == TABLE


def takes_nested_options(archive, tmp_path):
    """`storage_options` name the options of each protocol of a chain."""
    options = {"auto": {"context": {"file_io_sync": False}}, "file": {"auto_mkdir": True}}
    url = f"auto://a.csv::file://{archive}"
    assert pd.read_csv(url, storage_options=options, compression=None).x.tolist() == [1, 3]


def is_a_path(archive, tmp_path):
    """`UPath` walks and reads."""
    root = UPath(f"auto://::file://{archive}")
    assert sorted(each.name for each in root.iterdir()) == ["a.csv", "b.csv"]
    assert (root / "a.csv").read_text() == TABLE


WORKFLOWS = {
    "fsspec.open": opens,
    "open_files": opens_many,
    "get_mapper": maps,
    "GenericFileSystem": copies_generic,
    "rsync": synchronises,
    "fsspec.config": obeys_config,
    "callback": tells_progress,
    "asynchronous": runs_in_a_loop,
    "dask.bytes": gives_blocks_to_dask,
    "pyarrow": gives_tables,
    "cache_type": reads_by_blocks,
    "pickle": is_shared_and_pickled,
    "simplecache": stands_beside_caches,
    "storage_options": takes_nested_options,
    "UPath": is_a_path,
}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow(name, archive, tmp_path):
    """What a program does with any filesystem, it does with ours."""
    WORKFLOWS[name](archive, tmp_path)


def test_an_array_in_a_bucket_is_shown_in_a_chain(request):
    """`fsspec.open`, a mapper and a path show an array of N5 in a bucket as zarr v3."""
    pytest.importorskip("s3fs", reason="s3fs is not installed: `make test` has it")
    request.getfixturevalue("s3_credentials")
    endpoint, bucket = request.getfixturevalue("moto_bucket")
    place = {"driver": "s3", "bucket": bucket, "endpoint": endpoint, "aws_region": "us-east-1", "path": "a.n5/"}
    spec = {"driver": "n5", "kvstore": place, "metadata": {"compression": {"type": "raw"}}}
    array = ts.open(spec, create=True, delete_existing=True, dtype="uint8", shape=[4]).result()
    array.write([1, 2, 3, 4]).result()
    options = {"s3": {"endpoint_url": endpoint}}
    with fsspec.open(f"zarr3://zarr.json::s3://{bucket}/a.n5/", "rt", **options) as file:
        assert json.load(file)["shape"] == [4]
    mapper = fsspec.get_mapper(f"zarr3::s3://{bucket}/a.n5/", **options)
    assert mapper["c/0"] == bytes([1, 2, 3, 4])
    assert (UPath(f"zarr3://::s3://{bucket}/a.n5/", **options) / "c" / "0").read_bytes() == mapper["c/0"]


def test_the_page_has_a_line_for_each():
    """Each workflow that is tested stands in the table, and no other."""
    table = PAGE.read_text(encoding="utf-8").split("## In programs that know fsspec")[1].split("\n\n")[2]
    assert re.findall(r"^\| `([\w.]+)`", table, re.MULTILINE) == list(WORKFLOWS)
