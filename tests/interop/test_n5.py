"""N5 datasets and TensorStore 0.1.86: each reads what the other wrote, and both refuse the same damage."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore

import fsstore

_COMPRESSIONS: tuple[dict[str, Any], ...] = (
    {"type": "raw"},
    {"type": "gzip"},
    {"type": "gzip", "level": 9, "useZlib": True},
    {"type": "bzip2", "blockSize": 3},
    {"type": "xz", "preset": 1},
    {"type": "zstd", "level": 5},
    {"type": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 1},
    {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2, "blocksize": 0},
)
_TYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64")


def _spec(path: Path) -> dict[str, Any]:
    return {"driver": "n5", "kvstore": {"driver": "file", "path": f"{path}/a/"}}


def _metadata(compression: dict[str, Any], data_type: str) -> dict[str, Any]:
    return {"dimensions": [5, 7], "blockSize": [2, 4], "compression": compression, "dataType": data_type}


@pytest.mark.parametrize("compression", _COMPRESSIONS, ids=lambda value: json.dumps(value))
@pytest.mark.parametrize("ours_first", [True, False])
def test_each_reads_what_the_other_wrote(tmp_path: Path, compression: dict[str, Any], ours_first: bool) -> None:
    """Values, metadata and shape survive in both directions, for every compression and data type."""
    writer, reader = (fsstore, tensorstore) if ours_first else (tensorstore, fsstore)
    for data_type in _TYPES:
        path = tmp_path / data_type
        values = np.arange(35).reshape(5, 7).astype(data_type)
        made: Any = writer.open({**_spec(path), "metadata": _metadata(compression, data_type)}, create=True).result()
        made.write(values).result()
        found: Any = reader.open(_spec(path)).result()
        np.testing.assert_array_equal(found.read().result(), values)
        assert found.spec().to_json() == made.spec().to_json()
        found[1:3, 2:6] = values[0:2, 0:4]
        values[1:3, 2:6] = values[0:2, 0:4].copy()
        expected: Any = writer.open(_spec(path)).result()
        np.testing.assert_array_equal(expected.read().result(), reader.open(_spec(path)).result().read().result())


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "uint16", "shape": [5, 6]},
        {"dtype": "uint8", "shape": []},
        {"dtype": "int8", "shape": [1000, 1000, 1000]},
        {"dtype": "float32", "shape": [3, 4], "dimension_units": ["4nm", None]},
        {"dtype": "bool", "shape": [2]},
        {"dtype": "int8", "shape": [3], "fill_value": 0},
        {"shape": [3]},
        {"dtype": "int8"},
    ],
    ids=lambda value: json.dumps(value),
)
def test_new_datasets_have_the_same_attributes(tmp_path: Path, options: dict[str, Any]) -> None:
    """The same options make the same document, or are refused by both."""
    documents: list[Any] = []
    for number, library in enumerate((fsstore, tensorstore)):
        path = tmp_path / str(number)
        try:
            library.open(_spec(path), create=True, **options).result()
        except ValueError:
            documents.append(None)
        else:
            documents.append((path / "a" / "attributes.json").read_bytes())
    assert documents[0] == documents[1]


def _block(mode: int, shape: tuple[int, ...], payload: bytes, *extra: int) -> bytes:
    return struct.pack(f">HH{len(shape) + len(extra)}I", mode, len(shape), *shape, *extra) + payload


_ELEMENTS = np.arange(8, dtype=">u2").tobytes()


@pytest.mark.parametrize(
    "block",
    [
        *(_block(0, (2, 4), _ELEMENTS), _block(0, (2, 3), _ELEMENTS[:12]), _block(0, (1, 1), _ELEMENTS[:2])),
        *(_block(0, (3, 4), _ELEMENTS + _ELEMENTS), _block(1, (2, 4), _ELEMENTS, 8), _block(2, (2, 4), _ELEMENTS)),
        *(_block(0, (2,), _ELEMENTS), _block(0, (2, 4), _ELEMENTS + b"x"), _block(0, (2, 4), _ELEMENTS[:5])),
        *(b"", b"\0\0", b"\0\0\0\2", _block(0, (0, 4), b"")),
    ],
)
def test_odd_blocks_are_read_or_refused_alike(tmp_path: Path, block: bytes) -> None:
    """A block that is small, of another mode or damaged gives both libraries the same elements, or an error."""
    metadata = {"dimensions": [2, 4], "blockSize": [2, 4], "compression": {"type": "raw"}, "dataType": "uint16"}
    fsstore.open({**_spec(tmp_path), "metadata": metadata}, create=True).result()
    (tmp_path / "a" / "0").mkdir()
    (tmp_path / "a" / "0" / "0").write_bytes(block)
    outcomes: list[Any] = []
    for library in (fsstore, tensorstore):
        try:
            store: Any = library.open(_spec(tmp_path)).result()
            outcomes.append(store.read().result().tolist())
        except ValueError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1]


def test_truncated_blocks_never_read_as_data(tmp_path: Path) -> None:
    """Whatever a compressed block is cut to, reading is an error, of our own kind, and never a crash."""
    for compression, keep in itertools.product(_COMPRESSIONS[1:], (3, 9, 13, 20)):
        path = tmp_path / str(abs(hash(str(compression)))) / str(keep)
        spec = {**_spec(path), "metadata": _metadata(compression, "int32")}
        store = fsstore.open(spec, create=True).result()
        store[...] = np.arange(35, dtype="i4").reshape(5, 7)
        chunk = path / "a" / "0" / "0"
        chunk.write_bytes(chunk.read_bytes()[:keep])
        with pytest.raises(ValueError, match="Error reading"):
            store[0:1, 0:1].read().result()


def test_url_and_labels() -> None:
    """The URL scheme is `n5`; axes become labels, units and resolution become units."""
    store = fsstore.open(
        "memory://a|n5:",
        create=True,
        dtype="uint8",
        domain=fsstore.IndexDomain(shape=[2, 3], labels=["x", "y"]),
        dimension_units=["4nm", "5um"],
    ).result()
    assert store.url == "memory://a/|n5:"
    assert store.domain.labels == ("x", "y")
    assert [str(unit) for unit in store.dimension_units] == ["4 nm", "5 um"]
