"""`downsample`: an array at a lower resolution, computed from its base as it is read.

A request is cut into pieces of bounded size; each piece reads the elements of the base that it covers once, reduces
them and selects the requested ones.  Nothing is stored, and nothing can be written.  The geometry says which elements
of the base belong to an element of the view; the methods reduce blocks of elements to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import prod
from typing import Any

import numpy as np

from fsstore.chunk.request import new_array
from fsstore.driver.contract import Array, ArrayDriver, OpenArray, Opening, PlainKind, Role, Statistics
from fsstore.driver.stack import coordinates, within
from fsstore.errors import StoreError, UnimplementedError
from fsstore.index import IndexDomain, IndexTransform, OutputIndexMap, inf
from fsstore.index.compose import compose
from fsstore.index.interval import INF
from fsstore.index.transform import identity
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.execution import run_bounded
from fsstore.runtime.future import Future
from fsstore.runtime.tuning import CACHE_BYTES
from fsstore.schema.constraint import merge_domains
from fsstore.schema.schema import Schema
from fsstore.values.dtypes import dtype
from fsstore.values.json_value import Fields, array_of, integer, one_of

# Two pieces at once: while one is reduced, a sixteenth at a time in the core's cache, the next one is read.
DOWNSAMPLED_ELEMENTS = 16 * CACHE_BYTES


def reduced_domain(domain: IndexDomain, factors: Sequence[int], method: str) -> IndexDomain:
    """Return the domain of the view; bounds stay implicit where those of the base are."""
    low, high = [], []
    for begin, end, factor in zip(domain.inclusive_min, domain.exclusive_max, factors, strict=True):
        first = begin if begin == -INF else -(-begin // factor) if method == "stride" else begin // factor
        last = end if end == INF + 1 else -(-end // factor)
        low.append(first)
        high.append(max(first, last) if begin < end else first)
    return IndexDomain(
        inclusive_min=low,
        exclusive_max=high,
        implicit_lower_bounds=domain.implicit_lower_bounds,
        implicit_upper_bounds=domain.implicit_upper_bounds,
        labels=domain.labels,
    )


def strided(transform: IndexTransform, factors: Sequence[int]) -> IndexTransform:
    """Return the transform with its output coordinates multiplied: from a view to the elements of the base."""
    maps = []
    for dimension, factor in enumerate(factors):
        output = transform.output[dimension]
        if output.index_array is not None:
            array = (output.offset + (output.stride or 1) * output.index_array) * factor
            maps.append(OutputIndexMap(index_array=array))
        elif output.input_dimension is not None:
            maps.append(
                OutputIndexMap(
                    input_dimension=output.input_dimension,
                    offset=output.offset * factor,
                    stride=(output.stride or 1) * factor,
                )
            )
        else:
            maps.append(OutputIndexMap(offset=output.offset * factor))
    return IndexTransform(domain=transform.domain, output=maps)


def members_of(coordinates: Any, factor: int, low: int, high: int) -> Any:
    """Return the elements of the base that sorted coordinates of the view cover, in order."""
    below = (np.asarray(coordinates)[:, None] * factor + np.arange(factor)).reshape(-1)
    return below[(below >= low) & (below < high)]


def groups_of(coordinates: Any, factor: int, low: int, high: int) -> list[int]:
    """Return the number of elements of the base that each coordinate covers."""
    first = np.maximum(np.asarray(coordinates) * factor, low)
    last = np.minimum(np.asarray(coordinates) * factor + factor, high)
    sizes: list[int] = (last - first).tolist()
    return sizes


def covering(transform: IndexTransform, factors: Sequence[int], base: IndexDomain) -> IndexTransform:
    """Return the view of the base that a view of the reduced array covers.

    A dimension that a constant fixes comes last, with the elements that the constant covers.  Raises
    `UnimplementedError` for index arrays and strides other than 1 and -1, for which that view would not be regular.
    """
    domain = transform.domain
    low, high = list(domain.inclusive_min), list(domain.exclusive_max)
    implicit_low, implicit_high = list(domain.implicit_lower_bounds), list(domain.implicit_upper_bounds)
    labels, maps = list(domain.labels), []
    for dimension, factor in enumerate(factors):
        output = transform.output[dimension]
        begin, end = base.inclusive_min[dimension], base.exclusive_max[dimension]
        axis, stride = output.input_dimension, output.stride or 1
        if factor == 1 and output.index_array is None:
            maps.append(output)
        elif output.index_array is not None or (axis is not None and abs(stride) != 1):
            raise UnimplementedError("The base of an irregular view of a downsampled array is not a view")
        elif axis is None:
            first, last = max(begin, output.offset * factor), min(end, (output.offset + 1) * factor)
            maps.append(OutputIndexMap(input_dimension=len(low), offset=first))
            for column, value in ((low, 0), (high, last - first)):
                column.append(value)
            labels.append("")
            implicit_low.append(False)
            implicit_high.append(False)
        else:
            sides = _covered(low[axis], high[axis], (output.offset, stride, factor), (begin, end))
            low[axis], high[axis], offset = sides
            maps.append(OutputIndexMap(input_dimension=axis, offset=offset, stride=stride))
    covered = IndexDomain(
        inclusive_min=low,
        exclusive_max=high,
        implicit_lower_bounds=implicit_low,
        implicit_upper_bounds=implicit_high,
        labels=labels,
    )
    return IndexTransform(domain=covered, output=maps)


def _covered(low: int, high: int, along: tuple[int, int, int], base: tuple[int, int]) -> tuple[int, int, int]:
    """Return bounds and offset of a dimension that runs along the base, forwards or backwards."""
    offset, stride, factor = along
    first, last = sorted((offset + stride * low, offset + stride * (high - 1)))
    begin = first if abs(first) >= inf else max(base[0], first * factor)
    end = last + 1 if abs(last) >= inf else min(base[1], (last + 1) * factor)
    if stride == 1:
        shift = offset * factor
        return begin - shift, end - shift, shift
    shift = offset * factor + factor - 1
    return shift - end + 1, shift - begin + 1, shift


# Reduction of blocks of elements to one.

METHODS = ("stride", "mean", "min", "max", "median", "mode")


def check_method(method: str, kind: dtype) -> None:
    """Raise `StoreError` where a method makes no sense for a data type."""
    native = kind.numpy_dtype
    numbers = native.kind in "biuf" or kind.name.startswith(("int", "uint", "float", "bfloat"))
    fine = {
        "stride": True,
        "mode": True,
        "mean": numbers or native.kind == "c",
        "median": numbers,
        "min": numbers,
        "max": numbers,
    }
    if not fine[method] or (kind.name in ("char", "byte") and method not in ("stride", "mode")):
        raise StoreError(f'Downsample method "{method}" does not support data type "{kind.name}"')


@np.errstate(all="ignore")
def reduce_blocks(values: Array, groups: Sequence[Sequence[int]], method: str) -> Array:
    """Return the array of reduced blocks; `groups` are the sizes of the groups along each dimension.

    Overflows and NaN show in the result, without a warning.
    """
    out = np.empty(tuple(len(sizes) for sizes in groups), values.dtype)
    reduce = _REDUCERS[method]
    # the outermost dimension that can be cut: its parts are contiguous
    cut = next((axis for axis, sizes in enumerate(groups) if len(sizes) > 1), 0)
    most = max(1, (DOWNSAMPLED_ELEMENTS // 16) * len(groups[cut]) // max(1, values.size)) if groups else 1
    for runs in product(*(_runs(sizes, most if axis == cut else None) for axis, sizes in enumerate(groups))):
        place = tuple(slice(run[0], run[0] + run[1]) for run in runs)
        source = tuple(slice(run[2], run[2] + run[1] * run[3]) for run in runs)
        out[place] = reduce(values[source], [run[3] for run in runs])
    return out


def _runs(sizes: Sequence[int], most: int | None) -> list[tuple[int, int, int, int]]:
    """Return runs of at most `most` groups of equal size: first group, number of groups, first element, size."""
    runs, group, element = [], 0, 0
    for size, members in groupby(sizes):
        end = group + len(list(members))
        while group < end:
            count = min(end - group, most or end)
            runs.append((group, count, element, size))
            group += count
            element += count * size
    return runs


def _gathered(values: Array, sizes: Sequence[int]) -> Array:
    rank = values.ndim
    split = [part for extent, size in zip(values.shape, sizes, strict=True) for part in (extent // size, size)]
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    apart = values.reshape(split).transpose(order)
    return apart.reshape(*apart.shape[:rank], math.prod(sizes))


def _folded(values: Array, sizes: Sequence[int], fold: np.ufunc, kind: np.dtype[Any] | None = None) -> Array:
    """Return the blocks folded by an operation whose order does not matter, one dimension after the other."""
    for axis, size in enumerate(sizes):
        before = (slice(None),) * axis
        out: Array = values[(*before, slice(0, None, size))]
        for start in range(1, size):
            part = values[(*before, slice(start, None, size))]
            out = fold(out, part, dtype=kind) if start == 1 else fold(out, part, out=out)
        values = out
    return values


def _summed(values: Array, sizes: Sequence[int]) -> Array:
    """Return the sums of blocks, adding one element after the other: rounding depends on the order."""
    places = product(*map(range, sizes))
    views = (
        values[tuple(slice(start, None, size) for start, size in zip(place, sizes, strict=True))] for place in places
    )
    out: Array = next(views).copy()
    for view in views:
        out += view
    return out


def _mean(values: Array, sizes: Sequence[int]) -> Array:
    kind, count = values.dtype, math.prod(sizes)
    if kind.kind == "c":
        total = _summed(values, sizes)
        total.real /= count
        total.imag /= count
        return total
    if kind.kind == "f" and kind.itemsize >= 4:
        mean: Array = _summed(values, sizes) / kind.type(count)
        return mean
    if kind.kind in "biu":
        return _integer_mean(values, sizes).astype(kind)
    if "int" in kind.name:
        return _integer_mean(values.astype(np.int8), sizes).astype(kind)
    wide: Array = _summed(values.astype(np.float32), sizes) / np.float32(count)
    return wide.astype(kind)


def _integer_mean(values: Array, sizes: Sequence[int]) -> Array:
    count, kind = math.prod(sizes), values.dtype
    bits = (1 if kind.kind == "b" else 8 * kind.itemsize) + count.bit_length()
    if bits > 64:
        return _mean_of_halves(_gathered(values, sizes), count)
    wide = np.dtype(f"{'i' if kind.kind == 'i' else 'u'}{next(size for size in (2, 4, 8) if bits <= 8 * size)}")
    total = _folded(values, sizes, np.add, wide).astype(wide, copy=False)
    whole = total // wide.type(count)
    rest = total - whole * wide.type(count)
    exact: Array = whole + (2 * rest + (whole & 1) > count)
    return exact


def _mean_of_halves(values: Array, count: int) -> Array:
    """Return the exact mean of 64-bit integers, whose sums are kept in two halves."""
    wide = values.astype(np.uint64 if values.dtype == np.uint64 else np.int64)
    high = (wide >> wide.dtype.type(32)).astype(np.int64).sum(axis=-1)
    low = (wide & wide.dtype.type(0xFFFFFFFF)).astype(np.int64).sum(axis=-1)
    whole, rest = np.divmod(high, count)
    fraction, remainder = np.divmod((rest << 32) + low, count)
    up = (2 * remainder > count) | ((2 * remainder == count) & (fraction % 2 == 1))
    # unsigned arithmetic wraps, which the halves of a mean near the end of the range need
    mean = (whole.astype(np.uint64) << np.uint64(32)) + fraction.astype(np.uint64) + up.astype(np.uint64)
    exact: Array = mean if values.dtype == np.uint64 else mean.view(np.int64)
    return exact


def _sorted(values: Array) -> Array:
    if values.dtype.kind == "O":
        from fsstore.values.json_value import dumps

        keys = np.frompyfunc(lambda item: item if isinstance(item, str | bytes) else dumps(item), 1, 1)(values)
        return np.take_along_axis(values, np.argsort(keys, axis=-1, kind="stable"), axis=-1)
    return np.sort(values, axis=-1)


def _median(blocks: Array, sizes: Sequence[int]) -> Array:
    values = _gathered(blocks, sizes)
    middle = (values.shape[-1] - 1) // 2
    if values.dtype.kind == "V":
        return _sorted(values)[..., middle]
    picked: Array = np.partition(values, middle, axis=-1)[..., middle]
    return picked


def _mode(values: Array, sizes: Sequence[int]) -> Array:
    ordered = _sorted(_gathered(values, sizes))
    length = np.ones(ordered.shape[:-1], np.int64)
    best, most = ordered[..., 0].copy(), np.ones(ordered.shape[:-1], np.int64)
    for position in range(1, ordered.shape[-1]):
        same = np.asarray(ordered[..., position] == ordered[..., position - 1], bool)
        length = np.where(same, length + 1, 1)
        better = length > most
        best[better] = ordered[..., position][better]
        most = np.maximum(most, length)
    return best


_REDUCERS: dict[str, Callable[[Array, Sequence[int]], Array]] = {
    "mean": _mean,
    "min": lambda values, sizes: _folded(values, sizes, np.minimum),
    "max": lambda values, sizes: _folded(values, sizes, np.maximum),
    "median": _median,
    "mode": _mode,
}


@dataclass(frozen=True, slots=True)
class DownsampleKind(PlainKind):
    """The driver kind.

    The data type is that of the base and stands in the spec once, beside the base.
    """

    id: str = "downsample"
    role: Role = "view"

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take factors and method."""
        factors = fields.require("downsample_factors", array_of(integer(1, 2**63 - 1)))
        method = fields.require("downsample_method", one_of(*METHODS))
        return {"downsample_factors": factors, "downsample_method": method}

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema with the rank of the factors."""
        merged = schema.copy()
        merged.update(rank=len(members["downsample_factors"]))
        return merged

    def known(self, members: Mapping[str, Any], schema: Schema, bases: Sequence[Schema]) -> Schema:
        """Return the statistics of the base, at the lower resolution."""
        factors, method = members["downsample_factors"], members["downsample_method"]
        base = bases[0] if bases else Schema()
        if schema.dtype is not None:
            base = base.merged(Schema(dtype=schema.dtype))
        if base.rank is not None and base.rank != len(factors):
            raise StoreError(
                f"Number of downsample factors ({len(factors)}) does not match TensorStore rank ({base.rank})"
            )
        if base.domain is None:
            known = self.constrain(members, Schema(dtype=base.dtype))
        else:
            known = _reduced_schema(base, base.domain, factors, method)
        return known if schema.domain is None else known.merged(Schema(domain=schema.domain))

    def base_transform(
        self, members: Mapping[str, Any], transform: IndexTransform, base: IndexDomain | None
    ) -> IndexTransform | None:
        """Return the view of the base that a view covers, if the domain of the base is known."""
        if base is None:
            return None
        if members["downsample_method"] == "stride":
            return strided(transform, members["downsample_factors"])
        return covering(transform, members["downsample_factors"], base)

    def beneath(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the constraints at the higher resolution; of the domain only the labels, as the bounds are unknown."""
        steps = strided(identity(IndexDomain(rank=len(members["downsample_factors"]))), members["downsample_factors"])
        labels = None if schema.domain is None else schema.domain.labels
        plain = schema.over(None).beneath(steps)
        return plain.over(IndexDomain(labels=labels)) if labels is not None and any(labels) else plain

    async def open(self, opening: Opening) -> OpenArray:
        """Return the view of the open base."""
        if opening.base is None:
            raise StoreError('"base" must be specified')
        members = opening.members
        driver = DownsampleDriver(opening.base, members["downsample_factors"], members["downsample_method"])
        try:
            merge_domains(opening.schema.domain, driver.domain())
        except StoreError as error:
            raise error.within("downsampled domain does not match domain in schema") from None
        return opening.view_of(driver)


KIND = DownsampleKind()


def _reduced_schema(base: Schema, domain: IndexDomain, factors: Sequence[int], method: str) -> Schema:
    reduced = reduced_domain(domain, factors, method)
    maps = [OutputIndexMap(input_dimension=dimension, stride=factor) for dimension, factor in enumerate(factors)]
    return base.through(IndexTransform(domain=reduced, output=maps))


class DownsampleDriver(ArrayDriver):
    """An open base at a lower resolution."""

    writable = False

    def __init__(self, base: OpenArray, factors: Sequence[int], method: str) -> None:
        rank = base.transform.input_rank
        if len(factors) != rank:
            raise StoreError(f"Number of downsample factors ({len(factors)}) does not match TensorStore rank ({rank})")
        check_method(method, base.driver.dtype)
        self.kind = KIND
        self.base: OpenArray = base
        self.dtype = base.driver.dtype
        self.readable, self.transaction = base.driver.readable, base.driver.transaction
        self._factors, self._method = tuple(factors), method
        self._domain = reduced_domain(base.transform.domain, factors, method)

    def domain(self) -> IndexDomain:
        """Return the domain of the base at the lower resolution."""
        return self._domain

    def members(self) -> Mapping[str, Any]:
        """Return factors and method."""
        return {"downsample_factors": list(self._factors), "downsample_method": self._method}

    def schema(self) -> Schema:
        """Return the schema of the base at the lower resolution."""
        driver, transform = self.base
        return _reduced_schema(driver.schema().through(transform), transform.domain, self._factors, self._method)

    def base_view(self, transform: IndexTransform) -> IndexTransform:
        """Return the view of the base that a view of the array covers."""
        located = compose(transform, identity(self._domain))
        if self._method == "stride":
            return strided(located, self._factors)
        return covering(located, self._factors, self.base.transform.domain)

    def read(self, transform: IndexTransform, order: str = "C") -> Future[Array]:
        """Begin to read a view."""
        driver, below = self.base
        try:
            located = compose(transform, identity(self._domain))
            if self._method == "stride":
                return driver.read(compose(strided(located, self._factors), below), order)
            shape = located.domain.shape
            out = new_array(shape, self.dtype.numpy_dtype, order)
        except StoreError as error:
            return futures.failed(error)
        where = [coordinates(located, dimension) for dimension in range(located.output_rank)]

        async def run() -> Array:
            boxes = self._pieces(where, tuple(slice(0, size) for size in shape))
            await run_bounded(lambda box: self._read_piece(where, box, out), boxes, cost=lambda _: 1, budget=2)
            return out

        return execution.start(run())

    def _pieces(self, where: Sequence[Array], box: tuple[slice, ...]) -> Iterator[tuple[slice, ...]]:
        """Yield boxes of the result that cover few enough elements of the base to be held in memory."""
        sizes = [side.stop - side.start for side in box]
        if 0 in sizes:
            return
        below = prod(
            len(np.unique(within(place, box))) * factor for place, factor in zip(where, self._factors, strict=True)
        )
        if below <= DOWNSAMPLED_ELEMENTS or max(sizes, default=1) == 1:
            yield box
            return
        axis = sizes.index(max(sizes))
        middle = (box[axis].start + box[axis].stop) // 2
        yield from self._pieces(where, (*box[:axis], slice(box[axis].start, middle), *box[axis + 1 :]))
        yield from self._pieces(where, (*box[:axis], slice(middle, box[axis].stop), *box[axis + 1 :]))

    async def _read_piece(self, where: Sequence[Array], box: tuple[slice, ...], out: Array) -> None:
        driver, below = self.base
        maps, sizes, groups, picks = [], [], [], []
        for dimension, (place, factor) in enumerate(zip(where, self._factors, strict=True)):
            low, high = below.domain.inclusive_min[dimension], below.domain.exclusive_max[dimension]
            wanted, pick = np.unique(within(place, box), return_inverse=True)
            members = members_of(wanted, factor, low, high)
            maps.append(_along(members, dimension, len(where)))
            sizes.append(len(members))
            groups.append(groups_of(wanted, factor, low, high))
            picks.append(pick.reshape(within(place, box).shape))
        view = IndexTransform(domain=IndexDomain(shape=sizes), output=maps)
        values = await driver.read(compose(view, below))
        reduced = await execution.offload(reduce_blocks, values, groups, self._method, kind="compute")
        out[box] = reduced[tuple(picks)] if picks else reduced

    async def resolve(self, transform: IndexTransform, *, fix: bool = False) -> IndexTransform:
        """Return the view with the bounds the base has now."""
        driver, below = self.base
        now = await driver.resolve(below, fix=fix)
        return compose(transform, identity(reduced_domain(now.domain, self._factors, self._method)))

    async def statistics(self, transform: IndexTransform, *, not_stored: bool, fully_stored: bool) -> Statistics:
        """Return the statistics of the part of the base that the view covers."""
        driver, below = self.base
        view = compose(self.base_view(transform), below)
        return await driver.statistics(view, not_stored=not_stored, fully_stored=fully_stored)

    def with_transaction(self, transaction: Any) -> DownsampleDriver:
        """Return the view of the base bound to a transaction."""
        driver, below = self.base
        bound = OpenArray(driver.with_transaction(transaction), below)
        return DownsampleDriver(bound, self._factors, self._method)


def _along(members: Array, dimension: int, rank: int) -> OutputIndexMap:
    """Return the output map to listed elements, without an index array where they are consecutive."""
    if len(members) and int(members[-1]) - int(members[0]) == len(members) - 1:
        return OutputIndexMap(input_dimension=dimension, offset=int(members[0]))
    shape = [1] * rank
    shape[dimension] = len(members)
    return OutputIndexMap(index_array=members.reshape(shape))
