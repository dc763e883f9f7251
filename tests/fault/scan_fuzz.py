"""Damaged files of the scanned formats, opened and read: run as a program, `scan_fuzz.py FOLDER FIRST COUNT`.

A seed chooses a file of the folder, and cuts it off, overwrites bytes or numbers in it, or repeats a part.  What may happen
is an error of fsstore, or values.  Each seed is printed before its file is read, so that the caller knows which one
crashed the process; a JSON line says what went wrong otherwise.
"""

import json
import random
import resource
import sys
import time
from pathlib import Path

import fsstore as ts
from fsstore.errors import StoreError

_MOST_S = 20.0
_SCHEMES = {".h5": "hdf5", ".nc": "netcdf3", ".tif": "tiff", ".fits": "fits", ".grib": "grib"}
_NUMBERS = [0, 1, 0xFF, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**62, 2**63, 2**64 - 1]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return a file with something wrong in it."""
    out = bytearray(data)
    match chance.randrange(4):
        case 0:
            return bytes(out[: chance.randrange(len(out))])
        case 1:
            for _ in range(chance.choice((1, 1, 4, 32))):
                out[chance.randrange(len(out))] = chance.randrange(256)
        case 2:
            at, width = chance.randrange(max(1, len(out) - 8)), chance.choice((1, 2, 4, 8))
            number = chance.choice(_NUMBERS) & (256**width - 1)
            out[at : at + width] = number.to_bytes(width, chance.choice(("little", "big")))
        case _:
            size = chance.randrange(1, 200)
            start, at = chance.randrange(len(out)), chance.randrange(len(out))
            out[at : at + size] = out[start : start + size]
    return bytes(out)


def read_all(url: str) -> int:
    """Return how many arrays of a file could be read."""
    count = 0
    for entry in ts.list_arrays(url):
        size = 1
        for each in entry.shape:
            size *= each
        if size > 10**6:
            continue
        try:
            ts.open({"driver": "zarr", "kvstore": f"{url}{entry.path}/"}).result().read().result()
            count += 1
        except StoreError:
            continue
    return count


def main(folder: str, first: int, count: int) -> None:
    """Work through seeds."""
    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
    files = sorted(path for path in Path(folder).iterdir() if path.suffix in _SCHEMES)
    target = Path(folder) / f"damaged-{first}"
    read = 0
    read_all(f"file://{files[0]}|{_SCHEMES[files[0].suffix]}:")  # loads what takes long
    for seed in range(first, first + count):
        chance = random.Random(seed)
        source = chance.choice(files)
        target.write_bytes(damaged(source.read_bytes(), chance))
        print(seed, flush=True)
        began = time.monotonic()
        try:
            read += read_all(f"file://{target}|{_SCHEMES[source.suffix]}:")
        except StoreError as error:
            if str(target) not in str(error):
                print(json.dumps({"seed": seed, "file": source.name, "message": str(error)}), flush=True)
        except Exception as error:  # noqa: BLE001  # what is looked for
            print(json.dumps({"seed": seed, "file": source.name, "error": repr(error)[:500]}), flush=True)
        if time.monotonic() - began > _MOST_S:
            print(json.dumps({"seed": seed, "file": source.name, "seconds": time.monotonic() - began}), flush=True)
    print(json.dumps({"done": count, "read": read}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
