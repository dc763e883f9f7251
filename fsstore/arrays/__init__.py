"""The objects that users hold: `Spec`, open, `TensorStore`, and the arrays that are made of other arrays.

A spec says where an array is and how it is opened; opening it asks the driver it names; the store is a thin face over
the driver's array and an index transform.

* `spec_value`: the value under a spec, its schema, and the options of open as types
* `spec_parse`: parsing specs: JSON objects, URL pipelines, stores; and keyword arguments that change a spec
* `spec`: the public class of specs, opening one, and the spec of an open array
* `store`: open, an open array or a view of one, and copying between two
* `protocols`: protocols of Python, NumPy and notebooks, indexing as NumPy means it, and values that may be written
* `layers`: arrays made of other arrays, stores over arrays and functions
"""
