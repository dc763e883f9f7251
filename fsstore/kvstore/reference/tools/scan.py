"""Making reference sets from files: kerchunk's scanners, run in processes of their own.

One process a file, so that a file that crashes or hangs a scanner loses itself and nothing else, and is named.
The format is told by the first bytes.  Inside a process the garbage collector rests while a scanner runs: kerchunk's
HDF5 scan calls into an event loop while it holds h5py's lock, and a collection at that moment can deadlock.
Datasets that kerchunk cannot describe, or would describe as empty, are left out and named beside the documents.

Several files are combined along dimensions by kerchunk's MultiZarrToZarr.  It takes coordinates by their numbers, and
those of later files for the same ones where each file counts days from its own first; they are combined as times.
"""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.reference.document.json_refs import from_json, from_mapping
from fsstore.kvstore.reference.state.refset import TableSet
from fsstore.kvstore.reference.table.value import encode_text
from fsstore.kvstore.reference.tools.fits_repair import refuse_compressed, repaired
from fsstore.kvstore.reference.tools.left_out import LeftOutWarning
from fsstore.runtime import execution

__all__ = ["ScanError", "Scanned", "combine", "detect_format", "scan_files"]

_MAGIC = (
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"CDF\x01", "netcdf3"),
    (b"CDF\x02", "netcdf3"),
    (b"GRIB", "grib2"),
    (b"SIMPLE  =", "fits"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
)
_METADATA = (".zarray", ".zattrs", ".zgroup", ".zmetadata")
_HDF5_STEPS = (512, 1024, 2048, 4096)


class ScanError(StoreError):
    """Files could not be scanned.  `failures` maps each to what its scanner said."""

    def __init__(self, failures: Mapping[str, str]) -> None:
        self.failures = dict(failures)
        super().__init__("; ".join(f"Cannot scan {url}: {why}" for url, why in failures.items()))


@dataclass(frozen=True, slots=True)
class Scanned:
    """The outcome of a scan: documents (version 1) by file, in order; what failed; what others lack."""

    documents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def detect_format(head: bytes) -> str | None:
    """Return the format of a file from its first bytes, or None."""
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if any(head[step : step + 8] == _MAGIC[0][0] for step in _HDF5_STEPS):
        return "hdf5"
    return "grib2" if b"GRIB" in head[:64] else None


def scan_files(
    urls: Sequence[str],
    options: Mapping[str, Any],
    *,
    workers: int | None = None,
    timeout_s: float = 600.0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Scanned:
    """Return the documents of all files that could be scanned.

    `options` may hold `format`, `storage_options`, and arguments of the scanner.  `progress` is called with the number
    of files done, the number of all, and the file, from whichever thread is done with it.
    """
    scanned, done = Scanned(), [0]

    def one(url: str) -> tuple[str, list[dict[str, Any]] | None, str]:
        documents, why = _in_process(url, options, timeout_s)
        done[0] += 1
        if progress is not None:
            progress(done[0], len(urls), url)
        return url, documents, why

    for url, documents, why in execution.map_blocking(
        one, list(urls), kind="io", limit=workers or execution.core_count()
    ):
        if documents is None:
            scanned.failures[url] = why
        else:
            scanned.documents[url] = documents
            if why:
                scanned.left_out[url] = why
    return scanned


def _in_process(
    url: str, options: Mapping[str, Any], timeout_s: float
) -> tuple[list[dict[str, Any]] | None, str]:
    """Scan one file in a process of its own; return its documents and what they lack, or None and why not."""
    order = json.dumps({"url": url, "options": dict(options)})
    try:
        done = subprocess.run(  # our own module, with the interpreter that runs us
            [sys.executable, "-m", "fsstore.kvstore.reference.tools.scan"],
            input=order.encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"the scanner did not finish in {timeout_s:g} seconds"
    if done.returncode:
        return None, (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["the scanner crashed"])[
            -1
        ]
    documents, left_out = json.loads(done.stdout)
    return documents, "; ".join(left_out)


def combine(documents: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> TableSet:
    """Return the set of several documents: one as it is, more combined by kerchunk along `concat_dims`."""
    if not documents:
        raise StoreError("There are no files to scan")
    if len(documents) == 1:
        return from_mapping(documents[0])
    if not arguments.get("concat_dims"):
        raise StoreError(
            "Several files, and several messages of a GRIB file, need `concat_dims`, the dimensions along which they "
            "are combined"
        )
    try:
        from kerchunk.combine import MultiZarrToZarr
    except ImportError:
        raise UnimplementedError("Combining needs kerchunk: pip install 'fsstore[kerchunk]'") from None
    selectors = {name: f"cf:{name}" for name in _of_many_units(documents, arguments["concat_dims"])}
    if selectors:
        arguments = {**arguments, "coo_map": selectors | dict(arguments.get("coo_map") or {})}
    try:
        combined = MultiZarrToZarr([dict(document) for document in documents], **arguments).translate()
    except Exception as error:  # kerchunk raises whatever it meets
        why = f"{type(error).__name__}: {error}"
        raise StoreError(
            f"kerchunk cannot combine {len(documents)} documents along {arguments['concat_dims']}: {why}"
        ) from error
    return from_mapping(combined)


def _of_many_units(documents: Sequence[Mapping[str, Any]], dims: str | Sequence[str]) -> list[str]:
    """Return the coordinates that count time from another moment in each document: their numbers say nothing alone."""
    listed = [dims] if isinstance(dims, str) else dims
    return [name for name in listed if len({_epoch(document, name) for document in documents} - {None}) > 1]


def _epoch(document: Mapping[str, Any], name: str) -> tuple[str, str] | None:
    """Return the units and calendar of a time coordinate, or None of anything else."""
    attributes = json.loads(document["refs"].get(f"{name}/.zattrs", "{}"))
    units = str(attributes.get("units", ""))
    return (units, str(attributes.get("calendar", "standard"))) if " since " in units else None


def _head(url: str, storage_options: Mapping[str, Any]) -> bytes:
    import fsspec

    with fsspec.open(url, "rb", **storage_options) as file:
        data: bytes = file.read(8192)
        return data


def _kind_of(url: str, storage_options: Mapping[str, Any]) -> str | None:
    """Return the format of a file, or of the directory that is there instead."""
    try:
        kind = detect_format(_head(url, storage_options))
    except OSError:
        if _is_zarr(url, storage_options):
            return "zarr"
        raise
    return "zarr" if kind is None and _is_zarr(url, storage_options) else kind


def _is_zarr(url: str, storage_options: Mapping[str, Any]) -> bool:
    """Return whether a place is a zarr group, also of a kind that kerchunk does not scan, which it then says."""
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(url, **storage_options)
    below = path.rstrip("/")
    if filesystem.exists(f"{below}/.zgroup"):
        return True
    for name in (".zarray", "zarr.json"):
        if filesystem.exists(f"{below}/{name}"):
            what = "an array without a group" if name == ".zarray" else "zarr of version 3"
            raise UnimplementedError(f"it is {what}, which kerchunk does not scan; fsstore opens it as it is")
    return False


def _scan_one(url: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the documents of a file: kerchunk's scanner for its format, called in this process."""
    storage = options.pop("storage_options", {})
    kind = options.pop("format", None)
    if kind is None:
        kind = _kind_of(url, storage)
    scanner = _SCANNERS.get(kind or "")
    if scanner is None:
        raise StoreError(f"its format is not one of {', '.join(_SCANNERS)}")
    try:
        found = scanner(url, storage, options)
    except ImportError as error:
        extras = ",".join(["kerchunk", *_EXTRAS.get(kind or "", ())])
        raise UnimplementedError(f"{error}: scanning {kind} needs pip install 'fsstore[{extras}]'") from None
    return [_document(one) for one in (found if isinstance(found, list) else [found])]


def _document(found: dict[str, Any]) -> dict[str, Any]:
    """Return a scanner's answer as a document of version 1 that JSON can hold."""
    if "version" not in found:
        found = {"version": 1, "refs": found}
    return {**found, "refs": {key: _value(key, value) for key, value in found["refs"].items()}}


def _value(key: str, value: Any) -> Any:
    """Return a reference as JSON holds it: metadata without blanks, every other byte as it is."""
    if key.rpartition("/")[2] in _METADATA and isinstance(value, bytes | str):
        return json.dumps(json.loads(value), separators=(",", ":"))
    if isinstance(value, bytes):
        return value.decode("ascii") if value.startswith(b"base64:") else encode_text(value)
    return value


def _as_they_are(module: Any) -> None:
    """Keep a scanner from formatting inline values again; bytes that begin with `base64:` are told apart, too.

    kerchunk formats whatever is JSON by chance, chunks included: of the text `[1 ,2 ]` it leaves `[1,2]`.
    """

    def encode(store: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: encode_text(value) if isinstance(value, bytes) else value for key, value in store.items()
        }

    if hasattr(module, "_encode_for_JSON"):
        module._encode_for_JSON = encode


def _hdf5(url: str, storage: dict[str, Any], options: dict[str, Any]) -> Any:
    from kerchunk import hdf

    from fsstore.kvstore.reference.tools.hdf5_scan import KerchunkHdf5

    _as_they_are(hdf)
    return KerchunkHdf5(url, storage_options=storage, **options).translate()


def _netcdf3(url: str, storage: dict[str, Any], options: dict[str, Any]) -> Any:
    from kerchunk import netCDF3

    from fsstore.kvstore.reference.tools.netcdf3_scan import Netcdf3Scanner

    _as_they_are(netCDF3)
    return Netcdf3Scanner(url, storage_options=storage or None, **options).translate()


def _grib2(url: str, storage: dict[str, Any], options: dict[str, Any]) -> Any:
    from kerchunk import grib2

    _as_they_are(grib2)
    return grib2.scan_grib(url, storage_options=storage, **options)


def _fits(url: str, storage: dict[str, Any], options: dict[str, Any]) -> Any:
    import fsspec
    from astropy.io import fits
    from kerchunk.fits import process_file

    found = process_file(url, storage_options=storage, **options)
    with fsspec.open(url, "rb", **storage) as file, fits.open(file) as units:
        refuse_compressed(found, units, fits.CompImageHDU)
    return repaired(found)


def _tiff(url: str, storage: dict[str, Any], options: dict[str, Any]) -> Any:
    import io

    import fsspec
    import tifffile

    with fsspec.open(url, "rb", **storage) as file, tifffile.TiffFile(file) as image:
        store = image.series[0].aszarr(**options)
        text = io.StringIO()
        head, slash, _ = url.rpartition("/")
        store.write_fsspec(text, url=head + slash, version=1)
    return json.loads(text.getvalue())


def _zarr(url: str, storage: dict[str, Any], options: dict[str, Any]) -> Any:
    from kerchunk.zarr import single_zarr

    return dict(single_zarr(url, storage_options=storage, **options))


_SCANNERS: dict[str, Callable[[str, dict[str, Any], dict[str, Any]], Any]] = {
    "hdf5": _hdf5,
    "netcdf3": _netcdf3,
    "grib2": _grib2,
    "fits": _fits,
    "tiff": _tiff,
    "zarr": _zarr,
}


_EXTRAS = {"grib2": ("grib",), "fits": ("fits",)}


def _serve() -> int:
    """Read an order from standard input, scan, and write the documents to standard output."""
    gc.disable()
    order = json.load(sys.stdin)
    try:
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", LeftOutWarning)
            documents = _scan_one(order["url"], order["options"])
            for document in documents:
                from_json(json.dumps(document).encode())
        left_out = [str(each.message) for each in told if issubclass(each.category, LeftOutWarning)]
        sys.stdout.write(json.dumps([documents, left_out]))
    except Exception as error:  # noqa: BLE001  # scanners raise whatever they like; the parent reports it by file
        sys.stderr.write(f"\n{type(error).__name__}: {' '.join(str(error).split())[:500]}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_serve())
