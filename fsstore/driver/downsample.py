"""`downsample`: an array at a lower resolution, computed from its base as it is read.

A request is cut into pieces of bounded size; each reads the elements below that it covers once, reduces them and
picks what was asked for.  Nothing is stored, and nothing can be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from fsstore.chunk.open_chunks import new_array
from fsstore.driver.contract import Array, ArrayDriver, OpenArray, Opening, Role, Statistics
from fsstore.driver.downsample_grid import covering, groups_of, members_of, reduced_domain, strided
from fsstore.driver.layer_parts import coordinates, within
from fsstore.driver.plain_kind import PlainKind
from fsstore.driver.reduce_blocks import METHODS, check_method, reduce_blocks
from fsstore.driver.tuning import DOWNSAMPLED_ELEMENTS
from fsstore.errors import StoreError
from fsstore.index import IndexDomain, IndexTransform, OutputIndexMap
from fsstore.index.compose import compose
from fsstore.index.transform import identity
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.fan_out import run_bounded
from fsstore.runtime.future import Future
from fsstore.schema.constraint import merge_domains
from fsstore.schema.schema import Schema
from fsstore.values.json_value import Fields, array_of, integer, one_of

__all__ = ["KIND", "DownsampleDriver"]


@dataclass(frozen=True, slots=True)
class DownsampleKind(PlainKind):
    """The driver kind.  The data type is the base's and stands once, beside the base."""

    id: str = "downsample"
    role: Role = "view"

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take factors and method."""
        factors = fields.require("downsample_factors", array_of(integer(1, 2**63 - 1)))
        method = fields.require("downsample_method", one_of(*METHODS))
        return {"downsample_factors": factors, "downsample_method": method}

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema with the rank that the factors tell."""
        merged = schema.copy()
        merged.update(rank=len(members["downsample_factors"]))
        return merged

    def known(self, members: Mapping[str, Any], schema: Schema, bases: Sequence[Schema]) -> Schema:
        """Return what is known of the base, seen at the lower resolution."""
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
        """Return the view of the base that a view is about, if the domain of the base is known."""
        if base is None:
            return None
        if members["downsample_method"] == "stride":
            return strided(transform, members["downsample_factors"])
        return covering(transform, members["downsample_factors"], base)

    def beneath(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the constraints at the higher resolution; of the domain, its labels: the bounds are not known."""
        steps = strided(
            identity(IndexDomain(rank=len(members["downsample_factors"]))), members["downsample_factors"]
        )
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
    maps = [
        OutputIndexMap(input_dimension=dimension, stride=factor) for dimension, factor in enumerate(factors)
    ]
    return base.through(IndexTransform(domain=reduced, output=maps))


class DownsampleDriver(ArrayDriver):
    """An open base at a lower resolution."""

    writable = False

    def __init__(self, base: OpenArray, factors: Sequence[int], method: str) -> None:
        rank = base.transform.input_rank
        if len(factors) != rank:
            raise StoreError(
                f"Number of downsample factors ({len(factors)}) does not match TensorStore rank ({rank})"
            )
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
        return _reduced_schema(
            driver.schema().through(transform), transform.domain, self._factors, self._method
        )

    def base_view(self, transform: IndexTransform) -> IndexTransform:
        """Return which view of the base a view of the array is about."""
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
            await run_bounded(
                lambda box: self._read_piece(where, box, out), boxes, cost=lambda _: 1, budget=2
            )
            return out

        return execution.start(run())

    def _pieces(self, where: Sequence[Array], box: tuple[slice, ...]) -> Iterator[tuple[slice, ...]]:
        """Yield boxes of the result whose elements below are few enough to be held at once."""
        sizes = [side.stop - side.start for side in box]
        if 0 in sizes:
            return
        below = prod(
            len(np.unique(within(place, box))) * factor
            for place, factor in zip(where, self._factors, strict=True)
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

    async def statistics(
        self, transform: IndexTransform, *, not_stored: bool, fully_stored: bool
    ) -> Statistics:
        """Return the base's statistics of what the view is about."""
        driver, below = self.base
        view = compose(self.base_view(transform), below)
        return await driver.statistics(view, not_stored=not_stored, fully_stored=fully_stored)

    def with_transaction(self, transaction: Any) -> DownsampleDriver:
        """Return the view of the base bound to a transaction."""
        driver, below = self.base
        bound = OpenArray(driver.with_transaction(transaction), below)
        return DownsampleDriver(bound, self._factors, self._method)


def _along(members: Array, dimension: int, rank: int) -> OutputIndexMap:
    """Return the map to listed elements, without a list where they follow each other."""
    if len(members) and int(members[-1]) - int(members[0]) == len(members) - 1:
        return OutputIndexMap(input_dimension=dimension, offset=int(members[0]))
    shape = [1] * rank
    shape[dimension] = len(members)
    return OutputIndexMap(index_array=members.reshape(shape))
