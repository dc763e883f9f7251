"""Reference sets by kerchunk's translators, which read files through fsstore's stores; and the `hdf4` adapter.

kerchunk opens a file by a protocol of fsspec.  Here that is a store of fsstore, so that requests, options and errors
are those of every other way.  The result is checked as any other set.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import fsspec

from fsstore.errors import NotFoundError, StoreError, UnimplementedError
from fsstore.filesystem.kv import KvFileSystem
from fsstore.filesystem.place import live_kv
from fsstore.kvstore.contract.driver import AdapterKind, KvDriver, KvOpening, KvPrefix
from fsstore.kvstore.kv_store import KvStore
from fsstore.redaction import redact
from fsstore.reference.driver import reference_driver
from fsstore.reference.json_document import from_mapping
from fsstore.reference.mapping import References
from fsstore.reference.policy import beside, name_of
from fsstore.reference.table.set_state import Overlay, State
from fsstore.runtime import execution
from fsstore.values.json_value import Fields, Json, quote
from fsstore.values.registry import encode_path

__all__ = ["HDF4", "by_kerchunk"]

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
