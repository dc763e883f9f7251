"""What of an HDF5 file is left out: each object for a reason of its own, which is the one that the documentation lists."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t, h5z

from fsstore.context.context import Context
from fsstore.errors import DataLossError
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.runtime import execution

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "scientific-files.md"


def references(file):
    """Write a reference to a part of a dataset."""
    file["x"] = np.arange(3)
    file.create_dataset("v", (1,), h5py.regionref_dtype)[0] = file["x"].regionref[:2]


def fields_of_references(file):
    """Write records with references in them."""
    file.create_dataset("v", (2,), np.dtype([("a", "i4"), ("b", h5py.ref_dtype)]))


def nothing(file):
    """Write a dataset that has no dataspace."""
    file["v"] = h5py.Empty("f4")


def times(file):
    """Write a type that NumPy has not."""
    h5d.create(file.id, b"v", h5t.UNIX_D32LE, h5s.create_simple((2,)))


def strange_filter(file):
    """Write a dataset whose optional filter nobody has."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((2,))
    plist.set_filter(4711, h5z.FLAG_OPTIONAL, (1, 2))
    h5d.create(file.id, b"v", h5t.STD_I32LE, h5s.create_simple((4,)), plist)


def numbered(file):
    """Write a virtual dataset of numbered sources without end."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_layout(h5d.VIRTUAL)
    space = h5s.create_simple((1, 4), (h5s.UNLIMITED, 4))
    space.select_hyperslab((0, 0), (h5s.UNLIMITED, 1), (1, 1), (1, 4))
    plist.set_virtual(space, b"s%b.h5", b"d", h5s.create_simple((1, 4)))
    h5d.create(file.id, b"v", h5t.STD_I32LE, h5s.create_simple((1, 4), (h5s.UNLIMITED, 4)), plist)


def irregular(file):
    """Write a virtual dataset with a part that is two boxes of different sizes."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_layout(h5d.VIRTUAL)
    space, source = h5s.create_simple((10,)), h5s.create_simple((4,))
    space.select_hyperslab((0,), (1,), (1,), (1,))
    space.select_hyperslab((4,), (1,), (1,), (3,), op=h5s.SELECT_OR)
    plist.set_virtual(space, b"s.h5", b"d", source)
    h5d.create(file.id, b"v", h5t.STD_I32LE, h5s.create_simple((10,)), plist)


def raw(file):
    """Write elements of eleven bits to a raw file."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_external(b"raw.bin", 0, 8)
    kind = h5t.STD_I16LE.copy()
    kind.set_precision(11)
    h5d.create(file.id, b"v", kind, h5s.create_simple((4,)), plist)


def dangling(file):
    """Write a link to nothing."""
    file["v"] = h5py.SoftLink("/nowhere")


def cycle(file):
    """Write a second link to a group."""
    group = file.create_group("g")
    group["h"] = group


REFUSED = {
    references: ("v", "its elements are references to parts of datasets"),
    fields_of_references: ("v", "its elements hold references, lists of lists, or numbers that JSON has not"),
    nothing: ("v", "it has no values, not even a scalar"),
    times: ("v", "its type has none of NumPy"),
    strange_filter: ("v", "its filter 4711 (unnamed) is not available; hdf5plugin may bring it"),
    numbered: ("v", "its sources are numbered, and nothing says how many there are"),
    irregular: ("v", "its parts are no regular boxes"),
    raw: ("v", "its values lie in other files, and only HDF5 knows their type"),
    dangling: ("v", "it is a link to 'nowhere', which is not there"),
    cycle: ("g/h", "it is the group 'g', which is shown there"),
}


@pytest.mark.parametrize("write", REFUSED, ids=lambda write: write.__name__)
def test_one_object_is_left_out(tmp_path, write):
    """The object is left out with its reason, and a dataset beside it is shown."""
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        write(file)
        file["beside"] = np.arange(3)
    opened = execution.call(open_kv(kv_spec(f"file://{tmp_path}/a.h5|hdf5:"), Context()))
    hierarchy = execution.call(opened.driver.hierarchy())
    path, why = REFUSED[write]
    assert list(hierarchy.notes) == [path]
    assert hierarchy.notes[path].startswith(why)
    assert "beside/.zarray" in hierarchy.documents


def test_a_file_that_is_open_for_writing_is_refused(tmp_path):
    """Such a file says so in its superblock, as one does whose writer was killed: HDF5 refuses it, too."""
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.swmr_mode = True
        data = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "b.h5").write_bytes(data)
    opened = execution.call(open_kv(kv_spec(f"file://{tmp_path}/b.h5|hdf5:"), Context()))
    with pytest.raises(DataLossError, match="open for writing.*h5clear"):
        execution.call(opened.driver.hierarchy())


def test_the_documentation_lists_every_reason():
    """Each reason stands on the page, as far as it is the same for all files."""
    page = PAGE.read_text(encoding="utf-8")
    for _, why in REFUSED.values():
        assert why.partition(" (")[0].partition(" '")[0] in page or "fields" in why
