"""A small program of a user: lines that end in `# wrong` hold a mistake that type checkers must find, others none."""

from typing import Any, assert_type

import numpy as np

import fsstore as ts

spec: dict[str, Any] = {"driver": "zarr3", "kvstore": "memory://a/"}
store = ts.open(spec, create=True, dtype="uint16", shape=[4, 5]).result()
assert_type(store, ts.TensorStore)
assert_type(ts.open("memory://a/|zarr3:", dtype=np.dtype("u2"), open=True).result(), ts.TensorStore)
assert_type(store[1:3, ..., ts.newaxis], ts.TensorStore)
assert_type(store.oindex[[0, 2], :].T, ts.TensorStore)
assert_type(store[ts.d[0].translate_to[5]], ts.TensorStore)
assert_type(store.read().result(), np.ndarray[Any, np.dtype[Any]])
assert_type(store.shape, tuple[int, ...])
assert_type(ts.cast(store, ts.float32), ts.TensorStore)
assert_type(ts.cast(ts.Spec(spec), ts.float32), ts.Spec)
assert_type(ts.downsample(store, [2, 1], "mean"), ts.TensorStore)
assert_type(ts.stack([store, store], read=True), ts.TensorStore)
assert_type(ts.KvStore.open("memory://").result()["key"], bytes)
ts.Schema(
    dtype=ts.int32, chunk_layout=ts.ChunkLayout(write_chunk_shape=[1, 2]), dimension_units=["4nm", None]
)
store.write(np.zeros((4, 5))).result()
store[0] = 3
store.spec(minimal_spec=True).update(create=True)

ts.open(spec, creat=True)  # wrong
ts.open(spec, create="yes")  # wrong
ts.open(5)  # wrong
store.read(order="Q")  # wrong
store["x"]  # wrong
store.read().result().shap  # wrong
ts.Schema(fill=3)  # wrong
ts.ChunkLayout(chunk_shapes=[1, 2])  # wrong
ts.downsample(store, [2], "average")  # wrong
ts.stack([store], axis="x")  # wrong
ts.cast(store)  # wrong
store.resolve(fix=True)  # wrong
ts.KvStore.open("memory://").result().write("key", 3)  # wrong
ts.arrray([1])  # wrong
