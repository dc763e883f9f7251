"""What users of xarray see: datasets opened, cut and averaged with the engine of fsstore, and with that for zarr."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload
from benchmarks.workloads_read import MEBIBYTE

_VARIABLES = ("air", "sea", "wind", "rain")
_SHAPE = (128, 192, 320)
_CHUNKS = (16, 96, 80)
_ZARRS = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}


def _work(folder: Path, work: Callable[[Any], Any], chunks: Any = None) -> Mapping[str, Contender]:
    """Return `work` over a dataset that each engine opens; `chunks={}` makes it one of dask."""
    import xarray as xr
    import zarr

    values = np.random.default_rng(3).normal(size=_SHAPE).cumsum(0).round(1).astype("float32")
    axes = {name: (name, np.arange(size)) for name, size in zip("tyx", _SHAPE, strict=True)}
    variables = {name: (tuple("tyx"), values + number) for number, name in enumerate(_VARIABLES)}
    path = folder / "x.zarr"
    xr.Dataset({**axes, **variables}).to_zarr(
        path, zarr_format=3, consolidated=False, encoding={name: {"chunks": _CHUNKS} for name in _VARIABLES}
    )

    def by_engine(**engine: Any) -> Any:
        with xr.open_dataset(path, chunks=chunks, **engine) as dataset:
            return work(dataset)

    def by_zarrs() -> Any:
        with zarr.config.set(_ZARRS):
            return by_engine(engine="zarr", consolidated=False)

    return {
        "fsstore": partial(by_engine, engine="fsstore"),
        "zarr": partial(by_engine, engine="zarr", consolidated=False),
        "zarrs": by_zarrs,
    }


@workload("xarray opens a dataset of 7 variables")
def opened(folder: Path) -> Mapping[str, Contender]:
    """Open the group, its arrays and its indexes."""
    return _work(folder, lambda dataset: dict(dataset.sizes))


@workload("xarray reads a series at one point")
def series(folder: Path) -> Mapping[str, Contender]:
    """Open, and read one cell of each of eight chunks."""
    return _work(folder, lambda dataset: dataset["air"].isel(y=50, x=60).to_numpy())


@workload("xarray loads 120 MiB", size=120 * MEBIBYTE)
def loaded(folder: Path) -> Mapping[str, Contender]:
    """Open, and read all variables into memory."""
    return _work(folder, lambda dataset: [dataset[name].to_numpy() for name in _VARIABLES])


@workload("xarray and dask average 120 MiB", size=120 * MEBIBYTE)
def averaged(folder: Path) -> Mapping[str, Contender]:
    """Open as dask arrays along the chunks, and average each variable."""
    return _work(folder, lambda dataset: [float(dataset[name].mean()) for name in _VARIABLES], {})


def _writing(folder: Path, blocks: tuple[int, ...]) -> Mapping[str, Contender]:
    """Return the writing of a dataset of dask in blocks; `to_zarr` needs blocks along the chunks, or makes them."""
    import xarray as xr

    import fsstore as ts

    values = np.random.default_rng(3).normal(size=_SHAPE).cumsum(0).round(1).astype("float32")
    dataset = xr.Dataset({name: (tuple("tyx"), values + number) for number, name in enumerate(_VARIABLES)})
    lazy = dataset.chunk(dict(zip("tyx", blocks, strict=True)))
    encoding = {name: {"chunks": _CHUNKS} for name in _VARIABLES}
    unsynced = ts.Context({"file_io_sync": False})

    def by_zarr(source: Any, **options: Any) -> None:
        source.to_zarr(folder / "z.zarr", mode="w", zarr_format=3, consolidated=False, encoding=encoding, **options)

    return {
        "fsstore": lambda: (
            ts.write_dataset(lazy, folder / "f.zarr", mode="w", encoding=encoding, consolidated=False, context=unsynced)
            and None
        ),
        "zarr": partial(by_zarr, lazy, align_chunks=blocks != _CHUNKS),
        "zarr, aligned": partial(by_zarr, dataset.chunk(dict(zip("tyx", _CHUNKS, strict=True)))),
    }


@workload("xarray and dask write 120 MiB along the chunks", size=120 * MEBIBYTE)
def written(folder: Path) -> Mapping[str, Contender]:
    """Write four variables, each block a chunk, over what was written before."""
    return _writing(folder, _CHUNKS)


@workload("xarray and dask write 120 MiB in other blocks", size=120 * MEBIBYTE)
def written_across(folder: Path) -> Mapping[str, Contender]:
    """Write four variables in blocks that cut the chunks, which `to_zarr` aligns when it is told to."""
    return _writing(folder, (20, 70, 110))
