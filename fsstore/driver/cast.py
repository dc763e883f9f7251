"""`cast`: an array shown with another data type, converted element by element as it is read and written.

A conversion may change values; `is_lossless` and `Cast` tell whether it keeps them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import ml_dtypes
import numpy as np

from fsstore.driver.contract import Array, ArrayDriver, OpenArray, Opening, PlainKind, Role, Statistics
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.transform import identity
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.schema.constraint import element_parser
from fsstore.schema.schema import Schema
from fsstore.values.dtypes import dtype, dtype_of
from fsstore.values.registry import decode_path

Conversion = Callable[[Array], Array]
Casting = Literal["same_value", "same_kind", "unsafe"]
"""The changes of values that a conversion may make: none, rounding of floating-point numbers, or any."""
_TEXT = ("string", "ustring")
_OPAQUE = ("char", "byte")
_CHECKED = 1 << 16  # elements compared at a time: they stay in the cache


def conversion(source: dtype, target: dtype) -> Conversion | None:
    """Return the function that converts arrays of `source` to `target`, or None if there is none.

    Integers wrap, floats truncate toward zero, complex numbers lose their imaginary part, booleans are `!= 0`.
    """
    if source == target:
        return lambda array: array
    names = (source.name, target.name)
    if _is_text(source) and _is_text(target):
        return lambda array: _between_text(array, target)
    if any(map(_is_opaque, (source, target))) or not _are_akin(source, target):
        return None
    if target.name == "json":
        return _each(_to_json)
    if "json" in names:
        return None if target.numpy_dtype.kind == "c" else _each(element_parser(target), target)
    if source.numpy_dtype.kind == "c" and target.name == "bool":
        return None
    if source.name == "bool" and target.name in _TEXT:
        return None
    if source.name in _TEXT:
        return None
    if target.name in _TEXT:
        as_bytes = target.name == "string"
        return _each(lambda value: _text(value).encode() if as_bytes else _text(value))
    return lambda array: _numeric(array, target.numpy_dtype)


def is_lossless(source: dtype, target: dtype) -> bool:
    """Return whether `target` has every value of `source`, so that stores may convert without being asked."""
    if source == target or target.name == "json":
        return source.name != "string" or target.name == "string"
    one, other = source.numpy_dtype, target.numpy_dtype
    if _is_text(source) and _is_text(target):
        return (
            target.name == "string"
            or (one.kind == other.kind != "O" and one.itemsize <= other.itemsize)
            or (one.kind == "U" and target.name == "ustring")
        )
    if _is_special(source) or _is_special(target):
        return False  # some values can be converted, so that the values themselves are compared
    if source.name in ("string", "json", *_OPAQUE) or target.name in (*_TEXT, *_OPAQUE):
        return False
    if other.kind == "b" or (one.kind == "c" and other.kind != "c"):
        return False
    return one.kind == "b" or _holds(_limits(other), _limits(one))


def _limits(native: np.dtype[Any]) -> _Limits:
    """Return the limits of a number type; for a complex type, those of its parts."""
    try:
        integers = ml_dtypes.iinfo(native)  # type: ignore[no-untyped-call]  # ml_dtypes leaves it untyped
    except ValueError:
        part = native.type(0).real.dtype
        floats = ml_dtypes.finfo(part)  # type: ignore[no-untyped-call]  # ml_dtypes leaves it untyped
        return _Limits(float(floats.min), float(floats.max), floats.nmant + 1, float(floats.smallest_subnormal))
    return _Limits(integers.min, integers.max, integers.bits - (integers.min < 0), 1)


class _Limits(NamedTuple):
    """The least and the greatest number, the number of exact binary digits, and the smallest step."""

    least: float
    largest: float
    digits: int
    step: float


def _holds(outer: _Limits, inner: _Limits) -> bool:
    return (
        outer.least <= inner.least
        and outer.largest >= inner.largest
        and outer.digits >= inner.digits
        and outer.step <= inner.step
    )


def _numeric(array: Array, native: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        if array.dtype.kind == "c" and native.kind != "c":
            array = array.real
        if native.kind == "b":
            return np.not_equal(array, 0)
        if native.kind == "V" and (array.dtype.kind in "iub" or array.dtype.name in ("int2", "int4", "uint2", "uint4")):
            # the small integers of ml_dtypes keep the low bits
            wide = array.dtype if array.dtype == np.uint64 else np.dtype(np.int64)
            return array.astype(wide).astype(native)
        try:
            return array.astype(native, casting="unsafe")
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError(f"Cannot convert {array.dtype.name} -> {native.name}: {error}") from None


def _each(function: Callable[[Any], Any], target: dtype | None = None) -> Conversion:
    def convert(array: Array) -> Array:
        native: Any = object if target is None else target.numpy_dtype
        out = np.empty(array.shape, native)
        with np.errstate(over="ignore"):  # numbers too large for a small float become infinite
            for index in np.ndindex(array.shape):
                out[index] = function(array[index])
        return out

    return convert


def _text(value: Any) -> str:
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(item, complex):
        return f"({item.real:g},{item.imag:g})"
    return str(item) if isinstance(item, int) else f"{float(item):g}"


def _to_json(value: Any) -> Any:
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(item, complex):
        return [item.real, item.imag]
    return item.decode() if isinstance(item, bytes) else item


def _is_special(kind: dtype) -> bool:
    """Whether elements are structures, times, or octets or text of a fixed length."""
    return kind.is_extension and not kind.is_small


def _is_opaque(kind: dtype) -> bool:
    return kind.name in _OPAQUE or (_is_special(kind) and kind.name.startswith("V"))


def _are_akin(source: dtype, target: dtype) -> bool:
    """Return whether values of extension types can be converted: structures of the same fields, or times."""
    if not (_is_special(source) or _is_special(target)):
        return True
    one, other = source.numpy_dtype, target.numpy_dtype
    if one.names is not None or other.names is not None:
        return one.names == other.names
    return one.kind == other.kind or (one.kind + other.kind).strip("mM") in tuple("iuf")


def _is_text(kind: dtype) -> bool:
    return kind.name in _TEXT or (kind.is_extension and kind.numpy_dtype.kind in "SU")


def _between_text(array: Array, target: dtype) -> Array:
    """Return text as `str` or `bytes` of any length, or of a fixed length, which cuts longer text off."""
    native = target.numpy_dtype
    if array.dtype.kind == native.kind and array.dtype.kind in "SU":
        return array.astype(native)
    objects = array.astype(object)
    as_bytes = target.name == "string" or native.kind == "S"
    made = _each(_encoded if as_bytes else _decoded)(objects)
    return made if native.hasobject else made.astype(native)


def _encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _decoded(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise StoreError(f"Invalid UTF-8 sequence encountered: {error}") from None


def checked_casting(casting: str) -> Casting:
    """Return the rule for conversions of this name; raise for other names."""
    for known in get_args(Casting):
        if casting == known:
            return known  # type: ignore[no-any-return]  # `get_args` does not say that these are the names
    raise ValueError(f'casting is "same_value", "same_kind" or "unsafe", not {casting!r}')


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion of arrays, and the rule for the changes it may make.

    `same_value` changes nothing: each element, converted back, equals what it was, where not-a-number equals itself.
    `same_kind` also rounds floating-point numbers to a coarser type, but not to infinity.
    """

    source: dtype
    target: dtype
    casting: Casting = "same_value"

    def of(self, values: Array) -> Array:
        """Return converted values, without checking for changes."""
        convert = conversion(self.source, self.target)
        if convert is None:
            raise StoreError(f"Cannot convert {self.source.name} -> {self.target.name}")
        return convert(values)

    def checked(self, values: Array, start: Sequence[int]) -> Array:
        """Return converted values; raise if the rule forbids one of the changes.

        `start` is the position of the first element, by which the error names the first one that changes.
        """
        made = self.of(values)
        if self.casting == "unsafe" or is_lossless(self.source, self.target):
            return made
        flat, flat_made = values.reshape(-1), made.reshape(-1)
        for begin in range(0, flat.size, _CHECKED):
            part = slice(begin, begin + _CHECKED)
            changed = self.changed(flat[part], flat_made[part])
            if changed.any():
                first = begin + int(np.argmax(changed))
                inside = np.unravel_index(first, values.shape)
                where = tuple(int(at) + low for at, low in zip(inside, start, strict=True))
                raise FailedPreconditionError(self._refusal(where, flat[first], flat_made[first]))
        return made

    def _refusal(self, where: tuple[int, ...], value: Any, made: Any) -> str:
        kind = ' or, to round to the nearest, "same_kind"' if self._rounds() else ""
        return (
            f"The value at {where} is {shown(value)}, and would become {shown(made)} as {self.target.name}; write a"
            f' type that holds it, or ask for casting="unsafe"{kind if self.casting == "same_value" else ""}'
        )

    def changed(self, values: Array, made: Array) -> Array:
        """Return a mask of the elements whose conversion, `made`, is a change that the rule forbids."""
        if self.casting == "unsafe":
            return np.zeros(values.shape, bool)
        if values.dtype.names is not None:
            return self._changed_fields(values, made)
        if _is_text(self.source) and _is_text(self.target):
            octets = dtype("string")  # text cut off within a character is not valid any more
            return unequal(_between_text(values, octets), _between_text(made, octets))
        if self.casting == "same_kind" and self._rounds():
            return _overflown(values, made)
        back = conversion(self.target, self.source)
        if back is None:  # without a conversion back nothing can be compared
            return ~np.zeros(values.shape, bool)
        changed: Array = unequal(values, back(made)) | (_is_none(values) != _is_none(made))
        one, other = (_digits_of_integers(kind) for kind in (self.source, self.target))
        if one and other:
            changed |= _is_negative(values) != _is_negative(made)
        for number, digits in ((values, other), (made, one)):
            if digits and _is_float(number.dtype):
                # systems convert numbers that are too large to different integers, perhaps even to the original one
                wide = np.real(number).astype("f8")
                changed |= (np.abs(wide) > 2.0**digits) | (wide == 2.0**digits)
        return changed

    def _changed_fields(self, values: Array, made: Array) -> Array:
        changed = np.zeros(values.size, bool)
        for name in values.dtype.names or ():
            one, other = values[name].reshape(-1), made[name].reshape(-1)
            field = Cast(dtype(one.dtype), dtype(other.dtype), self.casting)
            changed |= field.changed(one, other).reshape(values.size, -1).any(axis=1)
        return changed.reshape(values.shape)

    def _rounds(self) -> bool:
        one, other = self.source.numpy_dtype, self.target.numpy_dtype
        return _is_float(one) and _is_float(other) and (one.kind != "c" or other.kind == "c")


def unequal(one: Array, other: Array) -> Array:
    """Return a mask of the elements that differ as values: NaN and not-a-time equal themselves, and -0 equals 0."""
    if one.dtype.names is not None:
        parts = [unequal(one[name], other[name]).reshape(*one.shape, -1) for name in one.dtype.names]
        return np.asarray(np.concatenate(parts, axis=-1).any(axis=-1))
    different: Array = np.asarray(one != other, bool)
    return different & ~(_is_none(one) & _is_none(other))


def _is_none(values: Array) -> Array:
    """Return a mask of the elements that are NaN or not-a-time, in any type that has these."""
    none: Array = np.asarray(values != values, bool)  # noqa: PLR0124  # they differ from themselves
    return none


def _is_negative(integers: Array) -> Array:
    negative: Array = integers.astype("i8") < 0 if integers.dtype.kind != "u" else np.zeros(integers.shape, bool)
    return negative


def _overflown(values: Array, made: Array) -> Array:
    """Return a mask of the numbers that became infinite, finite or NaN, or exceed a type that has no such values."""
    with np.errstate(all="ignore"):
        lost: Array = (np.isfinite(values) != np.isfinite(made)) | (np.isnan(values) != np.isnan(made))
        if np.isfinite(np.asarray(np.inf).astype(made.dtype)):
            lost |= np.abs(values) > _limits(made.dtype).largest
    return lost


def _is_float(native: np.dtype[Any]) -> bool:
    return native.kind in "fc" or (native.kind == "V" and native.names is None and "float" in native.name)


def _digits_of_integers(kind: dtype) -> int:
    native = kind.numpy_dtype
    if native.kind in "mM":
        return 63
    is_integer = native.kind in "iu" or native.name in ("int2", "int4", "uint2", "uint4")
    return int(_limits(native).digits) if is_integer else 0


def shown(value: Any) -> str:
    """Return an element as text, shortened where it is long."""
    plain = value.item() if isinstance(value, np.generic) and value.dtype.kind not in "mM" else value
    text = repr(plain) if isinstance(plain, str | bytes) else str(plain)
    return text if len(text) <= 80 else f"{text[:80]}…"


@dataclass(frozen=True, slots=True)
class CastKind(PlainKind):
    """The driver kind.

    The data type is the member `dtype` of the spec itself.
    """

    id: str = "cast"
    schemes: tuple[str, ...] = ("cast",)
    role: Role = "adapter"

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema with the data type of a URL merged in."""
        if "dtype" not in members:
            return schema
        merged = schema.copy()
        merged.update(dtype=members["dtype"])
        return merged

    def known(self, members: Mapping[str, Any], schema: Schema, bases: Sequence[Schema]) -> Schema:
        """Return the statistics of the base, converted to the data type of the view."""
        known = bases[0] if bases else Schema()
        return known.retyped(self.constrain(members, schema).dtype)

    def from_url(self, rest: str) -> tuple[str, dict[str, Any]]:
        """Return the data type that a component names."""
        name = decode_path(rest)
        try:
            kind = dtype_of(name)
        except (StoreError, TypeError):
            raise StoreError(f'Unsuppported data type: "{name}"') from None  # TensorStore's spelling
        return "", {"dtype": kind.name}

    def to_url(self, members: Mapping[str, Any]) -> str:
        """Return `cast:<dtype>`."""
        if members.get("dtype") is None:
            raise StoreError("dtype must be specified")
        return f"cast:{members['dtype']}"

    async def open(self, opening: Opening) -> OpenArray:
        """Wrap the open base."""
        target = self.constrain(opening.members, opening.schema).dtype
        if target is None:
            raise StoreError("dtype must be specified")
        if opening.base is None:
            raise StoreError('"base" must be specified')
        return opening.view_of(CastDriver(opening.base.driver, target), opening.base.transform)


KIND = CastKind()


class CastDriver(ArrayDriver):
    """An open base with its elements converted.

    Readable or writable where the conversion exists.
    """

    def __init__(self, inner: ArrayDriver, target: dtype) -> None:
        self.kind = KIND
        self.dtype = target
        self._inner = inner
        self._out: Conversion | None = conversion(inner.dtype, target)
        self._in: Conversion | None = conversion(target, inner.dtype)
        self.transaction = inner.transaction
        self.readable = inner.readable and self._out is not None
        self.writable = inner.writable and self._in is not None
        if self._out is None and self._in is None:
            raise StoreError(f"Cannot convert {inner.dtype.name} <-> {target.name}")

    @property
    def base(self) -> OpenArray:  # type: ignore[override]  # computed here, stored by drivers without a base
        """The open base."""
        return OpenArray(self._inner, identity(self._inner.domain()))

    def domain(self) -> IndexDomain:
        """Return the base's domain."""
        return self._inner.domain()

    def members(self) -> Mapping[str, Any]:
        """Return the data type."""
        return {"dtype": self.dtype.name}

    def schema(self) -> Schema:
        """Return the base's schema with the data type and the fill value converted."""
        below = self._inner.schema()
        fill = below.fill_value
        if fill is not None:
            fill = None if self._out is None else self._out(np.asarray(fill))
        return Schema(
            dtype=self.dtype,
            domain=below.domain,
            chunk_layout=below.chunk_layout,
            codec=below.codec,
            fill_value=fill,
            dimension_units=below.dimension_units,
        )

    def read(self, transform: IndexTransform, order: str = "C") -> Future[Array]:
        """Begin to read and convert a view."""
        convert = self._out
        if convert is None:
            raise UnimplementedError(f"Cannot convert {self._inner.dtype.name} to {self.dtype.name}")
        future = self._inner.read(transform, order)
        if future.done() and futures.error_of(future) is None:
            return futures.ready(convert(future.result()))

        async def run() -> Array:
            return await execution.offload(convert, await future, kind="compute")

        return execution.start(run())

    def in_batch(self, batch: Any) -> CastDriver:
        """Return the driver over its base in the batch."""
        inner = self._inner.in_batch(batch)
        return self if inner is self._inner else CastDriver(inner, self.dtype)

    def write(self, transform: IndexTransform, values: Array) -> Future[None]:
        """Begin to convert and write."""
        if self._in is None:
            raise UnimplementedError(f"Cannot convert {self.dtype.name} to {self._inner.dtype.name}")
        return self._inner.write(transform, self._in(values))

    async def resolve(self, transform: IndexTransform, *, fix: bool = False) -> IndexTransform:
        """Resolve the base."""
        return await self._inner.resolve(transform, fix=fix)

    async def resize(self, transform: IndexTransform, bounds: Any, options: Any) -> IndexTransform:
        """Resize the base."""
        return await self._inner.resize(transform, bounds, options)

    async def statistics(self, transform: IndexTransform, *, not_stored: bool, fully_stored: bool) -> Statistics:
        """Return the base's statistics."""
        return await self._inner.statistics(transform, not_stored=not_stored, fully_stored=fully_stored)

    def with_transaction(self, transaction: Any) -> ArrayDriver:
        """Return the driver over the base bound to a transaction."""
        return CastDriver(self._inner.with_transaction(transaction), self.dtype)
