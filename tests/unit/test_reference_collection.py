"""`fsstore.references`: sets as mappings, merging, renaming, scanning, and arrays read through sets."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc

import fsspec
import h5py
import numpy as np
import pytest

import fsstore as ts
from fsstore import references
from fsstore.errors import JsonError, NotFoundError, StoreError
from fsstore.reference.table.table import Located
from fsstore.scan.as_references import format_of_head
from fsstore.values.detection import method_of


def test_a_set_is_a_mapping():
    """Lookup, iteration, membership and length, for every form of value."""
    refs = references.open({"a": "text", "x/0": ["u", 1, 2], "x/1": ["u"], "n": None})
    assert dict(refs) == {"a": b"text", "x/0": ("u", 1, 2), "x/1": ("u", 0, -1)}
    assert len(refs) == 3
    assert "n" not in refs
    assert refs.get("nope") is None
    assert dict(refs.items_of("x")) == {"x/0": ("u", 1, 2), "x/1": ("u", 0, -1)}
    assert refs.urls == ["u"]
    with pytest.raises(KeyError):
        refs["n"]


def test_merging_renaming_and_rewriting_leave_the_source_alone():
    """Each returns a new set; of equal keys the last set's wins."""
    one = references.open({"x/0": ["s3://a/k", 0, 1], "m": "1"})
    two = references.open({"x/0": ["gs://b/k", 5, 6], "x/1": b"\xff"})
    merged = one.merge(two)
    assert dict(merged) == {"m": b"1", "x/0": ("gs://b/k", 5, 6), "x/1": b"\xff"}
    assert dict(merged.rename("x/", "g/y/"))["g/y/0"] == ("gs://b/k", 5, 6)
    assert merged.rewrite({"gs://": "s3://", "gs://b/": "file:///c/"})["x/0"] == ("file:///c/k", 5, 6)
    assert dict(one) == {"x/0": ("s3://a/k", 0, 1), "m": b"1"}


@pytest.mark.parametrize(("old", "new"), [("x/", "../"), ("a", "."), ("a", ""), ("x", "/x"), ("x", "k" * 4095)])
def test_renaming_makes_no_key_that_a_set_may_not_hold(old, new):
    """The keys that come out are checked, not the prefixes: `a./x` may not become `../x`, nor `a/b` become `/b`."""
    refs = references.open({"x/0": ["u", 0, 1], "a./x": "1", "a/b": "2"})
    with pytest.raises(StoreError, match="Cannot rename"):
        refs.rename(old, new)


@pytest.mark.parametrize(
    ("name", "form", "method"),
    [
        ("r.json", None, None), ("r.json.zst", None, "zstd"), ("r.json.zstd", None, "zstd"), ("r.json.gz", None, "gzip"),
        ("r.json.bz2", None, "bz2"), ("r.json.xz", None, "xz"), ("r", "json.xz", "xz"), ("r.json.xz", "json", None),
        ("r.bz2", "json.gz", "gzip"), ("r.json.zip", "json", None),
    ],
)  # fmt: skip
def test_the_name_or_the_format_says_how_a_set_is_compressed(tmp_path, name, form, method):
    """What the suffix says is written, unless `format` says otherwise, and stays so when the set is written to."""
    refs = {".zgroup": "{}", **{f"x/{n}": ["s3://b/k", n, 1] for n in range(5000)}}
    for place in (tmp_path / name, {"driver": "fsspec", "url": f"file://{tmp_path}/live-{name}"}):
        references.open(refs).save(place, form)
        assert dict(references.open(place)) == dict(references.open(refs))
    for path in tmp_path.iterdir():
        assert method_of(path.read_bytes()[:6]) == method
        if form is None:
            ts.KvStore.open(f"file://{path}|reference:").result()["x/7"] = b"inline"
            assert method_of(path.read_bytes()[:6]) == method
            assert references.open(path)["x/7"] == b"inline"
            with fsspec.open(str(path), "rb", compression="infer" if not name.endswith("zstd") else "zstd") as file:
                assert json.load(file)["refs"]["x/7"] == "inline"


def test_what_cannot_be_saved_is_said(tmp_path):
    """Suffixes of other compressions, unknown forms and versions, and impossible sizes are refused; nothing is written."""
    refs = references.open({".zgroup": "{}"})
    for name in ("r.json.lzma", "r.json.br", "r.json.zip"):
        with pytest.raises(StoreError, match=name):
            refs.save(tmp_path / name)
    with pytest.raises(StoreError, match='not "xz"'):
        refs.save(tmp_path / "r.json", "xz")
    for version in (2, None, "1"):
        with pytest.raises(StoreError, match="version"):
            refs.save(tmp_path / "r.json", version=version)
    for size in (0, -1, 10**10):
        with pytest.raises(StoreError, match="references, not"):
            refs.save(tmp_path / "r.parq", record_size=size)
    assert not list(tmp_path.iterdir())


def test_a_document_is_saved_piece_by_piece(tmp_path):
    """Saving to a local file takes a fraction of the memory of the document, and nothing is left of one that fails."""
    text = json.dumps({f"x/{n}": [f"s3://bucket/{n // 100}", n * 1000, 999] for n in range(250_000)})
    (tmp_path / "from.json").write_text(text)
    refs = references.open(tmp_path / "from.json")
    tracemalloc.start()
    refs.save(tmp_path / "r.json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 9e6 < 10e6 < len(text)
    assert references.open(tmp_path / "r.json")["x/249999"] == Located("s3://bucket/2499", 249_999_000, 999)
    before = (tmp_path / "r.json").read_bytes()
    wrong = refs.merge(references.open({"version": 1, "refs": {"version": b"x", "x/0": "y"}}))
    with pytest.raises(JsonError, match='"version"'):
        wrong.save(tmp_path / "r.json", version=0, overwrite=True)
    assert (tmp_path / "r.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from.json", "r.json"]


def test_a_save_that_is_killed_leaves_the_old_set_or_the_new_one(tmp_path):
    """At no moment is there half a document, nor does what is left behind keep the next one from being saved."""
    code = (
        "import sys; from fsstore import references\n"
        "sets = [references.open({f'x/{n}': [f's3://b/{k}', n, 1] for n in range(20_000)}) for k in (0, 1)]\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for one in sets: one.save(sys.argv[1], overwrite=True)\n"
    )
    path = tmp_path / "r.json"
    references.open({f"x/{n}": ["s3://b/0", n, 1] for n in range(20_000)}).save(path)
    for wait in (0.0, 0.02, 0.05, 0.11):
        with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(wait)
            writer.kill()
        found = references.open(path)
        assert len(found) == 20_000
        assert len(found.urls) == 1
    references.open({"x": "y"}).save(path, overwrite=True)
    assert dict(references.open(path)) == {"x": b"y"}


def test_generated_references_stay_symbolic_until_asked(tmp_path):
    """Saving version 1 keeps `gen`; version 0, and merging, write it out."""
    entry = {
        "key": "x/{{i}}",
        "url": "{{u}}",
        "offset": "{{i * 4}}",
        "length": "4",
        "dimensions": {"i": {"stop": 1000}},
    }
    refs = references.open(
        {"version": 1, "templates": {"u": "s3://b/k"}, "gen": [entry], "refs": {"a": ["{{u}}", 1, 2]}}
    )
    refs.save(tmp_path / "1.json")
    refs.save(tmp_path / "0.json", version=0)
    assert (tmp_path / "1.json").stat().st_size < 400 < (tmp_path / "0.json").stat().st_size
    expected = {f"x/{n}": ("s3://b/k", n * 4, 4) for n in range(1000)} | {"a": ("s3://b/k", 1, 2)}
    for name in ("1.json", "0.json"):
        assert dict(references.open(tmp_path / name)) == expected
    assert dict(refs.merge()) == expected


def test_version_0_cannot_hold_a_key_called_version(tmp_path):
    """The one key that would turn a version 0 document into something else is refused."""
    refs = references.open({"version": 1, "refs": {"version": "x"}})
    with pytest.raises(JsonError, match="version"):
        refs.save(tmp_path / "0.json", version=0)
    refs.save(tmp_path / "1.json")
    assert dict(references.open(tmp_path / "1.json")) == {"version": b"x"}


def test_opening_nothing(tmp_path):
    """A set that does not exist is not found, or empty when it is to be created."""
    with pytest.raises(NotFoundError):
        references.open(tmp_path / "none.json")
    assert dict(references.open(tmp_path / "none.json", create=True)) == {}


@pytest.mark.parametrize(
    ("head", "name"),
    [(b"\x89HDF\r\n\x1a\n", "hdf5"), (bytes(512) + b"\x89HDF\r\n\x1a\n", "hdf5"), (b"CDF\x02", "netcdf3"), (b"GRIB\0\0\0\2", "grib"),
     (b"SIMPLE  = T", "fits"), (b"II*\0", "tiff"), (b"MM\0+", "tiff"), (b"hello", None), (b"", None)],
)  # fmt: skip
def test_formats_are_told_by_content(head, name):
    """The scanner is chosen by the first bytes."""
    assert format_of_head(head.ljust(32, b"\0") if head else head) == name


@pytest.fixture(scope="module")
def scanned(tmp_path_factory):
    """Two HDF5 files, a damaged one, and the directory they lie in."""
    folder = tmp_path_factory.mktemp("scan")
    for n in range(2):
        with h5py.File(folder / f"{n}.h5", "w") as f:
            t = f.create_dataset("t", data=np.array([n * 2.0, n * 2.0 + 1]))
            t.make_scale("t")
            v = f.create_dataset(
                "v", data=np.arange(40.0).reshape(2, 20) + 100 * n, chunks=(1, 10), compression="gzip", shuffle=True
            )
            v.dims[0].attach_scale(t)
    (folder / "bad.h5").write_bytes(b"\x89HDF\r\n\x1a\n rubbish")
    return folder


def test_scanning_names_the_bad_file_and_keeps_the_others(scanned):
    """One damaged file is reported by name; the others are combined; progress is told for each."""
    files = [str(scanned / name) for name in ("0.h5", "bad.h5", "1.h5")]
    seen = []
    with pytest.warns(UserWarning, match=r"1 of 3 files cannot be scanned and are left out.*bad\.h5"):
        combined = references.combine(files, "t", progress=seen.append).result()
    assert (seen[-1].tasks, seen[-1].total) == (3, 3)
    assert list(combined.report.left_out) == [files[1]]
    combined.save(scanned / "both.json")
    assert references.open(scanned / "both.json").arrays["v"].shape == (4, 2)
    assert references.verify(scanned / "both.json")
    array = ts.open(f"file://{scanned}/both.json|reference:v/|zarr2:").result()
    expected = np.concatenate([np.arange(40.0).reshape(2, 20), np.arange(40.0).reshape(2, 20) + 100])
    assert np.array_equal(array.read().result(), expected)
    assert np.array_equal(array[1:3, ::3].read().result(), expected[1:3, ::3])
    with pytest.raises(StoreError, match=r"bad\.h5"):
        references.scan(str(scanned / "bad.h5"))


def test_arrays_read_through_every_form_of_a_set(scanned):
    """JSON, compressed JSON, version 0 and parquet give the same array, and a damaged target is an error."""
    refs = references.scan(str(scanned / "0.h5"), inline_threshold=0)
    for name, version in (("a.json", 1), ("a0.json", 0), ("a.json.zst", 1), ("a.parq", 1)):
        refs.save(scanned / name, version=version)
        for scheme in ("reference", "kerchunk"):
            array = ts.open(f"file://{scanned}/{name}|{scheme}:v/|zarr2:").result()
            assert np.array_equal(array.read().result(), np.arange(40.0).reshape(2, 20))
    broken = refs.rewrite({str(scanned): str(scanned / "gone")})
    broken.save(scanned / "broken.json")
    array = ts.open(f"file://{scanned}/broken.json|reference:v/|zarr2:").result()
    with pytest.raises(ValueError, match=r"v/[01]\.[01].*gone"):
        array.read().result()


def test_an_array_can_be_created_in_a_set(tmp_path):
    """A new array written through a new set lies inline in one JSON file that other readers open."""
    import fsspec

    spec = {
        "driver": "zarr",
        "kvstore": f"file://{tmp_path}/new.json|reference:a/",
        "metadata": {"shape": [5], "chunks": [2], "dtype": "<i2", "compressor": None},
    }
    array = ts.open(spec, create=True).result()
    array.write(np.arange(5, dtype="<i2")).result()
    assert ts.open({**spec, "create": False}, open=True).result().read().result().tolist() == [0, 1, 2, 3, 4]
    document = json.loads((tmp_path / "new.json").read_text())
    assert document["version"] == 1
    other = fsspec.filesystem("reference", fo=str(tmp_path / "new.json"), skip_instance_cache=True)
    assert other.cat_file("a/1") == np.array([2, 3], "<i2").tobytes()


@pytest.mark.parametrize("pack", ["", "gzip", "bz2", "xz", "zstd"])
def test_reference_documents_are_told_by_their_first_bytes(pack):
    """The beginning of a document is enough for detection, compressed or not, and other JSON is not taken for one."""
    import bz2
    import gzip
    import lzma

    import zstandard

    from fsstore.reference import HEAD, looks_like_references

    packer = {"": bytes, "gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zstd": zstandard.compress}[
        pack
    ]
    chunks = {f"x/{n}.0": ["s3://bucket/key", n, 5] for n in range(20_000)}
    good = [
        {"version": 1, "refs": {}},
        {".zgroup": "{}"},
        {"x/.zarray": {}},
        chunks,
        {"version": 1, "templates": {}, "refs": chunks},
    ]
    for document in good:
        data = packer(json.dumps(document).encode())
        if pack != "bz2" or len(data) < HEAD:  # a bz2 block is larger than the head
            assert looks_like_references(data[:HEAD])
    for other in (
        {"zarr_format": 3, "node_type": "group"},
        {"version": 1},
        [1, 2],
        {"a": "b"},
        "text",
        {"shape": [1, 2]},
    ):
        assert not looks_like_references(packer(json.dumps(other).encode())[:HEAD])


def test_decoding_finds_damage_that_sizes_do_not_show(scanned):
    """A target of the right size with wrong bytes passes the quick check and fails the thorough one, by chunk."""
    refs = references.scan(str(scanned / "1.h5"), inline_threshold=0)
    refs.save(scanned / "d.json")
    assert references.verify(scanned / "d.json", decode=True)
    place = refs["v/1.0"]
    data = bytearray((scanned / "1.h5").read_bytes())
    data[place.offset : place.offset + place.length] = bytes(place.length)
    (scanned / "damaged.h5").write_bytes(data)
    refs.rewrite({str(scanned / "1.h5"): str(scanned / "damaged.h5")}).save(scanned / "e.json")
    assert references.verify(scanned / "e.json")
    found = references.verify(scanned / "e.json", decode=True)
    assert [problem.keys for problem in found.problems] == [("v/1.0",)]


def test_other_formats_are_scanned(tmp_path):
    """NetCDF 3, TIFF and zarr become sets whose targets hold; a file without a scanner is refused by name."""
    import tifffile
    import zarr
    from scipy.io import netcdf_file

    with netcdf_file(tmp_path / "a.nc", "w") as f:
        f.createDimension("x", 50)
        f.createVariable("v", "f8", ("x",))[:] = np.arange(50.0)
    data = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    tifffile.imwrite(tmp_path / "a.tif", data, tile=(32, 32))
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    group.create_array("g", data=data, chunks=(32, 32), compressors=None)
    for name, key, expected in (("a.nc", "v/0", np.arange(50.0, dtype=">f8").tobytes()), ("a.tif", "0/1.0", data[32:, :32].tobytes()),
                                ("a.zarr", "g/1.0", data[32:, :32].tobytes())):  # fmt: skip
        place = str(tmp_path / name)
        made = references.combine(place).result() if name == "a.zarr" else references.scan(place)
        made.save(tmp_path / f"{name}.json")
        assert references.verify(tmp_path / f"{name}.json"), name
        store = ts.KvStore.open(f"file://{tmp_path}/{name}.json|reference:").result()
        assert bytes(store.read(key).result().value) == expected, name
    (tmp_path / "text").write_text("hello")
    with pytest.raises(StoreError, match="text.*hdf5"):
        references.scan(str(tmp_path / "text"))


def test_names_do_not_decide_the_form(tmp_path):
    """A parquet directory called `.json`, and a document called `.parq`, are what they contain."""
    refs = references.open({".zgroup": "{}"})
    refs.save(tmp_path / "my.json.parq")
    refs.save(tmp_path / "odd.json", "parquet")
    refs.save(tmp_path / "odd.parq", "json.zst")
    for name in ("my.json.parq", "my.json.parq/", "odd.json", "odd.parq"):
        assert list(references.open(f"{tmp_path}/{name}")) == [".zgroup"]
        assert ts.KvStore.open(f"file://{tmp_path}/{name}|reference:").result().list().result() == [b".zgroup"]
