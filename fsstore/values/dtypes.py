"""Data types of arrays: TensorStore's, and the NumPy types that zarr stores in the wild.

A `dtype` is a name and the NumPy type that holds its elements.  TensorStore's thirty-one types are known by
their TensorStore names.  Types TensorStore refuses but zarr users store are extension types, named so that
the name alone gives them back: `datetime64[ns]`, `timedelta64[10us]`, `U8`, `S8`, `V4`, and structured types
as the list zarr v2 writes (`[["x","<u2"],["y",">f4",[2]]]`).  Byte order is a matter of storage and is not
part of a plain type.

`char` and `byte` are the one-byte `S1` and `V1`: TensorStore itself reports the sizeless `S` and `V`,
whose arrays hold nothing.

`ml_dtypes` is imported when one of its types is asked for its NumPy type, not before.
Refuses to know how any format stores a type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Self, TypeAlias

import numpy as np

from fsstore.errors import StoreError
from fsstore.values.json_value import WrittenAsJson, quote

_ML: Final = (
    "int2",
    "int4",
    "float8_e3m4",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "bfloat16",
)
_ML_BEYOND: Final = ("uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3")
"""Types of the registry of zarr that TensorStore has not."""
_NUMPY: Final = {
    "bool": "?",
    "int8": "i1",
    "uint8": "u1",
    "int16": "i2",
    "uint16": "u2",
    "int32": "i4",
    "uint32": "u4",
    "int64": "i8",
    "uint64": "u8",
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
    "complex64": "c8",
    "complex128": "c16",
    "char": "S1",
    "byte": "V1",
    "string": "O",
    "ustring": "O",
    "json": "O",
}
NAMES: Final = frozenset(_NUMPY) | frozenset(_ML)
"""The names of TensorStore's data types."""

_BY_CODE: Final = {(c[0], int(c[1:])): name for name, c in _NUMPY.items() if c[0] in "iufc"}
_PYTHON_TYPES: Final[dict[type, str]] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    complex: "complex128",
    str: "ustring",
    bytes: "string",
}
_OBJECT_TYPES: Final[dict[str, type]] = {"string": bytes, "ustring": str, "json": np.object_}
_EXTENSION = re.compile(
    r"(datetime64|timedelta64)(\[[0-9]*[A-Za-zμ]+\])?|[<>=|]?[USV][1-9][0-9]{0,8}"
)  # NumPy's own spelling


class dtype(WrittenAsJson):  # noqa: N801  # TensorStore's name
    """A data type: `dtype("int32")`, or of a NumPy type, a Python type or another `dtype`.

    Compares equal to whatever names the same type (`ts.int32 == "int32"`, and so is `"i4"`);
    what names no type is unequal.  `numpy.dtype(t)` and `numpy.zeros(3, t)` accept it.

    >>> dtype(float)
    dtype("float64")
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_name", "_numpy")

    _name: str
    _numpy: np.dtype[Any] | None

    def __new__(cls, dtype: Any) -> dtype:  # interned: subclasses make no sense
        """Return the type of that name or kind, see `any_dtype`."""
        return any_dtype(dtype)

    @property
    def name(self) -> str:
        """The name, which is also the JSON form."""
        return self._name

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements in memory; `object` for `string`, `ustring` and `json`."""
        if self._numpy is None:
            import ml_dtypes

            self._numpy = np.dtype(getattr(ml_dtypes, self._name))
        return self._numpy

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type, where NumPy looks for it."""
        return self.numpy_dtype

    @property
    def type(self) -> type:
        """The Python type of a scalar: `numpy.int32`, `bytes`, `str`, ..."""
        return _OBJECT_TYPES.get(self._name) or self.numpy_dtype.type

    @property
    def kind(self) -> str:
        """NumPy's letter for the kind of type, which dask asks for: `i`, `f`, ..."""
        return self.numpy_dtype.kind

    @property
    def itemsize(self) -> int:
        """Bytes per element in memory."""
        return self.numpy_dtype.itemsize

    @property
    def alignment(self) -> int:
        """Alignment of an element in memory, in bytes."""
        return self.numpy_dtype.alignment

    @property
    def is_extension(self) -> bool:
        """Whether the type is one that TensorStore does not have."""
        return self._name not in NAMES

    @property
    def is_small(self) -> bool:
        """Whether the type is one of ml_dtypes: small integers and floats."""
        return self._name in _ML or self._name in _ML_BEYOND

    def to_json(self) -> str:
        """Return the name."""
        return self._name

    def __call__(self, arg: Any) -> Any:
        """Return `arg` as a scalar of this type, or as an array where `arg` is a sequence of numbers.

        Raises what the conversion raises: `OverflowError` for integers out of range, `TypeError`,
        `ValueError`.
        """
        if self._name == "json":
            return _as_json(arg)
        if self._name in _OBJECT_TYPES or self._name in _BUILTIN:
            return self.type(arg)
        return np.asarray(arg, dtype=self.numpy_dtype)[()]

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is or names this type."""
        if self is other:
            return True
        try:
            return self._name == any_dtype(other)._name
        except (ValueError, TypeError):
            return False

    def __hash__(self) -> int:
        """Return the hash of the name, so that the type finds what is stored under its name."""
        return hash(self._name)

    def __repr__(self) -> str:
        """Return `dtype("int32")`."""
        return f"dtype({quote(self._name)})"

    def __copy__(self) -> Self:
        """Return itself: a type never changes."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        """Return itself."""
        return self

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Pickle by name."""
        return (dtype_of, (self._name,))


DTypeLike: TypeAlias = dtype | str | type | np.dtype[Any]
"""The argument of `any_dtype`: a data type, its name, a NumPy type or a Python type."""


def _make(name: str, numpy_dtype: np.dtype[Any] | None) -> dtype:
    made = object.__new__(dtype)
    made._name = name
    made._numpy = numpy_dtype
    return made


_BUILTIN: Final = {
    **{name: _make(name, np.dtype(code)) for name, code in _NUMPY.items()},
    **{name: _make(name, None) for name in (*_ML, *_ML_BEYOND)},
}


def dtype_of(value: Any) -> dtype:
    """Return the `dtype` that `value` is or names: a name, a NumPy or Python type, a `dtype`.

    Raises `StoreError` for names and NumPy types that are none, `TypeError` for anything else.
    """
    if isinstance(value, dtype):
        return value
    if isinstance(value, str):
        return _BUILTIN.get(value) or _named(value)
    if isinstance(value, np.dtype):
        return _of_numpy(value)
    if isinstance(value, type):
        name = _PYTHON_TYPES.get(value)
        if name is not None:
            return _BUILTIN[name]
        if issubclass(value, np.generic):
            return _of_numpy(_numpy_of_scalar_type(value))
        return _of_numpy(np.dtype(value))
    raise TypeError(f"Invalid dtype: expected a name, a NumPy type or a Python type, but received {value!r}")


def any_dtype(value: Any) -> dtype:
    """Return the `dtype` as `dtype_of` does, also of a name that only NumPy has, such as "f4" or "<i2".

    Specs and stored documents have none of these; people type them.
    """
    try:
        return dtype_of(value)
    except StoreError as error:
        if not isinstance(value, str) or value.startswith("a"):  # which NumPy warns of
            raise
        try:
            found = np.dtype(value)
        except (TypeError, ValueError, SyntaxError):
            raise error from None
        return dtype_of(found.newbyteorder("="))


def _numpy_of_scalar_type(scalar: type[np.generic]) -> np.dtype[Any]:
    try:
        return np.dtype(scalar)
    except TypeError:
        raise TypeError(f"Invalid dtype: {scalar.__name__} is an abstract type") from None


def _of_numpy(numpy_dtype: np.dtype[Any]) -> dtype:
    name = numpy_dtype.name
    if numpy_dtype.subdtype is None and numpy_dtype.type.__module__ == "numpy":
        kind, size = numpy_dtype.kind, numpy_dtype.itemsize
        if kind in "iufcb":
            name = _BY_CODE.get((kind, size), name)
        elif kind in "SV" and size <= 1 and numpy_dtype.fields is None:
            name = "char" if kind == "S" else "byte"
        elif kind in "mM" or (kind in "USV" and size > 0 and not numpy_dtype.hasobject):
            return _extension(numpy_dtype)
    found = _BUILTIN.get(name)
    if found is None or numpy_dtype.hasobject:
        raise StoreError(f"No TensorStore data type corresponding to NumPy dtype: {numpy_dtype!r}")
    return found


def _extension(numpy_dtype: np.dtype[Any]) -> dtype:
    native = numpy_dtype.newbyteorder("=")
    if native.fields is not None:
        described = _described(native)
        name = json.dumps(described, separators=(",", ":"), ensure_ascii=False)
        return _make(name, np.dtype(_as_descr(described)))
    return _make(native.name if native.kind in "mM" else native.str[1:], native)


def _described(record: np.dtype[Any]) -> list[Any]:
    out: list[Any] = []
    for name in record.names or ():
        field = record[name]
        element, shape = field.subdtype or (field, ())
        inner = element.str if element.fields is None else _described(element)
        out.append([name, inner, list(shape)] if shape else [name, inner])
    return out


def _named(name: str) -> dtype:
    try:
        if name.startswith("["):
            return _of_numpy(np.dtype(_as_descr(json.loads(name))))
        if _EXTENSION.fullmatch(name):
            return _of_numpy(np.dtype(name))
    except (TypeError, ValueError, SyntaxError, RecursionError, KeyError):
        pass  # what NumPy raises where it reads no type; text with commas goes through Python's parser
    raise StoreError(f"No TensorStore data type with name: {quote(name)}")


def _as_descr(value: Any) -> list[tuple[Any, ...]]:
    fields = []
    for name, inner, *shape in value:
        element = inner if isinstance(inner, str) else _as_descr(inner)
        fields.append((name, element, *(tuple(size) for size in shape)))
    return fields


def _as_json(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not value.isascii():
            value.encode()  # raises for half a character
        return str(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise OverflowError(f"Python integer {value} does not fit in 64 bits")
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biufUO":
        return _as_json(value.tolist())
    if isinstance(value, dict):
        return {_key(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    raise TypeError(f"Object {type(value).__name__!r} does not support conversion to JSON")


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"JSON object member names are strings, not {name!r}")
    return name


# Types of attributes, which JSON does not say.

ATTRIBUTE_TYPES = "_nczarr_attr"
PACKING_NUMBERS = ("scale_factor", "add_offset")
_SINGLE = "<f4"


class Single(float):
    """A number of single precision; JSON writes it as any other."""

    __slots__ = ()


def with_types(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes that say which of the packing numbers are of single precision, if any is.

    >>> with_types({"scale_factor": Single(0.5), "add_offset": 1.0})
    {'scale_factor': 0.5, 'add_offset': 1.0, '_nczarr_attr': {'types': {'scale_factor': '<f4'}}}
    """
    found = [name for name in PACKING_NUMBERS if isinstance(attributes.get(name), Single)]
    if not found:
        return dict(attributes)
    return {**attributes, ATTRIBUTE_TYPES: {"types": dict.fromkeys(found, _SINGLE)}}


def single_numbers(attributes: Mapping[str, Any]) -> frozenset[str]:
    """Return the packing numbers that are of single precision, as far as attributes say so."""
    match attributes.get(ATTRIBUTE_TYPES):
        case {"types": {**types}}:
            return frozenset(name for name in PACKING_NUMBERS if types.get(name) == _SINGLE)
        case _:
            return frozenset()
