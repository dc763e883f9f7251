"""The objects that users hold: `Spec`, open, `TensorStore`, and the arrays that are made of other arrays.

A spec says where an array is and how it is opened; opening it asks the driver it names; the store is a thin face over
the driver's array and an index transform.

* `bound_spec`: what an open array says of itself: the spec that opens it again, with its resources bound
* `copying`: copying between open stores: which dimension of the source goes where, and which data types convert
  unasked
* `habits`: what people type who come from numpy, zarr-python and dask, and how much of an array is stored
* `html`: A picture of a store for notebooks: its facts in a table, and its domain with the chunk grid drawn to
  scale
* `layers`: stack, concat, overlay and downsample: arrays made of others, without copying
* `open_spec`: opening a spec whose resources are bound, and the layers of composites
* `opening`: open: from a spec and keyword arguments to an open array, as users hold it
* `options`: what open, Spec.update and TensorStore.spec take, as types
* `spec`: where an array is and how it is opened: Spec, the face of the value
* `spec_options`: the keyword arguments of open and Spec.update: what they change in a spec
* `spec_parse`: parsing array specs: JSON objects, URL pipelines, and key-value stores whose format is to be
  detected
* `spec_schema`: constraints in specs: which of them an adapter keeps, and which it hands down
* `spec_value`: what a spec says: the value that the library works with
* `store`: an open array, or a view of one
* `wrapping`: array, cast and virtual_chunked: stores over arrays, other stores and functions
"""
