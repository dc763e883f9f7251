"""Arguments of a wrong type are refused by their name, and as TensorStore refuses them: with `TypeError`."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorstore

import fsstore

WRONG: list[Callable[[Any], Any]] = [
    lambda _: 3,
    lambda _: "false",
    lambda _: [1],
    lambda _: object(),
    lambda ts: ts,
    lambda ts: ts.Schema(rank=1),
    lambda ts: ts.IndexDomain(3),
    lambda ts: ts.d[0],
    lambda ts: ts.Batch(),
]
FLAGS = [WRONG[1], WRONG[2], WRONG[3], WRONG[4]]  # a number is true or false
SPEC = {"driver": "zarr3", "kvstore": "memory://"}


def layers(ts):
    """Return two stores in memory."""
    return [ts.array([1, 2]), ts.array([3, 4])]


CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "open": (lambda ts, **options: ts.open(SPEC, create=True, dtype="int8", shape=[3], **options), "C T F:read"),
    "KvStore.open": (lambda ts, **options: ts.KvStore.open("memory://", **options), "C T"),
    "array": (lambda ts, **options: ts.array([1, 2], **options), "C F:copy F:write"),
    "stack": (lambda ts, **options: ts.stack(layers(ts), **options), "C T F:read F:write"),
    "concat": (lambda ts, **options: ts.concat(layers(ts), 0, **options), "C T F:read F:write"),
    "overlay": (lambda ts, **options: ts.overlay(layers(ts), **options), "C T F:read F:write"),
    "virtual_chunked": (lambda ts, **options: ts.virtual_chunked(print, dtype="int8", shape=[3], **options), "C T"),
    "Transaction": (lambda ts, **options: ts.Transaction(**options), "F:atomic F:repeatable_read"),
    "Spec.update": (lambda ts, **options: ts.Spec(SPEC).update(**options), "C"),
    "Context": (lambda ts, **options: ts.Context({}, **options), "parent"),
}
ARGUMENTS = {"C": ("context", WRONG), "T": ("transaction", WRONG), "parent": ("parent", WRONG)}


def cases():
    """Yield each call with each of its arguments, and each wrong value."""
    for name, (call, arguments) in CALLS.items():
        for text in arguments.split():
            argument, values = ARGUMENTS.get(text, (text.removeprefix("F:"), FLAGS))
            for number, value in enumerate(values):
                yield pytest.param(call, argument, value, id=f"{name}-{argument}-{number}")


@pytest.mark.parametrize(("call", "argument", "value"), list(cases()))
def test_arguments_of_a_wrong_type(call, argument, value):
    """The error names the argument; nothing is opened, and no attribute of the value is asked for."""
    with pytest.raises(TypeError):
        _result(call(tensorstore, **{argument: value(tensorstore)}))
    with pytest.raises(TypeError, match=argument):
        _result(call(fsstore, **{argument: value(fsstore)}))


@pytest.mark.parametrize("name", ["stack", "concat", "overlay"])
@pytest.mark.parametrize("wrong", [[1, 2], "ab", [None]])
def test_layers_of_a_wrong_type(name, wrong):
    """Only stores and specs are layers."""
    for ts in (tensorstore, fsstore):
        with pytest.raises(TypeError):
            getattr(ts, name)(wrong, *([0] if name == "concat" else []))


@pytest.mark.parametrize("name", ["stack", "concat"])
def test_axes_of_a_wrong_type(name):
    """An axis is a number, or the name of a dimension where layers have it."""
    for ts in (tensorstore, fsstore):
        with pytest.raises(TypeError):
            getattr(ts, name)(layers(ts), 0.5)


def test_context_as_a_description():
    """Unlike with TensorStore, a description will do where a context is asked for."""
    described = {"cache_pool": {"total_bytes_limit": 1000}}
    store = fsstore.open(SPEC, context=described, create=True, dtype="int8", shape=[3]).result()
    assert store.spec(retain_context=True).to_json()["context"]["cache_pool"] == {"total_bytes_limit": 1000}
    assert fsstore.KvStore.open("memory://", context={"memory_key_value_store": {}}).result().list().result() == []
    assert fsstore.array([1], context=fsstore.Context.Spec(described)).read().result().tolist() == [1]


def _result(begun):
    return begun.result() if hasattr(begun, "result") else begun


def _spec(ts):
    return ts.Spec(SPEC)


def _store(ts):
    return ts.open(SPEC, create=True, dtype="int16", shape=[4, 3]).result()


def _keys(ts):
    return ts.KvStore.open("memory://").result()


TEXT, ITEMS, OTHER = "abc", [1], object()
NO_FLAGS = [lambda _: TEXT, lambda _: ITEMS, lambda _: OTHER, lambda ts: ts.Schema(rank=1)]
NO_TEXT = [lambda _: 3, lambda _: OTHER, lambda _: None, lambda ts: ts.Context()]
NO_NUMBER = [lambda _: TEXT, lambda _: ITEMS, lambda _: OTHER, lambda _: 1j]
NO_INTEGERS = [lambda _: b"ab", lambda _: OTHER, lambda ts: ts.Dim(3), lambda _: ["x"], lambda _: [0.5]]
NO_JSON = [lambda _: OTHER, lambda _: [OTHER], lambda _: {"driver": OTHER}, lambda _: {1}, lambda ts: ts.d[0]]
NO_RANGE = [lambda _: 3, lambda _: TEXT, lambda _: [b"a", b"b"], lambda ts: ts.Dim(3)]
PARTS = {
    "Spec.update(unbind_context)": (lambda ts, x: _spec(ts).update(unbind_context=x), NO_FLAGS),
    "Spec.update(strip_context)": (lambda ts, x: _spec(ts).update(strip_context=x), NO_FLAGS),
    "Spec.update(minimal_spec)": (lambda ts, x: _spec(ts).update(minimal_spec=x), NO_FLAGS),
    "spec(retain_context)": (lambda ts, x: _store(ts).spec(retain_context=x), NO_FLAGS),
    "spec(unbind_context)": (lambda ts, x: _store(ts).spec(unbind_context=x), NO_FLAGS),
    "resolve": (lambda ts, x: _store(ts).resolve(fix_resizable_bounds=x), NO_FLAGS),
    "statistics": (lambda ts, x: _store(ts).storage_statistics(query_not_stored=x), NO_FLAGS),
    "KvStore.spec": (lambda ts, x: _keys(ts).spec(retain_context=x), NO_FLAGS),
    "OpenMode": (lambda ts, x: ts.OpenMode(create=x), NO_FLAGS),
    "Dim(implicit)": (lambda ts, x: ts.Dim(3, implicit_lower=x), NO_FLAGS),
    "mark_bounds": (lambda ts, x: ts.IndexDomain(2).mark_bounds_implicit[x], NO_FLAGS),
    "finalize": (lambda ts, x: ts.ChunkLayout(finalize=x), NO_FLAGS),
    "implicit bounds": (lambda ts, x: ts.IndexDomain(1, implicit_lower_bounds=x), [lambda _: ["a"], *NO_RANGE[:2]]),
    "shape": (lambda ts, x: ts.IndexDomain(shape=x), NO_INTEGERS),
    "translate": (lambda ts, x: ts.IndexDomain(2).translate_by[x], NO_INTEGERS),
    "resize": (lambda ts, x: _store(ts).resize(exclusive_max=x), NO_INTEGERS),
    "output": (lambda ts, x: ts.IndexTransform(output=x), [*NO_FLAGS, lambda _: 3]),
    "index_range": (lambda ts, x: ts.OutputIndexMap(index_range=x), NO_RANGE),
    "labels": (lambda ts, x: ts.IndexDomain(1, labels=x), [lambda _: {"a": 1}, lambda _: [1], lambda _: 3]),
    "timeout": (lambda ts, x: ts.Future(5).result(timeout=x), NO_NUMBER),
    "deadline": (lambda ts, x: ts.Future(5).exception(deadline=x), NO_NUMBER),
    "time": (lambda ts, x: ts.KvStore.TimestampedStorageGeneration(time=x), NO_NUMBER),
    "state": (lambda ts, x: ts.KvStore.ReadResult(state=x), [lambda _: 3, lambda _: "absent"]),
    "staleness": (lambda ts, x: _keys(ts).read("a", staleness_bound=x), NO_NUMBER),
    "byte_range": (lambda ts, x: _keys(ts).read("a", byte_range=x), NO_RANGE),
    "range": (lambda ts, x: _keys(ts).list(x), NO_RANGE),
    "copied range": (lambda ts, x: _keys(ts).experimental_copy_range_to(_keys(ts), x), NO_RANGE),
    "copy target": (lambda ts, x: _keys(ts).experimental_copy_range_to(x), NO_RANGE),
    "batch of keys": (lambda ts, x: _keys(ts).read("a", batch=x), NO_RANGE),
    "batch of a write": (lambda ts, x: _store(ts).write(1, batch=x), NO_RANGE),
    "resource": (lambda ts, x: ts.Context()[x], NO_TEXT),
    "metrics": (lambda ts, x: ts.experimental_collect_matching_metrics(x), NO_TEXT),
    "zeros": (lambda ts, x: ts.experimental_collect_matching_metrics("/none", x), NO_FLAGS),
    "logging": (lambda ts, x: ts.experimental_update_verbose_logging(x), NO_TEXT),
    "argv": (lambda ts, x: ts.parse_tensorstore_flags(x), [lambda _: "a", lambda _: [1]]),
    "spec": (lambda ts, x: ts.open(x), NO_JSON),
    "metadata": (lambda ts, x: ts.Spec({**SPEC, "metadata": {"attributes": {"a": x}}}), NO_JSON),
    "member": (lambda ts, x: ts.Spec({**SPEC, "unknown": x}), NO_JSON),
    "dtype": (lambda ts, x: ts.Spec({**SPEC, "dtype": x}), NO_JSON),
    "schema": (lambda ts, x: ts.Schema({"rank": x}), NO_JSON),
    "layout": (lambda ts, x: ts.ChunkLayout({"chunk": {"shape": x}}), NO_JSON),
    "codec": (lambda ts, x: ts.CodecSpec({"driver": "zarr3", "codecs": x}), NO_JSON),
    "domain": (lambda ts, x: ts.IndexDomain(json={"shape": x}), NO_JSON),
    "transform": (lambda ts, x: ts.IndexTransform(json={"input_rank": x}), NO_JSON),
    "context": (lambda ts, x: ts.Context({"cache_pool": {"total_bytes_limit": x}}), NO_JSON),
    "path": (lambda ts, x: ts.KvStore.Spec({"driver": "memory", "path": x}), NO_JSON),
}


@pytest.mark.parametrize(
    ("call", "make"),
    [
        pytest.param(call, make, id=f"{name}-{number}")
        for name, (call, values) in PARTS.items()
        for number, make in enumerate(values)
    ],
)
def test_parts_of_a_wrong_type(call, make):
    """Flags, numbers, texts, ranges and JSON of another type are a `TypeError` in both, before anything is done."""
    for ts in (tensorstore, fsstore):
        with pytest.raises(TypeError):
            call(ts, make(ts))
