"""What xarray's engines `h5netcdf` and `netcdf4` show of the corpus: pickled, by a process of its own for each engine.

The two bring libraries of HDF5 of their own, which disturb each other.  netcdf4 ends the process at half floats, at texts
that were never written, and with the filters of plug-ins, so it is asked for files of the filters that every library of
HDF5 has.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path

import xarray as xr

OPTIONS = {"h5netcdf": {"phony_dims": "sort"}, "netcdf4": {}}
_DEADLY = ("bitshuffle", "blosc", "bzip2", "fills", "lz4", "lzf", "szip", "types", "user_block", "zfp", "zstd")


def shown(path: Path, engine: str) -> xr.Dataset | str:
    """Return the dataset of a file, loaded, or why the engine refuses it."""
    if engine == "netcdf4" and path.stem.startswith(_DEADLY):
        return "it may end the process"
    try:
        with xr.open_dataset(path, engine=engine, decode_cf=False, **OPTIONS[engine]) as found:
            return found.load()
    except Exception as error:  # the engine's own, of any kind
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    wanted, target = sys.argv[1], Path(sys.argv[2])
    if wanted == "h5netcdf":
        import hdf5plugin  # noqa: F401  # it registers filters
    everything = {name: shown(target.parent / f"{name}.h5", wanted) for name in sys.argv[3:]}
    target.write_bytes(pickle.dumps(everything))
