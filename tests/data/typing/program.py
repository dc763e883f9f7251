"""A small program of a user: lines that end in `# wrong` hold a mistake that type checkers must find, others none."""

from typing import Any, assert_type

import numpy as np

import fsstore as ts
import fsstore.sync as fs

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
ts.Schema(dtype=ts.int32, chunk_layout=ts.ChunkLayout(write_chunk_shape=[1, 2]), dimension_units=["4nm", None])
store.write(np.zeros((4, 5))).result()
store[0] = 3
store.spec(minimal_spec=True).update(create=True)

halves = fs.open("memory://b/", data=np.zeros((4, 5), np.float32))
assert_type(halves, fs.StoredArray[np.float32])
assert_type(halves[1:, -1], np.ndarray[Any, np.dtype[np.float32]])
assert_type(halves[[0, -1]], np.ndarray[Any, np.dtype[np.float32]])
assert_type(halves.oindex[[0, 2], :], np.ndarray[Any, np.dtype[np.float32]])
assert_type(halves.dtype, np.dtype[np.float32])
assert_type(halves.append(np.ones((1, 5)), axis=0), tuple[int, ...])
assert_type(fs.open("memory://b/", mode="r"), fs.StoredArray[Any])
group = fs.open_group("memory://c/", mode="a")
assert_type(group, fs.StoredGroup)
assert_type(group.create_array("t", shape=(4,), dtype="f4"), fs.StoredArray[Any])
assert_type(group.create_group("g"), fs.StoredGroup)
assert_type(group.array("t"), fs.StoredArray[Any])
assert_type(group.subgroup("g"), fs.StoredGroup)
assert_type(group.arrays(), dict[str, fs.StoredArray[Any]])
assert_type(list(group), list[str])
halves[-1] = 3
assert_type(ts.save("memory://e/", np.zeros(3, np.int16)), fs.StoredArray[np.int16])
ts.open(spec, create=True, codec={"name": "zstd", "level": 9}).result()
store.resize([8, 10]).result()
print(ts.copy(store, "memory://d/", chunks=(2, 5), codec="gzip").result().tasks)
group["values"] = [1, 2]

ts.open(spec, creat=True)  # wrong
ts.open(spec, create="yes")  # wrong
ts.open(5)  # wrong
store.mean()  # wrong
halves.mean()  # wrong
ts.copy(store, "memory://d/", chunk=(2, 5))  # wrong
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
halves["x"]  # wrong
halves[1.5]  # wrong
halves[1:].shap  # wrong
fs.open("memory://b/", mode="rw")  # wrong
fs.open("memory://b/", shap=(4,))  # wrong
fs.open_group("memory://c/", zarr_format=4)  # wrong
group[3]  # wrong
group.array("t").result()  # wrong
