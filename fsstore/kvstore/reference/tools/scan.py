"""Reference sets made by kerchunk: of messages of GRIB that are put together, and of groups of zarr.

One process a file, so that a file that crashes or hangs a scanner loses itself and nothing else, and is named.  Inside
a process the garbage collector rests while a scanner runs: a collection in the middle of a call into C can deadlock.

Several files are combined along dimensions by kerchunk's MultiZarrToZarr.  It takes coordinates by their numbers, and
those of later files for the same ones where each file counts days from its own first; they are combined as times.
"""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.reference.document.json_refs import from_json, from_mapping
from fsstore.kvstore.reference.state.refset import TableSet
from fsstore.kvstore.reference.table.value import encode_text
from fsstore.runtime import execution
from fsstore.values import registry

__all__ = ["ScanError", "Scanned", "combine", "scan_files"]

_METADATA = (".zarray", ".zattrs", ".zgroup", ".zmetadata")


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
    return scanned


def _in_process(
    url: str, options: Mapping[str, Any], timeout_s: float
) -> tuple[list[dict[str, Any]] | None, str]:
    """Scan one file in a process of its own; return its documents, or None and why not."""
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
    return json.loads(done.stdout), ""


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
        kind = "grib2" if b"GRIB" in _head(url, storage_options)[:64] else None
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
    if kind not in _SCANNERS:
        raise StoreError(f"its format is not one of {', '.join([*registry.scanners.names(), *_SCANNERS])}")
    try:
        found = _SCANNERS[kind](url, storage, options)
    except ImportError as error:
        needed = f"pip install 'fsstore[{_EXTRAS[kind]}]'"
        raise UnimplementedError(f"{error}: scanning {kind} needs {needed}") from None
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


def _grib2(url: str, storage: dict[str, Any], options: dict[str, Any]) -> Any:
    from kerchunk import grib2

    grib2._encode_for_JSON = _encoded
    return grib2.scan_grib(url, storage_options=storage, **options)


def _encoded(store: Mapping[str, Any]) -> dict[str, Any]:
    """Return inline values as they are; bytes that begin with `base64:` are told apart, too.

    kerchunk formats whatever is JSON by chance, chunks included: of the text `[1 ,2 ]` it leaves `[1,2]`.
    """
    return {key: encode_text(value) if isinstance(value, bytes) else value for key, value in store.items()}


def _zarr(url: str, storage: dict[str, Any], options: dict[str, Any]) -> Any:
    from kerchunk.zarr import single_zarr

    return dict(single_zarr(url, storage_options=storage, **options))


_SCANNERS: dict[str, Callable[[str, dict[str, Any], dict[str, Any]], Any]] = {"grib2": _grib2, "zarr": _zarr}
_EXTRAS = {"grib2": "kerchunk,grib", "zarr": "kerchunk"}


def _serve() -> int:
    """Read an order from standard input, scan, and write the documents to standard output."""
    gc.disable()
    order = json.load(sys.stdin)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            documents = _scan_one(order["url"], order["options"])
            for document in documents:
                from_json(json.dumps(document).encode())
        sys.stdout.write(json.dumps(documents))
    except Exception as error:  # noqa: BLE001  # scanners raise whatever they like; the parent reports it by file
        sys.stderr.write(f"\n{type(error).__name__}: {' '.join(str(error).split())[:500]}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_serve())
