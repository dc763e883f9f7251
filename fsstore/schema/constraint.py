"""Hard and soft constraints, how two of them become one, and the fill value.

A constraint is a `Bound`: a value that is required (hard) or preferred (soft), or None where nothing is said.  A
constraint for each dimension is a `Vector` of them, or None where nothing is said at all.  A new constraint is merged
into an existing one by four rules:

* nothing said before: the new one is taken;
* both hard: they must be equal;
* hard beats soft, whichever came first;
* a soft one never replaces an existing one.

Domains merge in the same spirit: unknown bounds and labels take the other side.  A fill value is an array that
broadcasts to the domain, kept without the leading dimensions that only repeat it; formats know how to write it.
"""

from __future__ import annotations

import math
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np

from fsstore.errors import JsonError, OutOfRangeError, StoreError
from fsstore.index.interval import INF
from fsstore.index.transform import IndexDomain, IndexTransform
from fsstore.index.value import check_rank
from fsstore.values import dtypes
from fsstore.values.dtypes import dtype, dtype_of
from fsstore.values.json_value import any_json, boolean, expected, integers_between, quote, string

T = TypeVar("T")
Bound: TypeAlias = tuple[T, bool] | None
Vector: TypeAlias = tuple[Bound[T], ...] | None


def braced(values: Sequence[object]) -> str:
    """Return values as messages print them: `{1, 2}`."""
    return "{" + ", ".join(str(value) for value in values) + "}"


def checked_rank(new: int, existing: int) -> int:
    """Return the rank both agree on; -1 says nothing.  Raises `StoreError` for a bad or different one."""
    check_rank(new)
    if existing not in (-1, new):
        raise StoreError(f"Rank {new} does not match existing rank {existing}")
    return new


class ConstraintFace:
    """The object that users see around a frozen value: it changes by `update`, and the value decides equality."""

    __slots__ = ("_value",)
    __hash__ = None  # type: ignore[assignment]  # it changes

    _value: Any

    @classmethod
    def _of(cls, value: Any) -> Self:
        made = cls.__new__(cls)
        made._value = value
        return made

    def __eq__(self, other: object) -> bool:
        """Return whether the constraints are the same."""
        return self._value == other._value if isinstance(other, type(self)) else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value."""
        return self._of, (self._value,)


def merge_bound(existing: Bound[T], new: Bound[T], show: Callable[[T], str] = str, where: str = "") -> Bound[T]:
    """Return the merged constraint, or raise `StoreError` where two hard ones differ.

    `where` goes into the message (` for dimension 0`), values through `show`.
    """
    if new is None:
        return existing
    if existing is None:
        return new
    if existing[1] and new[1] and existing[0] != new[0]:
        raise StoreError(
            f"New hard constraint ({show(new[0])}){where} does not match existing hard constraint ({show(existing[0])})"
        )
    return new if new[1] and not existing[1] else existing


def merge_vector(existing: Vector[T], new: Vector[T], show: Callable[[T], str] = str) -> Vector[T]:
    """Return the constraints merged dimension by dimension.  The lengths must be equal."""
    if existing is None or new is None:
        return existing or new
    return tuple(
        merge_bound(old, added, show, f" for dimension {dimension}")
        for dimension, (old, added) in enumerate(zip(existing, new, strict=True))
    )


def _chosen(vector: Vector[T], rank: int, is_hard: bool) -> tuple[T | None, ...] | None:
    if rank < 0:
        return None
    if vector is None:
        return (None,) * rank
    return tuple(bound[0] if bound is not None and bound[1] is is_hard else None for bound in vector)


def hard(vector: Vector[T], rank: int) -> tuple[T | None, ...] | None:
    """Return the required values, None where there is none, or None altogether without a rank."""
    return _chosen(vector, rank, is_hard=True)


def soft(vector: Vector[T], rank: int) -> tuple[T | None, ...] | None:
    """Return the preferred values, as `hard` does the required ones."""
    return _chosen(vector, rank, is_hard=False)


# Two constraints on a domain as one: unknown bounds and labels take the other side.


def merge_domains(existing: IndexDomain | None, new: IndexDomain | None) -> IndexDomain | None:
    """Return the domain that satisfies both; None is any.

    An infinite implicit bound gives way to any, a missing label to a label.  Equal bounds are implicit where both
    are.  Raises `StoreError` that names the dimension where bounds or labels differ, or the ranks.
    """
    if existing is None or new is None:
        return existing if new is None else new
    if existing.rank != new.rank:
        raise _conflict(existing, new, "Ranks do not match")
    lower: list[tuple[int, bool]] = []
    upper: list[tuple[int, bool]] = []
    labels: list[str] = []
    for dim in range(existing.rank):
        try:
            lower.append(
                _merged(
                    (existing.inclusive_min[dim], existing.implicit_lower_bounds[dim]),
                    (new.inclusive_min[dim], new.implicit_lower_bounds[dim]),
                    "Lower bounds",
                )
            )
            upper.append(
                _merged(
                    (existing.exclusive_max[dim], existing.implicit_upper_bounds[dim]),
                    (new.exclusive_max[dim], new.implicit_upper_bounds[dim]),
                    "Upper bounds",
                )
            )
            labels.append(_merged_label(existing.labels[dim], new.labels[dim]))
        except StoreError as error:
            raise _conflict(existing, new, f"Mismatch in dimension {dim}: {error.message}") from None
    return IndexDomain(
        inclusive_min=[value for value, _ in lower],
        exclusive_max=[value for value, _ in upper],
        implicit_lower_bounds=[implicit for _, implicit in lower],
        implicit_upper_bounds=[implicit for _, implicit in upper],
        labels=labels,
    )


def _conflict(existing: IndexDomain, new: IndexDomain, why: str) -> StoreError:
    return StoreError(f"Cannot merge index domain {existing} with index domain {new}: {why}")


def _merged(existing: tuple[int, bool], new: tuple[int, bool], what: str) -> tuple[int, bool]:
    if existing[0] == new[0]:
        return existing[0], existing[1] and new[1]
    if abs(existing[0]) >= INF and existing[1]:
        return new
    if abs(new[0]) >= INF and new[1]:
        return existing
    raise StoreError(f"{what} do not match")


def _merged_label(existing: str, new: str) -> str:
    if existing and new and existing != new:
        raise StoreError("Dimension labels do not match")
    return existing or new


# The fill value: its JSON, and its views.

_OPAQUE = ("char", "byte")  # which TensorStore does not write as a fill value
_FLOAT_NAMES = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}
_BOOLEANS = {"true": True, "false": False}
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,32}\s*")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return braced([_shown(item) for item in value])
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """A fill value: elements, and the type they are of (the elements of `json` and strings are objects)."""

    array: np.ndarray[Any, Any]
    dtype: dtype

    def __eq__(self, other: object) -> bool:
        """Return whether type, shape and elements are the same; NaN is NaN."""
        if not isinstance(other, Fill) or self.dtype != other.dtype or self.array.shape != other.array.shape:
            return False
        same = self.array == other.array
        if self.array.dtype.kind in "fcVMm" and self.array.dtype.names is None and self.array.dtype.itemsize <= 16:
            same = same | ((self.array != self.array) & (other.array != other.array))  # finds NaN
        return bool(np.all(same))

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash((self.dtype, self.array.shape))

    def __str__(self) -> str:
        """Return the elements as messages print them."""
        return _shown(self.array.tolist())

    def converted(self, of: dtypes.dtype | None) -> Fill:
        """Return the value as numbers of type `of`, or itself where one of the types is not of numbers.

        JSON values, which a fill value without a type is, are read as elements of the type; raises `JsonError`.
        """
        if of is not None and self.dtype.name == "json" != of.name:
            return fill_from_json(self.to_json(), of)
        if of is None or self.dtype == of or {"O", "M", "m", "U", "S"} & {self.array.dtype.kind, of.numpy_dtype.kind}:
            return self
        if self.array.dtype.names is not None or of.numpy_dtype.names is not None:
            return self
        with np.errstate(all="ignore"):
            return Fill(self.array.astype(of.numpy_dtype), of)

    def check_rank(self, rank: int) -> None:
        """Raise `StoreError` where the array has more dimensions."""
        if rank >= 0 and self.array.ndim > rank:
            raise StoreError(f"Invalid fill_value for rank {rank}: {self}")

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise `StoreError` where the array does not broadcast to `shape`."""
        for size, extent in zip(self.array.shape[::-1], tuple(shape)[::-1], strict=False):
            if size not in (1, extent):
                raise StoreError(
                    f"Cannot broadcast array of shape {braced(self.array.shape)} to target shape {braced(shape)}"
                )

    def to_json(self) -> Any:
        """Return nested lists of elements; NaN and infinities stay Python floats, fixed bytes are base64."""
        if self.dtype.name in _OPAQUE:
            raise StoreError(f"Conversion from {self.dtype.name} to JSON is not implemented")
        return elements_json(self.array, self.dtype)

    def through(self, transform: IndexTransform, origin: Sequence[int] | None) -> Fill:
        """Return the fill value of a view; `origin` is that of the domain below, None where it is unknown.

        Raises `OutOfRangeError` where the view reaches beyond an array that differs from place to place.
        """
        full = self.array.reshape((1,) * (transform.output_rank - self.array.ndim) + self.array.shape)
        where: list[Any] = []
        for dim, size in enumerate(full.shape):
            if size == 1:
                where.append(np.zeros((1,) * transform.input_rank, dtype=np.intp))
                continue
            index = _whole(transform, dim, size) if origin is None else _places(transform, dim) - origin[dim]
            if index.size and not 0 <= index.min() <= index.max() < size:
                raise OutOfRangeError(
                    f"Error transforming fill_value: Index outside valid range [0, {size}) of dimension {dim}"
                )
            where.append(index)
        out = np.empty(np.broadcast_shapes(*(index.shape for index in where)), dtype=full.dtype)
        out[...] = full[(*where, ...)]
        return _trimmed(out, self.dtype)


def elements_json(array: np.ndarray[Any, Any], of: dtype) -> Any:
    """Return nested lists of the elements of an array of type `of`, as `fill_from_json` and `elements_of` read them."""
    if of.name == "string":
        try:
            return _mapped(array.tolist(), lambda text: text.decode())
        except UnicodeDecodeError:
            raise StoreError("Invalid UTF-8 sequence encountered") from None
    kind = array.dtype.kind
    if kind == "c":
        return _mapped(array.tolist(), lambda number: [number.real, number.imag])
    if kind == "M":
        return _mapped(array.astype(str).tolist(), lambda text: text)
    if kind == "m":
        return array.astype("i8").tolist()
    if of.name in _OPAQUE or (kind in "SV" and of.is_extension and not of.is_small):
        octets = array.view(f"V{array.itemsize}")
        return _mapped(octets.tolist(), lambda data: b2a_base64(data, newline=False).decode())
    if kind == "V":
        wide = "i8" if "int" in of.name else "f8"
        with np.errstate(invalid="ignore"):  # a NaN may be a signaling one
            return array.astype(wide).tolist()
    return array.tolist()


def _whole(transform: IndexTransform, dim: int, size: int) -> np.ndarray[Any, Any]:
    """Return all positions along an output dimension of an unknown domain, which the view must keep whole."""
    output = transform.output[dim]
    axis = output.input_dimension
    if axis is None or output.stride not in (1, -1) or transform.domain.shape[axis] < 2**62:
        raise StoreError(f"Error transforming fill_value: the domain of dimension {dim} is not known")
    shape = [1] * transform.input_rank
    shape[axis] = size
    return np.arange(size)[:: output.stride].reshape(shape)


def _places(transform: IndexTransform, dim: int) -> np.ndarray[Any, Any]:
    """Return the positions of one output dimension, with a dimension for each input dimension it depends on."""
    output = transform.output[dim]
    shape, stride = [1] * transform.input_rank, output.stride or 0
    if output.index_array is not None:
        return np.asarray(output.index_array) * stride + output.offset
    if output.input_dimension is None:
        return np.full(shape, output.offset, dtype=np.int64)
    axis = output.input_dimension
    start, stop = transform.domain.inclusive_min[axis], transform.domain.exclusive_max[axis]
    if stop - start > 2**40:
        raise StoreError(f"Error transforming fill_value: dimension {axis} is not bounded")
    shape[axis] = stop - start
    return (np.arange(start, stop, dtype=np.int64) * stride + output.offset).reshape(shape)


def _mapped(value: Any, change: Any) -> Any:
    return [_mapped(item, change) for item in value] if isinstance(value, list) else change(value)


def _trimmed(array: np.ndarray[Any, Any], of: dtype) -> Fill:
    """Return the fill value of an array without its repetitions."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)
    if array.size:
        array = array[(..., *once)]  # the ellipsis keeps an array where an object would come out
    while array.ndim and array.shape[0] == 1:
        array = array[0:1].reshape(array.shape[1:])
    kept = np.array(array, dtype=array.dtype, copy=True)
    kept.flags.writeable = False
    return Fill(kept, of)


def fill_of(value: Any, of: dtypes.dtype | None) -> Fill:
    """Return the fill value of a Python value or array, converted to the type `of` where it is given.

    Raises what the conversion raises, `StoreError` for types that no array has.
    """
    if of is None and isinstance(value, dict):
        of = dtype_of("json")
    if of is not None and of.numpy_dtype.kind == "O":
        return _objects(value, of)
    source = np.asarray(value)
    if of is None and source.dtype.kind == "U" and not isinstance(value, np.ndarray | np.generic):
        of = dtype_of("ustring")
        return _objects(value, of)
    if source.size == 0:
        raise StoreError("a fill value has at least one element")
    if of is None:
        if source.dtype.kind == "O":
            octets = source.size > 0 and all(isinstance(item, bytes) for item in source.flat)
            return _objects(value, dtype_of("string" if octets else "json"))
        found = dtype_of(source.dtype)
        return _trimmed(source.astype(found.numpy_dtype, copy=False), found)
    if isinstance(value, np.ndarray):
        if not np.can_cast(source.dtype, of.numpy_dtype, "safe"):
            raise TypeError(
                f"Cannot cast array data from {source.dtype!r} to {of.numpy_dtype!r} according to the rule 'safe'"
            )
        return _trimmed(source.astype(of.numpy_dtype), of)
    return _trimmed(np.array(value, dtype=of.numpy_dtype), of)


def _objects(value: Any, of: dtype) -> Fill:
    elements = np.asarray(value, dtype=object) if not isinstance(value, np.ndarray) else value.astype(object)
    out = np.empty(elements.shape, dtype=object)
    for place, item in np.ndenumerate(elements):
        if of.name == "string" and not isinstance(item, bytes):
            raise TypeError(f"expected bytes, {type(item).__name__} found")
        out[place] = of(item)
    return _trimmed(out, of)


def _shape_of(value: Any) -> tuple[int, ...]:
    shape: list[int] = []
    while isinstance(value, list) and len(shape) <= 32:
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def fill_from_json(json: Any, of: dtypes.dtype | None) -> Fill:
    """Parse nested lists of elements of type `of`; without a type they are JSON values.

    Raises `JsonError` for a bad element, with its position, and for lists of different lengths.
    """
    of = of or dtype_of("json")
    if of.name in _OPAQUE:
        raise JsonError(f"Conversion from JSON to {of.name} is not implemented")
    return _trimmed(elements_of(json, of), of)


def elements_of(json: Any, of: dtype) -> np.ndarray[Any, Any]:
    """Return an array of nested lists of elements of type `of`; raises as `fill_from_json` does."""
    parse = element_parser(of)
    shape = _shape_of(json)
    if of.name.startswith("complex"):
        shape = shape[:-1]
    out = np.empty(shape, dtype=of.numpy_dtype)

    def place(value: Any, at: tuple[int, ...]) -> None:
        if len(at) == len(shape):
            try:
                out[at] = parse(value)
            except JsonError as error:
                raise error.within(f"Error parsing array element at position {braced(at)}") from None
            return
        if not isinstance(value, list):
            raise expected("array", value)
        if len(value) != shape[len(at)]:
            raise JsonError(
                f"Expected array of shape {braced(shape)}, but found array element of length {len(value)} "
                f"at position {braced(at)}."
            )
        for index, item in enumerate(value):
            place(item, (*at, index))

    with np.errstate(over="ignore"):  # what a small float cannot hold is infinite
        place(json, ())
    return out


def element_parser(of: dtype) -> Callable[[Any], Any]:
    """Return the function that makes an element of type `of` of a JSON value, or raises `JsonError`.

    Numbers and booleans may be written as text.
    """
    kind = of.numpy_dtype.kind
    if of.name == "json":
        return any_json
    if of.name in ("string", "ustring"):
        return lambda value: string(value).encode() if of.name == "string" else string(value)
    if of.name == "bool":
        return lambda value: boolean(_BOOLEANS.get(value, value) if isinstance(value, str) else value)
    if kind in "iu" or (of.is_small and "int" in of.name):
        bits = int(of.name[-1]) if of.is_small else of.itemsize * 8
        low, high = (0, 2**bits - 1) if of.name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return lambda value: _int(value, low, high)
    if kind == "c":
        return _complex
    if kind == "f" or of.is_small:
        return _float
    if kind in "MmU":
        return lambda value: np.array(value, dtype=of.numpy_dtype)[()]
    return lambda value: _octets(value, of.numpy_dtype)


def _octets(value: Any, native: np.dtype[Any]) -> Any:
    try:
        data = a2b_base64(string(value), strict_mode=True)
    except ValueError:
        data = b""
    if len(data) != native.itemsize:
        raise expected(f"{native.itemsize} base64-encoded bytes", value)
    return np.frombuffer(data, native)[0]


def _int(value: Any, low: int, high: int) -> int:
    number = value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        number = int(value)
    if isinstance(value, float) and value.is_integer():
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise expected(integers_between(low, high), value)
    return number


def _float(value: Any) -> float:
    if isinstance(value, str):
        text = value.strip().lower()
        named = _FLOAT_NAMES.get(text.lstrip("+-"))
        if named is not None:
            return -named if text.startswith("-") else named
        if not text.isascii() or "_" in text:  # which Python would read
            raise expected("64-bit floating-point number", value)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise expected("64-bit floating-point number", value)
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise expected("64-bit floating-point number", value) from None


def _complex(value: Any) -> complex:
    if not isinstance(value, list) or len(value) != 2:
        raise JsonError(f"Expected array of length 2, but received: {quote(str(value))}")
    return complex(_float(value[0]), _float(value[1]))
