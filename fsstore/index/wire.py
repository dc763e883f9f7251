"""The JSON forms of domains and transforms.

An implicit bound is wrapped in a list of one, an infinite one is `"-inf"` or `"+inf"`.  Members that say nothing are
left out: vectors of implicit infinite bounds, empty labels, zero offsets, unit strides, the output of an identity.
Unlike elsewhere, numbers of bounds may be given as strings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from fsstore.errors import JsonError, OutOfRangeError, StoreError
from fsstore.index import interval as iv
from fsstore.index.interval import INF, Bounds
from fsstore.index.output_map import (
    CONSTANT,
    IndexArray,
    OutputMap,
    array_map,
    check_values,
    constant_map,
    index_array,
    single_map,
)
from fsstore.index.value import MAX_RANK, DomainValue, TransformValue, check_labels, checked_maps, identity_maps
from fsstore.values import json_value as _json
from fsstore.values.json_value import Fields, Json, array_of, expected, json_error

D = TypeVar("D", bound=DomainValue)
_ENDS: dict[str, tuple[int, Callable[[int, int], tuple[int, int]]]] = {
    "shape": (INF + 1, iv.sized),
    "inclusive_max": (INF, iv.closed),
    "exclusive_max": (INF + 1, iv.half_open),
}


def domain_to_json(domain: DomainValue, prefix: str = "") -> dict[str, Any]:
    """Return the members that describe `domain`, each name after `prefix`."""
    out: dict[str, Any] = {}
    low, high = domain.inclusive_min, domain.exclusive_max
    first, last = domain.implicit_lower_bounds, domain.implicit_upper_bounds
    if not all(bound == -INF and mark for bound, mark in zip(low, first, strict=True)):
        out["inclusive_min"] = [_bound(b, -INF, "-inf", mark) for b, mark in zip(low, first, strict=True)]
    if not all(bound == INF + 1 and mark for bound, mark in zip(high, last, strict=True)):
        out["exclusive_max"] = [_bound(b, INF + 1, "+inf", mark) for b, mark in zip(high, last, strict=True)]
    if any(domain.labels):
        out["labels"] = list(domain.labels)
    if not out:
        out["rank"] = domain.rank
    return {prefix + name: out[name] for name in sorted(out)}


def _bound(value: int, infinity: int, text: str, implicit: bool) -> Json:
    shown: int | str = text if value == infinity else value
    return [shown] if implicit else shown


def domain_from_json(made: type[D], value: Any) -> D:
    """Return the domain, of a class, that `value` describes; `JsonError` names every problem."""
    try:
        fields = Fields(value)
        domain = _domain(made, fields, "")
        fields.finish()
    except StoreError as error:
        raise json_error(error).within("Error parsing index domain from JSON") from None
    return domain


def _bound_parser(infinity: int, text: str) -> Callable[[Any], tuple[int, bool]]:
    def one(value: Any) -> int:
        if value == text:
            return infinity
        if isinstance(value, str):
            try:
                value = int(value) if len(value) < 32 else value
            except ValueError:
                raise expected(f'64-bit signed integer or "{text}"', value) from None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not -INF <= value <= INF + 1:
            raise expected(f'64-bit signed integer or "{text}"', value)
        return value

    def parse(value: Any) -> tuple[int, bool]:
        if isinstance(value, list | tuple):
            if len(value) != 1:
                raise expected("array of size 1 indicating an implicit value", value)
            return one(value[0]), True
        return one(value), False

    return parse


def _labels(value: Any) -> list[str]:
    labels = array_of(_json.string)(value)
    try:
        check_labels(labels)
    except StoreError as error:
        raise JsonError(error.message) from None
    return labels


def _domain(made: type[D], fields: Fields, prefix: str) -> D:
    """Read the members of a domain, each name after `prefix`."""
    names = ("rank", "inclusive_min", *_ENDS, "labels")
    quoted = {name: _json.quote(prefix + name) for name in names}
    if not any(prefix + name in fields for name in names):
        fields.rest()
        fields.problem(f"At least one of {', '.join(quoted.values())} members must be specified")
        fields.finish()
    given = [name for name in _ENDS if prefix + name in fields]
    if len(given) > 1:
        fields.rest()
        fields.problem(f"At most one of {', '.join(quoted[name] for name in _ENDS)} members is allowed")
        fields.finish()
    rank: int | None = fields.take(prefix + "rank", _json.integer(0, MAX_RANK))
    sized = _SameLength(rank)
    lows = fields.take(prefix + "inclusive_min", sized(array_of(_bound_parser(-INF, "-inf"))))
    end = given[0] if given else "exclusive_max"
    infinity, make = _ENDS[end]
    highs = fields.take(prefix + end, sized(array_of(_bound_parser(infinity, "+inf"))))
    labels = fields.take(prefix + "labels", sized(_labels))
    rest = fields.rest()
    fields.finish()
    fields._left = rest
    count = sized.length or 0
    lows = lows or [(0, False) if end == "shape" and highs else (-INF, True)] * count
    highs = highs or [(infinity, True)] * count
    bounds = [Bounds(*make(low, high), first, last) for (low, first), (high, last) in zip(lows, highs, strict=True)]
    return made._of_bounds(bounds, labels or [""] * count)


class _SameLength:
    """Parsers of arrays that must have the length of the first one."""

    def __init__(self, length: int | None) -> None:
        self.length = length

    def __call__(self, parser: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
        def parse(value: Any) -> list[Any]:
            items = parser(value)
            if self.length is not None and len(items) != self.length:
                raise JsonError(f"Array has length {len(items)} but should have length {self.length}")
            if len(items) > MAX_RANK:
                raise JsonError(f"Rank {len(items)} is outside valid range [0, {MAX_RANK}]")
            self.length = len(items)
            return items

        return parse


def transform_to_json(transform: TransformValue) -> dict[str, Any]:
    """Return the JSON form of `transform`."""
    out = domain_to_json(transform.domain, "input_")
    if not transform.is_identity:
        out["output"] = [_output_to_json(output) for output in transform.maps]
    return dict(sorted(out.items()))


def _output_to_json(output: OutputMap) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if output.index_array is not None:
        out["index_array"] = output.index_array.tolist()
        low, high = output.index_range
        if not _all_within(output.index_array, low, high):
            # without the bounds the reader would take values that were never allowed
            out["index_array_bounds"] = ["-inf" if low == -INF else low, "+inf" if high == INF + 1 else high - 1]
    elif output.method != CONSTANT:
        out["input_dimension"] = output.input_dimension
    if output.offset:
        out["offset"] = output.offset
    if output.method != CONSTANT and output.stride != 1:
        out["stride"] = output.stride
    return out


def _all_within(array: IndexArray, low: int, high: int) -> bool:
    try:
        check_values(array, (low, high))
    except OutOfRangeError:
        return False
    return True


def transform_from_json(made: type[D], value: Any) -> tuple[D, tuple[OutputMap, ...]]:
    """Return domain and output maps of the transform that `value` describes; `JsonError` names every problem."""
    try:
        fields = Fields(value)
        domain = _domain(made, fields, "input_")
        output: list[OutputMap] | None = fields.take("output", array_of(_output))
        fields.finish()
        return domain, identity_maps(domain.rank) if output is None else checked_maps(domain, output)
    except StoreError as error:
        raise json_error(error).within("Error parsing index transform from JSON") from None


def _output(value: Any) -> OutputMap:
    fields = Fields(value)
    offset: int = fields.take("offset", _json.integer(), default=0)
    dim: int | None = fields.take("input_dimension", _json.integer())
    array: IndexArray | None = fields.take("index_array", _index_array)
    stride: int = 1
    limits = iv.half_open(-INF, INF + 1)
    if dim is not None and array is not None:
        fields.problem('At most one of "input_dimension", "index_array" members is allowed')
    if dim is not None or array is not None:
        stride = fields.take("stride", _json.integer(), default=1)
    if array is not None:
        limits = fields.take("index_array_bounds", _index_array_bounds, default=limits)
    fields.finish()
    if array is not None:
        return array_map(array, offset, stride, limits)
    return constant_map(offset) if dim is None else single_map(dim, offset, stride)


def _index_array_bounds(value: Any) -> tuple[int, int]:
    low, high = array_of(lambda item: item, length=2)(value)
    try:
        return iv.closed(_bound_parser(-INF, "-inf")(low)[0], _bound_parser(INF, "+inf")(high)[0])
    except StoreError as error:
        raise JsonError(error.message) from None


def _index_array(value: Any) -> IndexArray:
    shape: list[int] = []
    level = value
    while isinstance(level, list | tuple) and len(shape) <= MAX_RANK:
        shape.append(len(level))
        level = level[0] if level else None
    flat: list[int] = []
    _flatten(value, shape, (), flat)
    return index_array(np.array(flat, dtype=np.int64).reshape(shape))


def _flatten(value: Any, shape: Sequence[int], at: tuple[int, ...], out: list[int]) -> None:
    depth = len(at)
    if depth == len(shape):
        try:
            out.append(_json.integer()(int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value))
        except JsonError as error:
            where = ", ".join(map(str, at))
            raise error.within(f"Error parsing array element at position {{{where}}}") from None
        return
    if not isinstance(value, list | tuple) or len(value) != shape[depth]:
        sizes, where = (", ".join(map(str, part)) for part in (shape, at))
        raise JsonError(
            f"Expected array of shape {{{sizes}}}, but found array element {_json.show(value)} at position {{{where}}}."
        )
    for i, item in enumerate(value):
        _flatten(item, shape, (*at, i), out)
