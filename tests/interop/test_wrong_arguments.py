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
    "open": (
        lambda ts, **options: ts.open(SPEC, create=True, dtype="int8", shape=[3], **options),
        "C T F:read",
    ),
    "KvStore.open": (lambda ts, **options: ts.KvStore.open("memory://", **options), "C T"),
    "array": (lambda ts, **options: ts.array([1, 2], **options), "C F:copy F:write"),
    "stack": (lambda ts, **options: ts.stack(layers(ts), **options), "C T F:read F:write"),
    "concat": (lambda ts, **options: ts.concat(layers(ts), 0, **options), "C T F:read F:write"),
    "overlay": (lambda ts, **options: ts.overlay(layers(ts), **options), "C T F:read F:write"),
    "virtual_chunked": (
        lambda ts, **options: ts.virtual_chunked(print, dtype="int8", shape=[3], **options),
        "C T",
    ),
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
    assert (
        fsstore.KvStore.open("memory://", context={"memory_key_value_store": {}}).result().list().result()
        == []
    )
    assert fsstore.array([1], context=fsstore.Context.Spec(described)).read().result().tolist() == [1]


def _result(begun):
    return begun.result() if hasattr(begun, "result") else begun
