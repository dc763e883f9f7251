"""Values that know nothing of storage: JSON, data types, units, URLs, registries, signatures of formats.

Everything here is a plain function or a frozen value.  Nothing waits, and nothing imports another package of fsstore.

* `detection`: telling a format by its files or bytes, and files compressed as a whole
* `dtype_names`: TensorStore's data types as attributes: int32, float64, json
* `dtypes`: data types of arrays: TensorStore's, and the NumPy types that zarr stores in the wild
* `json_value`: JSON values: reading with located errors, strict parsing, canonical writing; arguments of callers,
  values that may stand for JSON, and the layout of repr
* `registry`: names of drivers, formats and codecs, the places of their code, and the URLs that name them
* `units`: physical units of dimensions: a multiplier and a base unit, such as 4 nm
"""
