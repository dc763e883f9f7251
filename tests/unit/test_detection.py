"""Detection of formats: what is recognised, with which requests, and what failures say."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import shutil
import zipfile

import numpy as np
import pytest
import zstandard

import fsstore as ts
from fsstore.context.context import Context
from fsstore.driver.auto import enter
from fsstore.driver.probe import detections, find
from fsstore.errors import DataLossError, FailedPreconditionError, StoreError
from fsstore.filesystem.place import live_kv
from fsstore.kvstore.contract.driver import KvPrefix, Write
from fsstore.kvstore.memory import MemoryDriver
from fsstore.runtime import execution
from fsstore.testing.doubles import Faulty, Recording
from fsstore.values.detection import Detection, match_file, match_files, settle, sizes

VALUES = np.arange(5, dtype="int32")
ARRAY_V2 = json.dumps(
    {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|u1", "compressor": None, "filters": None,
     "order": "C", "fill_value": 0}
)  # fmt: skip
REFS = {".zarray": ARRAY_V2, "0": "abcd"}


def _write(url):
    store = ts.open(url, create=True, dtype="int32", shape=[5]).result()
    store[...] = VALUES
    return store


def _recording(files):
    driver = MemoryDriver()
    execution.drive(driver.write_many([Write(key, value) for key, value in files.items()]))
    return Recording(driver)


def _open(recording, path):
    return ts.open({"driver": "auto", "kvstore": _kv(recording, path)})


def _kv(recording, path):
    return live_kv(KvPrefix(recording, path)).spec


@pytest.fixture(scope="module")
def zarr3_files(tmp_path_factory):
    """Give the files of a zarr v3 array."""
    folder = tmp_path_factory.mktemp("z3")
    _write(f"file://{folder}/|zarr3:")
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("pipeline", ["zarr2:", "zarr3:", "ocdbt:|zarr3:", "ocdbt:|zarr2:"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_directory_opens_by_its_place(tmp_path, pipeline, slash):
    """Arrays, also in a database, open without their drivers being named; the spec then names them."""
    written = _write(f"file://{tmp_path}/x|{pipeline}")
    found = ts.open(f"file://{tmp_path}/x{slash}").result()
    assert found.url == written.url
    assert found.spec() == written.spec()
    assert np.array_equal(found.read().result(), VALUES)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_is_entered(tmp_path, zarr3_files, method):
    """An array in a ZIP archive opens by the place of the archive, and its URL shows the steps."""
    with zipfile.ZipFile(tmp_path / "x.bin", "w", method) as archive:
        for name, value in zarr3_files.items():
            archive.writestr(name, value)
    found = ts.open(f"file://{tmp_path}/x.bin").result()
    assert found.url == f"file://{tmp_path}/x.bin|zip:|zarr3:"
    assert ts.open(found.spec()).result().read().result().tolist() == VALUES.tolist()


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, zstandard.compress, bz2.compress, lzma.compress],
    ids=["plain", "gzip", "zstd", "bz2", "xz"],
)
@pytest.mark.parametrize("document", [REFS, {"version": 1, "refs": REFS}], ids=["v0", "v1"])
def test_a_reference_document_is_entered(tmp_path, pack, document):
    """Reference sets of both versions, plain and compressed, are recognised by content, whatever their name."""
    (tmp_path / "x").write_bytes(pack(json.dumps(document).encode()))
    found = ts.open(f"file://{tmp_path}/x").result()
    assert found.url == f"file://{tmp_path}/x|reference:|zarr2:"
    assert found.read().result().tobytes() == b"abcd"


def test_a_parquet_set_is_told_from_consolidated_metadata(tmp_path):
    """A directory with `.zmetadata` is a reference set if that is an index of one, and a zarr group otherwise."""
    folder = tmp_path / "x.parq"
    folder.mkdir()
    metadata = {".zgroup": {"zarr_format": 2}, "v/.zarray": json.loads(ARRAY_V2)}
    (folder / ".zmetadata").write_text(json.dumps({"record_size": 10, "metadata": metadata}))
    opened, found = execution.call(_enter(f"file://{folder}"))
    assert (opened.driver.id, found.name) == ("reference", None)
    group = tmp_path / "group"
    group.mkdir()
    (group / ".zgroup").write_text('{"zarr_format": 2}')
    (group / ".zmetadata").write_text('{"zarr_consolidated_format": 1, "metadata": {}}')
    opened, found = execution.call(_enter(f"file://{group}"))
    assert (opened.driver.id, found.name) == ("file", None)


async def _enter(url):
    from fsstore.kvstore.spec_parse import kv_spec, open_kv

    context = Context()
    return await enter(await open_kv(kv_spec(url), context), context)


def test_a_json_document_opens(tmp_path):
    """A JSON document that is no reference set opens as one value."""
    (tmp_path / "a.json").write_text('{"a": [1, 2]}')
    found = ts.open(f"file://{tmp_path}/a.json").result()
    assert found.url == f"file://{tmp_path}/a.json|json:"
    assert found.read().result()[()] == {"a": [1, 2]}


REQUESTS = [
    ("x", {"x/": "zarr3"}, [2, 5]),
    ("x/", {"x/": "zarr3"}, [5]),
    ("x", {"x": b"z" * 9000}, [2]),
    ("x", {"x": b"abc"}, [2, 1]),
]


@pytest.mark.parametrize(("path", "files", "batches"), REQUESTS, ids=["no-slash", "slash", "large", "tiny"])
def test_each_step_is_one_batch(zarr3_files, path, files, batches):
    """Detection makes the requests of TensorStore, each step as one batch; opening makes none besides."""
    stored = {}
    for prefix, value in files.items():
        stored |= {prefix + key: data for key, data in zarr3_files.items()} if value == "zarr3" else {prefix: value}
    recording = _recording(stored)
    sizes_of_batches = []
    inner = recording.read_many

    async def read_many(reads):
        sizes_of_batches.append(len(reads))
        return await inner(reads)

    recording.read_many = read_many
    _open(recording, path).exception()
    assert sizes_of_batches == batches


def test_only_the_ends_of_a_large_file_are_read():
    """A large file costs 2056 bytes of its beginning and 4144 of its end, whatever it is."""
    recording = _recording({"x": bytes(2**20)})
    assert isinstance(_open(recording, "x").exception(), FailedPreconditionError)
    assert recording.bytes_read == 2056 + 4144


def test_a_huge_sparse_file_named_json_is_not_read(tmp_path):
    """Ten gigabytes of zeros called `.json` are refused at once."""
    with open(tmp_path / "big.json", "wb") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(FailedPreconditionError, match="Failed to detect format"):
        ts.open(f"file://{tmp_path}/big.json").result()


def test_a_large_text_of_json_is_looked_at_once_more(monkeypatch):
    """To tell a reference set from another document, a bounded part of its beginning is read."""
    recording = _recording({"x": b'{"a": "' + b"z" * 2**20 + b'"}'})
    assert execution.call(find(live_kv(KvPrefix(recording, "x")))).detection.name == "json"
    assert recording.bytes_read < 2**18


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda place: place.mkdir(), "the directory is empty; check the path"),
        (lambda place: place.write_bytes(b""), "the file is empty"),
        (lambda place: place.write_bytes(b"text"), "the file begins like no format that is known here"),
        (lambda place: _files(place, *"edcba"), 'it is a directory that holds "a", "b", "c" and 2 more, but no array'),
        (lambda place: _files(place, ".zgroup"), "it is a group without arrays"),
    ],
)  # fmt: skip
def test_nothing_there(tmp_path, make, said):
    """The error says what is at the place: nothing, and the close name; a file; a directory and what it holds."""
    place = tmp_path / "x"
    make(place)
    with pytest.raises(FailedPreconditionError) as caught:
        ts.open(f"file://{place}").result()
    start = f'Error opening "auto" driver: Failed to detect format for local file "{place}": {said}'
    assert start in str(caught.value)
    assert len(str(caught.value)) < len(str(place)) + 300


@pytest.mark.parametrize(
    ("beside", "said"), [("else", 'check the path, or create an array with mode="w"'), ("xx", 'did you mean "xx"?')]
)
def test_a_missing_place(tmp_path, beside, said):
    """The error is that of a file that is missing too, and begins with that; TensorStore's class of it is one of its own."""
    (tmp_path / beside).touch()
    with pytest.raises(FileNotFoundError) as caught:
        ts.open(f"file://{tmp_path}/x").result()
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), FailedPreconditionError)
    assert str(caught.value).startswith(f'NOT_FOUND: There is nothing at local file "{tmp_path}/x"; {said}')


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89HDF\r\n\x1a\n", ', whose format comes before the path inside it, as in "a.x|hdf5:group/temp"'),
        (b"CDF\x01" + bytes(28), ', whose format comes before the path inside it, as in "a.x|netcdf3:group/temp"'),
        (b"GRIB" + bytes(3) + b"\x02", ', whose format comes before the path inside it, as in "a.x|grib:group/temp"'),
        (b"text", ", and no directory"),
        (b"", ", and no directory"),
    ],
)
def test_a_path_that_goes_on_inside_a_file(tmp_path, content, said):
    """The error says how the parts of a file are written, with the format that its first bytes are of."""
    (tmp_path / "a.x").write_bytes(content)
    with pytest.raises(FailedPreconditionError) as caught:
        ts.open(tmp_path / "a.x/group/temp").result()
    assert str(caught.value).endswith(f'/a.x/group/temp"; "a.x" is a file{said}')


def test_a_name_that_shares_some_letters_is_not_meant(tmp_path):
    """Only a name that is close to the missing one is proposed."""
    (tmp_path / "note.txt").touch()
    with pytest.raises(FailedPreconditionError, match="There is nothing at .*; check the path"):
        ts.open(tmp_path / "nothere.zarr").result()


def _files(place, *names):
    place.mkdir()
    for name in names:
        (place / name).write_text("{}")


def test_two_formats(tmp_path):
    """A directory that fits two formats is refused, with their names."""
    _write(f"file://{tmp_path}/x|zarr2:")
    _write(f"file://{tmp_path}/x|zarr3:")
    with pytest.raises(FailedPreconditionError, match=r"Multiple possible formats detected for .*: \{zarr2, zarr3\}"):
        ts.open(f"file://{tmp_path}/x").result()


def test_a_file_hides_a_directory():
    """A file of no format is an error even where a directory of the same name has an array."""
    recording = _recording({"x": b"z" * 9000, "x/.zarray": ARRAY_V2.encode(), "x/0": b"abcd"})
    assert "Failed to detect format" in str(_open(recording, "x").exception())
    recording = _recording({"x": b"", "x/.zarray": ARRAY_V2.encode(), "x/0": b"abcd"})
    assert _open(recording, "x").result().read().result().tobytes() == b"abcd"


def test_a_damaged_file_of_a_known_format_is_named(tmp_path):
    """A file that begins like one of a format, and is none, gives an error that names the file and its format."""
    (tmp_path / "x").write_bytes(b"SIMPLE  =" + bytes(100))
    with pytest.raises(StoreError, match=r'Error opening FITS file local file ".*x"'):
        ts.open(f"file://{tmp_path}/x").result()


PACKS = {"gzip": gzip.compress, "zstd": zstandard.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("name", PACKS)
def test_a_compressed_document_opens(tmp_path, name):
    """A compressed JSON document is entered, whatever its name."""
    (tmp_path / "x").write_bytes(PACKS[name](b'{"a": [1, 2]}'))
    found = ts.open(f"file://{tmp_path}/x").result()
    assert found.url == f"file://{tmp_path}/x|{name}:|json:"
    assert found.read().result()[()] == {"a": [1, 2]}
    assert ts.open(found.spec()).result().read().result()[()] == {"a": [1, 2]}


@pytest.mark.parametrize("name", PACKS)
def test_a_compressed_archive_is_entered(tmp_path, zarr3_files, name):
    """An archive in a compressed file is found by its end, and decompressed once however it is read."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for key, value in zarr3_files.items():
            archive.writestr(key, value)
    (tmp_path / "x").write_bytes(PACKS[name](buffer.getvalue()))
    found = ts.open(f"file://{tmp_path}/x").result()
    assert found.url == f"file://{tmp_path}/x|{name}:|zip:|zarr3:"
    assert np.array_equal(found.read().result(), VALUES)
    assert ts.open(f"file://{tmp_path}/x|{name}:|zip:").result().url == found.url


def test_a_compressed_image_opens(tmp_path):
    """An image in a compressed file is found by its beginning."""
    imagecodecs = pytest.importorskip("imagecodecs")
    pixels = np.arange(48, dtype="u1").reshape(4, 4, 3)
    (tmp_path / "x.png.zst").write_bytes(zstandard.compress(imagecodecs.png_encode(pixels)))
    found = ts.open(f"file://{tmp_path}/x.png.zst").result()
    assert found.url == f"file://{tmp_path}/x.png.zst|zstd:|png:"
    assert np.array_equal(found.read().result(), pixels)


@pytest.mark.parametrize("content", [b"", b"text", b"PK no archive", b"\0" * 300000])
@pytest.mark.parametrize("name", PACKS)
def test_a_compressed_file_of_no_format(tmp_path, name, content):
    """What is no format once it is decompressed is an error that says so."""
    (tmp_path / "x").write_bytes(PACKS[name](content))
    with pytest.raises(FailedPreconditionError, match=f'Failed to detect .*"{tmp_path}/x" decompressed by {name}: '):
        ts.open(f"file://{tmp_path}/x").result()


def test_a_damaged_file_is_named_inside_a_compressed_one(tmp_path):
    """So it does inside a compressed file."""
    (tmp_path / "x.fits.gz").write_bytes(gzip.compress(b"SIMPLE  =" + bytes(100)))
    with pytest.raises(StoreError, match=r'FITS file .*x.fits.gz" decompressed by gzip'):
        ts.open(f"file://{tmp_path}/x.fits.gz").result()


def test_a_damaged_compressed_file(tmp_path):
    """A compressed file that is cut off is an error that names it, not an unknown format."""
    (tmp_path / "x").write_bytes(gzip.compress(b'{"a": "' + bytes(range(32, 34)) * 10000 + b'"}')[:-9])
    with pytest.raises(StoreError, match='x" decompressed by gzip: Data compressed by gzip are cut off'):
        ts.open(f"file://{tmp_path}/x").result().read().result()


def test_files_compressed_without_end(tmp_path):
    """A file compressed many times over is given up after a few."""
    data = b"x"
    for _ in range(12):
        data = gzip.compress(data)
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(FailedPreconditionError, match="after 8 of them inside each other"):
        ts.open(f"file://{tmp_path}/x").result()


def test_of_a_large_compressed_file_the_beginning_is_read():
    """Whether a compressed file is of any format costs a bounded part of its beginning."""
    packed = gzip.compress(b"plain text" + np.random.default_rng(1).bytes(2**22), 1)
    recording = _recording({"x": packed})
    assert "Failed to detect" in str(_open(recording, "x").exception())
    assert recording.bytes_read < 2**20


def test_a_directory_that_others_read_is_named(tmp_path):
    """A volume of Neuroglancer is named, with what reads it, as long as no driver of that name is registered."""
    (tmp_path / "info").write_text('{"@type": "neuroglancer_multiscale_volume"}')
    with pytest.raises(ValueError, match="neuroglancer|Neuroglancer"):
        ts.open(f"file://{tmp_path}").result()


def test_an_icechunk_repository_is_entered(tmp_path):
    """A directory with the root or the first branch of an Icechunk repository is opened as one; damage names the file."""
    (tmp_path / "refs" / "branch.main").mkdir(parents=True)
    (tmp_path / "refs" / "branch.main" / "ref.json").write_text("{}")
    with pytest.raises(DataLossError, match="refs/branch.main/ref.json.*no JSON with a member"):
        ts.open(f"file://{tmp_path}").result()
    (tmp_path / "repo").write_bytes(b"nothing")
    with pytest.raises(DataLossError, match="header of Icechunk; at offset 0"):
        ts.open(f"file://{tmp_path}").result()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_group_lists_its_arrays(tmp_path, zarr_format):
    """A group opened as an array gives an error with the paths of the arrays in it."""
    import zarr

    group = zarr.open_group(tmp_path / "g", mode="w", zarr_format=zarr_format)
    group.create_array("a/b", shape=(3,), dtype="i4")
    group.create_array("c", shape=(3,), dtype="i4")
    with pytest.raises(FailedPreconditionError, match='is a group and no array; .* one of its arrays: "a/b", "c"'):
        ts.open(f"file://{tmp_path}/g").result()


def test_a_reference_set_lists_its_arrays(tmp_path):
    """The root of a reference set is a group too; below it, arrays open."""
    refs = {".zgroup": '{"zarr_format": 2}', **{f"v/{key}": value for key, value in REFS.items()}}
    (tmp_path / "r.json").write_text(json.dumps(refs))
    with pytest.raises(FailedPreconditionError, match='is a group and no array; .* one of its arrays: "v"'):
        ts.open(f"file://{tmp_path}/r.json").result()
    assert ts.open(f"file://{tmp_path}/r.json|reference:v").result().read().result().tobytes() == b"abcd"


def test_nesting_ends(tmp_path):
    """Archives in archives are not entered: what is in one is a directory."""
    data = b""
    for _ in range(20):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("x.zip", data)
        data = buffer.getvalue()
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(FailedPreconditionError, match='Failed to detect format for "" in local file'):
        ts.open(f"file://{tmp_path}/x.zip").result()


def test_databases_in_databases_end():
    """A store that looks like a database at every depth is given up after a few."""

    async def always(reads):
        from fsstore.kvstore.contract.driver import NO_VALUE, ReadResult

        return [
            ReadResult("value", b"", b"1", 0.0)
            if read.key.endswith("manifest.ocdbt")
            else ReadResult("missing", b"", NO_VALUE, 0.0)
            for read in reads
        ]

    recording = _recording({})
    recording.read_many = always
    assert _open(recording, "x/").exception() is not None


def test_a_failing_store_is_an_error():
    """A store that cannot be read is not a store without a format."""
    recording = _recording({"x/.zarray": b"{}"})
    faulty = Faulty(recording, fails=lambda operation, key: StoreError("broken") if operation == "read" else None)
    assert "Format auto-detection failed: Error reading" in str(_open(faulty, "x/").exception())
    assert "broken" in str(_open(faulty, "x").exception())


def test_one_unreadable_name_does_not_spoil_the_others():
    """A key that may not be read does not keep the format from being recognised by another."""
    recording = _recording({"x/.zarray": ARRAY_V2.encode(), "x/0": b"abcd"})
    faulty = Faulty(recording, fails=lambda _, key: StoreError("no") if key == "x/info" else None)
    assert _open(faulty, "x/").result().read().result().tobytes() == b"abcd"


def test_an_unreadable_file(tmp_path):
    """A file whose reading fails is an error that names it."""
    recording = _recording({"x": b"z" * 9000})
    faulty = Faulty(recording, fails=lambda _, key: StoreError("Permission denied") if key == "x" else None)
    assert 'Error reading "x": Permission denied' in str(_open(faulty, "x").exception())


@pytest.mark.parametrize("options", [{"create": True}, {"create": True, "delete_existing": True}])
def test_nothing_is_created(tmp_path, options):
    """Modes that only create are refused; `open` with `create` opens and never creates."""
    with pytest.raises(ValueError, match="create mode not compatible with format auto-detection"):
        ts.open(f"file://{tmp_path}/x", **options).result()
    with pytest.raises(FailedPreconditionError):
        ts.open(f"file://{tmp_path}/x", open=True, create=True, dtype="int8", shape=[1]).result()
    assert not (tmp_path / "x").exists()


def test_the_members_are_context_resources(tmp_path):
    """The spec takes resources for the detected driver, and refuses everything else."""
    _write(f"file://{tmp_path}/x|zarr3:")
    spec = {"driver": "auto", "kvstore": f"file://{tmp_path}/x", "cache_pool": {"total_bytes_limit": 7}}
    assert ts.Spec(spec).to_json()["cache_pool"] == {"total_bytes_limit": 7}
    found = ts.open(spec).result()
    assert found.spec(retain_context=True).to_json()["context"]["cache_pool"] == {"total_bytes_limit": 7}
    with pytest.raises(ValueError, match='Invalid context resource identifier: "create"'):
        ts.Spec({**spec, "create": True})


def test_recheck_options_reach_the_driver_that_is_found(tmp_path):
    """When cached data are asked for again is said to `open`, in the spec, or through a cast, as for other drivers."""
    _write(f"file://{tmp_path}/x|zarr3:")
    (tmp_path / "a.json").write_text("{}")
    found = ts.open(f"file://{tmp_path}/x", recheck_cached_data=False, recheck_cached_metadata=True).result()
    json = found.spec().to_json()
    assert (json["recheck_cached_data"], json["recheck_cached_metadata"]) == (False, True)
    spec = ts.Spec(f"file://{tmp_path}/x")
    spec.update(recheck_cached=False)
    assert ts.Spec(spec.to_json()) == spec
    assert ts.open(spec).result().spec().to_json()["recheck_cached_metadata"] is False
    base = ts.open(f"file://{tmp_path}/x|cast:float64", recheck_cached_data=False).result().base
    assert base.spec().to_json()["recheck_cached_data"] is False
    document = ts.open(f"file://{tmp_path}/a.json", recheck_cached_data=1.5, recheck_cached_metadata=True).result()
    assert document.spec().to_json()["recheck_cached_data"] == 1.5
    usual = ts.open(f"file://{tmp_path}/x", recheck_cached_data=True, recheck_cached_metadata="open").result()
    assert usual.spec() == ts.open(f"file://{tmp_path}/x").result().spec()
    with pytest.raises(ValueError, match="recheck_cached_data"):
        ts.Spec({"driver": "auto", "kvstore": f"file://{tmp_path}/x", "recheck_cached_data": "never"})


def test_the_callers_context_is_shared(tmp_path):
    """The detected driver takes its resources from the context of the call."""
    context = ts.Context({"cache_pool": {"total_bytes_limit": 12345}})
    ts.open("memory://x/|zarr3:", create=True, dtype="int32", shape=[5], context=context).result()[...] = VALUES
    found = ts.open("memory://x", context=context).result()
    assert np.array_equal(found.read().result(), VALUES)
    assert found.spec(retain_context=True).to_json()["context"]["cache_pool"] == {"total_bytes_limit": 12345}


def test_cast_over_what_is_detected(tmp_path):
    """A cast may stand over a place."""
    _write(f"file://{tmp_path}/x|zarr3:")
    assert ts.open(f"file://{tmp_path}/x|cast:float64").result().read().result().dtype == np.float64


def test_schema_constraints_are_checked(tmp_path):
    """Constraints on the schema are those of the detected driver."""
    _write(f"file://{tmp_path}/x|zarr3:")
    with pytest.raises(ValueError):
        ts.open(f"file://{tmp_path}/x", dtype="int16").result()
    assert ts.open(f"file://{tmp_path}/x", dtype="int32", rank=1).result().rank == 1


def test_what_formats_look_like_is_bounded():
    """All formats together are told by the first 2056 and the last 4144 bytes."""
    assert sizes(detections()) == (2056, 4144)


def test_matching_is_pure():
    """Signatures at offsets, names of files, and formats that beat others."""
    first = Detection("a", "array", signatures=(((2, b"xy"),),), at_least=4)
    second = Detection("b", "store", files=("f", "g"), matches=lambda head, tail: tail == b"!", over=("a",))
    assert match_file([first, second], b"..xy", b"!") == [first, second]
    assert match_file([first, second], b"..x", b"!") == [second]
    assert match_files([first, second], {"f"}) == []
    assert match_files([first, second], {"f", "g", "h"}) == [second]
    assert settle([first, second], b"") == [second]


def test_a_moved_array_opens(tmp_path):
    """Detection depends on what is stored only: a copy elsewhere opens as well."""
    _write(f"file://{tmp_path}/x|zarr2:")
    shutil.copytree(tmp_path / "x", tmp_path / "y z")
    assert np.array_equal(ts.open(f"file://{tmp_path}/y%20z").result().read().result(), VALUES)
