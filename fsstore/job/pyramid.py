"""`build_pyramid`: the lower resolutions of an array beside it, and the metadata by which viewers find them.

Each level is computed from the one before, so that everything is read a little more than once.  The metadata are those
of OME-Zarr: version 0.5 in zarr v3, version 0.4 in zarr v2.  They are written last, so that a viewer sees no level
that is not whole; levels that a killed run has finished are not made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from fsstore.arrays.layers import downsample
from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group, open_group
from fsstore.dataset.image import (
    ImageAxis,
    LevelPlace,
    LevelWords,
    described,
    image_words,
    kind_of,
    ome_image,
    with_image,
)
from fsstore.errors import AlreadyExistsError, StoreError
from fsstore.format.attributes import ARRAY_DIMENSIONS
from fsstore.job.copy import copy
from fsstore.job.ends import array_like, check_apart
from fsstore.job.plan import CopyReport, combined
from fsstore.kvstore.kv_store import KvStore
from fsstore.runtime import execution
from fsstore.runtime.future import Future

_SMALL = 256  # elements along the longest side of the last level, unless levels are given
_MOST = 32
_UNITS = {
    "pm": "picometer", "nm": "nanometer", "um": "micrometer", "µm": "micrometer", "mm": "millimeter",
    "cm": "centimeter", "m": "meter", "km": "kilometer", "ms": "millisecond", "s": "second", "min": "minute",
    "h": "hour",
}  # fmt: skip
"""The names that OME-Zarr has for units."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels to make below a base: the factors from each to the next, and the method."""

    base: str
    factors: tuple[tuple[int, ...], ...]
    method: Any

    def to_json(self) -> dict[str, Any]:
        """Return the levels as JSON."""
        return {"base": self.base, "factors": [list(each) for each in self.factors], "method": self.method}

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> Levels:
        """Return the levels that JSON tells."""
        return cls(said["base"], tuple(tuple(each) for each in said["factors"]), said["method"])


def build_pyramid(
    group: Any,
    base: str = "0",
    *,
    levels: int | None = None,
    factors: int | Sequence[int] | Sequence[Sequence[int]] = 2,
    method: str = "mean",
    if_exists: str = "raise",
    executor: Executor | None = None,
    max_memory: int | str = "512MB",
    progress: Any = None,
    context: Context | None = None,
) -> Future[CopyReport]:
    """Begin to make lower resolutions `1`, `2`, ... of the array `base` of a group, and OME-Zarr metadata for them.

    `factors` are those from one level to the next: a number for all dimensions of space, one a dimension, or a list
    with those of each level.  `levels` says how many there are with the base; without it they go on until the longest
    side is at most 256.  `method` is one of `downsample`: `mean`, `median`, `mode` (labels), `min`, `max`, `stride`.
    How large an element of the base is, its `dimension_units` say.

    >>> import fsstore as ts
    >>> group = ts.open_group("memory://image/", mode="w").result()
    >>> base = group.create_array("0", shape=[8, 8], dtype="u1", dimension_names=["y", "x"]).result()
    >>> build_pyramid(group, levels=3).result().arrays
    ('1', '2')
    """
    if if_exists not in ("raise", "replace"):
        raise ValueError(f'if_exists is "raise" or "replace", not {if_exists!r}')
    chosen = context_of(context)

    async def run() -> CopyReport:
        replaces = if_exists == "replace"
        opened, array, wanted = await wanted_levels(group, base, (levels, factors, method), chosen, replaces=replaces)
        options: dict[str, Any] = {
            "executor": executor, "max_memory": max_memory, "progress": progress, "context": context,
            "if_exists": "replace" if replaces else "skip",
        }  # fmt: skip
        report = await _made(opened, array, wanted, options)
        await execution.offload(_describe, opened, array, wanted)
        return report

    return execution.start(run())


async def wanted_levels(
    group: Any, base: str, how: tuple[int | None, Any, str], context: Context, *, replaces: bool = False
) -> tuple[Group, TensorStore, Levels]:
    """Return a group, its array of full resolution, and the levels to make; raises if there are any, to be kept."""
    if isinstance(group, TensorStore):
        raise StoreError("A pyramid is made in a group: give the group that the array is in, and the array's name")
    opened = group if isinstance(group, Group) else await open_group(group, context=context)
    array = await opened.open(base)
    if not isinstance(array, TensorStore):
        raise StoreError(f"{base!r} of {opened!r} is no array")
    axes = await execution.offload(_axes, array)
    named = await execution.offload(_named, opened)
    if named and not replaces:
        raise AlreadyExistsError(
            f'{opened!r} has levels {", ".join(named)} already; if_exists="replace" of `build_pyramid` makes them anew'
        )
    levels, factors, method = how
    return opened, array, Levels(base, _factors(array, axes, factors, levels), method)


async def describe_levels(place: KvStore, made: Levels) -> None:
    """Write the metadata of levels that are there."""
    group = await open_group(place, mode="r+")
    await execution.offload(_describe, group, await group.open(made.base), made)


async def _made(group: Group, array: TensorStore, wanted: Levels, options: Mapping[str, Any]) -> CopyReport:
    """Copy views of lower resolution, each of the level before."""
    for number in range(1, len(wanted.factors) + 1):
        await check_apart(array, (group.kvstore / f"{number}/")._open)
    reports, above = [], array
    for number, factors in enumerate(wanted.factors, 1):
        view = downsample(above, factors, wanted.method)
        schema = await execution.offload(level_wishes, group, array)
        report = await copy(view, group.kvstore / f"{number}/", schema=schema, **options)
        reports.append(replace(report, arrays=(str(number),), skipped=()))
        above = await group.open(str(number))
    return combined(reports)


def level_wishes(group: Group, array: TensorStore) -> dict[str, Any]:
    """Return the wishes for a level: everything as in the base."""
    wanted, fill = array_like(array, group._place.words, {}, array.attrs.asdict())
    made: dict[str, Any] = {
        "zarr_format": group.zarr_format, "chunks": wanted.chunks, "codec": wanted.codec, "attributes": {},
    }  # fmt: skip
    optional = {"shards": wanted.shards, "dimension_names": wanted.dimension_names, "fill_value": fill}
    return made | {name: value for name, value in optional.items() if value is not None}


def _axes(array: TensorStore) -> tuple[ImageAxis, ...]:
    """Return the axes in the words of OME-Zarr, named as the dimensions are, or by the usual letters."""
    names: Any = array.attrs.asdict().get(ARRAY_DIMENSIONS) or list(array.domain.labels)
    if array.rank > 5 and not all(names):
        raise StoreError("An array of more than five dimensions needs names for them to become a pyramid")
    letters = "tczyx"[-array.rank :] if array.rank <= 5 else ""
    named = [name or letters[number] for number, name in enumerate(names)]
    return tuple(
        ImageAxis(name, kind_of(name), _UNITS.get(unit.base_unit, unit.base_unit) or None if unit else None)
        for name, unit in zip(named, array.dimension_units, strict=True)
    )


def _factors(
    array: TensorStore, axes: Sequence[ImageAxis], factors: Any, levels: int | None
) -> tuple[tuple[int, ...], ...]:
    is_space = [axis.kind == "space" for axis in axes]
    if isinstance(factors, int):
        factors = [factors if space else 1 for space in is_space]
    each = [tuple(map(int, one)) for one in factors] if not isinstance(factors[0], int) else None
    if each is not None:
        found = each
    else:
        count = levels - 1 if levels is not None else _count(array, tuple(factors))
        found = [tuple(factors)] * count
    for one in found:
        if len(one) != array.rank or any(factor < 1 for factor in one):
            raise StoreError(f"Factors are {array.rank} positive numbers, one a dimension, not {one}")
    return tuple(found)


def _count(array: TensorStore, factors: tuple[int, ...]) -> int:
    """Return how many levels there are below the base until the longest side that shrinks is short."""
    count, sides = 0, list(array.shape)
    while count < _MOST and max((s for s, f in zip(sides, factors, strict=True) if f > 1), default=0) > _SMALL:
        sides = [-(-side // factor) for side, factor in zip(sides, factors, strict=True)]
        count += 1
    return count


def _named(group: Group) -> list[str]:
    """Return the paths of the levels that the metadata name, beside the base."""
    said = described(group.attrs.asdict())
    return [level.path for level in said.levels[1:]] if said is not None else []


def _describe(group: Group, array: TensorStore, wanted: Levels) -> None:
    """Write the metadata; what the base is already said to be stays, and else its units say how large elements are."""
    attributes = group.attrs.asdict()
    said = described(attributes)
    axes = _axes(array)
    if said is not None and said.levels[0].path == wanted.base:
        levels = [said.levels[0]]
    else:
        levels = [LevelWords(wanted.base, LevelPlace(tuple(u.multiplier if u else 1.0 for u in array.dimension_units)))]
    for number, factors in enumerate(wanted.factors, 1):
        # an element stands for a block, and lies in its middle
        place = levels[-1].place.coarser(factors, centred=wanted.method != "stride")
        levels.append(LevelWords(str(number), place))
    before = image_words(attributes)
    group.attrs.update(with_image(attributes, ome_image(before, axes, levels, wanted.method), group.zarr_format))
