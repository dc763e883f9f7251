"""What calls take and refuse: positions, types of arguments and kinds of errors, the same as in TensorStore 0.1.86."""

import ast
import asyncio
import copy
import importlib.util
import inspect
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import tensorstore

import fsstore

STUBS = Path(importlib.util.find_spec("tensorstore").origin).with_name("__init__.pyi")
KINDS = (KeyError, IndexError, TimeoutError, NotImplementedError, OverflowError, ValueError, TypeError)


def array(ts):
    """Return an array with something in it."""
    layout = ts.ChunkLayout(chunk_shape=[4, 3])
    store = ts.open(
        {"driver": "zarr3", "kvstore": "memory://a/"},
        create=True,
        dtype="int32",
        shape=[10, 6],
        chunk_layout=layout,
        fill_value=7,
    ).result()
    store[:4].write(np.arange(24, dtype="i4").reshape(4, 6)).result()
    return store


def keys(ts):
    """Return a key-value store with a key."""
    store = ts.KvStore.open("memory://p/").result()
    store["a"] = b"value"
    return store


SETUPS = {
    array: """
s.resize(None, [4, None]).result().domain
s.resize(None, [4, None], True).result().read().result().tolist()
s.resize(None, [4, None], False, True).result().domain
s.resize(None, [12, None], False, False, True).result().domain
s.resize(None, [4, None], False, False, False, True).result().domain
s.resize(None, [4, None], False, False, False, False, True).result().domain
s.resize(exclusive_max=[4, None], expand_only="yes").result().domain
s.resize(exclusive_max=[4, None], expand_only=None, shrink_only=1).result().domain
s.resolve(True, None).result().domain
s.resolve(False, ts.Batch()).result(timeout=5).domain
s.resolve(batch=3)
s.read(batch=3)
s.read("C")
s.write(s, batch=3)
s.write(3, can_reference_source_data_indefinitely=None).result()
ts.open(s.spec(retain_context=True), batch=3)
s.mark_bounds_implicit["yes"]
s.mark_bounds_implicit["yes":True]
s.mark_bounds_implicit[1:None].domain
ts.d[0].mark_bounds_implicit["yes"]
ts.TensorStore.StorageStatistics(True)
ts.TensorStore.StorageStatistics(not_stored=True)
ts.TensorStore.StorageStatistics() == ts.TensorStore.StorageStatistics(not_stored=True)
ts.TensorStore.StorageStatistics(fully_stored=False) == ts.TensorStore.StorageStatistics(fully_stored=False)
len(s.storage_statistics(query_not_stored=True).result())
list(s.storage_statistics(query_not_stored=True).result())
ts.downsample(s, [2.5, 2], "mean")
ts.downsample(s, [2, 2], None)
ts.downsample(s, [2, 2], "nearest")
ts.stack([s, 5])
ts.concat([s, 5], axis=0)
ts.overlay([s, 5])
""",
    keys: """
s / 5
s + 5
s + b"x"
ts.KvStore.KeyRange(5)
ts.KvStore.KeyRange(b"a", "b")
ts.KvStore.open(5)
ts.KvStore.open("nope://x")
ts.KvStore.open({"driver": "memory", "nope": 1})
setattr(s, "path", 5)
setattr(s, "transaction", 5)
(setattr(s, "transaction", None), s.transaction)
(setattr(s, "transaction", ts.Transaction()), s.transaction.open, s["a"])
(setattr(s, "transaction", ts.Transaction()), setattr(s, "transaction", None))
""",
    lambda ts: np.zeros(3, "i4"): """
(ts.array(s).write(5).result(), s)
(ts.array(s, copy=True).write(5).result(), s)
(ts.array(s, copy=False).write(5).result(), s)
(ts.array(s, write=False).mode, ts.array(s, write=True).mode, ts.array(s, write=None).mode)
ts.array(s, write="yes")
ts.array(s, dtype="int64", copy=False)
ts.array([1, 2], copy=False)
(s.setflags(write=False), ts.array(s).mode)
(s.setflags(write=False), ts.array(s, write=True)[1:].write(5).result(), s)
(s.setflags(write=False), ts.array(s, write=True, copy=True).mode)
ts.open({"driver": "array", "array": [1, 2], "dtype": "int8"}, transaction=ts.Transaction()).result()
ts.open(ts.cast(ts.array(s), "int8").spec(), transaction=ts.Transaction()).result()
ts.array(s).with_transaction(ts.Transaction()).write(3).result()
ts.Spec({"driver": "cast", "dtype": "int8"})
ts.Spec({"driver": "downsample", "downsample_factors": [2], "downsample_method": "mean"})
isinstance(ts.FutureLike[int], type(ts.FutureLike))
ts.Batch(3)
""",
    lambda ts: ts.Spec({
        "driver": "zarr3", "metadata": {"shape": [4, 5], "data_type": "int8"}, "schema": {"fill_value": 3}
    }): """
(s.update(minimal_spec=True), s.to_json())
(s.update(minimal_spec=True, dtype="int8"), s.to_json())
s.update(minimal_spec=True, dtype="int16")
(s.update(minimal_spec=None), s.to_json())
(s[1:].copy().update(minimal_spec=True), s.to_json())
(v := s[1:, 2], v.update(minimal_spec=True), v.to_json())
(c := ts.cast(s, "int16"), c.update(minimal_spec=True), c.to_json())
(z := ts.Spec({"driver": "zarr", "metadata": {"chunks": [4, 5]}}), z.update(minimal_spec=True), z.to_json())
""",
}  # fmt: skip
CALLS = [pytest.param(setup, call, id=call) for setup, calls in SETUPS.items() for call in calls.strip().splitlines()]


def outcome(module, setup, call):
    """Return what a call gives as text, or the kind of its error, and its words where they are TensorStore's own."""
    names = {"ts": module, "s": setup(module), "np": np, "copy": copy}
    try:
        value = eval(call, names)
    except KINDS as error:
        kind = next(kind.__name__ for kind in KINDS if isinstance(error, kind))
        words = str(error).partition(" [")[0].partition("\n")[0]
        return f"{kind}: {words}" if kind in ("ValueError", "NotImplementedError") else kind
    return re.sub(r"<.* object at 0x\w+>", "<object>", repr(value))


@pytest.mark.parametrize(("setup", "call"), CALLS)
def test_calls(setup, call):
    """The call gives the same, or is refused with the same kind of error, and the same words if they are its own."""
    mine, theirs = (outcome(module, setup, call) for module in (fsstore, tensorstore))
    assert mine == theirs


def classes_with_setters():
    """Yield the path of each property that can be set, from the annotations that TensorStore carries."""

    def walk(node, path):
        for part in node.body:
            if isinstance(part, ast.ClassDef):
                yield from walk(part, [*path, part.name])
            elif isinstance(part, ast.FunctionDef) and any(
                "setter" in ast.unparse(mark) for mark in part.decorator_list
            ):
                yield ".".join([*path, part.name])

    yield from walk(ast.parse(STUBS.read_text(encoding="utf-8")), [])


PLAIN_RECORDS = ("KeyRange", "ReadResult", "TimestampedStorageGeneration", "OpenMode", "StorageStatistics")


def test_what_can_be_set():
    """Properties that TensorStore lets be set can be set, but for those of values that are made anew instead."""
    found = list(classes_with_setters())
    wanted = [path for path in found if path.split(".")[-2] not in PLAIN_RECORDS]
    assert len(wanted) > 5
    for path in wanted:
        owner = fsstore
        for name in path.split("."):
            owner = inspect.getattr_static(owner, name) if owner is not fsstore else getattr(owner, name)
        assert isinstance(owner, property), path
        assert owner.fset is not None, path


def positions(signatures):
    """Return the longest list of arguments by position in signatures."""
    return max(signatures, key=len)


def signatures_of_methods():
    """Yield the path of each function and the arguments by position of each of its overloads."""
    found = {}

    def walk(node, path):
        for part in node.body:
            if isinstance(part, ast.ClassDef):
                walk(part, [*path, part.name])
            elif isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                given = [each.arg for each in (*part.args.posonlyargs, *part.args.args)]
                own = [name for name in given if name not in ("self", "cls")]
                found.setdefault(".".join([*path, part.name]), []).append(own)

    walk(ast.parse(STUBS.read_text(encoding="utf-8")), [])
    return found.items()


def test_positions():
    """What TensorStore takes by position is taken by the same position."""
    seen = 0
    for path, overloads in signatures_of_methods():
        owner = fsstore
        for name in path.split("."):
            owner = getattr(owner, name, None)
        if not callable(owner):
            continue  # properties, and names that are left out, which other tests compare
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        mine = [each.name for each in inspect.signature(owner).parameters.values() if each.kind in kinds]
        theirs = positions(overloads)
        assert [name for name in mine if name != "self"][: len(theirs)] == theirs, path
        seen += 1
    assert seen > 70


def test_copies_in_batches():
    """A copy of a store that joins a batch reads when that is submitted, and not before."""
    for module in (fsstore, tensorstore):
        source = array(module)
        target = module.open("memory://|zarr3:", create=True, dtype="int32", shape=[10, 6], fill_value=0).result()
        batch = module.Batch()
        written = target.write(source, batch=batch)
        assert not written.copy.done()
        assert not written.done()
        assert not target.read().result().any()
        batch.submit()
        written.result(timeout=20)
        assert target.read().result().tolist() == source.read().result().tolist()
    with pytest.raises(ValueError, match="already submitted"):
        fsstore.array([1]).read(batch=_submitted())


def _submitted():
    batch = fsstore.Batch()
    batch.submit()
    return batch


VALUES = [
    *(5, -5, 0, 1, 2, 5.0, 5.5, 1e30, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, True, False, None, {"a": 1}),
    *("5", "-5", "+5", " 5 ", "5.0", "1e3", "1_0", "true", "false", "True", "nan", "-Infinity", "", "x", "٥", "YQ=="),
]
NUMBERS = (
    *("bool", "int2", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e5m2", "string", "ustring"),
)


def from_json(module, value, name):
    """Return what a JSON value is as an element of another type, read through `cast` and made by the driver `array`."""
    seen = []
    document = module.open({"driver": "json", "kvstore": "memory://j"}).result()
    document.write(value).result()
    for open_one in (
        lambda: module.cast(document, name),
        lambda: module.open({"driver": "array", "array": value, "dtype": name, "rank": 0}).result(),
    ):
        try:
            seen.append(repr(open_one().read().result()[()]))
        except ValueError as error:
            seen.append(str(error).partition(" [")[0].partition("in the range")[0])
    return seen


@pytest.mark.parametrize("name", NUMBERS)
def test_elements_of_json(name):
    """JSON values become elements of other types as in TensorStore, or are refused in its words."""
    for value in VALUES:
        mine, theirs = (from_json(module, value, name) for module in (fsstore, tensorstore))
        assert mine == theirs, json.dumps(value)


UNDER_WAY = {
    "Future": lambda ts: ts.Future(3),
    "WriteFutures": lambda ts: array(ts).write(3),
    "ReadFuture": lambda ts: ts.KvStore.open("memory://").result().read("a"),
    "Promise": lambda ts: ts.Promise.new()[0],
    "Batch": lambda ts: ts.Batch(),
    "Transaction": lambda ts: ts.Transaction(),
}


@pytest.mark.parametrize("make", UNDER_WAY.values(), ids=UNDER_WAY)
def test_what_is_under_way_is_neither_pickled_nor_copied(make):
    """It is refused at once, not when it is loaded."""
    for module in (fsstore, tensorstore):
        for refused in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=rf"cannot pickle '{module.__name__}\.\w+' object"):
                refused(make(module))


def test_annotations():
    """`FutureLike` and `Future` may be subscripted in annotations that are evaluated."""

    async def answer() -> int:
        return 3

    def take(value: fsstore.FutureLike[int]) -> fsstore.Future[int]:
        return fsstore.Future(value)

    async def run():
        return [await take(value) for value in (3, fsstore.Future(3), answer())]

    assert asyncio.run(run()) == [3, 3, 3]
    assert inspect.signature(take).parameters["value"].annotation == fsstore.FutureLike[int]


def test_fill_values_that_differ_from_place_to_place():
    """Opening an array with a fill value of several elements is refused in words of the driver, not of NumPy."""
    for module in (fsstore, tensorstore):
        place = array(module).kvstore
        with pytest.raises(ValueError, match='Error opening "zarr3" driver'):
            module.open({"driver": "zarr3"}, kvstore=place, fill_value=[7, 7, 7, 7, 7, 8]).result()
