"""Whether the object behind a virtual chunk is still the one that was referred to.

A reference has an entity tag, a time after which the object must not have been modified, or neither.  Tags are compared
with the generation that came with the bytes.  Times are asked for after the bytes were read, so an object that changed
in between is refused too; they are kept by generation: a file of ten thousand chunks is asked for its time once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from fsstore.errors import DataLossError, FailedPreconditionError
from fsstore.kvstore.contract.ability import TellsModified, able
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix
from fsstore.runtime import execution

__all__ = ["Expected", "Times", "check"]

_LOCAL = struct.Struct("<xQQq")  # how the driver of local files writes generations


class Expected(NamedTuple):
    """The checksum that a reference gives for the object at `key`, and the generation that its bytes came with."""

    store: KvPrefix
    key: str
    etag: str | None
    modified: int
    generation: bytes


Times = dict[tuple[str, bytes], float | None]
"""When objects were modified, by how they are called and their generation."""


async def check(expected: Sequence[Expected], times: Times) -> None:
    """Raise `DataLossError` if one of the objects has changed, `FailedPreconditionError` if its store cannot tell."""
    asked = [each for each in expected if each.modified and _name(each) not in times]
    unique = list({_name(each): each for each in asked}.values())
    for each, found in zip(unique, await execution.gather(map(_time, unique)), strict=True):
        times[_name(each)] = found
    for each in expected:
        if each.etag is not None:
            await _check_tag(each)
        elif each.modified:
            time = times[_name(each)]
            if time is None:
                raise _untold(each, "When it was modified")
            if time > each.modified:
                raise _changed(each)


def _name(each: Expected) -> tuple[str, bytes]:
    return each.store.describe(each.key), each.generation


async def _check_tag(each: Expected) -> None:
    tag, found = (each.etag or "").strip('"'), each.generation
    if tag == "*":
        return
    if each.store.driver.id == "file":
        size = (await each.store.read(each.key, 0, 0)).size
        _, inode, time = _LOCAL.unpack(found)
        known = f"{inode:x}-{time // 1000:x}-{size or 0:x}"
    elif found == UNKNOWN or found[:1] == b"\0" or found.startswith(b"date:"):
        raise _untold(each, "Its entity tag")
    else:
        known = found.partition(b"\n")[0].decode("latin-1").strip('"')
    if tag != known:
        raise _changed(each)


async def _time(each: Expected) -> float | None:
    driver = each.store.driver
    if driver.id == "file":
        return float(_LOCAL.unpack(each.generation)[2]) / 1e9
    telling = able(driver, TellsModified)
    return None if telling is None else await telling.modified(each.store.path + each.key)


def _changed(each: Expected) -> DataLossError:
    return DataLossError(f"{each.store.describe(each.key)} has changed since the virtual chunk was written")


def _untold(each: Expected, what: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"Whether {each.store.describe(each.key)} has changed since the virtual chunk was written is not known."
        f'  {what} is not told by its store; "checksums": false reads it all the same'
    )
