"""Reference sets between fsstore and kerchunk: made by its translators, and any set in the form that its readers hold.

kerchunk opens a file by a protocol of fsspec.  Here that is a store of fsstore, so that requests, options and errors
are those of every other way.  The result is checked as any other set.  `hdf4` is the adapter made so.

fsspec's `ReferenceFileSystem` holds a mapping whose values are bytes, `[url]` or `[url, offset, length]`.  Here that is
a set, looked up as columns, whatever document it comes from; values that are put into the mapping stand before those
of the set.
"""

from __future__ import annotations

import base64
import gc
import json
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, Sequence, ValuesView
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import fsspec
import numpy as np
from fsspec.implementations import reference as theirs
from fsspec.implementations.reference import LazyReferenceMapper

from fsstore.errors import NotFoundError, StoreError, UnimplementedError
from fsstore.filesystem.kv import KvFileSystem
from fsstore.filesystem.place import live_kv
from fsstore.kvstore.contract.driver import AdapterKind, KvDriver, KvOpening, KvPrefix
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.redaction import redact
from fsstore.reference.driver import reference_driver
from fsstore.reference.json_document import from_json, from_mapping
from fsstore.reference.kind import Reading, decompress, load
from fsstore.reference.mapping import References
from fsstore.reference.policy import beside, name_of
from fsstore.reference.table.refset import Resolved
from fsstore.reference.table.set_state import Overlay, State
from fsstore.reference.table.table import ABSENT, WHOLE
from fsstore.runtime import execution
from fsstore.runtime.tuning import PIECE_BYTES
from fsstore.values.detection import method_of
from fsstore.values.json_value import Fields, Json, quote
from fsstore.values.registry import encode_path

_PROTOCOL = "kvstore"  # that of the class: a store of this process, by the name it has here


def _hdf5(url: str, options: dict[str, Any], inline: int) -> Any:
    from kerchunk.hdf import SingleHdf5ToZarr

    return SingleHdf5ToZarr(url, storage_options=options, inline_threshold=inline).translate()


def _hdf4(url: str, options: dict[str, Any], inline: int) -> Any:
    from kerchunk.hdf4 import HDF4ToZarr

    return HDF4ToZarr(url, storage_options=options, inline_threshold=inline).translate()


def _netcdf3(url: str, options: dict[str, Any], inline: int) -> Any:
    from kerchunk.netCDF3 import NetCDF3ToZarr

    return NetCDF3ToZarr(url, storage_options=options, inline_threshold=inline).translate()


def _grib(url: str, options: dict[str, Any], inline: int) -> Any:
    from kerchunk.grib2 import grib_tree, scan_grib

    messages = scan_grib(url, storage_options=options, inline_threshold=inline)
    return messages[0] if len(messages) == 1 else grib_tree(messages)


def _tiff(url: str, options: dict[str, Any], _inline: int) -> Any:
    from kerchunk.tiff import tiff_to_zarr

    return tiff_to_zarr(url, remote_options=options)


def _fits(url: str, options: dict[str, Any], _inline: int) -> Any:
    from kerchunk.fits import process_file

    return process_file(url, storage_options=options)


Translate = Callable[[str, dict[str, Any], int], Any]
_TRANSLATORS: Mapping[bytes, Translate] = {
    b"\x89HDF\r\n\x1a\n": _hdf5,
    b"\x0e\x03\x13\x01": _hdf4,
    b"CDF": _netcdf3,
    b"GRIB": _grib,
    b"II*\0": _tiff,
    b"MM\0*": _tiff,
    b"SIMPLE": _fits,
}
"""The translator of each format, by how its files begin."""


async def by_kerchunk(place: KvPrefix, url: str, inline: int) -> References:
    """Return the references of a file at a place, which they call `url`, as kerchunk finds them."""
    if find_spec("kerchunk") is None:
        raise UnimplementedError("kerchunk is not installed: pip install 'fsstore[kerchunk]'")
    found = await place.read_up_to(max(map(len, _TRANSLATORS)))
    if found.state != "value":
        raise NotFoundError(f"{place.describe()} does not exist")
    head = bytes(found.value)
    translate = next((each for start, each in _TRANSLATORS.items() if head.startswith(start)), None)
    if translate is None:
        raise StoreError(f"kerchunk has no translator for {place.describe()}: it begins with {head!r}")
    document = await execution.offload(_translated, translate, place, inline)
    refs = References(State(from_mapping(document)), f"scan of {url} by kerchunk")
    own = [each for each in refs.urls if each.startswith(f"{_PROTOCOL}:")]  # tifffile leaves out a slash
    return refs.rewrite(dict.fromkeys(own, url)) if own else refs


def _translated(translate: Translate, place: KvPrefix, inline: int) -> dict[str, Any]:
    directory, _, name = place.path.rpartition("/")
    store = KvStore.of(live_kv(place._replace(path=f"{directory}/" if directory or name != place.path else "")))
    filesystem = KvFileSystem.of(store)
    fsspec.register_implementation(_PROTOCOL, KvFileSystem, clobber=True)
    options = {"fo": filesystem._live.text if filesystem._live else "", "skip_instance_cache": True}
    try:
        with _collector_off():
            document = translate(f"{_PROTOCOL}://{name}", options, inline)
    except Exception as error:  # whatever kerchunk and the libraries of a format raise
        raise StoreError(
            f"kerchunk cannot translate {place.describe()}: {type(error).__name__}: {redact(str(error))}. Scan the file"
            " without `by`, or look whether it is whole"
        ) from error
    if not isinstance(document, dict):
        raise StoreError(f"kerchunk made no set of {place.describe()}, but {quote(type(document).__name__)}")
    return {key: _plain(value) for key, value in document.items()}


def _plain(value: Any) -> Any:
    """Return a value of a set as documents hold it: some translators leave objects of NumPy."""
    if isinstance(value, bytes | str | Mapping | int) or value is None:
        return value
    return json.loads(json.dumps(value, default=int))


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep the garbage collector off: kerchunk reads within callbacks of h5py, whose lock a collection may want."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, slots=True)
class KerchunkKind(AdapterKind):
    """A format that kerchunk alone reads, as the keys of the set it makes: `base|hdf4:path`."""

    id: str
    resources: tuple[str, ...] = ()

    @property
    def schemes(self) -> tuple[str, ...]:
        """The name of the format."""
        return (self.id,)

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take nothing."""
        return {}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return the URL component."""
        return f"{self.id}:{encode_path(path)}"

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the store of the set, which reads the file where it lies; it cannot be written."""
        place = opening.below
        refs = await by_kerchunk(place, encode_path(name_of(place)), 0)
        overlay = Overlay(refs.state, None, writable=False)
        described = f"{place.describe()} by kerchunk"
        return reference_driver(overlay, {}, base=await beside(place), described=described)


HDF4 = KerchunkKind("hdf4")
"""The kind of `{"driver": "hdf4"}` and `hdf4:`."""


_CODED, _DOCUMENT = b"base64:", ".zmetadata"


def inline_value(value: Any) -> bytes:
    """Return the bytes that stand for a value which is no place: text, bytes, or a buffer of zarr-python."""
    if isinstance(value, str):
        value = value.encode()
    elif not isinstance(value, bytes):
        value = value.to_bytes()
    return base64.b64decode(value[len(_CODED) :]) if value.startswith(_CODED) else bytes(value)


def size_of(value: Any) -> int | None:
    """Return the size of a reference; None if that is the size of a target."""
    if isinstance(value, list | tuple):
        return None if len(value) == 1 or value[2] < 0 else int(value[2])
    return len(inline_value(value))


class SetReferences(MutableMapping[str, Any]):
    """The references of an opened set, and what was put in their place; None deletes."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.changes: dict[str, Any] = {}
        self._order: tuple[list[str], dict[str, int | None]] | None = None

    @property
    def waits(self) -> bool:
        """Whether looking references up may wait."""
        return self.state.base.waits

    def are_columns(self, keys: Sequence[str]) -> bool:
        """Return whether the opened set has the references of keys as they are now."""
        return not self.changes

    async def found(self, keys: Sequence[str]) -> list[Any]:
        """Return the references of keys, in order, None where there is none."""
        resolved = await self.state.resolve(keys)
        out = _values(resolved)
        for position in [at for at, key in enumerate(keys) if key in self.changes] if self.changes else ():
            out[position] = self.changes[keys[position]]
        return out

    def __getitem__(self, key: str) -> Any:
        """Return the reference of a key."""
        value = self._run(self.found([key]))[0]
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        """Return whether there is a reference of a key."""
        return isinstance(key, str) and self.get(key) is not None

    def __setitem__(self, key: str, value: Any) -> None:
        """Put a value or a place in the set, in memory."""
        self.changes[key], self._order = value, None

    def __delitem__(self, key: str) -> None:
        """Take a key out."""
        _ = self[key]
        self.changes[key], self._order = None, None

    def columns(self) -> Iterator[tuple[list[str], Resolved]]:
        """Yield the keys of the set that were not changed, with their references as columns, in batches."""
        scan = self.state.scan(KeyRange())

        async def following() -> tuple[list[str], Resolved] | None:
            return await anext(scan, None)

        while (page := self._run(following())) is not None:
            names, found = page
            if self.changes:
                kept = [at for at, name in enumerate(names) if name not in self.changes]
                names, found = (
                    [names[at] for at in kept],
                    found._replace(rows=found.rows.take(np.array(kept, np.int64))),
                )
            yield names, found

    def new(self) -> dict[str, Any]:
        """Return what was put into the set."""
        return {key: value for key, value in self.changes.items() if value is not None}

    def pages(self) -> Iterator[tuple[list[str], list[Any]]]:
        """Yield all keys and references, in batches."""
        for names, found in self.columns():
            yield names, _values(found)
        yield list(self.new()), list(self.new().values())

    def sizes(self) -> Iterator[tuple[list[str], list[int | None]]]:
        """Yield all keys with the sizes of their values, in batches; None where the target has to be asked."""
        for names, found in self.columns():
            yield names, [None if size < 0 else size for size in found.rows.length.tolist()]
        yield list(self.new()), [size_of(value) for value in self.new().values()]

    def in_order(self) -> tuple[list[str], dict[str, int | None]]:
        """Return all keys in order, and the sizes of their values, kept until something changes."""
        if self._order is None:
            known = {name: size for page in self.sizes() for name, size in zip(*page, strict=True)}
            self._order = sorted(known), known
        return self._order

    def __iter__(self) -> Iterator[str]:
        """Yield every key."""
        for names, _ in self.columns():
            yield from names
        yield from self.new()

    def __len__(self) -> int:
        """Return the number of keys."""
        return sum(len(names) for names, _ in self.columns()) + len(self.new())

    def __eq__(self, other: object) -> bool:
        """Return whether another mapping has the same references."""
        return isinstance(other, MutableMapping) and dict(self.items()) == dict(other.items())

    def __hash__(self) -> int:
        """Return that of the object: fsspec keeps it in sets."""
        return id(self)

    def items(self) -> ItemsView[str, Any]:
        """Return keys and references, looked up together."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Return references, looked up together."""
        return _Values(self)

    def _run(self, coroutine: Any) -> Any:
        return execution.call(coroutine, waits=self.waits)


class _Items(ItemsView[str, Any]):
    """The items of a set."""

    _mapping: SetReferences

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield them."""
        for names, values in self._mapping.pages():
            yield from zip(names, values, strict=True)


class _Values(ValuesView[Any]):
    """The references of a set."""

    _mapping: SetReferences

    def __iter__(self) -> Iterator[Any]:
        """Yield them."""
        for _, values in self._mapping.pages():
            yield from values


def _values(resolved: Resolved) -> list[Any]:
    """Return references in fsspec's form."""
    urls, inline = resolved.urls, resolved.inline
    out: list[Any] = []
    for url, offset, length in zip(*(column.tolist() for column in resolved.rows), strict=True):
        if url >= 0:
            out.append([urls[url]] if length == WHOLE and not offset else [urls[url], offset, length])
        elif url == ABSENT:
            out.append(None)
        else:
            value = inline[offset]
            out.append(_CODED + base64.b64encode(value) if value.startswith(_CODED) else value)
    return out


class JsonReferences(SetReferences):
    """The references of a JSON document, compressed or not."""

    def __init__(self, data: bytes, *, target: str | None, overrides: dict[str, str] | None) -> None:
        super().__init__(State(from_json(decompress(data), target=target, overrides=overrides)))


class ParquetReferences(SetReferences, LazyReferenceMapper):  # type: ignore[misc]  # fsspec is untyped
    """The references of a parquet directory; changes are kept, and written by `flush`, as fsspec does it."""

    def __init__(self, root: str, filesystem: Any, *, cache_size: int) -> None:
        LazyReferenceMapper.__init__(self, root, fs=filesystem, cache_size=cache_size)
        super().__init__(self._stored())

    def are_columns(self, keys: Sequence[str]) -> bool:
        """Return whether the opened set has the references of keys as they are now."""
        return super().are_columns(keys) and _DOCUMENT not in keys

    async def found(self, keys: Sequence[str]) -> list[Any]:
        """Return the references of keys; the document of the set is one of them."""
        out = await super().found(keys)
        return [self._document if key == _DOCUMENT else each for key, each in zip(keys, out, strict=True)]

    def new(self) -> dict[str, Any]:
        """Return what was put into the set, and its document."""
        return {_DOCUMENT: self._document, **super().new()}

    def _stored(self) -> State:
        from fsstore.kvstore.root.live import filesystem_prefix
        from fsstore.kvstore.spec_parse import open_kv, place_spec

        root = self.root.rstrip("/") + "/"
        if "file" in self.fs.protocol:
            place = execution.call(open_kv(place_spec(root), _context())).prefix
        else:
            place = filesystem_prefix(self.fs, root)
        self._document = self.fs.cat_file(root + _DOCUMENT)
        return execution.call(load(place, Reading()))

    def __setitem__(self, key: str, value: Any) -> None:
        """Put a value or a place in the set; a file all of whose references are new is written at once."""
        super().__setitem__(key, value)
        LazyReferenceMapper.__setitem__(self, key, value)

    def __delitem__(self, key: str) -> None:
        """Take a key out."""
        super().__delitem__(key)
        LazyReferenceMapper.__delitem__(self, key)

    def flush(self, base_url: str | None = None, storage_options: Any = None) -> None:
        """Write what has changed."""
        LazyReferenceMapper.flush(self, base_url, storage_options)
        if base_url is None:
            super().__init__(self._stored())


def _context() -> Any:
    from fsstore.context.context import Context

    return Context()


def open_set(fo: str, given: dict[str, Any]) -> SetReferences | dict[str, Any]:
    """Return the references of the set at a path, opened with the options of a `ReferenceFileSystem`."""
    options = dict(given.get("ref_storage_args") or given.get("target_options") or {})
    options["protocol"] = given.get("target_protocol")
    filesystem, path = fsspec.core.url_to_fs(fo, **options)
    named = fo.endswith(("parq", "parquet", "/"))
    if named or (".json" not in path and filesystem.isdir(path)):
        return ParquetReferences(path, filesystem, cache_size=given.get("cache_size", 128))
    with fsspec.open(fo, "rb", **options) as file:
        data = file.read()
    if len(data) < PIECE_BYTES and method_of(data[:6]) is None:
        document = theirs.json.loads(data)  # ujson, where it is installed: quicker than columns for little
        if isinstance(document, dict) and not document.get("gen"):  # which fsspec leaves out
            return document
    return JsonReferences(data, target=given.get("target"), overrides=given.get("template_overrides"))


def as_set(references: Iterable[tuple[str, Any]], target: str | None) -> State:
    """Return the set that a mapping of fsspec's form is."""
    plain = {key: value if isinstance(value, list | tuple) else inline_value(value) for key, value in references}
    return State(from_mapping(plain, target=target))
