"""The comparer of files from elsewhere says of each what is the matter with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import tifffile
from astropy.io import fits


def test_it_tells_files_apart(tmp_path):
    """Equal files, files with something left out by name, refused ones, and ones that nobody reads have their words."""
    folder = tmp_path / "files"
    folder.mkdir()
    with h5py.File(folder / "equal.h5", "w") as file:
        file["a"], file["group/b"] = np.arange(5), [b"x", b"yz"]
        file.create_dataset("lists", (3,), h5py.vlen_dtype("f4"))[0] = [1, np.nan]
    with h5py.File(folder / "named.h5", "w") as file:
        file["a"], file["nothing"] = np.arange(5), h5py.Empty("f4")
        file.create_dataset("b", (2,), h5py.regionref_dtype)
    tifffile.imwrite(folder / "equal.tif", np.arange(12, dtype="u2").reshape(3, 4))
    fits.PrimaryHDU(np.arange(5.0)).writeto(folder / "equal.fits")
    (folder / "nobody.tif").write_bytes(b"II*\0\xff\xff\xff\x7f")
    (folder / "other.txt").write_text("no file of a scanned format")
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "tests.strangers", str(folder), "--out", str(out), "--workers", "1"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    found = {Path(each["path"]).name: each for each in json.loads(out.read_text())}
    assert {name: each["word"] for name, each in found.items()} == {
        "equal.h5": "equal",
        "named.h5": "named",
        "equal.tif": "equal",
        "equal.fits": "equal",
        "nobody.tif": "unreadable",
    }
    assert "left out b: its elements are references to parts of datasets" in found["named.h5"]["reasons"]
    assert "| all | 3 | 1 | 0 | 0 | 0 | 0 | 1 | 0 |" in done.stdout
