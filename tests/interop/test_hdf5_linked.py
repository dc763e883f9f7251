"""HDF5 files that refer to others: virtual datasets, external storage, links; all of it under the policy."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest
from h5py import h5d, h5f, h5p, h5s, h5t

import fsstore as ts
from fsstore import references
from fsstore.context.context import Context
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.runtime import execution


def opened(place, **members):
    """Return the scanned file at a place."""
    spec = {"driver": "hdf5", "base": f"file://{place}" if str(place).startswith("/") else place, **members}
    return execution.call(open_kv(kv_spec(spec), Context())).driver


def notes(place, **members):
    """Return what is left out of a file, and why."""
    return execution.call(opened(place, **members).hierarchy()).notes


def array(place, name="v", **members):
    """Open a dataset."""
    base = f"file://{place}" if str(place).startswith("/") else place
    kvstore = {"driver": "hdf5", "base": base, "path": f"{name}/", **members}
    return ts.open({"driver": "zarr", "kvstore": kvstore}).result()


def read(place, name="v", **members):
    """Return the values of a dataset."""
    return np.asarray(array(place, name, **members).read().result())


def stored(place, name="v"):
    """Return what h5py reads."""
    with h5py.File(place) as file:
        return file[name][()]


def made(place, name="v"):
    """Return how many of the chunks of a dataset are put together, and how many are read as they are stored."""
    found = execution.call(opened(place).scanned())
    table = execution.call(found.tables([name]))[0]
    rows = table.find(np.arange(found.hierarchy.grids[name].count))
    return int((rows.url == -3).sum()), int((rows.url >= 0).sum())


def write_sources(folder, count=4, shape=(6, 8), **options):
    """Write sources `s0.h5`, `s1.h5`, ... with different values."""
    options = {"chunks": (2, 8), "compression": "gzip", "shuffle": True} | options
    for number in range(count):
        with h5py.File(folder / f"s{number}.h5", "w") as file:
            values = np.arange(np.prod(shape), dtype="i4").reshape(shape) + 1000 * number
            file.create_dataset("d", data=values, **options)


def write_stack(folder, place, shape, *, dtype="i4", source=(6, 8), fillvalue=0, count=4):
    """Write a virtual dataset of the sources, each put where `place` says."""
    layout = h5py.VirtualLayout(shape, dtype)
    for number in range(count):
        key, part = place(number)
        layout[key] = h5py.VirtualSource(f"s{number}.h5", "d", shape=source)[part]
    with h5py.File(folder / "m.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("v", layout, fillvalue=fillvalue)
    return folder / "m.h5"


STACKS = {
    "a new axis": (lambda n: (n, np.s_[:]), (4, 6, 8), {}, True),
    "joined": (lambda n: (np.s_[6 * n : 6 * n + 6], np.s_[:]), (24, 8), {}, True),
    "beside": (lambda n: (np.s_[:, 8 * n : 8 * n + 8], np.s_[:]), (6, 32), {}, True),
    "parts of sources": (lambda n: (np.s_[4 * n : 4 * n + 4], np.s_[2:6]), (16, 8), {}, True),
    "one row of each": (lambda n: (n, np.s_[3]), (4, 8), {"chunks": (1, 8)}, True),
    "plain bytes": (lambda n: (n, np.s_[:]), (4, 6, 8), {"chunks": None, "compression": None, "shuffle": None}, True),
    "interleaved": (lambda n: (np.s_[n::4], np.s_[:]), (24, 8), {}, False),
    "through chunks": (lambda n: (np.s_[3 * n : 3 * n + 3], np.s_[1:4]), (12, 8), {}, False),
    "every second": (lambda n: (np.s_[3 * n : 3 * n + 3], np.s_[::2]), (12, 8), {}, False),
    "one row of chunks": (lambda n: (n, np.s_[3]), (4, 8), {}, False),
    "without filters": (lambda n: (n, np.s_[:]), (4, 6, 8), {"compression": None, "shuffle": None}, True),
}


@pytest.mark.parametrize("name", STACKS)
def test_virtual_datasets_are_those_of_h5py(tmp_path, name):
    """Every way of stacking has h5py's values; where chunks fit, all of them are read as they are stored."""
    place, shape, options, fits = STACKS[name]
    write_sources(tmp_path, **options)
    path = write_stack(tmp_path, place, shape)
    want = stored(path)
    assert want.any()
    np.testing.assert_array_equal(read(path), want)
    np.testing.assert_array_equal(array(path)[..., 2:5].read().result(), want[..., 2:5])
    put_together, as_stored = made(path)
    assert (put_together == 0) == fits
    assert (as_stored > 0) == fits


def test_what_no_source_has_is_the_fill_value(tmp_path):
    """Parts that nothing is mapped to, and chunks that a source never wrote, are fill values, each its own."""
    with h5py.File(tmp_path / "s0.h5", "w") as file:
        file.create_dataset("d", (6, 8), "i4", chunks=(2, 8), fillvalue=7)[:2] = 1
    path = write_stack(tmp_path, lambda n: (np.s_[6:12], np.s_[:]), (18, 8), fillvalue=-1, count=1)
    want = stored(path)
    assert {-1, 1, 7} == set(want.ravel().tolist())
    np.testing.assert_array_equal(read(path), want)


def test_sources_of_other_kinds_are_put_together(tmp_path):
    """Sources with other filters, chunks and byte orders than the first one have h5py's values."""
    write_sources(tmp_path)
    for number, options in enumerate([{"chunks": (3, 4)}, {"compression": "lzf"}, {"chunks": None}], 1):
        (tmp_path / f"s{number}.h5").unlink()
        with h5py.File(tmp_path / f"s{number}.h5", "w") as file:
            values = np.arange(48, dtype=">i4").reshape(6, 8) + number
            file.create_dataset("d", data=values, **options)
    path = write_stack(tmp_path, lambda n: (n, np.s_[:]), (4, 6, 8))
    np.testing.assert_array_equal(read(path), stored(path))
    put_together, as_stored = made(path)
    assert put_together
    assert as_stored


def test_virtual_datasets_of_virtual_datasets(tmp_path):
    """A stack of stacks, and one of a dataset in the same file, have h5py's values; one of itself is an error."""
    write_sources(tmp_path)
    write_stack(tmp_path, lambda n: (n, np.s_[:]), (4, 6, 8))
    outer, loop = h5py.VirtualLayout((2, 4, 6, 8), "i4"), h5py.VirtualLayout((3,), "i4")
    outer[0] = h5py.VirtualSource("m.h5", "v", shape=(4, 6, 8))
    outer[1] = h5py.VirtualSource("m.h5", "v", shape=(4, 6, 8))
    inside = h5py.VirtualLayout((2, 5), "i4")
    inside[1] = h5py.VirtualSource(".", "own", shape=(5,))
    loop[:] = h5py.VirtualSource(".", "loop", shape=(3,))
    with h5py.File(tmp_path / "outer.h5", "w", libver="latest") as file:
        file["own"] = np.arange(5, dtype="i4")
        file.create_virtual_dataset("v", outer)
        file.create_virtual_dataset("inside", inside, fillvalue=9)
        file.create_virtual_dataset("loop", loop)
    np.testing.assert_array_equal(read(tmp_path / "outer.h5"), stored(tmp_path / "outer.h5"))
    np.testing.assert_array_equal(read(tmp_path / "outer.h5", "inside"), [[9] * 5, list(range(5))])
    with pytest.raises(ts.errors.DataLossError, match="from itself"):
        read(tmp_path / "outer.h5", "loop")


def test_texts_and_records_are_stacked(tmp_path):
    """Strings of any length, and elements that are arrays, are stacked too."""
    texts = h5py.string_dtype()
    triples = np.dtype(("<i2", (3,)))
    for number in range(2):
        with h5py.File(tmp_path / f"s{number}.h5", "w") as file:
            file.create_dataset("t", data=np.array([f"é{number}", "b"], object), dtype=texts)
            file.create_dataset("a", (4,), triples, chunks=(2,))[...] = np.arange(12).reshape(4, 3) + number
    with h5py.File(tmp_path / "m.h5", "w", libver="latest") as file:
        for name, shape, dtype in (("t", (2,), texts), ("a", (4,), triples)):
            layout = h5py.VirtualLayout((2, *shape), dtype)
            for number in range(2):
                layout[number] = h5py.VirtualSource(f"s{number}.h5", name, shape=shape, dtype=dtype)
            file.create_virtual_dataset(name, layout)
    assert read(tmp_path / "m.h5", "t").tolist() == [["é0", "b"], ["é1", "b"]]
    want = np.stack([np.arange(12).reshape(4, 3) + number for number in range(2)])
    np.testing.assert_array_equal(read(tmp_path / "m.h5", "a"), want)


def test_an_endless_stack_is_as_long_as_its_source(tmp_path):
    """A virtual dataset without end has the length of its source, which h5py finds too."""
    with h5py.File(tmp_path / "s0.h5", "w") as file:
        data = np.arange(40, dtype="i4").reshape(10, 4)
        file.create_dataset("d", data=data, chunks=(2, 4), maxshape=(None, 4), compression="gzip")
    layout = h5py.VirtualLayout((1, 4), "i4", maxshape=(None, 4))
    source = h5py.VirtualSource("s0.h5", "d", shape=(1, 4), maxshape=(None, 4))
    layout[: h5s.UNLIMITED] = source[: h5s.UNLIMITED]
    with h5py.File(tmp_path / "m.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("v", layout)
    want = stored(tmp_path / "m.h5")
    assert want.shape == (10, 4)
    np.testing.assert_array_equal(read(tmp_path / "m.h5"), want)


def test_a_missing_source_is_an_error_where_it_is_read(tmp_path):
    """Other sources are read all the same; HDF5 would show fill values in place of what is lost."""
    write_sources(tmp_path)
    path = write_stack(tmp_path, lambda n: (n, np.s_[:]), (4, 6, 8))
    (tmp_path / "s2.h5").unlink()
    found = array(path)
    np.testing.assert_array_equal(found[3].read().result(), stored(tmp_path / "s3.h5", "d"))
    with pytest.raises(ts.errors.StoreError, match=r"s2\.h5"):
        found[2].read().result()


def test_absolute_names_are_looked_for_beside_the_file(tmp_path):
    """Files that were moved together are found, though they call each other by the old place."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    write_sources(old, 2)
    layout = h5py.VirtualLayout((2, 6, 8), "i4")
    for number in range(2):
        layout[number] = h5py.VirtualSource(str(old / f"s{number}.h5"), "d", shape=(6, 8))
    with h5py.File(old / "m.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("v", layout)
        file["link"] = h5py.ExternalLink(str(old / "s1.h5"), "/d")
    want = stored(old / "m.h5")
    shutil.move(old, new)
    np.testing.assert_array_equal(read(new / "m.h5"), want)
    np.testing.assert_array_equal(read(new / "m.h5", "link"), want[1])


def test_a_stack_over_the_web_and_saved(tmp_path, object_server):
    """A stack far away is read by ranges of its sources; as a saved set it needs no scanner."""
    write_sources(tmp_path)
    path = write_stack(tmp_path, lambda n: (n, np.s_[:]), (4, 6, 8))
    for each in tmp_path.iterdir():
        object_server.put(f"data/{each.name}", each.read_bytes())
    url = f"{object_server.url}/data/m.h5"
    np.testing.assert_array_equal(read(url), stored(path))
    references.open(url).save(f"file://{tmp_path}/m.json")
    found = references.open(f"file://{tmp_path}/m.json")
    assert {each.rpartition("/")[2] for each in found.urls} == {"s0.h5", "s1.h5", "s2.h5", "s3.h5"}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/m.json|reference:v/"}
    np.testing.assert_array_equal(ts.open(spec).result().read().result(), stored(path))
    object_server.log.clear()
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "hdf5", "base": url, "index": f"file://{tmp_path}/m.json", "path": "v/"},
    }
    np.testing.assert_array_equal(ts.open(spec).result()[1].read().result(), stored(path)[1])
    assert len(object_server.log) <= 3


def test_the_policy_is_on_sources_and_links(tmp_path, object_server):
    """A far file reads nothing of this machine, and `allow` and `rewrite` hold for all that a file refers to."""
    write_sources(tmp_path, 1)
    layout = h5py.VirtualLayout((1, 6, 8), "i4")
    layout[0] = h5py.VirtualSource(str(tmp_path / "s0.h5"), "d", shape=(6, 8))
    with h5py.File(tmp_path / "m.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("v", layout)
        file["link"] = h5py.ExternalLink(str(tmp_path / "s0.h5"), "/d")
        file.create_dataset("raw", (4,), "i4", external=[(str(tmp_path / "raw.bin"), 0, 16)])
        file["raw"][:] = [1, 2, 3, 4]
    object_server.put("m.h5", (tmp_path / "m.h5").read_bytes())
    url = f"{object_server.url}/m.h5"
    for name in ("v", "raw"):
        with pytest.raises(ts.errors.PermissionDeniedError, match=r"file:///"):
            read(url, name)
    assert "another file" in notes(url)["link"]
    place = tmp_path / "m.h5"
    assert read(place, "raw").tolist() == [1, 2, 3, 4]
    for name in ("v", "raw"):
        with pytest.raises(ts.errors.PermissionDeniedError, match="allow"):
            read(place, name, allow=["file:///elsewhere"])
    object_server.put("moved/s0.h5", (tmp_path / "s0.h5").read_bytes())
    rewrite = {f"{tmp_path}/": f"{object_server.url}/moved/"}
    np.testing.assert_array_equal(read(place, rewrite=rewrite)[0], stored(tmp_path / "s0.h5", "d"))
    np.testing.assert_array_equal(read(url, "link", rewrite=rewrite), stored(tmp_path / "s0.h5", "d"))


def test_a_file_of_this_machine_refers_to_others_of_it_unless_targets_name_more(tmp_path, object_server):
    """Far files are refused in a sentence, without a request, and read where `targets` names their place."""
    write_sources(tmp_path, 1)
    object_server.put("s0.h5", (tmp_path / "s0.h5").read_bytes())
    object_server.put("raw.bin", np.arange(4, dtype="i4").tobytes())
    place = tmp_path / "m.h5"
    layout = h5py.VirtualLayout((1, 6, 8), "i4")
    layout[0] = h5py.VirtualSource(f"{object_server.url}/s0.h5", "d", shape=(6, 8))
    (tmp_path / "s0.h5").rename(tmp_path / "elsewhere.h5")
    with h5py.File(place, "w", libver="latest") as file:
        file.create_virtual_dataset("v", layout)
        file["link"] = h5py.ExternalLink(f"{object_server.url}/s0.h5", "/d")
        file.create_dataset("raw", (4,), "i4", external=[(f"{object_server.url}/raw.bin", 0, 16)])
    before = len(object_server.log)
    for name in ("v", "raw"):
        with pytest.raises(ts.errors.PermissionDeniedError, match="does not lie on this machine; name a prefix"):
            read(place, name)
    assert "name a prefix of it in `targets`" in notes(place)["link"]
    assert len(object_server.log) == before
    targets = {f"{object_server.url}/": {}}
    assert read(place, "raw", targets=targets).tolist() == [0, 1, 2, 3]
    for name in ("v", "link"):
        found = read(place, name, targets=targets).reshape(6, 8)
        np.testing.assert_array_equal(found, stored(tmp_path / "elsewhere.h5", "d"))


def test_external_storage_in_several_files(tmp_path):
    """Values that lie in several raw files, chunks that reach from one into the next among them, are h5py's."""
    path = tmp_path / "a.h5"
    parts = [(f"r{number}.bin", 3 * number, size) for number, size in enumerate((50_000, 70_001, 6_000_000))]
    with h5py.File(path, "w") as file:
        external = [(str(tmp_path / name), offset, size) for name, offset, size in parts]
        file.create_dataset("v", (1500, 1000), "i4", external=external)[:] = np.arange(1_500_000).reshape(1500, 1000)
        file.create_dataset("one", (), "f8", external=[(str(tmp_path / "one.bin"), 5, h5f.UNLIMITED)])[()] = 2.5
    assert (tmp_path / "r1.bin").stat().st_size == 70_004
    want = np.arange(1_500_000).reshape(1500, 1000)
    np.testing.assert_array_equal(read(path), want)
    np.testing.assert_array_equal(array(path)[1490:].read().result(), want[1490:])
    assert read(path, "one") == 2.5
    (tmp_path / "r1.bin").write_bytes(b"short")
    with pytest.raises(ts.errors.StoreError, match=r"r1\.bin"):
        read(path)


def test_relative_raw_files_lie_beside_the_file(tmp_path):
    """A relative name of a raw file starts from the file, wherever the process is."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_external(b"raw.bin", 0, 16)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        h5d.create(file.id, b"v", h5t.STD_I32LE, h5s.create_simple((4,)), plist)
    np.array([4, 3, 2, 1], "i4").tofile(tmp_path / "raw.bin")
    assert read(tmp_path / "a.h5").tolist() == [4, 3, 2, 1]


def test_links_to_other_files_are_followed(tmp_path):
    """Datasets and groups behind links to other files are shown with their attributes and dimensions."""
    (tmp_path / "deep").mkdir()
    with h5py.File(tmp_path / "deep" / "b.h5", "w") as file:
        group = file.create_group("g")
        group.attrs["note"] = "there"
        group["x"] = np.arange(3)
        group["x"].make_scale("x")
        found = group.create_dataset("v", data=np.arange(12).reshape(4, 3), chunks=(2, 3), compression="gzip")
        found.dims[1].attach_scale(group["x"])
        file["further"] = h5py.ExternalLink("c.h5", "/y")
    with h5py.File(tmp_path / "deep" / "c.h5", "w") as file:
        file["y"] = np.arange(5)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["dataset"] = h5py.ExternalLink("deep/b.h5", "g/v")
        file["group"] = h5py.ExternalLink("deep/b.h5", "/g")
        file["all"] = h5py.ExternalLink("deep/b.h5", "/")
        file["own"] = np.arange(2)
    assert notes(tmp_path / "a.h5") == {}
    for name in ("dataset", "group/v", "all/g/v"):
        assert read(tmp_path / "a.h5", name).tolist() == np.arange(12).reshape(4, 3).tolist()
    assert read(tmp_path / "a.h5", "all/further").tolist() == list(range(5))
    tree = ts.open_group(f"file://{tmp_path}/a.h5|hdf5:group").result()
    assert dict(tree.attrs) == {"note": "there"}
    document = opened(tmp_path / "a.h5")
    grids = execution.call(document.hierarchy()).documents
    assert b'"phony_dim_0","x"' in grids["group/v/.zattrs"]


def test_links_that_lead_nowhere_cost_one_object_each(tmp_path):
    """Missing files, missing objects, files of other formats and loops between files are left out and say why."""
    (tmp_path / "text.h5").write_text("no HDF5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["back"] = h5py.ExternalLink("a.h5", "/")
        file["x"] = np.arange(3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, target in {
            "missing": ("none.h5", "/x"),
            "nothing": ("b.h5", "/nope"),
            "text": ("text.h5", "/x"),
            "there": ("b.h5", "/"),
            "itself": ("a.h5", "/itself"),
        }.items():
            file[name] = h5py.ExternalLink(*target)
        file["own"] = np.arange(2)
    found = notes(tmp_path / "a.h5")
    assert read(tmp_path / "a.h5", "there/x").tolist() == [0, 1, 2]
    assert read(tmp_path / "a.h5", "own").tolist() == [0, 1]
    assert "does not exist" in found["missing"]
    assert "not there" in found["nothing"]
    assert "HDF5" in found["text"]
    assert any("back to where it came from" in why for why in found.values())
    assert len(found) < 60


def test_a_source_that_changes_is_opened_again(tmp_path):
    """Values that are put together come from one generation of a source; when that is replaced, from the new one."""
    write_sources(tmp_path)
    path = write_stack(tmp_path, lambda n: (np.s_[n::4], np.s_[:]), (24, 8))
    found = array(path)
    np.testing.assert_array_equal(found.read().result(), stored(path))
    with h5py.File(tmp_path / "s1.h5", "w") as file:
        file["other"] = np.zeros(7000)
        file.create_dataset("d", data=np.full((6, 8), 5, "i4"), chunks=(3, 8))
    np.testing.assert_array_equal(found.read().result(), stored(path))
