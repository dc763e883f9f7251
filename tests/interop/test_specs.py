"""Specs as TensorStore 0.1.86 reads them: the same URLs and JSON are accepted, and printed the same."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
import tensorstore

import fsstore
from fsstore.values import registry

_ROOTS = (
    *("memory://", "memory://a", "memory://a/", "memory:///a", "memory://a/../b", "memory://a%20b", "memory"),
    *("file:///a", "file:///a/b/", "file://localhost/a", "file:///a%2Fb", "file:///a/../b", "file:///a//b"),
    *("s3://bucket/path", "s3://bucket/", "gs://bucket/a/b", "http://host/a", "https://host:8/a/b/"),
    *(
        "memory://a?b",
        "file:///a#b",
        "memory:a",
        "file:/x",
        "",
        "abc",
        "/x",
        "FILE:///x",
        "foo://x",
        "zarr3:x",
        "auto:",
    ),
    *("file:///é", "memory://a b", "memory://a%zz", "gs://", "s3://", "zip://x"),
)
_PARTS = (
    *("zip", "zip:", "zip:p", "zip:/p", "zip:a/b", "ocdbt", "ocdbt:", "ocdbt:a", "ocdbt:@v3/a", "ocdbt:@v0"),
    *("zarr3", "zarr3:", "zarr3:a", "zarr3:/a", "zarr3:a/", "zarr2:", "zarr2:a/b", "n5:", "n5:x", "zarr:"),
    *("json", "json:", "json:/a", "json:a", "json:/a~2", "json:/a%20b", "auto:", "auto", "auto:x"),
    *("cast:int32", "cast:", "cast:foo", "cast:float64", "cast", "foo", "", "memory://y", "file:///z"),
)


def _random_url(rng: random.Random) -> str:
    return "|".join([rng.choice(_ROOTS), *(rng.choice(_PARTS) for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3))))])


def _outcome(read: Any, given: Any) -> tuple[str, Any]:
    """Return what an implementation makes of a spec: its normal form, or the kind of its error."""
    try:
        spec = read(given)
    except NotImplementedError:
        return "refused", "NotImplementedError"
    except TypeError:
        return "refused", "TypeError"
    except ValueError:
        return "refused", "ValueError"
    return "accepted", json.loads(json.dumps(spec.to_json(), sort_keys=True))


def _reviewed(url: str) -> bool:
    """Return whether a URL is one of the reviewed differences: relative files, and paths without a scheme."""
    first = url.partition("|")[0]
    words = {*registry.kvstores.names(), *registry.drivers.names()}
    if first and ":" not in first and first not in words:  # a local path, which TensorStore refuses
        return True
    return first.startswith("file://") and not first.startswith(("file:///", "file://localhost"))


def _known_type(outcome: tuple[str, Any]) -> tuple[str, Any]:
    """Return an outcome without what only we say of a json document in a URL: that it is of type json and rank 0."""
    if outcome[0] == "refused":
        return outcome

    def stripped(spec: Any) -> Any:
        base = {"base": stripped(spec["base"])} if "base" in spec else {}
        known = {"dtype", "transform"} if spec["driver"] == "json" else {"transform"}
        return {name: value for name, value in spec.items() if name not in known} | base

    return outcome[0], stripped(outcome[1])


def _seeds(count: int) -> list[Any]:
    return [pytest.param(seed, marks=[pytest.mark.long] if seed >= 4 else []) for seed in range(count)]


@pytest.mark.parametrize("seed", _seeds(20))
def test_random_urls_mean_the_same(seed: int) -> None:
    """A random pipeline is accepted by both or refused by both, with equal JSON and equal URL."""
    rng = random.Random(seed)
    for _ in range(100):
        url = _random_url(rng)
        if _reviewed(url):
            continue
        theirs = _outcome(tensorstore.Spec, url)
        assert _known_type(_outcome(fsstore.Spec, url)) == _known_type(theirs), url
        assert _outcome(fsstore.KvStore.Spec, url) == _outcome(tensorstore.KvStore.Spec, url), url
        if theirs[0] == "accepted":
            assert fsstore.Spec(url).url == tensorstore.Spec(url).url, url


_TRANSFORMS = (
    {"input_rank": 2},
    {"input_shape": [3, 4]},
    {"input_shape": [3], "output": [{"input_dimension": 0}, {"offset": 2}]},
    {"input_shape": [3, 4], "output": [{"input_dimension": 1}, {"input_dimension": 0, "stride": 2}]},
    {"input_shape": [2], "input_labels": ["x"]},
    {"input_shape": [2], "foo": 1},
    {"input_inclusive_min": [1, 2], "input_exclusive_max": [[5], ["+inf"]]},
)
_SCHEMAS = (
    {"rank": 2},
    {"domain": {"shape": [3, 4]}},
    {"domain": {"shape": [3, 4], "labels": ["x", "y"]}, "dtype": "int32"},
    {"fill_value": 3},
    {"chunk_layout": {"chunk": {"shape": [2, 2]}}},
    {"dimension_units": ["nm", None]},
    {"foo": 1},
    {"domain": {"shape": [3, -4]}},
)
_METADATA: dict[str, tuple[Any, ...]] = {
    "zarr": (
        {"shape": [5, 6], "dtype": "<i4"},
        {"shape": [5, 6], "dtype": ">f8", "chunks": [2, 3], "order": "F"},
        {"chunks": [2]},
        {"compressor": None},
        {"compressor": {"id": "blosc"}},
        {"dtype": "<i4", "fill_value": 7},
        {"fill_value": 7},
        {"dtype": "<i3"},
        {"foo": 1},
        {"shape": [5], "chunks": [2, 3]},
        {"dtype": [["x", "<i2"], ["y", "<i4", [2]]], "shape": [3]},
    ),
    "zarr3": (
        {"shape": [5, 6], "data_type": "int32"},
        {"data_type": "float32", "fill_value": "NaN"},
        {"fill_value": 1},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}},
        {"codecs": ["gzip"]},
        {"codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, "bytes"], "shape": [3, 4]},
        {"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 1]}}]},
        {"dimension_names": ["x", None], "shape": [3, 4]},
        {"attributes": {"a": 1}},
        {"chunk_key_encoding": {"name": "v2"}},
        {"data_type": "nope"},
        {"chunk_key_encoding": "default"},
        {"shape": [-1]},
    ),
    "n5": (
        {"dimensions": [5, 6], "dataType": "uint16"},
        {"blockSize": [2, 3]},
        {"axes": ["x", "y"]},
        {"axes": ["x", "x"]},
        {"units": ["nm", ""], "resolution": [2, 3]},
        {"resolution": [2, 3]},
        {"compression": {"type": "gzip"}},
        {"compression": {"type": "blosc"}},
        {"dataType": "bool"},
        {"dimensions": [5], "blockSize": [2, 3]},
        {"anything": {"a": [1]}},
    ),
}
_MEMBERS: dict[str, tuple[Any, ...]] = {
    "dtype": ("int32", "float64", "nope", 3),
    "rank": (2, 1, -1, 33, "2"),
    "transform": _TRANSFORMS,
    "schema": _SCHEMAS,
    "open": (True, False, 1),
    "create": (True, False),
    "delete_existing": (True,),
    "assume_metadata": (True,),
    "recheck_cached_data": (True, False, "open", 5, "x"),
    "recheck_cached_metadata": (True, False, "open", 2.5),
    "fill_missing_data_reads": (True, False, 0),
    "store_data_equal_to_fill_value": (True,),
    "cache_pool": ("cache_pool", "cache_pool#a", {"total_bytes_limit": 5}, {"foo": 1}, "foo", None),
    "data_copy_concurrency": ({"limit": 3}, {"limit": 0}, "data_copy_concurrency#b"),
    "context": ({"cache_pool": {"total_bytes_limit": 5}}, {"foo": {}}, {"cache_pool#a": None}, 3),
    "path": ("p", "p/", 3),
    "kvstore": (
        *({"driver": "memory"}, {"driver": "memory", "path": "x"}, "memory://y", {"driver": "zarr3"}, 5),
        *({"driver": "memory", "foo": 1}, {"driver": "memory", "memory_key_value_store": "memory_key_value_store#m"}),
    ),
    "foo": (1,),
}


def _random_spec(rng: random.Random) -> dict[str, Any]:
    driver = rng.choice(("zarr", "zarr2", "zarr3", "n5"))
    spec: dict[str, Any] = {"driver": driver, "kvstore": {"driver": "memory"}}
    for name in rng.sample(sorted(_MEMBERS), rng.choice((0, 1, 1, 2, 3))):
        spec[name] = rng.choice(_MEMBERS[name])
    if rng.random() < 0.6:
        spec["metadata"] = rng.choice(_METADATA["zarr" if driver == "zarr2" else driver])
    if rng.random() < 0.1:
        spec = {"driver": "cast", "base": spec, "dtype": rng.choice(("int8", "float32"))}
    return spec


def _is_whole_structure(spec: dict[str, Any]) -> bool:
    """Return whether a spec means a structure of zarr v2 with several fields and chooses none."""
    spec = spec.get("base", spec)
    kind = spec.get("metadata", {}).get("dtype")
    chosen = spec.get("field") or spec.get("open_as_void")
    return spec["driver"] in ("zarr", "zarr2") and isinstance(kind, list) and len(kind) > 1 and not chosen


@pytest.mark.parametrize("seed", _seeds(20))
def test_random_json_means_the_same(seed: int) -> None:
    """A random JSON spec is accepted by both or refused by both, with the same normal form, rank, domain and schema."""
    rng = random.Random(1000 + seed)
    for _ in range(100):
        given = _random_spec(rng)
        theirs = _outcome(tensorstore.Spec, given)
        if _is_whole_structure(given) and theirs[0] == "refused":
            continue  # it is opened whole here, as test_groups and test_structures show
        assert _outcome(fsstore.Spec, given) == theirs, given
        if theirs[0] == "accepted":
            spec, other = fsstore.Spec(given), tensorstore.Spec(given)
            assert spec.rank == other.rank, given
            assert repr(spec) == repr(other), given
            assert str(spec.domain) == str(other.domain), given
            assert _same_schema(spec, other), given


def _same_schema(spec: Any, other: Any) -> bool:
    """Return whether both know the same of the array; TensorStore knows nothing through some views, and prints null for NaN."""
    try:
        theirs = repr(other.schema)
    except ValueError:
        return True
    return repr(spec.schema).replace("nan", "null") == theirs


_CHUNKED = {"driver": "zarr3", "kvstore": "memory://a/"}
_WITH_DEFAULTS: tuple[dict[str, Any], ...] = (
    *({"driver": name, "kvstore": "memory://a/"} for name in ("zarr", "zarr3", "n5", "auto", "json")),
    {"driver": "zarr3", "kvstore": "memory://a.zip|zip:b/"},
    {"driver": "zarr3", "kvstore": "memory://a/|ocdbt:b/"},
    {**_CHUNKED, "create": True, "open": True, "assume_metadata": True, "recheck_cached_data": False},
    {**_CHUNKED, "cache_pool": {"total_bytes_limit": 5}, "metadata_cache_pool": "cache_pool#x"},
    {**_CHUNKED, "metadata": {"shape": [3], "data_type": "int8"}, "schema": {"fill_value": 3}},
    {"driver": "zarr", "kvstore": "memory://a/", "metadata": {"dtype": "<u2", "shape": [3, 4]}},
    {"driver": "cast", "dtype": "int8", "base": _CHUNKED},
    {"driver": "array", "array": [1, 2], "dtype": "int8"},
    {"driver": "stack", "layers": [{**_CHUNKED, "transform": {"input_shape": [3]}}]},
)
_WRITERS_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("png", {"compression_level": 3}),
    ("jpeg", {"quality": 50}),
    ("webp", {"quality": 50, "lossless": False}),
    ("avif", {"quantizer": 3, "speed": 2}),
    *((name, {}) for name in ("avif", "bmp", "jpeg", "png", "tiff", "webp")),
)


def _with_stored_members(theirs: Any) -> Any:
    """Return JSON of TensorStore with the default for members of archives that we have: they are stored as they are."""
    if isinstance(theirs, dict):
        theirs = {name: _with_stored_members(value) for name, value in theirs.items()}
        if theirs.get("driver") == "zip" and theirs.get("compression") == "deflate":
            theirs["compression"] = "store"
    return theirs


@pytest.mark.parametrize("given", _WITH_DEFAULTS, ids=str)
@pytest.mark.parametrize("include", [False, True])
def test_members_that_are_defaults(given: Any, include: bool) -> None:
    """The same members are defaults, and are printed with the same values when they are asked for."""
    theirs = _with_stored_members(tensorstore.Spec(given).to_json(include))
    assert fsstore.Spec(given).to_json(include) == theirs


@pytest.mark.parametrize(("driver", "options"), _WRITERS_OPTIONS)
@pytest.mark.parametrize("include", [False, True])
def test_members_of_images(driver: str, options: Any, include: bool) -> None:
    """What only writers of images use is read, checked and printed; the domain is printed once."""
    given = {"driver": driver, "kvstore": "memory://a", **options}
    theirs = tensorstore.Spec(given).to_json(include)
    if include:
        del theirs["schema"]["domain"]
    else:
        del theirs["schema"]
    assert fsstore.Spec(given).to_json(include) == theirs
    for name in options:
        assert _outcome(fsstore.Spec, {**given, name: "x"}) == ("refused", "ValueError")


@pytest.mark.parametrize(
    "given", ["memory://a", {"driver": "memory", "atomic": False}, "memory://a|zip:b", "memory://a/|ocdbt:b"], ids=str
)
def test_members_of_stores(given: Any) -> None:
    """The same of key-value stores; those of files are printed in the older form, which the documents have."""
    for include in (False, True):
        theirs = _with_stored_members(tensorstore.KvStore.Spec(given).to_json(include))
        assert fsstore.KvStore.Spec(given).to_json(include) == theirs
    zipped = {"driver": "zip", "base": "memory://a", "compression": "xz"}
    assert fsstore.KvStore.Spec(zipped).to_json() == tensorstore.KvStore.Spec(zipped).to_json()


_UPDATED = ({}, {"schema": {"domain": {"shape": [3]}}}, {"transform": {"input_shape": [3]}}, {"schema": {"rank": 2}},
            {"schema": {"dtype": "int32", "domain": {"shape": [3, 4], "labels": ["x", "y"]}}})  # fmt: skip
_UPDATES = ({"shape": [3]}, {"shape": [4]}, {"shape": [3, 3]}, {"shape": [3, 4]}, {"rank": 1}, {"dtype": "int32"}, {"dtype": "uint8"}, {"fill_value": 3},
            {"domain": [[0, 3]]}, {"shape": [3], "dtype": "int8"})  # fmt: skip


@pytest.mark.parametrize("given", _UPDATED, ids=str)
def test_updates_of_specs(given: Any) -> None:
    """`Spec.update` merges and refuses as TensorStore does, at once; what contradicts the domain is refused there too."""
    for update in _UPDATES:
        arguments = dict(update)
        found = []
        for module in (fsstore, tensorstore):
            spec = module.Spec({"driver": "zarr3", "kvstore": "memory://", **given})
            if "domain" in update:
                arguments["domain"] = module.IndexDomain(shape=[3])
            if "dtype" in update:
                arguments["dtype"] = module.dtype(update["dtype"])
            try:
                spec.update(**arguments)
            except ValueError:
                found.append("refused")
            else:
                found.append(spec.to_json())
        assert found[0] == found[1], update


ARRAYS = [
    {"array": ["a", "b"], "dtype": "string"},
    {"array": ["é"], "dtype": "ustring"},
    {"array": [1, {"a": [2]}], "dtype": "json"},
    {"array": [[1, 2]], "dtype": "json", "rank": 2},
    {"array": [1, "2", 3.0], "dtype": "int8"},
    {"array": [300], "dtype": "int8"},
    {"array": [1.5], "dtype": "int8"},
    {"array": [9], "dtype": "int4"},
    {"array": [1], "dtype": "bool"},
    {"array": [1.5, "Infinity", "-inf"], "dtype": "bfloat16"},
    {"array": [[1, 2], [3]], "dtype": "int8"},
    {"array": None, "dtype": "int8"},
    {"array": [2**63, 1], "dtype": "uint64"},
    {"array": [1, 2], "dtype": "int8", "schema": {"domain": {"shape": [3]}}},
    {"array": [1, 2], "dtype": "int8", "schema": {"fill_value": 3}},
    {"array": [1, 2], "dtype": "int8", "schema": {"codec": {"driver": "zarr3"}}},
    {"array": [1, 2], "dtype": "int8", "schema": {"chunk_layout": {"chunk": {"shape": [1]}}}},
    {"array": [1, 2], "dtype": "int8", "schema": {"dimension_units": ["4 nm"]}},
]


@pytest.mark.parametrize("given", ARRAYS, ids=repr)
def test_arrays_in_json(given: Any) -> None:
    """Elements in JSON are read as those of a fill value; what is no element, or no constraint to meet, is refused."""

    def outcome(module: Any) -> Any:
        try:
            store = module.open({"driver": "array", **given}).result()
        except ValueError as error:
            return (
                str(error)
                .partition(" [")[0]
                .partition("but found")[0]
                .partition(" of type")[0]
                .partition(" domain in")[0][:70]
            )
        spec = store.spec().to_json()
        again = module.open(spec).result()
        units = [str(unit) for unit in store.dimension_units]
        return [store.read().result().tolist(), again.read().result().tolist(), spec["array"], units]

    assert outcome(fsstore) == outcome(tensorstore)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("complex64", [1 + 2j, 3]),
        ("S3", [b"ab", b""]),
        ("datetime64[s]", [5, 6]),
        ("byte", [b"\1", b"x"]),
        ([("a", "i1"), ("b", "f4")], [(1, 2.5), (3, 4)]),
    ],
)
def test_arrays_of_other_elements_in_json(dtype: Any, value: Any) -> None:
    """Elements that TensorStore cannot write to JSON, or not read, come back too."""
    native = fsstore.dtype(dtype if isinstance(dtype, str) else fsstore.dtype(np.dtype(dtype))).numpy_dtype
    store = fsstore.array(np.array(value, native))
    spec = json.loads(json.dumps(store.spec().to_json()))
    assert fsstore.open(spec).result().read().result().tolist() == np.array(value, native).tolist()
    assert fsstore.open(store[1].spec()).result().read().result() == np.array(value, native)[1]


CONSTRAINTS: list[dict[str, Any]] = [
    {"domain": {"shape": [5]}},
    {"fill_value": 9},
    {"chunk_layout": {"chunk": {"shape": [3]}}},
    {"rank": 2},
    {"codec": {"driver": "zarr3", "codecs": [{"name": "zstd"}]}},
    {"fill_value": 7, "domain": {"shape": [4]}, "chunk_layout": {"chunk": {"shape": [2]}}, "rank": 1},
]


@pytest.mark.parametrize("schema", CONSTRAINTS, ids=repr)
def test_a_cast_hands_its_schema_down(schema: Any, tmp_path: Any) -> None:
    """The schema in the spec of a cast constrains the array below: on opening it is checked, on creation it is used."""

    def outcome(module: Any, *, stored: bool) -> Any:
        metadata = {"shape": [4], "fill_value": 7, "data_type": "int16"}
        metadata["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [2]}}
        path = f"{tmp_path}/{module.__name__}{stored}/"
        base: Any = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
        if stored:
            module.open({**base, "metadata": metadata}, create=True).result()
        else:
            base = {**base, "dtype": "int16", "schema": {} if "domain" in schema else {"domain": {"shape": [4]}}}
        spec = {"driver": "cast", "base": base, "dtype": "float32", "schema": schema}
        try:
            opened = module.open(spec, create=not stored).result()
        except ValueError:
            return "refused"
        with open(f"{path}zarr.json") as document:  # noqa: PTH123  two short lines of a test
            return opened.read().result().tolist(), json.load(document)

    assert outcome(fsstore, stored=True) == outcome(tensorstore, stored=True)
    assert outcome(fsstore, stored=False) == outcome(tensorstore, stored=False)


_RECHECKS = [
    *(True, False, "open", 0, 1, 1.0, -1.5, 1e12, 10**18, math.inf, -math.inf, math.nan, 1e300, -1e300, 2**63, 10**30),
    *("now", "", "1", "true", b"open", b"1", [], {}, (1,), 1 + 2j, object()),
    *(np.float32(3), np.int64(3), np.bool_(True), np.float64("inf"), np.str_("open"), np.str_("1")),
]


@pytest.mark.parametrize("value", _RECHECKS, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("name", ["recheck_cached_data", "recheck_cached_metadata", "recheck_cached"])
def test_recheck_options_by_name(name: str, value: Any) -> None:
    """Numbers of any kind are times, infinite ones always or never; what is no number is refused, by name."""

    def outcome(library: Any, driver: str, *, opened: bool) -> Any:
        spec = library.Spec({"driver": driver, "kvstore": "memory://x/"})
        try:
            if opened:
                options = {"dtype": "int8", "shape": [2], "create": True, name: value}
                spec = library.open(spec, context=library.Context(), **options).result().spec()
            else:
                spec.update(**{name: value})
        except (ValueError, TypeError) as error:
            return type(error).__name__, str(error)
        return repr({key: each for key, each in spec.to_json().items() if "recheck" in key})

    for driver in ("zarr3", "zarr", "n5"):
        for opened in (False, True):
            assert outcome(fsstore, driver, opened=opened) == outcome(tensorstore, driver, opened=opened)


@pytest.mark.parametrize("driver", ["zarr3", "json"])
@pytest.mark.parametrize("value", [True, False, 0, 1, 1.0, 1e300, -1e300, 2**63, "1", None], ids=repr)
def test_recheck_options_in_json(driver: str, value: Any) -> None:
    """The time of one second is not `true`, and times without end are."""
    outcomes = []
    for library in (fsstore, tensorstore):
        spec = {"driver": driver, "kvstore": "memory://x", "recheck_cached_data": value}
        try:
            outcomes.append(repr(library.Spec(spec).to_json().get("recheck_cached_data")))
        except ValueError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
