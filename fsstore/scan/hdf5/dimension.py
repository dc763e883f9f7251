"""The names of dimensions, as NetCDF 4 means them.

A dimension is called like the dataset that is its scale.  A coordinate of several dimensions, which cannot have scales
because it is one, numbers them instead.  Where there is no scale, dimensions of a group are called `phony_dim_k`: one
for each size, and one more where an array has the same size twice.

A dimension without limit is as long as the longest variable along it: a shorter one has its fill value there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fsstore.scan.hdf5.dataset import Dataset

__all__ = ["dimension_names", "grown"]


def _scales(datasets: Mapping[str, Dataset]) -> dict[int, Dataset]:
    """Return the scales by the addresses of their headers."""
    out: dict[int, Dataset] = {}
    for dataset in datasets.values():
        if dataset.scale.is_scale:
            out.setdefault(dataset.address, dataset)
    return out


def _axes(
    dataset: Dataset, scales: Mapping[int, Dataset], by_id: Mapping[int, Dataset]
) -> list[Dataset | None]:
    """Return the scale of each dimension of a dataset."""
    count, scale = len(dataset.shape), dataset.scale
    if scale.attached and len(scale.attached) == count:
        return [scales.get(address) for address in scale.attached]
    if scale.is_scale and count == 1:
        return [dataset]
    if scale.coordinates and len(scale.coordinates) == count:
        return [by_id.get(number) for number in scale.coordinates]
    return [dataset if scale.is_scale and not axis else None for axis in range(count)]


def _resolved(datasets: Mapping[str, Dataset]) -> dict[str, list[Dataset | None]]:
    scales = _scales(datasets)
    by_id = {each.scale.dimid: each for each in scales.values() if each.scale.dimid is not None}
    return {path: _axes(dataset, scales, by_id) for path, dataset in datasets.items()}


def grown(datasets: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Return the datasets with the shapes that NetCDF gives them."""
    axes, lengths = _resolved(datasets), dict[int, int]()
    for path, dataset in datasets.items():
        for scale, length, most in zip(axes[path], dataset.shape, dataset.maxshape, strict=True):
            if scale is not None and most == 0:
                lengths[scale.address] = max(lengths.get(scale.address, 0), length)
    out = {}
    for path, dataset in datasets.items():
        shape = tuple(
            max(length, lengths.get(scale.address, 0)) if scale is not None and most == 0 else length
            for scale, length, most in zip(axes[path], dataset.shape, dataset.maxshape, strict=True)
        )
        out[path] = dataset if shape == dataset.shape else replace(dataset, shape=shape)
    return out


def dimension_names(datasets: Mapping[str, Dataset]) -> dict[str, list[str]]:
    """Return the names of the dimensions of each dataset."""
    axes, out = _resolved(datasets), {}
    phony: dict[str, dict[tuple[int, int], int]] = {}
    for path, dataset in datasets.items():
        known = phony.setdefault(path.rpartition("/")[0], {})
        times: dict[int, int] = {}
        names = []
        for scale, length in zip(axes[path], dataset.shape, strict=True):
            if scale is not None and _fits(scale, length):
                names.append(scale.path.rpartition("/")[2])
                continue
            nth = times[length] = times.get(length, -1) + 1
            names.append(f"phony_dim_{known.setdefault((length, nth), len(known))}")
        out[path] = names
    return out


def _fits(scale: Dataset, length: int) -> bool:
    """Return whether a scale is as long as the dimension: a shorter one would cut values off."""
    return len(scale.shape) != 1 or scale.scale.hidden or scale.shape[0] == length
