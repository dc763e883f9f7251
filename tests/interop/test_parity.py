"""Behaviours of TensorStore 0.1.86 that are not about the data: each is run in both libraries and must come out alike.

A test shows what an expression gives as text, or the built-in exception it raises; messages are compared where TensorStore
writes them itself, and not where its binding generator does.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorstore

import fsstore
from fsstore.errors import OutcomeUnknownError

_BUILTIN = (IndexError, TypeError, OverflowError, NotImplementedError, ValueError, RuntimeError)
Show = Callable[[Any], Any]


def outcome(make: Callable[[], Any], *, message: bool = True) -> str:
    """Return what a call gives, or the built-in class of its error with the first line of the message."""
    try:
        return repr(make())
    except Exception as error:  # noqa: BLE001  # which is what is compared
        name = next(kind.__name__ for kind in _BUILTIN if isinstance(error, kind))
        return f"{name}: {str(error).partition(chr(10))[0]}" if message else name


def alike(make: Show, *, message: bool = True) -> None:
    """Fail unless both libraries give the same."""
    ours, theirs = (outcome(lambda ts=ts: make(ts), message=message) for ts in (fsstore, tensorstore))
    assert ours.replace("tensorstore", "fsstore") == theirs.replace("tensorstore", "fsstore")


def _places(transform: Any) -> list[int]:
    """Return which dimensions of a transform are new."""
    return [axis for axis in range(transform.input_rank) if transform.domain[axis].implicit_lower]


_ENDS = (None, 0, 1, 3, -1, -2, -4)


@pytest.mark.parametrize("step", [None, 1, 2, -1, -2])
def test_ranges_of_new_dimensions(step: int | None):
    """`d[0, -2:][newaxis]` adds dimensions at both ends; ranges that count from two sides are refused alike."""
    for start, stop in itertools.product(_ENDS, _ENDS):
        for first in ((), (0,)):
            part = (*first, slice(start, stop, step))
            alike(lambda ts, part=part: _places(ts.IndexTransform(input_shape=[5, 6, 7])[ts.d[part][ts.newaxis]]))


_SELECTIONS = (
    (0, 0), (0, 1, 1, 0), (1, -2), ("x", "x"), ("x", 0), ("x", 0, 1, 1), (slice(0, 2), 1), (-1, -1), ("q",), (7,), ("",),
    (1, ""), (1, "x"), ("x",), (0, 1), (2,), (),
)  # fmt: skip
_USES: dict[str, Show] = {
    "translate_by": lambda e: e.translate_by[1],
    "label": lambda e: e.label["r"],
    "transpose": lambda e: e.transpose[0],
    "diagonal": lambda e: e.diagonal,
    "newaxis": lambda e: e[None],
    "two newaxis": lambda e: e[None, None],
    "newaxis and integer": lambda e: e[None, 1],
    "newaxis and rest": lambda e: e[None, ...],
    "newaxis and all": lambda e: e[None, :],
}


@pytest.mark.parametrize("use", _USES)
@pytest.mark.parametrize("labels", [None, ["x", "y", "z"]])
def test_dimensions_given_twice_and_by_label(use: str, labels: list[str] | None):
    """What is said of a dimension that is given twice, by number, label or both, and of labels beside new axes."""
    for selection in _SELECTIONS:

        def make(ts: Any, selection: Any = selection) -> Any:
            transform = ts.IndexTransform(input_shape=[5, 6, 7], input_labels=labels)
            return transform[_USES[use](ts.d[selection])]

        alike(make)


_NO_INTEGERS = (
    np.array([1.5]), np.array(["a"]), np.array([1], object), np.array([]), np.array([1j]), np.array([1], "u8"), [1.0], ["a"],
    [None], {}, 2**64, b"x", "x", 1.5, [True, 1], slice((0, 0), (3, 3), (1, 1, 1)), slice((0, 0), (3, 3, 3)),
    slice((0, 0), 3, (1, 1, 1)), slice(0, (3, 3), (1, 1, 1)), slice(1.5, 2), slice("a", 2),
)  # fmt: skip


@pytest.mark.parametrize("place", range(len(_NO_INTEGERS)))
def test_indices_that_are_no_integers(place: int):
    """Indices that are not integers, and vectors of steps of another rank than the stops."""
    wrong = _NO_INTEGERS[place]
    for index in (lambda e: e[wrong], lambda e: e.oindex[wrong], lambda e: e.vindex[wrong], lambda e: e[(wrong, 0)]):
        alike(lambda ts, index=index: index(ts.IndexTransform(input_shape=[5, 6, 7])))
        alike(lambda ts, index=index: ts.IndexTransform(input_shape=[5, 6, 7])[index(ts.d[0, 1])])


def test_a_rank_too_large_for_new_dimensions():
    """More new dimensions than a domain can have are refused at once."""
    with pytest.raises(ValueError, match="outside valid range"):
        fsstore.IndexTransform(input_shape=[1])[fsstore.d[: 10**12][None]]


def test_contexts_and_generic_classes():
    """A context keeps the spec it was made of; futures and promises are generic aliases."""

    def kept(ts: Any) -> bool:
        spec = ts.Context.Spec({"cache_pool": {"total_bytes_limit": 10}})
        return ts.Context(spec).spec is spec

    alike(kept)
    alike(lambda ts: (ts.Future[int], ts.Promise[int], ts.Future[int].__args__))
    alike(lambda ts: ts.Future[int](3).result())


async def _three() -> int:
    return 3


def test_coroutines_without_a_loop():
    """A coroutine outside of any loop is refused with TensorStore's words, before it is touched."""

    def made(ts: Any) -> Any:
        coroutine = _three()
        try:
            return ts.Future(coroutine)
        finally:
            coroutine.close()

    alike(made)


def test_coroutines_with_a_loop():
    """Inside a loop, and with one given, it runs."""

    async def inside(ts: Any) -> int:
        result: int = await ts.Future(_three())
        return result

    alike(lambda ts: asyncio.run(inside(ts)))


def test_promises_that_are_dropped():
    """A promise that nobody holds any more fails its future at once, callbacks included; a fulfilled one does not."""

    def dropped(ts: Any) -> Any:
        called: list[bool] = []
        promise, future = ts.Promise.new()
        future.add_done_callback(lambda done: called.append(done.done()))
        before = future.done()
        del promise
        gc.collect()
        return before, future.done(), called, type(future.exception(timeout=1)).__mro__[-4].__name__

    def fulfilled(ts: Any) -> Any:
        promise, future = ts.Promise.new()
        promise.set_result(4)
        del promise
        return future.result(timeout=1)

    assert dropped(fsstore)[:3] == dropped(tensorstore)[:3] == (False, True, [True])
    alike(fulfilled)
    promise, future = fsstore.Promise.new()
    del promise
    with pytest.raises(OutcomeUnknownError, match="dropped without a result"):
        future.result(timeout=1)


def _memory(ts: Any, **options: Any) -> Any:
    kvstore = {"driver": "zarr3", "kvstore": {"driver": "memory"}}
    return ts.open(kvstore, create=True, dtype="int32", shape=[4], **options).result()


def test_copies_of_stores():
    """A copy of an array is itself; a deep copy of a store in memory is another store, with nothing in it."""

    def copies(ts: Any) -> Any:
        store = _memory(ts)
        store.write(3).result()
        deep, again = copy.deepcopy((store, store[1:]))
        before = deep.read().result().tolist()
        deep.write(5).result()
        return (copy.copy(store) is store, before, store.read().result().tolist(), again.read().result().tolist())

    def of_keys(ts: Any) -> Any:
        store = ts.KvStore.open("memory://").result()
        store["a"] = b"x"
        deep = copy.deepcopy(store)
        return (copy.copy(store) is store, copy.copy(store).read("a").result().value, deep.read("a").result().state)

    alike(copies)
    alike(of_keys)


def _cached(ts: Any, place: str) -> Any:
    context = ts.Context({"cache_pool": {"total_bytes_limit": 10**8}})
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": place}}
    return ts.open(
        spec, create=True, open=True, dtype="int32", shape=[4], context=context, recheck_cached_data=False
    ).result()


def _behind(ts: Any, place: str, value: int) -> None:
    ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": place}}).result().write(value).result()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_caches_of_copies(tmp_path: Any, duplicate: Show):
    """Two stores pickled or copied together share one cache, apart from that of the first; one alone has its own."""

    def seen(ts: Any) -> Any:
        place = f"{tmp_path / ts.__name__}/"
        store = _cached(ts, place)
        store.write(3).result()
        store.read().result()
        first, second = duplicate((store, store[1:]))
        first.read().result()
        _behind(ts, place, 9)
        alone = duplicate(store)
        return [each.read().result().tolist() for each in (store, first, second, alone)]

    alike(seen)
    assert seen(fsstore)[1] == [3] * 4


_VALUES = (
    object(), 3, "x", None, 1 + 2j, {"a": object()}, [object()], set(), 2**64, -(2**63) - 1, 2**63, (1, 2), True, 1.5,
    ["a", "b"], ["a", 1], ["a", None], [1, [2]], [[1], [2]], [{"a": 1}, 2], [["a", "b"], ["c", "d"]],
    np.array(["a", "b"]), np.array(["a", "b"], object), np.array(["a", 1], object), np.array([1, 2]), np.array([1j, 2]),
    np.array([1, object()], object), np.str_("a"), [np.str_("a"), "b"], np.array([2**64, 1], object), "\ud800x"[1:],
)  # fmt: skip


@pytest.mark.parametrize("shape", [(2,), (2, 2)])
@pytest.mark.parametrize("name", ["json", "ustring", "string"])
def test_elements_of_a_wrong_type(name: str, shape: tuple[int, ...]):
    """JSON, text and octets take what TensorStore takes, and refuse with the same kind of error, changing nothing."""
    first = {"json": 0, "ustring": "q", "string": b"q"}[name]

    def write(value: Any, ts: Any) -> str:
        store = ts.array(np.full(shape, first, object), dtype=getattr(ts, name))
        said = outcome(lambda: store.write(value).result(), message=False)
        return f"{said} {store.read().result().tolist()!r}"

    for value in _VALUES:
        alike(lambda ts, value=value: write(value, ts), message=False)


def test_octets_are_no_json():
    """Bytes are refused as JSON, where TensorStore makes lists of integers of them."""
    store = fsstore.array(np.array([1, 2], object), dtype=fsstore.json)
    for wrong in (b"x", [1, b"x"], {"a": b"x"}, {1: 2}, bytearray(b"x")):
        with pytest.raises(TypeError):
            store.write(wrong)
    with pytest.raises(UnicodeEncodeError):
        store.write("\ud800")
    assert store.read().result().tolist() == [1, 2]


@pytest.mark.parametrize("value", [[1, 2], {"a": [1, None]}, "x", 5, np.array([1, 2]), (1, "a"), True])
def test_a_json_document_is_one_value(value: Any):
    """A list written to a document is one value, also as an array."""

    def written(ts: Any) -> Any:
        store = ts.open({"driver": "json", "kvstore": "memory://a"}).result()
        store.write(value).result()
        return store.read().result()

    alike(written)


_ARRAYS: tuple[tuple[Any, dict[str, Any]], ...] = tuple(
    itertools.product(
        (np.array([1, 2]), [1, 2], "read-only"),
        (
            {}, {"write": True}, {"write": False}, {"copy": False, "write": True}, {"copy": True}, {"copy": False},
            {"dtype": "int8"}, {"dtype": "int8", "write": True}, {"copy": True, "write": False},
        ),
    )
)  # fmt: skip


@pytest.mark.parametrize("place", range(len(_ARRAYS)))
def test_arrays_that_may_not_be_changed(place: int):
    """`array` copies a read-only array that is to be written, and says so where it may not; types cast safely."""
    given, options = _ARRAYS[place]

    def made(ts: Any) -> Any:
        array = np.array([1, 2]) if isinstance(given, str) else copy.copy(given)
        if isinstance(given, str):
            array.setflags(write=False)
        kind = {"dtype": getattr(ts, options["dtype"])} if "dtype" in options else {}
        store = ts.array(array, **{**options, **kind})
        if store.writable:
            store.write(7).result()
        return store.mode, np.asarray(array).tolist(), store.read().result().tolist()

    alike(made)


def test_values_inside_json():
    """Data types, domains, layouts, units, transforms, codecs and NumPy's numbers stand for their JSON."""
    base = {"driver": "zarr3", "kvstore": {"driver": "memory"}}
    for make in (
        lambda ts: ts.Spec({**base, "dtype": ts.int32}).to_json(),
        lambda ts: ts.Spec({**base, "schema": {"dtype": ts.int32}}).to_json(),
        lambda ts: ts.Spec({**base, "kvstore": ts.KvStore.Spec("memory://a")}).to_json(),
        lambda ts: ts.Spec({"driver": "cast", "base": ts.Spec(base), "dtype": "int8"}).to_json(),
        lambda ts: ts.Spec({**base, "schema": ts.Schema(dtype=ts.int32)}).to_json(),
        lambda ts: ts.Spec({**base, "context": ts.Context.Spec({"cache_pool": {"total_bytes_limit": 3}})}).to_json(),
        lambda ts: ts.Spec({**base, "transform": ts.IndexTransform(2)}).to_json(),
        lambda ts: ts.Spec({**base, "schema": {"domain": ts.IndexDomain(shape=[2])}}).to_json(),
        lambda ts: ts.Schema({"dimension_units": [ts.Unit("3nm")]}).to_json(),
        lambda ts: ts.Schema({"rank": 1, "chunk_layout": ts.ChunkLayout(chunk_shape=[3])}).to_json(),
        lambda ts: ts.Schema({"codec": ts.CodecSpec({"driver": "zarr3"})}).to_json(),
        lambda ts: ts.Schema({"rank": np.int64(1)}).to_json(),
        lambda ts: ts.Schema({"chunk_layout": {"read_chunk": {"shape": np.array([1, 2])}}}).to_json(),
        lambda ts: ts.ChunkLayout({"read_chunk": {"shape": (1, np.int8(2))}}).to_json(),
        lambda ts: ts.Context.Spec({"cache_pool": {"total_bytes_limit": np.int64(3)}}).to_json(),
        lambda ts: ts.Spec({**base, 1: 2}),
    ):
        alike(make)


@pytest.mark.parametrize("minimal", [True, False, None, 1])
def test_minimal_specs(minimal: Any):
    """`spec(minimal_spec=...)` leaves out what opening finds, and `update` does too."""
    alike(lambda ts: _memory(ts).spec(minimal_spec=minimal).to_json())

    def updated(ts: Any) -> Any:
        spec = _memory(ts).spec()
        spec.update(minimal_spec=bool(minimal))
        return spec.to_json()

    alike(updated)


def test_paths_that_are_no_text():
    r"""Paths that are not UTF-8 are quoted in URLs and with `\x` in what is printed."""

    def places(ts: Any) -> Any:
        store = ts.KvStore.open("memory://").result()
        store.path = b"\xff/"
        store.write("a", b"x").result()
        array = ts.open({"driver": "zarr3"}, kvstore=store, create=True, dtype=ts.int8, shape=[2]).result()
        again = pickle.loads(pickle.dumps(array))
        return (store.url, repr(store.spec()), store.read("a").result().value, array.url, repr(array), again.url)

    alike(places)


class _Source:
    """A read function that can hold its own store."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.held: Any = None

    def __call__(self, domain: Any, out: Any, told: Any) -> None:
        self.told.append(type(told.batch).__name__)
        out[...] = 1


def _virtual(ts: Any, source: _Source) -> Any:
    return ts.virtual_chunked(source, dtype=ts.int32, domain=ts.IndexDomain(shape=[4]))


@pytest.mark.parametrize("converted", [False, True])
def test_virtual_arrays_hand_on_the_batch(converted: bool):
    """The function hears of the batch of a read, below a conversion of type too."""

    def told(ts: Any) -> list[str]:
        source = _Source()
        store = _virtual(ts, source)
        store = ts.cast(store, ts.float32) if converted else store
        with ts.Batch() as batch:
            reading = store.read(batch=batch)
        reading.result()
        return source.told

    alike(told)


@pytest.mark.parametrize("hold", [lambda store: store, lambda store: store.spec()])
def test_cycles_through_virtual_arrays(hold: Show):
    """A function that holds its own store or spec is collected with it, and specs can be referenced weakly."""

    def collected(ts: Any) -> bool:
        source = _Source()
        source.held = hold(_virtual(ts, source))
        reference, held = weakref.ref(source), weakref.ref(source.held)
        del source
        gc.collect()
        return reference() is None and held() is None

    alike(collected)
    assert collected(fsstore)


def test_everything_can_be_referenced_weakly():
    """Values and stores alike."""
    store = _memory(fsstore)
    promise, future = fsstore.Promise.new()
    for each in (
        store, store.spec(), store.schema, store.domain, store.chunk_layout, store.codec, store.kvstore, future, promise,
        store.kvstore.spec(), fsstore.Dim(3), fsstore.int32, fsstore.Unit("3nm"), fsstore.Transaction(), fsstore.Batch(),
        fsstore.Context(), fsstore.Context.Spec({}), fsstore.IndexTransform(2),
    ):  # fmt: skip
        assert weakref.ref(each)() is each


@pytest.mark.parametrize("wrong", ["yes", [], {}])
def test_whether_a_source_may_be_kept_is_a_flag(wrong: Any):
    """`can_reference_source_data_indefinitely` is a boolean."""
    alike(lambda ts: _memory(ts).write(3, can_reference_source_data_indefinitely=wrong).result(), message=False)
