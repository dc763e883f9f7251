"""Whether two places are the same, or one lies in the other, under any name.

A place is identified from the root outwards: a file of this machine by device and inode, so that links, mounts, case
and protocols do not matter; a bucket, a host or a memory by its name; an archive, a database or a set by the place that
holds it.

Another server may show the same files under an unrelated name.  In that case `shows` looks for a key of the target at
the source: a claim that was just written is at no other place.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix, Read, StandsOver
from fsstore.kvstore.engine.driver import EngineDriver
from fsstore.kvstore.engine.secret import reveal
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.root.live import MappingDriver, ZarrStoreDriver
from fsstore.kvstore.spec_parse import OpenKv, as_directory

Relation: TypeAlias = Literal["is", "lies in", "holds"]
"""The relation of the first place to the second."""

_CACHED = re.compile(r"^(?:[a-z]+cache::)+")
_AMAZON = re.compile(r"(?:(?P<bucket>[a-z0-9.-]+)\.)?s3[a-z0-9.-]*\.amazonaws\.com/")
_ALIASES = {"local": "file", "s3a": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs", "https": "http"}


@dataclass(frozen=True, slots=True)
class _Stratum:
    """One level of a place: a path inside a store, which is identified by its kind and an identity within that kind."""

    what: tuple[str, Any]
    path: str


def relation(place: OpenKv | KvPrefix, other: OpenKv | KvPrefix) -> Relation | None:
    """Return whether a place is another one, lies in it, or holds it; None if neither, as far as names tell.

    A file or directory does not count as holding the inside of another archive or database in it, which takes no harm.
    """
    ones, others = _steps(place), _steps(other)
    found: Relation | None = None
    for one, two in zip(ones, others, strict=False):
        if one.what != two.what:
            return None
        found = _local(one.path, two.path) if one.what == ("file", None) else _by_name(one.path, two.path)
        if found != "is":
            break
    else:
        if len(ones) != len(others):
            found = "lies in" if len(ones) > len(others) else "holds"
    if len(ones) > len(others) and found == "holds":
        return None
    return None if len(ones) < len(others) and found == "lies in" else found


def _steps(place: OpenKv | KvPrefix) -> list[_Stratum]:
    if isinstance(place, OpenKv):
        plain = place.within(None)
        if plain.base is not None:
            return [*_steps(plain.base), _Stratum((plain.driver.id, None), plain.path)]
        place = plain.prefix
    driver, path = place
    if isinstance(driver, StandsOver):
        return [*_steps(driver.base), _Stratum((driver.id, None), path)]
    return [_root(driver, path)]


def _root(driver: KvDriver, path: str) -> _Stratum:
    if driver.id == "file":
        return _Stratum(("file", None), path)
    if isinstance(driver, MemoryDriver):
        return _Stratum(("memory", id(driver.storage)), path)
    if isinstance(driver, MappingDriver):
        return _Stratum(("mapping", id(driver.mapping)), path)
    if isinstance(driver, ZarrStoreDriver):
        if type(driver.store).__name__ == "LocalStore":
            return _Stratum(("file", None), f"{driver.store.root}/{path}")
        return _Stratum(("zarr", id(driver.store)), path)
    if not isinstance(driver, EngineDriver):
        return _Stratum((driver.id, id(driver)), path)
    url = _CACHED.sub("", str(reveal(driver.spec().get("url")) or driver.shown))
    scheme, _, rest = url.partition("://")
    rest = f"{rest.rstrip('/')}/{path.lstrip('/')}"
    scheme = _ALIASES.get(scheme, scheme)
    amazon = _AMAZON.match(rest) if scheme == "http" else None
    if amazon is not None:
        bucket = f"{amazon['bucket']}/" if amazon["bucket"] else ""
        return _Stratum(("s3", None), bucket + rest[amazon.end() :])
    return _Stratum(("file", None), f"/{rest.lstrip('/')}") if scheme == "file" else _Stratum((scheme, None), rest)


def _by_name(one: str, two: str) -> Relation | None:
    a, b = (f"{path.strip('/')}/".lstrip("/") for path in (one, two))
    if a == b:
        return "is"
    return "lies in" if a.startswith(b) else "holds" if b.startswith(a) else None


def _local(one: str, two: str) -> Relation | None:
    """Compare local paths by their inodes; missing ones by name."""
    (a, above), (b, beyond) = _ancestors(one), _ancestors(two)
    if a is None and b is None:
        return _by_name(os.path.realpath(one), os.path.realpath(two))
    if a == b:
        return "is"
    return "lies in" if b is not None and b in above else "holds" if a is not None and a in beyond else None


def _ancestors(path: str) -> tuple[tuple[int, int] | None, set[tuple[int, int]]]:
    """Return device and inode of a path, if it exists, and those of all directories around it."""
    real = Path(os.path.realpath(path))
    own, *above = map(_inode, (real, *real.parents))
    return own, {each for each in above if each is not None}


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def names_differ(place: OpenKv | KvPrefix, other: OpenKv | KvPrefix) -> bool:
    """Return whether two places have roots of different kinds, whose names cannot be compared."""
    return _steps(place)[0].what[0] != _steps(other)[0].what[0]


async def shows(place: OpenKv | KvPrefix, other: OpenKv, key: str, value: bytes) -> Relation | None:
    """Return the relation of a place to `other`, where `key` holds a unique `value`, possibly among other values.

    The key is looked for at the first place, in the directories above it, and below it under the last names of
    `other`'s path.
    """
    driver, path = place.within(None).prefix if isinstance(place, OpenKv) else place
    parts, names = path.strip("/").split("/"), other.path.strip("/").split("/")
    slash = "/" if path.startswith("/") else ""
    above = ["".join(f"{part}/" for part in parts[:depth]) for depth in range(len(parts))]
    below = ["".join(f"{name}/" for name in names[depth:]) for depth in range(len(names))]
    own = as_directory(path)
    asked = [own, *(slash + each for each in above), *(own + each for each in below if each != "/")]
    try:
        answers = await driver.read_many([Read(each + key) for each in asked])
    except StoreError:  # the place has no such key
        return None
    found = [number for number, answer in enumerate(answers) if value in bytes(answer.value)]
    return None if not found else "is" if found[0] == 0 else "lies in" if found[0] <= len(above) else "holds"
