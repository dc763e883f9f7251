"""Reference sets (kerchunk): open, look into, combine, write, make and check them.

    from fsstore import references

    refs = references.open("s3://bucket/refs.json.zst")
    refs.inspect()                        # hosts, codecs and bytes, before anything is fetched
    refs.rewrite({"s3://old/": "s3://new/"}).save("file:///data/refs.parquet")
    references.scan(["a.nc", "b.nc"], concat_dims=["time"]).save("file:///data/both.json")
    assert references.verify("file:///data/both.json")

To read arrays through a set, open `<url>|reference:` with `fsstore.open` or `fsstore.KvStore.open`; a set in memory has
`references.store`.  This module is the door; what is behind it lives in `fsstore.kvstore.reference`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from fsstore import _runtime
from fsstore.errors import StoreError
from fsstore.kvstore.contract import KvPrefix
from fsstore.kvstore.live import is_live_set
from fsstore.kvstore.reference.collection import References, Saving
from fsstore.kvstore.reference.json_refs import from_mapping
from fsstore.kvstore.reference.kind import policy_of, reference_driver
from fsstore.kvstore.reference.live_set import live_state, live_targets
from fsstore.kvstore.reference.load import Reading, load
from fsstore.kvstore.reference.location import beside
from fsstore.kvstore.reference.overlay import Overlay, State
from fsstore.kvstore.reference.report import Report, Touched
from fsstore.kvstore.reference.scan import ScanError, Scanned, combine, scan_files
from fsstore.kvstore.reference.targets import Targets, check_prefixes, open_with_spec
from fsstore.kvstore.reference.value import Located
from fsstore.kvstore.reference.verify import Problem, Verification, verify_state
from fsstore.kvstore.store import KvStore

__all__ = [
    "Located",
    "Problem",
    "References",
    "Report",
    "Saving",
    "ScanError",
    "Scanned",
    "Touched",
    "Verification",
    "inspect",
    "open",
    "scan",
    "store",
    "verify",
]


async def _base(url: Any) -> KvPrefix:
    """Return the store and path of a document."""
    from fsstore.context import Context
    from fsstore.kvstore.opened import open_kv
    from fsstore.kvstore.spec_parse import place_spec

    return (await open_kv(place_spec(url), Context())).prefix


async def _open(source: Any, reading: Reading) -> References:
    if isinstance(source, References):
        return source
    if isinstance(source, Mapping) and "driver" not in source:
        state = State(from_mapping(source, target=reading.target, overrides=reading.templates))
        return References(state, "in memory")
    if is_live_set(source):
        state, place = await live_state(source, reading)
        return References(state, "in memory" if place is None else place.describe(), place=place)
    base = await _base(source)
    return References(await load(base, reading), base.describe(), place=await beside(base))


def open(  # noqa: A001  # the door is a module: references.open
    source: Any,
    *,
    target: str | None = None,
    templates: Mapping[str, str] | None = None,
    create: bool = False,
) -> References:
    """Return the reference set at a URL, path or kvstore spec, in a mapping, or in a live `ReferenceFileSystem`.

    `target` stands in for null URLs; `templates` replaces or adds templates; with `create` a set that does not exist
    is an empty one.  Raises `NotFoundError` if there is none, and `JsonError` with every malformed reference.

    >>> refs = open({"x/0": ["s3://bucket/file", 10, 20], "x/1": "inline"})
    >>> refs["x/0"]
    Located(url='s3://bucket/file', offset=10, length=20)
    >>> refs["x/1"]
    b'inline'
    """
    reading = Reading(target, templates, create=create, creates="`create=True` begins one")
    opened: References = _runtime.call(_open(source, reading))
    return opened


def store(
    source: Any,
    *,
    targets: Mapping[str, Any] | None = None,
    rewrite: Mapping[str, str] | None = None,
    allow: Sequence[str] | None = None,
    target: str | None = None,
) -> KvStore:
    """Return the key-value store of a set in memory: a mapping, `References`, or a live `ReferenceFileSystem`.

    Relative URLs start from where the set lies, those of a mapping from the working directory.  Writes change this
    store only.
    """
    from fsstore.kvstore.opened import OpenKv
    from fsstore.kvstore.spec import KvSpec
    from fsstore.kvstore.spec_parse import kv_kind

    refs = _runtime.call(_open(source, Reading(target)))
    members = _members(targets=targets, rewrite=rewrite, allow=allow)
    members["targets"] = {**live_targets(source), **members.get("targets", {})}
    driver = reference_driver(
        Overlay(refs.state, None, writable=True),
        members,
        base=refs.place,
        described="reference set in memory",
    )
    kind = kv_kind("memory")
    if kind is None:
        raise StoreError("the memory key-value store is not registered")
    return KvStore.of(OpenKv(driver, "", KvSpec.of(kind, "").replace(live=driver)))


def _members(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def inspect(source: Any) -> Report:
    """Return the places, codecs, arrays and bytes of a set; only the set itself is read."""
    return open(source).inspect()


def scan(
    urls: str | Sequence[str],
    *,
    concat_dims: Sequence[str] = (),
    combine_options: Mapping[str, Any] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> References:
    """Return the reference set of one or more files (HDF5, NetCDF 3, GRIB 2, FITS, TIFF, zarr), made by kerchunk.

    Several files are combined along `concat_dims`.  Files are scanned in processes of their own; what fails is named
    in a `ScanError`, or left out with `on_error="skip"`.  `options` go to the scanner: `format`, `storage_options`,
    and its own.
    """
    listed = [urls] if isinstance(urls, str) else list(urls)
    scanned = scan_files(listed, options, progress=progress)
    if scanned.failures and (on_error == "raise" or not scanned.documents):
        raise ScanError(scanned.failures)
    documents = [document for url in listed for document in scanned.documents.get(url, [])]
    arguments = {**({"concat_dims": list(concat_dims)} if concat_dims else {}), **(combine_options or {})}
    return References(State(combine(documents, arguments)), f"scan of {len(documents)} files")


def verify(source: Any, *, decode: bool = False, **members: Any) -> Verification:
    """Return what is wrong between a set and its targets: missing, unreachable or short ones.

    With `decode` every chunk of every array is read and decoded as well, which needs a set that has a URL.
    `members` are those of the `reference` kvstore: `targets`, `rewrite`, `allow`.

    >>> bool(verify({"x/0": "inline"}))
    True
    """
    found = _runtime.call(_verify(source, members))
    if not decode:
        return found
    damaged = tuple(_undecodable(source, members))
    return Verification(found.targets, found.references, found.problems + damaged)


async def _verify(source: Any, members: Mapping[str, Any]) -> Verification:
    refs = await _open(source, Reading())
    prefixes = check_prefixes(members.get("targets") or {})
    rewrite = members.get("rewrite") or {}
    targets = Targets(open_with_spec, policy_of(refs.place, members), refs.place, prefixes, rewrite)
    return await verify_state(refs.state, targets)


def _undecodable(source: Any, members: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the arrays and chunks that cannot be read and decoded."""
    from fsstore.kvstore.spec_parse import place_spec
    from fsstore.opening import open as open_array

    base, refs = place_spec(source).to_json(), open(source)
    for path, grid in refs.arrays.items():
        kvstore = {"driver": "reference", "base": base, "path": f"{path}/" if path else "", **members}
        try:
            array = open_array({**_shown(refs, path), "kvstore": kvstore}).result()
        except StoreError as error:
            yield Problem(path, f"the array cannot be opened: {error}")
            continue
        for index in itertools.product(*(range(count) for count in (() if grid.scalar else grid.shape))):
            corner = zip(
                index, grid.chunk, array.shape, strict=False
            )  # a field may have dimensions of its own
            region = tuple(slice(at * step, min((at + 1) * step, size)) for at, step, size in corner)
            try:
                array[region].read().result()
            except StoreError as error:
                yield Problem(path, str(error), (grid.key(index or (0,)),), 1)


def _shown(refs: References, path: str) -> dict[str, Any]:
    """Return the driver of an array, and the first field of one that has several: whole chunks are decoded for it."""
    document = refs.get(f"{path}/.zarray".lstrip("/"))
    if document is None:
        return {"driver": "zarr3"}
    fields = json.loads(document)["dtype"] if isinstance(document, bytes) else None
    return {"driver": "zarr", "field": fields[0][0]} if isinstance(fields, list) else {"driver": "zarr"}
