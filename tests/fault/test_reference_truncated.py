"""Reference documents that are cut off: an error wherever they end, never something else that opens."""

import gzip
import json

import pytest

import fsstore as ts

ARRAY = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "fill_value": 0, "order": "C", "filters": None, "compressor": None}  # fmt: skip
REFS = {".zgroup": '{"zarr_format":2}', "t/.zarray": json.dumps(ARRAY), "t/0": ["data", 0, 2]}
WHOLE = {
    "version 1": json.dumps({"version": 1, "templates": {"u": "s3://x"}, "refs": REFS}).encode(),
    "version 0": json.dumps(REFS).encode(),
}
WHOLE["compressed"] = gzip.compress(WHOLE["version 1"])


@pytest.mark.parametrize("whole", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("url", ["", "|reference:t/|zarr2:"])
def test_a_document_that_is_cut_off_does_not_open(tmp_path, whole, url):
    """Every beginning of a document is refused, by detection and by name; the whole of it opens."""
    file = tmp_path / "r.json"
    (tmp_path / "data").write_bytes(b"ab")
    for size in range(1, len(whole), 1 if len(whole) < 200 else 3):
        file.write_bytes(whole[:size])
        with pytest.raises(ts.errors.StoreError):
            ts.open(f"file://{file}{url}").result()
    file.write_bytes(whole)
    at = url or "|reference:t/"
    assert ts.open(f"file://{file}{at}").result().read().result().tolist() == [97, 98]


@pytest.mark.parametrize("text", ["{", "[", '{"a": 1', "[1, 2", '{"a": {}', '{"a": "}'])
def test_json_that_is_cut_off_is_no_array(tmp_path, text):
    """A JSON document of any kind that has no end is not detected as an array of JSON; a whole one is."""
    (tmp_path / "x").write_text(text.removesuffix("}"))
    with pytest.raises(ts.errors.StoreError, match="Failed to detect format"):
        ts.open(f"file://{tmp_path}/x").result()
    (tmp_path / "x").write_text('{"a": 1}\n\n')
    assert ts.open(f"file://{tmp_path}/x").result().read().result().item() == {"a": 1}
