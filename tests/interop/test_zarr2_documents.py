"""Documents of zarr v2 as other programs may have stored them: what TensorStore and fsstore make of them is the same."""

import json

import pytest
import tensorstore

import fsstore as ts
from fsstore.errors import FailedPreconditionError, PermissionDeniedError

PLAIN = {
    "zarr_format": 2,
    "shape": [4],
    "chunks": [2],
    "dtype": "<i4",
    "compressor": None,
    "fill_value": 1,
    "order": "C",
    "filters": None,
}
FIELDS = [["a", "<u1", []], ["b", ">f4", [2]], ["c", "|b1", [1, 2]]]
KEPT = [
    {},
    {"extra": {"a": [None, 1.5]}},
    {"dimension_separator": "."},
    {"dimension_separator": "/", "other": 1},
    {"dtype": "<u1"},
    {"dtype": ">i1"},
    {"dtype": "<b1", "fill_value": True},
    {"dtype": FIELDS, "fill_value": None},
    {"dtype": FIELDS, "fill_value": "AQAAgD8AAABAAQA="},
    {"dtype": "bfloat16", "fill_value": "1.5"},
    {"dtype": "int4", "fill_value": -9},
    {"dtype": "<c8", "fill_value": "AACAPwAAAEA="},
    {"shape": [4.0], "chunks": [2.0], "zarr_format": 2.0},
    {"filters": []},
    {"compressor": {"id": "zlib"}},
    {"compressor": {"id": "gzip", "level": 3.0}},
    {"compressor": {"id": "bz2"}},
    {"compressor": {"id": "zstd"}},
    {"compressor": {"id": "blosc"}},
]


def placed(text):
    """Store a document for both libraries, and yield each with its context and store."""
    for module in (ts, tensorstore):
        context = module.Context()
        store = module.KvStore.open({"driver": "memory"}, context=context).result()
        store[".zarray"] = text
        yield module, context, store


def opened(module, context, document, **members):
    """Open the array, or the field `b` of it."""
    field = {"field": "b"} if isinstance(document.get("dtype"), list) else {}
    spec = {"driver": "zarr", "kvstore": {"driver": "memory"}, **field, **members}
    return module.open(spec, context=context).result()


@pytest.mark.parametrize("change", KEPT, ids=json.dumps)
def test_specs_and_documents(change):
    """The spec is TensorStore's and opens the array again; a resize stores what TensorStore stores, unknown members too."""
    document, found = {**PLAIN, **change}, []
    for module, context, store in placed(json.dumps(document).encode()):
        array = opened(module, context, document)
        spec = array.spec().to_json()
        assert module.open(spec, context=context).result().domain == array.domain
        assert opened(module, context, document, metadata=spec["metadata"]).domain == array.domain
        array.resize(exclusive_max=[6] + [None] * (array.rank - 1), resize_tied_bounds=True).result()
        found.append((spec, json.loads(store[".zarray"])))
    assert found[0] == found[1]


REFUSED = [
    {"zarr_format": 1},
    {"zarr_format": "2"},
    {"zarr_format": True},
    {"shape": [-1]},
    {"shape": ["4"]},
    {"shape": [4, 4]},
    {"shape": 4},
    {"shape": [2**63]},
    {"shape": [10**400]},
    {"chunks": [0]},
    {"chunks": [True]},
    {"chunks": [2**62]},
    {"order": "A"},
    {"order": None},
    {"filters": {}},
    {"filters": [None]},
    {"compressor": {}},
    {"compressor": "zlib"},
    {"compressor": {"id": "zlib", "level": 10}},
    {"compressor": {"id": "zlib", "level": "1"}},
    {"compressor": {"id": "zlib", "other": 1}},
    {"compressor": {"id": "bz2", "level": 0}},
    {"compressor": {"id": "zstd", "level": 23}},
    {"compressor": {"id": "blosc", "cname": "x"}},
    {"compressor": {"id": "blosc", "shuffle": 3}},
    {"dimension_separator": None},
    {"dimension_separator": "-"},
    {"dtype": "i4"},
    {"dtype": "=i4"},
    {"dtype": "|i4"},
    {"dtype": "|i01"},
    {"dtype": "<i04"},
    {"dtype": "<f16"},
    {"dtype": "<M8"},
    {"dtype": "<M8[0s]"},
    {"dtype": "<M8[generic]"},
    {"dtype": "<U0"},
    {"dtype": "<i4 "},
    {"dtype": []},
    {"dtype": [["a", "<i4", None]]},
    {"dtype": [["a", "<i4", [-1]]]},
    {"dtype": [["", "<i4"]]},
    {"dtype": [["a", "<i4"], ["a", "<i4"]]},
    {"fill_value": 2**31},
    {"fill_value": 1.5},
    {"fill_value": "1.5"},
    {"fill_value": True},
    {"dtype": "|b1", "fill_value": 2},
    {"dtype": "<f4", "fill_value": "nan"},
    {"dtype": "<f4", "fill_value": [1]},
    {"dtype": "<c8", "fill_value": [1]},
    {"dtype": "<c8", "fill_value": "AAAA"},
    {"dtype": "int4", "fill_value": 300},
    {"dtype": "|S3", "fill_value": "YWJjZA=="},
    {"dtype": "|V3", "fill_value": "YWI="},
]


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: json.dumps(change)[:60])
def test_bad_members(change):
    """What TensorStore refuses is refused with the key of the document and the member."""
    document = {**PLAIN, **change}
    (ours, context, _), (theirs, their_context, _) = placed(json.dumps(document).encode())
    with pytest.raises(ValueError, match="Error opening"):
        opened(theirs, their_context, document)
    with pytest.raises(FailedPreconditionError, match='Error opening "zarr" driver: Error reading ".zarray"') as caught:
        opened(ours, context, document)
    assert any(name in str(caught.value) for name in change)
    assert "tensorstore" not in str(caught.value)


@pytest.mark.parametrize("change", [{"filters": [{"id": "pickle"}]}, {"compressor": {"id": "pickle"}}], ids=json.dumps)
def test_codecs_that_run_code(change):
    """An array is not opened, nor created, with a codec that runs what it finds in the data; the error says why."""
    (ours, context, _), _ = placed(json.dumps({**PLAIN, **change}).encode())
    with pytest.raises(PermissionDeniedError, match='Error reading ".zarray": .*"pickle" runs code'):
        opened(ours, context, PLAIN)
    with pytest.raises(PermissionDeniedError, match='"pickle" runs code'):
        opened(ours, ours.Context(), PLAIN, metadata={**PLAIN, **change}, create=True)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ('"shape": [8]', 'the member "shape" appears twice'),
        ('"extra": {"a": 1, "a": 2}', 'the member "a" appears twice'),
        ('"extra": NaN', "NaN"),
        ('"extra": [-Infinity]', "-Infinity"),
        ('"fill_value": NaN', "appears twice|NaN"),
        ('"extra": 1e999', "1e999"),
        ('"extra": "\\ud800"', "surrogates"),
    ],
)
def test_documents_on_which_readers_disagree(part, why):
    """NaN, members that occur twice and broken characters are refused with the key of the document."""
    text = json.dumps(PLAIN)[:-1] + f", {part}}}"
    (ours, context, _), _ = placed(text.encode())
    with pytest.raises(FailedPreconditionError, match=f'Error reading ".zarray": Invalid JSON: .*({why})'):
        opened(ours, context, PLAIN)
