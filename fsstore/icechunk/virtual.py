"""Reading virtual chunks: ranges of objects elsewhere, under the policy of reference sets.

The repository grants nothing: which targets may be read, and with which credentials, is what the policy of reference
sets and the members `targets`, `rewrite` and `allow` say.  Ranges of one object are merged as those of reference sets.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np

from fsstore.errors import DataLossError, FailedPreconditionError, PermissionDeniedError, StoreError
from fsstore.icechunk.document import Reference
from fsstore.kvstore.contract.ability import TellsModified, able
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, ReadResult
from fsstore.redaction import redact_url
from fsstore.reference.target.targets import Asks, Fetcher
from fsstore.runtime import execution
from fsstore.values.json_value import quote

# Whether the object behind a virtual chunk is still the one that was referred to.


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


# The URL of a virtual chunk as it is asked for.


NAMED = "vcc://"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)\Z", re.DOTALL | re.IGNORECASE)


def expand(location: str, containers: Mapping[str, str]) -> str:
    """Return a location with the name of its container replaced by the prefix of that.

    >>> expand("vcc://era5/x.nc", {"era5": "s3://bucket/era5/"})
    's3://bucket/era5/x.nc'
    """
    if not location.startswith(NAMED):
        return location
    name, slash, rest = location.removeprefix(NAMED).partition("/")
    prefix = containers.get(name)
    if not slash or prefix is None:
        raise DataLossError(f"The configuration has no container for the virtual chunk at {quote(location)}")
    return prefix + rest


def target_of(url: str) -> str:
    """Return the URL of a target for the policy and the stores of reference sets, which decode only web addresses.

    >>> target_of("S3://bucket/a%20b")
    's3://bucket/a b'
    """
    match = _URL.match(url)
    if match is None:
        raise DataLossError(f"The location of a virtual chunk is no URL: {quote(redact_url(url)[:200])}")
    scheme, rest = match[1].lower(), match[2]
    authority, slash, path = rest.partition("/")
    decoded = unquote(re.split(r"[?#]", path, maxsplit=1)[0], errors="surrogateescape")
    odd = "@" in authority or any(char in decoded for char in "\0\\")
    if odd or ".." in decoded.split("/"):
        raise PermissionDeniedError(
            f"The location of a virtual chunk may not be read: {quote(redact_url(url)[:200])} has a user,"
            " a backslash, or climbs"
        )
    if scheme in ("http", "https"):
        return f"{scheme}://{rest}"
    return f"{scheme}://{authority}{slash}{decoded}"


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes `[start, stop)` of the chunk that `reference` leads to, wanted for `key`."""

    key: str
    reference: Reference
    start: int
    stop: int


def urls_of(references: Sequence[Reference], containers: Mapping[str, str]) -> list[str]:
    """Return the URLs of virtual chunks as they are asked for; each location is looked at once."""
    known: dict[str, str] = {}
    for reference in references:
        if reference.place not in known:
            known[reference.place] = target_of(expand(reference.place, containers))
    return [known[reference.place] for reference in references]


@dataclass(frozen=True, slots=True)
class VirtualReader:
    """Reads parts of virtual chunks; with `checksums` the objects must be those that were referred to."""

    fetcher: Fetcher
    checksums: bool
    waits: bool
    _times: Times = field(default_factory=dict)

    async def read(self, parts: Sequence[Part], containers: Mapping[str, str]) -> Sequence[ReadResult]:
        """Return the answers to parts, in order."""
        try:
            urls = urls_of([part.reference for part in parts], containers)
        except StoreError as error:
            raise error.within(f"Error reading {quote(parts[0].key)} in {self.fetcher.described}") from error
        here = self.waits or not execution.must_not_wait()
        if here or all(map(self.fetcher.targets.local, dict.fromkeys(urls))):
            return await self._read(parts, urls)
        return execution.call(self._read(parts, urls))  # the repository never waits, but its targets do

    async def _read(self, parts: Sequence[Part], urls: Sequence[str]) -> Sequence[ReadResult]:
        numbers: dict[str, int] = {}
        for url in urls:
            numbers.setdefault(url, len(numbers))
        offset = np.array([part.reference.offset for part in parts], np.int64)
        start = np.array([part.start for part in parts], np.int64) + offset
        stop = np.array([part.stop for part in parts], np.int64) + offset
        length = np.array([part.reference.length for part in parts], np.int64)
        number = np.array([numbers[each] for each in urls], np.int32)
        asks = Asks(
            [part.key for part in parts], number, start, stop, np.zeros(len(parts), np.bool_), offset, length
        )
        answers = await self.fetcher.fetch(asks, list(numbers))
        if self.checksums:
            await self._check(parts, urls, answers)
        return answers

    async def _check(self, parts: Sequence[Part], urls: Sequence[str], answers: Sequence[ReadResult]) -> None:
        targets = self.fetcher.targets
        wanted: dict[tuple[str, str | None, int, bytes], str] = {}
        for part, url, answer in zip(parts, urls, answers, strict=True):
            _, _, _, _, _, etag, modified = part.reference
            if etag is not None or modified:
                wanted.setdefault((url, etag, modified, answer.generation.rpartition(b"@")[0]), part.key)
        expected = []
        for url, etag, modified, generation in wanted:
            place = targets.locate(url)
            expected.append(Expected(await targets.root(place.root), place.key, etag, modified, generation))
        try:
            await check(expected, self._times)
        except StoreError as error:
            raise error.within(
                f"Error reading {quote(next(iter(wanted.values())))} in {self.fetcher.described}"
            ) from error
