"""Values that know nothing of storage: JSON, data types, units, URLs, registries, signatures of formats.

Everything here is a plain function or a frozen value.  Nothing waits, and nothing imports another package of fsstore.

* `argument`: arguments of callers: flags, numbers of seconds, texts, or a TypeError that names them
* `attribute_types`: types of attributes, which JSON does not say
* `detection`: telling a format by the files of a directory, or by the first and last bytes of a file
* `dtype_names`: tensorStore's data types as attributes: int32, float64, json,
* `dtypes`: data types of arrays: TensorStore's, and the NumPy types that zarr stores in the wild
* `file_compression`: files compressed as a whole: gzip, zstd, bzip2, xz
* `foreign_format`: formats that are recognised without a driver of ours being needed: one table
* `json_like`: what may stand for JSON: mappings, tuples, NumPy numbers, and values that are written as JSON
* `json_value`: JSON values: reading with located errors, strict parsing, canonical writing
* `printing`: the layout of repr: JSON values printed as Python literals; and text for terminals
* `registry`: names of drivers, formats and codecs, and where their code is
* `units`: physical units of dimensions: a multiplier and a base unit, such as 4 nm
* `url`: URL pipelines: their grammar, a parser and its inverse
"""
