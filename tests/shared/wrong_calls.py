"""Calls with arguments of every kind: each place of TensorStore's interface, beside each of a hundred values.

`x` stands for the value, `s` for an array, `k` for a key-value store.  What is compared is the class of what comes: a
value, or a built-in exception.
"""

from __future__ import annotations

import decimal
import fractions
import itertools
import pathlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from types import CodeType
from typing import Any

import numpy as np

__all__ = ["calls", "outcome"]

RETURNS = "a value"
_KINDS = (
    KeyError, IndexError, TimeoutError, NotImplementedError, RecursionError, RuntimeError, OverflowError, UnicodeError,
    AttributeError, ValueError, TypeError, MemoryError,
)  # fmt: skip

VALUES = r"""
None; True; False; 0; 1; -1; 3; 7; 2**31; 2**63; 2**70; -2**70; 1.5; -0.0; float("nan"); float("inf"); 1j; object()
""; "a"; "abc"; "int32"; "\ud800"; b""; b"a"; b"\xff"; bytearray(b"a"); memoryview(b"a"); object; int; len; lambda: 1
[]; [1]; [1, 2]; [0, -1]; [1, 2, 3]; ["a"]; ["a", "b"]; [None]; [1.5]; [object()]; [[1, 2]]; [True, False]; ["\ud800"]
(); (1,); (1, 2); ("a", "b"); (b"a", b"b"); {}; {"a": 1}; {1: 2}; {"driver": "zarr3"}; {"rank": 1}; {"a": object()}
set(); {1}; {1, 2}; frozenset([1]); range(2); iter([1, 2]); {1: 2}.keys(); ValueError("a"); ValueError; ts; np; ...
np.int64(1); np.uint8(3); np.float32(1.5); np.bool_(True); np.str_("a"); np.bytes_(b"a"); np.datetime64("2020")
np.array(1); np.array([1, 2]); np.array([1.5]); np.array(["a"]); np.array([None]); np.array([[1, 2]]); np.array([], int)
np.array([True, False]); np.dtype("i4"); np.dtype("M8[s]"); slice(None); slice(1, 2); slice("a", "b"); datetime.min
decimal.Decimal(1); fractions.Fraction(1, 2); timedelta(1); pathlib.PurePath("a"); ts.d; ts.d[0]; ts.d[0][1]; ts.Dim(3)
ts.IndexDomain(2); ts.IndexDomain(shape=[3, 4]); ts.IndexTransform(2); ts.Schema(rank=1); ts.ChunkLayout(); ts.OpenMode()
ts.ChunkLayout.Grid(); ts.CodecSpec({"driver": "zarr3"}); ts.Unit("nm"); ts.int32; ts.json; ts.KvStore.Spec("memory://")
ts.Spec({"driver": "zarr3", "kvstore": "memory://"}); keys(ts); array(ts); ts.Context(); ts.Context.Spec({}); ts.Batch()
ts.Transaction(); ts.Future(3); ts.Promise.new()[0]; ts.KvStore.KeyRange("a", "b"); ts.OutputIndexMap(1)
ts.KvStore.TimestampedStorageGeneration()
"""

_OPTIONS = (
    "open_mode open create delete_existing assume_metadata assume_cached_metadata context recheck_cached_metadata"
    " recheck_cached_data recheck_cached rank domain shape dtype chunk_layout codec fill_value dimension_units schema"
)
_BOUNDS = "shape inclusive_min exclusive_max inclusive_max labels implicit_lower_bounds implicit_upper_bounds"

# What is called, with `{}` where the arguments behind it are given by name.
BY_NAME = {
    "ts.open(SPEC, create=True, dtype='int8', {}).result(timeout=2)": "shape domain",
    "ts.open(SPEC, create=True, shape=[3], {}).result(timeout=2)": "dtype",
    "new(ts, {}).result(timeout=2)": _OPTIONS + " read write transaction batch kvstore",
    "ts.Spec(SPEC).update({})": _OPTIONS + " kvstore unbind_context strip_context minimal_spec",
    "ts.Schema({})": "rank dtype domain shape chunk_layout codec fill_value dimension_units schema",
    "ts.Schema(rank=2).update({})": "rank dtype domain shape chunk_layout codec fill_value dimension_units schema",
    "ts.ChunkLayout({})": "rank inner_order inner_order_soft_constraint grid_origin grid_origin_soft_constraint finalize"
    " chunk write_chunk read_chunk codec_chunk chunk_shape chunk_shape_soft_constraint read_chunk_aspect_ratio"
    " write_chunk_elements codec_chunk_shape chunk_elements_soft_constraint",
    "ts.ChunkLayout(rank=2).update({})": "chunk_shape read_chunk inner_order finalize",
    "ts.ChunkLayout.Grid({})": "rank shape shape_soft_constraint aspect_ratio aspect_ratio_soft_constraint elements"
    " elements_soft_constraint",
    "ts.OpenMode({})": "open create delete_existing assume_metadata assume_cached_metadata",
    "ts.Context({})": "parent",
    "ts.IndexDomain({})": "rank json " + _BOUNDS,
    "ts.IndexTransform({})": "output json input_rank input_shape input_inclusive_min input_exclusive_max"
    " input_inclusive_max input_labels implicit_lower_bounds implicit_upper_bounds",
    "ts.Dim({})": "size inclusive_min exclusive_max inclusive_max label implicit_lower implicit_upper",
    "ts.Dim(3, {})": "label implicit_lower implicit_upper",
    "ts.OutputIndexMap({})": "offset input_dimension stride index_array index_range",
    "ts.OutputIndexMap(input_dimension=0, {})": "offset stride",
    "ts.OutputIndexMap(index_array=[1, 2], {})": "offset stride index_range",
    "ts.Transaction({})": "atomic repeatable_read",
    "ts.KvStore.open('memory://', {}).result(timeout=2)": "context transaction",
    "ts.KvStore.KeyRange({})": "inclusive_min exclusive_max",
    "ts.KvStore.ReadResult({})": "state value stamp",
    "ts.KvStore.TimestampedStorageGeneration({})": "generation time",
    "k.read('a', {}).result(timeout=2)": "if_equal if_not_equal staleness_bound byte_range batch",
    "k.write('a', b'', {}).result(timeout=2)": "if_equal",
    "k.list({}).result(timeout=2)": "range strip_prefix_length",
    "k.spec({})": "retain_context unbind_context strip_context",
    "k.spec().update({})": "context unbind_context strip_context",
    "k.spec().to_json({})": "include_defaults",
    "k.experimental_copy_range_to(k, {}).result(timeout=2)": "source_range target_prefix",
    "s.read({}).result(timeout=2)": "order batch",
    "s.write(1, {}).result(timeout=2)": "batch can_reference_source_data_indefinitely",
    "s.resize({}).result(timeout=2)": "inclusive_min exclusive_max resize_metadata_only resize_tied_bounds expand_only shrink_only",
    "s.resolve({}).result(timeout=2)": "fix_resizable_bounds batch",
    "s.spec({})": "open_mode open create delete_existing assume_metadata retain_context unbind_context strip_context"
    " minimal_spec context",
    "s.spec().to_json({})": "include_defaults",
    "s.schema.to_json({})": "include_defaults",
    "s.chunk_layout.to_json({})": "include_defaults",
    "s.codec.to_json({})": "include_defaults",
    "ts.Context.Spec({}).to_json({})": "include_defaults",
    "s.storage_statistics({}).result(timeout=2)": "query_not_stored query_fully_stored",
    "ts.array([1, 2], {})": "dtype context copy write",
    "ts.virtual_chunked(print, dtype=ts.int8, {})": "shape domain write_function loop rank chunk_layout dimension_units"
    " schema context transaction",
    "ts.virtual_chunked(print, shape=[3], {})": "dtype",
    "ts.stack([s, s], {})": "axis domain shape dimension_units schema dtype context read write transaction rank",
    "ts.concat([s, s], {})": "axis dtype context read write transaction rank",
    "ts.overlay([s, s], {})": "dtype domain shape context read write transaction rank dimension_units schema",
    "ts.downsample(s, {})": "downsample_factors method",
    "ts.downsample(s, [2, 1], {})": "method",
    "ts.cast(s, {})": "dtype",
    "ts.Future(3).result({})": "timeout deadline",
    "ts.Future(3).exception({})": "timeout deadline",
    "ts.experimental_collect_matching_metrics('/none', {})": "include_zero_metrics",
}

PLACED = r"""
ts.open(x).result(timeout=2); ts.Spec(x); ts.Spec({"driver": x}); ts.Spec({**SPEC, "kvstore": x}); ts.Spec({**SPEC, "transform": x})
ts.Spec({**SPEC, "schema": x}); ts.Spec({**SPEC, "dtype": x}); ts.Spec({**SPEC, "metadata": x}); ts.Spec({**SPEC, "open": x})
ts.Spec({**SPEC, "recheck_cached_data": x}); ts.Spec({**SPEC, "context": x}); ts.Spec({**SPEC, "rank": x}); ts.Schema(x)
ts.Spec({**SPEC, "metadata": {"shape": x}}); ts.Spec({**SPEC, "metadata": {"codecs": x}}); ts.Schema({"rank": x})
ts.Schema({"dtype": x}); ts.Schema({"domain": x}); ts.Schema({"fill_value": x}); ts.Schema({"dimension_units": x})
ts.Schema({"chunk_layout": x}); ts.Schema({"codec": x}); ts.ChunkLayout(x); ts.ChunkLayout({"chunk": x}); ts.CodecSpec(x)
ts.ChunkLayout({"chunk": {"shape": x}}); ts.ChunkLayout({"inner_order": x}); ts.ChunkLayout.Grid(x); ts.dtype(x)
ts.CodecSpec({"driver": "zarr3", "codecs": x}); ts.Unit(x); ts.Unit(x, "nm"); ts.Unit(1, x); ts.Unit("3nm") * x
ts.Unit("3nm") / x; ts.Context(x); ts.Context.Spec(x); ts.Context()[x]; ts.Context({"cache_pool": x}); ts.OpenMode(x)
ts.IndexDomain(x); ts.IndexDomain(json=x); ts.IndexTransform(json=x); ts.Dim(x); ts.Dim(1, x)
ts.OutputIndexMap(x); ts.OutputIndexMap(1, x); ts.IndexTransform(2, output=[x]); ts.KvStore.open(x).result(timeout=2); ts.d[x]
ts.IndexDomain([x]); ts.IndexDomain(2)[x]; ts.IndexDomain(2).index_exp[0:1]; x in ts.IndexDomain(2); x in ts.Dim(3)
ts.KvStore.Spec(x); ts.KvStore.Spec({"driver": "memory", "path": x}); ts.KvStore.Spec("memory://") / x
ts.KvStore.Spec("memory://") + x; k / x; k + x; k[x]; x in k; k.read(x).result(timeout=2); k.write(x, b"").result(timeout=2); k.spec() / x
k.write("a", x).result(timeout=2); k.delete_range(x).result(timeout=2); k.list(x).result(timeout=2); k.experimental_copy_range_to(x).result(timeout=2)
k.with_transaction(x); setattr(k, "path", x); k.__setitem__("a", x); k.__setitem__(x, b""); k.__delitem__(x)
ts.KvStore.KeyRange(x); ts.KvStore.KeyRange("a", x); ts.KvStore.ReadResult(x); ts.KvStore.TimestampedStorageGeneration(x)
ts.KvStore.KeyRange("a", "b").copy(); s[x]; s.oindex[x]; s.vindex[x]; s[x, 0]; s.oindex[x, 0]; s.vindex[x, 0]; s(x)
s.label[x]; s.translate_by[x]; s.translate_to[x]; s.translate_backward_by[x]; s.mark_bounds_implicit[x]; s.transpose(x)
s.transpose[x]; s.astype(x); s.with_transaction(x); s.write(x).result(timeout=2); s.__setitem__(0, x); s.__setitem__(x, 1)
s.read(x).result(timeout=2); s.resize(x).result(timeout=2); np.asarray(s, x); s.spec()[x]; s.spec().transpose[x]; s.schema[x]; s.domain[x]
s.domain.label[x]; s.domain.translate_by[x]; s.domain.transpose[x]; s.domain.hull(x); s.domain.intersect(x)
s.domain.mark_bounds_implicit[x]; s.domain(x); ts.Dim(3).hull(x); ts.Dim(3).intersect(x); setattr(ts.Dim(3), "label", x)
setattr(ts.Dim(3), "implicit_lower", x); t[x]; t(x); t.oindex[x]; t.vindex[x]; t.label[x]; t.translate_by[x]; t.transpose[x]
t[ts.d[0][x]]; t[ts.d[0].label[x]]; t[ts.d[0].translate_by[x]]; t[ts.d[0].translate_to[x]]; t[ts.d[0].stride[x]]
t[ts.d[0].transpose[x]]; t[ts.d[0].mark_bounds_implicit[x]]; t[ts.d[0].oindex[x]]; t[ts.d[0].vindex[x]]; t[ts.d[x][0]]
t[ts.d[0, x][0]]; t[ts.d[x:].label["a", "b"]]; t[0:x]; t[x:2]; t[0:2:x]; t[ts.d[:x][0]]; ts.Future(x).result(timeout=2)
ts.Future(3).result(x); ts.Future(3).exception(x); ts.Future(3).add_done_callback(x); ts.Future(3).remove_done_callback(x)
ts.Promise.new()[0].set_result(x); ts.Promise.new()[0].set_exception(x); ts.Promise.new(x); ts.Promise(x); ts.Batch(x)
ts.Transaction(x); ts.array(x); ts.array([1], x); ts.array([1], dtype=x); ts.cast(x, ts.int8); ts.cast(s, x); ts.stack(x)
ts.stack([x]); ts.stack([s], x); ts.concat(x, 0); ts.concat([x], 0); ts.concat([s, s], x); ts.overlay(x); ts.overlay([x])
ts.downsample(x, [1], "mean"); ts.downsample(s, x, "mean"); ts.downsample(s, [2, 1], x); ts.experimental_update_verbose_logging(x)
ts.virtual_chunked(x, dtype=ts.int8, shape=[3]); ts.experimental_collect_matching_metrics(x)
ts.experimental_collect_prometheus_format_metrics(x); ts.KvStore(x); ts.TensorStore(x); ts.int32 == x; ts.d[0] == x
s == x; k == x; s.spec() == x; k.spec() == x; s.domain == x; s.domain[0] == x; t == x; t.output[0] == x; t.output == x
s.schema == x; s.chunk_layout == x; s.codec == x; ts.Unit("nm") == x; ts.Context() == x; ts.Context.Spec({}) == x
ts.OpenMode() == x; ts.ChunkLayout.Grid() == x; ts.KvStore.KeyRange() == x; ts.Batch() == x; ts.Future(3) == x; t.output[x]
ts.KvStore.TimestampedStorageGeneration() == x; ts.KvStore.ReadResult() == x; ts.Transaction() == x; ts.OutputIndexMap(1) == x
ts.OpenMode(x, True); ts.int32(x); ts.bool(x); ts.json(x); s.chunk_layout.update(x); ts.Schema(rank=2).update(x)
ts.VirtualChunkedReadParameters(x); ts.WriteFutures(x); ts.DimExpression(x); ts.Indexable(x); ts.IndexDomain(2) + x
"""


def _array(ts: Any) -> Any:
    spec = {"driver": "zarr3", "kvstore": "memory://"}
    return ts.open(spec, create=True, dtype="int16", shape=[4, 3]).result()


def _keys(ts: Any) -> Any:
    store = ts.KvStore.open("memory://").result(timeout=2)
    store["a"] = b"value"
    return store


def _new(ts: Any, **options: Any) -> Any:
    return ts.open({"driver": "zarr3"}, **{"kvstore": ts.KvStore.Spec("memory://"), "create": True, **options})


# What TensorStore takes for an iterable without an end: it asks for one item after the other until memory is full.
_ENDLESS = ("ts.Schema(rank=1)", "ts.d[0][1]")
_ITERATED = ("ts.d[x]", "ts.IndexDomain(2)[x]", "s.domain[x]", "t[ts.d[x][0]]", "t[ts.d[0, x][0]]")


class _Names(dict[str, Any]):
    """What the text of a call refers to; a store is made when it is asked for."""

    def __missing__(self, name: str) -> Any:
        """Return a store or a transform."""
        make = {"s": _array, "k": _keys, "t": lambda ts: ts.IndexTransform(input_shape=[3, 4, 5])}[name]
        return make(self["ts"])


def _names(ts: Any) -> _Names:
    return _Names(
        ts=ts, np=np, decimal=decimal, fractions=fractions, pathlib=pathlib, datetime=datetime, timedelta=timedelta,
        SPEC={"driver": "zarr3", "kvstore": "memory://"}, keys=_keys, array=_array, new=_new,
    )  # fmt: skip


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.replace("\n", ";").split(";") if part.strip()]


def calls() -> Iterator[tuple[str, str]]:
    """Yield each call with each value, both as text; left out is what ends the process of TensorStore."""
    named = (call.replace("{}", f"{name}=x") for call, names in BY_NAME.items() for name in names.split())
    for call, value in itertools.product([*_split(PLACED), *named], _split(VALUES)):
        if value not in _ENDLESS or not (call in _ITERATED or "transpose" in call):
            yield call, value


@cache
def _compiled(text: str) -> CodeType:
    return compile(text, text, "eval")


def outcome(ts: Any, call: str, value: str) -> tuple[str, str]:
    """Return the classes of what a call gives, the first of which is the most special one, and its text."""
    names = _names(ts)
    names["x"] = eval(_compiled(value), {}, names)
    try:
        return RETURNS, repr(eval(_compiled(call), {}, names))[:200]
    except Exception as error:  # noqa: BLE001  # which is what is compared
        known = [kind.__name__ for kind in _KINDS if isinstance(error, kind)]
        return " ".join(known) or type(error).__name__, str(error).partition("\n")[0][:200]
