"""The same data in several resolutions: `multiscales` of OME-Zarr, and the scales of precomputed volumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsstore.dataset.multiscale import Description, described
from fsstore.errors import StoreError
from fsstore.viewer.tuning import LEVELS

__all__ = ["Level", "axes_of", "datasets_of", "levels_of", "scales_of"]


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution: its array, and how many elements of the finest one of its own covers along each dimension."""

    store: Any
    factors: tuple[float, ...]


def _image(attributes: Mapping[str, Any]) -> Description | None:
    """Return what attributes say of an image in several resolutions; None where that is not to be understood."""
    try:
        return described(attributes)
    except StoreError:  # the arrays are shown all the same
        return None


def axes_of(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the dimensions of an image in several resolutions."""
    image = _image(attributes)
    return tuple(axis.name for axis in image.axes) if image is not None else ()


def datasets_of(attributes: Mapping[str, Any]) -> list[str]:
    """Return the paths of the arrays that the attributes of a group call resolutions of one image, the finest first."""
    image = _image(attributes)
    return [level.path for level in image.levels[:LEVELS]] if image is not None else []


def levels_of(stores: Sequence[Any]) -> list[Level]:
    """Return arrays as resolutions of the first; those of another rank, or that are not smaller, are left out."""
    base = stores[0]
    found = [Level(base, (1.0,) * base.rank)]
    for store in stores[1:]:
        if store.rank != base.rank or 0 in store.shape:
            continue
        factors = tuple(_ratio(large, small) for large, small in zip(base.shape, store.shape, strict=True))
        if min(factors) >= 1 and sum(factors) > sum(found[-1].factors):
            found.append(Level(store, factors))
    return found


def _ratio(large: int, small: int) -> float:
    """Return how much larger a size is: a whole number where rounding alone explains that it is not."""
    whole = round(large / small)
    return float(whole) if whole and small in (large // whole, -(-large // whole)) else large / small


def scales_of(store: Any, opened: Callable[[Any], Any]) -> list[Any]:
    """Return the array, and where it is a scale of a precomputed volume the coarser ones behind it."""
    spec = store.spec().to_json()
    if spec.get("driver") != "neuroglancer_precomputed" or ("transform" in spec and store.rank != 4):
        return [store]
    stores, first = [store], spec.get("scale_index", 0)
    for number in range(first + 1, first + LEVELS):
        try:
            stores.append(
                opened({"driver": spec["driver"], "kvstore": spec["kvstore"], "scale_index": number})
            )
        except StoreError:  # there are no more
            break
    return stores
