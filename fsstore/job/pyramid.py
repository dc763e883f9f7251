"""`build_pyramid`: the lower resolutions of an array beside it, and the metadata by which viewers find them.

Each level is computed from the one before, so that everything is read a little more than once.  The metadata are those
of OME-Zarr: version 0.5 in zarr v3, version 0.4 in zarr v2.  They are written last, so that a viewer sees no level
that is not whole; levels that a killed run has finished are not made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from fsstore.arrays.layers import downsample
from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group, open_group
from fsstore.errors import AlreadyExistsError, StoreError
from fsstore.format.node_words import ARRAY_DIMENSIONS
from fsstore.job.copy import copy
from fsstore.job.ends import array_like
from fsstore.job.report import CopyReport, combined
from fsstore.runtime import execution
from fsstore.runtime.future import Future

__all__ = ["build_pyramid"]

_SMALL = 256  # elements along the longest side of the last level, unless levels are given
_MOST = 32
_KINDS = {"t": "time", "time": "time", "c": "channel", "channel": "channel"}


@dataclass(frozen=True, slots=True)
class _Levels:
    """What is to be made: factors from each level to the next, and how."""

    factors: tuple[tuple[int, ...], ...]
    method: Any
    replaces: bool


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
        opened = group if isinstance(group, Group) else await open_group(group, context=chosen)
        array = await opened.open(base)
        if not isinstance(array, TensorStore):
            raise StoreError(f"{base!r} of {opened!r} is no array")
        axes = await execution.offload(_axes, array)
        wanted = _Levels(_factors(array, axes, factors, levels), method, if_exists == "replace")
        named = await execution.offload(_named, opened)
        if named and not wanted.replaces:
            raise AlreadyExistsError(
                f'{opened!r} has levels {", ".join(named)} already; if_exists="replace" makes them anew'
            )
        options = {"executor": executor, "max_memory": max_memory, "progress": progress, "context": context}
        report = await _made(opened, array, wanted, options)
        await execution.offload(_describe, opened, base, axes, wanted)
        return report

    return execution.start(run())


async def _made(group: Group, array: TensorStore, wanted: _Levels, options: Mapping[str, Any]) -> CopyReport:
    """Copy views of lower resolution, each of the level before."""
    reports, above = [], array
    for number, factors in enumerate(wanted.factors, 1):
        view = downsample(above, factors, wanted.method)
        schema = await execution.offload(_schema, group, array)
        if_exists: Any = "replace" if wanted.replaces else "skip"
        report = await copy(view, group.kvstore / f"{number}/", schema=schema, if_exists=if_exists, **options)
        reports.append(
            CopyReport(
                (str(number),), report.tasks, report.resumed, report.nbytes, report.seconds, report.retries
            )
        )
        above = await group.open(str(number))
    return combined(reports)


def _schema(group: Group, array: TensorStore) -> dict[str, Any]:
    """Return the wishes for a level: everything as in the base."""
    wanted, fill = array_like(array, group._place.words, {}, array.attrs.asdict())
    made: dict[str, Any] = {
        "zarr_format": group.zarr_format, "chunks": wanted.chunks, "codec": wanted.codec, "attributes": {},
    }  # fmt: skip
    optional = {"shards": wanted.shards, "dimension_names": wanted.dimension_names, "fill_value": fill}
    return made | {name: value for name, value in optional.items() if value is not None}


def _axes(array: TensorStore) -> list[dict[str, str]]:
    """Return the axes in the words of OME-Zarr, named as the dimensions are, or by the usual letters."""
    names: Any = array.attrs.asdict().get(ARRAY_DIMENSIONS) or list(array.domain.labels)
    if array.rank > 5 and not all(names):
        raise StoreError("An array of more than five dimensions needs names for them to become a pyramid")
    letters = "tczyx"[-array.rank :] if array.rank <= 5 else ""
    named = [name or letters[number] for number, name in enumerate(names)]
    return [{"name": name, "type": _KINDS.get(name.lower(), "space")} for name in named]


def _factors(
    array: TensorStore, axes: Sequence[Mapping[str, str]], factors: Any, levels: int | None
) -> tuple[tuple[int, ...], ...]:
    is_space = [axis["type"] == "space" for axis in axes]
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
    while (
        count < _MOST and max((s for s, f in zip(sides, factors, strict=True) if f > 1), default=0) > _SMALL
    ):
        sides = [-(-side // factor) for side, factor in zip(sides, factors, strict=True)]
        count += 1
    return count


def _multiscales(group: Group) -> list[Any]:
    attributes = dict(group.attrs)
    holder = attributes.get("ome", {}) if group.zarr_format == 3 else attributes
    found = holder.get("multiscales") if isinstance(holder, Mapping) else None
    return found if isinstance(found, list) else []


def _named(group: Group) -> list[str]:
    """Return the paths of the levels that the metadata name, beside the base."""
    found = [each.get("datasets", []) for each in _multiscales(group)[:1] if isinstance(each, Mapping)]
    return [str(level.get("path")) for levels in found for level in levels[1:]]


def _describe(group: Group, base: str, axes: list[dict[str, str]], wanted: _Levels) -> None:
    """Write the metadata; what the base is already said to be stays."""
    before: Any = (_multiscales(group) or [{}])[0]
    datasets = [{"path": base, **_placed([1.0] * len(axes), [0.0] * len(axes))}]
    if before.get("datasets"):
        datasets = [dict(before["datasets"][0])]
    scale, shift = _read_placed(datasets[0], len(axes))
    for number, factors in enumerate(wanted.factors, 1):
        if wanted.method != "stride":  # an element stands for a block, and lies in its middle
            shift = [
                at + side * (factor - 1) / 2 for at, side, factor in zip(shift, scale, factors, strict=True)
            ]
        scale = [side * factor for side, factor in zip(scale, factors, strict=True)]
        datasets.append({"path": str(number), **_placed(scale, shift)})
    made = {**before, "axes": before.get("axes", axes), "datasets": datasets, "type": wanted.method}
    if group.zarr_format == 3:
        ome = {**dict(dict(group.attrs).get("ome", {})), "version": "0.5", "multiscales": [made]}
        group.attrs["ome"] = ome
    else:
        group.attrs["multiscales"] = [{**made, "version": "0.4"}]


def _placed(scale: Sequence[float], shift: Sequence[float]) -> dict[str, Any]:
    moves: list[dict[str, Any]] = [{"type": "scale", "scale": list(scale)}]
    if any(shift):
        moves.append({"type": "translation", "translation": list(shift)})
    return {"coordinateTransformations": moves}


def _read_placed(dataset: Mapping[str, Any], rank: int) -> tuple[list[float], list[float]]:
    scale, shift = [1.0] * rank, [0.0] * rank
    for move in dataset.get("coordinateTransformations", []):
        if move.get("type") == "scale" and len(move.get("scale", [])) == rank:
            scale = [float(each) for each in move["scale"]]
        if move.get("type") == "translation" and len(move.get("translation", [])) == rank:
            shift = [float(each) for each in move["translation"]]
    return scale, shift
