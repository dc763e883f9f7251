"""Datasets of references to objects, such as cells of MATLAB, are the paths of these objects."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import StoreError


@pytest.mark.parametrize("version", ["earliest", "latest"])
@pytest.mark.parametrize("options", [{}, {"chunks": (1, 2), "compression": "gzip"}])
def test_references_are_paths(tmp_path, version, options):
    """Paths that h5py gives; no text where a reference is to nothing; scalars and fields beside them."""
    with h5py.File(tmp_path / "x.mat", "w", libver=version) as file:
        file["cells/one"] = np.arange(3)
        file["two"] = 1.0
        cells = file.create_dataset("cell", (3, 2), h5py.ref_dtype, **options)
        cells[0, 0], cells[0, 1], cells[2, 1] = file["cells/one"].ref, file["cells"].ref, file["two"].ref
        file.create_dataset("single", (), h5py.ref_dtype)[()] = file["two"].ref
    group = ts.open_group(tmp_path / "x.mat").result()
    assert group["cell"].read().result().tolist() == [["/cells/one", "/cells"], ["", ""], ["", "/two"]]
    assert group["cell"][2, 1].read().result().item() == "/two"
    assert group["single"].read().result().item() == "/two"
    assert group[group["cell"][0, 0].read().result().item()].read().result().tolist() == [0, 1, 2]


def test_a_damaged_reference_is_an_error(tmp_path):
    """A reference to where no object is names the dataset."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["one"] = np.arange(3)
        cells = file.create_dataset("cell", (1,), h5py.ref_dtype)
        cells[0] = file["one"].ref
        offset = cells.id.get_offset()
    data = bytearray((tmp_path / "x.h5").read_bytes())
    data[offset : offset + 8] = (12345).to_bytes(8, "little")
    (tmp_path / "x.h5").write_bytes(data)
    array = ts.open_group(tmp_path / "x.h5").result()["cell"]
    with pytest.raises(StoreError, match="cell"):
        array.read().result()
