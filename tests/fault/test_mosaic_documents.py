"""Documents of virtual datasets that are damaged or made to harm: refused with a reason, within bounded memory."""

from __future__ import annotations

import copy
import json
import random

import numpy as np
import pytest

import fsstore as ts
from fsstore.combine.mosaic import CellAxis, Decoding, FileFact, Layered, Mosaic, Pieces, PieceSource
from fsstore.combine.mosaic_document import mosaic_of, stored_of
from fsstore.combine.mosaic_stored import from_bytes, to_json, to_parquet
from fsstore.errors import StoreError
from fsstore.reference.table.refset import TableSet
from fsstore.reference.table.table import Row, Rows, Table


def _mosaic(count=4):
    """Return a dataset of `count` files of two elements, whose references lie in `memory://data`."""
    document = {
        "zarr_format": 2, "shape": [2 * count], "chunks": [2], "dtype": "<i2", "fill_value": 0, "order": "C",
        "filters": None, "compressor": None,
    }  # fmt: skip
    inline = [json.dumps(document).encode(), b'{"zarr_format":2}']
    names = {".sources/a-/.zarray": 0, ".zgroup": 1}
    rows = [Row(-2, 0, len(inline[0])), Row(-2, 1, len(inline[1]))]
    for number in range(count):
        names[f".sources/a-/{number}"] = len(rows)
        rows.append(Row(0, 4 * number, 4))
    start = np.arange(count) * 2
    pieces = Pieces((2 * count,), (CellAxis(0, start, start + 2),), np.arange(count) % 2, start[:, None].copy())
    sources = tuple(
        PieceSource(".sources/a-", (2 * count,), 2, Decoding("<f8", missing=(-1,), scale=scale)) for scale in (1.0, 0.5)
    )
    layered = Layered("v", "<f8", (2 * count,), (2,), "nan", {"_ARRAY_DIMENSIONS": ["t"]}, sources, pieces)
    table = Table(["memory://data"], inline, names, Rows.of(rows))
    return Mosaic(TableSet(table), {"v": layered}, [FileFact("memory://data", 4 * count, "")], {"dims": {"t": 2}})


@pytest.mark.parametrize("write", [to_json, to_parquet], ids=["JSON", "parquet"])
def test_a_document_is_read_as_it_was_written(write):
    """Both forms give the same dataset, and its values."""
    found = mosaic_of(from_bytes(write(stored_of(_mosaic()))))
    assert found.layered["v"].sources == _mosaic().layered["v"].sources
    np.testing.assert_array_equal(found.layered["v"].pieces.origin, _mosaic().layered["v"].pieces.origin)
    context = ts.Context()
    kv = ts.KvStore.open("memory://", context=context).result()
    kv.write("data", np.array([0, 2, 4, 6, -1, 8, 10, 12], "<i2").tobytes()).result()
    kv.write("x.mosaic", write(stored_of(found))).result()
    array = ts.open("memory://x.mosaic|mosaic:v/|zarr2:", context=context).result()
    np.testing.assert_array_equal(array.read().result(), [0, 2, 2, 3, np.nan, 8, 5, 6])


def _mutated(document, rng):
    """Return a document with one value replaced by another."""
    found = copy.deepcopy(document)
    at, path = found, []
    while isinstance(at, dict | list) and at:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = rng.choice(keys)
        path.append((at, key))
        at = at[key]
    holder, key = path[rng.randrange(len(path))]
    bad = [None, -1, 2**63, 2**62, 10**9, "x", "../../etc", [], {}, [[]], True, 0, 1.5, "<O", "|V0", "NaN"]
    holder[key] = rng.choice(bad)
    return found


def test_a_mutated_document_is_refused_or_harmless():
    """No change of one value makes anything but an error of ours, or a dataset whose pieces lie inside."""
    plain = json.loads(to_json(stored_of(_mosaic())))
    rng = random.Random(5)
    refused = 0
    for _ in range(1500):
        data = json.dumps(_mutated(plain, rng)).encode()
        try:
            found = mosaic_of(from_bytes(data))
        except StoreError:
            refused += 1
            continue
        for each in found.layered.values():
            each.pieces.check([source.shape for source in each.sources])
    assert refused > 500


@pytest.mark.parametrize("write", [to_json, to_parquet], ids=["JSON", "parquet"])
def test_a_cut_document_is_refused(write):
    """Whatever is missing at the end, opening is an error of ours."""
    data = write(stored_of(_mosaic()))
    for size in range(0, len(data) - 3, max(1, len(data) // 60)):
        with pytest.raises(StoreError):
            mosaic_of(from_bytes(data[:size]))


def test_pieces_that_overlap_are_refused():
    """Two pieces in one place would make the values depend on their order."""
    plain = json.loads(to_json(stored_of(_mosaic())))
    plain["columns"]["layered/0/start/0"][1] = 1
    with pytest.raises(StoreError, match="overlap"):
        mosaic_of(from_bytes(json.dumps(plain).encode()))


def test_a_large_chunk_is_refused():
    """A chunk that would take the memory of the machine is refused when the document is opened."""
    plain = json.loads(to_json(stored_of(_mosaic())))
    plain["layered"][0]["chunks"] = [2**40]
    with pytest.raises(StoreError, match="too large"):
        mosaic_of(from_bytes(json.dumps(plain).encode()))


def test_a_hundred_thousand_pieces_take_little_memory():
    """The index takes tens of bytes a piece, and finds the pieces of a box without looking at the others."""
    count = 100_000
    mosaic = mosaic_of(from_bytes(to_parquet(stored_of(_mosaic(count)))))
    pieces = mosaic.layered["v"].pieces
    assert pieces.nbytes / count < 40
    parts = list(pieces.find([slice(99_999, 100_003)]))
    assert [part.source for part in parts] == [1, 0, 1]
    assert [part.inside for part in parts] == [
        (slice(99_999, 100_000),), (slice(100_000, 100_002),), (slice(100_002, 100_003),)
    ]  # fmt: skip
    assert [part.box for part in parts] == [(slice(0, 1),), (slice(1, 3),), (slice(3, 4),)]


@pytest.mark.parametrize(
    "changes",
    [
        {"variables": 3}, {"variables": {"v": 1}}, {"as_coordinates": "v"}, {"as_coordinates": [None]},
        {"dims": "time"}, {"on_difference": "all"}, {"on_overlap": None}, {"coords": {"time": 5}},
        {"coords": {"time": {"pattern": "(", "flags": 0}}}, {"along": {"v": "z"}},
    ],
    ids=repr,
)  # fmt: skip
def test_options_of_a_stranger_are_checked(tmp_path, changes):
    """What a document says of how it was combined is believed in its form alone, and nothing is written."""
    import xarray as xr

    from fsstore import references

    for number in range(2):
        xr.Dataset({"v": ("time", [1.0])}, {"time": [number]}).to_netcdf(tmp_path / f"{number}.nc")
    place = tmp_path / "all.mosaic.json"
    references.combine(str(tmp_path / "0.nc"), "time").result().save(place)
    document = json.loads(place.read_text())
    document["options"].update(changes)
    place.write_text(json.dumps(document))
    before = place.read_bytes()
    with pytest.raises(ValueError):
        references.append(place, tmp_path / "1.nc").result()
    assert place.read_bytes() == before
