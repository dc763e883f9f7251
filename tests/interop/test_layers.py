"""Stacks of layers and downsampled views against TensorStore 0.1.86 and NumPy."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest
import tensorstore

import fsstore

_SEEDS = [pytest.param(seed, marks=[pytest.mark.long] if seed >= 6 else []) for seed in range(60)]


def _layers(rng: random.Random) -> list[tuple[Any, list[int]]]:
    rank = rng.choice((1, 2, 3))
    out = []
    for _ in range(rng.randint(1, 4)):
        values = np.array([rng.randint(-9, 9) for _ in range(6**rank)]).reshape((6,) * rank)
        shape = tuple(slice(0, rng.randint(1, 6)) for _ in range(rank))
        out.append((values[shape].astype("i4"), [rng.randint(-3, 3) for _ in range(rank)]))
    return out


def _view(rng: random.Random, domain: Any) -> Any:
    """Return a random index that stays in the domain."""
    index: list[Any] = []
    for low, high in zip(domain.inclusive_min, domain.exclusive_max, strict=True):
        kind = rng.choice(("whole", "slice", "one", "array", "stride"))
        start = rng.randint(low, high - 1)
        stop = rng.randint(start + 1, high)
        index.append(
            {
                "whole": slice(None),
                "slice": slice(start, stop),
                "one": start,
                "array": [rng.randint(low, high - 1) for _ in range(3)],
                "stride": slice(start, stop, 2),
            }[kind]
        )
    return tuple(index)


def _read(store: Any, index: Any, mode: str) -> Any:
    try:
        view = store[index] if mode == "plain" else getattr(store, mode)[index]
        return np.asarray(view.read().result()).tolist()
    except ValueError:
        return "refused"


def _placed(library: Any, layers: Any) -> Any:
    return [library.array(values).translate_to[origin] for values, origin in layers]


@pytest.mark.parametrize("seed", _SEEDS)
def test_overlays_read_the_same(seed: int) -> None:
    """Any view of any overlay holds the elements TensorStore reads, or is refused where no layer is."""
    rng = random.Random(seed)
    layers = _layers(rng)
    ours, theirs = (library.overlay(_placed(library, layers)) for library in (fsstore, tensorstore))
    assert str(ours.domain) == str(theirs.domain)
    assert repr(ours) == repr(theirs)
    for _ in range(20):
        index, mode = _view(rng, ours.domain), rng.choice(("plain", "oindex", "vindex"))
        assert _read(ours, index, mode) == _read(theirs, index, mode), (index, mode)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stack_and_concat_are_numpys(axis: int) -> None:
    """`stack` and `concat` hold what NumPy's functions return, and print as TensorStore's do."""
    arrays = [np.arange(6, dtype="u2").reshape(2, 3) + 10 * number for number in range(3)]
    for name, make in (("stack", np.stack), ("concat", np.concatenate)):
        ours, theirs = (
            getattr(library, name)([library.array(each) for each in arrays], axis=axis)
            for library in (fsstore, tensorstore)
        )
        np.testing.assert_array_equal(ours.read().result(), make(arrays, axis=axis))
        assert repr(ours) == repr(theirs)


def test_a_write_reaches_the_topmost_layers() -> None:
    """Writing a stack writes each element to the layer that shows it, and nothing where there is none."""
    below, above = fsstore.array(np.zeros(4, "i4")), fsstore.array(np.zeros(2, "i4"))
    both = fsstore.overlay([below, above.translate_to[3]])
    both.write(np.arange(1, 6, dtype="i4")).result()
    assert below.read().result().tolist() == [1, 2, 3, 0]
    assert above.read().result().tolist() == [4, 5]
    gap = fsstore.overlay([below, above.translate_to[6]])
    with pytest.raises(ValueError, match="missing layer mapping"):
        gap.write(9).result()
    assert below.read().result().tolist() == [1, 2, 3, 0]


def test_layers_that_are_specs_are_opened_when_needed() -> None:
    """A layer given as a spec is not opened before a request touches it."""
    spec = fsstore.Spec("memory://x/|zarr3:")
    spec.update(dtype="int64", shape=[2], create=True, open=True)
    missing = fsstore.Spec("memory://y/|zarr3:")
    missing.update(dtype="int64", shape=[2])
    store = fsstore.concat([spec, missing], axis=0)
    assert store[:2].read().result().tolist() == [0, 0]
    with pytest.raises(ValueError, match="While opening layer 1"):
        store.read().result()


_METHODS = ("stride", "mean", "min", "max", "median", "mode")


@pytest.mark.parametrize("seed", _SEEDS)
def test_downsampled_views_read_the_same(seed: int) -> None:
    """Every method reduces blocks of every type as TensorStore does, through views, cut at the edges of the base."""
    rng = random.Random(seed)
    (values, origin), method = _layers(rng)[0], rng.choice(_METHODS)
    kind = rng.choice(("int8", "uint8", "bool", "int32", "uint64", "int64", "float64"))
    factors = [rng.randint(1, 4) for _ in origin]
    data = values.astype(kind)
    ours, theirs = (
        library.downsample(library.array(data).translate_to[origin], factors, method)
        for library in (fsstore, tensorstore)
    )
    assert str(ours.domain) == str(theirs.domain)
    assert repr(theirs) in (repr(ours), "TensorStore(...)")  # which it prints where an extent is 1
    if not any(_cut_twice(low, size, factor) for low, size, factor in zip(origin, data.shape, factors, strict=True)):
        np.testing.assert_array_equal(ours.read().result(), theirs.read().result())
    for _ in range(10):
        if 0 in ours.shape:
            break
        index, mode = _view(rng, ours.domain), rng.choice(("plain", "oindex", "vindex"))
        assert _read(ours, index, mode) == _read(_whole(ours), index, mode), (index, mode)


def _cut_twice(low: int, size: int, factor: int) -> bool:
    """Return whether both ends of the base lie inside one block: TensorStore then reduces memory it never filled."""
    return low // factor == (low + size - 1) // factor and low % factor != 0 and (low + size) % factor != 0


def _whole(store: Any) -> Any:
    """Return the result of reading a store as a store of the same domain: what its views must hold."""
    return fsstore.array(store.read().result()).translate_to[store.domain.inclusive_min]


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_means_of_large_integers_are_exact(kind: str) -> None:
    """Sums beyond 64 bits do not overflow, and halves round to even."""
    top = np.iinfo(kind).max
    values = np.array([top, top - 1, top, top], kind)
    assert fsstore.downsample(fsstore.array(values), [4], "mean").read().result().tolist() == [top]
    assert fsstore.downsample(fsstore.array(values), [2], "mean").read().result().tolist() == [
        top - 1 if (top - 1) % 2 == 0 else top,
        top,
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"downsample_factors": [2, 3], "downsample_method": "mean"},
        {"downsample_factors": [2, 0], "downsample_method": "mean"},
        {"downsample_factors": [2], "downsample_method": "mean"},
        {"downsample_factors": [2, 3], "downsample_method": "foo"},
        {"downsample_factors": [2, 3]},
        {"downsample_factors": [2, 3], "downsample_method": "mean", "dtype": "int8"},
        {"downsample_factors": [2, 3], "downsample_method": "stride", "dtype": "uint8"},
    ],
    ids=lambda value: json.dumps(value),
)
def test_specs_of_downsampled_arrays(spec: dict[str, Any]) -> None:
    """A spec is accepted by both or refused by both, and prints the same."""
    base = {"driver": "zarr", "kvstore": "memory://", "metadata": {"shape": [10, 11], "dtype": "|u1"}}
    outcomes = []
    for library in (fsstore, tensorstore):
        try:
            outcomes.append(repr(library.Spec({"driver": "downsample", "base": base, **spec})))
        except ValueError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("factors", [[2, 2, 2], [3, 2, 5], [1, 1, 7], [40, 1, 3]], ids=str)
@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "complex64"])
def test_blocks_are_reduced_to_the_same_bits(name: str, factors: list[int]) -> None:
    """Means, minima and maxima are TensorStore's to the last bit, cut blocks and arrays of many parts included."""
    rng = np.random.default_rng(5)
    shape, kind = (41, 90, 120), np.dtype(name)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        values = rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
    else:
        values = (rng.normal(size=shape) * 100 + (1j if kind.kind == "c" else 0)).astype(kind)
    for method in ("mean",) if kind.kind == "c" else ("mean", "min", "max"):
        mine, theirs = (
            module.downsample(module.array(values), factors, method).read().result()
            for module in (fsstore, tensorstore)
        )
        assert mine.dtype == theirs.dtype
        assert mine.tobytes() == theirs.tobytes(), method


def _functions(library: Any) -> Any:
    def fill(domain: Any, array: Any, parameters: Any) -> None:
        array[...] = np.add.outer(np.arange(*_bounds(domain, 0)) * 100, np.arange(*_bounds(domain, 1)))

    layout = library.ChunkLayout(chunk_shape=[2, 3])
    units = ["4nm", None]
    return library.virtual_chunked(fill, dtype="int32", shape=[5, 7], chunk_layout=layout, dimension_units=units)


def _bounds(domain: Any, dimension: int) -> tuple[int, int]:
    return domain.inclusive_min[dimension], domain.exclusive_max[dimension]


SPEC_QUESTIONS = [
    *("s.spec()", "s[2:4].spec()", "s.T.spec(retain_context=True)", "s.spec(unbind_context=True)", "s.spec(minimal_spec=True)"),
    *("s.spec().to_json()", "s.spec().url", "s.spec().schema", "s[1:].T.spec().schema", "s.spec().transform"),
    *("s[::2, 4:].spec().domain", "s.spec()[2].rank", "s.spec().dtype", "s.spec().chunk_layout", "s.spec().codec"),
    *("s.spec().fill_value", "s.spec().dimension_units", "s.spec().open_mode", "s.spec().base", "s.spec().kvstore"),
    *("ts.cast(s, 'float32').spec()", "ts.cast(s, 'float32').spec().to_json()", "ts.stack([s, s]).spec()"),
    *("ts.open(s[2:4].spec()).result().read().result().tolist()", "ts.open(s.spec()[3, 1:5]).result().read().result().tolist()"),
    *("ts.open(ts.cast(s, 'float32').spec()).result()[4].read().result().tolist()", "ts.open(s.spec(), shape=[5, 8]).result()"),
    *("ts.open(s.spec(), dtype='int8').result()", "ts.open(s.spec(), shape=[5, 7], create=True).result().domain"),
    *("ts.open(s.spec(), write=True).result()", "ts.open(s.spec(), read=True).result().writable"),
    *("ts.Spec({'driver': 'virtual_chunked'})", "ts.open({'driver': 'virtual_chunked'}).result()"),
]  # fmt: skip


@pytest.mark.parametrize("question", SPEC_QUESTIONS)
def test_specs_of_functions(question: str) -> None:
    """What a spec of functions says, refuses and opens is what TensorStore's says, refuses and opens."""
    answers = []
    for library in (fsstore, tensorstore):
        try:
            answers.append(repr(eval(question, {"ts": library, "s": _functions(library)})))
        except (ValueError, NotImplementedError) as error:
            answers.append(f"{isinstance(error, NotImplementedError)} {error}")
    assert answers[0] == answers[1]


_LAYOUTS: list[dict[str, Any]] = [
    *(
        {grid: {"shape": shape}}
        for grid in ("chunk", "read_chunk", "write_chunk")
        for shape in ([1, 1], [2, 2], [3, 0])
    ),
    *({"inner_order": order} for order in ([0, 1], [1, 0])),
    *({"grid_origin": origin} for origin in ([0, 0], [1, 1])),
    *({"codec_chunk": {"shape": [3, 3]}}, {"chunk": {"elements": 4}}, {"chunk": {"shape_soft_constraint": [3, 3]}}),
    {"inner_order_soft_constraint": [1, 0]},
]
_SCHEMAS: list[dict[str, Any]] = [
    *({"dtype": name} for name in ("int16", "float32")),
    *({"rank": rank} for rank in (2, 3)),
    *({"domain": {"shape": shape}} for shape in ([1, 2], [2, 3], [4, 6], [9, 9], [2])),
    *({"domain": {"labels": labels}} for labels in (["x", "y"], ["a", "b"])),
    *({"domain": {"shape": [2, 3], "labels": labels}} for labels in (["x", "y"], ["a", "b"])),
    *({"dimension_units": units} for units in (["4nm", "4nm"], ["8nm", "8nm"], ["8nm", None], [None, None], ["nm"])),
    *({"fill_value": value} for value in (3, 5, 3.5, "a", [1, 2, 3])),
    *({"chunk_layout": layout} for layout in _LAYOUTS),
    *({"codec": {"driver": "n5", "compression": {"type": kind}}} for kind in ("raw", "gzip")),
    {"codec": {"driver": "zarr3", "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]}},
]
_OVER: dict[str, dict[str, Any]] = {
    "mean": {"driver": "downsample", "downsample_factors": [2, 2], "downsample_method": "mean"},
    "stride": {"driver": "downsample", "downsample_factors": [2, 1], "downsample_method": "stride"},
    "stack": {"driver": "stack"},
    "cast": {"driver": "cast", "dtype": "int32"},
}


def _bases(path: str) -> dict[str, Any]:
    """Return specs of two arrays, once with and once without what is stored."""
    tensorstore_only = {"create": True, "open": True}
    zarr3 = {
        "shape": [4, 6], "data_type": "int16", "fill_value": 3, "dimension_names": ["x", "y"],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    }  # fmt: skip
    n5 = {
        "dimensions": [4, 6], "dataType": "int16", "blockSize": [2, 2], "compression": {"type": "raw"},
        "axes": ["x", "y"], "units": ["nm", "nm"], "resolution": [4, 4],
    }  # fmt: skip
    out: dict[str, Any] = {}
    for driver, metadata in (("zarr3", zarr3), ("n5", n5)):
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/{driver}/"}}
        tensorstore.open({**spec, "metadata": metadata, **tensorstore_only}).result()
        out |= {driver: spec, f"known {driver}": {**spec, "metadata": metadata}}
    return {**out, "array": {"driver": "array", "array": [[1, 2, 3, 4], [5, 6, 7, 8]], "dtype": "int16"}}


@pytest.mark.parametrize("over", _OVER)
@pytest.mark.parametrize("schema", _SCHEMAS, ids=json.dumps)
def test_a_schema_is_checked_as_tensorstore_checks_it(schema: Any, over: str, tmp_path: Any) -> None:
    """What the schema of a view, a stack or a cast asks for is checked against the arrays below, or refused alike."""

    def outcome(library: Any, spec: Any, options: Any) -> Any:
        try:
            store = library.open(spec, **options).result()
        except ValueError:
            return "refused"
        return (store.dtype.name, store.domain.shape, store.dimension_units and [str(u) for u in store.dimension_units])

    for name, base in _bases(str(tmp_path)).items():
        if name == "array" and "domain" in schema and over != "stack":
            continue  # TensorStore refuses labels and open bounds for arrays in JSON
        spec = {**_OVER[over], **({"layers": [base]} if over == "stack" else {"base": base})}
        inside = {key: value for key, value in schema.items() if key != "dtype"}
        said = {**spec, "schema": inside, **({"dtype": schema["dtype"]} if "dtype" in schema else {})}
        assert outcome(fsstore, said, {}) == outcome(tensorstore, said, {}), name
        if over == "stack" and "domain" in schema:
            continue  # given by name, TensorStore takes it for bounds of the layers
        ours, theirs = (
            {key: _argument(library, key, value) for key, value in schema.items()} for library in (fsstore, tensorstore)
        )
        assert outcome(fsstore, spec, ours) == outcome(tensorstore, spec, theirs), name


def _argument(library: Any, name: str, value: Any) -> Any:
    makers = {"domain": lambda: library.IndexDomain(json=value), "codec": lambda: library.CodecSpec(value)}
    makers["chunk_layout"] = lambda: library.ChunkLayout(value)
    return makers.get(name, lambda: value)()


def test_a_schema_that_cannot_be_met_says_why() -> None:
    """The messages are TensorStore's, up to what it adds in brackets."""
    array = {"driver": "array", "array": [[1, 2], [3, 4]], "dtype": "int16"}
    view = {**_OVER["mean"], "base": array}
    stack = {"driver": "stack", "layers": [array, {**array, "schema": {"dimension_units": ["nm", None]}}]}
    for spec in (
        *({**stack, "schema": each} for each in ({"fill_value": 3}, {"codec": {"driver": "zarr3"}}, {"rank": 3})),
        *(
            {**stack, "schema": {"chunk_layout": {"inner_order": [0, 1]}}},
            {**stack, "schema": {"domain": {"shape": [2]}}},
        ),
        *({**view, "schema": {"fill_value": 3}}, {**view, "schema": {"domain": {"shape": [3, 3]}}}),
    ):
        messages = []
        for library in (fsstore, tensorstore):
            with pytest.raises(ValueError) as caught:  # noqa: PT011  its words are compared
                library.open(spec).result()
            messages.append(str(caught.value).partition(" [tensorstore_spec")[0])
        assert messages[0] == messages[1]
    assert fsstore.open(stack).result().dimension_units == (fsstore.Unit("nm"), None)
    shown = fsstore.Spec({**view, "schema": {"dimension_units": ["8nm", None]}}).to_json()
    assert shown == tensorstore.Spec({**view, "schema": {"dimension_units": ["8nm", None]}}).to_json()


@pytest.mark.parametrize("fill", ["a", True, 1.5, 40000, [1, 2]], ids=repr)
@pytest.mark.parametrize("driver", ["zarr3", "zarr"])
def test_a_fill_value_that_is_none_of_the_base_is_refused(driver: str, fill: Any) -> None:
    """An array is not created through a cast whose fill value the stored type does not have."""
    for library in (fsstore, tensorstore):
        base = {"driver": driver, "kvstore": "memory://x/", "dtype": "int16"}
        spec = {
            "driver": "cast",
            "base": base,
            "dtype": "float64",
            "schema": {"fill_value": fill, "domain": {"shape": [2]}},
        }
        with pytest.raises(ValueError, match="fill_value"):
            library.open(spec, create=True, context=library.Context()).result()


@pytest.mark.parametrize("missing", [True, False])
def test_an_error_of_opening_names_the_chain(missing):
    """From the outermost driver to the one that failed, as in TensorStore."""
    if missing:
        array = {"driver": "zarr3", "kvstore": "memory://nothing/"}
        below = {"driver": "cast", "base": array, "dtype": "int8"}
        outer = {"driver": "downsample", "base": below, "downsample_factors": [2], "downsample_method": "mean"}
        reason = 'Error opening "cast" driver: Error opening "zarr3" driver: Metadata'
    else:
        array = {"driver": "array", "array": [1, 2], "dtype": "int32"}
        below = {"driver": "cast", "base": array, "dtype": "char"}
        outer = {"driver": "cast", "base": below, "dtype": "char"}
        reason = 'Error opening "cast" driver: Cannot convert int32 <-> char'
    for library in (fsstore, tensorstore):
        with pytest.raises(ValueError, match=re.escape(f'Error opening "{outer["driver"]}" driver: {reason}')):
            library.open(outer).result()


@pytest.mark.parametrize("layer", ["downsample", "stack", "concat", "overlay", "cast", "virtual_chunked"])
def test_positions_outside_a_view_are_errors_in_every_layer(layer):
    """Positions that are listed lie within the view, though the layer below has values there."""

    def fill(domain: Any, array: Any, *_: Any) -> None:
        array[...] = np.arange(domain.inclusive_min[0], domain.exclusive_max[0])

    for library in (fsstore, tensorstore):
        base = library.array(np.arange(40.0))
        made = {
            "downsample": lambda library=library, base=base: library.downsample(base, [2], "mean"),
            "stack": lambda library=library, base=base: library.stack([base, base])[0],
            "concat": lambda library=library, base=base: library.concat([base, base], axis=0),
            "overlay": lambda library=library, base=base: library.overlay([base, base[:9]]),
            "cast": lambda library=library, base=base: library.cast(base, "float32"),
            "virtual_chunked": lambda library=library: library.virtual_chunked(fill, dtype=np.float64, shape=[40]),
        }[layer]()
        part = made[5:10]
        for choice in (part.oindex, part.vindex, part):
            assert choice[[7, 5]].read().result().shape == (2,)
            with pytest.raises((ValueError, IndexError), match="OUT_OF_RANGE"):
                choice[[7, 3]].read().result()
