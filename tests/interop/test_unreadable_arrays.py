"""Groups some of whose arrays have metadata that cannot be read: listings, datasets and views of the others."""

from __future__ import annotations

import json
import re

import pytest
import tensorstore
import xarray
import zarr

import fsstore
from fsstore.dataset.listing import list_arrays, tree
from fsstore.driver.auto import hierarchy
from fsstore.errors import UnavailableError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.memory import MemoryDriver
from fsstore.runtime import execution
from fsstore.testing.doubles import Faulty

BROKEN = {
    "unreachable/.zarray": (["gone.bin", 0, 10], "the target does not exist"),
    "cut/.zarray": ("{", "Invalid JSON"),
    "cut3/zarr.json": ('{"zarr_format": 3, ', "Invalid JSON"),
    "list/zarr.json": ("[]", "Expected object"),
    "kind/zarr.json": ('{"zarr_format": 3}', "node_type"),
    "shape/.zarray": ('{"zarr_format": 2, "dtype": "<i4"}', '"shape"'),
    "attributes/.zattrs": ("{]", "Invalid JSON"),
}


def _with_broken(tmp_path, broken):
    """Save a set of one sound array, and of broken ones, whose documents are as they are given."""
    array = '{"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|u1", "compressor": null, "filters": null, "order": "C", "fill_value": 0}'
    refs = {"good/.zarray": array, "good/0": "abc", "good/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}'}
    refs |= {".zgroup": '{"zarr_format": 2}', "g/.zgroup": '{"zarr_format": 2}'}
    refs |= {"attributes/.zarray": array} if any(key.startswith("attributes") for key in broken) else {}
    (tmp_path / "r.json").write_text(json.dumps({**refs, **{key: BROKEN[key][0] for key in broken}}))
    return f"file://{tmp_path}/r.json"


def test_arrays_beside_unreadable_ones_are_listed(tmp_path):
    """What cannot be read is left out with a warning that says which it is and why; all others are listed."""
    url = _with_broken(tmp_path, BROKEN)
    with pytest.warns(UserWarning, match="is left out") as caught:
        assert [each.path for each in list_arrays(url)] == ["good"]
    with pytest.warns(UserWarning, match="is left out"):
        assert tree(url) == "/\n  g/\n  good |u1 (3) in chunks of (3)"
    told = {str(warning.message).split('"')[1]: str(warning.message) for warning in caught}
    assert told.keys() == {key.partition("/")[0] for key in BROKEN}
    for key, (_, why) in BROKEN.items():
        assert why in told[key.partition("/")[0]]
    assert {warning.filename for warning in caught} == {__file__}


def test_a_view_shows_what_can_be_read(tmp_path):
    """Shown as another version of zarr, a group has the arrays that can be read, and a warning names the others."""
    with pytest.warns(UserWarning, match='"unreachable" is left out'):
        group = zarr.open_group(f"zarr3::{_with_broken(tmp_path, ['unreachable/.zarray'])}", mode="r")
    assert group["good"][...].tobytes() == b"abc"


@pytest.mark.parametrize("key", BROKEN)
def test_a_dataset_has_what_can_be_read(tmp_path, key):
    """A variable whose metadata cannot be understood is left out with a warning that names it; a dropped one silently."""
    url, name = _with_broken(tmp_path, [key]), key.partition("/")[0]
    with pytest.warns(UserWarning, match=f'"{name}" is left out: .*{re.escape(BROKEN[key][1])}'):
        found = xarray.open_dataset(url, engine="fsstore")
    assert list(found) == ["good"]
    assert found["good"].values.tobytes() == b"abc"
    with xarray.open_dataset(url, engine="fsstore", drop_variables=[name]) as dataset:
        assert dataset["good"].values.tobytes() == b"abc"


@pytest.mark.parametrize("change", [{"dtype": "<q9"}, {"shape": [-1]}, {"compressor": {"id": "nothing"}}])
def test_an_array_of_no_kind_we_know_is_left_out(tmp_path, change):
    """Documents that are JSON, of an array that cannot be: the others are shown, and opening it alone is an error."""
    group = zarr.open_group(f"{tmp_path}/a.zarr", mode="w", zarr_format=2)
    for name in ("good", "odd"):
        group.create_array(name, shape=(2,), dtype="i1", fill_value=3, attributes={"_ARRAY_DIMENSIONS": ["x"]})
    document = tmp_path / "a.zarr" / "odd" / ".zarray"
    document.write_text(json.dumps(json.loads(document.read_text()) | change))
    with pytest.warns(UserWarning, match='"odd" is left out'):
        found = xarray.open_dataset(f"file://{tmp_path}/a.zarr/", engine="fsstore", mask_and_scale=False)
    assert found["good"].values.tolist() == [3, 3]
    with pytest.raises(ValueError, match="odd"):
        fsstore.open(f"file://{tmp_path}/a.zarr/odd/|zarr2:").result()


def test_a_dataset_of_nothing_that_can_be_read_is_an_error(tmp_path):
    """It would be empty, which what is stored is not."""
    (tmp_path / "odd").mkdir()
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "odd" / ".zarray").write_text('{"zarr_format": 2}')
    with pytest.raises(ValueError, match='The array "odd" in .* cannot be opened'):
        xarray.open_dataset(f"file://{tmp_path}/", engine="fsstore")


def test_a_place_that_cannot_be_read_at_all_is_an_error():
    """Where no document can be read, there is nothing to list, and the error is raised."""
    inner = MemoryDriver()
    place = KvPrefix(Faulty(inner, lambda _, key: UnavailableError("gone") if key in away else None))
    away: set[str] = set()
    for name in "ab":
        execution.call(place.write(f"{name}/.zarray", b"{}"))
    away.add("a/.zarray")
    found = execution.call(hierarchy(place))
    assert (list(found.nodes), list(found.damaged)) == (["b"], ["a"])
    away.add("b/.zarray")
    with pytest.raises(UnavailableError, match="gone"):
        execution.call(hierarchy(place))


_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_INDEX = [_BYTES, {"name": "gzip", "configuration": {"level": 5}}]
_STORED = {
    "zarr3": ("zarr.json", {
        "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int16", "fill_value": 0, "codecs": [_BYTES],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}, "chunk_key_encoding": {"name": "default"},
    }),
    "zarr": (".zarray", {
        "zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i2", "compressor": None, "filters": None, "order": "C",
        "fill_value": 0,
    }),
    "n5": ("attributes.json", {
        "dimensions": [4], "blockSize": [2], "dataType": "int16", "compression": {"type": "raw"},
    }),
}  # fmt: skip
_WRONG = {
    "zarr3": [
        {"codecs": [{"name": "foo"}]},
        {"codecs": [{"name": "gzip", "configuration": {"level": 5}}]},
        {"codecs": [{"name": "transpose", "configuration": {"order": [0, 1]}}, _BYTES]},
        {"codecs": [{"name": "bytes"}]},
        {"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [3], "codecs": [_BYTES]}}]},
        {"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "index_codecs": _INDEX}}]},
        *({"data_type": "foo"}, {"fill_value": 70000}, {"zarr_format": 4}, {"extra": 1}, {"dimension_names": ["a", "b"]}),
    ],
    "zarr": [
        *({"dtype": "<x2"}, {"compressor": {"id": "foo"}}, {"compressor": {"id": "zlib", "level": 50}}, {"shape": [4, 4]}),
        *({"order": "X"}, {"fill_value": "x"}, {"filters": [{"id": "foo"}]}, {"dimension_separator": "x"}),
    ],
    "n5": [
        *({"dataType": "foo"}, {"compression": {"type": "foo"}}, {"blockSize": [0]}, {"dimensions": [4, 4]}),
        *({"axes": ["a", "b"]}, {"compression": {"type": "gzip", "level": 50}}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("driver", _STORED)
def test_documents_that_do_not_describe_an_array_have_tensorstores_status(driver, tmp_path):
    """Whatever is wrong with what is stored, members, codecs that do not fit or the JSON, is told by the same status."""
    name, good = _STORED[driver]
    documents = [json.dumps({**good, **wrong}) for wrong in _WRONG[driver]]
    documents += [json.dumps({key: value for key, value in good.items() if key != gone}) for gone in good]
    for number, text in enumerate((*documents, "", "{", "null", "[]", '"x"')):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_text(text)
        spec, found = {"driver": driver, "kvstore": f"file://{tmp_path}/{number}/"}, []
        for library in (fsstore, tensorstore):
            with pytest.raises(ValueError, match="^[A-Z_]+: ") as caught:
                library.open(spec).result()
            found.append(str(caught.value).partition(":")[0])
        assert found[0] == found[1], text
