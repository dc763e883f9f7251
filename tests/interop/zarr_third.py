"""zarr-python beside the other two: it reads what they stored, changes it, and they read what it made of it.

zarr-python supports less and misreads some arrays.  So what it makes of the files of one library must be what it
makes of those of the other, whether it reads them, misreads them or refuses them; where it reads the files of both as
they do themselves, it writes too.  How often that was is counted, so that a test can ask for enough.
"""

import random
import warnings

import numpy as np
import zarr
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore


def opened(files, spec):
    """Return the store and the array that zarr-python opens in some files."""
    store = MemoryStore({key: cpu.Buffer.from_bytes(value) for key, value in files.items()})
    return store, zarr.open_array(store, mode="r+", zarr_format=3 if spec["driver"] == "zarr3" else 2)


def field_of(spec, array):
    """Return the name of the field that a program is about, or None."""
    names = array.dtype.names
    return (spec.get("field") or names[0]) if names else None


def native(values):
    """Return values in the byte order of the machine."""
    return np.asarray(values).astype(np.asarray(values).dtype.newbyteorder("="))


def read(files, spec, bits):
    """Return the bits that zarr-python reads, or the kind of its refusal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _, array = opened(files, spec)
            values = np.asarray(array[...])
            name = field_of(spec, array)
            return bits(native(values if name is None else values[name]))
        except Exception as error:  # noqa: BLE001  # any failure is a result here
            return type(error).__name__


def write(files, spec, seed):
    """Let zarr-python write a box of random elements; return its files, or None if it refuses."""
    rng = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            store, array = opened(files, spec)
            box = tuple(slice(*sorted(rng.randint(0, size) for _ in "ab")) for size in array.shape)
            box = box if rng.random() < 0.7 else tuple(slice(0, size) for size in array.shape)
            shape = tuple(part.stop - part.start for part in box)
            if 0 in shape:
                return None
            # octets that are elements of every data type
            octets = np.random.default_rng(seed).integers(0, 2, (*shape, array.dtype.itemsize), np.uint8)
            array[box or ...] = octets.view(array.dtype)[..., 0]
        except Exception:  # noqa: BLE001  # zarr-python writes less than it reads
            return None
        return {key: value.to_bytes() for key, value in store._store_dict.items()}
