"""Arrays of all formats, types, codecs and layouts go from each library to fsstore and back, bit for bit."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import interchange
from interchange import CLOUD_VOLUME, LIBRARIES, PAGE, RECORD, VERSIONS, cases, exchanged, page, record, run


@pytest.mark.filterwarnings("ignore")
def test_the_page_says_what_libraries_do(tmp_path: Path):
    """Some hundred arrays are exchanged, and the page of the documentation says how that went.

    `python tests/interop/interchange.py` writes the page.
    """
    chosen = [case for case in cases() if case.shown]
    assert len(chosen) > 150
    assert all(version(name) in versions for name, versions in VERSIONS.items())
    assert page(run(chosen, tmp_path)) == PAGE.read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_what_is_recorded_of_cloud_volume(tmp_path: Path):
    """Volumes are exchanged with cloud-volume, where it is installed, as the record says that they were."""
    pytest.importorskip("cloudvolume", reason=f"it has an environment of its own: {' and '.join(CLOUD_VOLUME)}")
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    assert record(tmp_path)["precomputed"] == recorded["precomputed"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["zarr v3", "zarr v2", "N5", "precomputed"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_all_arrays(kind: str, library: str, tmp_path: Path):
    """Everything is tried with everything, in five layouts."""
    chosen = [case for case in cases() if case.format == kind]
    said = set()
    for number, case in enumerate(chosen):
        own = tmp_path / str(number)
        own.mkdir()
        said.add(exchanged(case, library, own))
    assert said


def test_there_is_enough_to_exchange():
    """The library of arrays has its size, and every array a name of its own."""
    made = cases()
    assert len(made) >= 2000
    assert {case.format for case in made} == {"zarr v3", "zarr v2", "N5", "precomputed"}


@pytest.mark.filterwarnings("ignore")
def test_a_difference_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A library that reads one bit otherwise fails the exchange."""
    case = next(case for case in cases() if case.type == "float64" and case.format == "zarr v3")

    def wrong(case: Any, place: Path, values: Any = None) -> Any:
        found = interchange.by_zarr(case, place, values)
        return None if found is None else np.where(found == 0, 0.0, found)

    monkeypatch.setitem(LIBRARIES, "zarr", wrong)
    with pytest.raises(AssertionError, match="does not read what fsstore wrote"):
        exchanged(case, "zarr", tmp_path)
