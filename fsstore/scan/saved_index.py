"""A scan that was saved, used in place of scanning again: `index="x.nc.parq"`.

The index is a reference set that `references.open("x.nc").save(...)` wrote; it records the size and the version of the
file that it was made from.  If the file has changed since, it is refused, because its chunks are elsewhere.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from fsstore.errors import FailedPreconditionError, NotFoundError, StoreError
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix
from fsstore.kvstore.engine.secret import reveal
from fsstore.reference.load import Reading, load
from fsstore.reference.table.refset import ScanRecord
from fsstore.reference.table.set_state import State
from fsstore.reference.target.policy import beside
from fsstore.reference.target.targets import OpenTarget
from fsstore.scan.source import ScanSource
from fsstore.values.json_value import quote

__all__ = ["SavedIndex", "check_index", "load_index", "stamp_of"]


@dataclass(frozen=True, slots=True)
class SavedIndex:
    """An opened index, what it says of its file, and the directory it lies in."""

    described: str
    state: State
    record: ScanRecord
    place: KvPrefix


def stamp_of(base: KvPrefix, generation: bytes) -> str:
    """Return what a generation says of a file to other machines: of a local file, when it was changed."""
    if generation == UNKNOWN:
        return ""
    if base.driver.id == "file" and len(generation) == 24:  # device and inode are names of this machine
        return f"modified {struct.unpack('<16xq', generation)[0]}"
    return generation.decode("latin-1")


async def load_index(where: Any, name: str, open_target: OpenTarget) -> SavedIndex:
    """Return the index at a URL or spec; raises if there is none of the format `name`."""
    opened: Any = open_target(reveal(where), None)
    base: KvPrefix = opened if isinstance(opened, KvPrefix) else await opened
    advice = "make one with references.open(file).save(index)"
    try:
        state = await load(base, Reading())
    except NotFoundError as error:
        raise NotFoundError(f"There is no index at {base.describe()}; {advice}") from error
    except StoreError as error:
        raise error.within("Error opening the index") from error
    record: ScanRecord | None = state.base.scanned
    if record is None:
        raise FailedPreconditionError(
            f"The reference set {base.describe()} names no file it was made of, or was changed since; {advice}"
        )
    if record.format != name:
        raise FailedPreconditionError(
            f"The index {base.describe()} is one of the format {quote(record.format)}, not {quote(name)}"
        )
    return SavedIndex(base.describe(), state, record, await beside(base))


async def check_index(index: SavedIndex, base: KvPrefix) -> ScanSource:
    """Return the file, if it is the one that the index was made of; nothing of it is read."""
    found = await base.read("", 0, 0)
    if found.state != "value":
        raise NotFoundError(f"{base.describe()} does not exist")
    source = ScanSource(base, found.generation, index.record.size)
    if found.size is None:
        source = await ScanSource(base).begin()
    elif found.size != source.size:
        source.size = found.size
    record, stamp = index.record, stamp_of(base, source.generation)
    why = ""
    if source.size != record.size:
        why = f"the file has {source.size} bytes, and had {record.size}"
    elif stamp and record.stamp and stamp != record.stamp:
        why = f"the file is {quote(stamp)}, and was {quote(record.stamp)}"
    if why:
        raise FailedPreconditionError(
            f"The index {index.described} is not one of {base.describe()} as it is now: {why}; "
            "save it again with overwrite=True"
        )
    return source
